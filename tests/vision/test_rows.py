"""Rows with pictures → prompts: where pictures stand, what is cut, and what is refused with its row, column and place."""

import base64
import io
import socket
import tracemalloc

import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, List, Value

from covey.errors import DatasetError
from covey.plan import make_plan
from covey.sample.given_data import readable
from covey.sample.prompts import PromptReader
from covey.trainer.data import RolloutStream, kept_rows
from covey.types import message_text
from covey.vision.eyes import ProcessorEyes
from covey.vision.pictures import PictureLimits
from tests.clocks import own_seconds
from tests.vision.tiny_eyes import EYES, asked, drawn, encoded, six_ways, tiny_eyes, tokenizer_with

IMAGE = {"type": "image"}
PARTS_ALONE = (
    "{% for m in messages %}{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}{% endfor %}"
)
"""A template as LLaVA's are: of a content that is text it writes nothing."""


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def qwen():
    return tiny_eyes("qwen2_5_vl")


def reader_of(qwen, root=None, **fields):
    model, processor = qwen
    eyes = ProcessorEyes(processor, model, PictureLimits(root=root))
    return PromptReader(processor.tokenizer, eyes=eyes, blind="", **fields)


def read(reader, row, number=0):
    return reader.read(row, number, (number, 0))


def shown(reader, prompt):
    """The text of a prompt, with one mark for the tokens of each picture."""
    words = reader.tokenizer.decode(prompt.ids, skip_special_tokens=False)
    for mark in ("<|vision_start|>", "<|vision_end|>"):
        words = words.replace(mark, "|")
    return words.replace("<|image_pad|>", "")


# --- where pictures stand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (asked("a"), "<|user|>||||a<|assistant|>"),
        ([user(text("a"), IMAGE, text("b"), IMAGE)], "<|user|>a||b||<|assistant|>"),
        ([user(IMAGE, text("a")), user(IMAGE)], "<|user|>||a<|user|>||<|assistant|>"),
        (
            [{"role": "system", "content": "s"}, *asked("a"), *asked("b")],
            "<|assistant|>s<eos><|user|>||||a<|user|>b<|assistant|>",
        ),
        (
            [user(IMAGE, text("a")), {"role": "assistant", "content": "c"}, user(IMAGE)],
            "<|user|>||a<|assistant|>c<eos><|user|>||<|assistant|>",
        ),
    ],
)
def test_two_pictures_stand_where_trl_puts_them(qwen, messages, expected):
    reader = reader_of(qwen)
    prompt = read(reader, {"prompt": messages, "images": [drawn("red"), drawn("blue", (60, 40))]})
    assert shown(reader, prompt) == expected
    assert [p.size for p in prompt.pictures] == [(32, 32), (60, 40)]
    blocks = [part for m in prompt.content for part in m["content"] if part["type"] == "image"]
    assert blocks == [{"type": "image", "image": picture} for picture in prompt.pictures]
    assert [message_text(m) for m in prompt.content] == [message_text(m) for m in messages]
    assert prompt.columns["images"] == list(prompt.pictures)


@pytest.mark.parametrize("key", ["image", "url", "path", "base64", "bytes", "image_url"])
def test_blocks_may_hold_their_picture(qwen, key, tmp_path):
    """Between them a block without one takes the picture of the column."""
    data = encoded(drawn("gold"))
    (tmp_path / "a.png").write_bytes(data)
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    value = {
        "image": drawn("gold"),
        "url": uri,
        "path": "a.png",
        "base64": uri.partition(",")[2],
        "bytes": data,
        "image_url": {"url": uri},
    }[key]
    block = {"type": "image_url" if key == "image_url" else "image", key: value}
    reader = reader_of(qwen, tmp_path)
    prompt = read(reader, {"prompt": [user(block, text("a"), IMAGE)], "image": drawn("red")})
    assert shown(reader, prompt) == "<|user|>||a||<|assistant|>"
    pixels = reader.eyes.look(prompt.ids, prompt.pictures).inputs["pixel_values"]
    alone = [reader.eyes.look(p.ids, p.pictures).inputs["pixel_values"] for p in (read(reader, {"prompt": asked(), "image": drawn(c)}) for c in ("gold", "red"))]  # fmt: skip
    assert torch.equal(pixels, torch.cat(alone))


