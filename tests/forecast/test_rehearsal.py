"""Time: how rehearsals grow, and how one is scaled to a step of the run."""

import pytest

from covey.forecast.rehearsal import Rehearsed, Scale, next_scale, rehearse, scaled
from covey.plan import make_plan
from covey.recipes import Recipe
from tests.models import tiny_policy


def done(groups=2, tokens=16, sample=1.0, score=0.1, update=2.0, mean=16.0, cut=1.0):
    return Rehearsed(Scale(groups, tokens), sample, score, update, 100.0, mean, cut)


def plan(**given):
    return make_plan(**{"group_size": 4, "micro_batch": 8, "accumulation": 4, "num_prompts": 100, **given})


def test_a_step_that_was_rehearsed_in_full_is_not_scaled():
    found = scaled(done(groups=8, tokens=64, mean=20.0, cut=0.25), Scale(8, 64), plan())
    assert (found.sample, found.score, found.update) == (1.0, 0.1, 2.0) and not found.is_scaled


def test_prompts_and_tokens_scale():
    # 8 of 2 prompts: 4 times; 64 of 16 tokens: 4 times; rewards do not depend on tokens.
    found = scaled(done(), Scale(8, 64), plan())
    assert (found.sample, found.update) == (16.0, 32.0) and found.score == pytest.approx(0.4)
    assert found.seconds == pytest.approx(48.4) and found.is_scaled


def test_completions_that_ended_grow_no_longer():
    # Half of them were cut at 16 and are taken to reach 64, the others have 8: (8 + 64) / 2 = 36 of 12 tokens.
    small = done(groups=8, mean=12.0, cut=0.5)
    assert scaled(small, Scale(8, 64), plan(), by_rounds=False).sample == pytest.approx(3.0)
    assert scaled(small, Scale(8, 64), plan()).sample == pytest.approx(4.0)
    assert scaled(small, Scale(8, 64), plan()).update == pytest.approx(6.0)
    assert scaled(done(groups=8, mean=8.0, cut=0.0), Scale(8, 64), plan()).sample == 1.0


def test_what_is_sampled_once_for_several_steps_is_shared():
    several = plan(steps_per_generation=8)  # two steps per round of sampling: 16 prompts
    found = scaled(done(groups=8, tokens=64), Scale(16, 64), several, iterations=2)
    assert found.sample == pytest.approx(1.0 * 2 / 4) and found.update == 2.0


def test_processes_share_the_work():
    found = scaled(done(groups=8, tokens=64), Scale(16, 64), plan(ranks=2))
    assert (found.sample, found.update) == (1.0, 2.0)


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
