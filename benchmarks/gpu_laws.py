"""Laws of sampling and of the update that only a device itself can confirm; see `benchmarks/gpu_check.py`.

A law is a function of a device that returns what it found, and raises AssertionError where it does not hold. The models
are random and tiny, in float32: whether tokens are the same is then a question with an answer.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from covey.sample.engine import in_order
from covey.sample.native.decode_loop import _Call
from covey.sample.native.draw import inverse_cdf
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.types import Completion, Prompt
from covey.update.forward import Forward
from covey.update.micro_batch import micro_batch
from covey.update.samples import Sample
from tests.sample.native.books import METHODS, checked
from tests.tiny import EOS, PAD, VOCABULARY, tiny_model, tiny_policy

for name in METHODS:
    setattr(_Call, name, checked(getattr(_Call, name)))

FAMILY = ("llama", "qwen2", "qwen3", "mistral")
SETTINGS = Sampling(max_new_tokens=40, stop_ids=(EOS, 17, 30), padding_id=PAD, seed=3)
PROMPTS = [Prompt("", tuple(range(10 + i, 16 + 5 * i)), {}, i, (i, 0)) for i in range(6)]


def model_of(device: torch.device, kind: str = "qwen2", scale: float = 2.0) -> Any:
    return tiny_model(kind, scale=scale).to(device)


def engine_of(model: Any, **options: Any) -> NativeEngine:
    engine = NativeEngine(lambda ids: "", **options)
    engine.load(model)
    return engine


def ids_of(engine: NativeEngine, prompts: Any = PROMPTS, size: int = 4, settings: Sampling = SETTINGS) -> Any:
    groups = in_order(prompts, engine.generate(prompts, size, settings))
    return [[c.ids for c in group.completions] for group in groups]


def the_fast_path_says_what_the_general_one_says(device: torch.device) -> str:
    for kind in FAMILY:
        model = model_of(device, kind)
        expected = ids_of(engine_of(model, path="general"))
        for options in ({}, {"shares_prompts": True}, {"shares_prompts": False}, {"in_place": True}):
            assert ids_of(engine_of(model, path="fast", **options)) == expected, (kind, options)
    return f"{len(FAMILY)} architectures, prompts shared and copied, weights copied and in place"


def batch_order_and_memory_do_not_matter(device: torch.device) -> str:
    model = model_of(device)
    expected = ids_of(engine_of(model, path="fast"))
    assert ids_of(engine_of(model, path="fast"), PROMPTS[::-1])[::-1] == expected, "order"
    assert [ids_of(engine_of(model, path="fast"), [p])[0] for p in PROMPTS] == expected, "composition"
    assert [g[:4] for g in ids_of(engine_of(model, path="fast"), size=7)] == expected, "size of the group"
    for options in ({"memory": 1}, {"memory": 200_000}, {"max_sequences": 5}, {"prefill_tokens": 7}):
        assert ids_of(engine_of(model, path="fast", **options)) == expected, options
    return "order, composition, group size, memory, chunks of prompts"


def the_same_call_gives_the_same_bits(device: torch.device) -> str:
    engine = engine_of(model_of(device).to(torch.bfloat16), path="fast")
    first, second = ([g.completions for g in engine.generate(PROMPTS, 4, SETTINGS)] for _ in range(2))
    assert first == second
    return "bfloat16, log-probabilities too"


def prompt_lookup_does_not_change_the_samples(device: torch.device) -> str:
    for kind in FAMILY:
        model = model_of(device, kind)
        for settings in (SETTINGS, replace(SETTINGS, greedy=True)):
            expected = ids_of(engine_of(model, path="fast", prompt_lookup=False), size=1, settings=settings)
            engine = engine_of(model, path="fast", prompt_lookup=True)
            for _ in range(2):  # the second call proposes the completions of the first
                assert ids_of(engine, size=1, settings=settings) == expected, (kind, settings.greedy)
    return "sampled and greedy"


def new_weights_are_used(device: torch.device) -> str:
    model = model_of(device)
    engine = engine_of(model, path="fast")
    before = ids_of(engine)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    engine.load(model)
    after = ids_of(engine)
    assert after == ids_of(engine_of(model, path="general")) and after != before
    return "after an update in place"


def a_token_of_probability_0_is_never_drawn(device: torch.device) -> str:
    generator = torch.Generator().manual_seed(0)
    drawn = 0
    for vocab in (97, 128, 32_000, 151_936):
        probabilities = torch.rand(64, vocab, generator=generator).pow(8)
        probabilities[torch.rand(64, vocab, generator=generator) < 0.7] = 0
        probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).to(device)
        for number in (0.0, 1e-300, 0.5, 1 - 2**-30, 1 - 2**-53):
            uniform = torch.full((64,), number, dtype=torch.float64, device=device)
            picked = probabilities.gather(-1, inverse_cdf(probabilities, uniform)[:, None])
            assert bool((picked > 0).all()), (vocab, number)
            drawn += len(picked)
    return f"{drawn} draws at the ends of the unit interval, vocabularies up to 151,936"


def frequencies_are_the_probabilities(device: torch.device) -> str:
    """Chi-square of first tokens; 92 degrees of freedom and more give a normal approximation, here at 5 sigma."""
    model, prompt = model_of(device, scale=1.0), PROMPTS[0]
    with torch.no_grad():
        logits = model(torch.tensor([prompt.ids], device=device)).logits[0, -1].double()
    logits[PAD] = float("-inf")
    expected = logits.softmax(-1).tolist()
    size = 20_000
    counts = Counter(
        ids[0] for ids in ids_of(engine_of(model), [prompt], size, replace(SETTINGS, max_new_tokens=1))[0]
    )
    possible = [i for i, p in enumerate(expected) if p > 0]
    square = sum((counts[i] - size * expected[i]) ** 2 / (size * expected[i]) for i in possible)
    freedom = len(possible) - 1
    assert abs(square - freedom) < 5 * (2 * freedom) ** 0.5, (square, freedom)
    return f"{size:,} first tokens, chi-square {square:.0f} at {freedom} degrees of freedom"


def graphs_are_captured_and_replayed(device: torch.device) -> str:
    """Only on CUDA: what the engine does by default there."""
    engine = engine_of(model_of(device), path="fast")
    first = ids_of(engine)
    assert engine.graphs is not None and engine.graphs.captured, "no graph was captured"
    number = len(engine.graphs.captured)
    assert ids_of(engine) == first and len(engine.graphs.captured) == number, "graphs were captured again"
    return f"{number} graphs, replayed by the second call"


def packing_does_not_change_the_update(device: torch.device) -> str:
    largest = 0.0
    for kind in FAMILY:
        model, batch = model_of(device, kind, 1.0), _micro_batch(device)
        results = [_update(model, batch, fast) for fast in (True, False)]
        largest = max(largest, *(_relative_gap(a, b) for a, b in zip(*results, strict=True)))
    assert largest < 1e-3, largest
    return f"log-probabilities and gradients, largest relative gap {largest:.1g}"


def _update(model: Any, batch: Any, fast: bool) -> list[torch.Tensor]:
    """Log-probabilities, and the gradients of their sum and the entropy's."""
    forward = Forward(model, fast=fast)
    model.zero_grad()
    logprobs, entropy = forward(model, batch)
    with forward.layout(batch):
        (logprobs.sum() + 0.3 * entropy.sum()).backward()
    assert forward.is_fast == fast, "the packed pass was given up"
    return [logprobs.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def _relative_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-6))