@pytest.mark.parametrize("images", [None, [], "no column"])
def test_none_and_nothing_are_no_picture(qwen, images):
    row = {"prompt": asked("a")} | ({} if images == "no column" else {"images": images})
    prompt = read(reader_of(qwen), row)
    assert (
        not prompt.pictures and prompt.ids == read(reader_of(qwen), {"prompt": asked("a"), "image": None}).ids
    )


def test_images_win_over_image_and_image_may_be_a_list(qwen):
    reader = reader_of(qwen)
    one, two = drawn("red", (60, 40)), [drawn("blue"), drawn("gold")]
    assert len(read(reader, {"prompt": asked(), "image": one, "images": two}).pictures) == 2
    assert len(read(reader, {"prompt": asked(), "image": one, "images": None}).pictures) == 1
    assert len(read(reader, {"prompt": asked(), "image": two}).pictures) == 2


def test_a_prompt_that_is_text_says_where_pictures_stand(qwen):
    reader = reader_of(qwen)
    prompt = read(reader, {"prompt": "a<|image_pad|>b", "image": drawn()})
    assert prompt.ids.count(reader.eyes.image_id) == 1 and len(prompt.ids) == 3
    with pytest.raises(
        DatasetError, match=r"Row 3: the prompt has 0 places for pictures \(<\|image_pad\|>\) and 1 pictures"
    ):
        read(reader, {"prompt": "ab", "image": drawn()}, 3)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [user(IMAGE, IMAGE)], "images": [drawn()]}, "the messages have 2 blocks for pictures, and 'images' has 1 pictures"),
        ({"prompt": [user(IMAGE)], "images": [drawn()] * 2}, "the messages have 1 blocks for pictures, and 'images' has 2"),
        ({"prompt": [user(IMAGE)]}, "the messages have 1 blocks for pictures, and 'images' has 0"),
        ({"prompt": [user(text("a"))], "image": drawn()}, "the messages have 0 blocks for pictures, and 'image' has 1"),
        ({"prompt": [user({**IMAGE, "image": drawn()}, text("a"))], "image": drawn("blue")}, "the messages have 0 blocks for pictures, and 'image' has 1"),
        ({"prompt": [user(text("a")), {"role": "assistant", "content": [IMAGE]}], "image": drawn()}, "a message of the role 'assistant' holds a picture"),
        ({"prompt": [*asked(), {"role": "tool", "content": [IMAGE]}, *asked()], "image": drawn()}, "a message of the role 'tool' holds a picture"),
        ({"prompt": [user({"type": "video"})]}, "neither text nor a picture.*'video'"),
        ({"prompt": asked("see <|image_pad|>")}, r"the prompt says <\|image_pad\|>"),
        ({"prompt": asked("see <|image_pad|>"), "image": drawn()}, r"has 2 places for pictures \(<\|image_pad\|>\) and 1 pictures"),
        ({"prompt": asked("see <|video_pad|>"), "image": drawn()}, r"the prompt says <\|video_pad\|>"),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_its_row_and_counts(qwen, row, words):
    with pytest.raises(DatasetError, match=f"Row 7: .*{words}"):
        read(reader_of(qwen), row, 7)


@pytest.mark.parametrize("kind", EYES)
def test_every_family_reads_two_pictures_of_other_sizes(kind):
    model, processor = tiny_eyes(kind)
    reader = PromptReader(processor.tokenizer, eyes=ProcessorEyes(processor, model), blind="")
    prompt = read(reader, {"prompt": asked("Hi?"), "images": [drawn(), drawn("blue", (60, 40))]})
    sight = reader.eyes.look(prompt.ids, prompt.pictures)
    assert int(sight.places.sum()) == prompt.ids.count(reader.eyes.image_id)
    assert "Hi?" in processor.tokenizer.decode(prompt.ids)


