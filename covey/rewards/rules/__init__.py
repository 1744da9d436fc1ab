"""Rewards that a rule decides: answers that are compared, formats, lengths and code that is only read."""
