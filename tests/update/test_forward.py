"""The packed, chunked forward pass equals the plain one, in values and gradients."""

import logging
import random

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import covey.kernels.head_logprobs as head_module
from covey.kernels.blockwise_attention import PackedSection
from covey.kernels.head_logprobs import LogitForm, chunked_logprobs
from covey.models.balancing import has_balancing_loss
from covey.types import Completion, Prompt
from covey.update.forward import Forward, packed_logprobs, plain_logprobs, rows_to_compare
from covey.update.micro_batch import micro_batch
from covey.update.packed_attention import packed_attention
from covey.update.packing import pack
from covey.update.samples import Sample
from tests.families import tiny_of
from tests.tiny import KINDS, VOCABULARY, llama_sizes, tiny_model


def sample(prompt, length, group, rng):
    ids = tuple(rng.randrange(VOCABULARY) for _ in range(length))
    return Sample(Prompt("", prompt), Completion(ids, (0.0,) * length, "", "stop"), 1.0, group)


def batch_of(groups, seed=0):
    """A micro-batch of groups given as (prompt length, completion lengths)."""
    rng = random.Random(seed)
    samples = []
    for number, (prompt_length, lengths) in enumerate(groups):
        prompt = tuple(rng.randrange(VOCABULARY) for _ in range(prompt_length))
        samples += [sample(prompt, n, number, rng) for n in lengths]
    return micro_batch(samples, list(range(len(samples))), [1.0] * len(samples))


SHAPES = {
    "one group": [(7, (5, 9, 1, 12))],
    "equal lengths": [(3, (4, 4, 4))],
    "several groups": [(7, (5, 1)), (2, (8, 3, 6)), (11, (2,))],
    "single tokens": [(1, (1, 1)), (4, (1, 1, 1))],
    "the same prompt in two groups": [(5, (3, 4)), (5, (2, 6))],
}


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def backward(model, way, batch, temperature=1.0, entropy_weight=0.3):
    model.zero_grad()
    logprobs, entropy, _ = way(model, batch, temperature)
    weights = torch.linspace(-1, 1, logprobs.numel())
    (logprobs * weights).sum().add(entropy.sum() * entropy_weight).backward()
    return logprobs.detach(), entropy.detach(), gradients(model)


def assert_same(a, b, tolerance=2e-5):
    for x, y in zip(a[:2], b[:2], strict=True):
        assert torch.allclose(x, y, atol=tolerance)
    scale = max(float(g.abs().max()) for g in b[2].values())
    assert a[2].keys() == b[2].keys()
    for name, gradient in b[2].items():
        assert float((a[2][name] - gradient).abs().max()) < tolerance * max(scale, 1.0), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_equals_plain_in_values_and_gradients(kind, shape):
    model = tiny_model(kind, scale=3.0)
    forward = Forward(model)
    batch = batch_of(SHAPES[shape])
    with forward.layout(batch):
        fast = backward(model, packed_logprobs, batch, 0.7)
    assert forward.is_fast, "the model takes packed rows"
    assert_same(fast, backward(model, plain_logprobs, batch, 0.7))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("adapter", [False, True])
def test_under_gradient_checkpointing_and_adapters(reentrant, adapter):
    def build():
        model = tiny_model("llama", scale=3.0)
        if adapter:
            torch.manual_seed(1)
            model = get_peft_model(
                model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
            )
            model.enable_input_require_grads()
        return model

    model = build().train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    forward = Forward(model)
    batch = batch_of(SHAPES["several groups"])
    with forward.layout(batch):
        fast = backward(model, packed_logprobs, batch)
    assert_same(fast, backward(build(), plain_logprobs, batch))


def test_an_adapted_head_is_called_as_it_is():
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(tiny_model("qwen2", scale=3.0), config)
    forward = Forward(model)
    batch = batch_of(SHAPES["one group"])
    with forward.layout(batch):
        fast = backward(model, packed_logprobs, batch)
    assert_same(fast, backward(model, plain_logprobs, batch))


def test_tied_embeddings_get_both_gradients():
    model = tiny_model("llama", scale=3.0, tie_word_embeddings=True)
    forward = Forward(model)
    batch = batch_of(SHAPES["several groups"])
    with forward.layout(batch):
        fast = backward(model, packed_logprobs, batch)
    assert_same(fast, backward(model, plain_logprobs, batch))