def test_a_template_that_reads_parts_alone_gets_the_words_of_a_text(qwen):
    """As LLaVA's do: of a content that is text they would write nothing."""
    model, processor = tiny_eyes("llava")
    tokenizer = tokenizer_with("<image>", image_token="<image>")
    tokenizer.chat_template = PARTS_ALONE
    reader = PromptReader(tokenizer, eyes=ProcessorEyes(processor, model), blind="")
    for row in ({"prompt": asked("Hi?")}, {"prompt": asked("Hi?"), "image": drawn()}):
        assert tokenizer.decode(read(reader, row).ids).endswith("Hi?")


def test_so_it_does_where_no_pictures_are_shown():
    """With `use_images=False`, with a tokenizer alone, and in `covey serve`: the question is all that the policy has."""
    tokenizer = tokenizer_with("<image>", image_token="<image>")
    tokenizer.chat_template = PARTS_ALONE
    chat = [{"role": "system", "content": "Be kind."}, *asked("Hi?")]
    for reader in (PromptReader(tokenizer, use_images=False), PromptReader(tokenizer)):
        assert tokenizer.decode(read(reader, {"prompt": chat}).ids).endswith("Be kind.Hi?")
    given = {"prompt": [user(IMAGE, text("Hi?"))], "image": drawn()}
    assert tokenizer.decode(read(PromptReader(tokenizer, use_images=False), given).ids).endswith("Hi?")
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0]['content'].upper() }}"  # marks come out changed
    assert tokenizer.decode(read(PromptReader(tokenizer), {"prompt": chat}).ids).endswith("BE KIND.")


def test_an_empty_column_does_not_hide_the_other(qwen):
    """Tables of several datasets have both; `images` would be an empty list in the rows of the other."""
    reader, image = reader_of(qwen), drawn()
    for row in (
        {"images": [], "image": image},
        {"images": None, "image": image},
        {"image": [], "images": [image]},
    ):
        prompt = read(reader, {"prompt": asked(), **row})
        assert [p.size for p in prompt.pictures] == [image.size], row
    assert not read(reader, {"prompt": asked(), "images": [], "image": None}).pictures


# --- one picture, many ways -----------------------------------------------------------------------------------------------


def test_one_picture_is_the_same_in_six_ways(qwen, tmp_path):
    reader = reader_of(qwen, tmp_path)
    prompts = [read(reader, {"prompt": asked(), "image": way}) for way in six_ways(tmp_path)]
    pixels = [reader.eyes.look(p.ids, p.pictures).inputs["pixel_values"] for p in prompts]
    assert len({p.ids for p in prompts}) == 1 and all(torch.equal(pixels[0], other) for other in pixels)
    digests = [p.pictures[0].digest for p in prompts]
    assert (
        len(set(digests[:4])) == 1 and len(set(digests[4:])) == 1
    )  # of bytes where there are some, of pixels where not


def test_rows_of_a_dataset_read_like_a_list(qwen):
    images = [[drawn("red")], [drawn("blue"), drawn("gold", (60, 40))], []]
    features = Features(
        {"prompt": List({"role": Value("string"), "content": Value("string")}), "images": List(Image())}
    )
    dataset = Dataset.from_dict({"prompt": [asked()] * 3, "images": images}, features=features)
    reader, rows = reader_of(qwen), readable(dataset)
    for number, given in enumerate(images):
        prompt = read(reader, rows[number], number)
        assert prompt.ids == read(reader, {"prompt": asked(), "images": given}).ids and len(
            prompt.pictures
        ) == len(given)


# --- lengths --------------------------------------------------------------------------------------------------------------


def long_row(words=40):
    """24 tokens of a picture (6 times 4), 4 marks and so many words."""
    return {"prompt": asked("w" * words), "image": drawn(size=(112, 168))}


@pytest.fixture(scope="module")
def wide():
    model, processor = tiny_eyes("qwen2_5_vl")
    processor.image_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 24}
    return model, processor


def test_words_are_cut_and_pictures_never(wide):
    whole = read(reader_of(wide), long_row())
    assert (len(whole.ids), whole.ids.count(reader_of(wide).eyes.image_id)) == (68, 24)
    reader = reader_of(wide, max_length=60)
    prompt = read(reader, long_row())
    assert prompt.ids.count(reader.eyes.image_id) == 24 and 55 <= len(prompt.ids) <= 60
    assert prompt.num_cut_tokens == 68 - len(prompt.ids)
    assert reader.eyes.look(prompt.ids, prompt.pictures).inputs["image_grid_thw"].prod() == 24 * 4


