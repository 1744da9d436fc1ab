"""Families of chat templates and how their policies write a call; one small file each."""
