"""Write docs/settings.md from the fields of the configs.

    python tools/settings_page.py

tests/docs/test_settings_page.py holds the page against the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
sys.path.insert(0, str(ROOT))

from covey.config import GRPOConfig, ModelConfig  # noqa: E402
from covey.config.allocation_settings import AllocationSettings  # noqa: E402
from covey.config.async_settings import AsyncSettings  # noqa: E402
from covey.config.curriculum_settings import CurriculumSettings  # noqa: E402
from covey.config.engine_settings import EngineSettings  # noqa: E402
from covey.config.replay_settings import ReplaySettings  # noqa: E402
from covey.config.task_settings import TaskSettings  # noqa: E402
from covey.config.tool_settings import ToolSettings  # noqa: E402
from covey.config.validation import describe, kinds_of  # noqa: E402
from covey.config.vision_settings import VisionSettings  # noqa: E402
from covey.recipes.settings import default_of  # noqa: E402

HEAD = """\
# Settings

Every setting of Covey's own, with its kind and its default. `GRPOConfig` also takes everything that
[`transformers.TrainingArguments`](https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments)
takes; `covey train --settings` prints those too, and `covey train --settings WORD` the ones with a word in them.
[Where to start](hyperparameters.md) says which to change first.

This page is made from the code: `python tools/settings_page.py`.
"""


def shown(value: object) -> str:
    """Return a default as Python writes it."""
    return repr(value.value if isinstance(value, Enum) else value)


def headings(config: type) -> dict[str, str]:
    """Return the heading above each field that has one: the comments `# --- words` in the class."""
    found, heading = {}, ""
    for line in inspect.getsource(config).splitlines():
        if match := re.match(r"    # --- (.+)", line):
            heading = match[1][0].upper() + match[1][1:]
        elif (match := re.match(r"    (\w+): ", line)) and heading:
            found[match[1]], heading = heading, ""
    return found


def section(config: type, title: str = "") -> str:
    """Return the settings of one config that are Covey's own, under their headings."""
    titles, kinds = headings(config), kinds_of(config)
    lines = [title or f"## {config.__name__}", ""]
    for field in dataclasses.fields(config):
        if field.name not in config.__annotations__ or not field.init:
            continue
        if field.name in titles:
            lines += [f"### {titles[field.name]}", ""]
        words = " ".join(str(field.metadata.get("help", "")).split())
        lines += [
            f"`{field.name}` = `{shown(default_of(field))}` ({describe(kinds[field.name])})<br>",
            words,
            "",
        ]
    return "\n".join(lines)


def page() -> str:
    """Return the whole page."""
    return (
        "\n".join(
            [
                HEAD,
                section(GRPOConfig),
                section(EngineSettings, "### Engines"),
                section(AsyncSettings, "### Sampling ahead"),
                section(AllocationSettings, "### Where to spend samples"),
                section(CurriculumSettings, "### Which prompts"),
                section(TaskSettings, "### Budgets per task"),
                section(ReplaySettings, "### Old samples again"),
                section(ToolSettings, "### Tools"),
                section(VisionSettings, "### Pictures"),
                section(ModelConfig),
            ]
        ).rstrip()
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
