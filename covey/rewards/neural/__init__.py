"""Rewards that a neural network gives: reward models, and language models that judge by a rubric."""