def _micro_batch(device: torch.device) -> Any:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for group, prompt in enumerate(PROMPTS[:3]):
        for length in (5, 1, 12):
            ids = tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())
            completion = Completion(ids, (0.0,) * length, "", "stop")
            samples.append(Sample(prompt, completion, 1.0, group))
    return micro_batch(samples, list(range(len(samples))), [1.0] * len(samples)).to(device)


def a_tiny_policy_learns(device: torch.device) -> str:
    """Train a short run with everything in it; half of the vocabulary is paid for."""
    from datasets import Dataset

    from covey import GRPOConfig, GRPOTrainer

    def paid(completion_ids: Any, **_: Any) -> list[float]:
        return [sum(i >= VOCABULARY // 2 for i in ids) / len(ids) for ids in completion_ids]

    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=f"{folder}/run",
            learning_rate=2e-2,
            max_steps=25,
            per_device_train_batch_size=32,
            max_completion_length=6,
            logging_steps=1,
            report_to="none",
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
        rows = Dataset.from_dict({"prompt": [f"{n} + 1 =" for n in range(8)]})
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = GRPOTrainer(tiny_policy(f"{folder}/policy"), paid, args, rows)
            trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    assert rewards[-1] > rewards[0] + 0.15, rewards
    return f"reward {rewards[0]:.2f} → {rewards[-1]:.2f} in {len(rewards)} steps"


LAWS = (
    the_fast_path_says_what_the_general_one_says,
    batch_order_and_memory_do_not_matter,
    the_same_call_gives_the_same_bits,
    prompt_lookup_does_not_change_the_samples,
    new_weights_are_used,
    a_token_of_probability_0_is_never_drawn,
    frequencies_are_the_probabilities,
    packing_does_not_change_the_update,
    a_tiny_policy_learns,
)

CUDA_LAWS = (graphs_are_captured_and_replayed,)
