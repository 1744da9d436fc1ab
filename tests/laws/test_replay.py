"""Groups that are trained on again: the mean of their corrected gradient, over all that an older policy can draw, is that of the present one.

Two prompts, whose policies say one of three completions of one or two tokens. Every rollout of two groups of three completions is listed with
its probability under the older policy; it is kept, drawn and weighed by the code that trains. No random number is drawn.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from covey.score.advantages import group_advantages
from covey.score.baselines import rloo_advantages
from covey.score.replay_buffer import ReplayBuffer, is_informative, weighed
from covey.types import Completion, Group, Prompt, ScoredGroup
from covey.update.losses import Clip, Clipped
from covey.update.micro_batch import build_micro_batches
from covey.update.objective import Objective
from covey.update.reduction import Reduction
from covey.update.sampler_correction import SamplerCorrection
from covey.update.samples import samples_of
from covey.update.terms import loss_terms

SAID = [(0,), (1, 0), (1, 1)]
REWARDS = [(1.0, 0.0, 1.0), (0.0, 0.0, 2.0)]
"""Of what each prompt may be answered with."""
LONGEST, SIZE = 2, 3
NOW = torch.tensor([[0.4, -0.2], [-0.3, 0.5]], dtype=torch.float64)
"""Logits of the first token, and of the second after a 1."""
THEN = torch.tensor([[-0.5, 0.3], [0.6, -0.1]], dtype=torch.float64)
OF_PROMPT = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[1.5, -0.5], [0.2, 0.1]]], dtype=torch.float64)
"""What each prompt adds to them."""
EXACT = SamplerCorrection("sequence_truncate", cap=None)
ESTIMATORS = {
    "rloo": rloo_advantages,
    "grpo, not scaled": lambda r, g: group_advantages(r, g, "none"),
}


def token_logprobs(logits, prompt, said):
    table = torch.log_softmax(logits + OF_PROMPT[prompt], -1)
    return torch.stack([table[place, token] for place, token in enumerate(said)])


def chance(logits, prompt, answers):
    return float(torch.stack([token_logprobs(logits, prompt, SAID[a]).sum() for a in answers]).sum().exp())


@cache
def group(prompt, answers, estimator, sampler):
    """What an older policy, or the present one, drew, with its advantages."""
    logits = {"now": NOW, "then": THEN}[sampler]
    completions = tuple(
        Completion(SAID[a], tuple(token_logprobs(logits, prompt, SAID[a]).tolist()), "", "stop")
        for a in answers
    )
    totals = tuple(REWARDS[prompt][a] for a in answers)
    advantages = ESTIMATORS[estimator](np.array(totals), np.zeros(SIZE, dtype=int))
    drawn = Group(Prompt("", (prompt,), seed_key=(prompt, 0)), completions)
    return ScoredGroup(drawn, {}, totals, tuple(advantages.tolist()))


def gradient(scored, correction, reduction="dr_grpo"):
    """The gradient of the loss of one group, times -1, by the code that trains, where the update begins with the present policy."""
    theta, samples = NOW.clone().requires_grad_(), samples_of([scored])
    (batch,) = build_micro_batches(
        samples, [range(SIZE)], 1, Reduction(reduction, LONGEST), lambda own: [own]
    )
    prompt = scored.group.prompt.ids[0]
    logprobs = torch.cat([token_logprobs(theta, prompt, c) for c in batch.completions])
    loss, _ = Objective(Clipped(Clip(0.2, 0.2)), correction)(loss_terms(batch, logprobs))
    loss.backward()
    return -theta.grad.numpy()


ANSWERS = list(product(range(len(SAID)), repeat=SIZE))


def on_policy(estimator, reduction="dr_grpo"):
    """The mean over the groups of both prompts that the present policy draws."""
    each = [
        chance(NOW, p, a) * gradient(group(p, a, estimator, "now"), None, reduction)
        for p in (0, 1)
        for a in ANSWERS
    ]
    return sum(each) / 2


def replayed(estimator, correction, share=None, reduction="dr_grpo"):
    """The mean over the rollouts that the older policy draws of what a place gets that a kept group takes."""
    total, known = np.zeros_like(NOW.numpy()), {}
    for outcome in product(ANSWERS, ANSWERS):
        drawn = [group(p, a, estimator, "then") for p, a in enumerate(outcome)]
        own = {p: g for p, g in enumerate(drawn) if is_informative(g)}
        buffer = ReplayBuffer(1)
        buffer.keep(0, 2, list(own), own)
        keys = buffer.draw(1, 2, np.random.default_rng(0))
        for key in keys:  # each of them takes the place equally often
            again = weighed(buffer.held([key])[key], 1.0, 0)
            place = key[1], outcome[key[1]]
            if place not in known:
                known[place] = gradient(again, correction, reduction)
            part = buffer.share if share is None else share
            total += (
                np.prod([chance(THEN, p, a) for p, a in enumerate(outcome)]) * part * known[place] / len(keys)
            )
    return total


@pytest.mark.parametrize("reduction", ["dr_grpo", "luspo"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_mean_over_what_an_older_policy_draws_is_the_gradient_of_the_present_one(estimator, reduction):
    expected = on_policy(estimator, reduction)
    assert replayed(estimator, EXACT, reduction=reduction) == pytest.approx(expected, rel=1e-5, abs=1e-8)
    for other in (dict(correction=EXACT, share=1.0), dict(correction=None)):
        off = replayed(estimator, **other, reduction=reduction) - expected
        assert np.abs(off).max() > 0.2 * np.abs(expected).max()


def test_a_cap_takes_away_what_is_above_it_and_nothing_else():
    """With RLOO: Σ_y b(y) min(ρ(y), C) (r(y) - E_b[r]) ∇log π(y), the mean over prompts, worked out by completion."""
    cap, expected = 1.2, np.zeros_like(NOW.numpy())
    capped = []
    for p in (0, 1):
        b, o = ([chance(logits, p, (a,)) for a in range(len(SAID))] for logits in (THEN, NOW))
        mean = np.dot(b, REWARDS[p])
        for a, said in enumerate(SAID):
            theta = NOW.clone().requires_grad_()
            token_logprobs(theta, p, said).sum().backward()
            weight = min(o[a] / b[a], cap)
            capped.append(weight == cap)
            expected += b[a] * weight * (REWARDS[p][a] - mean) * theta.grad.numpy() / (2 * LONGEST)
    assert any(capped) and not all(capped)
    found = replayed("rloo", SamplerCorrection("sequence_truncate", cap))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert np.abs(found - on_policy("rloo")).max() > 0.01 * np.abs(expected).max()
