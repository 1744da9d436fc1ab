"""A study of learning: worked numbers, a short arm, and a study that was ended goes on."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def numbers():
    return importlib.import_module("learning_numbers")


def curve(*values, every=100, seconds=1.0):
    return [
        {
            "tokens": n * every,
            "seconds": n * seconds,
            "step": n,
            "success": {"a": v},
            "count": {"a": 400},
        }
        for n, v in enumerate(values)
    ]


def test_the_rising_curve_pools_what_falls():
    assert numbers().rising([0.1, 0.5, 0.3, 0.6]) == pytest.approx([0.1, 0.4, 0.4, 0.6])
    assert numbers().rising([0.3, 0.2, 0.1]) == pytest.approx([0.2] * 3)


def test_an_arm_that_is_twice_as_quick_takes_half_the_tokens():
    base, arm = curve(0.0, 0.2, 0.4, 0.6, 0.8), curve(0.0, 0.4, 0.8, 0.8, 0.8)
    found = numbers().ratio({0: base, 1: base}, {0: arm, 1: arm})
    assert (found.mean, found.low, found.high, found.missed) == pytest.approx((0.5, 0.5, 0.5, 0))
    assert numbers().ratio({0: base}, {0: arm}, 0.5).mean == pytest.approx(0.5)
    assert numbers().ratio({0: base}, {1: arm}) is None


def test_mean_curves_have_one_ratio_and_an_interval_over_pairs_of_seeds():
    base, arm = curve(0.0, 0.2, 0.4, 0.6, 0.8), curve(0.0, 0.4, 0.8, 0.8, 0.8)
    found = numbers().of_means({0: base, 1: base}, {0: arm, 1: arm, 7: base})
    assert (found.mean, found.low, found.high, found.missed) == pytest.approx((0.5, 0.5, 0.5, 0))
    mixed = numbers().of_means({0: base, 1: base}, {0: arm, 1: base}, 0.5)
    # the mean of the arm has 0.4 at 100 of 150 tokens of the way: 0.3 at 100, 0.6 at 200
    assert mixed.mean == pytest.approx(136 / 200, abs=0.02) and mixed.low == pytest.approx(0.5)
    assert mixed.high == pytest.approx(1.0)
    late = numbers().of_means({0: base}, {0: curve(0.0, 0.1, 0.1, 0.1, 0.1)})
    assert late.missed == 1 and late.mean == 1.0


def test_a_place_between_two_points_is_on_a_straight_line():
    assert numbers().reached(curve(0.0, 0.2, 0.6), 0.3) == pytest.approx(125)
    assert numbers().reached(curve(0.0, 0.2, 0.6), 0.7) is None


def test_what_a_token_takes_is_the_whole_run_by_its_tokens():
    base, arm = (
        curve(0.0, 0.4, 0.8),
        curve(0.0, 0.1, every=200, seconds=8.0),
    )  # 2 s for 200 tokens, 8 s for 200
    found = numbers().per_token({0: base, 1: base}, {0: arm, 1: arm, 2: base}, "seconds")
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((4.0, 4.0, 4.0, 2))
    assert numbers().per_token({0: base}, {0: arm}) is None  # files of before do not know the processor's


def test_an_arm_that_never_arrives_is_a_lower_bound():
    found = numbers().ratio({0: curve(0.0, 0.4, 0.8)}, {0: curve(0.0, 0.1, 0.2)})
    assert found.missed == 1 and found.mean == pytest.approx(1.0) and str(found).startswith("≥ 1.00")


def test_the_interval_is_students_over_logarithms():
    base = curve(0.0, 0.4, 0.8)
    found = numbers().ratio({0: base, 1: base}, {0: curve(0.0, 0.8), 1: base})  # ratios 0.5 and 1
    # mean of the logarithms -0.34657, deviation 0.49013, t(1) 12.706: half width 4.4036
    assert found.mean == pytest.approx(0.7071, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((0.00865, 57.80), rel=1e-3)


def test_the_mean_success_is_the_area_up_to_the_bases_tokens():
    assert numbers().height(curve(0.0, 1.0, 1.0), 200) == pytest.approx(0.75)
    assert numbers().height(curve(0.0, 1.0), 200) == pytest.approx(0.75)  # the last point holds
    assert numbers().height(curve(0.0, 1.0, 0.0), 150) == pytest.approx((0.5 * 100 + 0.75 * 50) / 150)


def test_a_run_gives_up_where_all_its_last_points_are_clearly_below():
    base = curve(0.2, 0.4, 0.6, 0.7)
    assert numbers().falls_behind(curve(0.2, 0.1, 0.1, 0.1), base)
    assert not numbers().falls_behind(curve(0.2, 0.4, 0.1, 0.1), base)  # the first of the three is not
    assert not numbers().falls_behind(curve(0.2, 0.1, 0.1), base)  # too few
    assert not numbers().falls_behind(curve(0.2, 0.39, 0.59, 0.69), base)


def test_an_arm_is_hopeless_after_two_seeds_that_never_arrive():
    base, low = curve(0.0, 0.4, 0.8), curve(0.0, 0.1, 0.2)
    assert not numbers().is_hopeless({0: base}, {0: low})
    assert numbers().is_hopeless({0: base, 1: base}, {0: low, 1: low})
    assert not numbers().is_hopeless({0: base, 1: base}, {0: low, 1: base})


def test_a_short_study_is_taken_resumed_and_held_to_its_settings(tmp_path, monkeypatch, capsys):
    study, run = importlib.import_module("learning"), importlib.import_module("learning_run")
    taken = []

    def here(command, env, check):
        case = json.loads(Path(command[2]).read_text())
        taken.append((case["settings"].get("learning_rate"), case["seed"]))
        Path(command[3]).write_text(json.dumps(run.run(case)))

    monkeypatch.setattr(study, "subprocess", SimpleNamespace(run=here))
    short = ["num_generations=2", "per_device_train_batch_size=24", "gradient_accumulation_steps=1"]
    options = [
        "--tasks", "countdown", "--seeds", "0", "--steps", "2", "--held-out", "4", "--every", "100",
        "--rows", "20", "--set", *short, "max_completion_length=16",
    ]  # fmt: skip

    def go(*more):
        monkeypatch.setattr(sys, "argv", ["learning.py", str(tmp_path), *options, *more])
        study.main()

    go()
    points = json.loads((tmp_path / "countdown" / "plain" / "0.json").read_text())["points"]
    assert [p["step"] for p in points] == [0, 1, 2]
    assert 24 * 2 <= points[2]["tokens"] <= 24 * 2 * 16
    assert points[0]["count"] == {"countdown": 4} and 0 == points[0]["processor"] < points[2]["processor"]
    go("--arm", "still", "learning_rate=0.0")
    assert taken == [(None, 0), (0.0, 0)]  # the first was there
    still = json.loads((tmp_path / "countdown" / "still" / "0.json").read_text())["points"]
    assert still[0]["success"] == still[2]["success"] == points[0]["success"]  # the same problems and numbers
    assert "still" in capsys.readouterr().out
    assert "<polyline" in (tmp_path / "study.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="learning_rate"):
        go("--arm", "still", "learning_rate=0.5")
