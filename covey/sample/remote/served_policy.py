"""The policy that `covey serve` serves: its weights under a label, adapters beside them, and the engine that samples.

Everything here is done by one thread (`covey.sample.remote.served_queue`); so nobody samples while weights change.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from covey.errors import ConfigError, EngineError
from covey.models.adapters import refuse_helpless, without_retired_name
from covey.models.inference_mode import inference_mode
from covey.models.inspect import context_length, meaningless_ids, placeholder_ids
from covey.sample.chat import decode_text
from covey.sample.native.engine import NativeEngine
from covey.sample.native.sequences import Place
from covey.sample.remote.server import UNLABELLED, Drawn, ServerFacts
from covey.sample.remote.wire import DrawBody, ScoreBody
from covey.text.foreign import excerpt
from covey.text.names import listed
from covey.types import Prompt

AT_ONCE = 2048
"""Completions of one call of the engine at most."""

MOST_TOKENS = 1 << 26
"""Of all completions of a request together: what their table takes is gigabytes from there on."""

MOST_RANK = 1 << 16
"""Largest rank of an adapter that is told: any."""

NAMED = 6
"""Names that an error lists."""


class ServedPolicy:
    """Draws completions from a policy.

    Args:
        policy: with weights of its own; is changed in place.
        tokenizer: of the policy; finds stop strings.
        name: under which it is served.
        unsaid: ids that are no text: end and padding.
        dtype: what the engine computes in; None: as the weights are.
        max_sequences: that are decoded together at most.
    """

    def __init__(
        self,
        policy: nn.Module,
        tokenizer: Any,
        name: str,
        unsaid: Sequence[int],
        dtype: torch.dtype | None = None,
        max_sequences: int = 512,
    ) -> None:
        self.base, self.tokenizer, self.name, self.unsaid = policy, tokenizer, name, frozenset(unsaid)
        self.engine = NativeEngine(lambda ids: decode_text(tokenizer, ids, self.unsaid), dtype=dtype)
        self.engine.max_sequences = max_sequences
        self.weights: dict[str, Tensor] = dict(policy.state_dict(keep_vars=True))
        """Every tensor by its name in the model, also where an adapter is put around it later; tied ones have two names."""
        self.shapes = {name: tensor.shape for name, tensor in self.weights.items()}
        embedding: Any = policy.get_input_embeddings()  # type: ignore[operator]
        self.vocab, self.context = len(embedding.weight), context_length(policy)
        self.bytes = sum(t.numel() * t.element_size() for t in self.weights.values())
        self.placeholders = frozenset(placeholder_ids(policy, tokenizer))
        """Ids for which the policy would look for a picture."""
        self.device, self.dtype = embedding.weight.device, embedding.weight.dtype
        self.label, self.is_asleep, self.has_weights = UNLABELLED, False, True
        self.adapters: dict[str, str] = {}
        """Name → what peft calls it here: a module's name has no dot."""
        self.adapted: Any = None
        """The policy inside its adapters; None: it has none."""
        self.numbers, self.loaded = itertools.count(), object()
        """What the engine has loaded: label and adapter."""
        self.counts = Counter[str]()
        """Weights that were taken, completions and prompt tokens."""

    # --- sampling -----------------------------------------------------------------------------------------------------

    def check(self, body: DrawBody | ScoreBody) -> None:
        """Refuse what cannot be drawn. Asks nothing that changes, but adapters.

        Raises:
            ConfigError: an id without an embedding, a text longer than the context, more tokens than a request may have.
        """
        if isinstance(body, ScoreBody):
            ids, new, count = body.ids, 0, 1
        else:
            ids, new, count = (*body.prompt, *body.given), body.most, body.count
            if body.opening > len(body.given):
                raise ConfigError(
                    f"opening is {body.opening}, and given has {len(body.given)} ids: it is their beginning."
                )
            if body.given and count != 1:
                raise ConfigError(
                    f"count is {count}, and given goes on with one completion. Send a request for each."
                )
            if count < 1 or new < 1:
                raise ConfigError(
                    f"{count} completions of at most {new} tokens are asked for (settings.max_new_tokens less what is given, "
                    "settings.max_turn_length, room); there must be at least one of one."
                )
        if not ids:
            raise ConfigError("The prompt has no ids. Send at least one.")
        if max(ids) >= self.vocab:
            raise ConfigError(f"The prompt has the id {max(ids)}; {self.name} has {self.vocab} embeddings.")
        if self.context is not None and len(ids) + new > self.context:
            raise ConfigError(
                f"The prompt has {len(ids)} tokens with what is given, and up to {new} may be drawn behind it; the context of "
                f"{self.name} is {self.context}. Send a shorter prompt, or a smaller room."
            )
        if count * (new + len(ids)) > MOST_TOKENS:
            raise ConfigError(
                f"{count} completions of {new} tokens at most are too many for one request. Send several."
            )
        if seen := sorted(self.placeholders.intersection(ids)):
            token = self.tokenizer.convert_ids_to_tokens(seen[0])
            raise ConfigError(
                f"The prompt has the id {seen[0]} ({token}), which stands for a part of a picture, and this server draws from text alone. "
                "Runs whose prompts show pictures sample in their own process, with engine='native'."
            )
        if body.adapter is not None and body.adapter not in self.adapters:
            raise ConfigError(
                f"There is no adapter {excerpt(body.adapter, 80)!r}; there are {', '.join(map(repr, self.adapters)) or 'none'}."
            )

    def draw(self, bodies: Sequence[DrawBody]) -> Iterator[tuple[int, list[Drawn]]]:
        """Yield position and completions of each request as it is finished.

        Args:
            bodies: alike in settings, count, adapter and text: one call of the engine.

        Raises:
            ConfigError: asleep.
        """
        first = bodies[0]
        self._load(first.adapter)
        unsaid = self.unsaid | {*first.settings.stop_ids, first.settings.padding_id}
        self.engine.decode = lambda ids: decode_text(self.tokenizer, ids, unsaid, first.keep_special)  # type: ignore[arg-type]
        prompts = [
            Prompt("", (*body.prompt, *body.given), row=row, seed_key=body.seed_key)
            for row, body in enumerate(bodies)
        ]
        places = [Place(body.first, len(body.given) - body.opening, body.most) for body in bodies]
        self.counts["prompt_tokens"] += sum(len(prompt.ids) for prompt in prompts)
        for group in self.engine.generate(prompts, first.count, first.settings, None, places):
            self.counts["completions"] += first.count
            yield (
                group.prompt.row,
                [
                    Drawn(c.ids, c.logprobs, c.finish, c.policy_logprobs, self.label)  # type: ignore[arg-type]  # without turns it is one of three
                    for c in group.completions
                ],
            )

    def score(self, body: ScoreBody) -> list[float]:
        """Return the log-probability of each id but the first, after those before it, at temperature 1."""
        self.check(body)
        policy = self._load(body.adapter)
        ids = torch.tensor([body.ids], device=self.device)
        with inference_mode(policy) as model:
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
        refuse_garbage(logprobs)
        return logprobs.tolist()

    def _load(self, adapter: str | None) -> nn.Module:
        """Have the engine sample with an adapter, or without; returns the policy so."""
        if self.is_asleep or not self.has_weights:
            missing = (
                "is asleep. Wake it first"
                if self.is_asleep
                else "has given its weights up. Send it all of them first"
            )
            raise ConfigError(f"{self.name} {missing}.")
        if self.adapted is not None and adapter is None:
            self.adapted.base_model.disable_adapter_layers()
        elif adapter is not None:
            if adapter not in self.adapters:  # it was there when the request came in
                raise ConfigError(f"There is no adapter {excerpt(adapter, 80)!r} any more.")
            self.adapted.base_model.enable_adapter_layers()
            self.adapted.set_adapter(self.adapters[adapter])
        policy: nn.Module = self.base if self.adapted is None else self.adapted
        if self.loaded != (self.counts["updates"], adapter):
            # Before the engine looks: it would take garbage for a policy that it does not know.
            some = torch.tensor([meaningless_ids(self.vocab, 16)], device=self.device)
            with inference_mode(policy) as model:
                refuse_garbage(model(input_ids=some, use_cache=False).logits)
            self.engine.load(policy)
            self.loaded = self.counts["updates"], adapter
        return policy

    # --- weights ------------------------------------------------------------------------------------------------------

    def update(self, folder: Path, label: str) -> None:
        """Take the weights in a folder; those that are not there stay. Everything is read and looked at before anything changes.

        Raises:
            ConfigError: not one that the policy can take; what it had goes on.
        """
        if self.is_asleep:
            raise ConfigError(f"{self.name} is asleep. Wake it first.")
        new = self._read(folder)
        if not self.has_weights:
            held = {id(self.weights[name]) for name in new}
            self._refuse(
                "lacks",
                [n for n, w in self.weights.items() if isinstance(w, nn.Parameter) and id(w) not in held],
            )
        with torch.no_grad():
            for name, tensor in new.items():
                self.weights[name].copy_(tensor)
        self.has_weights, self.label = True, label
        self.counts["updates"] += 1

    def _read(self, folder: Path) -> dict[str, Tensor]:
        """Return the weights in a folder by their names in the model."""
        found: dict[str, Tensor] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"{folder} holds no file of safetensors.")
        for file in files:
            try:
                found |= load_file(file)
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
        table = {name: tensor.detach() for name, tensor in self.weights.items()}
        is_saved_form = bool(found.keys() - table.keys())
        if is_saved_form:  # experts and others have other names in files than in the model
            from transformers.core_model_loading import revert_weight_conversion

            table = revert_weight_conversion(self.base, table)  # type: ignore[arg-type]
        self._compare(found, table)
        return self._as_in_the_model(table | found) if is_saved_form else found

    def _compare(self, found: Mapping[str, Tensor], table: Mapping[str, Tensor]) -> None:
        """Refuse weights that are not those of a table; ties are told by the model's own names."""
        self._refuse("has weights that the policy has not:", sorted(found.keys() - table.keys()))
        pairs = {name: (new, table[name]) for name, new in found.items()}
        wrong = [
            f"{n} of shape {tuple(x.shape)} for {tuple(y.shape)}"
            for n, (x, y) in pairs.items()
            if x.shape != y.shape
        ]
        self._refuse("has weights of other shapes:", wrong)
        rounded = [
            f"{n} in {x.dtype} for {y.dtype}"
            for n, (x, y) in pairs.items()
            if torch.promote_types(x.dtype, y.dtype) != y.dtype
        ]
        self._refuse("has weights that would be rounded:", rounded)
        strange = [n for n, x in found.items() if not bool(torch.isfinite(x).all())]
        self._refuse("has weights that are not finite:", strange)
        first: dict[int, str] = {}
        for name in found.keys() & self.weights.keys():
            other = first.setdefault(id(self.weights[name]), name)
            if not torch.equal(found[name], found[other]):
                raise ConfigError(
                    f"The weights were refused, and those before serve on: {other} and {name} are one tensor in this policy (tied), and "
                    "the folder has two of different values. Leave one of them out, or serve a policy whose head is its own."
                )
        if not self.has_weights:
            held = {id(self.weights[name]) for name in found.keys() & self.weights.keys()}
            own = {n: w for n, w in self.weights.items() if not isinstance(w, nn.Parameter) or id(w) in held}
            self._refuse("lacks", sorted(table.keys() - found.keys() - own.keys()))

    def _as_in_the_model(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights by their names in the model that are all there, named as in files."""
        from transformers.utils import logging

        model: Any = self.base
        shows = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            options = {"config": model.config, "state_dict": dict(saved), "dtype": self.dtype}
            loaded = type(model).from_pretrained(None, **options)
        finally:
            if shows:
                logging.enable_progress_bar()
        return {name: tensor for name, tensor in loaded.state_dict().items() if name in self.weights}

    def _refuse(self, what: str, names: Sequence[str]) -> None:
        if names:
            raise ConfigError(
                f"The weights were refused, and those before serve on: the folder {what} {listed(names, NAMED)}. This server "
                f"holds {self.name} in {str(self.dtype).removeprefix('torch.')}."
            )

    # --- adapters -----------------------------------------------------------------------------------------------------

    def add_adapter(self, folder: Path, name: str) -> None:
        """Hold an adapter under a name.

        Raises:
            ConfigError: the name is taken, there is no adapter in the folder, or it does not fit.
        """
        if name in self.adapters:
            raise ConfigError(f"There is an adapter {name!r} already. Give each version a name of its own.")
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

        own, model = f"a{next(self.numbers)}", self.base
        try:
            config, state = (
                PeftConfig.from_pretrained(str(folder)),
                load_file(folder / "adapter_model.safetensors"),
            )
            refuse_helpless([config])
            config.inference_mode = True
            with without_retired_name():
                if self.adapted is None:
                    self.adapted = get_peft_model(model, config, own, autocast_adapter_dtype=False)
                else:
                    self.adapted.add_adapter(own, config)
                result: Any = set_peft_model_state_dict(self.adapted, state, adapter_name=own)
            absent = [key for key in result.missing_keys if f".{own}." in key or key.endswith(f".{own}")]
            if absent or result.unexpected_keys:
                raise ValueError(f"missing {absent[:NAMED]}, unknown {list(result.unexpected_keys)[:NAMED]}")
        except (
            Exception
        ) as error:  # whatever peft or a file raises, the adapter is not taken, and what was there goes on
            self._drop(own)
            raise ConfigError(f"The adapter in {folder} was refused: {excerpt(str(error), 600)}") from error
        self.adapters[name] = own

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.adapters:
            raise ConfigError(
                f"There is no adapter {name!r}; there are {', '.join(map(repr, self.adapters)) or 'none'}."
            )
        self._drop(self.adapters.pop(name))

    def _drop(self, own: str) -> None:
        """Take an adapter off, and the wrapper with the last one."""
        if self.adapted is not None and own in self.adapted.peft_config:
            if len(self.adapted.peft_config) == 1:
                self.base, self.adapted = self.adapted.unload(), None
            else:
                self.adapted.delete_adapter(own)
            self.loaded = None

    # --- memory, facts ------------------------------------------------------------------------------------------------

    def sleep(self, keeps_weights: bool) -> None:
        """Give memory back: the engine's copy, and the weights, or the accelerator's memory for them."""
        self.engine.release()
        self.loaded, self.is_asleep = None, True
        if keeps_weights:
            self.base.to("cpu")
            return
        for tensor in self.weights.values():
            if isinstance(tensor, nn.Parameter):
                tensor.data = tensor.data.new_empty(0)
        self.has_weights, self.label = False, UNLABELLED

    def wake(self) -> None:
        """Take the memory back."""
        if not self.is_asleep:
            return
        if not self.has_weights:
            for name, tensor in self.weights.items():
                if tensor.shape != self.shapes[name]:
                    tensor.data = tensor.data.new_empty(self.shapes[name])
        self.base.to(self.device)
        self.is_asleep = False

    def facts(self) -> ServerFacts:
        """Return what a run asks first."""
        from covey import __version__

        return ServerFacts(
            "covey", __version__, self.name, str(self.dtype).removeprefix("torch."), str(self.device), self.context,
            "processed_logprobs", max_adapter_rank=MOST_RANK, chunks_prompts=False, drafts_tokens=False,
        )  # fmt: skip


def refuse_garbage(logprobs: Tensor) -> None:
    """Refuse log-probabilities that are no numbers.

    Raises:
        EngineError: one is NaN or infinite.
    """
    if not bool(torch.isfinite(logprobs).all()):
        raise EngineError(
            "Log-probabilities are not finite: the weights or the logits hold NaN or infinite values. Look at the policy's loss before "
            "this, and at the dtype that the server computes in."
        )
