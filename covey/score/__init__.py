"""Step 2 of GRPO: groups → scores of all rewards → advantages, in numpy."""
