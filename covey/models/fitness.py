"""Whether a model can be a policy: it writes from left to right, and its tokenizer fits it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.errors import LoadingError
from covey.models.families import is_family
from covey.models.inference_mode import inference_mode
from covey.models.inspect import (
    accepted_arguments,
    innermost,
    meaningless_ids,
    placeholder_ids,
    text_config,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOISE, COARSE_NOISE = 1e-4, 0.03
"""Part of the largest logit by which rounding moves one, in float32 and in half precision, where tokens share experts."""


ONE_LENGTH = ("reformer",)
"""Kinds of models, as configs name them, whose training takes texts of one length alone."""


def check_causal(model: nn.Module) -> None:
    """Raise a LoadingError where a model has no head over the vocabulary, is an encoder-decoder, or sees later tokens."""
    causal, fault = innermost(model), ""
    config: Any = getattr(causal, "config", None)
    if not hasattr(causal, "generation_config") and not hasattr(model, "get_base_model"):
        fault = "cannot be sampled from"
    elif getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in accepted_arguments(model):
        fault = "is an encoder-decoder"
    elif getattr(config, "model_type", None) in ONE_LENGTH:
        fault = "takes texts of one length alone in training"
    elif not is_family(config) and sees_later_tokens(model):
        fault = (
            "is no decoder as it is configured (is_decoder=True?): logits of a token depend on later tokens"
        )
    if fault:
        raise LoadingError(
            f"{type(causal).__name__} {fault}. The policy must be a causal language model, which reads its prompt and goes on "
            "with it: its name, a folder, an AutoModelForCausalLM, or a PeftModel around one."
        )


def has_eyes(policy: nn.Module, processing_class: Any) -> bool:
    """Return whether a policy trains with pictures: it is of such a family, and its processor is there."""
    config = getattr(innermost(policy), "config", None)
    return is_family(config) and hasattr(processing_class, "image_processor")


def sees_later_tokens(model: nn.Module) -> bool:
    """Return whether a token's logits depend on what follows it, found by a short forward pass; raise as `plain_logits` does.

    Not asked where all attention says that it is causal, and where weights are not there yet or on other processes.
    """
    causal: Any = innermost(model)
    attention = [m for m in causal.modules() if "Attention" in type(m).__name__]
    weights = list(causal.parameters())
    is_elsewhere = any(p.is_meta or hasattr(p, "ds_id") or hasattr(p, "device_mesh") for p in weights)
    if is_elsewhere or (attention and all(getattr(m, "is_causal", None) is True for m in attention)):
        return False
    vocab = int(text_config(causal).vocab_size)
    ids = torch.tensor([meaningless_ids(vocab, 6)], device=weights[0].device)
    changed = ids.clone()
    changed[0, -2:] = (changed[0, -2:] + 1) % vocab
    first, second = (plain_logits(causal, row) for row in (ids, changed))
    noise = NOISE if weights[0].dtype in (torch.float32, torch.float64) else COARSE_NOISE
    gap = (first - second)[:, :4].abs().max()
    return first.shape[1] != ids.shape[1] or bool(gap > noise * first.abs().max())


def plain_logits(causal: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits of a forward pass over token ids, in float32.

    Raises:
        LoadingError: the model does not take them.
    """
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in accepted_arguments(causal) else {}
    try:
        with inference_mode(causal):
            logits: Tensor = causal(input_ids=ids, use_cache=False, **mask).logits
    except Exception as error:  # whatever somebody else's model raises
        raise LoadingError(
            f"{type(causal).__name__} cannot be used as a policy: its forward pass over token ids raised {type(error).__name__}: "
            f"{str(error)[:300]}. The policy must be a causal language model that reads text alone."
        ) from error
    return logits.float()


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> None:
    """Refuse a tokenizer whose tokens the model has no embedding for; one that no prompt needs, such as padding, may lack it.

    Raises:
        LoadingError: a token that can occur in a prompt lies beyond the embedding.
    """
    rows, known = rows_of(model), known_ids(tokenizer)
    if not rows or not known or max(known) < rows:
        return
    unused = {getattr(tokenizer, f"{role}_token_id", None) for role in ("pad", "unk", "mask", "cls", "sep")}
    beyond = sorted(i for i in known if i >= rows and i not in unused)
    if beyond:
        words = ", ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(beyond[:5]))
        raise LoadingError(
            f"The tokenizer has {max(known) + 1} tokens, and the model's embedding {rows}: there is no row for {words}"
            f"{' and others' if len(beyond) > 5 else ''}. Call model.resize_token_embeddings({max(known) + 1}) and pass the module, or "
            "take the tokenizer that belongs to the model."
        )


def unknown_ids(
    tokenizer: PreTrainedTokenizerBase, model: nn.Module, ending: Collection[int]
) -> tuple[int, ...]:
    """Return the ids that the model has logits for and that are no text, but for those that end a completion.

    The tokenizer has no token for them, or they stand for parts of pictures.
    """
    logits, known = rows_of(model, "get_output_embeddings"), known_ids(tokenizer)
    logits = logits or int(getattr(text_config(model), "vocab_size", 0) or 0)
    unknown = {i for i in range(logits) if i not in known and i not in ending} if known else set()
    unknown.update(i for i in placeholder_ids(model, tokenizer) if i < logits)
    return tuple(sorted(unknown))


def known_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return all ids of a tokenizer; empty where it does not list them."""
    try:
        return set(tokenizer.get_vocab().values())
    except NotImplementedError:
        return set()


def rows_of(model: nn.Module, getter: str = "get_input_embeddings") -> int:
    """Return the rows of the model's embedding, or of its head, which may have another number of them.

    Returns 0 where that is not known, as with weights on other processes.
    """
    get = getattr(innermost(model), getter, None)
    weight = getattr(get() if callable(get) else None, "weight", None)
    return len(weight) if isinstance(weight, Tensor) and weight.ndim == 2 else 0
