"""Rules over episodes: tools that are not used, that fail, that the sampler waits for, and limits that end them."""

from __future__ import annotations

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History
from covey.runs.terminal.phrases import duration, number, percent

FEW = 5
SEVERAL = 10
MANY = 20
"""Steps over which nothing was called: a policy may need some to find its tools."""

WAYS = {
    "malformed": (
        "cannot be read",
        "Look at the transcripts: does the policy write calls as its chat template does? `tool_format` says how they are read.",
        "Check that turns are not cut within a call: max_turn_length, max_completion_length.",
    ),
    "unknown": (
        "name no tool",
        "Say in the prompt which tools there are; a policy that was trained with other tools calls those.",
        "Give the tool the name that the policy calls: `@tool(name=...)`.",
    ),
    "timeout": (
        "run out of time",
        "Raise the time limit (`tool_timeout`, `@tool(timeout=...)`), or make the tool faster.",
        "Look at the slowest calls on the page: `covey report`.",
    ),
}
"""By the status of a call: what is wrong with it, and what to try."""

BESIDE = (
    "It can run beside the sampler: @tool(where='thread'), if it may be called from several threads; @tool(where='process') "
    "otherwise; or make it a coroutine function.",
)

BROKEN = (
    "Read what it answers: `covey report` shows each call and its result.",
    "Say in its docstring what it takes; the policy reads that.",
    "Where the tool itself is broken, not the call, @tool(on_error='fail') keeps it from being trained on.",
)

LIMITS = {
    "turns": ("at the limit of turns", "max_tool_calling_iterations"),
    "deadline": ("at their deadline", "episode_timeout"),
}
"""By the end of an episode: words for it, and the setting."""


@rule("warning")
def tools_are_not_called(history: History) -> list[Finding]:
    """Find that hardly any completion calls a tool, step after step."""
    shares = history.metrics.values("tools/no_call_share", MANY)
    if shares.size < MANY or shares.min() <= 0.9:
        return []
    return [
        Finding(
            "Tools are hardly called.",
            f"{percent(float(shares.mean()))} of the completions of the last {MANY} steps are without a call.",
            (
                "Say in the prompt when to call which tool, and show one call: a policy does not learn what it never tries.",
                "Take prompts that cannot be solved without a tool; where the answer alone is paid, guessing may pay as well.",
                "Check that the model knows tools: its chat template shows them, and it was trained to write calls.",
            ),
            ("tools/no_call_share", "tools/call_frequency", "reward"),
        )
    ]


@rule("note")
def a_tool_stalls_the_sampler(history: History) -> list[Finding]:
    """Find tools that run in the sampler's own thread and take a good part of its time."""
    sampling, rounds = _seconds_of_sampling(history), history.statistics.mean("completions", 1)
    if not sampling or not rounds:
        return []
    inline = [name for name, facts in history.tools.items() if facts.get("where") == "inline"]
    found = (_stalling(history, name, sampling, rounds) for name in inline)
    return [finding for finding in found if finding is not None]


def _stalling(history: History, name: str, sampling: float, completions: float) -> Finding | None:
    each = history.metrics.mean(f"tools/{name}/seconds", FEW) or 0.0
    calls = (history.metrics.mean(f"tools/{name}/calls", FEW) or 0.0) * completions
    seconds = each * calls
    if seconds < max(0.25 * sampling, 0.1):
        return None
    return Finding(
        f"The sampler waits for {name}.",
        f"It takes {duration(each)} a call, {number(calls)} calls a round: {duration(seconds)} of the {duration(sampling)} that "
        "sampling takes.",
        BESIDE,
        ("time/tools", "time/sample", f"tools/{name}/seconds"),
        severity="warning" if seconds > 0.5 * sampling else None,
        subject=name,
    )


def _seconds_of_sampling(history: History) -> float | None:
    """Return the mean seconds of the last steps that sampled; steps that train on what is there take none."""
    seconds = history.metrics.values("time/sample", SEVERAL)
    return (
        float(seconds[seconds > 0.1 * seconds.max()].mean())
        if seconds.size >= FEW and seconds.max()
        else None
    )


@rule("warning")
def calls_fail_in_one_way(history: History) -> list[Finding]:
    """Find calls that cannot be read, name no tool, or run out of time, a tenth of all at least."""
    findings = []
    for status, (words, *advice) in WAYS.items():
        share = history.metrics.mean(f"tools/{status}_share", FEW)
        if share is not None and share >= 0.1 and history.metrics.mean("tools/call_frequency", FEW):
            findings.append(
                Finding(
                    f"Many calls {words}.",
                    f"tools/{status}_share is {percent(share)} over the last {FEW} steps.",
                    tuple(advice),
                    (f"tools/{status}_share", "tools/failure_frequency", "tools/call_frequency"),
                    subject=status,
                )
            )
    return findings


@rule("warning")
def a_tool_fails(history: History) -> list[Finding]:
    """Find tools of which half of the calls fail."""
    findings = []
    for name in history.tools:
        share = history.metrics.mean(f"tools/{name}/failed_share", FEW)
        calls = history.metrics.mean(f"tools/{name}/calls", FEW)
        if share is None or share < 0.5 or not calls:
            continue
        findings.append(
            Finding(
                f"Most calls of {name} fail.",
                f"{percent(share)} of them did over the last {FEW} steps.",
                BROKEN,
                (f"tools/{name}/failed_share", f"tools/{name}/calls"),
                subject=name,
            )
        )
    return findings


@rule("warning")
def limits_end_episodes(history: History) -> list[Finding]:
    """Find that a good part of the episodes ends at the limit of turns or of time, before the policy was through."""
    findings = []
    for finish, (words, setting) in LIMITS.items():
        share = history.metrics.mean(f"episodes/ended/{finish}", FEW)
        if share is not None and share >= 0.3:
            findings.append(
                Finding(
                    f"Many episodes end {words}.",
                    f"episodes/ended/{finish} is {percent(share)} over the last {FEW} steps; {setting} is "
                    f"{history.settings.get(setting)}.",
                    (
                        f"Raise {setting}, if the policy is on its way; look at where the transcripts break off.",
                        "Add a reward that pays for ending in time, or `mask_truncated_completions=True`.",
                    ),
                    (f"episodes/ended/{finish}", "episodes/turns/mean", "completions/clipped_ratio"),
                    subject=finish,
                )
            )
    return findings


@rule("warning")
def episodes_fail(history: History) -> list[Finding]:
    """Find episodes that end because an environment or a tool failed: they are not trained on."""
    share = history.metrics.mean("episodes/ended/failed", FEW)
    if share is None or share < 0.05:
        return []
    return [
        Finding(
            "Episodes fail.",
            f"{percent(share)} of those of the last {FEW} steps ended in a failure of their environment or of a tool with "
            "on_error='fail', and have no score.",
            ("Read the warnings of the run: they name what was raised.",),
            ("episodes/ended/failed", "reward/unscored"),
        )
    ]
