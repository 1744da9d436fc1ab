"""Adapters: only they move, the reference is right however they came, and what is saved can be loaded."""

import copy

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM

from covey.config import ModelConfig, get_peft_config
from covey.errors import ConfigError, LoadingError
from covey.models.adapters import load_adapter, merge_adapter
from tests.tiny import tiny_policy
from tests.trainer.harness import Recorder, logged, make, rows, train, weights

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


def trained_adapter(folder):
    """A PeftModel whose adapter says something: B is not zero."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LORA)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def is_adapter(name):
    return "lora_" in name or "modules_to_save" in name


@pytest.mark.parametrize("checkpointing", [None, True, False])
def test_only_the_adapter_moves(tmp_path, checkpointing):
    folder = tiny_policy(tmp_path / "m")
    kwargs = (
        {} if checkpointing is None else {"gradient_checkpointing_kwargs": {"use_reentrant": checkpointing}}
    )
    trainer = make(
        folder,
        tmp_path,
        Recorder(REWARDS),
        rows(),
        peft_config=LORA,
        gradient_checkpointing=checkpointing is not None,
        **kwargs,
    )
    before = weights(trainer)
    trainer.train()
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    assert moved and all(is_adapter(name) for name in moved)
    assert any("lora_B" in name for name in moved)


@pytest.mark.parametrize("how", ["full", "fresh", "random start", "trained", "dora", "modules to save"])
def test_kl_is_zero_at_the_first_step_and_not_later(tmp_path, how):
    folder = tiny_policy(tmp_path / "m", scale=2.0)
    adapter = {
        "fresh": LORA,
        "random start": LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False),
        "dora": LoraConfig(r=4, target_modules=["q_proj"], use_dora=True),
        "modules to save": LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    }.get(how)
    policy = trained_adapter(folder) if how == "trained" else folder
    trainer = train(
        policy,
        tmp_path,
        Recorder(REWARDS),
        rows(),
        beta=0.1,
        max_steps=2,
        learning_rate=30.0,
        peft_config=adapter,
        processing_class=None if how != "trained" else _tokenizer(folder),
    )
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[1] > 1e-8


def _tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_the_reference_stays_where_it_was_and_the_policy_is_given_back(tmp_path):
    trainer = make(tiny_policy(tmp_path / "m"), tmp_path, Recorder(REWARDS), rows(), beta=0.1, max_steps=3)
    start = {name: value.clone() for name, value in trainer.updater.reference.values.items()}
    trainer.train()
    assert all(torch.equal(value, start[name]) for name, value in trainer.updater.reference.values.items())
    assert any(not torch.equal(p, start[n]) for n, p in trainer.model.named_parameters())


@pytest.mark.parametrize("adapter", [None, LORA])
def test_a_synchronised_reference_is_the_policy_again(tmp_path, adapter):
    folder = tiny_policy(tmp_path / "m", scale=2.0)
    trainer = train(
        folder,
        tmp_path,
        Recorder(REWARDS),
        rows(),
        beta=0.1,
        max_steps=3,
        sync_ref_model=True,
        ref_model_sync_steps=2,
        ref_model_mixup_alpha=1.0,
        peft_config=adapter,
    )
    kl = logged(trainer, "kl")
    assert kl[1] > 1e-6 and kl[2] == pytest.approx(0.0, abs=1e-6)


def test_synchronising_without_a_reference_is_refused():
    from covey import GRPOConfig

    with pytest.raises(ConfigError, match="beta"):
        GRPOConfig(output_dir="unused", sync_ref_model=True)


def test_a_saved_adapter_loads_alone_and_merged_with_the_same_logits(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    trainer = train(folder, tmp_path, Recorder(REWARDS), rows(), peft_config=LORA, max_steps=2)
    trainer.save_model(str(tmp_path / "saved"))
    ids = torch.tensor([[7, 8, 9, 10]])
    want = trainer.model.eval()(input_ids=ids).logits
    assert not (tmp_path / "saved" / "model.safetensors").exists(), "an adapter is saved alone"
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(tmp_path / "saved"))
    assert torch.allclose(again.eval()(input_ids=ids).logits, want, atol=1e-6)
    merge_adapter(trainer.model, str(tmp_path / "merged"), trainer.processing_class)
    merged = AutoModelForCausalLM.from_pretrained(str(tmp_path / "merged"))
    assert torch.allclose(merged.eval()(input_ids=ids).logits, want, atol=1e-5)
    assert isinstance(trainer.model, PeftModel), "merging leaves the policy alone"


def test_a_saved_full_model_loads_with_the_same_logits_and_its_tokenizer(tmp_path):
    trainer = train(tiny_policy(tmp_path / "m"), tmp_path, Recorder(REWARDS), rows())
    trainer.save_model(str(tmp_path / "saved"))
    again = AutoModelForCausalLM.from_pretrained(str(tmp_path / "saved"))
    ids = torch.tensor([[7, 8, 9, 10]])
    assert torch.equal(again.eval()(input_ids=ids).logits, trainer.model.eval()(input_ids=ids).logits)
    assert (
        _tokenizer(str(tmp_path / "saved"))("abc")["input_ids"]
        == trainer.processing_class("abc")["input_ids"]
    )


def test_half_precision_weights_under_a_float32_adapter(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    trainer = make(
        folder,
        tmp_path,
        Recorder(REWARDS),
        rows(),
        peft_config=LORA,
        model_init_kwargs={"dtype": "bfloat16"},
    )
    before = weights(trainer)
    trainer.train()
    assert any(not torch.equal(v, before[n]) for n, v in weights(trainer).items())


def test_two_adapters_at_once_are_refused(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    with pytest.raises(LoadingError, match="PeftModel already"):
        make(
            trained_adapter(folder),
            tmp_path,
            Recorder(REWARDS),
            rows(),
            peft_config=LORA,
            processing_class=_tokenizer(folder),
        )


LEARNED_PROMPTS = [
    PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
]


@pytest.mark.parametrize("adapter", LEARNED_PROMPTS, ids=lambda a: a.peft_type.value)
@pytest.mark.parametrize("how", ["fresh", "given", "merged"])
def test_adapters_that_learn_prompts_are_refused(tmp_path, adapter, how):
    """Log-probabilities are read at positions that would be off by the number of virtual tokens."""
    folder = tiny_policy(tmp_path / "m")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), copy.deepcopy(adapter))
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(LoadingError, match=f"{adapter.peft_type.value}.*virtual tokens.*LoRA"):
        if how == "merged":
            load_adapter(str(tmp_path / "adapter"), folder)
        elif how == "given":
            make(adapted, tmp_path, Recorder(REWARDS), rows(), processing_class=_tokenizer(folder))
        else:
            make(folder, tmp_path, Recorder(REWARDS), rows(), peft_config=copy.deepcopy(adapter))


@pytest.mark.parametrize("kind", [LoHaConfig, OFTConfig, IA3Config])
def test_kin_of_lora_agree_with_the_sampler(tmp_path, kind):
    """Also once they have moved: what the update computes is what the sampler drew from."""
    more = {IA3Config: {"feedforward_modules": []}, OFTConfig: {"oft_block_size": 8}}.get(kind, {})
    adapter = kind(target_modules=["q_proj", "v_proj"], **more)
    folder = tiny_policy(tmp_path / "m", scale=2.0)
    settings = dict(peft_config=adapter, max_steps=3, learning_rate=0.1, beta=0.1, optim="adamw_torch")
    trainer = train(folder, tmp_path, Recorder(REWARDS), rows(), **settings)
    assert logged(trainer, "kl")[-1] > 1e-4, "the adapter has moved"
    gaps = logged(trainer, "sampling/logp_gap/max")
    assert len(gaps) == 3 and max(gaps) < 1e-4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("all-linear", "all-linear"),
        (["all-linear"], "all-linear"),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
    ],
)
def test_every_form_of_target_modules(given, expected):
    adapter = get_peft_config(ModelConfig(use_peft=True, lora_target_modules=given))
    assert adapter.target_modules == expected


def test_all_linear_trains(tmp_path):
    adapter = get_peft_config(ModelConfig(use_peft=True, lora_target_modules="all-linear", lora_r=2))
    trainer = train(tiny_policy(tmp_path / "m"), tmp_path, Recorder(REWARDS), rows(), peft_config=adapter)
    assert {"q_proj", "down_proj", "gate_proj"} <= {
        n.split(".lora_")[0].split(".")[-1] for n, p in trainer.model.named_parameters() if p.requires_grad
    }


def test_every_option_reaches_the_adapter_and_unknown_ones_raise():
    adapter = get_peft_config(
        ModelConfig(
            use_peft=True,
            lora_r=3,
            lora_alpha=5,
            lora_dropout=0.2,
            lora_modules_to_save=["lm_head"],
            use_rslora=True,
            use_dora=True,
            lora_init="gaussian",
            lora_kwargs={"rank_pattern": {"q_proj": 8}},
        )
    )
    assert (adapter.r, adapter.lora_alpha, adapter.lora_dropout) == (3, 5, 0.2)
    assert (adapter.use_rslora, adapter.use_dora, adapter.init_lora_weights) == (True, True, "gaussian")
    assert adapter.modules_to_save == ["lm_head"] and adapter.rank_pattern == {"q_proj": 8}
    assert get_peft_config(ModelConfig(lora_r=3)) is None
    with pytest.raises(ConfigError, match="'rankk'"):
        get_peft_config(ModelConfig(use_peft=True, lora_kwargs={"rankk": 1}))
