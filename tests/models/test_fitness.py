"""A policy is a causal model whose tokenizer fits it; everything else is refused by name, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from covey.errors import LoadingError
from covey.models.adapters import load_adapter, with_adapter
from covey.models.fitness import check_causal, check_tokenizer, unknown_ids
from covey.models.inspect import innermost, other_mixers
from covey.models.loading import load_policy
from tests.families import tiny_of
from tests.tiny import EOS, VOCABULARY, tiny_model, tiny_policy, tiny_tokenizer

BIDIRECTIONAL = ("bert", "roberta", "electra", "xlnet", "xlm", "rembert", "cpmant")


@pytest.mark.parametrize("family", BIDIRECTIONAL)
def test_models_that_see_later_tokens_are_refused(family):
    with pytest.raises(LoadingError, match="causal language model"):
        check_causal(tiny_of(family))


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "rembert"])
def test_the_same_as_decoders_are_taken(family):
    check_causal(tiny_of(family, is_decoder=True))


@pytest.mark.parametrize(
    "family", ["gpt2", "gpt_neox", "bloom", "mpt", "mamba", "qwen3_next", "jamba", "bart", "qwen3_moe"]
)
def test_causal_models_are_taken(family):
    model = tiny_of(family)
    check_causal(model)
    check_causal(model.to(torch.bfloat16))


def test_encoder_decoders_are_refused():
    sizes = dict(
        vocab_size=VOCABULARY,
        d_model=32,
        d_ff=64,
        d_kv=8,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    with pytest.raises(LoadingError, match=r"encoder-decoder.*causal"):
        check_causal(model)


def test_an_encoder_decoder_by_folder_is_refused_in_few_words(tmp_path):
    transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(LoadingError, match="'t5', which is no causal language model") as caught:
        load_policy(str(tmp_path))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("part", ["lm_head", "layers.1.mlp.up_proj", "norm.weight"])
def test_weights_that_loading_would_make_up_are_named(tmp_path, part):
    folder = Path(tiny_policy(tmp_path / "m"))
    kept = {k: v for k, v in load_file(folder / "model.safetensors").items() if part not in k}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadingError, match=f"has no weights for .*{part}"):
        load_policy(str(folder))


def test_tied_heads_are_not_missing(tmp_path):
    load_policy(tiny_policy(tmp_path / "m", tie_word_embeddings=True))


QUANTISED = [
    {"quant_method": "gptq", "bits": 4},
    {"quant_method": "awq", "bits": 4},
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
]


@pytest.mark.parametrize("stored", QUANTISED, ids=lambda s: s["quant_method"])
def test_weights_that_are_stored_quantised_are_refused_with_a_way_out(tmp_path, stored):
    folder = tiny_policy(tmp_path / "m")
    _edit(folder, quantization_config=stored)
    with pytest.raises(LoadingError, match=f"stored quantised .*{stored['quant_method']}.*not quantised"):
        load_policy(folder)


def test_files_that_do_not_fit_name_the_folder(tmp_path):
    folder = tiny_policy(tmp_path / "shapes")
    _edit(folder, intermediate_size=48)
    with pytest.raises(LoadingError, match="shapes"):
        load_policy(folder)
    cut = Path(tiny_policy(tmp_path / "cut")) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:5000])
    with pytest.raises(LoadingError, match="cut"):
        load_policy(str(cut.parent))


def _edit(folder, **fields):
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused_with_both_numbers():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<think>"])
    words = rf"{VOCABULARY + 1} tokens.*{VOCABULARY}.*<think>.*resize_token_embeddings\({VOCABULARY + 1}\)"
    with pytest.raises(LoadingError, match=words):
        check_tokenizer(tokenizer, tiny_model())
    check_tokenizer(tiny_tokenizer(), tiny_model())


def test_padding_beyond_the_embedding_does_no_harm():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<padding>"})
    check_tokenizer(tokenizer, tiny_model())


def test_unknown_ids_are_those_without_a_token_but_for_ends():
    model = tiny_model(vocab_size=VOCABULARY + 5)
    assert unknown_ids(tiny_tokenizer(), model, (EOS,)) == tuple(range(VOCABULARY, VOCABULARY + 5))
    assert VOCABULARY + 1 not in unknown_ids(tiny_tokenizer(), model, (VOCABULARY + 1,))
    assert unknown_ids(tiny_tokenizer(), tiny_model(), ()) == ()


HELPLESS = {
    "AdaLora": AdaLoraConfig(total_step=10, target_modules=["q_proj"]),
    "eva": LoraConfig(target_modules=["q_proj"], init_lora_weights="eva"),
}


@pytest.mark.parametrize("word", HELPLESS)
def test_adapters_that_need_more_than_a_pass_are_refused_by_name(word):
    with pytest.raises(LoadingError, match=word):
        with_adapter(tiny_model(), HELPLESS[word], 0)


def test_an_adapter_with_new_tokens_grows_its_base(tmp_path):
    base = tiny_policy(tmp_path / "base")
    grown = transformers.AutoModelForCausalLM.from_pretrained(base)
    grown.resize_token_embeddings(VOCABULARY + 3)
    adapter = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    adapted = get_peft_model(grown, adapter)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = load_adapter(str(tmp_path / "adapter"), base)
    ids = torch.tensor([[5, VOCABULARY + 2, 7]])
    assert torch.allclose(loaded(input_ids=ids).logits, adapted.eval()(input_ids=ids).logits)


def test_wrappers_are_taken_off_in_any_order():
    model = tiny_model()
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    assert innermost(torch.compile(adapted)) is model
    assert innermost(torch.compile(model)) is model
    assert innermost(torch.nn.DataParallel(torch.compile(adapted))) is model


def test_other_mixers_are_named_and_plain_decoders_have_none():
    assert other_mixers(tiny_of("qwen3_5_text")) and other_mixers(tiny_of("lfm2"))
    assert not other_mixers(tiny_model("gpt2")) and not other_mixers(tiny_of("gemma3")), (
        "a tower for images is no mixer of text"
    )


@pytest.mark.parametrize("rows", [VOCABULARY - 3, VOCABULARY + 7])
def test_unknown_ids_are_those_of_the_head_where_it_has_other_rows_than_the_embedding(rows):
    model = tiny_of("inkling2_text", unpadded_vocab_size=rows)
    assert len(model.get_output_embeddings().weight) == rows
    assert unknown_ids(tiny_tokenizer(), model, ()) == tuple(range(VOCABULARY, rows))
