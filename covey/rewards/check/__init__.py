"""Checks of rewards before a run: right answers, attacks, repeats, order, threads, times."""
