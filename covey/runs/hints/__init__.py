"""Rules that name what goes wrong in a run, with evidence and what to try."""

from covey.runs.hints.hint import Finding, Hint, Rule, rule
from covey.runs.hints.history import History
from covey.runs.hints.watch import RULES, HintWatch, watch_record

__all__ = ["RULES", "Finding", "Hint", "HintWatch", "History", "Rule", "rule", "watch_record"]
