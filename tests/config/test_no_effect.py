"""No option without effect: each setting of score and update changes a number, and is refused where it would not."""

from dataclasses import fields

import numpy as np
import pytest
from transformers import TrainingArguments

from covey import GRPOConfig
from covey.config import ALIASES
from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES
from covey.config.no_effect import CONDITIONS
from covey.errors import ConfigError
from covey.metrics import Mean
from covey.score.estimators import Outcomes, estimator
from covey.score.shaping import Shaping, shaped_totals
from covey.trainer.checks import check_own_loss
from covey.trainer.parts import make_entropy_bonus
from tests.ranks import alone
from tests.update.steps import settings, step

WHOLE = [[[0, 1, 2, 3], [4, 5, 6, 7]]]
VALUES = np.asarray([[1, 0], [0, 1], [0, 0.3], [1, 1], [0.5, 0], [0.5, 1]])
GROUPS, LENGTHS = np.asarray([0, 0, 0, 1, 1, 1]), np.asarray([1.0, 4, 2, 3, 3, 5])
TRUNCATED = [False, True, False, False, False, True]


def update_numbers(given):
    """Loss and gradient of a step."""
    loss, gradient, _ = step(settings(**given), WHOLE)
    return [loss, *gradient]


def score_numbers(given):
    """Advantages of two groups with two rewards."""
    s = vars(settings(**given))
    estimate = estimator(s["advantage_estimator"], s["multi_objective_aggregation"], s["scale_rewards"])
    weights = np.broadcast_to([1.0, 0.5], VALUES.shape)
    shaping = Shaping(s["truncated_reward"], s["truncated_in_baseline"])
    totals = shaped_totals((VALUES * weights).sum(1), TRUNCATED, shaping)
    return estimate(Outcomes(VALUES, weights, totals, GROUPS, LENGTHS)).tolist()


def bonus_numbers(given):
    """The coefficient over a few steps."""
    bonus = make_entropy_bonus(settings(**given))
    numbers = [bonus.present]
    for entropy in (0.1, 0.1, 0.6, 0.6, 0.6, 0.1):
        bonus.observe(Mean(entropy))
        bonus.next_step(alone)
        numbers.append(bonus.present)
    return numbers


CISPO = {"loss_type": "cispo", "epsilon_high": 0.9}
ADAPTIVE = {"use_adaptive_entropy": True}
M2 = {"importance_sampling_mode": "token_m2"}

# setting: what else is set, another value, and which numbers it changes
CASES = {
    "loss_type": ({}, "grpo", update_numbers),
    "epsilon": ({}, 0.05, update_numbers),
    "epsilon_high": ({}, 0.05, update_numbers),
    "delta": ({}, 1.3, update_numbers),
    "importance_sampling_level": ({}, "sequence", update_numbers),
    "cispo_bound": (CISPO, "relative", update_numbers),
    "sapo_temperature_pos": ({"loss_type": "sapo"}, 2.0, update_numbers),
    "sapo_temperature_neg": ({"loss_type": "sapo"}, 2.0, update_numbers),
    "vespo_k_pos": ({"loss_type": "vespo"}, 1.0, update_numbers),
    "vespo_lambda_pos": ({"loss_type": "vespo"}, 1.0, update_numbers),
    "vespo_k_neg": ({"loss_type": "vespo"}, 1.0, update_numbers),
    "vespo_lambda_neg": ({"loss_type": "vespo"}, 1.0, update_numbers),
    "dppo_kl_coef": ({"loss_type": "dppo"}, 0.1, update_numbers),
    "covariance_share": ({"loss_type": "kl_cov"}, 0.5, update_numbers),
    "covariance_low": ({"loss_type": "clip_cov", "covariance_share": 0.5}, 0.01, update_numbers),
    "covariance_high": ({"loss_type": "clip_cov", "covariance_low": 0.01}, 0.3, update_numbers),
    "kl_cov_coef": ({"loss_type": "kl_cov"}, 3.0, update_numbers),
    "beta": ({}, 0.1, update_numbers),
    "kl_in_reward": ({"beta": 0.1}, True, update_numbers),
    "kl_estimator": ({"beta": 0.1}, "k2", update_numbers),
    "use_bias_correction_kl": ({"beta": 0.1}, False, update_numbers),
    "entropy_coef": ({}, 0.1, update_numbers),
    "use_adaptive_entropy": ({"entropy_coef": 0.1}, True, bonus_numbers),
    "entropy_target": (ADAPTIVE, 0.8, bonus_numbers),
    "entropy_coef_delta": (ADAPTIVE, 0.01, bonus_numbers),
    "entropy_coef_min": ({**ADAPTIVE, "entropy_coef": 0.005}, 0.002, bonus_numbers),
    "entropy_coef_max": (ADAPTIVE, 0.007, bonus_numbers),
    "top_entropy_quantile": ({}, 0.5, update_numbers),
    "importance_sampling_correction": ({}, False, update_numbers),
    "importance_sampling_mode": ({}, "sequence_truncate", update_numbers),
    "importance_sampling_cap": ({}, 1.01, update_numbers),
    "importance_sampling_floor": ({}, 0.99, update_numbers),
    "importance_sampling_m2": (M2, 1e-4, update_numbers),
    "off_policy_mask_threshold": ({}, 0.05, update_numbers),
    "mask_truncated_completions": ({}, True, update_numbers),
    "truncated_in_denominator": (
        {"mask_truncated_completions": True},
        "tokens_and_sequences",
        update_numbers,
    ),
    "advantage_estimator": ({}, "rloo", score_numbers),
    "multi_objective_aggregation": ({}, "normalize_then_sum", score_numbers),
    "scale_rewards": ({}, "none", score_numbers),
    "truncated_reward": ({}, -1.0, score_numbers),
    "truncated_in_baseline": ({}, False, score_numbers),
}

