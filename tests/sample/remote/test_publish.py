"""A folder of weights is what transformers would save of the policy: all of it, named as it names it, or none of it."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from covey.errors import EngineError
from covey.sample.remote import publish
from covey.sample.remote.effective import SavedForm
from covey.sample.remote.owned_folder import OwnedFolder, clean
from covey.sample.remote.publish import PREFIX, WeightFolders, digest, write_adapter, write_weights
from covey.sample.remote.travel import why_not_adapter, without_adapter
from covey.sample.remote.upload_store import UploadStore
from tests.families import tiny_of
from tests.ranks import on_ranks
from tests.sample.native.families import FAMILIES, family_model
from tests.tiny import tiny_model

OTHERS = (
    "gpt2",
    "bloom",
    "deepseek_v3",
    "falcon_h1",
    "jamba",
    "zamba2",
    "gemma3n_text",
    "ernie4_5_moe",
    "qwen3_next",
)


def raises(fault: str | None) -> None:
    if fault:
        raise EngineError(fault)


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def saved(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return read(folder)


def published(policy: Any, folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    form = SavedForm(policy, dtype)
    write_weights(form, form.blocks, folder, raises)
    return read(folder)


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float = 0.0) -> None:
    """Equal names and values; a head that shares the embedding's weight stands beside."""
    assert theirs.keys() <= ours.keys()
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
        torch.testing.assert_close(ours[name], tensor, atol=atol, rtol=0)
    extra = ours.keys() - theirs.keys()
    assert len(extra) <= 1
    for name in extra:
        assert any(torch.equal(ours[name], other) for other in theirs.values()), name


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_are_those_that_transformers_saves(family, is_tied, tmp_path):
    model = family_model(family, tie_word_embeddings=is_tied, num_hidden_layers=4)
    ours = published(model, tmp_path / "ours")
    assert_same(ours, saved(model, tmp_path / "theirs"))
    assert "lm_head.weight" in ours


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_too_also_when_they_were_loaded(family, tmp_path):
    model: Any = tiny_of(family)
    theirs = saved(model, tmp_path / "theirs")
    assert_same(published(model, tmp_path / "ours"), theirs)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    assert_same(published(loaded, tmp_path / "again"), theirs)


def test_adapters_are_added_and_the_policy_is_left_alone(tmp_path):
    base: Any = tiny_model("qwen2", tie_word_embeddings=True)
    policy: Any = get_peft_model(
        base,
        LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, use_rslora=True),
    )
    before = {name: (t.data_ptr(), t.clone()) for name, t in policy.state_dict().items()}
    ours = published(policy, tmp_path / "ours")
    for name, tensor in policy.state_dict().items():
        assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])
    merged = copy.deepcopy(policy).merge_and_unload()
    assert_same(ours, saved(merged, tmp_path / "theirs"), atol=1e-6)
    with without_adapter(policy):
        bare = published(policy, tmp_path / "bare")
    assert_same(bare, saved(tiny_model("qwen2", tie_word_embeddings=True), tmp_path / "base"))


