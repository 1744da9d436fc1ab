"""Every verb, and a run with each display, ends on a stream of any encoding as it does on one of UTF-8."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.cli import VERBS, main
from covey.tasks import assets
from tests.runs.synthetic import Story, write_run
from tests.trainer.harness import config

ENCODINGS = ("ascii", "cp1252", "utf-8")
SIGNS = "say \U0001f600 你好 → –"


class Screen(io.TextIOWrapper):
    """A terminal of some encoding that raises for what it lacks, as Python's streams do by default."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def streams(encoding: str, kind: type[io.TextIOWrapper] = io.TextIOWrapper) -> Iterator[io.TextIOWrapper]:
    """Standard output and standard error of an encoding, meanwhile; yields the first."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (kind(io.BytesIO(), encoding=encoding) for _ in range(2))
    try:
        yield sys.stdout
    finally:
        sys.stdout, sys.stderr = before


def said(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Everything that the verbs below name: a recipe whose rows no code page holds, a record, samples."""
    here = tmp_path_factory.mktemp("verbs")
    rows = [{"prompt": f"{i} + 1 = {SIGNS}", "target": str(i + 1), "answer": str(i + 1)} for i in range(4)]
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_run(
        here / "run" / "record",
        Story(steps=6, prompts_per_step=2, group_size=4, evaluate_every=3, eval_prompts=4),
    )
    (here / "recipe.yaml").write_text(
        f"""
# {SIGNS}
model: {assets.POLICY}
data: {{file: rows.jsonl}}
rewards: [NumberMatch]
train:
  output_dir: out
  max_steps: 1
  num_generations: 2
  per_device_train_batch_size: 4
  max_completion_length: 4
  log_completions: true
  use_cpu: true
  report_to: none
""",
        encoding="utf-8",
    )
    return here


COMMANDS = {
    "quickstart": ["--steps", "1", "--out", "first-run"],
    "recipes": [],
    "plan": ["recipe.yaml"],
    "check": ["rows.jsonl", "--reward", "NumberMatch"],
    "try": [str(assets.POLICY), "recipe.yaml"],
    "train": ["recipe.yaml"],
    "eval": [str(assets.POLICY), "rows.jsonl", "--reward", "NumberMatch", "--max-tokens", "4"],
    "generate": [str(assets.POLICY), "-p", SIGNS, "--max-tokens", "4"],
    "watch": ["missing–→"],
    "report": ["run"],
    "doctor": ["run"],
    "rescore": ["run", "--weight", "accuracy=-1", "--show", "3"],
    "export": ["run"],
    "merge": ["missing–→", "merged"],
    "serve": ["missing–→"],
    "engines": ["check", "missing–→", "--timeout", "0.3"],
    "completion": ["bash"],
}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "quickstart"])
def test_a_verb_ends_alike_in_every_encoding(verb, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ends, texts = [], []
    for encoding in ENCODINGS:
        shutil.rmtree(folder / "out", ignore_errors=True)
        with streams(encoding) as out:
            ends.append(main([verb, *COMMANDS[verb]]))
        texts.append(said(out))
    assert ends[0] == ends[1] == ends[2] and ends[0] in (0, 1, 2, 3), ends
    assert len({bool(text) for text in texts}) == 1
    assert out.errors == "strict", "the stream is as it was"


def test_json_is_escaped_and_not_replaced(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with streams("ascii") as out:
        assert main(["generate", *COMMANDS["generate"]]) == 0
    assert json.loads(said(out))["prompt"] == SIGNS


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_printed_in_every_encoding(verb):
    with streams("ascii"), pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0


@pytest.mark.parametrize("display", ["plain", "live"])
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_run_ends_on_a_terminal_of_any_encoding(display, encoding, tmp_path):
    from datasets import Dataset

    from covey import GRPOTrainer

    args = config(
        tmp_path,
        log_completions=True,
        num_completions_to_print=2,
        display=display,
        max_steps=2,
        disable_tqdm=False,
    )
    data = Dataset.from_dict({"prompt": [SIGNS] * 8})
    with streams(encoding, Screen) as out:
        trainer = GRPOTrainer(
            str(assets.POLICY), lambda completions, **_: [1.0] * len(completions), args, data
        )
        trainer.train()
    assert trainer.state.global_step == 2 and "prompt: say ? ??" in said(out) and out.errors == "strict"
