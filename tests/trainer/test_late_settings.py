"""Law: a setting that is assigned after construction acts as an early one, or is refused by name; never a run in silence."""

import json

import pytest
import torch
from transformers import TrainerCallback

from covey import GRPOConfig
from covey.errors import ConfigError
from covey.trainer.late_settings import ACT, BEGUN, WATCHED
from covey.trainer.other_names import PARTS, SETTINGS
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, by_length, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

COV = {"loss_type": "clip_cov"}
OTHER = {
    "temperature": (0.5, {}), "top_p": (0.9, {}), "top_k": (5, {}), "min_p": (0.1, {}), "repetition_penalty": (1.1, {}),
    "max_completion_length": (6, {"loss_type": "dr_grpo"}), "eval_generation_kwargs": ({"temperature": 0.3}, {}),
    "reward_weights": ([2.0], {}), "advantage_estimator": ("rloo", {}),
    "multi_objective_aggregation": ("normalize_then_sum", {}), "scale_rewards": ("none", {}), "truncated_reward": (-1.0, {}),
    "truncated_in_baseline": (False, {}), "loss_type": ("grpo", {}), "epsilon": (0.3, {}), "epsilon_high": (0.4, {}),
    "delta": (2.0, {}), "importance_sampling_level": ("sequence", {}),
    "cispo_bound": ("relative", {"loss_type": "cispo", "epsilon_high": 2.0}),
    "sapo_temperature_pos": (1.5, {"loss_type": "sapo"}), "sapo_temperature_neg": (1.5, {"loss_type": "sapo"}),
    **{f"vespo_{k}_{sign}": (1.5, {"loss_type": "vespo"}) for k in ("k", "lambda") for sign in ("pos", "neg")},
    "dppo_kl_coef": (0.1, {"loss_type": "dppo"}), "covariance_share": (0.1, COV), "covariance_low": (0.5, COV),
    "covariance_high": (9.0, COV), "kl_cov_coef": (2.0, {"loss_type": "kl_cov"}), "beta": (0.2, {"beta": 0.1}),
    "kl_in_reward": (True, {"beta": 0.1}), "kl_estimator": ("k2", {"beta": 0.1}),
    "use_bias_correction_kl": (False, {"beta": 0.1}), "top_entropy_quantile": (0.5, {}),
    "importance_sampling_correction": (False, {}), "importance_sampling_mode": ("token_mask", {}),
    "importance_sampling_cap": (3.0, {}), "importance_sampling_floor": (0.5, {}),
    "importance_sampling_m2": (0.1, {"importance_sampling_mode": "token_m2"}), "off_policy_mask_threshold": (0.5, {}),
    "truncated_in_denominator": ("none", {"mask_truncated_completions": True}), "entropy_coef": (0.1, {}),
    "use_adaptive_entropy": (True, {}), "entropy_target": (0.5, {"use_adaptive_entropy": True}),
    "entropy_coef_delta": (0.1, {"use_adaptive_entropy": True}), "entropy_coef_min": (0.1, {"use_adaptive_entropy": True, "entropy_coef": 0.2}),
    "entropy_coef_max": (0.5, {"use_adaptive_entropy": True}), "num_generations_eval": (2, {}),
    "mask_truncated_completions": (True, {}), "ref_model_mixup_alpha": (0.3, {"beta": 0.1, "sync_ref_model": True}),
    "ref_model_sync_steps": (3, {"beta": 0.1, "sync_ref_model": True}), "num_completions_to_print": (1, {}),
    "max_nonfinite_steps": (5, {}), "learning_rate": (0.5, {}), "logging_steps": (2, {}), "resume_from_checkpoint": ("auto", {}),
    "restore_callback_states_from_checkpoint": (False, {}), "shuffle_dataset": (False, {}), "record": (False, {}),
    "record_completions": ("none", {}), "record_pictures": ("none", {}), "log_completions": (True, {}), "log_multimodal": (False, {}),
    "max_steps": (3, {}), "num_train_epochs": (4, {"max_steps": -1}),
}  # fmt: skip
"""Another value of each setting that acts late, and settings beside which it acts."""


def parts_of(trainer):
    """Everything that settings are made into."""
    u, s = trainer.updater, trainer.scorer
    reader, rule = trainer.prompts.reader, s.estimate
    found = [
        trainer.sampling, trainer.eval_sampling, trainer.plan, trainer.prompts.plan, reader.reserved, s.weights, s.shaping,
        rule.__code__.co_firstlineno, [c.cell_contents for c in rule.__closure__ or ()], u.objective, u.reduction, u.selection, u.bonus.coef, u.bonus.adaptation, u.kl_penalty,
        u.forward.temperature, trainer.nonfinite.limit, trainer.run_log.rewards, trainer.run_log.plan,
        {name: getattr(trainer.run_log.args, name) for name in WATCHED},
    ]  # fmt: skip
    return [repr(part) for part in found]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), generation=MANY_ENDS)


@pytest.mark.parametrize("name", sorted(OTHER))
def test_a_late_setting_makes_the_parts_that_an_early_one_makes(name, policy, tmp_path):
    value, beside = OTHER[name]
    early, late = (
        make(policy, tmp_path, by_length, rows(), **{**beside, **more}) for more in ({name: value}, {})
    )
    before = parts_of(late)
    setattr(late.args, name, value)
    late.heed_settings()
    assert parts_of(late) == parts_of(early) != before


def test_every_setting_that_acts_late_is_tried_here():
    assert set(OTHER) == ACT | BEGUN


