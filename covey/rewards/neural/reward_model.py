"""A neural reward model as a plain reward function.

It renders messages with its own tokenizer's chat template, never with the policy's; it finds the last real token by
the attention mask, never by the pad token's id (which is often the end token's as well); it refuses a head that was
never trained; it keeps its own device and dtype; and it scores equal texts once, so that siblings that say the same
get the same number.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from covey.errors import LoadingError, RewardError
from covey.rewards.contract import Failure
from covey.rewards.text import without_reasoning
from covey.types import Message, PromptContent, is_picture, message_text, parts_of
from covey.vision.blocks import BARE, payloads_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

Reduction = int | Callable[[torch.Tensor], torch.Tensor]
"""Way from several labels to one number: the index of a logit, or a function `[texts, labels]` → `[texts]`."""

Ids = tuple[int, ...]


class RewardModel:
    """Reward that scores prompt and completion together with a sequence-classification model.

    Args:
        model: a module whose output has `logits` of shape `[texts, labels]`. Scored in eval mode, in its own dtype
            and on its own device; scores are fp32.
        tokenizer: the reward model's tokenizer; or its processor, where it sees: then chats with pictures are scored with their
            pixels, one at a time. Without, they are an error. Chats need its chat template. Text prompts are joined to their
            completion without one, and tokenized as the tokenizer does by itself, with at most one BOS.
        name: of the reward in metrics; by default the last part of the model's name.
        reduce: required where the model has more than one label.
        max_tokens_per_batch: padded tokens per forward.
        max_length: longest input in tokens; by default the model's position table.
        overlong: `cut` takes the beginning of the prompt away and fails where the completion alone is too long;
            `fail` leaves out every sample that is too long.
        keep_reasoning: False scores what follows the last `</think>`.
        mean, std, clip: the raw score becomes `(raw - mean) / std`, limited to ±`clip`. Raw scores of different models
            are on different scales.
        device: moves the model; by default it stays where it is.
        offload: keep the model on the CPU between calls.

    A sample without a finite score is a `Failure`, a NaN with a reason: it is left out, it does not count as 0.

    Raises:
        LoadingError: several labels and no `reduce`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
        *,
        name: str | None = None,
        reduce: Reduction | None = None,
        max_tokens_per_batch: int = 16_384,
        max_length: int | None = None,
        overlong: Literal["cut", "fail"] = "cut",
        keep_reasoning: bool = True,
        mean: float = 0.0,
        std: float = 1.0,
        clip: float | None = None,
        device: str | torch.device | None = None,
        offload: bool = False,
    ) -> None:
        self.model = model.eval()
        self.processor: Any = tokenizer if hasattr(tokenizer, "image_processor") else None
        self.tokenizer: Any = getattr(tokenizer, "tokenizer", tokenizer)
        config = getattr(model, "config", None)
        path = getattr(config, "_name_or_path", "") or getattr(model, "name_or_path", "")
        own_name = os.path.basename(os.path.normpath(path)) if isinstance(path, str) and path else ""
        self.__name__ = name or own_name or type(model).__name__
        self.reduce = reduce
        self.max_tokens_per_batch = max_tokens_per_batch
        positions = getattr(config, "max_position_embeddings", None)
        self.max_length = max_length or (positions if isinstance(positions, int) and positions > 0 else None)
        self.overlong = overlong
        self.keep_reasoning = keep_reasoning
        self.mean, self.std, self.clip = mean, std, clip
        self.offload = offload
        parameter = next(model.parameters(), None)
        own_device = parameter.device if parameter is not None else torch.device("cpu")
        self.device = torch.device(device) if device is not None else own_device
        self.model.to("cpu" if offload else self.device)
        self._check_labels(getattr(config, "num_labels", 1))

    def __call__(
        self,
        prompts: Sequence[PromptContent],
        completions: Sequence[PromptContent],
        log_metric: Callable[[str, float], None] | None = None,
        **_: object,
    ) -> list[float | None]:
        """Return one score per completion; a `Failure`, which is NaN, where it failed."""
        if any(map(payloads_in, prompts)):
            return self._with_pictures(prompts, completions, log_metric)
        inputs = [self.encode(p, c) for p, c in zip(prompts, completions, strict=True)]
        fitted = [self._fit(*sample) for sample in zip(inputs, prompts, completions, strict=True)]
        scores = self.score({ids for ids in fitted if ids})
        if log_metric is not None and inputs:
            cut = sum(after != before for after, before in zip(fitted, inputs, strict=True))
            log_metric(f"reward_models/{self.__name__}/cut_share", cut / len(inputs))
            log_metric(f"reward_models/{self.__name__}/tokens", sum(map(len, fitted)) / len(inputs))
        blank = Failure("there is no text to score")
        long = Failure(f"the text is longer than the {self.max_length} tokens that {self.__name__} takes")
        return [scores[a] if a else long if b else blank for a, b in zip(fitted, inputs, strict=True)]

    def check_can_see(self, prompt: PromptContent) -> None:
        """Raise a RewardError where this model cannot be shown a prompt with pictures."""
        sees = "pixel_values" in inspect.signature(self.model.forward).parameters
        if self.processor is not None and sees and not isinstance(prompt, str):
            return
        why = "its processor was not given" if sees else "it reads text alone"
        why = "the prompt is text, which does not hold them" if isinstance(prompt, str) and sees else why
        raise RewardError(
            f"Reward model {self.__name__!r} is given a prompt with pictures, and {why}: it would score blind. Give RewardModel(model, "
            "processor) of a model that sees, and prompts as messages; or a function that hands it messages without their pictures."
        )

    @torch.inference_mode()
    def _with_pictures(
        self,
        prompts: Sequence[PromptContent],
        completions: Sequence[PromptContent],
        log_metric: Callable[[str, float], None] | None,
    ) -> list[float | None]:
        """Return the scores of a batch some of whose prompts show pictures: these one at a time, the others as always."""
        shown = [i for i, prompt in enumerate(prompts) if payloads_in(prompt)]
        others = sorted(set(range(len(prompts))) - set(shown))
        texts = [prompts[i] for i in others], [completions[i] for i in others]
        scores = dict(zip(others, self(*texts, log_metric=log_metric), strict=True))
        self.model.to(self.device).eval()
        for row in shown:
            self.check_can_see(prompts[row])
            scores[row] = self._seen(prompts[row], completions[row])
        if self.offload:
            self.model.to("cpu")
        return [scores[row] for row in range(len(prompts))]

    def _seen(self, prompt: PromptContent, completion: PromptContent) -> float:
        """Return the score of a completion and what it answers, which shows pictures."""
        answer = completion if self.keep_reasoning else without_reasoning(completion)
        chat = _joined(_messages(prompt, "user"), _messages(answer, "assistant"))
        bare = [_bare(message) for message in chat]
        text = self.processor.apply_chat_template(bare, tokenize=False)
        images, whole = payloads_in(prompt), {"add_special_tokens": False, "padding": False}
        given = dict(self.processor(images=[images], text=[text], return_tensors="pt", **whole))
        if self.max_length and given["input_ids"].shape[1] > self.max_length:
            return Failure(
                f"text and pictures take more than the {self.max_length} tokens that {self.__name__} takes"
            )
        dtype = getattr(self.model, "dtype", None)
        for name, value in given.items():
            given[name] = value.to(self.device, dtype if value.is_floating_point() else None)
        lengths = torch.tensor([given["input_ids"].shape[1]])
        return self._reduced(self._logits(given, lengths).float())[0]

    def encode(self, prompt: PromptContent, completion: PromptContent) -> Ids:
        """Return the token ids of prompt and completion together.

        Raises:
            RewardError: messages, and a tokenizer without a chat template.
        """
        if not self.keep_reasoning:
            completion = without_reasoning(completion)
        if isinstance(prompt, str) and isinstance(completion, str):
            return self._tokens(prompt + completion)
        return self._tokens(_joined(_messages(prompt, "user"), _messages(completion, "assistant")))

    def score(self, texts: set[Ids]) -> dict[Ids, float]:
        """Return the scores of different inputs, computed in forwards of at most `max_tokens_per_batch` padded tokens each."""
        scores: dict[Ids, float] = {}
        if not texts:
            return scores
        self.model.to(self.device).eval()
        with torch.inference_mode():
            for chunk in _chunks(sorted(texts, key=lambda ids: (len(ids), ids)), self.max_tokens_per_batch):
                logits = self._logits(*self._padded(chunk))
                scores.update(zip(chunk, self._reduced(logits.float()), strict=True))
        if self.offload:
            self.model.to("cpu")
        return scores

    def _padded(self, chunk: Sequence[Ids]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return what the model is given, padded on the right so that positions count from the first real token, and the lengths."""
        lengths = torch.tensor([len(ids) for ids in chunk], device=self.device)
        width = int(lengths.max())
        pad = getattr(self.tokenizer, "pad_token_id", None) or 0  # any id will do: the mask tells padding
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in chunk], device=self.device)
        mask = (torch.arange(width, device=self.device)[None] < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask}, lengths

    def _logits(self, given: dict[str, torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
        """Compute the logits `[texts, labels]`."""
        body, head = _body_and_head(self.model)
        if body is None or head is None:  # encoders pool their first token, which no padding moves
            logits = self.model(**given).logits
            return logits if logits.ndim == 2 else logits[:, None]
        states = body(**given).last_hidden_state  # (texts, tokens, hidden)
        last = states[torch.arange(len(lengths), device=states.device), lengths.to(states.device) - 1]
        return head(last)

    def _reduced(self, logits: torch.Tensor) -> list[float]:
        """Reduce logits `[texts, labels]` to one scaled number per text."""
        if self.reduce is None:
            raw = logits[:, 0]
        elif isinstance(self.reduce, int):
            raw = logits[:, self.reduce]
        else:
            raw = self.reduce(logits)
        scaled = (raw.double() - self.mean) / self.std
        if self.clip is not None:
            scaled = scaled.clamp(-self.clip, self.clip)  # NaN stays NaN
        unfinite = Failure(f"the score of {self.__name__} is not finite")
        return [value if math.isfinite(value) else unfinite for value in scaled.tolist()]

    def _fit(self, ids: Ids, prompt: PromptContent, completion: PromptContent) -> Ids:
        """Return `ids`, shortened to `max_length` at the prompt's beginning; empty where that is not possible."""
        excess = len(ids) - self.max_length if self.max_length else 0
        if excess <= 0:
            return ids
        keep = int(ids[0] == getattr(self.tokenizer, "bos_token_id", None))
        if self.overlong == "fail" or keep + excess > self._prompt_length(ids, prompt, completion):
            return ()
        return (*ids[:keep], *ids[keep + excess :])

    def _prompt_length(self, ids: Ids, prompt: PromptContent, completion: PromptContent) -> int:
        """Return how many of `ids` come before the completion."""
        if isinstance(prompt, str) and isinstance(completion, str):
            return len(ids) - len(self._tokens(completion, special=False))
        before = _messages(prompt, "user")
        if before and before[-1].get("role") == "assistant":
            before = before[:-1]
        return len(self._tokens(before)) if before else 0

    def _tokens(self, content: str | list[Message], special: bool = True) -> Ids:
        """Return the ids of a text, or of messages by the chat template; BOS stands once, also where text and tokenizer write it."""
        encoded: Any
        if isinstance(content, str):
            encoded = self.tokenizer(content, add_special_tokens=special)
        elif getattr(self.tokenizer, "chat_template", None):
            chat = content if self.processor is None else [*map(_bare, content)]
            encoded = self.tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True)
        else:
            raise RewardError(
                f"Reward model {self.__name__!r} got chat messages, and its tokenizer has no chat template. Give a "
                "tokenizer with the template that the reward model was trained with, or use text prompts."
            )
        ids: Ids = tuple(encoded["input_ids"])
        bos = getattr(self.tokenizer, "bos_token_id", None)
        while bos is not None and ids[:2] == (bos, bos):
            ids = ids[1:]
        return ids

    def _check_labels(self, labels: int) -> None:
        if labels != 1 and self.reduce is None:
            raise LoadingError(
                f"Reward model {self.__name__!r} has {labels} labels, and a reward is one number. Give `reduce`: the "
                "index of the label whose logit is the reward, or a function of the logits [texts, labels], for "
                "example `lambda logits: logits[:, 1] - logits[:, 0]`."
            )
        if isinstance(self.reduce, int) and not 0 <= self.reduce < labels:
            raise LoadingError(
                f"Reward model {self.__name__!r} has {labels} labels; `reduce` is {self.reduce}."
            )


