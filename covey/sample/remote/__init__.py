"""Engines in other processes, on this machine or elsewhere, spoken to over HTTP."""
