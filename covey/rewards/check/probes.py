"""The checks, one function each, of a trial and its samples; findings go into a report."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence

from covey.rewards.check.attacks import SHAPE_ONLY, attacks
from covey.rewards.check.golds import FULL_MARKS, gold_completions, like_prompt
from covey.rewards.check.report import CheckReport, Severity
from covey.rewards.check.trial import Sample, Trial, TrialOutcome
from covey.rewards.options import Row

NUM_THREADS = 4
SLOW_SECONDS = 1.0
"""A single sample that takes longer holds up a step."""
SLOW_ATTACK_SECONDS = 5.0
"""An endless program ends at the limits of its sandbox; what takes longer has no limits."""
MAX_SAMPLES = 32
"""Samples for the checks that call a reward many times."""


def check_values(
    trial: Trial, samples: Sequence[Sample], report: CheckReport, are_real: bool
) -> list[TrialOutcome]:
    """Check range and spread, constants, faults. A constant says something only of real completions."""
    name, statistics = trial.reward.name, report.rewards[trial.reward.name]
    outcomes = trial.outcomes(samples)
    values = [o.value for o in outcomes if o.value is not None]
    if values:
        mean = math.fsum(values) / len(values)
        statistics.lowest, statistics.highest, statistics.mean = min(values), max(values), mean
        statistics.std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))
    faults = Counter(o.fault for o in outcomes if o.fault)
    explained = {o.fault for o in outcomes if o.is_explained} if len(outcomes) > faults.total() else ()
    for fault, count in faults.most_common(3):
        severity: Severity = "warning" if fault in explained else "error"
        report.add(severity, name, "fault", f"{count} of {len(samples)} samples: {fault}")
    if are_real and statistics.lowest is not None and statistics.lowest == statistics.highest:
        text = f"gives every completion {statistics.lowest:g}: groups without spread teach nothing."
        report.add("warning", name, "constant", text)
    return outcomes


def check_golds(trial: Trial, rows: Sequence[Row], report: CheckReport) -> None:
    """Check that right answers get full marks from their own reward."""
    name = trial.reward.name
    best: list[tuple[Row, float]] = []
    for row in rows:
        ways = [(row, like_prompt(row["prompt"], text)) for text in gold_completions(trial.reward, row)]
        values = [o.value for o in trial.outcomes(ways) if o.value is not None]
        if values:
            best.append((row, max(values)))
    if not best or not _looks_at_answers(trial, rows):
        return
    missed = [(row, value) for row, value in best if value < FULL_MARKS]
    report.rewards[name].gold_share = 1 - len(missed) / len(best)
    if missed:
        row, value = missed[0]
        text = (
            f"{len(missed)} of {len(best)} rows: the right answer does not get full marks; the first gets {value:g}: "
            f"{_shown(row)}"
        )
        report.add("error" if len(missed) == len(best) else "warning", name, "gold", text)


def _looks_at_answers(trial: Trial, rows: Sequence[Row]) -> bool:
    """Return whether a reward compares with the row at all: one of form or length has no right answer."""
    if hasattr(trial.reward.function, "gold_completion"):
        return True
    columns = {name for row in rows for name in row if name != "prompt"}
    return bool(trial.reward.names & columns) or bool(trial.reward.missing_columns([]))


def check_repeat(
    trial: Trial, samples: Sequence[Sample], first: Sequence[TrialOutcome], report: CheckReport
) -> None:
    """Check that the same samples again get the same."""
    again = trial.outcomes(samples)
    text = "asked again, it says something else"
    _compare(trial, samples, first, again, report, "error", "determinism", text)


def check_order(
    trial: Trial, samples: Sequence[Sample], first: Sequence[TrialOutcome], report: CheckReport
) -> None:
    """Check that neither order nor company of a sample matters; a group reward may look at its group."""
    if trial.reward.options.scope == "group":
        return
    backwards = trial.outcomes(list(reversed(samples)))[::-1]
    text = "in the opposite order, it says something else"
    if _compare(trial, samples, first, backwards, report, "error", "order", text):
        return
    alone = [trial.outcomes([sample])[0] for sample in samples[:MAX_SAMPLES]]
    advice = "on its own, a sample gets something else: it depends on the rest of the batch. Use scope='group' if on its group"
    _compare(trial, samples, first, alone, report, "warning", "company", advice)


def check_threads(
    trial: Trial, samples: Sequence[Sample], first: Sequence[TrialOutcome], report: CheckReport
) -> None:
    """Check that several threads at a time get the same as one."""
    found: dict[int, list[TrialOutcome]] = {}

    def run(number: int) -> None:
        found[number] = trial.outcomes(samples)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(NUM_THREADS):
        others = found.get(number, [TrialOutcome(None, "it raised")] * len(samples))
        text = f"in {NUM_THREADS} threads at a time, it says something else"
        if _compare(trial, samples, first, others, report, "warning", "threads", text):
            return


def check_latency(trial: Trial, samples: Sequence[Sample], report: CheckReport) -> None:
    """Measure seconds per sample, one at a time."""
    seconds = sorted(trial.timed(sample)[1] for sample in samples[:MAX_SAMPLES])
    if not seconds:
        return
    statistics = report.rewards[trial.reward.name]
    statistics.seconds_p50 = seconds[len(seconds) // 2]
    statistics.seconds_p95 = seconds[min(int(len(seconds) * 0.95), len(seconds) - 1)]
    statistics.seconds_max = seconds[-1]
    if statistics.seconds_p95 > SLOW_SECONDS:
        text = f"a sample takes {statistics.seconds_p95:.1f} s (95th percentile)."
        report.add("warning", trial.reward.name, "latency", text)


def check_attacks(trial: Trial, rows: Sequence[Row], report: CheckReport) -> None:
    """Check that hostile completions pay nothing, take no time, and raise nothing."""
    name, compares = trial.reward.name, _looks_at_answers(trial, rows)
    row, failed, raised = rows[0], dict[str, list[str]](), dict[str, list[str]]()
    known = [f.text.partition(" samples: ")[2] for f in report.findings if f.reward == name]
    for attack, text in attacks(row).items():
        outcome, seconds = trial.timed((row, like_prompt(row["prompt"], text)))
        if outcome.fault:
            (failed if outcome.is_explained else raised).setdefault(outcome.fault, []).append(repr(attack))
        elif outcome.value is not None and outcome.value > 0 and (compares or attack not in SHAPE_ONLY):
            severity: Severity = "error" if outcome.value >= FULL_MARKS else "warning"
            report.add(severity, name, "attack", f"pays {outcome.value:g} for the attack {attack!r}.")
        if seconds > SLOW_ATTACK_SECONDS:
            report.add("warning", name, "attack", f"takes {seconds:.1f} s for the attack {attack!r}.")
    for fault, which in raised.items():
        if fault not in known:  # said of ordinary completions already
            report.add("error", name, "attack", f"the attack {', '.join(which)}: {fault}")
    for reason, which in failed.items():
        text = f"failed, so that the sample is left out, on the attack {', '.join(which)}: {reason}."
        report.add("warning", name, "attack", text)


def _compare(
    trial: Trial,
    samples: Sequence[Sample],
    first: Sequence[TrialOutcome],
    second: Sequence[TrialOutcome],
    report: CheckReport,
    severity: Severity,
    check: str,
    text: str,
) -> bool:
    """Return whether outcomes differ; report the first that do."""
    for (row, _), one, other in zip(samples, first, second, strict=False):
        if not one.agrees(other):
            shown = f"{one.as_text} and then {other.as_text}"
            report.add(severity, trial.reward.name, check, f"{text}: {shown}, for {_shown(row)}.")
            return True
    return False


def _shown(row: Row) -> str:
    return repr(dict(row))[:160]
