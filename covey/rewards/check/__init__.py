"""The parts of `covey.rewards.check.run`: what is tried, what is measured, what is reported."""
