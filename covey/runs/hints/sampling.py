"""Rules over what is sampled: lengths, ends, duplicates, agreement of sampler and trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History
from covey.runs.hints.target import target_trend
from covey.runs.terminal.phrases import number, percent
from covey.types import ScoredGroup

FEW = 5
"""Steps over which something has to hold that should not hold even briefly."""


def every_completion_is_cut_off(groups: Sequence[ScoredGroup]) -> str | None:
    """Return the warning for a step of which no completion has an end."""
    completions = [c for s in groups for c in s.group.completions]
    if not completions or not all(c.is_truncated for c in completions):
        return None
    ends = Counter(c.finish for c in completions)
    if set(ends) != {"length"}:
        numbers = ", ".join(f"{count} by {finish}" for finish, count in ends.most_common())
        return (
            f"Every completion was ended by a limit: {numbers}. If rewards need a finished answer, raise the limits "
            "(max_tool_calling_iterations, episode_timeout, max_completion_length)."
        )
    return (
        f"Every completion hit the limit of {max(len(c.ids) - c.opening for c in completions)} tokens. If rewards need a finished answer, "
        "raise max_completion_length, or check that the model ends its answers with one of its end-of-sequence tokens."
    )


@rule("problem", every_completion_is_cut_off)
def most_completions_are_cut_off(history: History) -> list[Finding]:
    """Find that half of the completions hit the limit of new tokens: their answers, and often their rewards, are lost."""
    # Of episodes, the limits of turns and of time are another rule's.
    has_tools = history.metrics.range("episodes/ended/length") is not None
    name = "episodes/ended/length" if has_tools else "completions/clipped_ratio"
    share = history.metrics.mean(name, FEW)
    if share is None or share < 0.5:
        return []
    who = "Every completion is" if share > 0.99 else f"{percent(share)} of the completions are"
    return [
        Finding(
            f"{who} cut off.",
            f"{name} is {percent(share)} over the last {FEW} steps; max_completion_length is "
            f"{history.settings.get('max_completion_length', 'the limit')}.",
            (
                "Raise max_completion_length, or ask for shorter answers in the prompt.",
                "Check that the model can end: its end-of-sequence ids are those of tokenizer and generation config.",
                "Add a reward that pays for ending in time (soft overlong punishment).",
                "Set mask_truncated_completions, so that what was cut off is not trained on.",
            ),
            (name, "completions/mean_length"),
            severity="problem" if share >= 0.9 else "warning",
        )
    ]


@rule("warning")
def completions_are_duplicates(history: History) -> list[Finding]:
    """Find that siblings repeat each other token for token, so that groups have nothing to compare."""
    share = history.statistics.mean("duplicate_share", FEW)
    if share is None or share < 0.5:
        return []
    temperature = history.settings.get("temperature", 1.0)
    return [
        Finding(
            "Completions of the same prompt are duplicates.",
            f"{percent(share)} of the completions repeat a sibling token for token over the last {FEW} steps; "
            f"temperature is {temperature}.",
            (
                "Raise the temperature, and lift top_p, top_k and repetition_penalty if they are set.",
                "If the entropy has fallen, the policy has settled: harder prompts or an entropy bonus give it room.",
                "Where right answers are a few tokens long, duplicates are natural: reward what can still differ.",
            ),
            ("entropy", "frac_reward_zero_std"),
        )
    ]


@rule("problem")
def completions_are_empty(history: History) -> list[Finding]:
    """Find that the policy ends its answers before it has begun them."""
    share = history.statistics.mean("empty_share", FEW)
    if share is None or share < 0.5:
        return []
    return [
        Finding(
            "Completions are empty.",
            f"{percent(share)} of the completions hold nothing but blanks over the last {FEW} steps.",
            (
                "Check the prompt: a template that already closes the assistant's turn leaves nothing to say.",
                "Check that no reward pays for an empty completion, and that wrong answers do not cost more than none.",
            ),
            ("completions/mean_length", "reward"),
        )
    ]


@rule("warning")
def length_grows_without_gain(history: History) -> list[Finding]:
    """Find that completions get longer and the target does not get better."""
    length, target = history.metrics.trend("completions/mean_length"), target_trend(history)
    if length is None or target is None or length.ratio < 1.3 or length.z < 4 or target.trend.z >= 2:
        return []
    return [
        Finding(
            "Completions grow, results do not.",
            f"Mean length went from {number(length.early)} to {number(length.late)} tokens, while {target.name} went "
            f"from {number(target.trend.early)} to {number(target.trend.late)}.",
            (
                "Read late completions: repetition and filler are typical.",
                "Use a loss that does not favour length (loss_type dr_grpo or dapo), or scale_rewards='none'.",
                "Add a mild reward for brevity among right answers, or a repetition penalty.",
            ),
            ("completions/mean_length", target.name),
        )
    ]


@rule("warning")
def length_collapses(history: History) -> list[Finding]:
    """Find that completions shrink to a fraction and the target does not get better."""
    length, target = history.metrics.trend("completions/mean_length"), target_trend(history)
    if length is None or target is None or length.ratio > 0.4 or length.z > -4 or target.trend.z >= 2:
        return []
    return [
        Finding(
            "Completions shrink, results do not get better.",
            f"Mean length went from {number(length.early)} to {number(length.late)} tokens, while {target.name} went "
            f"from {number(target.trend.early)} to {number(target.trend.late)}.",
            (
                "Look for a reward that pays for short answers, and lower its weight.",
                "Look at short completions that score: one of the rewards may have a hole.",
            ),
            ("completions/mean_length", target.name),
        )
    ]


@rule("warning")
def sampler_and_trainer_disagree(history: History) -> list[Finding]:
    """Find that sampler and trainer give other log-probabilities: the update learns from another policy."""
    if history.metrics.mean("async/lag", FEW) or history.metrics.mean("replay/share", FEW):
        return []  # they must: the policy has moved since; rules of `sampling_elsewhere` look at what that costs
    gap = history.metrics.mean("sampling/logp_gap/mean", FEW)
    dropped = history.metrics.mean("sampling/masked_share", FEW)
    if (gap is None or gap < 0.05) and (dropped is None or dropped < 0.1):
        return []
    parts = [] if gap is None else [f"they differ by {number(gap)} nats per token on average"]
    parts += [] if not dropped else [f"{percent(dropped)} of the tokens are left out because of it"]
    return [
        Finding(
            "Sampler and trainer disagree about the same tokens.",
            f"Over the last {FEW} steps {' and '.join(parts)}; in one precision and at one temperature the gap is "
            "about 0.0001, with a bf16 engine about 0.01.",
            (
                "Sample in the trainer's precision, or keep the head and the soft-max in fp32.",
                "Check that the sampler has the current weights, the adapter included.",
                "Check that temperature, top_p, top_k and penalties are the same on both sides.",
            ),
            ("sampling/logp_gap/mean", "sampling/logp_gap/max", "sampling/masked_share"),
            severity="problem" if (gap or 0) > 0.5 or (dropped or 0) > 0.5 else None,
        )
    ]