def test_the_model_attends_as_before_outside_of_the_layout():
    model = tiny_model("qwen2", scale=3.0)
    ids = torch.tensor([[7, 8, 9, 10]])
    before, name = model(input_ids=ids).logits, model.config._attn_implementation
    forward = Forward(model)
    with forward.layout(batch_of(SHAPES["one group"])):
        assert model.config._attn_implementation == "covey_packed"
    assert model.config._attn_implementation == name
    assert torch.equal(model(input_ids=ids).logits, before)


def test_rows_of_a_batch_do_not_see_one_another():
    """A completion's log-probabilities are the same alone and beside others."""
    model = tiny_model("qwen2", scale=3.0)
    Forward(model)
    batch = batch_of(SHAPES["several groups"])
    together, *_ = packed_logprobs(model, batch)
    rng = random.Random(5)
    start = 0
    for prompt, completion in zip(batch.prompts, batch.completions, strict=True):
        alone = sample(prompt, 1, 0, rng)
        one = micro_batch(
            [Sample(alone.prompt, Completion(completion, (0.0,) * len(completion), "", "stop"), 1.0, 0)],
            [0],
            [1.0],
        )
        stop = start + len(completion)
        assert torch.allclose(together[start:stop], packed_logprobs(model, one)[0], atol=1e-5)
        start = stop


def test_a_prompt_is_read_once_and_last_tokens_not_at_all():
    packed = pack(batch_of([(7, (5, 9)), (3, (2, 2))]))
    assert packed.ids.numel() == 7 + 4 + 8 + 3 + 1 + 1
    assert packed.positions[0].tolist() == [*range(7), *range(7, 11), *range(7, 15), *range(3), 3, 3]


def test_a_window_shorter_than_the_sequence_takes_the_plain_way():
    model = tiny_model("mistral", scale=3.0, sliding_window=8)
    forward = Forward(model)
    long, short = batch_of([(7, (5, 9))]), batch_of([(3, (2, 4))])
    assert torch.allclose(forward(model, long)[0], plain_logprobs(model, long)[0], atol=1e-5)
    assert torch.allclose(forward(model, short)[0], plain_logprobs(model, short)[0], atol=1e-5)
    assert not forward._packs(long) and forward._packs(short)


def test_the_first_use_takes_as_many_passes_whatever_the_batch():
    """Processes that share weights would wait for one another if one compared the two ways and another did not."""
    passes = {}
    for name, groups in {"long": [(7, (5, 9))], "long prompt": [(20, (3,))], "short": [(3, (2, 4))]}.items():
        model = tiny_model("mistral", scale=3.0, sliding_window=8)
        forward, calls = Forward(model), []
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(None))
        forward(model, batch_of(groups))
        assert forward.is_fast
        passes[name] = len(calls)
    assert passes == {"long": 6, "long prompt": 6, "short": 6}


@pytest.mark.parametrize("break_it", ["scale", "positions"])
def test_a_model_that_packing_does_not_fit_falls_back_with_one_line(break_it, caplog):
    model = tiny_model("qwen2", scale=3.0)
    original = type(model).forward

    class Odd(type(model)):
        """A head whose logits no config field describes, or a body that ignores positions."""

        def forward(self, *args, **kwargs):
            out = original(self, *args, **kwargs)
            if break_it == "scale":
                out.logits = out.logits * 1.7
            return out

    model.__class__ = Odd
    if break_it == "positions":
        body = type(model.model).forward
        model.model.forward = lambda *a, position_ids=None, **k: body(model.model, *a, **k)
    forward = Forward(model)
    batch = batch_of(SHAPES["several groups"])
    with caplog.at_level(logging.WARNING, logger="covey.update.forward"):
        got = [forward(model, batch)[0] for _ in range(2)]
    assert not forward.is_fast
    assert sum("row by row" in record.message for record in caplog.records) == 1
    assert torch.allclose(got[0], plain_logprobs(model, batch)[0], atol=1e-5)


