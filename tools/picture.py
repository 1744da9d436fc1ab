"""Draw pictures of the docs from real runs.

python tools/picture.py               docs/pictures/quickstart.svg: the live terminal at the end of a quickstart
python tools/picture.py --vision      docs/pictures/vision.svg: what `covey quickstart --vision` shows at its end
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
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
    console = recording(COLUMNS, height=LINES)
    console.print(drawn[-1].render(COLUMNS, LINES))
    return svg(console, "covey quickstart")


def draw_gallery(steps: int | None = None) -> str:
    """Train the quickstart that sees, and return accuracy before and after, and its gallery, as SVG."""
    from covey.cli.gallery import Gallery
    from covey.cli.verbs.quickstart import accuracy_line, make_vision_trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_vision_trainer(f"{folder}/vision-run", steps=steps, display="plain")
        before = accuracy_line(trainer)
        trainer.train()
        after, console = accuracy_line(trainer), recording(90)
    console.print(f"Before: {before}\nAfter:  {after}\n")
    assert isinstance(trainer.compute_metrics, Gallery)
    trainer.compute_metrics.show(console)
    return svg(console, "covey quickstart --vision")


def recording(width: int, height: int | None = None) -> Console:
    """Return a terminal that keeps what it is shown."""
    sizes = {"width": width, "height": height, "color_system": "truecolor"}
    return Console(record=True, force_terminal=True, highlight=False, file=io.StringIO(), **sizes)


def svg(console: Console, title: str) -> str:
    """Return what a terminal has kept, without a font from another host."""
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL)


if __name__ == "__main__":
    if "--vision" in sys.argv:
        (PICTURES / "vision.svg").write_text(draw_gallery(), encoding="utf-8")
    else:
        (PICTURES / "quickstart.svg").write_text(draw(), encoding="utf-8")
