"""Tokens that a tool put between the policy's: read by the policy, and in nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from covey.kernels import head_logprobs as kernel
from covey.score.baselines import opo_advantages
from covey.score.estimators import Outcomes
from covey.score.score_metrics import completion_metrics, token_metrics
from covey.score.shaping import Shaping
from covey.types import Completion, Group, Prompt, Score, ScoredGroup, Turn
from covey.update import logprob_forward
from covey.update.forward import Forward, packed_logprobs, plain_logprobs
from covey.update.micro_batch import build_micro_batches
from covey.update.objective import Objective
from covey.update.ratios import ratios_at
from covey.update.reduction import Reduction
from covey.update.sampler_correction import SamplerCorrection
from covey.update.samples import Sample
from covey.update.terms import loss_terms
from tests.tiny import tiny_model

MASKS = [(True, True, True, False, False, True, True), (True,) * 4]
"""W1: 3 sampled, 2 injected, 2 sampled; and 4 sampled."""
PROMPT = Prompt("p", (11, 12, 13), seed_key=(0, 0))
A = 0.5 / (0.5**0.5 + 1e-4)
"""(r - mean) / (dev + 1e-4) of the rewards 1 and 0."""


def completions(injected: float = 0.0) -> list[Completion]:
    found = []
    for number, mask in enumerate(MASKS):
        ids = tuple(20 + 7 * number + t for t in range(len(mask)))
        logprobs = tuple(-1.0 - 0.1 * t if m else injected for t, m in enumerate(mask))
        written = None if all(mask) else mask
        turns = (Turn(0, 3, 5), Turn(5, 7, 7)) if number == 0 else (Turn(0, 4, 4),)
        found.append(Completion(ids, logprobs, "", "stop", written, turns=turns))
    return found


def samples(injected: float = 0.0) -> list[Sample]:
    return [Sample(PROMPT, c, a, 0) for c, a in zip(completions(injected), (A, -A), strict=True)]


def batches(name="dapo", cut=((0, 1),), accumulation=None, injected=0.0, limit=16):
    reduction = Reduction(name, limit, "sequences")
    return build_micro_batches(
        samples(injected), cut, accumulation or len(cut), reduction, lambda value: [value]
    )


def logits(model, sample):
    ids = torch.tensor([[*sample.prompt.ids, *sample.completion.ids]])
    first = len(sample.prompt.ids) - 1
    return torch.log_softmax(model(input_ids=ids).logits[0, first:-1].float(), -1)


# --- worked numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weights", "value"),
    [
        ("dapo", (1 / 9, 1 / 9), -0.078556),
        ("prompt_mean", (1 / 9, 1 / 9), -0.078556),
        ("grpo", (1 / 10, 1 / 8), 0.0),
        ("dr_grpo", (1 / 32, 1 / 32), -0.022094),
    ],
)
def test_weights_and_losses_count_sampled_tokens(name, weights, value):
    """W1; injected tokens counted, dapo would give -0.192820 and dr_grpo -0.066282."""
    (batch,) = batches(name)
    assert batch.weights.tolist() == pytest.approx(weights)
    terms = loss_terms(batch, batch.sampler_logprobs)
    assert terms.lengths.tolist() == [5, 4]
    loss = -(terms.weights * terms.advantages).sum()  # every ratio is 1
    assert float(loss) == pytest.approx(value, abs=1e-6)


def test_the_opo_baseline_weighs_by_sampled_tokens():
    group = Group(PROMPT, tuple(completions()))
    scored = ScoredGroup(group, {"r": (Score(1.0), Score(0.0))}, (1.0, 0.0), (0.0, 0.0), weights={"r": 1.0})
    outcomes = Outcomes.of([scored], ["r"], Shaping())
    assert outcomes.lengths.tolist() == [5.0, 4.0]
    centred = opo_advantages(outcomes.totals, outcomes.groups, outcomes.lengths)
    assert np.allclose(centred, [1 - 5 / 9, -5 / 9])


def test_the_ratio_of_a_sequence_is_that_of_its_sampled_tokens():
    """W2: exp(0.2 / 3); the injected token counted, 3.669297."""
    mask = (True, True, False, True)
    completion = Completion((20, 21, 22, 23), (-1.0,) * 4, "", "stop", mask)
    reduction = Reduction("grpo", 8, "sequences")
    (batch,) = build_micro_batches(
        [Sample(PROMPT, completion, 1.0, 0)], [[0]], 1, reduction, lambda value: [value]
    )
    new = batch.sampler_logprobs + torch.tensor([0.1, 0.2, 5.0, -0.1])
    batch.old_logprobs = batch.sampler_logprobs
    terms = loss_terms(batch, new)
    assert ratios_at("sequence", terms).tolist() == pytest.approx([1.068939] * 3, abs=1e-6)


def test_lengths_and_tokens_in_metrics_are_those_that_the_policy_wrote():
    cut = replace(completions()[0], finish="turns")
    groups = [Group(PROMPT, (cut, completions()[1]))]
    found = completion_metrics(groups)
    assert [found[f"completions/{n}_length"].value for n in ("mean", "min", "max")] == [4.5, 4, 5]
    assert found["completions/mean_terminated_length"].value == 4
    assert found["completions/clipped_ratio"].value == 0.5, "a limit of turns is a limit"
    assert token_metrics(groups)["num_tokens"].value == 2 * 3 + 5 + 4


# --- the forward pass -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return tiny_model("qwen2", scale=2.0)


@pytest.mark.parametrize("compute", [packed_logprobs, plain_logprobs])
def test_numbers_of_sampled_tokens_are_those_of_a_pass_over_everything(policy, compute):
    Forward(policy)
    (batch,) = batches()
    with torch.no_grad():
        everything = replace(batch, mask=torch.ones_like(batch.mask))
        (logprobs, entropy, _), (want, of_all, _) = compute(policy, batch), compute(policy, everything)
    kept = batch.mask
    assert torch.allclose(logprobs[kept], want[kept], atol=1e-6)
    assert torch.allclose(entropy[kept], of_all[kept], atol=1e-6)
    assert logprobs[~kept].tolist() == entropy[~kept].tolist() == [0.0, 0.0]
    own = torch.cat(
        [logits(policy, s)[torch.arange(len(s.completion.ids)), list(s.completion.ids)] for s in samples()]
    )
    assert torch.allclose(logprobs[kept], own[kept], atol=1e-5)


def test_the_head_sees_sampled_tokens_alone(policy, monkeypatch):
    """At 80 % injected it has a fifth of the work."""
    seen = []

    def counted(hidden, *rest):
        seen.append(len(hidden))
        return kernel.chunked_logprobs(hidden, *rest)

    monkeypatch.setattr(logprob_forward, "chunked_logprobs", counted)
    forward = Forward(policy)
    forward.is_due = False
    for batch, number in ((batches()[0], 9), (batches(cut=((1,),))[0], 4)):
        forward(policy, batch)
        assert seen.pop() == number == int(batch.mask.sum())
    none = replace(batch, mask=torch.zeros_like(batch.mask))
    logprobs, _ = forward(policy, none)
    assert seen.pop() == 4 and logprobs.requires_grad, (
        "with sharded weights the head takes part in every pass"
    )


# --- one step ---------------------------------------------------------------------------------------------------------


def stepped(cut, injected=0.0, beta=0.0, packs=True, correction=None):
    """Gradients of one optimizer step, and its loss, by way of everything that an update does."""
    model, losses = tiny_model("qwen2", scale=2.0), []
    forward = Forward(model, fast=packs)
    for batch in batches(cut=cut, injected=injected):
        with forward.layout(batch):
            logprobs, entropy = forward(model, batch)
            batch.ref_logprobs = torch.full_like(logprobs, -4.0) if beta else None
            loss, metrics = Objective(beta=beta, correction=correction)(
                loss_terms(batch, logprobs, entropy), 0.0
            )
            loss.backward()
        losses.append(loss.detach())
    assert len(metrics) and all(p.grad is not None for p in model.parameters())
    return torch.cat([*(p.grad.flatten() for p in model.parameters()), sum(losses)[None]])


def oracle(beta=0.0):
    """The same with padded rows, masks and loops; DAPO: every sampled token weighs 1 / 9, ratios are 1."""
    model = tiny_model("qwen2", scale=2.0)
    loss = torch.zeros(())
    for sample in samples():
        table = logits(model, sample)
        for place, (token, is_sampled) in enumerate(
            zip(sample.completion.ids, sample.completion.loss_mask, strict=True)
        ):
            if is_sampled:
                present = table[place, token]
                gap = -4.0 - present
                divergence = torch.exp(present - present.detach()) * (torch.exp(gap) - gap - 1)
                loss = (
                    loss + (beta * divergence - torch.exp(present - present.detach()) * sample.advantage) / 9
                )
    loss.backward()
    return torch.cat([*(p.grad.flatten() for p in model.parameters()), loss.detach()[None]])


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("packs", [True, False])
def test_a_step_is_the_oracles_whatever_the_cut(beta, packs):
    """W12."""
    want = oracle(beta)
    for cut in (((0, 1),), ((0,), (1,)), ((1,), (0,))):
        assert torch.allclose(stepped(cut, beta=beta, packs=packs), want, atol=1e-6)


@pytest.mark.parametrize("packs", [True, False])
def test_what_the_sampler_said_of_injected_tokens_is_in_no_bit(packs):
    """Row 2: -100, or no number at all."""
    correction = SamplerCorrection()
    want = stepped(((0, 1),), packs=packs, correction=correction)
    assert not torch.equal(want, stepped(((0, 1),), packs=packs)), "the sampler's numbers are asked for"
    for injected in (-100.0, float("nan"), float("-inf")):
        found = stepped(((0, 1),), injected=injected, packs=packs, correction=correction)
        assert torch.equal(found, want)
