"""Train the bundled policy for 20 steps and print what was drawn, loss, KL, entropy and gradient norm of each, as text.

    python tools/golden_run.py > tests/golden/tiny.txt

Every change of the library that is meant to leave the algorithm alone must leave these tokens and numbers alone. Another
processor rounds differently, in the fifth digit; one other token changes every number after it.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import zlib

TOKENS = "tokens"
"""CRC-32 of the completions of the step's round."""
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


def golden_rows(folder: str) -> list[dict[str, float | str]]:
    """Return the training log of the golden run, one row per optimizer step."""
    import torch

    import covey.runs
    from covey.cli.verbs.quickstart import make_trainer

    torch.set_num_threads(1)
    trainer = make_trainer(folder, seed=7, steps=STEPS, **SETTINGS)
    trainer.train()
    drawn = covey.runs.open(folder).completions(columns=["step", "completion"]).groupby("step")["completion"]
    sums = {step: f"{zlib.crc32(chr(0).join(texts).encode()):08x}" for step, texts in drawn}
    # A round is recorded under its first step, and every later one learns from it too.
    return [
        {TOKENS: sums[max(first for first in sums if first <= step)], **{name: row[name] for name in COLUMNS}}
        for step, row in enumerate((row for row in trainer.state.log_history if "loss" in row), start=1)
    ]


def golden_text(rows: list[dict[str, float | str]]) -> str:
    """Return the rows as a table with six significant digits."""
    lines = [f"step  {TOKENS:>8}  " + "  ".join(f"{name:>23}" for name in COLUMNS)]
    for number, row in enumerate(rows, start=1):
        cells = [f"{number:>4}", row[TOKENS], *(f"{row[name]:>23.6g}" for name in COLUMNS)]
        lines.append("  ".join(cells))
    return "\n".join(lines) + "\n"


def read_golden(text: str) -> list[dict[str, float | str]]:
    """Return the rows of the table that `golden_text` wrote."""
    rows = [line.split()[1:] for line in text.splitlines()[1:]]
    return [
        {TOKENS: tokens, **{name: float(cell) for name, cell in zip(COLUMNS, cells, strict=True)}}
        for tokens, *cells in rows
    ]


def main() -> None:
    """Print the table; what the run itself prints goes to stderr."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        text = golden_text(golden_rows(folder))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