def test_adapters_of_experts_and_modules_that_are_trained_whole_are_in_the_files(tmp_path):
    policy: Any = get_peft_model(
        family_model("Qwen3Moe"),
        LoraConfig(
            r=2,
            target_modules=["q_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            modules_to_save=["lm_head"],
            init_lora_weights=False,
        ),
    )
    with torch.no_grad():
        policy.get_base_model().lm_head.modules_to_save["default"].weight.add_(1)
    ours = published(policy, tmp_path / "ours")
    merged = copy.deepcopy(policy).merge_and_unload()
    assert_same(ours, saved(merged, tmp_path / "theirs"), atol=1e-5)


def test_weights_are_in_the_dtype_of_the_server_but_for_those_kept_exact(tmp_path):
    model: Any = tiny_model("llama")
    model._keep_in_fp32_modules_strict = {"input_layernorm"}
    for name, tensor in published(model, tmp_path / "ours", torch.bfloat16).items():
        assert tensor.dtype == (torch.float32 if "input_layernorm" in name else torch.bfloat16)


def test_large_weights_are_cut_into_files_with_an_index_and_digests(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "SHARD", 20_000)
    model = tiny_model("llama")
    theirs = saved(model, tmp_path / "theirs")
    assert_same(published(model, tmp_path / "ours"), theirs)
    index = json.loads((tmp_path / "ours/model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == theirs.keys() and len(set(index.values())) > 3
    manifest = json.loads((tmp_path / "ours/manifest.json").read_text())
    for file, said in manifest["files"].items():
        path = tmp_path / "ours" / file
        assert said == {"bytes": path.stat().st_size, "sha256": digest(path)}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())


def test_a_part_has_the_tensors_of_its_blocks_alone(tmp_path):
    model = tiny_model("llama")
    form = SavedForm(model, torch.float32)
    blocks = [b for b in form.blocks if b.key == "model.layers.1"]
    write_weights(form, blocks, tmp_path / "part", raises)
    names = read(tmp_path / "part").keys()
    assert names == {n for n in model.state_dict() if ".layers.1." in n}
    assert not (tmp_path / "part/config.json").exists()


def test_shards_of_fsdp2_and_of_zero_3_are_gathered(tmp_path, monkeypatch):
    """Stand-ins for DTensor and for DeepSpeed's parameters, beside plain tensors, as real ones need several processes."""
    model: Any = tiny_model("llama")
    theirs = saved(model, tmp_path / "theirs")

    class Shard(nn.Parameter):
        def full_tensor(self):
            return whole["fsdp"]

    class Gathered:
        def __init__(self, parameters):
            self.parameters = list(parameters)

        def __enter__(self):
            for parameter in self.parameters:
                parameter.data = whole["zero"]

        def __exit__(self, *_):
            for parameter in self.parameters:
                parameter.data = torch.empty(0)

    zero = types.SimpleNamespace(GatheredParameters=Gathered)
    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(zero=zero))
    first, second = (layer.mlp.up_proj for layer in model.model.layers)
    whole = {"fsdp": first.weight.detach().clone(), "zero": second.weight.detach().clone()}
    first.weight = Shard(first.weight.detach().clone())
    second.weight.ds_id, second.weight.ds_shape = 1, whole["zero"].shape
    second.weight.data = torch.empty(0)
    assert_same(published(model, tmp_path / "ours"), theirs)


def test_all_ranks_gather_and_one_writes(tmp_path):
    calls: list[int] = []
    model: Any = tiny_model("llama")

    def on(rank: int, gather: Any) -> None:
        form = SavedForm(model, torch.float32)
        read = form.read
        form.read = lambda *args, **how: (calls.append(rank), read(*args, **how))[1]  # type: ignore[method-assign]

        def agree(fault: str | None) -> None:
            faults = [f for f in gather(fault) if f]
            raises(faults[0] if faults else None)

        write_weights(form, form.blocks, tmp_path / "ours" if rank == 0 else None, agree)

    on_ranks(2, on)
    assert calls.count(0) == calls.count(1) == 5
    assert_same(read(tmp_path / "ours"), saved(model, tmp_path / "theirs"))


@pytest.mark.parametrize("fails", ["disk", "nan", "table"])
def test_what_cannot_be_written_raises_on_all_ranks_and_leaves_nothing(tmp_path, monkeypatch, fails):
    if fails == "disk":
        import safetensors.torch

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(safetensors.torch, "save_file", full)

    def on(rank: int, gather: Any) -> str:
        model: Any = tiny_model("llama")
        if fails == "nan":
            model.model.layers[1].mlp.up_proj.weight.data[3, 3] = float("nan")
        form = SavedForm(model, torch.float32)
        if fails == "table":
            form.blocks[1].table["model.layers.0.mlp.up_proj.weight"] = torch.empty(3, 3, device="meta")

        def agree(fault: str | None) -> None:
            faults = [f for f in gather(fault) if f]
            raises(faults[0] if faults else None)

        with pytest.raises(EngineError) as caught:
            write_weights(form, form.blocks, tmp_path / "ours" if rank == 0 else None, agree)
        return str(caught.value)

    texts = on_ranks(2, on)
    said = {
        "disk": "No space left",
        "nan": "up_proj.weight of the policy holds numbers that are not finite",
        "table": "[3, 3]",
    }
    assert texts[0] == texts[1] and said[fails] in texts[0]
    assert not list(tmp_path.iterdir())


def test_folders_that_others_make_and_delete_meanwhile_are_theirs(tmp_path, monkeypatch):
    """Two runs that begin and end at one moment: whatever the other one does between two looks at its folder."""
    import covey.sample.remote.owned_folder as module

    seen = []
    living = OwnedFolder(tmp_path, "of-tests-")
    shutil.rmtree(living.path)  # it is closed between the listing and the look

    class Listed(type(tmp_path)):
        def glob(self, pattern):
            return [living.path, *super().glob(pattern)]

    assert clean(Listed(tmp_path), "of-tests-") == []

    def at_once(file):
        seen.append(clean(tmp_path, "of-tests-"))  # while another one is made
        return lock(file)

    lock = module.lock
    monkeypatch.setattr(module, "lock", lambda file: at_once(file) if not seen else lock(file))
    other = OwnedFolder(tmp_path, "of-tests-")
    assert other.path.is_dir() and (other.path / module.LOCK).exists()
    assert clean(tmp_path, "of-tests-") == []
    other.close()


def test_folders_of_dead_runs_are_cleaned_and_those_of_living_ones_stay(tmp_path):
    living = WeightFolders(tmp_path, tmp_path / "out", "living")
    kept = living.place(10, False)
    kept.mkdir()
    dead = WeightFolders(tmp_path, tmp_path / "out", "dead")
    left = dead.place(10, False)
    left.mkdir()
    dead._own._lock.close()  # its process ended, without a word  # type: ignore[union-attr]
    assert clean(tmp_path, PREFIX) == [left.parent] and kept.exists() and not left.exists()
    living.close()
    assert not kept.exists()


ENDS = """
import sys
from pathlib import Path
from covey.sample.remote.publish import WeightFolders
here = Path(sys.argv[1])
WeightFolders(here, here / "out", "run").place(10, False).mkdir()
"""


def test_a_process_that_ends_leaves_nothing_though_nobody_has_closed_it(tmp_path):
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], check=True, timeout=600)
    assert not list(tmp_path.iterdir())


