"""Rules over engines outside the process, sampling ahead and replay: who waits for whom, what servers do, what old samples cost."""

from __future__ import annotations

import re

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History
from covey.runs.terminal.phrases import duration, number, percent

GONE = 3
FEW = 5
SEVERAL = 10

PARTS = {
    "gather": "Gathering the policy takes the longest: fewer, larger processes hold larger shards; an adapter is gathered in no time.",
    "write": "Writing takes the longest: set weights_folder to a folder in memory (/dev/shm), or to a faster disk.",
    "load": "Loading takes the longest: fewer servers on one disk, or a folder that is in memory where they are.",
}
"""By part of a sync: what to try where it takes the longest."""

OLDER = (
    "Lower async_lag or replay_age, or the learning rate: the policy moves too far from one rollout to the next.",
    "Set importance_sampling_mode='token_m2', which leaves out the few tokens that moved most, and keeps the others.",
    "Set off_policy_mask_threshold to about twice sampling/logp_gap/mean.",
)
SAME_AGE = (
    "Let servers compute as the trainer does: bfloat16 or float32 on both sides, no quantised weights, no quantised cache.",
    "Look at engine/probe_gap: where it is large too, the servers' weights are not the trainer's.",
    "Set importance_sampling_mode='token_mask' with a cap of 5 and a floor of 0.5: what differs so much is left out.",
)
"""What to try against uneven weights, by whether samples are older than the policy."""


@rule("warning")
def the_trainer_waits_for_samples(history: History) -> list[Finding]:
    """Find that the trainer waits for rollouts that should be there already."""
    waits = _seconds(history, "async/wait_sampler")
    if waits is None or waits[0] < max(0.3 * waits[1], 0.1):
        return []
    return [
        Finding(
            "The trainer waits for samples.",
            f"{duration(waits[0])} of the {duration(waits[1])} of a step, over the last {SEVERAL}: sampling and rewards take longer "
            "than the update.",
            (
                "Give more servers (engine_urls), or faster ones.",
                "Where rewards take the time (time/score), run them side by side: coroutines, or a gate before the dear one.",
                "A larger async_lag does not help: it evens out steps, and here every step is short of samples.",
            ),
            ("async/wait_sampler", "engine/wait_seconds", "time/update"),
        )
    ]


@rule("note")
def the_sampler_waits_for_the_trainer(history: History) -> list[Finding]:
    """Find that servers stand still for most of a step because what they sampled is not used up."""
    waits = _seconds(history, "async/wait_trainer")
    if waits is None or waits[0] < max(0.5 * waits[1], 0.1):
        return []
    return [
        Finding(
            "The sampler waits for the trainer.",
            f"{duration(waits[0])} of the {duration(waits[1])} of a step, over the last {SEVERAL}: servers stand still meanwhile.",
            (
                "Fewer servers give the same speed; their devices can train.",
                "More completions per prompt or per step (num_generations, gradient_accumulation_steps) use what stands still.",
            ),
            ("async/wait_trainer", "time/update", "engine/wait_seconds"),
        )
    ]


@rule("note")
def servers_idle_during_the_update(history: History) -> list[Finding]:
    """Find that sampling on servers and the update take turns, and each takes a good part of the step."""
    waits, update = _seconds(history, "engine/wait_seconds"), _seconds(history, "time/update")
    is_ahead = history.metrics.range("async/lag") is not None and history.metrics.mean("async/lag", 1)
    if waits is None or update is None or is_ahead or history.settings.get("engine_urls") is None:
        return []
    hidden = min(waits[0], update[0])
    if hidden < max(0.2 * waits[1], 0.1):
        return []
    return [
        Finding(
            "Servers and trainer take turns.",
            f"Of {duration(waits[1])} a step, servers sample for {duration(waits[0])} while the trainer waits, and the update takes "
            f"{duration(update[0])} while they wait.",
            (
                f"async_lag=1 does both at once: up to {duration(hidden)} a step less, with samples that are one update old.",
            ),
            ("engine/wait_seconds", "time/update", "step_time"),
        )
    ]


