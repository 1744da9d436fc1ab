"""A curriculum in a run: what is drawn, what it weighs in the loss, and that a run stays a function of its settings."""

import itertools
import json

import numpy as np
import pytest
from datasets import Dataset

from covey.errors import CheckpointError, ConfigError, DatasetError
from covey.score.advantages import group_advantages
from covey.score.pass_rates import Evidence
from covey.trainer.curriculum import Curriculum
from covey.types import Completion, Prompt
from covey.update.micro_batch import build_micro_batches
from covey.update.reduction import Reduction
from covey.update.samples import Sample
from tests.tiny import tiny_policy
from tests.trainer.elsewhere import Elsewhere
from tests.trainer.harness import MANY_ENDS, Recorder, config, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", lr_scheduler_type="cosine", max_steps=6)
VARIANTS = {
    "one step per rollout": dict(),
    "biased, steps and passes": dict(
        curriculum="biased",
        per_device_train_batch_size=4,
        steps_per_generation=2,
        num_iterations=2,
        max_steps=8,
    ),
    "refills": dict(dynamic_sampling=True, dynamic_sampling_rounds=2),
    "ahead": dict(async_lag=1),
    "refills ahead": dict(async_lag=2, dynamic_sampling=True, dynamic_sampling_rounds=2),
}


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 2) for ids in completion_ids]


def numbers(trainer):
    own = ("time/", "step_time", "memory/", "async/")
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{k: v for k, v in entry.items() if not k.startswith(own)} for entry in entries]


def prompts(recorder):
    return [call["prompts"][::4] for call in recorder.calls]


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", generation=MANY_ENDS)


# --- the estimator ----------------------------------------------------------------------------------------------------------

LENGTHS, FEATURES = {"a": 1, "b": 3}, np.array([[1.0, 0.2], [-0.5, 1.0], [0.3, -2.0], [2.0, 0.5]])
"""What a completion can be, with its tokens; and the features of four prompts, whose policy says "a" with σ(θ x)."""
REWARDS = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 0.5}, {"a": 0.2, "b": 1.0}]


def mean_gradient(drawn, draw_weights, reduction, scale):
    """The mean of the estimator over all completions, two of each drawn prompt, by the code that trains; and of its weights."""
    theta, total, tokens = np.array([0.4, -0.3]), np.zeros(2), 0.0
    says_a = 1 / (1 + np.exp(-FEATURES @ theta))
    pairs = list(itertools.product("ab", repeat=2))
    for outcome in itertools.product(pairs, repeat=len(drawn)):
        chance, samples, slopes = 1.0, [], []
        for group, (prompt, said) in enumerate(zip(drawn, outcome, strict=True)):
            own = group_advantages(
                np.array([REWARDS[prompt][c] for c in said]), np.zeros(2, dtype=int), scale
            )
            shown = Prompt("", (1,), seed_key=(prompt, 0), weight=draw_weights[prompt])
            for c, advantage in zip(said, own, strict=True):
                chance *= says_a[prompt] if c == "a" else 1 - says_a[prompt]
                slope = (1 - says_a[prompt] if c == "a" else -says_a[prompt]) * FEATURES[prompt]
                ids = (5,) * LENGTHS[c]
                completion = Completion(ids, (-1.0,) * len(ids), "", "stop")
                samples.append(Sample(shown, completion, float(advantage), group))
                slopes.append(float(advantage) * slope * len(ids))
        rows_of = [range(len(samples))]
        (batch,) = build_micro_batches(samples, rows_of, 1, Reduction(reduction, 3), lambda own: [own])
        own = batch.weights.double().numpy()
        total += chance * sum(w * slope for w, slope in zip(own, slopes, strict=True))
        tokens += chance / float(own[0] / draw_weights[drawn[0]])
    return total, tokens


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("reduction", ["grpo", "dr_grpo", "luspo", "prompt_mean"])
def test_the_mean_of_an_exact_curriculum_is_the_gradient_of_all_prompts(reduction, scale):
    """Over all pairs of four prompts that systematic sampling can draw, and all their completions: exact, no Monte Carlo."""
    from covey.sample.unequal_draw import chances, weights
    from tests.sample.test_unequal_draw import Given

    chance = chances(np.array([0.1, 4.0, 1.0, 2.0]), 2, 0.15)
    weight = weights(chance, 2)
    alike = np.mean([mean_gradient([i], np.ones(4), reduction, scale)[0] for i in range(4)], axis=0)

    def drawn_mean(weight):
        found, known = np.zeros(2), {}
        orders = list(itertools.permutations(range(4)))
        for order in orders:
            cuts = np.unique(np.concatenate([[0.0, 1.0], np.cumsum(chance[list(order)]) % 1.0]))
            for low, high in itertools.pairwise(cuts):
                from covey.sample.unequal_draw import drawn

                pair = tuple(sorted(drawn(chance, 2, Given(order, (low + high) / 2))))
                if pair not in known:
                    known[pair] = mean_gradient(list(pair), weight, reduction, scale)[0]
                found += (high - low) / len(orders) * known[pair]
        return found

    assert drawn_mean(weight) == pytest.approx(alike, rel=1e-5)
    assert drawn_mean(np.ones(4)) != pytest.approx(alike, rel=0.05)
    assert drawn_mean(1 / weight) != pytest.approx(alike, rel=0.05)


