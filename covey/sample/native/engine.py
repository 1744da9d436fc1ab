"""The engine that needs nothing but PyTorch.

Policies of the families in `covey.sample.native.architectures` are decoded by the fast path, with the engine's own forward pass;
every other causal model by the general path, with the model's own. Before the fast path is used for a policy its
log-probabilities are compared with the model's, and again as the weights move.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from covey import __version__
from covey.errors import EngineError, warn
from covey.models.inference_mode import Autocast, inference_mode
from covey.models.inspect import compute_dtype, context_length, innermost, placeholder_ids, uncompiled
from covey.sample.native import selfcheck
from covey.sample.native.any_model import sample_any_model
from covey.sample.native.architectures import unsupported_reason
from covey.sample.native.batch import coarse
from covey.sample.native.cuda_graphs import Graphs
from covey.sample.native.decode_loop import DecodeOptions, decode_loop
from covey.sample.native.episode_rows import EpisodeRows
from covey.sample.native.memory_budget import cache_budget
from covey.sample.native.merged_weights import is_sharded
from covey.sample.native.prompt_lookup import CompletionIndex
from covey.sample.native.sequences import Place, SequenceTable
from covey.sample.native.shown import PromptPictures, shown_by
from covey.sample.native.stop_strings import INTERVAL, Decode
from covey.sample.native.ways import Decoding, choose
from covey.sample.native.weights import Weights, refill, weights_of
from covey.sample.sampling import Sampling
from covey.sample.turns import Schedule, Turns
from covey.types import Group, Prompt, PromptKey
from covey.vision.sight import Eyes, Sight

DecodePath = Literal["auto", "fast", "general"]

GRAPHED = ("cuda",)
"""Kinds of devices on which steps are captured as graphs."""


SHARED_FROM = 3 << 18
"""Bytes of one layer's keys and values of the prompts, counted once per completion, from which a shared prompt pays on a
CPU. Below, they are read faster than the operations take that two products and their sum need more."""


PREFILL_TOKENS = 2048
"""Tokens of prompts that are read at once by default."""


class NativeEngine:
    """Samples inside the process; see `covey.sample.engine.Engine` for the contract.

    The general path heeds neither `dtype` nor any argument from `prefill_tokens` to `in_place`: where one of them asks for what
    it does not do, it warns once.

    Args:
        decode: token ids → text without end and padding tokens.
        autocast: makes the context in which the policy computes, for example bfloat16 autocast. The fast path takes its
            dtype.
        path: "fast" and "general" insist on one of the paths; "auto" takes the fast one where it knows the policy.
        dtype: what the fast path computes in; by default that of `autocast`, or of the weights.
        memory: bytes that the cache may take, with captured graphs the logits too; by default a part of what is free when
            sampling starts.
        max_sequences: sequences that are decoded together at most.
        prefill_tokens: tokens of prompts that are read at once; 2048 by default.
        shares_prompts: store a prompt once for all of its completions; by default on a CPU, where it saves more than it
            costs (see `SHARED_FROM`). On CUDA, True gives up captured graphs, which makes steps of small policies slower.
        prompt_lookup: propose tokens from siblings and from earlier calls where few sequences are left (see
            `covey.sample.native.prompt_lookup`); the samples do not change. By default for greedy decoding on a CPU, where it
            pays. On CUDA, True gives up captured graphs, as a graph has one token per sequence.
        in_place: read the policy's own weights instead of a copy; by default on an accelerator, where the policy has the
            dtype that the engine computes in.
        schedule: when a completion whose answer takes its time goes on: a fixed number of steps after its turn, which makes
            what is sampled the same to the bit however long answers take, or as soon as the answer is there. Without turns
            nothing waits.
        eyes: show the pictures of prompts to a policy that sees; None: prompts are text.
    """

    def __init__(
        self,
        decode: Decode,
        autocast: Autocast = nullcontext,
        *,
        path: DecodePath = "auto",
        dtype: torch.dtype | None = None,
        memory: int | None = None,
        max_sequences: int = 512,
        prefill_tokens: int | None = None,
        shares_prompts: bool | None = None,
        prompt_lookup: bool | None = None,
        in_place: bool | None = None,
        schedule: Schedule = "fixed",
        eyes: Eyes | None = None,
    ) -> None:
        self.decode, self.autocast = decode, autocast
        self.path, self.dtype = path, dtype
        self.memory, self.max_sequences, self.prefill_tokens = memory, max_sequences, prefill_tokens
        self.shares_prompts, self.prompt_lookup = shares_prompts, prompt_lookup
        self.in_place, self.schedule, self.eyes = in_place, schedule, eyes
        self.completions = CompletionIndex()
        """Completions of earlier calls by prompt; source of drafts."""
        self.counts = Counter[str]()
        """Tokens that were drawn since the engine was made, under "drawn", those behind an end too; and warnings by their subject."""
        self.policy: nn.Module | None = None
        self.weights: Weights | None = None
        self.graphs: Graphs | None = None
        self.reason: str | None = None
        """Why the last call took the general path; None: it took the fast one, or there was none yet."""
        self._unsupported: str | None = None
        """Why the policy always takes the general path; None: it does not."""
        self._watch = selfcheck.Watch()
        self.decoding: tuple[weakref.ref[nn.Module], Decoding] | None = None
        """The policy that last took the general path, and how it does."""

    samples_beside_updates = swaps_in_flight = False

    def load(self, policy: nn.Module, version: int | None = None) -> None:
        """Use the policy's weights as they are now. They are read when sampling starts, whatever their version."""
        policy = uncompiled(policy)  # a compiled pass would be compiled again for every length
        if self.policy is not policy or self.graphs is None:
            self.release()
        self.policy, self._watch.is_stale = policy, True

    def release(self) -> None:
        """Give back the memory of the engine's own copy of the weights; it is made again when it is needed."""
        self.weights = self.graphs = None

    def sleep(self) -> None:
        """Release the copy of the weights, unless captured graphs read it: those take longer to make than to keep."""
        if self.graphs is None:
            self.release()

    @property
    def facts(self) -> dict[str, object]:
        """The engine's kind and release, for the head of a record."""
        return {"kind": "native", "release": __version__}

    def metrics(self) -> dict[str, float]:
        """Return nothing: the step's own times say all."""
        return {}

    def close(self) -> None:
        """Release the memory of the engine."""
        self.release()

    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        turns: Turns | None = None,
        places: Sequence[Place] | None = None,
    ) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt; see `covey.sample.engine.Engine.generate`.

        Args:
            places: for each prompt, where its completions stand; without `turns`. None: at their beginning.
        """
        policy = self.policy
        if policy is None:
            raise EngineError("The engine has no policy yet. Call load(policy) before generate(...).")
        # Before anything else: gathering sharded weights takes all processes, those without prompts too.
        weights = self._fast_weights(policy)
        if not prompts:
            return
        self._check_pictures(policy, prompts)
        placeholders = placeholder_ids(policy)
        settings = _without(placeholders, settings)
        device = next(policy.parameters()).device if weights is None else weights.device
        episodes = None
        if turns is not None:
            context = context_length(policy)
            episodes = EpisodeRows(prompts, group_size, settings, turns, device, context, placeholders)
        table = SequenceTable(
            prompts, group_size, settings, self.decode, device, episodes, places, self.counts
        )
        longest = table.prompt_width + int(table.most.max())
        if weights is not None and weights.shape.longest is not None and longest > weights.shape.longest:
            self._leave_length(policy, longest, weights.shape.longest)
            weights = None
        shown: dict[PromptKey, PromptPictures] = {}
        if weights is not None and self.eyes is not None:
            shown = self._shown(policy, weights, prompts, self.eyes)
            weights = self.weights
        if weights is None:
            self._warn_of_options(policy)
            decoding = self._decoding_of(policy)
            yield from sample_any_model(
                policy,
                self.autocast,
                table,
                decoding,
                self._budget(device),
                self.max_sequences,
                self.schedule,
                self.eyes,
            )
        else:
            yield from self._on_fast_path(weights, table, longest, shown)

    def _check_pictures(self, policy: nn.Module, prompts: Sequence[Prompt]) -> None:
        """Refuse pictures that nobody would see.

        Raises:
            EngineError: a prompt has pictures, and there are no eyes, or the policy reads text alone.
        """
        seen = next((prompt for prompt in prompts if prompt.pictures), None)
        if seen is None:
            return
        where, name = (
            f"The prompt of row {seen.row} has {len(seen.pictures)} picture(s)",
            type(innermost(policy)).__name__,
        )
        if not placeholder_ids(policy):
            raise EngineError(
                f"{where}, and {name} reads text alone. Load a policy that sees, or leave the pictures out."
            )
        if self.eyes is None:
            raise EngineError(f"{where}, and the engine has no eyes. Give NativeEngine(..., eyes=...).")

    def _shown(
        self, policy: nn.Module, weights: Weights, prompts: Sequence[Prompt], eyes: Eyes
    ) -> dict[PromptKey, PromptPictures]:
        """Return the pictures of prompts as the fast path takes them; the first of a policy is compared, and `weights` may go."""
        if not (pictured := [prompt for prompt in prompts if prompt.pictures]):
            return {}
        if is_sharded(policy):
            raise EngineError(
                f"The weights of this {type(innermost(policy)).__name__} are sharded (FSDP2 or ZeRO-3), so every process would have to "
                "read pictures at the same moment, and each has its own. Use DDP, ZeRO-1 or ZeRO-2, which leave the weights whole."
            )
        most = PREFILL_TOKENS if self.prefill_tokens is None else self.prefill_tokens
        shown = shown_by(eyes, policy, self.autocast, weights, pictured, most)
        if not self._watch.has_seen:
            self._watch.has_seen, first = True, pictured[0]
            ids = selfcheck.behind(weights, first.ids, placeholder_ids(policy))
            self._check(policy, weights, ids, (eyes.look(first.ids, first.pictures), shown[first.key]))
            if self._unsupported is not None:
                self.weights, self.reason = None, self._unsupported
        return shown

    def _on_fast_path(
        self, weights: Weights, table: SequenceTable, longest: int, shown: Mapping[PromptKey, PromptPictures]
    ) -> Iterator[Group]:
        """Yield the groups of a call whose texts have `longest` tokens at most."""
        options, graphs = self._decode_options(weights, table), None
        is_fixed = not (options.shares_prompts or options.prompt_lookup or weights.shape.has_experts)
        if weights.device.type in GRAPHED and is_fixed:
            # Rows that wait take memory beside the slots, as much as those at most.
            if table.episodes is not None:
                options = replace(options, memory=options.memory // 2)
            graphs = self._graphs_for(weights, table.number, longest, options)
            options = replace(options, max_sequences=min(options.max_sequences, graphs.slots))
        for group in decode_loop(weights, table, options, self.completions, graphs, shown):
            if options.prompt_lookup:
                self.completions.add(group)
            half = selfcheck.TOKENS
            # The end of a picture says nothing.
            before = () if group.prompt.pictures else group.prompt.ids[-half:]
            self._watch.text = (*before, *group.completions[0].ids[:half])
            yield group

    def _decoding_of(self, policy: nn.Module) -> Decoding:
        """Return how the general path decodes this policy; found out once."""
        if self.decoding is None or self.decoding[0]() is not policy:
            with inference_mode(policy), self.autocast():
                self.decoding = weakref.ref(policy), choose(policy, self.eyes)
        return self.decoding[1]

    def _decode_options(self, weights: Weights, table: SequenceTable) -> DecodeOptions:
        """Return the arguments of the engine, with the defaults that suit this call."""
        on_cpu = weights.device.type == "cpu"
        looks_up = on_cpu and table.settings.greedy if self.prompt_lookup is None else self.prompt_lookup
        shares = self.shares_prompts
        if shares is None:
            tokens = table.group_size * sum(len(prompt.ids) for prompt in table.prompts)
            pays = tokens * weights.kv_format.bytes_per_token >= SHARED_FROM * weights.shape.layers
            distinct = len({prompt.key for prompt in table.prompts})
            shares = on_cpu and table.number > distinct and pays
        return DecodeOptions(
            memory=self._budget(weights.device),
            max_sequences=self.max_sequences,
            prefill_tokens=PREFILL_TOKENS if self.prefill_tokens is None else self.prefill_tokens,
            shares_prompts=shares,
            prompt_lookup=looks_up,
            interval=1 if on_cpu or looks_up else INTERVAL,
            schedule=self.schedule,
        )

    def _budget(self, device: torch.device) -> int:
        if self.memory is not None:
            return self.memory
        return cache_budget(device) + (0 if self.graphs is None else self.graphs.bytes)

    @torch.inference_mode()
    def _graphs_for(self, weights: Weights, rows: int, longest: int, options: DecodeOptions) -> Graphs:
        """Return graphs and slots for so many texts; those of the last call, where they hold them."""
        capacity, logits = coarse(longest), weights.vocab * weights.dtype.itemsize
        fitting = options.memory // (capacity * weights.kv_format.bytes_per_token + logits)
        slots = max(1, min(rows, options.max_sequences, fitting))
        if self.graphs is None or slots > self.graphs.slots or capacity > self.graphs.pool.capacity:
            self.graphs = None  # before the new ones take their memory
            self.graphs = Graphs(weights, slots, capacity)
        return self.graphs

    # --- which path ---------------------------------------------------------------------------------------------------

    def _fast_weights(self, policy: nn.Module) -> Weights | None:
        """Return what the fast path computes with, as it is now; None: the policy takes the general path."""
        if self.path == "general":
            self.reason = "path='general' asks for it"
            self._refuse_shards(policy)
            return None
        is_checked = self._watch.policy is not None and self._watch.policy() is policy
        if self.weights is None and not is_checked:
            self._unsupported = unsupported_reason(policy)
            if self._unsupported is None:
                dtype, kind = self.dtype or self._policy_dtype(policy), next(policy.parameters()).device.type
                if dtype not in (torch.float32, torch.bfloat16) and (kind == "cpu" or dtype != torch.float16):
                    self._unsupported = f"{dtype} on {kind} is not one of its dtypes"
            if self._unsupported is not None and self.path == "fast":
                raise EngineError(
                    f"The fast path cannot decode this policy: {self._unsupported}. Set path='auto'."
                )
        if self.weights is not None or self._unsupported is None:
            has_moved = self._watch.is_stale
            if self.weights is None or has_moved:
                self.weights = self._read(policy)
            watch = self._watch = self._watch if is_checked else selfcheck.Watch()
            watch.is_stale = False
            watch.version += is_checked and has_moved
            is_due = has_moved and watch.version & (watch.version - 1) == 0  # 1, 2, 4, 8, ...
            if not is_checked or is_due:
                watch.has_seen = False
                self._check(policy, self.weights, watch.text)
        if self._unsupported is not None:
            self.weights = None
        self.reason = self._unsupported
        if self.weights is None:
            self._refuse_shards(policy)
        return self.weights

    def _refuse_shards(self, policy: nn.Module) -> None:
        """Raise where the weights are sharded.

        The general path calls the model as often as a process's own completions need; shards need all processes.
        """
        if is_sharded(policy):
            raise EngineError(
                f"This policy ({type(innermost(policy)).__name__}) takes the general path: {self.reason}. Its weights are "
                "sharded (FSDP2 or ZeRO-3), so every process has to take part in every forward pass, and on this path each makes as "
                "many as its own completions need: they would wait for each other for ever. Sample elsewhere: start `covey serve "
                "MODEL`, or `vllm serve MODEL`, and give engine='covey' or 'vllm' and engine_urls='http://HOST:PORT'. Or use DDP, "
                "ZeRO-1 or ZeRO-2, which leave the weights whole."
            )

    def _check(
        self,
        policy: nn.Module,
        weights: Weights,
        text: Sequence[int],
        seen: tuple[Sight, PromptPictures] | None = None,
    ) -> None:
        """Compare both on a text, by default one of no meaning; a gap is an error where path is "fast", and else a warning.

        Args:
            seen: the pictures at the beginning of the text.
        """
        shares = weights.device.type == "cpu" if self.shares_prompts is None else self.shares_prompts
        ids, bound = text or selfcheck.first_text(weights), selfcheck.BOUND[weights.dtype]
        gap = selfcheck.gap(policy, self.autocast, weights, shares, ids, seen)
        self._watch.policy = weakref.ref(policy)
        if gap <= bound:
            return
        when = f" after {self._watch.version} updates" if self._watch.version else ""
        self._unsupported = (
            f"its log-probabilities differ from the model's own by {gap:.3g} nats{when} (bound {bound})"
        )
        if self.path == "fast":
            raise EngineError(f"The fast path cannot decode this policy: {self._unsupported}.")
        warn(
            f"The fast sampler does not know this {type(innermost(policy)).__name__} after all: {self._unsupported}. The "
            "general path is used instead, which is slower."
        )

    def _leave_length(self, policy: nn.Module, longest: int, known: int) -> None:
        """Note that a call is too long for the fast path, whose rotary positions are those of short texts.

        Raises:
            EngineError: `path` insists on the fast path.
        """
        self.reason = f"prompt and completion may have {longest} tokens, and from {known} on rotary positions depend on the length"
        if self.path == "fast":
            raise EngineError(f"The fast path cannot decode this call: {self.reason}. Set path='auto'.")
        self._refuse_shards(policy)
        self._warn_once(
            "length",
            f"The fast sampler is not used: {self.reason}. Such calls take the general path, which is slower.",
        )

    def _warn_of_options(self, policy: nn.Module) -> None:
        """Name the arguments that the general path does not heed: those that ask for something else than what it does."""
        does = {
            "dtype": None if self.dtype is None else self._policy_dtype(policy),
            "prefill_tokens": None,
            "shares_prompts": False,
            "prompt_lookup": False,
            "in_place": True,
        }
        idle = [f"{name}={v}" for name in does if (v := getattr(self, name)) not in (None, does[name])]
        if idle:
            self._warn_once(
                "options",
                f"{', '.join(idle)} has no effect on the general path, which this policy takes: {self.reason}.",
            )

    def _warn_once(self, about: str, text: str) -> None:
        if not self.counts[about]:
            self.counts[about] += 1
            warn(text)

    @torch.no_grad()
    def _read(self, policy: nn.Module) -> Weights:
        """Return the policy's present weights, in the tensors of the previous ones where graphs read those."""
        dtype = self.dtype or self._policy_dtype(policy)
        in_place = self.in_place
        if in_place is None:
            embedding = _embedding(policy)
            in_place = embedding.device.type != "cpu" and embedding.dtype == dtype
        if self.weights is not None and refill(self.weights, policy):
            return self.weights
        self.release()  # before the new ones take their memory
        return weights_of(policy, dtype, in_place)

    def _policy_dtype(self, policy: nn.Module) -> torch.dtype:
        """Return what the policy itself computes in."""
        with self.autocast():
            return compute_dtype(next(policy.parameters()).device, _embedding(policy).dtype)


def _without(placeholders: Sequence[int], settings: Sampling) -> Sampling:
    """Return the settings with what stands for parts of pictures among the ids that are never drawn."""
    more = [i for i in placeholders if i not in settings.never_drawn]
    return replace(settings, unknown_ids=(*settings.unknown_ids, *more)) if more else settings


def _embedding(policy: nn.Module) -> torch.Tensor:
    inner: Any = innermost(policy)
    weight: torch.Tensor = inner.get_input_embeddings().weight
    return weight
