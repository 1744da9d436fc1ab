"""`covey quickstart` from beginning to end: a short run always, the whole one on request."""

import argparse
import contextlib
import io
import re
import shlex
import signal
import time
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from transformers import TrainerCallback

import covey.runs
from covey.cli import main
from covey.cli.gallery import Gallery
from covey.cli.verbs import quickstart as quickstart_verb
from covey.cli.verbs.quickstart import add_arguments, next_commands, resume_command
from covey.config import hardware
from covey.tasks import disc_rows
from covey.tasks.assets import ASSETS, CALCULATOR_POLICY, DISCS_POLICY, POLICY, REWARD_MODEL


def accuracies(line):
    """`{task: (mean, low, high)}` in percent."""
    found = re.findall(r"(\w+) (\d+)% right \(95 % interval (\d+)% to (\d+)%\)", line)
    return {task: tuple(map(int, numbers)) for task, *numbers in found}


def calls_of(out):
    """Calls per answer, as the lines about accuracy say it, in order."""
    return [float(number) for number in re.findall(r"([\d.]+) calls each", out)]


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


class StopAfterOne(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("kind", "maker", "tasks"),
    [([], "make_trainer", {"countdown", "code"}), (["--vision"], "make_vision_trainer", {"discs"})],
)
def test_a_run_that_was_stopped_is_gone_on_with_by_the_command_that_it_names(
    kind, maker, tasks, tmp_path, monkeypatch, capsys
):
    words = [*kind, "--steps", 3, "--out", tmp_path / "run"]
    make = getattr(quickstart_verb, maker)
    with monkeypatch.context() as stopped:

        def made(*given):
            trainer = make(*given)
            trainer.add_callback(StopAfterOne())
            return trainer

        stopped.setattr(quickstart_verb, maker, made)
        with pytest.raises(SystemExit) as end:
            main(["quickstart", *map(str, words)])
        assert end.value.code == 130
    command = shlex.join(
        [
            "covey",
            "quickstart",
            "--out",
            str(tmp_path / "run"),
            "--seed",
            "0",
            "--steps",
            "3",
            *kind,
            "--resume",
        ]
    )
    said = capsys.readouterr()
    assert command in said.err + said.out
    code, out, before, _ = quickstart(*command.split()[2:])
    assert code == 0 and "step 3/3" in out and "step 1/3" not in out and set(before) == tasks
    steps = covey.runs.open(tmp_path / "run").steps()
    assert steps.index.tolist() == [1, 2, 3]


def test_nothing_to_go_on_from_is_said_in_words_of_the_command(tmp_path, capsys):
    assert main(["quickstart", "--steps", "1", "--out", str(tmp_path / "run"), "--resume"]) == 2
    said = capsys.readouterr().err
    assert "Start without resuming" in said and "trainer.train" not in said


def test_the_bundled_models_are_small_and_packaged():
    policy = sum(p.stat().st_size for p in POLICY.iterdir())
    reward_model = sum(p.stat().st_size for p in REWARD_MODEL.iterdir())
    manifest = (Path(__file__).parents[2] / "pyproject.toml").read_text()

    assert policy < 10e6 and reward_model < 1e6
    assert ASSETS.name == "assets" and '"assets/**/*"' in manifest


@pytest.fixture(scope="module")
def short_with_a_tool(tmp_path_factory):
    """What `quickstart --tools` gives for a run of two steps."""
    return quickstart("--tools", "--steps", 2, "--out", tmp_path_factory.mktemp("quickstart") / "run")


def test_with_a_tool_the_policy_calls_sometimes_from_the_start(short_with_a_tool):
    code, out, before, after = short_with_a_tool

    assert code == 0 and set(before) == set(after) == {"calculator"}
    assert 15 < before["calculator"][0] < 45
    assert all(0.2 < calls < 0.8 for calls in calls_of(out)[:1])


