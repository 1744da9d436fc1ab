"""Covey's own sampling engine, on nothing but PyTorch and transformers."""
