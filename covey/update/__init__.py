"""Step 3 of GRPO: scored groups → micro-batches, log-probabilities, loss and gradient."""
