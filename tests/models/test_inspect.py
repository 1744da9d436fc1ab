"""The tiny models load as ordinary folders do, and their tokenizer is one token per character."""

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.tiny import EOS, KINDS, VOCABULARY, tiny_policy, tiny_reward_model


@pytest.mark.parametrize("kind", KINDS)
def test_policy_folder_loads_and_its_tokenizer_reads_what_it_writes(tmp_path, kind):
    folder = tiny_policy(tmp_path, kind, generation={"eos_token_id": [EOS, 9]})
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "hi  2 + 3,\nx"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text) and max(ids) < VOCABULARY
    assert tokenizer.decode(ids) == text
    assert tokenizer(text + "<eos>")["input_ids"] == [*ids, EOS]
    assert model.config.model_type == kind and model.generation_config.eos_token_id == [EOS, 9]


def test_reward_model_folder_loads(tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_reward_model(tmp_path, num_labels=1))
    assert model.config.num_labels == 1
