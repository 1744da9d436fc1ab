"""Ids in the loss are the ids that were sampled; ends, padding, BOS, truncation and templates do what they should."""

import re

import pytest
import torch
from datasets import Dataset

from covey.errors import CoveyWarning, DatasetError
from covey.sample.chat import encode_prompt, stop_ids, with_one_bos
from covey.sample.prompts import PromptReader
from tests.tiny import ASSISTANT, BOS, CHAT, EOS, PAD, USER, tiny_policy, tiny_tokenizer
from tests.trainer.harness import MANY_ENDS, Recorder, by_length, chats, logged, make, rows, train

BOS_TEMPLATE = "<bos>" + CHAT


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [CHAT, BOS_TEMPLATE])
@pytest.mark.parametrize("content", ["hello", [{"role": "user", "content": "hello"}]])
def test_bos_stands_once_where_the_tokenizer_puts_one(adds_bos, template, content):
    tokenizer = tiny_tokenizer(template=template, adds_bos=adds_bos)
    ids = encode_prompt(tokenizer, content)
    prints = template == BOS_TEMPLATE and not isinstance(content, str)
    assert ids.count(BOS) == int(adds_bos or prints)
    assert BOS not in ids[1:]


def test_a_text_that_begins_with_bos_is_not_given_a_second():
    tokenizer = tiny_tokenizer(adds_bos=True)
    assert encode_prompt(tokenizer, "<bos>abc") == encode_prompt(tokenizer, "abc")
    assert with_one_bos(tiny_tokenizer(), [5, 6]) == [5, 6]


def test_every_end_id_ends_a_completion_and_is_trained(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    recorder = Recorder(by_length)
    trainer = train(folder, tmp_path, recorder, rows(), max_completion_length=30)
    ends = set(MANY_ENDS["eos_token_id"])
    for ids in recorder.all("ids"):
        assert not ends & set(ids[:-1]), "nothing follows an end"
        assert ids[-1] in ends or len(ids) == 30
    assert logged(trainer, "completions/clipped_ratio")[0] < 0.2
    assert stop_ids(trainer.processing_class, trainer.model.generation_config)[0] == EOS


@pytest.mark.parametrize("pad", ["<pad>", "<eos>", None])
def test_completion_ids_hold_no_padding_and_decode_to_the_text(tmp_path, pad):
    tokenizer = tiny_tokenizer(pad=pad)
    folder = tiny_policy(tmp_path / "m", tokenizer=tokenizer, generation=MANY_ENDS)
    recorder = Recorder(by_length)
    train(folder, tmp_path, recorder, rows(), max_completion_length=20, max_steps=3)
    for ids, text in zip(recorder.all("ids"), recorder.all("completions"), strict=True):
        said = [i for i in ids if i not in MANY_ENDS["eos_token_id"]]
        assert tokenizer.decode(said, skip_special_tokens=True) == text
        if pad == "<pad>":
            assert PAD not in ids


def test_special_tokens_reach_the_reward_on_request(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=0.0)
    hidden, shown = Recorder(by_length), Recorder(by_length)
    settings = dict(max_completion_length=40, generation_kwargs={"suppress_tokens": list(range(10, 98))})
    train(folder, tmp_path, hidden, rows(), **settings)
    train(folder, tmp_path, shown, rows(), **settings, keep_special_tokens=True)
    assert hidden.all("ids") == shown.all("ids")
    assert any("<stop>" in text for text in shown.all("completions"))
    assert not any("<" in text for text in hidden.all("completions"))


def test_chats_reach_rewards_as_messages_and_text_as_text(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    text, chat = Recorder(by_length), Recorder(by_length)
    train(folder, tmp_path, text, rows())
    train(folder, tmp_path, chat, chats())
    assert all(isinstance(c, str) for c in text.all("completions"))
    assert all(c == [{"role": "assistant", "content": c[0]["content"]}] for c in chat.all("completions"))
    assert chat.all("prompts")[0][0]["role"] == "user"


def test_an_answer_that_the_prompt_begins_is_continued():
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "begun"}]
    ids = encode_prompt(tokenizer, messages)
    assert EOS not in ids and ids[-5:] == tokenizer("begun")["input_ids"]


def reader(**given):
    return PromptReader(tiny_tokenizer(), **given)


@pytest.mark.parametrize("limit", [10, 23, 40])
def test_a_long_chat_loses_the_users_words_from_the_left_and_keeps_its_markers(limit):
    messages = [{"role": "user", "content": "abcdefgh" * 10 + "THE END"}]
    prompt = reader(max_length=limit).read({"prompt": messages}, 0, (0,))
    assert limit - 3 <= len(prompt.ids) <= limit
    assert prompt.ids[0] == USER and prompt.ids[-1] == ASSISTANT
    assert tiny_tokenizer().decode(prompt.ids[1:-1])[-7:] == "THE END"[-len(prompt.ids) + 2 :][-7:]
    assert prompt.num_cut_tokens == 87 + 2 - len(prompt.ids)


def test_a_long_text_keeps_bos_and_its_end():
    tokenizer = tiny_tokenizer(adds_bos=True)
    prompt = PromptReader(tokenizer, max_length=5).read({"prompt": "abcdefghij"}, 0, (0,))
    assert list(prompt.ids) == [BOS, *tokenizer("ghij")["input_ids"][1:]]


