"""A study of learning: settings × tasks × seeds in pairs, by sampled tokens and seconds, on one page.

    python benchmarks/learning.py studies/first --seeds 0 1 2 --arm exact curriculum=exact --arm biased curriculum=biased
    python benchmarks/learning.py studies/peer --arm trl library=trl --python trl=../trl/bin/python
    python benchmarks/learning.py studies/first --page                        the page again, without a run

The base is the quickstart's run (`--set` changes it for all arms), and is an arm of its own, `plain`. All arms of a seed have the same
rows, the same first weights and the same held-out problems, which are asked before the first step and after each `--every` sampled
tokens. What counts is `tokens to plain's end`: an arm's sampled tokens by plain's, to the success that plain ends with.

Each finished run is a file below the folder: a study that was ended goes on where it was. Hopeless runs and arms end early; the page
says so. No setting should be chosen by held-out problems: take other seeds to choose, and these to report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_numbers import Point, final, height, is_hopeless, of_means, per_token, ratio, t_interval
from learning_page import page
from side_by_side import environment

BASE = "plain"
HERE = Path(__file__).parent
CASE = ("task", "steps", "rows", "held_out", "every", "model", "seed", "library", "settings")
"""What makes a run what it is: a file of another one is not taken for it."""


@dataclass(frozen=True)
class Arm:
    """Settings over the base, by name, and the library that is run with them."""

    name: str
    settings: Mapping[str, Any]
    library: str = "covey"


class Study:
    """Runs by task, arm and seed, and what they come to.

    Args:
        folder: a file for each finished run is below it.
        options: those of the command line.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.base = settings(options.set)
        self.pythons = {"covey": sys.executable, **dict(pair.split("=", 1) for pair in options.python)}
        self.arms = [Arm(BASE, {}), *(arm(words) for words in options.arm)]
        for each in self.arms:
            if each.library not in self.pythons:
                raise SystemExit(
                    f"--arm {each.name}: --python {each.library}=INTERPRETER says where {each.library} is."
                )

    def case(self, task: str, each: Arm, seed: int) -> dict[str, Any]:
        """Return what a run is given."""
        o = self.options
        case = {"task": task, "steps": o.steps, "rows": o.rows, "held_out": o.held_out, "every": o.every}
        own = {"seed": seed, "library": each.library, "settings": {**self.base, **each.settings}}
        return {**case, "model": o.model, **own}

    def file(self, task: str, name: str, seed: int) -> Path:
        return self.folder / task / name / f"{seed}.json"

    def points(self, task: str, name: str) -> dict[int, list[Point]]:
        """Return the points of the finished runs of an arm, by seed."""
        files = {seed: self.file(task, name, seed) for seed in self.options.seeds}
        return {s: json.loads(f.read_text())["points"] for s, f in files.items() if f.exists()}

    def go(self) -> None:
        """Take the runs that are missing, a seed after the other, and write the page after each."""
        for task in self.options.tasks:
            for seed in self.options.seeds:
                for each in self.arms:
                    if not self._is_done(task, each, seed) and not self._is_hopeless(task, each):
                        print(f"--- {task}, {each.name}, seed {seed}", flush=True)
                        self._run(task, each, seed)
                        self.write()
        self.write()

    def _is_hopeless(self, task: str, each: Arm) -> bool:
        early = not self.options.to_the_end and each.name != BASE
        return early and is_hopeless(self.points(task, BASE), self.points(task, each.name))

    def _is_done(self, task: str, each: Arm, seed: int) -> bool:
        """Return whether there is a file of this very run; end where it is that of another one."""
        file = self.file(task, each.name, seed)
        if not file.exists():
            return False
        case, done = self.case(task, each, seed), json.loads(file.read_text())
        if other := [name for name in CASE if done[name] != case[name]]:
            raise SystemExit(
                f"{file} is a run with {', '.join(f'{n}={done[n]!r}' for n in other)}, and {', '.join(f'{n}={case[n]!r}' for n in other)} is "
                "asked for. Give the study another folder, the arm another name, or remove the file."
            )
        return True

    def _run(self, task: str, each: Arm, seed: int) -> None:
        """Train in a process of its own; its file appears when it is whole."""
        file, case = self.file(task, each.name, seed), self.case(task, each, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        base = self.points(task, BASE).get(seed, [])
        watched = [] if self.options.to_the_end or each.name == BASE else base
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder, "case.json"), Path(folder, "found.json")
            given.write_text(json.dumps({**case, "base": watched}))
            command = [self.pythons[each.library], str(HERE / "learning_run.py"), str(given), str(found)]
            names = environment(
                self.options.threads, PYTHONPATH=str(HERE.parent), TRL_EXPERIMENTAL_SILENCE="1"
            )
            subprocess.run(command, env=names, check=True)
            part = file.with_suffix(".part")
            part.write_text(json.dumps({**case, **json.loads(found.read_text())}, indent=1))
            part.replace(file)

    # --- what they come to ------------------------------------------------------------------------------------------------

    def rows(self, task: str) -> list[dict[str, str]]:
        """Return the table of a task, a row for each arm that has a run."""
        base, table = self.points(task, BASE), []
        for each in self.arms:
            own = self.points(task, each.name)
            if not own:
                continue
            shared = sorted(set(base) & set(own))
            gains = [
                height(own[s], base[s][-1]["tokens"]) - height(base[s], base[s][-1]["tokens"]) for s in shared
            ]
            ends = [final(points) for points in own.values()]
            numbers = {
                "end": f"{sum(ends) / len(ends):.3f}",
                "tokens to plain's end": ratio(base, own),
                "to 0.9 of its gain": ratio(base, own, 0.9),
                "of mean curves": of_means(base, own),
                "to 0.9": of_means(base, own, 0.9),
                "seconds to plain's end": ratio(base, own, 1.0, "seconds"),
                "processor seconds per token": per_token(base, own),
                "mean success, more": _spread(gains),
            }
            early = (
                ""
                if len(own) == len(self.options.seeds)
                else f"{len(own)} of {len(self.options.seeds)} seeds"
            )
            row = {"arm": each.name, **{k: "" if v is None else str(v) for k, v in numbers.items()}}
            table.append({**row, "seeds": early or str(len(own))})
        return table

    def write(self) -> None:
        """Write the page, the table as text beside it, and show the table."""
        tables = {task: self.rows(task) for task in self.options.tasks}
        runs = {
            task: {each.name: self.points(task, each.name) for each in self.arms}
            for task in self.options.tasks
        }
        asked = {"base": self.base, **{a.name: {"library": a.library, **a.settings} for a in self.arms[1:]}}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "study.html").write_text(
            page(tables, runs, asked, vars(self.options)), encoding="utf-8"
        )
        text = "\n\n".join(f"{task}\n{as_text(rows)}" for task, rows in tables.items() if rows)
        (self.folder / "study.txt").write_text(text + "\n", encoding="utf-8")
        print(text, flush=True)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = t_interval(values)
    return f"{sum(values) / len(values):+.3f} [{low:+.3f}, {high:+.3f}]"


