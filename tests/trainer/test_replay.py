"""Replay in a run: who is trained on again, with what, and that a run stays a function of its settings."""

import json

import pytest
import torch

from covey.errors import CheckpointError, ConfigError
from covey.runs.record.reader import Run
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, config, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

SETTINGS = dict(
    learning_rate=3e-3,
    optim="adamw_torch",
    lr_scheduler_type="cosine",
    max_steps=6,
    per_device_train_batch_size=16,
    importance_sampling_mode="sequence_truncate",
    replay_min_ess=0.0,
)
AGAIN = {**SETTINGS, "replay_groups": 2}
VARIANTS = {
    "one step per rollout": dict(),
    "some are dropped": dict(replay_min_ess=0.9, learning_rate=2e-2),
    "steps and passes": dict(
        per_device_train_batch_size=8, steps_per_generation=2, num_iterations=2, max_steps=8
    ),
    "rounds of sampling": dict(
        per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=1
    ),
    "refills": dict(dynamic_sampling=True, dynamic_sampling_rounds=2),
    "a curriculum": dict(curriculum="exact"),
    "token_m2": dict(importance_sampling_mode="token_m2"),
    "a reference and a bonus": dict(beta=0.1, entropy_coef=0.01),
}


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 2) for ids in completion_ids]


def numbers(trainer):
    own = ("time/", "step_time", "memory/")
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{k: v for k, v in entry.items() if not k.startswith(own)} for entry in entries]


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", generation=MANY_ENDS)


def watched(trainer):
    """The samples of each rollout, in the order of training."""
    seen, build = [], trainer.updater.build_micro_batches

    def kept(samples, *more):
        seen.append(list(samples))
        return build(samples, *more)

    trainer.updater.build_micro_batches = kept
    return seen


def groups_of(samples, size=4):
    return [samples[i : i + size] for i in range(0, len(samples), size)]


# --- who is trained on again, with what -----------------------------------------------------------------------------------


def test_replayed_groups_take_places_of_fresh_ones_with_the_numbers_of_then(tmp_path, policy):
    recorder = Recorder(by_ids)
    trainer = make(policy, tmp_path / "run", recorder, rows(32), **AGAIN)
    seen = watched(trainer)
    trainer.train()
    assert [len(call["prompts"]) for call in recorder.calls] == [16, *([8] * 5)]
    first, places = {}, []
    for number, samples in enumerate(seen):
        groups, old = groups_of(samples), []
        assert len(groups) == 4
        for place, group in enumerate(groups):
            key = (group[0].prompt.row, tuple(s.completion for s in group))
            is_old = len(group[0].prompt.seed_key) == 3
            assert is_old == (key in first)
            old.append(place) if is_old else None
            if not is_old:
                first[key] = number, [s.advantage for s in group]
                continue
            then, before = first[key]
            assert 1 <= number - then <= 4 and group[0].prompt.seed_key[-1] == then
            assert any(before)
            factor = logged(trainer, "replay/weight")[number]
            assert [s.advantage for s in group] == pytest.approx([factor * a for a in before])
        assert old in ([[0, 2], [1, 3]] if number else [[]])
        places.append(tuple(old))
    assert len(set(places)) == 3  # no place is taken for good
    assert logged(trainer, "replay/share") == [0.0, *([0.5] * 5)]


def test_the_weight_is_the_share_of_sampled_groups_that_taught_something(tmp_path, policy):
    recorder = Recorder(by_ids)
    trainer = train(policy, tmp_path / "run", recorder, rows(32), **AGAIN, replay_age=2)
    taught = [
        [len(set(call["rewards"][i : i + 4])) > 1 for i in range(0, len(call["rewards"]), 4)]
        for call in recorder.calls
    ]
    for number in range(1, 6):
        known = [t for call in taught[max(0, number - 2) : number] for t in call]
        assert logged(trainer, "replay/weight")[number] == pytest.approx(sum(known) / len(known))
    assert any(not all(call) for call in taught)