ODD_ATTENTION = {
    "softcap": ("gemma2", {"attn_logit_softcapping": 3.0}),
    "s_aux": ("gpt_oss", {}),
}


@pytest.mark.parametrize("keyword", ODD_ATTENTION)
def test_attention_with_more_than_packing_computes_is_not_packed(keyword, caplog):
    """In bfloat16 the outputs alone do not tell: a cap on scores that are small makes no difference at first."""
    kind, fields = ODD_ATTENTION[keyword]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**llama_sizes(), "vocab_size": VOCABULARY, **fields})
    config.eos_token_id = config.pad_token_id = 0
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    forward = Forward(model)
    batch = batch_of(SHAPES["several groups"])
    with caplog.at_level(logging.WARNING, logger="covey.update.forward"):
        got = forward(model, batch)[0]
    assert not forward.is_fast
    (line,) = [r.getMessage() for r in caplog.records if r.name == "covey.update.forward"]
    assert f"uses {keyword}, which packed attention does not compute" in line and "row by row" in line
    assert torch.equal(got, plain_logprobs(model, batch)[0])


def test_keywords_without_a_value_change_nothing():
    """Layers name what they may have; a window is kept by `Forward`."""
    q = torch.randn(1, 2, 3, 4)
    nothing = dict(softcap=None, s_aux=None, sliding_window=4, is_causal=True, use_cache=False)
    sections = (PackedSection(0, 2, (1,)),)
    want = packed_attention(torch.nn.Identity(), q, q, q, None, sections=sections)[0]
    got = packed_attention(torch.nn.Identity(), q, q, q, None, sections=sections, **nothing)[0]
    assert torch.equal(got, want)
    with pytest.raises(TypeError, match="is_causal"):
        packed_attention(torch.nn.Identity(), q, q, q, None, sections=sections, is_causal=False)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("kept", [0, 20, 50])
@pytest.mark.parametrize("rows", [1, 16, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("cap", "scale", "temperature"), [(None, 1.0, 1.0), (5.0, 0.3, 0.7), (None, 2.0, 1.3)]
)
def test_chunks_equal_the_naive_way(monkeypatch, cap, scale, temperature, bias, rows, kept, with_entropy):
    """Against float64 with the whole matrix of logits, gradients of hidden states, weight and bias included.

    Whatever the chunks, and however many rows are kept for the backward pass.
    """
    monkeypatch.setattr(head_module, "chunk_rows", lambda vocabulary: rows)
    monkeypatch.setattr(head_module, "KEPT_BYTES", kept * 301 * 4)
    torch.manual_seed(0)
    exact = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((50, 16), (301, 16), (301,))]
    inputs = [x.detach().float().requires_grad_() for x in exact]
    targets = torch.randint(0, 301, (50,))
    got = chunked_logprobs(
        inputs[0], inputs[1], inputs[2] if bias else None, targets, LogitForm(scale, cap, temperature)
    )
    z = F.linear(exact[0], exact[1], exact[2] if bias else None) * scale
    z = (cap * torch.tanh(z / cap) if cap else z) / temperature
    logp = torch.log_softmax(z, -1)
    want = logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    assert torch.allclose(got[0].double(), want[0], atol=1e-5)
    assert torch.allclose(got[1].double(), want[1], atol=1e-4)
    weights = torch.randn(1 + with_entropy, 50, dtype=torch.float64)
    sum((g * w.float()).sum() for g, w in zip(got, weights, strict=False)).backward()
    sum((g * w).sum() for g, w in zip(want, weights, strict=False)).backward()
    for mine, theirs in zip(inputs if bias else inputs[:2], exact, strict=False):
        assert torch.allclose(mine.grad.double(), theirs.grad, atol=1e-4 * float(theirs.grad.abs().max()))