@rule("warning")
def weights_are_capped(history: History) -> list[Finding]:
    """Find that the correction for the sampler is at its bound for a good part of the tokens: they are not corrected."""
    share = history.metrics.mean("sampling/capped_share", FEW)
    if share is None or share < 0.1:
        return []
    return [
        Finding(
            "The correction for the sampler is at its cap.",
            f"{percent(share)} of the tokens of the last {FEW} steps would weigh more than importance_sampling_cap "
            f"({history.settings.get('importance_sampling_cap', 2.0)}) lets them.",
            OLDER if _lag(history) else SAME_AGE,
            ("sampling/capped_share", "sampling/logp_gap/mean", "sampling/ess"),
        )
    ]


@rule("warning")
def few_tokens_carry_the_step(history: History) -> list[Finding]:
    """Find weights so uneven that half of the tokens do nothing: the effective sample is small."""
    share = history.metrics.mean("sampling/ess", FEW)
    if share is None or share >= 0.5:
        return []
    return [
        Finding(
            "Few tokens carry the step.",
            f"sampling/ess is {number(share)} over the last {FEW} steps: the weights that correct for the sampler are as uneven as "
            f"if {percent(1 - share)} of the tokens were missing.",
            OLDER if _lag(history) else SAME_AGE,
            ("sampling/ess", "sampling/capped_share", "sampling/masked_share", "sampling/logp_gap/mean"),
            severity="problem" if share < 0.1 else None,
        )
    ]


@rule("warning")
def old_groups_are_too_old(history: History) -> list[Finding]:
    """Find that the policy has moved away from nearly every group that it could be trained on again."""
    dropped, ess = (history.metrics.mean(f"replay/{name}", SEVERAL) for name in ("dropped", "ess"))
    if dropped is None or ess is None or dropped < 0.9:
        return []
    return [
        Finding(
            "Old groups are too old to be trained on again.",
            f"{percent(dropped)} of the groups that were drawn in the last {SEVERAL} steps were dropped: their effective sample size is "
            f"{number(ess)} of their completions. Fresh ones are sampled in their place; replay costs a pass over each and saves next to nothing.",
            (
                "Lower replay_age to 1, or the learning rate: the policy moves too far from one rollout to the next.",
                "Set replay_groups=0. Weights of whole completions grow apart with their length: long ones are seldom good twice.",
                "A lower replay_min_ess keeps more of them, with a gradient that few completions decide.",
            ),
            ("replay/dropped", "replay/ess", "replay/share"),
        )
    ]


@rule("warning")
def a_server_draws_nothing(history: History) -> list[Finding]:
    """Find servers that draw nothing while others do: the run goes on without a server that is gone."""
    tokens = _tokens(history, GONE)
    silent = [server for server, mean in tokens.items() if mean == 0]
    if not silent or len(silent) == len(tokens):
        return []
    names = ", ".join(_named(history, server) for server in silent)
    return [
        Finding(
            "A server draws nothing.",
            f"{names}: no token in the last {GONE} steps, while {len(tokens) - len(silent)} of {len(tokens)} servers draw.",
            (
                "Start it again where it is gone: the run asks it at every round, and sends it the weights.",
                "Where it is there: covey engines check URL, once the run is over; or give fewer servers than prompts of a round.",
            ),
            tuple(f"engine/tokens/{server}" for server in silent),
        )
    ]


@rule("note")
def servers_differ_in_speed(history: History) -> list[Finding]:
    """Find servers of which one draws less than half of what another does: requests go to those that are free."""
    known = {server: mean for server, mean in _tokens(history, SEVERAL).items() if mean}
    if len(known) < 2 or min(known.values()) > 0.5 * max(known.values()):
        return []
    slow, fast = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return [
        Finding(
            "Servers differ in speed.",
            f"{_named(history, slow)} drew {number(known[slow])} tokens a round, server {fast} {number(known[fast])}, over the last "
            f"{SEVERAL} steps.",
            (
                "Look at what else runs on the slow one's machine, and at its device and settings: covey engines check URL.",
                "Nothing is lost: faster servers get more requests. Leave it out where its last request is what a round waits for.",
            ),
            (f"engine/tokens/{slow}", f"engine/tokens/{fast}", "engine/wait_seconds"),
        )
    ]


