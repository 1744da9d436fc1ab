"""`covey quickstart` from beginning to end: a short run always, the whole one on request."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from covey.cli import main
from covey.tasks.quickstart_run import ASSETS, POLICY, REWARD_MODEL


def accuracies(line):
    """`{task: (mean, low, high)}` in percent."""
    found = re.findall(r"(\w+) (\d+)% right \(95 % interval (\d+)% to (\d+)%\)", line)
    return {task: tuple(map(int, numbers)) for task, *numbers in found}


def quickstart(*words):
    """Its exit code, what it printed, and the accuracies of its last two lines about them."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(["quickstart", *map(str, words)])
    out = printed.getvalue()
    before, after = (re.findall(rf"^{when}: .*$", out, re.MULTILINE)[-1] for when in ("Before", "After"))
    return code, out, accuracies(before), accuracies(after)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The folder of a run of two steps, and what `quickstart` gives for it."""
    run = tmp_path_factory.mktemp("quickstart") / "run"
    return run, *quickstart("--steps", 2, "--out", run)


def test_a_short_run_measures_trains_saves_and_says_what_comes_next(short):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, code, out, before, after = short

    assert code == 0
    for measured in (before, after):
        assert set(measured) == {"countdown", "code"}
        assert all(0 < low < mean < high < 100 for mean, low, high in measured.values())
    assert f"covey report {run}" in out and f"covey doctor {run}" in out
    assert "shards" not in out
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert len(AutoTokenizer.from_pretrained(run / "model")) == model.config.vocab_size
    assert main(["report", str(run)]) == 0 and (run / "report.html").exists()


def test_the_policy_starts_with_much_to_learn_and_something_to_learn_from(short):
    _, _, _, before, _ = short

    assert all(10 < mean < 40 for mean, _, _ in before.values())


def test_the_bundled_models_are_small_and_packaged():
    policy = sum(p.stat().st_size for p in POLICY.iterdir())
    reward_model = sum(p.stat().st_size for p in REWARD_MODEL.iterdir())
    manifest = (Path(__file__).parents[2] / "pyproject.toml").read_text()

    assert policy < 10e6 and reward_model < 1e6
    assert ASSETS.name == "assets" and '"assets/**/*"' in manifest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_alone_teaches_both_checkable_tasks(seed, tmp_path):
    _, _, before, after = quickstart("--seed", seed, "--out", tmp_path / "run")

    for task, (mean, _, high) in before.items():
        assert after[task][0] >= mean + 25
        assert after[task][1] > high