TESTED_ELSEWHERE = {
    "reward_weights": "tests/score/test_scorer.py",
    "num_iterations": "tests/trainer/test_update.py",
    "dynamic_sampling": "tests/trainer/test_dynamic_sampling.py",
    "dynamic_sampling_rounds": "tests/trainer/test_dynamic_sampling.py",
    "dynamic_sampling_rewards": "tests/trainer/test_dynamic_sampling.py",
    "sync_ref_model": "tests/trainer/test_adapters.py",
    "ref_model_mixup_alpha": "tests/update/test_reference.py",
    "ref_model_sync_steps": "tests/trainer/test_objectives.py",
    "max_tokens_per_forward": "tests/trainer/test_memory.py",
    "activation_offloading": "tests/update/test_activation_offload.py",
    "max_nonfinite_steps": "tests/trainer/test_nonfinite.py",
}


def own_fields():
    """Settings of score and update, in the order of the config."""
    inherited = {f.name for f in fields(TrainingArguments)}
    names = [f.name for f in fields(GRPOConfig) if f.name not in inherited]
    return names[names.index("reward_weights") : names.index("max_nonfinite_steps") + 1]


def test_every_setting_is_tested():
    assert set(own_fields()) == set(CASES) | set(TESTED_ELSEWHERE) | set(ALIASES)


@pytest.mark.parametrize("name", CASES)
def test_a_setting_changes_a_number(name):
    others, value, numbers = CASES[name]
    assert numbers({**others, name: value}) != pytest.approx(numbers(others), rel=1e-6, abs=1e-9)


NAMES_OF_TRL = [
    ("vllm_importance_sampling_correction", True, False),
    ("vllm_importance_sampling_mode", "token_mask", "sequence_mask"),
    ("vllm_importance_sampling_cap", 5.0, 4.0),
    ("vllm_importance_sampling_clip_max", 5.0, 4.0),
    ("vllm_importance_sampling_clip_min", 0.5, 0.4),
]


@pytest.mark.parametrize(("alias", "value", "other"), NAMES_OF_TRL)
def test_names_of_trl_act(alias, value, other):
    assert getattr(settings(**{alias: value}), ALIASES[alias]) == value
    assert getattr(settings(**{alias: value, ALIASES[alias]: value}), ALIASES[alias]) == value
    with pytest.raises(
        ConfigError, match=f"{alias}={value!r} and {ALIASES[alias]}={other!r} are the same setting"
    ):
        settings(**{alias: value, ALIASES[alias]: other})


def test_every_alias_is_tested():
    assert {alias for alias, *_ in NAMES_OF_TRL} == set(ALIASES)
    assert settings(vllm_importance_sampling_correction=False).importance_sampling_correction is False