def test_a_mean_over_tokens_counts_them_as_equal_chances_would():
    """dapo divides a weighed sum by a weighed count of tokens: both have the means that equal chances give."""
    weight = np.array([0.5, 2.0, 1.0, 1.0])
    own = mean_gradient([0], weight, "dapo", "none"), mean_gradient([0], np.ones(4), "dapo", "none")
    assert own[0][0] == pytest.approx(own[1][0])  # of one prompt alone the weight cancels
    assert own[0][1] == pytest.approx(0.5 * own[1][1])  # and the tokens are counted half
    both = mean_gradient([0, 1], weight, "dapo", "none")[1]
    each = [mean_gradient([i], np.ones(4), "dapo", "none")[1] for i in (0, 1)]
    assert both == pytest.approx(weight[0] * each[0] + weight[1] * each[1], rel=1e-5)


# --- a run --------------------------------------------------------------------------------------------------------------------


def half_hopeless(completion_ids, hopeless, **_):
    return [0.0 if h else float(sum(ids) % 2) for ids, h in zip(completion_ids, hopeless, strict=True)]


def puzzles(count=16):
    return Dataset.from_dict(
        {"prompt": [f"say {i}" for i in range(count)], "hopeless": [i % 2 == 0 for i in range(count)]}
    )


def test_prompts_that_teach_are_drawn_more_often_and_none_is_forgotten(tmp_path, policy):
    settings = {**SETTINGS, "learning_rate": 0.0, "max_steps": 60, "curriculum": "biased"}
    trainer = train(policy, tmp_path / "run", half_hopeless, puzzles(), **settings, curriculum_half_life=1e6)
    passes, failures = trainer.rollouts.curriculum.memory.posterior(60)
    draws = np.zeros(16)
    for number in range(1000, 1400):
        draws += np.bincount(trainer.rollouts.curriculum.draw(number, 2).rows, minlength=16)
    assert draws[::2].sum() < 0.5 * draws[1::2].sum()  # the even ones are hopeless
    assert draws.min() >= 0.5 * 0.2 * draws.sum() / 16
    assert (passes / (passes + failures))[::2].max() < 0.2
    assert min(logged(trainer, "curriculum/effective_prompts")) < 14
    assert logged(trainer, "curriculum/unseen_share")[0] == 1.0
    assert logged(trainer, "curriculum/largest_weight") == [1.0] * 60


