"""How a reward is called: where it runs, what a deadline means there, and what happens when it goes wrong."""
