"""Proves that servers serve the policy: what they are, what they draw, that updates arrive, and after each one that it did.

Wrong, stale or foreign weights look like training that does not learn; so they end the run before anything is learned from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from covey.errors import EngineError, warn
from covey.models.inference_mode import Autocast
from covey.models.inspect import context_length, meaningless_ids, text_config
from covey.sample.remote.canary import Canary
from covey.sample.remote.drawn_check import draw_checked
from covey.sample.remote.labels import new_label
from covey.sample.remote.own_forward import drawn_logprobs, own_logits, own_logprobs
from covey.sample.remote.server import Drawn, DrawRequest, Server, ServerFacts
from covey.sample.remote.weight_sync import WeightSync, shared_dtype
from covey.sample.sampling import Sampling
from covey.text.foreign import show
from covey.types import Prompt

BOUND = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Mean gap of log-probabilities that is rounding, in nats: the trainer's and the servers', of the same text and weights. Seen with
vLLM: 4e-6 in float32, 0.02 to 0.04 in bfloat16."""

ROUTED = 3.0
"""Times these bounds in 16 bits where experts are chosen: rounding chooses others for some tokens."""

GROWTH = 3.0
"""Times its first value that the gap may grow to; at least half of its bound is no alarm."""

TEXT, LONG, DRAWN, COUNT = 128, 300, 16, 4
"""Tokens of the text that is scored, of the prompt that draws behind a cache, of a completion that is drawn; completions."""


