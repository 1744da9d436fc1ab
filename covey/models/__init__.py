"""Policies, tokenizers and adapters by name or folder; facts about a wrapped model."""