def test_an_exact_curriculum_weighs_groups_by_their_chances(tmp_path, policy):
    trainer = make(
        policy, tmp_path / "run", half_hopeless, puzzles(), **SETTINGS, curriculum="exact", loss_type="grpo"
    )
    seen, build = [], trainer.updater.build_micro_batches

    def kept(samples, *more):
        batches = build(samples, *more)
        seen.append((samples, batches))
        return batches

    trainer.updater.build_micro_batches = kept
    trainer.train()
    found = set()
    for samples, batches in seen:
        for batch in batches:
            for row, w in zip(batch.rows, batch.weights.tolist(), strict=True):
                sample = samples[row]
                assert w * 8 * len(sample.completion.ids) == pytest.approx(sample.prompt.weight)
                found.add(round(sample.prompt.weight, 6))
    assert len(found) > 3 and max(found) <= 1 / 0.2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, policy, variant, stop):
    settings = {
        **SETTINGS,
        "curriculum": "exact",
        **VARIANTS[variant],
        "save_strategy": "steps",
        "save_steps": stop,
    }
    whole, rest = Recorder(by_ids), Recorder(by_ids)
    a = train(policy, tmp_path / "run", whole, rows(16), **settings)
    b = make(policy, tmp_path / "run", rest, rows(16), **settings)
    b.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
    assert same(weights(a), weights(b))
    assert prompts(rest) == prompts(whole)[len(whole.calls) - len(rest.calls) :]
    assert numbers(a) == numbers(b)
    states = [t.rollouts.curriculum.memory.state() for t in (a, b)]
    assert states[0] == states[1]


def test_a_run_that_begins_again_knows_nothing_of_the_one_before(tmp_path, policy):
    settings = {**SETTINGS, "curriculum": "exact", "curriculum_half_life": 1e9}
    trainer = train(policy, tmp_path / "run", by_ids, rows(16), **settings)
    assert trainer.rollouts.curriculum.memory.counts.sum() == pytest.approx(6 * 8)
    trainer.train()
    assert trainer.rollouts.curriculum.memory.counts.sum() == pytest.approx(6 * 8)


def test_the_memory_of_a_rollout_is_of_those_trained_on_before_it_began(tmp_path, policy):
    """With a lag of 1, rollout 2 begins when rollout 1 is due: it knows of rollout 0 alone, however late rewards are."""
    known = {}

    def watched(trainer):
        curriculum = trainer.rollouts.curriculum
        draw, learn, learned = curriculum.draw, curriculum.learn, []

        def drawing(number, size):
            known.setdefault(number, list(learned))
            return draw(number, size)

        def learning(number, of_ranks):
            learned.append(number)
            learn(number, of_ranks)

        curriculum.draw, curriculum.learn = drawing, learning
        trainer.train()
        return trainer

    one, two = Recorder(by_ids), Recorder(by_ids)
    made = {**SETTINGS, "curriculum": "exact", "async_lag": 1}
    a = watched(make(policy, tmp_path / "a", one, rows(16), **made))
    assert known == {0: [], 1: [], **{n: list(range(n - 1)) for n in range(2, 6)}}
    b = make(policy, tmp_path / "b", two, rows(16), **made)
    b.engine = Elsewhere(b.engine, delay=0.05)
    watched(b)
    assert prompts(one) == prompts(two) and same(weights(a), weights(b))


def test_evaluation_is_never_drawn_from_it_and_leaves_no_trace(tmp_path, policy):
    evaluated = dict(
        eval_dataset=rows(3), eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=100
    )
    one, two = Recorder(by_ids), Recorder(by_ids)
    a = train(policy, tmp_path / "a", one, rows(16), **SETTINGS, curriculum="exact")
    b = train(policy, tmp_path / "b", two, rows(16), **SETTINGS, **evaluated, curriculum="exact")
    assert same(weights(a), weights(b))
    assert a.rollouts.curriculum.memory.state() == b.rollouts.curriculum.memory.state()
    evaluations = [p for p, call in zip(prompts(two), two.calls, strict=True) if len(call["ids"]) == 12]
    assert evaluations == [list(rows(3)["prompt"])] * len(evaluations) and evaluations


