"""Train the bundled policy for 20 steps and print loss, KL, entropy and gradient norm of each, as text.

    python tools/golden_run.py > tests/golden/tiny.txt

Every change of the library that is meant to leave the algorithm alone must leave these numbers alone. They are those of
one kind of machine: another processor rounds differently, and one other token changes every number after it.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile

COLUMNS = ("loss", "kl", "entropy", "grad_norm", "reward", "completions/mean_length")
STEPS = 20
SETTINGS = {
    "beta": 0.02,  # a KL term needs a reference
    "num_iterations": 2,  # the second pass is off-policy: ratios differ from 1 and are clipped
    "logging_steps": 1,
    "report_to": "none",
    "display": "plain",
    "save_strategy": "no",
    "eval_on_start": False,
}


def golden_rows(folder: str) -> list[dict[str, float]]:
    """Return the training log of the golden run, one row per optimizer step."""
    import torch

    from covey.cli.verbs.quickstart import make_trainer

    torch.set_num_threads(1)
    trainer = make_trainer(folder, seed=7, steps=STEPS, **SETTINGS)
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


def golden_text(rows: list[dict[str, float]]) -> str:
    """Return the rows as a table with six significant digits."""
    lines = ["step  " + "  ".join(f"{name:>23}" for name in COLUMNS)]
    for number, row in enumerate(rows, start=1):
        lines.append(f"{number:>4}  " + "  ".join(f"{row[name]:>23.6g}" for name in COLUMNS))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; what the run itself prints goes to stderr."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        text = golden_text(golden_rows(folder))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
