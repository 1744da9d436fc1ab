"""Time: how rehearsals grow, and how a step of the run is foreseen from them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from covey.forecast.costs import longest_length, mean_length, relative_cost
from covey.forecast.rehearsal import Rehearsed, Scale, following, foreseen, next_scale, rehearse
from covey.plan import make_plan
from covey.recipes import Recipe
from tests.tiny import tiny_policy


def done(groups=2, tokens=16, sample=1.0, score=0.1, update=2.0, mean=16.0, cut=1.0, prompt=0.0):
    return Rehearsed(Scale(groups, tokens), sample, score, update, 100.0, mean, cut, prompt)


def plan(**given):
    return make_plan(**{"group_size": 4, "micro_batch": 8, "accumulation": 4, "num_prompts": 100, **given})


def test_a_step_that_was_rehearsed_in_full_is_not_scaled():
    found = foreseen([done(), done(groups=8, tokens=64, mean=20.0, cut=0.25)], Scale(8, 64), plan())
    assert (found.sample, found.score, found.update) == (1.0, 0.1, 2.0) and not found.is_scaled
    assert found.low == found.high == found.seconds


def test_one_rehearsal_is_scaled_in_proportion():
    # 8 of 2 prompts: 4 times; 64 of 16 tokens, none ended: 4 times; rewards do not depend on tokens.
    found = foreseen([done()], Scale(8, 64), plan())
    assert (found.sample, found.update) == (16.0, 32.0) and found.score == pytest.approx(0.4)
    assert found.seconds == found.high == pytest.approx(48.4) and found.is_scaled
    assert found.low == pytest.approx(3.1)


costs = st.floats(0.0, 10.0)


def machine(groups, tokens, mean, cut, fixed, growing):
    """What a step takes where costs are fixed per round of decoding and per optimizer step, and grow with tokens."""
    rounds, written = tokens, groups * 4 * mean
    return done(
        groups,
        tokens,
        sample=fixed[0] * rounds + growing[0] * written,
        score=fixed[1] + growing[1] * groups * 4,
        update=fixed[2] + growing[2] * (written + groups * 30),
        mean=mean,
        cut=cut,
        prompt=30.0,
    )


@given(
    st.tuples(costs, costs, costs), st.tuples(costs, costs, costs), st.integers(2, 16), st.floats(0.0, 0.9)
)
def test_fixed_costs_are_told_from_growing_ones(fixed, growing, times, ended):
    """Everything is cut or ends late enough to have as many rounds: only the number of prompts is new."""
    assume(min(a + b for a, b in zip(fixed, growing, strict=True)) > 0.01)
    small = [machine(n, 16, 16.0 - 8 * ended, 1 - ended, fixed, growing) for n in (2, 8)]
    large = machine(8 * times, 16, 16.0 - 8 * ended, 1 - ended, fixed, growing)
    settings = plan(accumulation=4 * times, num_prompts=1000)
    found = foreseen(small, Scale(8 * times, 16), settings)
    for phase in ("sample", "score", "update"):
        assert getattr(found, phase) == pytest.approx(getattr(large, phase), rel=0.02), phase
    assert found.low * 0.999 <= large.seconds <= found.high * 1.001


@given(st.tuples(costs, costs, costs), st.tuples(costs, costs, costs), st.integers(1, 8), st.floats(0.0, 1.0))
def test_a_step_is_within_the_range_however_long_completions_become(fixed, growing, times, further):
    small = [machine(2, 16, 12.0, 0.5, fixed, growing), machine(8, 16, 12.0, 0.5, fixed, growing)]
    # Those that were cut run on by some of what the limit allows: mean 12 at least, 12 + 0.5 × 48 at most.
    large = machine(8 * times, 16 + 48 * further, 12 + 24 * further, 0.1, fixed, growing)
    found = foreseen(small, Scale(8 * times, 64), plan(accumulation=4 * times, num_prompts=1000))
    assert found.low * 0.999 <= large.seconds <= found.high * 1.001 + 1e-12
    assert found.low * 0.999 <= found.seconds <= found.high * 1.001 + 1e-12


def test_completions_that_were_cut_end_as_the_others_do():
    # 3 of 4 ended, 30 tokens each on average: one in 40 tokens is the last; at most 1000: 40, at most 60: 40 (1 - 0.975^60).
    assert mean_length(30.0, 0.25, 10_000) == pytest.approx(40.0)
    assert mean_length(30.0, 0.25, 60) == pytest.approx(40 * (1 - 0.975**60))
    assert mean_length(16.0, 1.0, 64) == 64.0
    assert mean_length(20.0, 0.0, 64) == 20.0
    assert longest_length(16.0, 1.0, 64, 8) == 64.0
    assert 100 < longest_length(30.0, 0.25, 1000, 16) < 160  # 40 × (ln 16 + 0.577) = 134


def test_lengths_that_are_expected_make_a_step_shorter_than_the_limit():
    found = foreseen([done(groups=8, mean=12.0, cut=0.5)], Scale(8, 64), plan())
    assert found.low < found.seconds < found.high
    assert found.high == pytest.approx(4 * 1.0 + 0.1 + 3 * 2.0)  # rounds 64 of 16, tokens 36 of 12


def test_noise_that_makes_a_cost_negative_is_taken_for_none():
    assert relative_cost([((1.0, 1.0), 1.0), ((1.0, 4.0), 5.0)], (1.0, 8.0)) == pytest.approx(2.0)
    assert relative_cost([((1.0, 1.0), 1.0), ((1.0, 4.0), 0.9)], (1.0, 8.0)) == pytest.approx(1.0)


def test_what_is_sampled_once_for_several_steps_is_shared():
    several = plan(steps_per_generation=8)  # two steps per round of sampling: 16 prompts
    found = foreseen([done(groups=8, tokens=64)], Scale(16, 64), several, iterations=2)
    assert found.sample == pytest.approx(1.0 * 2 / 4) and found.update == 2.0


def test_processes_share_the_work():
    found = foreseen([done(groups=8, tokens=64)], Scale(16, 64), plan(ranks=2))
    assert (found.sample, found.update) == (1.0, 2.0)


def test_the_second_rehearsal_has_more_prompts_where_time_allows():
    first = done(sample=0.1, update=0.1, score=0.0)
    assert following([first], Scale(32, 256), 2, left=60.0) == Scale(8, 16)
    assert following([first], Scale(4, 256), 2, left=60.0) == Scale(4, 16)
    assert following([first], Scale(32, 256), 2, left=3.0).groups == 2  # it would take 2.4 s
    assert following([first, first], Scale(32, 256), 2, left=60.0).tokens > 16
    assert following([first], Scale(32, 256), 2, left=0.0) is None
    assert following([first], first.scale, 2, left=60.0) is None


def test_rehearsals_grow_in_length_first_and_reach_the_step():
    full, now, seen = Scale(32, 256), done(sample=0.1, update=0.1, score=0.0), []
    while now.scale != full:
        following = next_scale(now, full, 2, 1.0)
        assert following.groups >= now.scale.groups and following.tokens >= now.scale.tokens
        assert following != now.scale and following.groups % 2 == 0
        seen.append(following)
        now = done(groups=following.groups, tokens=following.tokens, sample=0.5, update=0.5)
    assert seen[0].groups == 2 and seen[-1] == full and len(seen) < 12


def test_a_recipe_is_rehearsed_by_the_trainer_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy").mkdir()
    sections = {
        "model": tiny_policy(tmp_path / "policy"),
        "data": {"generator": "countdown", "arguments": {"count": 16}},
        "rewards": ["covey.tasks:countdown_reward"],
        "train": {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "max_completion_length": 24,
            "max_steps": 50,
            "use_cpu": True,
        },
    }
    recipe = Recipe.of(sections, "test")
    found = rehearse(recipe, recipe.plan(), budget=60.0)
    assert found.rehearsed.scale == found.full == Scale(4, 24)
    assert min(found.sample, found.update) > 0 and found.rehearsed.peak_mb > 50
    assert capsys.readouterr().out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy"]
    assert recipe.config.max_completion_length == 24
