"""Names and folders → policies, tokenizers, adapters, reward models; and what is inside a wrapped model."""
