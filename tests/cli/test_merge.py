"""`covey merge`: base plus adapter, as one model in the base's precision."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli import main
from tests.tiny import tiny_policy


@pytest.fixture
def adapter(tmp_path):
    """An adapter whose second matrix is not zero, beside its base."""
    base = AutoModelForCausalLM.from_pretrained(tiny_policy(tmp_path / "base"))
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    return str(tmp_path / "adapter")


def test_the_merged_model_has_the_sum_and_needs_no_peft(adapter, tmp_path, capsys):
    assert main(["merge", adapter, str(tmp_path / "out")]) == 0
    assert f"with {adapter} merged into it" in capsys.readouterr().out
    parts = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    base, merged = (load_file(tmp_path / n / "model.safetensors") for n in ("base", "out"))
    name = "model.layers.0.self_attn.q_proj"
    a, b = (parts[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    expected = base[f"{name}.weight"] + 4 / 2 * b @ a  # lora_alpha / r (arXiv:2106.09685, section 4.1)
    assert torch.allclose(merged[f"{name}.weight"], expected, atol=1e-6)
    assert torch.equal(
        merged["model.layers.0.self_attn.k_proj.weight"], base["model.layers.0.self_attn.k_proj.weight"]
    )
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "out")).__name__ == "Qwen2ForCausalLM"
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_precision_can_be_said(adapter, tmp_path):
    assert main(["merge", adapter, str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    assert {t.dtype for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}


def test_a_base_that_has_moved_is_named(adapter, tmp_path, capsys):
    (tmp_path / "base").rename(tmp_path / "moved")
    assert main(["merge", adapter, str(tmp_path / "out")]) == 2
    assert "base" in capsys.readouterr().err
    assert main(["merge", adapter, str(tmp_path / "out"), "--base", str(tmp_path / "moved")]) == 0


def test_nothing_is_overwritten_and_what_is_no_adapter_is_refused(adapter, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    assert main(["merge", adapter, str(tmp_path / "full")]) == 2
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert main(["merge", str(tmp_path / "base"), str(tmp_path / "out")]) == 2
    assert "holds no adapter" in capsys.readouterr().err
    assert main(["merge", adapter, str(tmp_path / "out"), "--dtype", "float7"]) == 2
    assert not (tmp_path / "out").exists() and "float7" in capsys.readouterr().err
