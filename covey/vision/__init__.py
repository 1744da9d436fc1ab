"""Policies that see: pictures of prompts → what a vision-language model takes."""