def test_a_limit_below_the_pictures_names_them(wide):
    reader = reader_of(wide, max_length=27)
    with pytest.raises(
        DatasetError,
        match=r"Row 5: without any of the user's text the chat still has 28 tokens, 24 of them of pictures, and max_prompt_length is 27. .*max_pixels",
    ):
        read(reader, long_row(), 5)


def test_too_long_rows_are_dropped_and_counted_and_a_text_is_never_cut(wide):
    rows = [long_row(), {"prompt": asked("short")}, {"prompt": asked("short"), "image": drawn()}]
    with pytest.warns(
        match="1 of 3 rows of the training dataset have a prompt of more than max_prompt_length=40"
    ):
        assert kept_rows(rows, reader_of(wide, max_length=40, overlong="drop")) == [1, 2]
    with pytest.raises(DatasetError, match="Row 2: the prompt has 13 tokens, max_prompt_length is 9"):
        read(reader_of(wide, max_length=9), {"prompt": "x" * 12 + "<|image_pad|>", "image": drawn()}, 2)


# --- pictures that cannot be used ------------------------------------------------------------------------------------------


def hostile(folder):
    """Names, and what a row may hold that has to be refused."""
    bomb = io.BytesIO()
    PIL.Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    cut = encoded(PIL.Image.effect_noise((200, 200), 50).convert("RGB"), "JPEG")[:3000]
    (folder / "text.png").write_text("no picture")
    return {
        "address": "https://example.com/a.png", "above the root": "../../etc/hostname", "absolute": "/etc/hostname", "bomb": bomb.getvalue(),
        "cut off": cut, "text": str(folder / "text.png"), "slender": PIL.Image.new("RGB", (1, 300)), "none": None, "not there": "image", "number": 5,
    }  # fmt: skip


def test_hostile_pictures_are_one_error_each_quickly(qwen, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    reader, cases = reader_of(qwen, tmp_path), hostile(tmp_path)
    read(reader, {"prompt": asked(), "images": [drawn(), drawn()]})  # imports are made
    for name, source in cases.items():
        tracemalloc.start()
        with (
            own_seconds(2),
            pytest.raises(DatasetError, match=r"Row 4, column 'images', picture 1: ") as told,
        ):
            read(reader, {"prompt": asked(), "images": [drawn(), source]}, 4)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 50e6, (name, peak)
        assert str(told.value).rstrip().endswith("."), name


def test_bad_pictures_are_dropped_and_counted_where_asked(qwen, tmp_path):
    rows = [{"prompt": asked(), "images": [drawn(), source]} for source in hostile(tmp_path).values()]
    rows.insert(2, {"prompt": asked(), "images": [drawn()]})
    reader = reader_of(qwen, tmp_path, drops_bad_images=True)
    with pytest.warns(
        match="10 of 11 rows of the training dataset have a picture that cannot be used, and bad_images='drop'"
    ):
        assert kept_rows(rows, reader) == [2]
    with pytest.raises(
        DatasetError, match="All 10 rows of the training dataset have a picture that cannot be used"
    ):
        kept_rows(rows[:2] + rows[3:], reader)
    with pytest.raises(DatasetError, match="Row 0, column 'images', picture 1"):
        kept_rows(rows, reader_of(qwen, tmp_path, max_length=30, overlong="drop"))
    plan = make_plan(group_size=4, micro_batch=8, accumulation=1, max_steps=4)
    (_, told), *_ = next(iter(RolloutStream(rows[:2], plan, reader)))
    assert "none of the 2 rows has pictures that can be used. Give" in told["fault"]


def test_a_wrong_count_is_no_bad_picture(qwen):
    with pytest.raises(DatasetError, match="blocks for pictures"):
        kept_rows([{"prompt": [user(IMAGE)], "images": []}], reader_of(qwen, drops_bad_images=True))