@pytest.mark.parametrize("name", sorted(set(WATCHED) - ACT - BEGUN))
def test_every_other_setting_is_refused_by_name_and_stays(name, policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    before = getattr(trainer.args, name)
    setattr(trainer.args, name, object())
    with pytest.raises(ConfigError, match=f"{name}=.*GRPOConfig"):
        trainer.train()
    assert getattr(trainer.args, name) == before and trainer.state.global_step == 0


@pytest.mark.parametrize("name", sorted(BEGUN))
def test_what_is_read_when_training_begins_is_refused_later(name, policy, tmp_path):
    class Changes(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            setattr(args, name, OTHER[name][0])

    trainer = make(policy, tmp_path, by_length, rows(), max_steps=2, callbacks=[Changes()])
    trainer.args.max_steps, trainer.args.num_train_epochs = 2, 3.0
    with pytest.raises(ConfigError, match=f"{name}=.*training begins"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_a_callback_changes_the_steps_after_it_and_none_before(policy, tmp_path):
    class Cools(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            args.temperature = 0.2

    plain, cooled = (
        train(policy, tmp_path / n, by_length, rows(), max_steps=2, callbacks=c)
        for n, c in (("plain", []), ("cooled", [Cools()]))
    )
    assert [a == b for a, b in zip(*(logged(t, "entropy") for t in (plain, cooled)), strict=True)] == [
        True,
        False,
    ]
    events = (tmp_path / "cooled" / "record" / "events.jsonl").read_text()
    assert "Settings changed: temperature=0.2" in events


@pytest.mark.parametrize(
    "event, by_attribute", [("on_step_end", False), ("on_step_end", True), ("on_step_begin", True)]
)
def test_inside_a_round_of_sampling_it_waits_for_the_next_one(event, by_attribute, policy, tmp_path):
    """An evaluation, or an assigned attribute, lets it act no sooner: the round's samples were drawn with the setting before."""

    def change(args, state, control, **_):
        if state.global_step == 1:
            (cooled if by_attribute else args).temperature = 0.2

    given = {"max_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1,
             "eval_strategy": "steps", "eval_steps": 1, "eval_dataset": rows(2)}  # fmt: skip
    plain = train(policy, tmp_path / "plain", by_length, rows(), **given)
    cools = type("Cools", (TrainerCallback,), {event: lambda self, *given, **more: change(*given, **more)})
    cooled = make(policy, tmp_path / "cooled", by_length, rows(), callbacks=[cools()], **given)
    cooled.train()
    entropies = (logged(t, "entropy") for t in (plain, cooled))
    assert [a == b for a, b in zip(*entropies, strict=True)] == [True, True, False, False]
    saved = [tmp_path / "cooled" / f"checkpoint-{n}" / "covey" / "run0.json" for n in (1, 3)]
    assert [json.loads(file.read_text())["settings"]["temperature"] for file in saved] == [1.0, 0.2]


def test_after_a_run_that_failed_inside_a_round_settings_act(policy, tmp_path):
    class Fails(TrainerCallback):
        def on_step_end(self, *_, **__):
            raise SystemError("on purpose")

    given = {"steps_per_generation": 2, "per_device_train_batch_size": 4, "max_steps": 2}
    trainer = make(policy, tmp_path, by_length, rows(), callbacks=[Fails()], **given)
    with pytest.raises(SystemError, match="on purpose"):
        trainer.train()
    trainer.args.temperature = 0.5
    trainer.evaluate(rows(2))
    assert trainer.eval_sampling.temperature == 0.5


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", 0.5),
        ("scale_rewards", "none"),
        ("scale_rewards", False),
        ("reward_weights", torch.tensor([3.0])),
        ("epsilon_low", 0.5),
    ],
)
def test_an_attribute_that_stands_for_a_setting_is_that_setting(name, value, policy, tmp_path):
    setting = SETTINGS.get(name, name)
    early = train(
        policy,
        tmp_path / "a",
        by_length,
        rows(),
        **{setting: value.tolist() if torch.is_tensor(value) else value},
    )
    late, plain = (
        make(policy, tmp_path / "b", by_length, rows()),
        train(policy, tmp_path / "c", by_length, rows()),
    )
    setattr(late, name, value)
    late.train()
    assert same(weights(early), weights(late)) and same(weights(early), weights(plain)) == (
        name == "epsilon_low"
    )
    assert parts_of(early)[:-1] == parts_of(late)[:-1]


def test_wrong_values_are_refused_at_once_and_change_nothing(policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    before = parts_of(trainer)
    for name, value in (
        ("temperature", -1.0),
        ("beta", 0.5),
        ("reward_weights", [1.0, 2.0]),
        ("num_generations", 2),
        ("epsilon", "0.1"),
    ):
        with pytest.raises(ConfigError, match=name):
            setattr(trainer, name, value)
    assert parts_of(trainer) == before


@pytest.mark.parametrize("name, value", [("learning_rate", -1.0), ("logging_steps", -1), ("max_steps", 0)])
def test_a_number_that_no_config_takes_is_refused_before_training_too(name, value, policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match=f"{name} is"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_attributes_of_settings_hide_none_of_the_trainers_own(policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    assert not (set(SETTINGS) | set(PARTS)) & set(vars(trainer))
    assert set(GRPOConfig.__annotations__) <= set(SETTINGS)
    for name in set(SETTINGS) - set(PARTS):
        assert getattr(trainer, name) == getattr(trainer.args, SETTINGS[name])
