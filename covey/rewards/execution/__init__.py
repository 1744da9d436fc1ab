"""Calls of rewards: places that they run in, deadlines there, and what becomes of faults."""