def test_refills_are_remembered(tmp_path, policy):
    recorder = Recorder(by_ids)
    refills = dict(dynamic_sampling=True, dynamic_sampling_rounds=3, curriculum_half_life=1e9)
    trainer = train(policy, tmp_path / "run", recorder, rows(6), **SETTINGS, curriculum="exact", **refills)
    assert len(recorder.calls) > 6
    assert trainer.rollouts.curriculum.memory.counts.sum() == pytest.approx(len(recorder.all("ids")))


def test_a_prompt_that_is_drawn_again_has_random_numbers_of_its_own(tmp_path, policy):
    few = Dataset.from_dict({"prompt": ["say a", "say b", "say c"]})
    refills = dict(dynamic_sampling=True, dynamic_sampling_rounds=3)
    trainer = make(policy, tmp_path / "run", by_ids, few, curriculum="exact", **refills)
    curriculum = trainer.rollouts.curriculum
    (((own, fresh),),) = curriculum.rollouts(trainer, [curriculum.draw(0, 2)])
    keys = [prompt.seed_key for prompt in (*own, *fresh)]
    assert len(keys) == 8 == len(set(keys))


# --- an earlier run -------------------------------------------------------------------------------------------------------------


def test_an_earlier_run_says_what_its_prompts_taught(tmp_path, policy):
    still = {**SETTINGS, "learning_rate": 0.0, "max_steps": 8}
    before = train(policy, tmp_path / "before", half_hopeless, puzzles(), **still)
    assert before.rollouts.curriculum is None
    moved = puzzles().select([*range(8, 16), *range(8)])  # the same rows in another order
    given = dict(curriculum="biased", curriculum_from=str(tmp_path / "before"))
    trainer = make(policy, tmp_path / "run", half_hopeless, moved, **still, **given)
    memory = trainer.rollouts.curriculum.memory
    assert memory.seen.all()  # 8 steps of two prompts: an epoch
    passes, failures = memory.posterior(0)
    assert (passes / (passes + failures))[::2].max() < 0.2
    assert np.unique(memory.at).tolist() == list(range(-8, 0))


def test_a_run_on_other_prompts_is_refused(tmp_path, policy):
    train(policy, tmp_path / "before", half_hopeless, puzzles(), **SETTINGS)
    given = dict(curriculum="biased", curriculum_from=str(tmp_path / "before"))
    with pytest.raises(ConfigError, match="none of the prompts"):
        make(policy, tmp_path / "run", by_ids, rows(8), **given)


@pytest.mark.parametrize("texts", ["none", None])
def test_a_run_that_cannot_be_known_again_is_refused(tmp_path, policy, texts):
    if texts:
        train(policy, tmp_path / "before", half_hopeless, puzzles(), **SETTINGS, record_completions=texts)
    with pytest.raises(ConfigError, match="curriculum_from"):
        make(
            policy,
            tmp_path / "run",
            half_hopeless,
            puzzles(),
            curriculum="exact",
            curriculum_from=str(tmp_path / "before"),
        )