def test_the_correction_of_an_old_sample_is_the_policy_now_over_the_policy_then(tmp_path, policy):
    """Gaps that are measured before a rollout are those of the update, and by a plain pass of the model."""
    trainer = make(policy, tmp_path / "run", by_ids, rows(32), **AGAIN)
    found, measure = [], trainer.updater.sequence_gaps

    def gaps(model, groups, *more):
        measured = measure(model, groups, *more)
        for group, own in zip(groups, measured, strict=True):
            for completion, gap in zip(group.completions, own, strict=True):
                ids = torch.tensor([[*group.prompt.ids, *completion.ids]])
                with torch.no_grad():
                    table = torch.log_softmax(trainer.model(input_ids=ids).logits[0].double(), -1)
                at = range(len(group.prompt.ids) - 1, ids.shape[1] - 1)
                now = sum(float(table[place, token]) for place, token in zip(at, completion.ids, strict=True))
                found.append((gap, now - sum(completion.plain_logprobs)))
        return measured

    trainer.updater.sequence_gaps = gaps
    trainer.train()
    assert len(found) == 5 * 2 * 4 and max(abs(a) for a, _ in found) > 0.05
    assert all(a == pytest.approx(b, abs=1e-4) for a, b in found)


def test_groups_that_the_policy_has_left_are_dropped_and_their_places_are_sampled(tmp_path, policy):
    recorder = Recorder(by_ids)
    settings = {**AGAIN, "replay_min_ess": 0.98, "learning_rate": 2e-2, "max_steps": 8}
    trainer = make(policy, tmp_path / "run", recorder, rows(32), **settings)
    seen = watched(trainer)
    trainer.train()
    shares, lost = logged(trainer, "replay/share"), logged(trainer, "replay/dropped")
    for samples, call, share in zip(seen, recorder.calls, shares, strict=True):
        assert len(call["prompts"]) == 16 * (1 - share)
        assert sum(len(g[0].prompt.seed_key) == 3 for g in groups_of(samples)) == 4 * share
    assert max(lost) > 0 and logged(trainer, "replay/ess")[-1] < 0.98
    buffer = trainer.rollouts.replay.buffer
    assert sum(r.informative for r in buffer.rollouts) > sum(len(r.places) for r in buffer.rollouts)
    assert all(set(r.own) == set(r.places) for r in buffer.rollouts)