def test_dropped_and_refused_prompts(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    dataset = Dataset.from_dict({"prompt": ["short", "x" * 60, "tiny", "y" * 60, "small"]})
    recorder = Recorder(by_length)
    settings = dict(max_prompt_length=20, per_device_train_batch_size=4)
    with pytest.warns(CoveyWarning, match=r"2 of 5 rows .* more than max_prompt_length=20 .*'drop'") as told:
        trainer = train(folder, tmp_path, recorder, dataset, **settings, overlong_prompts="drop", max_steps=3)
    assert sum("of 5 rows" in str(w.message) for w in told) == 1
    assert set(recorder.all("prompts")) == {"short", "tiny", "small"}
    assert trainer.plan.num_prompts == 3
    with pytest.raises(DatasetError, match=r"Row 1.*60 tokens.*max_prompt_length is 20"):
        train(folder, tmp_path, recorder, dataset, **settings, overlong_prompts="error")
    trainer = train(folder, tmp_path, Recorder(by_length), dataset, **settings, max_steps=5)
    assert sum(logged(trainer, "prompts/cut_share")) == 2
    long = Dataset.from_dict({"prompt": ["x" * 60, "y" * 60]})
    with pytest.raises(DatasetError, match=r"All 2 rows .* max_prompt_length=20 .*'drop'.*none are left"):
        train(folder, tmp_path, recorder, long, **settings, overlong_prompts="drop")


def test_a_prompt_beyond_the_context_names_the_row_and_the_numbers(tmp_path):
    folder = tiny_policy(tmp_path / "m", max_position_embeddings=32)
    dataset = Dataset.from_dict({"prompt": ["z" * 30]})
    with pytest.raises(
        DatasetError, match=r"Row 0.*30 tokens.*max_completion_length 8.*32 positions.*at most 24"
    ):
        train(folder, tmp_path, Recorder(by_length), dataset, per_device_train_batch_size=4)


def test_template_arguments_of_the_run_and_of_the_row(tmp_path):
    template = CHAT.replace(
        "{% if add_generation_prompt %}", "{{ mood | default('') }}{% if add_generation_prompt %}"
    )
    tokenizer = tiny_tokenizer(template=template)
    read = PromptReader(tokenizer, template={"mood": "!"}).read
    messages = [{"role": "user", "content": "a"}]
    of_run = read({"prompt": messages}, 0, (0,))
    of_row = read({"prompt": messages, "chat_template_kwargs": {"mood": "??"}}, 0, (0,))
    assert tokenizer.decode(of_run.ids) == "<|user|>a!<|assistant|>"
    assert tokenizer.decode(of_row.ids) == "<|user|>a??<|assistant|>"


def test_the_side_on_which_the_users_tokenizer_pads_does_not_matter(tmp_path):
    folder = tiny_policy(tmp_path / "m", "gpt2", scale=2.0)
    dataset = Dataset.from_dict({"prompt": ["ab", "abcdefghi jklm"]})
    seen = []
    for side in ("left", "right"):
        recorder = Recorder(by_length)
        train(folder, tmp_path, recorder, dataset, processing_class=tiny_tokenizer(padding_side=side))
        seen.append(recorder.all("ids"))
    assert seen[0] == seen[1]


def test_an_ambiguous_text_is_trained_on_the_ids_that_were_sampled(tmp_path):
    """Whatever the tokenizer would make of the text again, the loss is on the sampled ids: see the oracle's tests."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    recorder = Recorder(by_length)
    trainer = train(folder, tmp_path, recorder, rows())
    batch = trainer.updater.batches[0]
    assert [list(c) for c in batch.completions] == recorder.all("ids")
    assert torch.equal(batch.targets, torch.tensor([i for ids in recorder.all("ids") for i in ids]))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a"}, ["no column 'prompt'", "'text'"]),
        ({"prompt": None}, ["Row 4", "NoneType"]),
        ({"prompt": ""}, ["Row 4", "non-empty text"]),
        ({"prompt": []}, ["Row 4", "list of messages"]),
        ({"prompt": [{"content": "a"}]}, ["Row 4", "role"]),
    ],
)
def test_rows_without_a_usable_prompt_are_named(row, words):
    with pytest.raises(DatasetError) as error:
        reader().read(row, 4, (0,))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("form", [Dataset.from_list, list])
@pytest.mark.parametrize("which", ["train_dataset", "eval_dataset['hard']"])
def test_an_empty_prompt_is_found_before_anything_is_loaded(tmp_path, form, which):
    good, bad = ([{"prompt": p} for p in prompts] for prompts in (["a", "b"], ["a", ""]))
    train_rows, eval_rows = (bad, good) if which == "train_dataset" else (good, bad)
    with pytest.raises(DatasetError, match=re.escape(f"{which}: Row 1: 'prompt' is str ''.")):
        make("nowhere", tmp_path, by_length, form(train_rows), eval_dataset={"hard": form(eval_rows)})


def test_chats_without_a_template_are_refused_with_what_to_do():
    with pytest.raises(DatasetError, match=r"no chat template.*tokenizer.chat_template"):
        encode_prompt(tiny_tokenizer(template=None), [{"role": "user", "content": "a"}])
