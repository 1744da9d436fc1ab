"""Settings that a script changes after the trainer was made: each acts from the next round of sampling on, or is refused by name.

    trainer.args.temperature = 0.7        trainer.reward_weights = [1.0, 0.5]        args.beta = 0.01 in a callback

The trainer compares its settings with those that its parts were made from: when training begins, before each round of
sampling, and before each evaluation but those inside a round, whose samples are trained on as they were drawn. Parts whose settings changed are made anew by the functions that made them first, so a
late setting means what an early one means.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from covey.config import GRPOConfig, consistency, resolving, validation
from covey.config.grpo import OWN
from covey.errors import ConfigError
from covey.models.loading import tokenizer_of
from covey.trainer import checks, parts
from covey.update.terms import Loss

if TYPE_CHECKING:
    from covey.trainer.grpo_trainer import GRPOTrainer

SAMPLED = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length", "eval_generation_kwargs",
)  # fmt: skip
SCORED = (
    "reward_weights", "advantage_estimator", "multi_objective_aggregation", "scale_rewards", "truncated_reward",
    "truncated_in_baseline",
)  # fmt: skip
UPDATED = (
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "cispo_bound", "sapo_temperature_pos",
    "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "dppo_kl_coef",
    "covariance_share", "covariance_low", "covariance_high", "kl_cov_coef", "beta", "kl_in_reward", "kl_estimator",
    "use_bias_correction_kl", "top_entropy_quantile", "importance_sampling_correction", "importance_sampling_mode",
    "importance_sampling_cap", "importance_sampling_floor", "importance_sampling_m2", "off_policy_mask_threshold",
    "truncated_in_denominator",
)  # fmt: skip
BONUS = (
    "entropy_coef", "use_adaptive_entropy", "entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max",
)  # fmt: skip
READ = (
    "num_generations_eval", "mask_truncated_completions", "ref_model_mixup_alpha", "ref_model_sync_steps",
    "num_completions_to_print", "max_nonfinite_steps",
)  # fmt: skip
"""Read where they act, whenever that is."""
ACT = frozenset((*SAMPLED, *SCORED, *UPDATED, *BONUS, *READ))
BEGUN = frozenset({
    "learning_rate", "logging_steps", "resume_from_checkpoint", "restore_callback_states_from_checkpoint",
    "shuffle_dataset", "record", "record_completions", "record_pictures", "log_completions", "log_multimodal", "max_steps",
    "num_train_epochs",
})  # fmt: skip
"""Read once, when training begins."""
LENGTH = {"max_steps", "num_train_epochs"}
PLANNED = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "max_steps",
    "num_train_epochs",
)
"""Settings of TrainingArguments that parts are made from; the others act as `transformers.Trainer` has them act."""
WATCHED = tuple(dict.fromkeys((*OWN, *PLANNED)))


class Settings:
    """The values that a trainer's parts were made from."""

    def __init__(self, args: GRPOConfig, loss: Loss | None) -> None:
        self.loss = loss
        """A loss of the user's own."""
        self.known = {name: copy.deepcopy(getattr(args, name)) for name in WATCHED}

    def heed(self, trainer: GRPOTrainer) -> None:
        """Make the parts anew whose settings changed; raise ConfigError, and change nothing, where that cannot be."""
        args = trainer.args
        changed = [name for name in WATCHED if getattr(args, name) != self.known[name]]
        if not changed:
            return
        late = [name for name in changed if name not in ACT and (trainer.is_in_train or name not in BEGUN)]
        try:
            if late:
                raise ConfigError(_refusal(args, late, trainer.is_in_train))
            if "temperature" in changed and trainer.is_in_train and args.async_lag:
                raise ConfigError(
                    f"temperature={args.temperature:g} cannot be changed while a run with async_lag={args.async_lag} goes on: rollouts that "
                    f"were sampled ahead at {self.known['temperature']:g} are still to be trained on, at the temperature of their sampling. "
                    "Set it before train()."
                )
            validation.check_values(args, GRPOConfig)
            resolving.read_text(args)
            consistency.check_training(args)
            consistency.check_all(args)
            remake(trainer, changed)
        except ConfigError:
            for name in changed:
                setattr(args, name, self.known[name])
            raise
        self.known |= {name: copy.deepcopy(getattr(args, name)) for name in changed}


def _listed(args: GRPOConfig, names: Iterable[str]) -> str:
    return ", ".join(f"{name}={getattr(args, name)!r}" for name in names)


def _refusal(args: GRPOConfig, names: Iterable[str], is_training: bool) -> str:
    why = "it was assigned after GRPOTrainer was made, and cannot act any more"
    if is_training and BEGUN.issuperset(names):
        why = "it is read when training begins, and cannot be changed while it goes on"
    return f"{_listed(args, names)}: {why}. Set it in GRPOConfig(...)."


def remake(trainer: GRPOTrainer, changed: Iterable[str]) -> None:
    """Make the parts anew that the changed settings had made.

    Raises:
        ConfigError: there is no reference, which is a copy of the policy at the start, or another part cannot be made.
    """
    args, updater, loss = trainer.args, trainer.updater, trainer.settings.loss
    if (args.beta or args.sync_ref_model) and updater.reference is None:
        raise ConfigError(
            f"beta={args.beta}: no reference was kept, since beta was 0 when GRPOTrainer was made. Set it in GRPOConfig(...)."
        )
    checks.check_own_loss(args, loss)
    rewards = trainer.scorer.rewards
    weights = checks.reward_weights(args, rewards)
    old, padding = trainer.sampling, tokenizer_of(trainer.processing_class).pad_token_id
    closing = trainer.agents.stop_strings
    sampling = parts.make_sampling(args, old.stop_ids, padding, old.unknown_ids, closing)
    trainer.eval_sampling = parts.make_eval_sampling(args, sampling, padding, closing)
    trainer.sampling = sampling
    plan = trainer.plan
    if not LENGTH.isdisjoint(changed):
        plan = parts.training_plan(args, trainer.prompts.kept, trainer.train_dataset is not None)
    reader = replace(trainer.prompts.reader, reserved=args.max_completion_length)
    trainer.prompts = replace(trainer.prompts, reader=reader, plan=plan)
    if trainer.agents.maker is not None:  # it reads the prompts of completions that start differently
        trainer.agents.maker.reader = reader
    trainer.scorer = parts.make_scorer(args, rewards, weights, trainer.prompts.reader.eyes)
    trainer.rollouts.has_signal = parts.signal_test(args, weights, rewards.bounds)
    trainer.rollouts.growth = parts.make_growth(args, weights, plan)
    updater.forward.temperature = args.temperature
    updater.objective, updater.reduction = parts.make_objective(args, loss), parts.make_reduction(args)
    updater.selection, updater.kl_penalty = parts.make_selection(args, loss), parts.make_kl_penalty(args)
    if not set(BONUS).isdisjoint(changed):
        updater.bonus = parts.make_entropy_bonus(args)
    trainer.nonfinite.limit = args.max_nonfinite_steps
    trainer.run_log.change_settings(args, weights, plan, _listed(args, changed), trainer.state.global_step)
