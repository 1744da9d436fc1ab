"""One HTML file that holds runs and needs nothing else: no network, no framework, no build step.

The page is written for hostile completions. Data stands in the file as JSON whose `<`, `>`, `&` and line separators are
escaped, or as base64; scripts and styles are allowed by their hashes alone (Content-Security-Policy), so that nothing
else can run even if a text became markup; and the scripts put texts on the page as text only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from covey import __version__
from covey.runs.record import schema
from covey.runs.record.json_text import Json
from covey.runs.report.embed import Blobs, embed, embedded_pictures
from covey.runs.report.summary import RunSummary
from covey.text.foreign import as_html

MAX_MEGABYTES = 64.0
"""Default bound of the completions in a page, in 10^6 bytes."""

PICTURE_MEGABYTES = 5.0
"""Of pictures in a page; it links to the others."""

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_report(
    runs: Sequence[str | Path], output: str | Path, max_megabytes: float = MAX_MEGABYTES
) -> Path:
    """Write a page about one run, or about several to compare.

    Args:
        runs: output directories or record folders.
        output: the HTML file; replaced if it exists.
        max_megabytes: bound of the completions in the page. Where they take more, those of evenly spread steps are kept,
            and the page says so.

    Raises:
        FileNotFoundError: one of the runs has no record.
        ValueError: no run was given, or the bound is not positive.
    """
    if not runs:
        raise ValueError("write_report got no run. Give the output directory of at least one.")
    if max_megabytes <= 0:
        raise ValueError(f"max_megabytes is {max_megabytes}; give a size above 0.")
    summaries, blobs, output = [], [], Path(output)
    for folder in [schema.record_folder(run) for run in runs]:
        run = RunSummary(folder)
        facts, held = _embedded(run, int(max_megabytes * 1e6 / len(runs)))
        held[0].blocks.update(embedded_pictures(run.sources, int(PICTURE_MEGABYTES * 1e6 / len(runs))))
        facts["pictures"] = _link(folder / schema.PICTURES, output)
        summaries.append(facts)
        blobs.append(held)
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.writelines(document({"runs": summaries, "live": False}, blobs))
    return output


def document(data: Json, blobs: Sequence[Sequence[Blobs]] = (), connect: str = "'none'") -> Iterator[str]:
    """Yield the parts of a page: its data, and the blobs of each run, which a live page asks the server for instead."""
    script, style = assets()
    origin = {"version": __version__, "written": time.time()}
    title = " · ".join(run["name"] for run in data["runs"][:3]) or "Covey"
    yield "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy(script, style, connect)}">\n'
    yield '<meta name=viewport content="width=device-width, initial-scale=1">\n<meta name=referrer content=no-referrer>\n'
    yield f"<title>{as_html(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    yield '<noscript>This report draws itself with JavaScript, which is switched off.</noscript>\n<div id="app"></div>\n'
    yield f'<script type="application/json" id="data">{script_json(data | origin)}</script>\n'
    for number, held in enumerate(blobs):
        for position, source in enumerate(held):
            # The browser does not look at them until the page asks for one.
            for name, block in source.blocks.items():
                yield f'<script type="text/plain" id="b{number}-{position}-{name}">{block}</script>\n'
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def policy(script: str, style: str, connect: str = "'none'") -> str:
    """Return a Content-Security-Policy under which our script and style run, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def script_json(value: object) -> str:
    """Return JSON that can stand inside a script element: nothing in it can end the element or begin another."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


@cache
def assets() -> tuple[str, str]:
    """Return the script and the style of the page."""
    folder = resources.files("covey.runs.report").joinpath("page")
    names = sorted(entry.name for entry in folder.iterdir())
    parts = [folder.joinpath(name).read_text(encoding="utf-8") for name in names if name.endswith(".js")]
    styles = [folder.joinpath(name).read_text(encoding="utf-8") for name in names if name.endswith(".css")]
    script = "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"
    return script, "\n".join(styles)


def _embedded(run: RunSummary, max_bytes: int) -> tuple[Json, list[Blobs]]:
    """Return a run's summary with the facts of its sources, and their blobs in the same order."""
    summary = run.data()
    held: list[Blobs] = []
    left = max_bytes
    # Evaluations, the last sources, are small and worth more; training takes what is left.
    for facts, source in reversed(list(zip(summary["sources"], run.sources, strict=True))):
        blobs = embed(source, max(left, max_bytes // 10))
        left -= blobs.size
        held.insert(0, blobs)
        counts = Counter(name.partition("-")[0] for name in blobs.blocks)
        facts |= {"textChunks": counts["text"], "promptChunks": counts["prompt"], "leftOut": blobs.left_out}
    return summary, held


def _link(folder: Path, page: Path) -> str | None:
    """Return the address of a folder as seen from a page, for links; None where there is none."""
    try:
        return (
            "./" + quote(Path(os.path.relpath(folder, page.parent)).as_posix()) if folder.is_dir() else None
        )
    except ValueError:  # on another drive
        return None


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
