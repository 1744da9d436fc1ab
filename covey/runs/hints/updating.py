"""Rules over the update: KL, entropy, ratios and clipping, gradients, precision."""

from __future__ import annotations

from covey.runs.evidence import serves_one_update
from covey.runs.hints.hint import Finding, rule
from covey.runs.hints.history import History
from covey.runs.terminal.phrases import number, percent

FEW = 5
SEVERAL = 10

TYPICAL_WEIGHT = 0.02
"""Median size of the weights of a trained transformer, where the record does not say it."""


@rule("problem")
def kl_runs_away(history: History) -> list[Finding]:
    """Find that the policy leaves its reference: tenfold the early KL, and large in itself."""
    now, early = history.metrics.mean("kl", FEW), history.metrics.early_median("kl")
    if now is None or early is None or now < 0.3 or now < 10 * early:
        return []
    beta = history.settings.get("beta", 0.0)
    return [
        Finding(
            "The policy runs away from its reference.",
            f"kl is {number(now)} nats per token over the last {FEW} steps, {number(now / early) if early else '∞'} times "
            f"its early value ({number(early)}); beta is {beta}.",
            (
                "Lower the learning rate, or raise beta.",
                "Go back to a checkpoint before the rise.",
                "Read late completions: noise, or another language, means that the policy is breaking.",
            ),
            ("kl", "entropy", "grad_norm"),
        )
    ]


@rule("problem")
def entropy_runs_away(history: History) -> list[Finding]:
    """Find that the policy dissolves into noise."""
    now, early = history.metrics.mean("entropy", FEW), history.metrics.early_median("entropy")
    moved = history.metrics.trend("entropy")
    if now is None or early is None or moved is None or moved.z < 4 or now < 1.5 * early or now < early + 0.5:
        return []
    return [
        Finding(
            "The entropy runs away.",
            f"entropy is {number(now)} nats per token over the last {FEW} steps, early it was {number(early)}.",
            (
                "Lower the learning rate; switch off the entropy bonus if there is one.",
                "Read late completions: if they are noise, go back to a checkpoint before the rise.",
            ),
            ("entropy", "kl"),
        )
    ]


@rule("warning")
def entropy_collapsed(history: History) -> list[Finding]:
    """Find that the policy has one answer left."""
    now, early = history.metrics.mean("entropy", SEVERAL), history.metrics.early_median("entropy")
    if now is None or early is None or early < 0.1 or now > 0.1 * early:
        return []
    return [
        Finding(
            "The entropy has collapsed.",
            f"entropy is {number(now)} nats per token over the last {SEVERAL} steps, early it was {number(early)}. "
            "Groups of such a policy hardly differ.",
            (
                "Raise epsilon_high (clip higher), add an entropy bonus, or lower the learning rate.",
                "Take prompts on which several answers are possible.",
            ),
            ("entropy", "frac_reward_zero_std"),
        )
    ]


@rule("problem")
def ratio_is_not_one_at_first(history: History) -> list[Finding]:
    """Find ratios other than 1 before the policy has moved: new and old log-probabilities must be the same then."""
    if not serves_one_update(history.settings):
        return []
    ratio = history.metrics.values("ratio/mean", FEW)
    ratio = ratio[ratio > 0]  # 0 is the mean of a step without a token in its loss: all were masked
    clipped = history.metrics.values("clip_ratio/region_mean", FEW)
    if ratio.size and abs(ratio - 1).max() > 1e-3:
        return _ratio_findings(
            f"Each sample is trained on once, and still the mean ratio is off by up to "
            f"{number(float(abs(ratio - 1).max()))} over the last {FEW} steps."
        )
    if clipped.size and clipped.max() > 0:
        return _ratio_findings(
            f"Each sample is trained on once, and still up to {percent(float(clipped.max()))} of the tokens are "
            "clipped: their ratio is not 1."
        )
    return []


def _ratio_findings(evidence: str) -> list[Finding]:
    return [
        Finding(
            "The ratio is not 1 at the first pass.",
            evidence,
            (
                "Switch off dropout in the policy.",
                "Score old and new log-probabilities in one precision, at one temperature, with the same padding.",
            ),
            ("ratio/mean", "clip_ratio/region_mean", "sampling/logp_gap/mean"),
        )
    ]