# --- what does not go together ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (dict(curriculum="exact", scale_rewards="batch"), "scale_rewards='batch'"),
        (dict(curriculum="exact", multi_objective_aggregation="normalize_then_sum"), "normalize_then_sum"),
        (dict(curriculum="exact", advantage_estimator="reinforce_pp"), "reinforce_pp"),
        (dict(curriculum="exact", loss_type="kl_cov"), "kl_cov"),
        (dict(curriculum="exact", loss_type="bnpo"), "bnpo"),
        (dict(curriculum="exact", top_entropy_quantile=0.5), "top_entropy_quantile"),
        (dict(curriculum="exact", shuffle_dataset=False), "shuffle_dataset"),
        (dict(curriculum="biased", dataloader_num_workers=2), "dataloader_num_workers"),
        (dict(curriculum="biased", curriculum_floor=0.0), "curriculum_floor"),
        (dict(curriculum="biased", curriculum_half_life=0.0), "curriculum_half_life"),
        (dict(curriculum_floor=0.5), "curriculum_floor"),
        (dict(curriculum="exakt"), "exakt"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_name(tmp_path, settings, word):
    with pytest.raises(ConfigError, match=word):
        config(tmp_path, **settings)


def test_each_setting_moves_the_draw(tmp_path):
    def effective(**given):
        curriculum = Curriculum(config(tmp_path, **{"curriculum": "biased", **given}), range(8), [""] * 8)
        hopeless = (Evidence(row, 8, 0.0, 0.0, 0.0) for row in range(4))
        curriculum.learn(0, [hopeless, [Evidence(4, 8, 4.0, 0.0, 1.0)]])
        return curriculum.draw(20, 2).metrics["curriculum/effective_prompts"].value

    plain = effective()
    assert 1 < plain < effective(curriculum_floor=0.9) < 8
    assert plain < effective(curriculum_half_life=2.0)
    assert plain < effective(curriculum="exact")  # by the root
    assert plain > effective(scale_rewards="none")  # two completions disagree more seldom than eight


def test_a_biased_one_goes_with_statistics_of_the_batch(tmp_path):
    assert config(tmp_path, curriculum="biased", scale_rewards="batch").curriculum == "biased"


def test_weights_that_would_cancel_are_refused_and_a_draw_of_all_prompts_is_said(tmp_path, policy):
    one = dict(per_device_train_batch_size=4, loss_type="dapo")
    with pytest.raises(ConfigError, match="one prompt per optimizer step"):
        make(policy, tmp_path / "one", by_ids, rows(8), **one, curriculum="exact")
    make(policy, tmp_path / "two", by_ids, rows(8), **one, gradient_accumulation_steps=2, curriculum="exact")
    with pytest.warns(UserWarning, match="curriculum='exact' has no effect"):
        make(policy, tmp_path / "all", by_ids, rows(2), curriculum="exact")


def test_a_stream_is_refused(tmp_path, policy):
    with pytest.raises(DatasetError, match="stream"):
        make(policy, tmp_path, by_ids, rows(8).to_iterable_dataset(), curriculum="exact")


def test_a_checkpoint_of_a_run_without_one_is_refused(tmp_path, policy):
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}
    train(policy, tmp_path / "run", by_ids, rows(16), **settings)
    trainer = make(policy, tmp_path / "run", by_ids, rows(16), **settings, curriculum="exact")
    with pytest.raises(CheckpointError, match=r"curriculum\.json"):
        trainer.train(resume_from_checkpoint=True)


def test_a_memory_of_other_rows_is_not_taken_and_that_is_said(tmp_path, policy):
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2, "curriculum": "exact"}
    train(policy, tmp_path / "run", by_ids, rows(16), **settings)
    trainer = make(policy, tmp_path / "run", by_ids, rows(12), **settings)
    with pytest.warns(UserWarning, match=r"curriculum\.json knows of the prompts is left out"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


def test_what_was_sampled_ahead_keeps_its_evidence(tmp_path, policy):
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2, "curriculum": "exact", "async_lag": 1}
    train(policy, tmp_path / "run", by_ids, rows(16), **settings)
    saved = json.loads((tmp_path / "run" / "checkpoint-2" / "covey" / "ahead0.json").read_text())
    (ahead,) = saved["rollouts"]
    evidence = [Evidence(*entry) for entry in ahead["evidence"]]
    totals = [s["totals"] for groups in ahead["rounds"] for s in groups]
    assert [(e.scored, e.total) for e in evidence] == [(4, sum(own)) for own in totals]
