"""Episodes with tools that never were: made by hand from turns, calls and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.runs import RunWriter
from covey.types import (
    CallStatus,
    Completion,
    FinishReason,
    Group,
    Message,
    Prompt,
    Score,
    ScoredGroup,
    ToolCall,
    Turn,
)

QUESTION = [{"role": "user", "content": "What is 12 * 37?"}]


@dataclass
class Told:
    """An episode as a test tells it: what the policy says at each turn, what it calls, and what comes back."""

    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def opens(self, tokens: int) -> Told:
        """Ids of this member's own prompt."""
        return self._add(tokens, False, 0.0)

    def says(
        self,
        text: str,
        *calls: ToolCall,
        sampled: int = 3,
        injected: int = 0,
        logprob: float = -0.5,
        reward: float | None = None,
        seconds: float = 0.0,
    ) -> Told:
        """A turn of the policy, its calls, and tokens that answer it."""
        start = len(self.ids)
        self._add(sampled, True, logprob)._add(injected, False, 0.0)
        stop = start + sampled
        self.turns.append(Turn(start, stop, len(self.ids), calls, reward, seconds))
        made = [
            {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls
        ]
        self.messages.append({"role": "assistant", "content": text} | ({"tool_calls": made} if made else {}))
        self.messages += [
            {"role": "tool", "name": c.name, "content": c.result} for c in calls if c.status != "not_run"
        ]
        return self

    def ends(self, finish: FinishReason = "stop", own_prompt: Any = None, opening: int = 0) -> Completion:
        text = "".join(str(m["content"]) for m in self.messages)
        return Completion(
            tuple(self.ids), tuple(self.logprobs), text, finish, tuple(self.written),
            turns=tuple(self.turns), messages=tuple(self.messages), own_prompt=own_prompt, opening=opening,
        )  # fmt: skip

    def _add(self, tokens: int, written: bool, logprob: float) -> Told:
        self.ids += range(len(self.ids), len(self.ids) + tokens)
        self.written += [written] * tokens
        self.logprobs += [logprob] * tokens
        return self


def call(
    name: str = "calculator",
    result: str = "444",
    status: CallStatus = "ok",
    seconds: float = 0.25,
    **arguments: object,
) -> ToolCall:
    return ToolCall(name, arguments or {"expression": "12*37"}, f"call-{name}", status, result, seconds)


def answered(answer: str = "444") -> Completion:
    """One good call, then the answer: 3 sampled, 4 injected, 2 sampled."""
    told = Told().says("Let me see.", call(), sampled=3, injected=4, logprob=-0.5, reward=0.2, seconds=0.25)
    return told.says(f"It is {answer}.", sampled=2, logprob=-1.0, reward=0.5).ends()


def stumbling() -> Completion:
    """A call that fails beside one that nobody made, an opening of its own, and a call without an answer at the end."""
    own = [{"role": "user", "content": "What is 12 * 37? You are in the cellar."}]
    told = Told().opens(2)
    told.says(
        "",
        call(result="{'error': 'boom'}", status="raised"),
        call("serch", "no tool of that name", "unknown", 0.0, query="x"),
        sampled=5,
        injected=6,
    )
    return told.says("Again.", call("search", "", "not_run", 0.0, query="12"), sampled=4).ends(
        "turns", own, opening=2
    )


def silent() -> Completion:
    """No call at all."""
    return Told().says("It is 44.", sampled=4).ends()


def episodes(completions: Sequence[Completion], rewards: Sequence[float], **more: Any) -> ScoredGroup:
    """Completions of one prompt and their rewards, with advantages by hand."""
    group = Group(Prompt(QUESTION, (1, 2, 3), {"task": "sums", "answer": "444"}, 7), tuple(completions))
    mean = sum(rewards) / len(rewards)
    return ScoredGroup(
        group, {"accuracy": tuple(Score(r) for r in rewards)}, tuple(rewards), tuple(r - mean for r in rewards), **more
    )  # fmt: skip


def write_episodes(folder: Path, *steps: Sequence[ScoredGroup], **options: Any) -> Path:
    """Record a run of these groups; the record's folder."""
    header: dict[str, Any] = {"settings": {}, "rewards": {"accuracy": 1.0}, "environment": {}, "git": {}}
    writer = RunWriter.open(folder / "record", **(header | options))
    for step, groups in enumerate(steps, 1):
        writer.groups(step, groups)
        writer.step(step, {"reward": sum(t or 0.0 for g in groups for t in g.totals)})
    writer.close()
    return folder / "record"
