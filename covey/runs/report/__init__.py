"""A page to look at a run: one file without a network, or live while the run goes on."""

from covey.runs.report.page import write_report

__all__ = ["write_report"]
