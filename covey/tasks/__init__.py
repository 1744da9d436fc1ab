"""Generators of verifiable prompts: countdown, code, text, their mixture, the calculator, and discs to look at. Needs no trainer and no torch.

Each family makes rows with a chat `prompt`, a column `task` and the columns that its reward needs, and comes with that
reward. Rows are deterministic by seed. Puzzles are `train` or `held_out` by a hash of what they ask, so that no seed
and no wording ever moves one across.
"""

from covey.tasks.calculator import calculator_reward, calculator_rows
from covey.tasks.code import code_reward, code_rows
from covey.tasks.countdown import countdown_reward, countdown_rows
from covey.tasks.discs import disc_rows, discs_reward, discs_solved
from covey.tasks.friendly_text import text_rows
from covey.tasks.mixed import mixed_rows

__all__ = [
    "calculator_reward",
    "calculator_rows",
    "code_reward",
    "code_rows",
    "countdown_reward",
    "countdown_rows",
    "disc_rows",
    "discs_reward",
    "discs_solved",
    "mixed_rows",
    "text_rows",
]