def test_uploads_of_a_server_that_was_killed_are_cleaned_by_the_next_one(tmp_path):
    dead, living = UploadStore(tmp_path, 2), UploadStore(tmp_path, 2)
    dead._own._lock.close()
    UploadStore(tmp_path, 2).close()
    assert [living.folder.parent] == list(tmp_path.iterdir())
    living.close()
    assert not list(tmp_path.iterdir())


def test_a_process_that_was_forked_off_deletes_nothing(tmp_path):
    folder = OwnedFolder(tmp_path, "of-tests-")
    folder._process += 1
    folder.close()
    assert folder.path.exists()
    folder._process -= 1
    folder.close()
    assert not folder.path.exists()


@pytest.mark.parametrize("run", ["team/first try", "../../up", "Läufe/1", "…", "x" * 300])
def test_any_name_of_a_run_has_a_folder(tmp_path, run):
    (tmp_path / "in").mkdir()
    folders = WeightFolders(tmp_path / "in", tmp_path / "out", run)
    place = folders.place(10, False)
    assert place.parent.parent == tmp_path / "in" and place.parent.is_dir()
    folders.close()


def test_memory_is_used_where_the_weights_fit_twice_and_the_servers_are_here(tmp_path, monkeypatch):
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(publish, "TMPFS", tmp_path / "shm")
    free = shutil.disk_usage(tmp_path).free
    for size, are_here, where in (
        (10, True, "shm"),
        (10, False, "out/weights"),
        (free // 2 + 1, True, "out/weights"),
    ):
        folders = WeightFolders(None, tmp_path / "out", "run")
        assert folders.place(size, are_here).is_relative_to(tmp_path / where)
        folders.close()
    assert not list((tmp_path / "out/weights").glob("*")) if (tmp_path / "out/weights").exists() else True


def test_a_place_that_cannot_be_written_to_is_said_before(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        WeightFolders(tmp_path / "file", tmp_path, "run").place(10, True)
    with pytest.raises(OSError, match="are to be written"):
        WeightFolders(tmp_path, tmp_path, "run").place(1 << 60, True)
    assert os.listdir(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"r": 4, "lora_alpha": 12},
        {"r": 4, "use_rslora": True},
        {"r": 8, "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"q_proj": 5}},
        {"r": 2, "layers_to_transform": [1]},
    ],
)
def test_an_adapter_in_files_is_the_policys_own(tmp_path, config):
    policy: Any = get_peft_model(
        tiny_model("qwen2"),
        LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, **config),
    )
    assert why_not_adapter(policy, 64) is None
    write_adapter(policy, tmp_path / "adapter", torch.float32, raises)
    again = PeftModel.from_pretrained(tiny_model("qwen2"), str(tmp_path / "adapter"))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, policy(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"use_dora": True}, "variant of LoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "the embedding"),
        ({"target_modules": ["q_proj", "lm_head"]}, "the head"),
        ({"r": 65}, "its rank is 65, and a server takes 64 at most"),
        ({"bias": "lora_only"}, "trains biases"),
    ],
)
def test_adapters_that_do_not_travel_alone_are_told_apart(config, why):
    given = {"r": 4, "target_modules": ["q_proj"], **config}
    policy = get_peft_model(tiny_model("qwen2"), LoraConfig(**given))
    assert why in str(why_not_adapter(policy, 64))
    assert why_not_adapter(tiny_model("qwen2"), 64) == "the policy has none"
    plain = get_peft_model(tiny_model("qwen2"), LoraConfig(r=4, target_modules=["q_proj"]))
    assert why_not_adapter(plain, 0) == "a server takes no adapters"


def test_a_tied_weight_that_an_adapter_changes_at_one_end_is_refused():
    policy = get_peft_model(
        tiny_model("qwen2", tie_word_embeddings=True), LoraConfig(r=2, target_modules=["q_proj", "lm_head"])
    )
    with pytest.raises(EngineError, match="are one weight, and an adapter changes it"):
        SavedForm(policy, torch.float32)