@rule("warning")
def the_probe_gap_grows(history: History) -> list[Finding]:
    """Find that the servers' log-probabilities of one text drift away from the trainer's, sync after sync."""
    metrics, name = history.metrics, "engine/probe_gap"
    now, early = metrics.mean(name, FEW), metrics.early_median(name)
    if now is None or early is None or now < 1e-3 or now < 3 * early:
        return []
    return [
        Finding(
            "The gap of the probe grows.",
            f"After a sync, servers and trainer differ by {number(now)} nats per token of one text, early it was {number(early)}: "
            "something that the update moves does not reach the servers.",
            (
                "Prove the servers: covey engines check URL. A stale tensor shows in its canary.",
                "In 16 bits, a gap may grow as the policy gets surer: compare with sampling/logp_gap/mean, which then grows too.",
                "Start the servers anew; the next sync sends them everything.",
            ),
            (name, "sampling/logp_gap/mean"),
            severity="problem" if now > 0.1 and now > 10 * early else None,
        )
    ]


@rule("warning")
def requests_are_sent_again(history: History) -> list[Finding]:
    """Find that requests fail and are sent again, step after step."""
    retries, lost = (history.metrics.mean(f"engine/{name}", SEVERAL) for name in ("retries", "lost"))
    if (retries is None or retries < 1) and (lost is None or lost < 1):
        return []
    return [
        Finding(
            "Requests are sent again and again.",
            f"{number(retries or 0.0)} a step over the last {SEVERAL}, {number(lost or 0.0)} of them because their server was gone. The "
            "samples are the same, the time is lost.",
            (
                "Read the servers' logs: out of memory, preemption, a proxy that closes long connections.",
                "Raise engine_timeout where servers are slow rather than gone.",
                "Let a server that starts again and again rest: take it out of engine_urls.",
            ),
            ("engine/retries", "engine/lost", "engine/wait_seconds"),
        )
    ]


@rule("note")
def sending_weights_takes_long(history: History) -> list[Finding]:
    """Find that a third of a step goes into bringing weights to servers."""
    sync = _seconds(history, "engine/sync_seconds")
    if sync is None or sync[0] < max(0.3 * sync[1], 0.5):
        return []
    parts = {part: history.metrics.mean(f"engine/sync/{part}", SEVERAL) or 0.0 for part in PARTS}
    longest = max(parts, key=parts.__getitem__)
    told = ", ".join(f"{part} {duration(seconds)}" for part, seconds in parts.items())
    return [
        Finding(
            "Sending weights takes long.",
            f"{duration(sync[0])} of the {duration(sync[1])} of a step, over the last {SEVERAL}: {told}.",
            (
                *([PARTS[longest]] if parts[longest] else []),
                "Train an adapter: it is small, and servers take it beside their weights.",
                "Sample for more than one optimizer step (steps_per_generation): weights are sent once per round.",
            ),
            ("engine/sync_seconds", *(f"engine/sync/{part}" for part in PARTS)),
        )
    ]


def _seconds(history: History, name: str) -> tuple[float, float] | None:
    """Return mean seconds of a number and of a step over the last steps; None where either is not known."""
    spent, step = history.metrics.mean(name, SEVERAL), history.metrics.mean("step_time", SEVERAL)
    return (spent, step) if spent is not None and step else None


def _tokens(history: History, last: int) -> dict[str, float]:
    """Return the mean of the tokens that each server drew in the last steps, by its number."""
    names = history.metrics.named(re.compile(r"engine/tokens/\d+"))
    means = {name.rsplit("/", 1)[1]: history.metrics.mean(name, last) for name in names}
    return {server: mean for server, mean in means.items() if mean is not None}


def _named(history: History, server: str) -> str:
    """Return a server's number, and its address where the settings have it."""
    urls = history.settings.get("engine_urls")
    where = f" ({urls[int(server)]})" if isinstance(urls, list) and int(server) < len(urls) else ""
    return f"Server {server}{where}"


def _lag(history: History) -> float:
    """Return the rollouts that samples, or those that are trained on again, are older than the policy; 0 where none are."""
    return history.metrics.mean("async/lag", FEW) or history.metrics.mean("replay/age", FEW) or 0.0