@pytest.fixture(scope="module")
def short_that_sees(tmp_path_factory):
    """The folder of a run of two steps with `--vision`, and what `quickstart` gives for it."""
    run = tmp_path_factory.mktemp("quickstart") / "run"
    return run, *quickstart("--vision", "--steps", 2, "--out", run)


def test_a_policy_that_sees_starts_badly_and_is_kept_with_its_processor(short_that_sees):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    run, code, out, before, after = short_that_sees

    assert code == 0 and set(before) == set(after) == {"discs"}
    assert 25 < before["discs"][0] < 45
    assert AutoModelForImageTextToText.from_pretrained(run / "model").num_parameters() < 3e5
    assert AutoProcessor.from_pretrained(run / "model").image_processor.patch_size == 8
    assert main(["report", str(run)]) == 0 and (run / "report.html").exists()
    assert re.search(r"\n  right   .a +.b +.c +.d\b", out), "one picture of each quarter"
    for when in ("before", "after"):
        assert len(re.findall(rf"\n  {when} .*", out)) == 1
        verdicts = re.search(rf"\n  {when} (.*)", out)[1].split()
        assert len(verdicts) == 8 and set(verdicts[1::2]) <= {"right", "wrong"}


def shown(monkeypatch, capsys, **environment):
    """What a gallery prints in a terminal of this environment."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    gallery = Gallery(disc_rows(40, split="held_out"))
    gallery.said = [dict.fromkeys(gallery.right, "rb\x1b"), gallery.right]
    gallery.show(Console(highlight=False))
    return capsys.readouterr().out


def test_a_terminal_with_colours_shows_the_pictures(monkeypatch, capsys):
    out = shown(
        monkeypatch, capsys, FORCE_COLOR="1", COLORTERM="truecolor", TERM="xterm-256color", COLUMNS="100"
    )
    lines = [line for line in out.splitlines() if "▀" in line]
    assert [line.count("▀") for line in lines] == [64] * 8
    shades = {tuple(map(int, found.split(";"))) for found in re.findall(r"[34]8;2;(\d+;\d+;\d+)", out)}
    grounds = {
        Image.open(io.BytesIO(row["image"])).getpixel((0, 0)) for row in disc_rows(200, split="held_out")
    }
    assert len(shades & grounds) == 4  # corners are free of discs


def test_without_colours_a_picture_would_be_a_grey_square(monkeypatch, capsys):
    assert "▀" not in shown(monkeypatch, capsys, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")


def test_a_pipe_gets_the_words_alone(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, NO_COLOR="1")
    assert "▀" not in out and "\x1b" not in out
    assert out.count("wrong") == 4 and out.count("right") == 5 and out.count("rb⟨ESC⟩") == 4


@pytest.mark.parametrize(("package", "name"), [("PIL", "pillow"), ("torchvision", "torchvision")])
def test_without_the_extra_the_error_names_it(package, name, tmp_path, monkeypatch, capsys):
    has = hardware.has_package
    monkeypatch.setattr(hardware, "has_package", lambda asked: asked != package and has(asked))
    assert main(["quickstart", "--vision", "--out", str(tmp_path / "run")]) == 2
    assert f"--vision needs {name}: pip install 'covey[vision]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_with_pictures_exchanged_between_prompts_nothing_pays_but_chance(tmp_path):
    """No other way leads to the answer: not the prompt, not the order of the rows, not a neighbour's picture."""
    from covey.cli.verbs.quickstart import make_vision_trainer

    trainer = make_vision_trainer(str(tmp_path / "run"), seed=1, steps=16, is_shuffled=True, display="plain")
    trainer.train()
    solved, letters = (
        [row[f"rewards/{name}/mean"] for row in trainer.state.log_history if f"rewards/{name}/mean" in row]
        for name in ("discs_solved", "discs_reward")
    )
    assert (
        len(solved) == 16 and sum(solved) / 16 < 0.1 and sum(letters) / 16 < 0.3
    )  # with its own: 0.34 and 0.65


