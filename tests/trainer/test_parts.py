"""What settings mean for sampling in training and in evaluation."""

import pytest

from covey import GRPOConfig
from covey.errors import ConfigError, DatasetError
from covey.sample.chat import decode_text, stop_ids
from covey.sample.native.engine import NativeEngine
from covey.sample.prompts import PromptReader
from covey.trainer.parts import ModelSource, load_policy_and_processor, make_eval_sampling, make_sampling
from covey.types import Prompt
from tests.tiny import EOS, PAD, STOP, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.any_version


def training_and_evaluation(**given):
    args = GRPOConfig(output_dir="unused", **given)
    training = make_sampling(args, (EOS,), PAD)
    return training, make_eval_sampling(args, training, PAD)


@pytest.mark.parametrize("ids", [STOP, [STOP, EOS], (STOP,)], ids=str)
def test_more_end_ids_of_evaluation_add_to_those_of_training(ids):
    training, evaluation = training_and_evaluation(eval_generation_kwargs={"eos_token_id": ids})
    assert (training.stop_ids, evaluation.stop_ids) == ((EOS,), (EOS, STOP))


@pytest.mark.parametrize("setting", ["generation_kwargs", "eval_generation_kwargs"])
@pytest.mark.parametrize("end", [EOS, PAD])
def test_what_the_run_does_anyway_may_be_said_again(setting, end):
    same = {
        "pad_token_id": PAD,
        "num_return_sequences": 4,
        "do_sample": True,
        "use_cache": True,
        "eos_token_id": end,
    }
    assert training_and_evaluation(num_generations=4, **{setting: same})
    for name, value in {
        "pad_token_id": EOS,
        "num_return_sequences": 3,
        "use_cache": False,
        "num_beams": 2,
    }.items():
        with pytest.raises(ConfigError, match=f"{setting} sets {name}={value}"):
            training_and_evaluation(num_generations=4, **{setting: {name: value}})


@pytest.mark.parametrize("setting", ["generation_kwargs", "eval_generation_kwargs"])
def test_a_wrong_option_is_found_before_weights_are_loaded(setting, monkeypatch):
    monkeypatch.setattr(
        "covey.trainer.parts.loading.load_policy", lambda *args, **kwargs: pytest.fail("loaded")
    )
    args = GRPOConfig(output_dir="unused", use_cpu=True, **{setting: {"min_new_tokenz": 3}})
    source = ModelSource("nowhere", tiny_tokenizer(), None, None, None)
    with pytest.raises(ConfigError, match=r"'min_new_tokenz'.*Did you mean 'min_new_tokens'"):
        load_policy_and_processor(args, source)


@pytest.mark.parametrize(
    "column", [{"tokenize": False}, {"return_tensors": "pt", "enable_thinking": True}, "no mapping"]
)
def test_template_arguments_of_a_row_that_collide_are_refused_with_its_row(column):
    reader = PromptReader(tiny_tokenizer(), {"tools": []})
    with pytest.raises(DatasetError, match="Row 7: 'chat_template_kwargs'"):
        reader.read({"prompt": "ab", "chat_template_kwargs": column}, 7, (0,))
    filled = {
        "prompt": "ab",
        "chat_template_kwargs": {"tokenize": None, "tools": []},
    }  # as Arrow fills columns in
    assert reader.read(filled, 7, (0,)).ids == reader.read({"prompt": "ab"}, 7, (0,)).ids
    assert reader.arguments(filled, 7) == {}


def test_padding_may_be_drawn_where_it_ends_a_completion():
    training, evaluation = training_and_evaluation(eval_generation_kwargs={"eos_token_id": PAD})
    assert (training.padding_id, evaluation.padding_id) == (PAD, None)


@pytest.mark.parametrize("ids", [STOP, [STOP], None], ids=str)
def test_more_end_ids_of_training_may_be_one_or_several(ids):
    assert stop_ids(tiny_tokenizer(), None, ids) == ((EOS,) if ids is None else (EOS, STOP))


@pytest.mark.parametrize("path", ["fast", "general"])
def test_an_end_id_of_evaluation_is_no_part_of_the_text(path):
    """The engine was made for training, where this id is a letter like others."""
    tokenizer = tiny_tokenizer()
    engine = NativeEngine(lambda ids: decode_text(tokenizer, ids, frozenset({EOS, PAD})), path=path)
    engine.load(tiny_model("qwen2", scale=1.0))
    letters = {"eos_token_id": list(range(10, 50))}
    training, evaluation = training_and_evaluation(max_completion_length=30, eval_generation_kwargs=letters)
    prompt = Prompt("", (20, 21, 22))
    (free,), (ended,) = (list(engine.generate([prompt], 8, s)) for s in (training, evaluation))
    for whole, cut in zip(free.completions, ended.completions, strict=True):
        assert cut.finish == "stop" and cut.ids == whole.ids[: len(cut.ids)]
        assert whole.text.startswith(cut.text) and len(cut.text) < len(whole.text)
        assert not set(cut.text) & set(tokenizer.decode(range(10, 50)))


def test_none_switches_an_option_off():
    none = dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty"))
    _, evaluation = training_and_evaluation(
        top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, eval_generation_kwargs=none
    )
    assert not evaluation.is_truncated and evaluation.repetition_penalty == 1.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": None}, "temperature=None; it must be a number"),
        ({"top_p": "0.9"}, "top_p='0.9'; it must be a number"),
        ({"top_p": 2.0}, "top_p is 2.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"stop_strings": [""]}, "stop_strings"),
        ({"num_beams": 4}, "sets num_beams=4"),
        ({"max_length": 9}, "sets max_length=9"),
        ({"min_new_token": 3}, "has 'min_new_token'"),
    ],
    ids=str,
)
def test_errors_name_the_option_that_was_written(given, words):
    with pytest.raises(ConfigError) as error:
        training_and_evaluation(eval_generation_kwargs=given)
    text = str(error.value)
    assert text.startswith("eval_generation_kwargs") and words in text and " generation_kwargs" not in text