class Checks:
    """Proves the servers of a remote engine. Every process has one; all calls are collective.

    Args:
        sync: sends weights.
        sampling: how the run draws.
        longest: tokens of prompt and completion of the run at most.
        autocast: makes the context in which the policy computes.
        dtype: what the policy computes in; None: that of its weights.
        text: ids of a text, scored by every probe; None: one that the first server draws from the policy.
        canary: whether updates are proven at the start.
        compares_draws: whether draws at the start are compared with the trainer's; not where requests have options that only the
            servers know.
        say: tells people how far the canary is.

    Attributes:
        gap: mean gap of the last probe, in nats.
        first_gap: of the first probe after the start.
        bound: what is rounding, in nats.
        worst: see `Canary`.
        first_push: seconds of the first push, by what took them.
    """

    def __init__(
        self,
        sync: WeightSync,
        sampling: Sampling,
        longest: int | None = None,
        autocast: Autocast = nullcontext,
        dtype: torch.dtype | None = None,
        text: Sequence[int] | None = None,
        canary: bool = True,
        compares_draws: bool = True,
        say: Callable[[str], None] = show,
    ) -> None:
        self.compares_draws, self.say = compares_draws, say
        self.sync, self.sampling, self.longest = sync, sampling, longest
        self.autocast, self.dtype, self.text, self.canary = autocast, dtype, text, canary
        self.gap = self.first_gap = self.worst = self.bound = float("nan")
        self.first_push: Mapping[str, float] = {}
        self._bits: torch.dtype | None = None
        """The narrower dtype of trainer and servers."""

    def start(self, policy: nn.Module, servers: Sequence[Server]) -> None:
        """Compare what servers are and draw with the run, and prove that updates arrive. Leaves them with the policy's weights.

        Raises:
            EngineError: on all processes; says which server, what is wrong and what to do.
        """
        facts = self.sync.answers(servers, lambda server: server.facts(), "to say what it is")
        for url, fact in facts.items():
            refuse_facts(url, fact, self.sampling, self.longest)
        self._bits = self._narrower(policy, list(facts.values()))
        label = self.sync.gather(str(new_label(self.sync.run, None)))[0]
        self.sync.push(policy, label, servers)
        self.first_push = dict(self.sync.seconds)
        self.text = self.text or self._drawn_text(policy, servers)
        self.probe(policy, servers, is_start=True)
        if self.compares_draws:
            self._compare_draws(policy, servers)
        if not self.canary:
            return
        quantised = next((f.quantization for f in facts.values() if f.quantization), None)
        if quantised and self.sync.rank == 0:
            warn(
                f"A server quantises its weights ({quantised}); what it draws is compared with wider bounds."
            )
        long = self._ids(policy, min(LONG, (self.longest or LONG) - 1, (context_length(policy) or LONG) - 1))
        canary = Canary(
            sync=self.sync,
            policy=policy,
            servers=servers,
            text=self._text(policy),
            long=long,
            autocast=self.autocast,
            dtype=self._bits,
            quantised=quantised,
            label=self.sync.label or label,
            say=self.say,
        )
        canary.run()
        self.worst = canary.worst

    def probe(self, policy: nn.Module, servers: Sequence[Server], is_start: bool = False) -> None:
        """Compare the log-probabilities of a text with the trainer's own; where they are apart, send the weights once more.

        Raises:
            EngineError: on all processes; they are still apart.
        """
        bits = self._bits or self._narrower(policy, self.sync.facts_of(servers))
        limit = self.bound = bound = bound_of(policy, bits)
        if self.first_gap == self.first_gap and not is_start:
            limit = min(bound, max(GROWTH * self.first_gap, bound / 2))
        before = None
        for attempt in range(2):
            gaps = self._gaps(policy, servers)
            url, self.gap = max(
                gaps.items(), key=lambda item: item[1] if item[1] == item[1] else float("inf")
            )
            if self.gap <= limit:
                break
            if attempt == 1 or is_start:
                raise EngineError(self._wrong(url, before, limit))
            before = self.gap
            label = self.sync.label
            assert label is not None, "weights are pushed before they are probed"
            self.sync.push_once_more(policy, label, servers)
        if self.first_gap != self.first_gap and not is_start:
            self.first_gap = self.gap

    # --- one piece each -----------------------------------------------------------------------------------------------

    def _gaps(self, policy: nn.Module, servers: Sequence[Server]) -> dict[str, float]:
        """Return the mean gap of each server's log-probabilities of the text, on all processes."""
        text = self._text(policy)
        own = own_logprobs(policy, text, self.autocast)
        adapter = self.sync.adapter
        answers = self.sync.answers(
            servers, lambda server: server.prompt_logprobs(text, adapter), "to score a text"
        )
        return {
            url: float((torch.tensor(values, dtype=torch.float64) - own).abs().mean())
            for url, values in answers.items()
        }

    def _wrong(self, url: str, before: float | None, limit: float) -> str:
        """Return the message about a gap that stays."""
        again = "" if before is None else f" (before the weights were sent once more: {before:.4g})"
        route = self.sync.route_taken
        causes = {
            "files": "a server that keeps old weights or makes others of them (quantisation, a model of another family or size), another "
            "run on the same server, or a trainer that computes in another precision than the server",
            "adapter": "a base model that differs from the trainer's, layers whose adapter the server leaves out, or an adapter that it "
            "counts twice",
        }[route]
        return (
            f"{url} does not serve the policy's weights: the log-probabilities of a text are {self.gap:.4g} nats a token from the "
            f"trainer's on average{again}, where {limit:.2g} is rounding. They were sent by weight_sync={route!r}. Usual causes: {causes}. "
            "`covey engines check` proves a server by itself."
        )

    def _compare_draws(self, policy: nn.Module, servers: Sequence[Server]) -> None:
        """Draw as the run does, and compare the log-probabilities with what the trainer's forward pass gives."""
        assert self._bits is not None
        most = min(DRAWN, self.sampling.max_new_tokens)
        settings = replace(
            self.sampling,
            max_new_tokens=most,
            min_new_tokens=min(self.sampling.min_new_tokens, most),
            max_turn_length=None,
            stop_strings=(),
            greedy=False,
        )
        room = min(32, (self.longest or 32 + most) - most, (context_length(policy) or 32 + most) - most)
        prompt = Prompt("", tuple(self._text(policy)[: max(1, room)]))
        request = DrawRequest(prompt, settings, count=COUNT, adapter=self.sync.adapter)
        for url, drawn in self._drawn(policy, servers, request).items():
            own, plain, theirs = [], [], []
            for one in drawn:
                logits = own_logits(policy, (*prompt.ids, *one.ids), self.autocast)[len(prompt.ids) - 1 : -1]
                own.append(drawn_logprobs(logits, prompt.ids, one.ids, settings))
                plain.append(drawn_logprobs(logits, prompt.ids, one.ids, Sampling(most)))
                theirs.append(torch.tensor(one.logprobs, dtype=torch.float64))
            refuse_draws(
                url, torch.cat(theirs), torch.cat(own), torch.cat(plain), settings, BOUND[self._bits]
            )

    def _drawn(
        self, policy: nn.Module, servers: Sequence[Server], request: DrawRequest
    ) -> dict[str, list[Drawn]]:
        """Return what each server draws, on all processes; what is no answer of this policy is an error."""
        return self.sync.answers(servers, lambda server: draw_checked(server, request, policy), "to draw")

    def _narrower(self, policy: nn.Module, facts: Sequence[ServerFacts]) -> torch.dtype:
        """Return the narrower dtype of what trainer and servers compute in."""
        own = self.dtype or next(p.dtype for p in policy.parameters() if p.is_floating_point())
        theirs = shared_dtype(facts)
        return min((own, theirs), key=lambda dtype: (dtype.itemsize, dtype != torch.bfloat16))

    def _drawn_text(self, policy: nn.Module, servers: Sequence[Server]) -> list[int]:
        """Return a text that a server draws from the policy: of what a policy would not say, rounding shows much more."""
        start = Prompt("", tuple(self._ids(policy, 5)[:4]))
        most = min(TEXT, context_length(policy) or TEXT, self.longest or TEXT) - 4
        request = DrawRequest(start, Sampling(max(1, most), seed=1), adapter=self.sync.adapter)
        drawn = self._drawn(policy, servers, request)
        return [*start.ids, *next(iter(drawn.values()))[0].ids]

    def _text(self, policy: nn.Module) -> list[int]:
        """Return the ids that are scored: the text, or ids without a meaning, the last one of the vocabulary too."""
        most = min(TEXT, context_length(policy) or TEXT, self.longest or TEXT)
        given = list(self.text or ())[:most]
        return given if len(given) >= 16 else self._ids(policy, most)

    def _ids(self, policy: nn.Module, count: int) -> list[int]:
        vocabulary = int(getattr(text_config(policy), "vocab_size", 2))
        ids = meaningless_ids(vocabulary, max(2, count))
        ids[-1] = vocabulary - 1
        return ids


