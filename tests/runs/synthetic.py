"""Runs that never were: a policy that learns, written through the real writer.

A `Story` says how the run goes (how many steps, which tasks, what goes wrong); `write_run` records it. Everything is
drawn from the seed, the step and the prompt, so that two records of the same story hold the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from covey.runs import RunWriter
from covey.types import Completion, FinishReason, Group, Prompt, Score, ScoredGroup

WEIGHTS = {"accuracy": 1.0, "format": 0.2, "unit_tests": 1.0, "style_model": 0.3}

TRACEBACK = """Traceback (most recent call last):
  File "rewards/style.py", line 41, in style_model
    response = client.score(text)
  File "rewards/client.py", line 88, in score
    raise TimeoutError(f"no answer from {self.host} within {self.seconds} s")
TimeoutError: no answer from 127.0.0.1:8000 within 5.0 s"""

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script><!-- ]]> -->",
    "total is \u202e000,1\u202c and \u2066hidden\u2069 \u200bzero\u200dwidth\u00ad \u0000\u001b[31mred\u0007",
    "x" * 200_000,
    "line one\u2028line two\u2029line three\r\n\ttabbed",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324" * 50,
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 mixed with English 123",
    "lone \ud800 surrogate",
    "{{7*7}} ${7*7} <%= 7*7 %> javascript:alert(1) &lt;b&gt;",
)

_OPENERS = (
    "Let me look at the numbers first.",
    "We need an expression that gives the target.",
    "I will try a few combinations.",
    "Okay, think step by step.",
    "The largest number seems useful here.",
    "Start from the target and work backwards.",
)
_STEPS = (
    "If I add {a} and {b} I get {s}.",
    "Multiplying {a} by {b} gives {p}, which is too much.",
    "{a} minus {b} leaves {d}.",
    "That does not reach {t}, so try something else.",
    "Using {a} twice is not allowed.",
    "So {a} + {b} * 2 could be close to {t}.",
    "Wait, check that again: {a} * {b} = {p}.",
)


@dataclass(frozen=True)
class Story:
    """How a synthetic run goes. The defaults tell of a healthy one."""

    steps: int = 60
    prompts_per_step: int = 6
    group_size: int = 8
    num_prompts: int = 36
    tasks: tuple[str, ...] = ("countdown", "code")
    seed: int = 0
    skill: float = 1.0
    """How far the policy gets; 0: it learns nothing."""
    sentences: int = 4
    """Mean number of sentences of thought."""
    failure_rate: float = 0.004
    hostile: bool = False
    evaluate_every: int = 10
    eval_prompts: int = 24
    kl_growth: float = 1.0
    limit: int = 512

    def progress(self, step: int) -> float:
        """Between 0 and 1, along a logistic curve."""
        return self.skill / (1 + math.exp(-8 * (step / max(1, self.steps) - 0.4)))


def prompt_of(story: Story, row: int) -> Prompt:
    """A row of the dataset: arithmetic puzzles, and functions to write."""
    random = Random(f"{story.seed}:{row}")
    task = story.tasks[row % len(story.tasks)]
    numbers = [random.randint(1, 25) for _ in range(4)]
    if task == "code":
        name = random.choice(("rotate", "merge", "count", "flatten", "chunk", "dedupe"))
        text = f"Write a Python function `{name}_{row}(items, k)` that returns the items {name}d by k."
        columns = {"task": task, "tests": [f"assert {name}_{row}([1, 2], 1)"], "level": row % 3}
    else:
        target = numbers[0] * 2 + numbers[1] - numbers[2]
        text = f"Using the numbers {numbers}, create an equation that equals {target}."
        columns = {"task": task, "nums": numbers, "target": target, "level": row % 3}
    content = [{"role": "system", "content": "Think first, then answer."}, {"role": "user", "content": text}]
    return Prompt(content, tuple(range(20 + row % 30)), columns, row)


def batch(story: Story, step: int) -> list[ScoredGroup]:
    """The scored groups that a step is trained on."""
    start = (step - 1) * story.prompts_per_step
    rows = [(start + i) % story.num_prompts for i in range(story.prompts_per_step)]
    return [scored_group(story, step, row, story.group_size) for row in rows]


def scored_group(story: Story, step: int, row: int, size: int, purpose: str = "train") -> ScoredGroup:
    random = Random(f"{story.seed}:{purpose}:{step}:{row}")
    prompt = prompt_of(story, row)
    solved = [random.random() < _chance(story, step, row) for _ in range(size)]
    completions = [_completion(story, prompt, step, ok, random) for ok in solved]
    if story.hostile and purpose == "train":
        text = HOSTILE[(step * story.prompts_per_step + row) % len(HOSTILE)]
        completions[0] = replace(completions[0], text=text)
    scores = _scores(story, prompt, completions, solved, random)
    return with_advantages(Group(prompt, tuple(completions)), scores)


def with_advantages(
    group: Group, scores: dict[str, list[Score]], weights: dict[str, float] | None = None
) -> ScoredGroup:
    """Totals and group-relative advantages as the trainer would give them."""
    weights = weights or WEIGHTS
    size = len(group.completions)
    totals = [_total({name: column[i] for name, column in scores.items()}, weights) for i in range(size)]
    kept = [t for t in totals if t is not None]
    mean = sum(kept) / len(kept) if kept else 0.0
    deviation = math.sqrt(sum((t - mean) ** 2 for t in kept) / (len(kept) - 1)) if len(kept) > 1 else 0.0
    advantages = tuple(
        0.0 if t is None or deviation < 1e-9 else (t - mean) / (deviation + 1e-4) for t in totals
    )
    columns = {name: tuple(column) for name, column in scores.items()}
    extras = {"answer_words": tuple(len(c.text.split()) for c in group.completions)}
    return ScoredGroup(group, columns, tuple(totals), advantages, extras)


def metrics(
    story: Story, step: int, groups: Sequence[ScoredGroup], statistics: dict[str, float]
) -> dict[str, float]:
    """What the trainer would log for the step."""
    random = Random(f"{story.seed}:metrics:{step}")
    progress = story.progress(step)
    completions = [c for g in groups for c in g.group.completions]
    lengths = [len(c.ids) for c in completions]
    ended = [len(c.ids) for c in completions if not c.is_truncated] or [0]
    stds = [_std([t for t in g.totals if t is not None]) for g in groups]
    found = {
        "loss": 1e-7 + 0.002 * progress * random.random(),
        "grad_norm": 0.4 + 0.3 * random.random(),
        "learning_rate": 2e-6 * max(0.0, 1 - step / (story.steps + 1)),
        "reward": statistics.get("reward/mean", 0.0),
        "reward_std": sum(stds) / max(1, len(stds)),
        "frac_reward_zero_std": sum(s < 1e-9 for s in stds) / max(1, len(stds)),
        "completions/mean_length": sum(lengths) / max(1, len(lengths)),
        "completions/min_length": min(lengths, default=0),
        "completions/max_length": max(lengths, default=0),
        "completions/clipped_ratio": sum(c.is_truncated for c in completions) / max(1, len(completions)),
        "completions/mean_terminated_length": sum(ended) / len(ended),
        "completions/min_terminated_length": min(ended),
        "completions/max_terminated_length": max(ended),
        "kl": (0.0004 + 0.02 * progress * random.uniform(0.8, 1.2)) * story.kl_growth**step,
        "entropy": 1.1 - 0.5 * progress + 0.04 * random.random(),
        "num_tokens": 4200.0 * step + random.random() * 900,
        "step_time": 1.9 + 0.2 * random.random(),
        "time/sample": 1.1 + 0.1 * random.random(),
        "time/score": 0.12 + 0.03 * random.random(),
        "time/update": 0.65 + 0.05 * random.random(),
        "sampling/logp_gap/mean": 2e-4 * (1 + random.random()),
        "sampling/logp_gap/max": 4e-3 * (1 + random.random()),
        "update/dropped_share": 0.0,
        "memory/peak_mb": 2210 + 3 * random.random(),
    }
    found |= {f"clip_ratio/{name}": 0.01 * random.random() for name in _CLIPS}
    for name in WEIGHTS:
        found[f"rewards/{name}/mean"] = statistics.get(f"rewards/{name}/mean", 0.0)
        found[f"rewards/{name}/count"] = statistics.get(f"rewards/{name}/count", 0.0)
        values = [s.value for g in groups for s in g.scores.get(name, ()) if s.value is not None]
        found[f"rewards/{name}/std"] = _std(values)
        found[f"rewards/{name}/failed"] = statistics.get(f"rewards/{name}/failed_share", 0.0)
    for task in story.tasks:
        found[f"tasks/{task}/reward"] = statistics.get(f"tasks/{task}/mean", 0.0)
        found[f"tasks/{task}/count"] = statistics.get(f"tasks/{task}/count", 0.0)
    return found


def settings_of(story: Story) -> dict[str, Any]:
    return {
        "learning_rate": 2e-6,
        "num_generations": story.group_size,
        "max_completion_length": story.limit,
        "per_device_train_batch_size": story.group_size,
        "gradient_accumulation_steps": story.prompts_per_step,
        "num_iterations": 2,
        "beta": 0.001,
        "epsilon": 0.2,
        "temperature": 1.0,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "max_steps": story.steps,
        "output_dir": "synthetic-run",
        "hub_token": "hf_very_secret",
        "seed": story.seed,
    }


def open_writer(folder: Path, story: Story, **options: Any) -> RunWriter:
    """The real writer with the header of a story."""
    header: dict[str, Any] = {
        "settings": settings_of(story),
        "rewards": WEIGHTS,
        "name": folder.name if folder.name != "record" else folder.parent.name,
        "model": {
            "name": "tiny-chat",
            "parameters": 3_400_000,
            "weights_dtype": "float32",
            "weight_scale": 0.02,
        },
        "dataset": {"name": "countdown and code", "rows": story.num_prompts, "fingerprint": "5f1a9c0e"},
        "plan": [
            ("prompts per optimizer step", str(story.prompts_per_step)),
            ("optimizer steps in total", str(story.steps)),
        ],
        "max_steps": story.steps,
    }
    return RunWriter.open(folder, **(header | options))


def record_step(writer: RunWriter, story: Story, step: int) -> dict[str, float]:
    """One step as the trainer records it; returns the metrics."""
    groups = batch(story, step)
    statistics = writer.groups(step, groups)
    found = metrics(story, step, groups, statistics)
    writer.step(step, found, {name: found[f"time/{name}"] for name in ("sample", "score", "update")})
    return found


def record_evaluation(writer: RunWriter, story: Story, step: int) -> None:
    groups = [scored_group(story, step, 1000 + i, 4, "eval") for i in range(story.eval_prompts)]
    hits = [s.value or 0.0 for g in groups for s in _first_scored(g)]
    rewards = [t for g in groups for t in g.totals if t is not None]
    found = {"reward": sum(rewards) / len(rewards), "accuracy": sum(hits) / len(hits), "mean_length": 90.0}
    writer.evaluation("held_out", step, found, groups)


def write_run(folder: Path, story: Story | None = None, end: str | None = "finished", **options: Any) -> Path:
    """Record a whole run; `end=None` leaves it as a kill would."""
    story = story or Story()
    writer = open_writer(folder, story, **options)
    if story.evaluate_every:
        record_evaluation(writer, story, 0)
    for step in range(1, story.steps + 1):
        record_step(writer, story, step)
        if story.evaluate_every and step % story.evaluate_every == 0:
            record_evaluation(writer, story, step)
            writer.event("checkpoint", f"Checkpoint {step} saved.", step)
            writer.sync()
    if end:
        writer.close(end)  # type: ignore[arg-type]
    return folder


_CLIPS = ("low_mean", "low_min", "high_mean", "high_max", "region_mean")


def _chance(story: Story, step: int, row: int) -> float:
    hardness = (row % 7) / 7
    return min(0.97, max(0.02, 0.08 + story.progress(step) * (1.1 - 0.8 * hardness)))


def _completion(story: Story, prompt: Prompt, step: int, ok: bool, random: Random) -> Completion:
    text = _text(story, prompt, step, ok, random)
    tokens = max(1, len(text) // 4)
    finish: FinishReason = "length" if tokens > story.limit else "stop"
    tokens = min(tokens, story.limit)
    ids = tuple(random.randrange(50_000) for _ in range(tokens))
    return Completion(ids, tuple(-0.9 * random.random() for _ in ids), text, finish)


def _text(story: Story, prompt: Prompt, step: int, ok: bool, random: Random) -> str:
    columns = prompt.columns
    a, b = random.randint(1, 25), random.randint(1, 25)
    facts = {"a": a, "b": b, "s": a + b, "p": a * b, "d": a - b, "t": columns.get("target", b)}
    count = max(1, int(random.gauss(story.sentences * (1 + 0.5 * story.progress(step)), 1.5)))
    thought = [random.choice(_OPENERS), *(random.choice(_STEPS).format(**facts) for _ in range(count))]
    if columns["task"] == "code":
        body = "return items[k:] + items[:k]" if ok else "return items"
        answer = f"```python\ndef solution(items, k):\n    {body}\n```"
    else:
        x, y, z, _ = columns["nums"]
        answer = f"{x} * 2 + {y} - {z}" if ok else f"{x} + {y} * {z}"
    if random.random() > 0.35 + 0.6 * story.progress(step):
        return " ".join(thought) + f" The answer is {answer}"
    return f"<think>{' '.join(thought)}</think>\n<answer>{answer}</answer>"


def _scores(
    story: Story, prompt: Prompt, completions: Sequence[Completion], solved: Sequence[bool], random: Random
) -> dict[str, list[Score]]:
    nothing = [Score(None, "not_applicable")] * len(completions)
    right = [Score(float(ok)) for ok in solved]
    is_code = prompt.columns["task"] == "code"
    return {
        "accuracy": nothing if is_code else right,
        "format": [Score(float(c.text.startswith("<think>"))) for c in completions],
        "unit_tests": right if is_code else nothing,
        "style_model": [_style(story, c, random) for c in completions],
    }


def _style(story: Story, completion: Completion, random: Random) -> Score:
    if random.random() < story.failure_rate:
        return Score(None, "failed", TRACEBACK)
    if not completion.text.startswith("<think>"):
        return Score(None, "gated")
    return Score(round(random.betavariate(4, 2), 3))


def _total(scores: dict[str, Score], weights: dict[str, float]) -> float | None:
    if any(s.status == "failed" for s in scores.values()):
        return None
    parts = [weights[n] * (s.value or 0.0) for n, s in scores.items() if s.status in ("value", "gated")]
    return sum(parts) if parts else None


def _first_scored(group: ScoredGroup) -> tuple[Score, ...]:
    return (
        group.scores["accuracy"]
        if group.scores["accuracy"][0].status == "value"
        else group.scores["unit_tests"]
    )


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