def as_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table in columns."""
    if not rows:
        return ""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def settings(words: Sequence[str]) -> dict[str, Any]:
    """Return settings from `name=value`; values are JSON, and text where they are none."""
    found: dict[str, Any] = {}
    for word in words:
        name, is_set, value = word.partition("=")
        if not is_set:
            raise SystemExit(f"{word!r} is no setting. Give name=value.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


def arm(words: Sequence[str]) -> Arm:
    """Return an arm from its name and its settings; `library=NAME` is the library."""
    found = settings(words[1:])
    return Arm(words[0], found, found.pop("library", "covey"))


def main() -> None:
    """Take a study further, and write its page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path)
    add("--arm", nargs="+", action="append", default=[], metavar=("NAME", "SETTING=VALUE"))
    add("--set", nargs="+", default=[], metavar="SETTING=VALUE", help="of all arms")
    add("--tasks", nargs="+", default=["quickstart"], help="quickstart, mixed, countdown, code, levels")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--steps", type=int, default=110)
    add("--rows", type=int, default=0, help="in the dataset; 0: as many as the steps take, each once")
    add("--held-out", type=int, default=400, help="problems")
    add("--every", type=int, default=20_000, help="sampled tokens from one point to the next")
    add("--model", default="", help="a folder; by default the bundled policy")
    add("--python", nargs="+", default=[], metavar="LIBRARY=INTERPRETER")
    add("--threads", type=int, default=1)
    add("--to-the-end", action="store_true", help="end nothing early")
    add("--page", action="store_true", help="write the page from what there is")
    options = parser.parse_args()
    study = Study(options.folder, options)
    study.write() if options.page else study.go()


if __name__ == "__main__":
    main()