# --- a run ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, policy, variant, stop):
    settings = {**AGAIN, **VARIANTS[variant], "save_strategy": "steps", "save_steps": stop}
    whole, rest = Recorder(by_ids), Recorder(by_ids)
    a = train(policy, tmp_path / "run", whole, rows(32), **settings)
    b = make(policy, tmp_path / "run", rest, rows(32), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
    assert same(weights(a), weights(b))
    assert numbers(a) == numbers(b)
    assert rest.all("prompts") == whole.all("prompts")[-len(rest.all("prompts")) :]
    assert a.rollouts.replay.buffer.rollouts == b.rollouts.replay.buffer.rollouts
    assert max(logged(a, "replay/share")) > 0


def test_without_groups_to_replay_a_run_is_what_it_was(tmp_path, policy):
    """A buffer whose groups are all too far away changes no bit: what it measures leaves no trace."""
    plain = train(policy, tmp_path / "plain", by_ids, rows(32), **{**SETTINGS, "replay_min_ess": 0.5})
    far = train(policy, tmp_path / "far", by_ids, rows(32), **{**AGAIN, "replay_min_ess": 1.0})
    assert max(logged(far, "replay/dropped")) == 1.0 and not any(logged(far, "replay/share"))
    assert same(weights(plain), weights(far))
    added = [{k: v for k, v in entry.items() if not k.startswith("replay/")} for entry in numbers(far)]
    assert added == numbers(plain)
    assert plain.rollouts.replay is None and not any(k.startswith("replay/") for k in numbers(plain)[0])


def test_a_run_that_begins_again_has_no_groups_of_the_one_before(tmp_path, policy):
    trainer = train(policy, tmp_path / "run", by_ids, rows(32), **AGAIN)
    trainer.train()
    assert logged(trainer, "replay/share")[-6:] == [0.0, *([0.5] * 5)]


def test_the_record_has_each_group_once(tmp_path, policy):
    recorder = Recorder(by_ids)
    train(policy, tmp_path / "run", recorder, rows(32), **AGAIN)
    (table,) = [t for t in [list(Run(tmp_path / "run").group_tables(["step", "total"]))] if t]
    recorded = [line["total"] for part in table for line in part.to_pylist()]
    assert recorded == recorder.all("rewards")


def test_any_cut_is_the_same_run(tmp_path, policy):
    whole = train(policy, tmp_path / "a", by_ids, rows(32), **AGAIN)
    cut = train(
        policy, tmp_path / "b", by_ids, rows(32),
        **{**AGAIN, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    )  # fmt: skip
    a, b = weights(whole), weights(cut)
    assert logged(whole, "replay/share") == logged(cut, "replay/share")
    assert all(torch.allclose(a[n], b[n], atol=2e-4) for n in a)


# --- what is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(async_lag=1), "async_lag=1 does not go with replay_groups=2"),
        (dict(group_allocation="grow", advantage_estimator="rloo"), "group_allocation='grow'"),
        (dict(beta=0.1, kl_in_reward=True), "kl_in_reward"),
        (dict(scale_rewards="batch"), "scale_rewards='batch'"),
        (dict(task_shares={"a": 0.5, "b": 0.5}), "task_shares="),
        (dict(task_weights="equal"), "task_weights='equal'"),
        (dict(multi_objective_aggregation="normalize_then_sum"), "normalize_then_sum"),
        (dict(advantage_estimator="reinforce_pp"), "reinforce_pp"),
        (dict(importance_sampling_correction=False), "importance_sampling_correction=False"),
        (
            dict(loss_type="vespo", importance_sampling_correction=False),
            "importance_sampling_correction=False",
        ),
        (dict(engine="vllm", engine_urls=["http://localhost:1"], top_k=5), "engine='vllm'"),
        (dict(replay_min_ess=1.5), "replay_min_ess"),
        (dict(replay_age=0), "replay_age"),
        (dict(replay_groups=-1), "replay_groups"),
        (dict(replay_groups=0, replay_age=2), "replay_age=2 has no effect"),
        (dict(replay_groups=0, replay_min_ess=0.1), "replay_min_ess=0.1 has no effect"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_settings_that_replay_does_not_go_with_are_refused_by_name(tmp_path, given, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        config(tmp_path, **{"replay_groups": 2, **given})
    config(tmp_path, replay_groups=2, loss_type="dppo", scale_rewards="none", curriculum="exact")


def test_old_groups_that_would_take_all_places_are_refused(tmp_path, policy):
    with pytest.raises(ConfigError, match=r"replay_groups is 2, .* takes 2 prompt\(s\)"):
        make(policy, tmp_path / "run", by_ids, rows(8), replay_groups=2)
    assert "up to 1 of the 2" in str(make(policy, tmp_path / "one", by_ids, rows(8), replay_groups=1).plan)


def test_groups_of_other_rewards_are_refused_at_a_resume_and_none_are_needed(tmp_path, policy):
    settings = {**AGAIN, "save_strategy": "steps", "save_steps": 2}
    train(policy, tmp_path / "run", Recorder(by_ids, "one"), rows(32), **settings)
    folder = tmp_path / "run" / "checkpoint-2"
    other = make(policy, tmp_path / "run", Recorder(by_ids, "two"), rows(32), **settings)
    with pytest.raises(CheckpointError, match=r"scored by other rewards than .*two"):
        other.train(resume_from_checkpoint=str(folder))
    file = folder / "covey" / "replay0.json"
    state = json.loads(file.read_text())
    for broken in ({**state, "rollouts": [{}]}, {**state, "ranks": 3}):
        file.write_text(json.dumps(broken))
        (folder / "covey.json").unlink(missing_ok=True)
        again = make(policy, tmp_path / "run", Recorder(by_ids, "one"), rows(32), **settings)
        with pytest.raises(CheckpointError):
            again.train(resume_from_checkpoint=str(folder))


def test_a_run_that_was_begun_without_goes_on_with_an_empty_buffer(tmp_path, policy):
    saved = dict(save_strategy="steps", save_steps=2)
    plain = {k: v for k, v in SETTINGS.items() if not k.startswith("replay")}
    train(policy, tmp_path / "run", by_ids, rows(32), **plain, **saved)
    trainer = make(policy, tmp_path / "run", by_ids, rows(32), **AGAIN, **saved)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert logged(trainer, "replay/share")[-4:] == [0.0, 0.5, 0.5, 0.5]
