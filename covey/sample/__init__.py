"""Sampling: prompts in, groups of completions out. Any engine that keeps the protocol in `engine` will do."""