@rule("note")
def clipping_never_acts(history: History) -> list[Finding]:
    """Find that several updates per sample never leave the clip range: it has no effect."""
    clipped = history.metrics.values("clip_ratio/region_mean", 5 * SEVERAL)
    if serves_one_update(history.settings) or clipped.size < 5 * SEVERAL or clipped.max() > 0:
        return []
    return [
        Finding(
            "Clipping never acts.",
            f"Samples are used for several updates, and in {clipped.size} steps no ratio left the clip range "
            f"(epsilon is {history.settings.get('epsilon', 0.2)}).",
            (
                "The learning rate can be raised: the policy hardly moves between two updates.",
                "With sequence-level ratios, epsilon is far smaller: 0.0003 to 0.0004.",
            ),
            ("clip_ratio/region_mean", "learning_rate"),
        )
    ]


@rule("warning")
def clipping_always_acts(history: History) -> list[Finding]:
    """Find that a third of the tokens is clipped: most of the gradient is thrown away."""
    share = history.metrics.mean("clip_ratio/region_mean", SEVERAL)
    if share is None or share < 0.3:
        return []
    return [
        Finding(
            "Clipping acts on a third of the tokens.",
            f"clip_ratio/region_mean is {percent(share)} over the last {SEVERAL} steps "
            f"(epsilon is {history.settings.get('epsilon', 0.2)}).",
            (
                "Lower the learning rate or num_iterations: the policy moves too far on one sample.",
                "Check that sampler and trainer agree (sampling/logp_gap/mean).",
            ),
            ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"),
        )
    ]


@rule("problem")
def there_is_no_gradient(history: History) -> list[Finding]:
    """Find that groups have spread and the weights get no gradient."""
    norms, flat = history.metrics.values("grad_norm", FEW), history.metrics.mean("frac_reward_zero_std", FEW)
    if norms.size < FEW or norms.max() > 1e-12 or flat is None or flat > 0.5:
        return []
    return [
        Finding(
            "There is no gradient.",
            f"grad_norm is 0 for {FEW} steps, although {percent(1 - flat)} of the groups have spread.",
            (
                "Check that something can be trained: with adapters, that their target modules exist.",
                "With gradient checkpointing and adapters, inputs need gradients (use_reentrant=False).",
                "Check that completions are not all masked (mask_truncated_completions).",
            ),
            ("grad_norm", "frac_reward_zero_std"),
        )
    ]


@rule("problem")
def learning_rate_is_lost_in_bf16(history: History) -> list[Finding]:
    """Find steps smaller than half the distance between neighbouring bf16 numbers: they round away.

    bf16 has 8 significant bits: around a weight w, numbers are between |w|/256 and |w|/128 apart, and a step below half
    of the smaller distance, |w|/512, changes no weight of that size. Adam's steps are about the learning rate.
    """
    rates = history.metrics.range("learning_rate")
    dtype = str(history.model.get("weights_dtype", ""))
    if rates is None or dtype.removeprefix("torch.") not in ("bfloat16", "bf16"):
        return []
    scale = history.model.get("weight_scale")
    weight = float(scale) if isinstance(scale, int | float) and scale else TYPICAL_WEIGHT
    needed, rate = weight / 512, rates.high
    if not 0 < rate < needed:
        return []
    return [
        Finding(
            "The learning rate is too small for bf16 weights.",
            f"The largest step is about {number(rate)}; a weight of {number(weight)} in bf16 only moves by more than "
            f"{number(needed)}. Most updates round to nothing.",
            (
                "Keep the trained weights in float32 (the default), and compute in bf16.",
                f"Or train an adapter, or raise the learning rate above {number(needed)}.",
            ),
            ("learning_rate", "grad_norm"),
        )
    ]


@rule("note")
def loss_is_zero_at_first(history: History) -> list[Finding]:
    """Find a loss of 0 at the first pass, where every ratio is 1 and advantages sum to 0; its gradient is not 0."""
    losses, norms = history.metrics.values("loss"), history.metrics.values("grad_norm")[:3]
    if not 3 <= losses.size <= 3 + SEVERAL or not norms.size:
        return []
    if abs(losses[:3]).max() > 1e-4 or norms.min() <= 0:
        return []
    return [
        Finding(
            "The loss is 0 at first, and that is right.",
            f"The ratio is 1 and advantages sum to 0, so the loss is {number(float(losses[0]))}; its gradient is not 0 "
            f"(grad_norm {number(float(norms[0]))}).",
            ("Watch the reward and frac_reward_zero_std; the loss of GRPO says nothing about progress.",),
            ("loss", "grad_norm"),
        )
    ]
