"""Rewards that run model-written code, in locked processes with limits of time and memory."""