# What would do nothing: settings, and words of the message.
INEFFECTIVE = [
    ({"loss_type": "cispo", "epsilon_high": 5.0, "epsilon": 0.3}, "no lower bound"),
    ({"truncated_in_denominator": "none"}, "without mask_truncated_completions"),
    ({"truncated_reward": 0.0, "truncated_in_baseline": False}, "truncated_in_baseline=False"),
    ({"truncated_reward": 0.0, "multi_objective_aggregation": "normalize_then_sum"}, "normalize_then_sum"),
    ({"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}, "normalize_then_sum"),
    ({"scale_rewards": "none", "advantage_estimator": "rloo"}, "advantage_estimator other than"),
    ({"multi_objective_aggregation": "normalize_then_sum", "advantage_estimator": "opo"}, "sums the rewards"),
    ({"overlong_prompts": "drop"}, "without max_prompt_length"),
    ({"kl_in_reward": True}, "beta=0"),
    (
        {"kl_in_reward": True, "beta": 0.1, "multi_objective_aggregation": "normalize_then_sum"},
        "never at the total",
    ),
    ({"kl_estimator": "k2"}, "beta=0"),
    ({"use_bias_correction_kl": False}, "beta=0"),
    ({"use_bias_correction_kl": False, "beta": 0.1, "kl_in_reward": True}, "kl_in_reward"),
    ({"sync_ref_model": True}, "beta=0"),
    ({"ref_model_sync_steps": 3, "beta": 0.1}, "without sync_ref_model"),
    ({"turn_discount": 0.5}, "without credit_assignment='turn'"),
    ({"dynamic_sampling_rounds": 5}, "without dynamic_sampling"),
    ({"dynamic_sampling_rewards": ("a",)}, "without dynamic_sampling or group_allocation='grow'"),
    ({"group_allocation_first": 2}, "without group_allocation='grow'"),
    ({"group_allocation_success": 0.5}, "without group_allocation='grow'"),
    ({"ref_model_mixup_alpha": 0.1, "beta": 0.1}, "without sync_ref_model"),
    ({"entropy_target": 0.3}, "without use_adaptive_entropy"),
    ({"entropy_coef_delta": 0.3, "entropy_coef": 0.1}, "without use_adaptive_entropy"),
    ({"entropy_coef_min": 0.3}, "without use_adaptive_entropy"),
    ({"entropy_coef_max": 0.3}, "without use_adaptive_entropy"),
    (
        {"importance_sampling_correction": False, "importance_sampling_mode": "token_mask"},
        "without importance_sampling_correction",
    ),
    (
        {"importance_sampling_correction": False, "importance_sampling_cap": 3.0},
        "without importance_sampling_correction",
    ),
    (
        {"importance_sampling_correction": False, "importance_sampling_floor": 0.3},
        "without importance_sampling_correction",
    ),
    ({"importance_sampling_m2": 0.1}, "without importance_sampling_mode='token_m2'"),
    ({"curriculum_from": "runs/first"}, "without curriculum"),
    ({"curriculum_floor": 0.5}, "without curriculum"),
    ({"replay_age": 2}, "with replay_groups=0"),
    ({"replay_min_ess": 0.9}, "with replay_groups=0"),
    ({"curriculum_half_life": 5.0}, "without curriculum"),
]


@pytest.mark.parametrize(
    ("given", "words"), INEFFECTIVE, ids=lambda x: ",".join(x) if isinstance(x, dict) else ""
)
def test_a_setting_without_effect_is_refused(given, words):
    with pytest.raises(ConfigError, match="has no effect") as error:
        settings(**given)
    assert words in str(error.value)


def test_every_condition_is_tested():
    conditional = {name for condition in CONDITIONS for name in condition.settings}
    assert conditional <= {name for given, _ in INEFFECTIVE for name in given}


OTHER_VALUE = {
    "epsilon": 0.3, "epsilon_high": 0.4, "delta": 3.0, "importance_sampling_level": "sequence_token", "cispo_bound": "relative",
    "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 2.0, "vespo_k_pos": 1.0, "vespo_lambda_pos": 1.0, "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0, "dppo_kl_coef": 0.1, "covariance_share": 0.5, "covariance_low": 0.5, "covariance_high": 6.0,
    "kl_cov_coef": 3.0, "importance_sampling_correction": False, "importance_sampling_mode": "token_mask",
    "importance_sampling_cap": 3.0, "importance_sampling_floor": 0.5, "importance_sampling_m2": 1e-4,
}  # fmt: skip


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_each_loss_takes_its_settings_and_refuses_the_others(loss_type):
    assert set(OTHER_VALUE) == LOSS_SETTINGS
    base = {"loss_type": loss_type, **BASES.get(loss_type, {})}
    for name, value in OTHER_VALUE.items():
        given = {**base, **BESIDE.get(name, {}), name: value}
        if name in LOSS_TYPES[loss_type].settings:
            assert getattr(settings(**given), name) == value
        else:
            with pytest.raises(
                ConfigError, match=f"{name}=.* has no effect with loss_type='{loss_type}'. It acts on"
            ):
                settings(**given)


BESIDE = {"importance_sampling_m2": M2}
"""By setting: what it does not act without, beside the loss."""
BASES = {
    "cispo": {"epsilon_high": 0.9, "cispo_bound": "relative"},
    "clip_cov": {"covariance_share": 0.3, "covariance_low": 0.01},
    "kl_cov": {"covariance_share": 0.3},
    "luspo": {"epsilon_high": 0.001},
}
STRONG_VALUE = {
    "epsilon": 0.03, "epsilon_high": 0.04, "delta": 1.25, "importance_sampling_level": "sequence", "cispo_bound": "absolute",
    "covariance_share": 0.9, "covariance_low": 2.0, "covariance_high": 0.3, "importance_sampling_mode": "sequence_truncate",
    "importance_sampling_cap": 1.005, "importance_sampling_floor": 0.995, ("luspo", "delta"): 1.002,
}  # fmt: skip
"""Values that bite on the numbers of a step here."""


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_settings_of_a_loss_reach_its_numbers(loss_type):
    """Not only accepted: each setting that a loss takes is read by it."""
    base = {"loss_type": loss_type, **BASES.get(loss_type, {})}
    for name in LOSS_TYPES[loss_type].settings:
        changed = {
            **base,
            **BESIDE.get(name, {}),
            name: STRONG_VALUE.get((loss_type, name), STRONG_VALUE.get(name, OTHER_VALUE[name])),
        }
        beside = {**base, **BESIDE.get(name, {})}
        assert update_numbers(changed) != pytest.approx(update_numbers(beside), rel=1e-6, abs=1e-9), name


def test_luspo_may_say_that_its_ratio_is_that_of_the_sequence():
    assert settings(loss_type="luspo", importance_sampling_level="sequence")
    with pytest.raises(ConfigError, match="has no effect with loss_type='luspo'"):
        settings(loss_type="luspo", importance_sampling_level="sequence_token")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss_type": "sappo"}, ["'sapo'"]),
        ({"advantage_estimator": "rlo"}, ["advantage_estimator", "'rloo'"]),
        ({"importance_sampling_level": "tokens"}, ["importance_sampling_level", "'token'"]),
        ({"importance_sampling_mode": "token_clip"}, ["importance_sampling_mode"]),
        ({"importance_sampling_cap": 0.5}, ["importance_sampling_cap is 0.5", "must lie between"]),
        ({"importance_sampling_floor": 1.5}, ["importance_sampling_floor 1.5"]),
        ({**M2, "importance_sampling_m2": 0.0}, ["importance_sampling_m2 is 0.0", "above 0"]),
        ({**M2, "importance_sampling_m2": -1.0}, ["importance_sampling_m2 is -1.0", "above 0"]),
        ({"off_policy_mask_threshold": -0.5}, ["off_policy_mask_threshold is -0.5"]),
        ({"kl_estimator": "k4", "beta": 0.1}, ["kl_estimator", "'k3'"]),
        ({"top_entropy_quantile": 0.0}, ["top_entropy_quantile is 0", "none would be left"]),
        ({"top_entropy_quantile": 1.2}, ["top_entropy_quantile", "between 0 and 1"]),
        ({"use_adaptive_entropy": True, "entropy_coef": 2.0}, ["entropy_coef is 2.0", "between 0 and 1"]),
        ({"loss_type": "sapo", "sapo_temperature_pos": 0.0}, ["sapo_temperature_pos is 0.0", "positive"]),
        ({"loss_type": "clip_cov", "covariance_low": 7.0}, ["covariance_low is 7.0", "below"]),
        ({"loss_type": "dppo", "dppo_kl_coef": -1.0}, ["dppo_kl_coef is -1.0"]),
        (
            {"mask_truncated_completions": True, "truncated_in_denominator": "all"},
            ["truncated_in_denominator", "'none'"],
        ),
    ],
)
def test_a_wrong_value_is_named(given, words):
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_loss_of_your_own_takes_no_setting_of_the_losses_it_replaces():
    def own(terms):
        return -terms.advantages * terms.logprobs

    check_own_loss(settings(loss_type="grpo", importance_sampling_cap=3.0, beta=0.1), own)
    with pytest.raises(
        ConfigError, match=r"epsilon=0\.3 has no effect: GRPOTrainer was given a loss of your own"
    ):
        check_own_loss(settings(epsilon=0.3), own)
    with pytest.raises(
        ConfigError, match=r"loss_type='sapo' names a loss.*grpo, dr_grpo, dapo, bnpo, prompt_mean"
    ):
        check_own_loss(settings(loss_type="sapo"), own)