def load_reward_model(
    name_or_path: str, tokenizer: PreTrainedTokenizerBase | ProcessorMixin | None = None, **options: Any
) -> RewardModel:
    """Load a reward model and its tokenizer from a folder or a model hub.

    Args:
        name_or_path: for `AutoModelForSequenceClassification.from_pretrained`.
        tokenizer: another tokenizer than the one that lies beside the model.
        options: those of `RewardModel`; everything else goes to `from_pretrained` (dtype, revision, ...).

    Raises:
        LoadingError: it cannot be loaded, has no trained classification head, or several labels and no `reduce`.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from covey.models.loading import load_processor, not_loaded

    own = {key: options.pop(key) for key in _OPTIONS if key in options}
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            name_or_path, output_loading_info=True, **options
        )
    except Exception as error:  # whatever a loader raises, the reward model cannot be loaded
        raise not_loaded("reward model", name_or_path, error) from error
    fresh = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if fresh:
        raise LoadingError(
            f"{name_or_path!r} is not a trained reward model: {', '.join(fresh[:5])} "
            f"{'is' if len(fresh) == 1 else 'are'} missing in its weights or has another shape, and would start at "
            "random. Give a sequence-classification checkpoint."
        )
    if tokenizer is None and "pixel_values" in inspect.signature(model.forward).parameters:
        tokenizer = load_processor(name_or_path, bool(options.get("trust_remote_code")))
    if tokenizer is None:
        hub = {
            key: options[key]
            for key in ("revision", "trust_remote_code", "token", "cache_dir")
            if key in options
        }
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path, **hub)
        except (OSError, ValueError) as error:
            raise not_loaded("tokenizer of the reward model", name_or_path, error) from error
    own.setdefault("name", os.path.basename(os.path.normpath(name_or_path)))
    return RewardModel(model, tokenizer, **own)


_OPTIONS = (
    "name",
    "reduce",
    "max_tokens_per_batch",
    "max_length",
    "overlong",
    "keep_reasoning",
    "mean",
    "std",
    "clip",
    "device",
    "offload",
)


def _body_and_head(model: torch.nn.Module) -> tuple[torch.nn.Module | None, torch.nn.Module | None]:
    """Return the transformer and its `score` head, for decoders that pool the last token; (None, None) for all others."""
    # An adapter wraps the model.
    core: Any = model
    if hasattr(core, "get_base_model"):
        core = core.get_base_model()
    body = getattr(core, getattr(core, "base_model_prefix", "") or "_", None)
    head = getattr(core, "score", None)
    if isinstance(body, torch.nn.Module) and isinstance(head, torch.nn.Module):
        return body, head
    return None, None


def _chunks(by_length: Sequence[Ids], max_tokens: int) -> Iterator[list[Ids]]:
    """Cut a list sorted by length so that rows × longest stays within the budget; at least one row each."""
    chunk: list[Ids] = []
    for ids in by_length:
        if chunk and (len(chunk) + 1) * len(ids) > max_tokens:
            yield chunk
            chunk = []
        chunk.append(ids)
    if chunk:
        yield chunk


def _bare(message: Message) -> Message:
    """Return a message as templates of models that see read it: its content in parts, pictures without what they hold."""
    parts = parts_of(message) or [{"type": "text", "text": message_text(message)}]
    return {**message, "content": [dict(BARE) if is_picture(part) else part for part in parts]}


def _messages(content: PromptContent, role: str) -> list[Message]:
    return [{"role": role, "content": content}] if isinstance(content, str) else list(content)


def _joined(prompt: list[Message], completion: list[Message]) -> list[Message]:
    """Join a conversation; an answer that the prompt began is continued, not answered.

    The completion of such a prompt holds the beginning already, or only the rest.
    """
    if not prompt or not completion or prompt[-1].get("role") != "assistant":
        return prompt + completion
    begun, first = message_text(prompt[-1]), completion[0]
    if not message_text(first).startswith(begun):
        first = {**first, "content": begun + message_text(first)}
    return [*prompt[:-1], first, *completion[1:]]
