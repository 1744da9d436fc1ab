"""Verbs of the command line, one file each."""