def bound_of(policy: nn.Module, dtype: torch.dtype) -> float:
    """Return the mean gap of log-probabilities that is rounding, in nats."""
    is_routed = dtype != torch.float32 and any(hasattr(module, "experts") for module in policy.modules())
    return BOUND[dtype] * (ROUTED if is_routed else 1.0)


def refuse_facts(url: str, facts: ServerFacts, sampling: Sampling, longest: int | None) -> None:
    """Refuse a server that says of itself that it cannot serve the run.

    Args:
        longest: tokens of prompt and completion of the run at most.

    Raises:
        EngineError: names the server, the fact, and what to start it with.
    """
    too_short = longest is not None and facts.max_length is not None and facts.max_length < longest
    is_raw = facts.logprobs_mode not in (None, "processed_logprobs")
    for is_so, text in (
        (
            too_short,
            f"it takes {facts.max_length} tokens, and a prompt with its completion may have {longest}. Start it with --max-model-len "
            f"{longest}, or lower max_prompt_length or max_completion_length.",
        ),
        (
            is_raw and (sampling.temperature != 1.0 or sampling.changes_distribution),
            f"its log-probabilities are {facts.logprobs_mode}: those of the model before temperature={sampling.temperature:g} and the other "
            "options of sampling. Start it with --logprobs-mode processed_logprobs.",
        ),
        (
            facts.chunks_prompts and facts.device == "cpu" and facts.kind == "vllm",
            "it runs on a CPU and reads long prompts in pieces; vLLM dies there at the first long prompt that has a seed. Start it with "
            "--no-enable-chunked-prefill.",
        ),
        (
            facts.drafts_tokens,
            "a second model proposes tokens, and keeps its old weights when the policy changes. Start it without speculative decoding.",
        ),
    ):
        if is_so:
            raise EngineError(f"{url} cannot serve this run: {text}")


def refuse_draws(
    url: str, theirs: torch.Tensor, own: torch.Tensor, plain: torch.Tensor, settings: Sampling, bound: float
) -> None:
    """Refuse a server whose log-probabilities of drawn tokens are not those of the distribution that the run draws from.

    Args:
        theirs: the server's, shape (tokens,).
        own: the trainer's, under the run's settings.
        plain: the trainer's, at temperature 1 and with nothing left out.
        bound: mean gap that is rounding, in nats.

    Raises:
        EngineError: names the option.
    """
    there = torch.isfinite(own)
    gap = float((theirs - own)[there].abs().mean()) if there.any() else float("inf")
    raw = float((theirs - plain).abs().mean())
    outside = 1 - float(there.double().mean())
    what = f"temperature={settings.temperature:g}, top_p={settings.top_p:g}, top_k={settings.top_k}, min_p={settings.min_p:g}"
    if raw <= bound and (gap > bound or (gap > bound / 10 and gap > 4 * raw)):
        raise EngineError(
            f"{url} gives the log-probabilities of the model itself, not of what it draws from ({what}): {raw:.3g} nats from the former, "
            f"{gap:.3g} from the latter on average. Start it with --logprobs-mode processed_logprobs."
        )
    if gap > bound or outside > 0.25:
        raise EngineError(
            f"{url} draws from another distribution than the run asks for ({what}, min_new_tokens={settings.min_new_tokens}): its "
            f"log-probabilities are {gap:.3g} nats from the trainer's on average, where {bound:.2g} is rounding, and {outside:.0%} of its "
            "tokens cannot be drawn so. Look for defaults of its own, such as a generation_config (vLLM: --generation-config vllm)."
        )
