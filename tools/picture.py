"""Draw docs/pictures/quickstart.svg: the live terminal at the end of a quickstart, as it really was.

python tools/picture.py
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "quickstart.svg"
COLUMNS, LINES = 112, 24
sys.path.insert(0, str(ROOT))


def draw(steps: int | None = None) -> str:
    """Train the quickstart and return its last picture as SVG, without a font from another host."""
    from covey.cli.verbs.quickstart import make_trainer
    from covey.runs.terminal.display import Display
    from covey.trainer import run_log

    drawn: list[Display] = []

    class Kept(Display):
        def close(self) -> None:
            drawn.append(self)
            super().close()

    with tempfile.TemporaryDirectory() as folder:
        run_log.Display = Kept  # type: ignore[misc]  # this process draws one picture and ends
        make_trainer(f"{folder}/quickstart-run", steps=steps).train()
    console = Console(record=True, width=COLUMNS, height=LINES, force_terminal=True, file=io.StringIO())
    console.print(drawn[-1].render(COLUMNS, LINES))
    svg = console.export_svg(title="covey quickstart")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
