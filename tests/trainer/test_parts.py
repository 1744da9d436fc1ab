"""What settings mean for sampling in training and in evaluation."""

import pytest

from covey import GRPOConfig
from covey.errors import ConfigError
from covey.sample.chat import decode_text, stop_ids
from covey.sample.native.engine import NativeEngine
from covey.trainer.parts import make_eval_sampling, make_sampling
from covey.types import Prompt
from tests.tiny import EOS, PAD, STOP, tiny_model, tiny_tokenizer


def training_and_evaluation(**given):
    args = GRPOConfig(output_dir="unused", **given)
    training = make_sampling(args, (EOS,), PAD)
    return training, make_eval_sampling(args, training)


@pytest.mark.parametrize("ids", [STOP, [STOP, EOS], (STOP,)], ids=str)
def test_more_end_ids_of_evaluation_add_to_those_of_training(ids):
    training, evaluation = training_and_evaluation(eval_generation_kwargs={"eos_token_id": ids})
    assert (training.stop_ids, evaluation.stop_ids) == ((EOS,), (EOS, STOP))


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
