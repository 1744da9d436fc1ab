"""Groups without a signal are replaced by fresh prompts; the rest of the run is what it would have been."""

import pytest
import torch
from datasets import Dataset

from covey.errors import ConfigError
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, logged, make, same, train, weights

pytestmark = pytest.mark.any_version

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", max_steps=4, dynamic_sampling=True)


def puzzles(count=16):
    """Every second prompt is hopeless: all its completions score 0."""
    return Dataset.from_dict(
        {"prompt": [f"say {i}" for i in range(count)], "hopeless": [i % 2 == 0 for i in range(count)]}
    )


def half_hopeless(completion_ids, hopeless, **_):
    return [0.0 if h else float(sum(ids) % 5) for ids, h in zip(completion_ids, hopeless, strict=True)]


def rows_trained(trainer):
    """Groups of each step's micro-batches, by their advantages."""
    return [float(b.advantages.abs().max()) for b in trainer.updater.batches]


@pytest.mark.parametrize("stream", [False, True])
def test_every_step_is_full_of_groups_with_a_signal(tmp_path, stream):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    dataset = puzzles(40).to_iterable_dataset() if stream else puzzles(40)
    trainer = make(folder, tmp_path / "run", half_hopeless, dataset, **SETTINGS, dynamic_sampling_rounds=12)
    seen = []

    def step(model, batches, *more):
        seen.append(list(batches))
        return original(model, batches, *more)

    original = trainer.updater.prepare
    trainer.updater.prepare = step
    trainer.train()
    for batches in seen:
        groups = {g for b in batches for g in b.groups}
        signal = {g for b in batches for g, a in zip(b.groups, b.advantages.tolist(), strict=True) if a}
        assert signal == groups and len(groups) == 2
    replaced = logged(trainer, "dynamic_sampling/replaced_share")
    assert max(replaced) > 0 and all(
        s + r == pytest.approx(1.0)
        for s, r in zip(logged(trainer, "dynamic_sampling/signal_share"), replaced, strict=True)
    )


def test_what_stays_without_a_signal_counts_in_the_denominator(tmp_path):
    """All prompts are hopeless but one: the step holds two groups, one of them with advantages of 0."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    dataset = Dataset.from_dict(
        {"prompt": [f"say {i}" for i in range(4)], "hopeless": [False, True, True, True]}
    )
    plain = Recorder(lambda ids: [0.0] * len(ids))
    trainer = make(folder, tmp_path / "a", [half_hopeless, plain], dataset, **{**SETTINGS, "max_steps": 1})
    trainer.train()
    batch = trainer.updater.batches[0]
    assert batch.num_rows + batch.num_dropped == 8


def test_without_replacements_the_run_is_the_same(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)

    def reward(completion_ids, **_):
        return [float(sum(ids) % 7) for ids in completion_ids]

    on = train(folder, tmp_path / "on", reward, puzzles(), **SETTINGS)
    off = train(folder, tmp_path / "off", reward, puzzles(), **{**SETTINGS, "dynamic_sampling": False})
    if max(logged(on, "dynamic_sampling/replaced_share")) == 0:
        assert same(weights(on), weights(off))
    else:
        pytest.fail("the reward was meant to give every group a spread")


@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_run_draws_the_same_replacements(tmp_path, stream):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}

    def dataset():
        return puzzles().to_iterable_dataset() if stream else puzzles()

    whole = train(folder, tmp_path / "run", half_hopeless, dataset(), **settings)
    rest = make(folder, tmp_path / "run", half_hopeless, dataset(), **settings)
    rest.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert same(weights(whole), weights(rest))


def test_shaping_rewards_do_not_decide(tmp_path):
    def length(completion_ids, **_):
        return [-len(ids) / 100 for ids in completion_ids]

    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = train(
        folder,
        tmp_path / "run",
        [half_hopeless, length],
        puzzles(),
        **SETTINGS,
        dynamic_sampling_rewards=["half_hopeless"],
    )
    assert min(logged(trainer, "dynamic_sampling/signal_share")) < 1
    with pytest.raises(ConfigError, match=r"'nobody'.*'half_hopeless', 'length'"):
        make(
            folder,
            tmp_path / "run",
            [half_hopeless, length],
            puzzles(),
            **SETTINGS,
            dynamic_sampling_rewards=["nobody"],
        )


def test_batch_statistics_are_those_of_the_groups_that_are_trained_on(tmp_path):
    """With batch scaling, advantages divided by the batch's deviation have that of the kept groups' rewards."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = make(
        folder,
        tmp_path / "run",
        half_hopeless,
        puzzles(),
        **{**SETTINGS, "max_steps": 1, "scale_rewards": "batch", "dynamic_sampling_rounds": 6},
    )
    kept = []
    original = trainer.scorer.add_advantages

    def add_advantages(groups):
        scored, metrics = original(groups)
        kept.extend(scored)
        return scored, metrics

    trainer.scorer.add_advantages = add_advantages
    trainer.train()
    rewards = torch.tensor([s.totals for s in kept])
    want = (rewards - rewards.mean(1, keepdim=True)) / (rewards.flatten().std() + 1e-4)
    assert torch.allclose(torch.tensor([s.advantages for s in kept]), want, atol=1e-5)
