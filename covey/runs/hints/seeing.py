"""Rules over policies that see: whether what they are shown changes what they say."""

from __future__ import annotations

from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History
from covey.runs.terminal.phrases import number

LEAST = 1e-4
"""Nats. A grey picture moves a fresh model that sees by a hundred times as much; rounding in float32 by far less."""


@rule("warning")
def the_picture_does_not_matter(history: History) -> list[Finding]:
    """Find that grey pictures in the places of the prompts' own left the policy's words as likely as they were."""
    values = history.metrics.values("vision/effect")
    if not values.size or values[0] >= LEAST:
        return []
    return [
        Finding(
            "The picture does not change what the policy says.",
            f"With grey pictures in place of the prompts' own, log-probabilities of its first completions moved by {number(float(values[0]))} "
            "nats on average.",
            (
                "Look at the projector, which joins the tower to the decoder: where its weights are 0, or were not loaded, the policy is blind. "
                "Take weights that were trained to see.",
                "Look at a picture of the record (covey report): is it the one that the prompt is about?",
                "Where the tower is far too coarse, let it see more pixels (min_pixels, max_pixels).",
            ),
            ("vision/effect",),
        )
    ]