@pytest.mark.parametrize(
    "given", [[], ["--tools"], ["--vision"], ["--tools", "--out", "my run", "--seed", "1"]]
)
def test_what_to_type_next_is_another_run_of_the_same_kind(given):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    lines = next_commands(parser.parse_args(given)).splitlines()
    typed = [shlex.split(line[2:].partition("  ")[0]) for line in lines]
    runs = [vars(parser.parse_args(words[2:])) for words in typed if words[1] == "quickstart"]
    asked = vars(parser.parse_args(given))

    assert typed[0] == ["covey", "report", asked["out"]] and typed[1] == ["covey", "doctor", asked["out"]]
    assert [runs[0][kind] for kind in ("tools", "vision")] == [asked[kind] for kind in ("tools", "vision")]
    assert runs[0]["seed"] != asked["seed"]
    others = {kind for kind in ("tools", "vision") for run in runs[1:] if run[kind]}
    assert others == {"tools", "vision"} - {kind for kind in ("tools", "vision") if asked[kind]}
    assert len({len(line) - len(line[2:].partition("  ")[2].lstrip()) for line in lines}) == 1


@pytest.mark.parametrize("given", [[], ["--tools"], ["--vision"], ["--tools", "--steps", "7", "--seed", "3"]])
def test_the_command_that_goes_on_says_all_that_the_run_hangs_on(given):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    asked = vars(parser.parse_args(given))
    goes_on = shlex.split(resume_command(argparse.Namespace(**asked)))

    assert goes_on[:2] == ["covey", "quickstart"]
    assert vars(parser.parse_args(goes_on[2:])) == {**asked, "resume": True}


def test_the_policies_of_the_other_two_are_small():
    assert sum(p.stat().st_size for p in CALCULATOR_POLICY.iterdir()) < 3e6
    assert sum(p.stat().st_size for p in DISCS_POLICY.iterdir()) < 1.5e6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_alone_teaches_to_use_a_tool(seed, tmp_path):
    _, out, before, after = quickstart("--tools", "--seed", seed, "--out", tmp_path / "run")

    assert after["calculator"][0] >= before["calculator"][0] + 25
    assert after["calculator"][1] > before["calculator"][2]
    first, *_, last = calls_of(out)
    assert first < 0.8 and last > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_the_tool_it_does_not_get_there(seed, tmp_path):
    from covey.cli.verbs.quickstart import accuracy_line, make_tool_trainer

    trainer = make_tool_trainer(str(tmp_path / "run"), seed, has_tool=False, display="plain")
    trainer.train()

    assert accuracies(accuracy_line(trainer))["calculator"][2] < 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_alone_teaches_both_checkable_tasks(seed, tmp_path):
    _, _, before, after = quickstart("--seed", seed, "--out", tmp_path / "run")

    for task, (mean, _, high) in before.items():
        assert after[task][0] >= mean + 25
        assert after[task][1] > high


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_alone_teaches_to_see(seed, tmp_path):
    start = time.process_time()
    _, _, before, after = quickstart("--vision", "--seed", seed, "--out", tmp_path / "run")

    assert after["discs"][0] >= before["discs"][0] + 30
    assert after["discs"][1] > before["discs"][2]
    assert time.process_time() - start < 120


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_pictures_exchanged_it_does_not_get_there(seed, tmp_path):
    """What pays is chance to the end, and on its own pictures the policy is worse than the 31 % that it began with."""
    from covey.cli.verbs.quickstart import accuracy_line, make_vision_trainer

    trainer = make_vision_trainer(str(tmp_path / "run"), seed, is_shuffled=True, display="plain")
    trainer.train()
    name = "rewards/discs_solved/mean"
    paid = [row[name] for row in trainer.state.log_history if name in row][-90:]

    assert len(paid) == 90 and 0.04 < sum(paid) / 90 < 0.085
    assert accuracies(accuracy_line(trainer))["discs"][0] < 25