def test_a_nearly_certain_token_keeps_its_gradient_in_half_precision():
    """1 - p is taken before it is rounded: p itself would be 1 in bfloat16."""
    hidden = torch.tensor([[1.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[7.0], [0.0]])
    chunked_logprobs(hidden, weight, None, torch.tensor([0]), LogitForm())[0].sum().backward()
    assert hidden.grad.item() == pytest.approx(7 * (1 - torch.tensor(7.0).sigmoid().item()), rel=0.02)


def test_impossible_tokens_leave_the_entropy_finite():
    hidden = torch.randn(3, 4)
    weight = torch.randn(5, 4)
    bias = torch.tensor([0.0, float("-inf"), 0.0, 0.0, 0.0])
    logprobs, entropy = chunked_logprobs(hidden, weight, bias, torch.tensor([0, 2, 3]), LogitForm())
    assert torch.isfinite(logprobs).all() and torch.isfinite(entropy).all()


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return out


def test_memory_does_not_grow_with_tokens_times_vocabulary(monkeypatch):
    """The largest tensor on the way, forward and backward, is a chunk of logits or what may be kept of them."""
    monkeypatch.setattr(head_module, "CHUNK_BYTES", 2**20)
    monkeypatch.setattr(head_module, "KEPT_BYTES", 2**21)
    tokens, vocabulary = 2048, 4000
    hidden = torch.randn(tokens, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    with Largest() as largest:
        logprobs, _ = chunked_logprobs(
            hidden, weight, None, torch.zeros(tokens, dtype=torch.long), LogitForm()
        )
        logprobs.sum().backward()
    assert largest.elements == 2**21 // (4 * vocabulary) * vocabulary < tokens * vocabulary


def test_nothing_is_kept_where_there_is_no_backward_pass(monkeypatch):
    """Old and reference log-probabilities, though the weights want gradients: one chunk is the largest tensor."""
    monkeypatch.setattr(head_module, "CHUNK_BYTES", 2**20)
    weight = torch.randn(4000, 8, requires_grad=True)
    with Largest() as largest, torch.no_grad():
        chunked_logprobs(torch.randn(2048, 8), weight, None, torch.zeros(2048, dtype=torch.long), LogitForm())
    assert largest.elements == 2**20 // (4 * 4000) * 4000


@pytest.mark.parametrize(
    ("groups", "rows"),
    [
        ([(7, (5, 1)), (2, (8, 3, 6)), (11, (2,))], [2, 4, 0]),
        ([(3, (4, 4, 9))], [2, 0]),
        ([(3, (4,)), (5, (7,))], [1, 0]),
        ([(3, (4,))], [0]),
    ],
)
def test_the_first_use_compares_siblings_and_a_stranger(groups, rows):
    """A check of the whole micro-batch would hold its logits, which packing is there to avoid."""
    assert rows_to_compare(batch_of(groups)) == rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "granitemoe"])
def test_the_balancing_loss_of_packed_rows_is_the_models_own_over_plain_rows(family, shape):
    """A prompt that is read once counts once for each of its completions, and last tokens are read, too."""
    model, batch = tiny_of(family), batch_of(SHAPES[shape])
    if not has_balancing_loss(model):
        pytest.skip("this transformers reckons no balancing loss for the family")
    forward = Forward(model, balances=True)
    with forward.layout(batch):
        logprobs, _ = forward(model, batch)
        (packed_loss := forward.aux_loss).backward()
    got = gradients(model)
    assert forward.is_fast
    model.zero_grad()
    plain, _, own = plain_logprobs(model, batch, balances=True)
    own.backward()
    assert packed_loss.item() == pytest.approx(own.item(), rel=1e-5)
    assert torch.allclose(logprobs, plain, atol=1e-5)
    routers = [n for n in got if any(w in n for w in ("gate.weight", "router"))]
    assert routers
    for name, gradient in gradients(model).items():
        assert torch.allclose(got[name], gradient, atol=1e-6), name


def test_a_balancing_loss_of_another_formula_is_not_packed(caplog):
    """Experts per token under a name of its own, say: the model's own loss is then taken, row by row."""
    model = tiny_of("qwen3_moe")
    model.num_experts_per_tok = 1  # what its loss is reckoned with; two experts get each token
    with caplog.at_level(logging.WARNING, logger="covey.update.forward"):
        forward = Forward(model, balances=True)
        forward(model, batch_of(SHAPES["several groups"]))
    assert not forward.is_fast and "balancing loss" in caplog.text
    assert forward.aux_loss.item() == pytest.approx(
        plain_logprobs(model, batch_of(SHAPES["several groups"]), balances=True)[2].item()
    )
