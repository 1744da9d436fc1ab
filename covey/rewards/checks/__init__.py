"""The parts of `covey.rewards.check`: what is tried, what is measured, what is reported."""
