"""What rewards get of pictures: PIL images as TRL gives them, opened once, in whatever place a reward runs; or a refusal by name."""

import base64
import io
import json

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from covey.errors import RewardError
from covey.rewards import Judge, Mixture, RewardBatch, RewardModel, reward
from covey.rewards.batch import Notes
from covey.rewards.cache import row_keys
from covey.rewards.contract import Reward
from covey.rewards.execution.process import Worker
from covey.rewards.fingerprint import fingerprint
from covey.rewards.neural import judge as judge_module
from covey.rewards.pictured import check_can_see
from covey.sample.prompts import PromptReader
from covey.trainer.evaluation import Evaluation
from covey.types import Completion, Group, ScoredGroup
from covey.vision import pictures
from covey.vision.blocks import payloads_in
from covey.vision.eyes import ProcessorEyes
from covey.vision.pictures import PictureLimits
from tests.tiny import tiny_policy
from tests.trainer.harness import make
from tests.vision.tiny_eyes import asked, drawn, encoded, picture_rows, tiny_eyes, tiny_eyes_policy

SMALL = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=4, learning_rate=1e-3)
pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


@pytest.fixture(scope="module")
def reader():
    model, processor = tiny_eyes()
    return PromptReader(processor.tokenizer, eyes=ProcessorEyes(processor, model), blind="")


def groups_of(reader, rows, size=8):
    done = tuple(Completion((i + 1,), (0.0,), chr(97 + i), "stop") for i in range(size))
    return [Group(reader.read(row, n, (n, 0)), done) for n, row in enumerate(rows)]


def batch_of(reader, rows, size=8):
    return RewardBatch.of_groups(groups_of(reader, rows, size))


def seen_by(reader, rows, where="inline", **options):
    """What a reward with **kwargs gets; it must be able to say it by its extras."""
    kept = {}

    def all_of_it(completions, **columns):
        kept.update(columns, completions=completions)
        return [0.0] * len(completions)

    Mixture(reward(all_of_it, where=where, **options)).score(batch_of(reader, rows))
    return kept


@pytest.fixture
def opened(monkeypatch):
    """The pictures that were opened for rewards."""
    seen, reopen = [], pictures.reopened

    def counted(picture):
        seen.append(picture.digest)
        return reopen(picture)

    monkeypatch.setattr(pictures, "reopened", counted)
    return seen


# --- case J ---------------------------------------------------------------------------------------------------------------


def test_rewards_get_what_trl_gives_them(reader, opened):
    """Blocks with pictures in front of the first text of a user, all contents in parts; columns of lists; one object for all."""
    images = [drawn("red", (60, 40)), drawn("blue", (33, 47))]
    system = {"role": "system", "content": "Look."}
    rows = [{"prompt": [system, *asked("a?")], "images": [encoded(i) for i in images], "answer": 3}, {"prompt": asked("b?"), "images": [drawn("gold")]}]  # fmt: skip
    given = seen_by(reader, rows)
    assert len(given["images"]) == 16 and [len(part) for part in given["images"]] == [2] * 8 + [1] * 8
    assert [i.size for i in given["images"][0]] == [(60, 40), (33, 47)] and given["images"][0][
        0
    ].mode == "RGB"
    assert all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(given["images"][3], images, strict=True)
    )
    assert len({id(i) for part in given["images"] for i in part}) == 3 == len(opened)
    first, second = given["prompts"][5]
    assert first == {"role": "system", "content": [{"type": "text", "text": "Look."}]}
    assert [part["type"] for part in second["content"]] == ["image", "image", "text"]
    assert second["content"][1]["image"] is given["images"][0][1] and second["content"][2]["text"] == "a?"
    assert (
        given["completions"][0] == [{"role": "assistant", "content": "a"}]
        and given["answer"] == [3] * 8 + [None] * 8
    )
    assert "image_sizes" not in given


def test_a_mixture_of_a_reward_of_text_and_one_of_pictures(reader):
    """The latter says None where a row has none; a list of one picture and a picture alone are what the column holds."""

    def text(completions):
        return [1.0] * len(completions)

    def sees(completions, image, **_):
        return [None if i is None else float(i.width) for i in image]

    rows = [{"prompt": asked(), "image": drawn(size=(50, 40))}, {"prompt": asked(), "image": None}]
    table = Mixture(text, sees).score(batch_of(reader, rows, 2))
    assert [s.value for s in table.scores["sees"]] == [50.0, 50.0, None, None]
    assert table.total(3) == 1.0


def test_nothing_is_opened_that_nobody_reads(reader, opened):
    def text(completions, answer=None):
        return [1.0] * len(completions)

    Mixture(text).score(batch_of(reader, [{"prompt": asked(), "image": drawn(), "answer": 1}]))
    assert not opened


def test_a_reward_that_draws_on_a_picture_changes_nothing_for_the_policy(reader):
    image = drawn("blue")
    group = groups_of(reader, [{"prompt": asked(), "image": image}])[0]
    before = reader.eyes.look(group.prompt.ids, group.prompt.pictures).inputs["pixel_values"].clone()

    def draws(completions, image, **_):
        for one in image:
            one.paste((255, 255, 255), (0, 0, *one.size))
        return [0.0] * len(completions)

    Mixture(draws).score(RewardBatch.of_groups([group]))
    reader.eyes.kept.clear()
    after = reader.eyes.look(group.prompt.ids, group.prompt.pictures).inputs["pixel_values"]
    assert torch.equal(before, after)


@pytest.mark.parametrize("kind", ["path", "bytes", "image"])
def test_every_place_gets_the_same_pictures(kind, reader, tmp_path):
    """Inline, on the event loop, in a thread and in a process, whole or sample by sample: sizes and pixels."""
    image = drawn("blue", (45, 35))
    (tmp_path / "a.png").write_bytes(encoded(image))
    source = {"path": "a.png", "bytes": encoded(image), "image": image}[kind]
    own = PromptReader(
        reader.tokenizer,
        eyes=ProcessorEyes(reader.eyes.processor, tiny_eyes()[0], PictureLimits(tmp_path)),
        blind="",
    )
    batch = batch_of(own, [{"prompt": asked(), "images": [source]}, {"prompt": asked(), "images": []}], 3)

    async def waits(completions, **columns):
        return tells(completions, **columns)

    rewards = [
        reward(waits),
        *(reward(tells, where=place, name=place) for place in ("inline", "thread", "process")),
    ]
    rewards.append(reward(tells, where="process", sample_timeout=60, name="alone"))
    table = Mixture(*rewards).score(batch)
    expected = [float(np.asarray(image).sum()) + image.width] * 3 + [-1.0] * 3
    assert {n: [s.value for s in column] for n, column in table.scores.items()} == dict.fromkeys(
        table.scores, expected
    )


def tells(completions, prompts, images, **_):
    """A number of the pixels that a block of the prompt and the column hold, which are one object."""
    found = []
    for prompt, shown in zip(prompts, images, strict=True):
        blocks = [
            p["image"]
            for m in prompt
            if isinstance(m["content"], list)
            for p in m["content"]
            if p["type"] == "image"
        ]
        assert len(blocks) == len(shown) and all(a is b for a, b in zip(blocks, shown, strict=True))
        assert len({id(one) for one in shown}) == len(shown)
        found.append(float(np.asarray(shown[0]).sum()) + shown[0].width if shown else -1.0)
    return found


def test_a_picture_crosses_to_a_process_once(reader, monkeypatch):
    """However many completions and calls show it; a process that was begun anew gets it again."""
    data = encoded(PIL.Image.effect_noise((90, 90), 60).convert("RGB"))
    batch = batch_of(reader, [{"prompt": asked(), "images": [data]}], 16)
    part = Reward(tells, "tells", reward(tells, where="process").options)
    worker, sent = Worker(part), []
    call = worker._session.call

    def counted(name, *args, **more):
        sent.append(sum(a.count(data) for a in args if isinstance(a, bytes)))
        return call(name, *args, **more)

    monkeypatch.setattr(worker._session, "call", counted)
    values = [worker.call(part, batch, Notes(16), 60.0) for _ in range(2)]
    values += [worker.call(part, batch.select([i]), Notes(1), 60.0) for i in range(3)]
    assert sent == [1, 0, 0, 0, 0] and values[0] == values[1] == values[2] * 16
    worker._session.close()
    assert worker.call(part, batch, Notes(16), 60.0) == values[0] and sent[5:] == [0, 1]
    other = batch_of(reader, [{"prompt": asked(), "images": [drawn("gold")]}], 2)
    assert worker.call(part, other, Notes(2), 60.0) != values[0][:2]


def test_other_readers_of_prompts_get_pictures_too(reader):
    """The predicate of a route, and what `compute_metrics` is given."""
    rows = [
        {"prompt": asked(), "image": drawn(size=(50, 40))},
        {"prompt": asked(), "image": drawn(size=(40, 50))},
    ]

    def one(completions, **_):
        return [1.0] * len(completions)

    wide = reward(
        one,
        when=lambda row: (
            row["image"].width > row["image"].height and row["prompt"][0]["content"][0]["image"].width > 45
        ),
    )
    groups = groups_of(reader, rows, 2)
    assert [s.value for s in Mixture(wide).score(RewardBatch.of_groups(groups)).scores["one"]] == [
        1.0,
        1.0,
        None,
        None,
    ]
    evaluation = Evaluation.of([ScoredGroup(g, {}, (0.0, 0.0), (0.0, 0.0)) for g in groups])
    assert [i.size for i in evaluation.columns["image"]] == [(50, 40)] * 2 + [(40, 50)] * 2
    assert evaluation.prompts[3][0]["content"][0]["image"] is evaluation.columns["image"][3]


def test_a_picture_that_has_changed_is_an_error_that_names_its_file(reader, tmp_path):
    drawn("red").save(tmp_path / "a.png")
    own = PromptReader(
        reader.tokenizer,
        eyes=ProcessorEyes(reader.eyes.processor, tiny_eyes()[0], PictureLimits(tmp_path)),
        blind="",
    )
    batch = batch_of(own, [{"prompt": asked(), "image": "a.png"}])
    drawn("blue").save(tmp_path / "a.png")
    with pytest.raises(RewardError, match=r"a\.png has changed since its prompt was read"):
        Mixture(lambda completions, image: [1.0] * len(completions)).score(batch)


# --- what tells scores apart ------------------------------------------------------------------------------------------------


def test_scores_are_kept_by_the_digest_of_pictures(reader, tmp_path):
    """The same question about another picture is another key; the same picture by another way is the same one."""
    part = Reward(lambda completions, images: [], "sees")
    (tmp_path / "a.png").write_bytes(encoded(drawn("red")))
    own = PromptReader(
        reader.tokenizer,
        eyes=ProcessorEyes(reader.eyes.processor, tiny_eyes()[0], PictureLimits(tmp_path)),
        blind="",
    )
    ways = [
        "a.png",
        encoded(drawn("red")),
        {"bytes": encoded(drawn("red")), "path": "x"},
        encoded(drawn("blue")),
    ]
    keys = [row_keys(part, batch_of(own, [{"prompt": asked(), "images": [way]}], 1))[0] for way in ways]
    assert keys[0] == keys[1] == keys[2] != keys[3] and None not in keys
    images = [
        row_keys(part, batch_of(own, [{"prompt": asked(), "images": [drawn(c)]}], 1))[0]
        for c in ("red", "red", "blue")
    ]
    assert images[0] == images[1] != images[2]


def test_a_cached_reward_tells_two_pictures_apart(reader):
    calls = []

    @reward(pure=True)
    def sees(completions, images, **_):
        calls.append(len(completions))
        return [float(i[0].width) for i in images]

    mixture = Mixture(sees, cache=True)
    rows = [{"prompt": asked(), "images": [drawn(size=(w, 40))]} for w in (40, 50)]
    for _ in range(2):
        table = mixture.score(batch_of(reader, rows, 2))
        assert [s.value for s in table.scores["sees"]] == [40.0, 40.0, 50.0, 50.0]
    assert calls == [4]


def test_a_reward_that_holds_a_picture_is_told_by_its_pixels():
    def comparing(image):
        def compares(completions, images, **_):
            return [float(images[0][0] == image)] * len(completions)

        return fingerprint(Reward(compares, "compares"))

    assert comparing(drawn("red")) == comparing(drawn("red")) != comparing(drawn("blue"))


# --- image_sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("qwen2_5_vl", [(84, 56), (28, 112)]),
        ("llava", [(28, 28), (28, 28)]),
        ("gemma3", [(28, 28), (28, 28)]),
    ],
)
def test_image_sizes_are_what_the_policy_saw(kind, sizes):
    """For Qwen the grid of patches times their side, in width and height; for a tower of one size that size."""
    model, processor = tiny_eyes(kind)
    eyes = ProcessorEyes(processor, model)
    reader = PromptReader(processor.tokenizer, eyes=eyes, blind="")
    kept = []

    def boxes(completions, image_sizes, images):
        kept.append(image_sizes)
        return [0.0] * len(completions)

    rows = [
        {"prompt": asked(), "images": [drawn(size=(80, 60)), drawn(size=(25, 110))]},
        {"prompt": asked(), "images": []},
    ]
    batch = RewardBatch.of_groups(
        groups_of(reader, rows, 2), seen_sizes=lambda p: eyes.seen_sizes(p.ids, p.pictures)
    )
    others = reward(
        lambda completions, **columns: [float("image_sizes" in columns)] * len(completions), name="others"
    )
    table = Mixture(boxes, others).score(batch)
    assert [s.value for s in table.scores["others"]] == [0.0] * 4
    assert kept == [[sizes, sizes, [], []]]


def test_a_policy_that_sees_pieces_has_no_image_sizes(tmp_path):
    def boxes(completions, image_sizes):
        return [0.0] * len(completions)

    folder = tiny_eyes_policy(tmp_path / "policy", "llava_next")
    with pytest.raises(
        RewardError, match="Reward 'boxes' asks for image_sizes: llava_next sees a picture in pieces"
    ):
        make(folder, tmp_path, boxes, picture_rows(2), **SMALL)
    with pytest.raises(
        RewardError, match="Reward 'boxes' asks for image_sizes: the policy is shown no pictures"
    ):
        make(tiny_policy(tmp_path / "text"), tmp_path, boxes, [{"prompt": asked()}], **SMALL)


# --- who cannot see is refused before anything is sampled --------------------------------------------------------------------


def boxed(completions, prompts, images):
    return [0.0] * len(completions)


def boxed_with_all(completions, **columns):
    return [0.0] * len(completions)


def boxed_text(completions, answer):
    return [float(len(answer[0]))] * len(completions)


class Fake:
    """A judge that answers as it is told, and keeps what it was shown."""

    def __init__(self):
        self.seen = []

    async def complete(self, messages):
        self.seen.append(messages)
        number = messages[0]["content"].partition('"id": "')[2].partition('"')[0]
        return json.dumps({"id": number, "right": "yes"})


RUBRIC = {"criteria": [{"name": "right", "question": "Is it right?"}]}


def classifier(kind="text"):
    """A tiny reward model that reads text alone, or one that sees; and what belongs to it."""
    model, processor = tiny_eyes("gemma3" if kind == "sees" else "qwen2_5_vl")
    if kind == "sees":
        config = model.config
        config.num_labels = config.text_config.num_labels = 1
        torch.manual_seed(0)
        judge = transformers.Gemma3ForSequenceClassification(config)
        judge.model.load_state_dict(model.model.state_dict())
        return judge.eval(), processor
    config = transformers.Qwen2Config(vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, num_labels=1)  # fmt: skip
    return transformers.Qwen2ForSequenceClassification(config), processor.tokenizer


def test_who_cannot_see_is_refused_by_name(reader):
    judge, model = Judge(Fake(), RUBRIC), RewardModel(*classifier(), name="scores")
    sees, processor = classifier("sees")
    cases = {
        "'boxed' runs in the sandbox and is given pictures (images, prompts)": reward(boxed, where="sandbox"),
        "'boxed_with_all' runs in the sandbox and is given pictures (images, prompts)": reward(boxed_with_all, where="sandbox"),
        "Judge 'judge' is asked about a prompt with pictures": judge,
        "Reward model 'scores' is given a prompt with pictures, and it reads text alone": model,
        "Reward model 'blind' is given a prompt with pictures, and its processor was not given": RewardModel(sees, processor.tokenizer, name="blind"),
    }  # fmt: skip
    prompt = reader.read({"prompt": asked(), "images": [drawn()], "answer": "a"}, 0, (0, 0))
    text = reader.read({"prompt": asked(), "images": [], "answer": "a"}, 0, (0, 0))
    for words, function in cases.items():
        with pytest.raises(RewardError) as told:
            check_can_see(Mixture(function), prompt, "task", None)
        assert words in str(told.value), told.value
        check_can_see(Mixture(function), text, "task", None)
        check_can_see(Mixture(reward(function, tasks="text")), replace_task(prompt, "see"), "task", None)
    seeing = (
        RewardModel(sees, processor),
        Judge(Fake(), RUBRIC, pictures="show"),
        Judge(Fake(), RUBRIC, pictures="leave_out"),
    )
    check_can_see(Mixture(*seeing, reward(boxed_text, where="sandbox")), prompt, "task", None)
    for neural in (judge, model):
        with pytest.raises(RewardError, match=r"would (judge|score) blind"):
            Mixture(neural).score(
                RewardBatch.of_groups([Group(prompt, (Completion((1,), (0.0,), "a", "stop"),))])
            )


@pytest.mark.parametrize("block", [{"type": "image"}, {"type": "image", "image": "a.png"}])
def test_a_judge_says_what_it_was_given_in_the_place_of_a_picture(block):
    """With `use_images=False` prompts come as the row has them."""
    chat = [{"role": "user", "content": [block, {"type": "text", "text": "What?"}]}]
    with pytest.raises(RewardError, match=r"in the place of a picture.*use_images=False"):
        Judge(Fake(), RUBRIC, pictures="show")([chat], [[{"role": "assistant", "content": "a"}]])


def test_a_column_whose_name_is_no_text_ends_no_run(reader):
    """Tables have such names; a reward that takes all columns was called with a keyword that is a number."""
    rows = [{"prompt": asked(), "images": [drawn()], 5: "five", None: 1, "answer": "a"}]
    seen = []

    def takes_all(completions, **columns):
        seen.append(set(columns))
        return [0.0] * len(completions)

    Mixture(takes_all).score(batch_of(reader, rows, 2))
    assert {"answer", "images"} < seen[0] and all(isinstance(name, str) for name in seen[0])


def replace_task(prompt, task):
    from dataclasses import replace

    return replace(prompt, columns={**prompt.columns, "task": task})


@pytest.mark.parametrize("sees", [True, False])
def test_the_trainer_refuses_before_its_first_step(sees, tmp_path):
    """Also where pictures are for rewards alone."""
    folder = tiny_eyes_policy(tmp_path / "policy")
    with pytest.raises(RewardError, match="'boxed' runs in the sandbox and is given pictures"):
        make(folder, tmp_path, reward(boxed, where="sandbox"), picture_rows(2), use_images=sees, **SMALL)


def test_a_judge_that_sees_gets_the_pictures_of_its_prompt(reader):
    judge = Judge(Fake(), RUBRIC, pictures="show")
    images = [drawn("red", (40, 32)), drawn("blue", (32, 40))]
    rows = [{"prompt": asked("What?"), "images": images}, {"prompt": asked("Why?"), "images": []}]
    table = Mixture(judge).score(batch_of(reader, rows, 1))
    assert [s.value for s in table.scores["judge"]] == [1.0, 1.0]
    shown = {
        m[1]["content"] if isinstance(m[1]["content"], str) else m[1]["content"][0]["text"]: m[1]["content"]
        for m in judge.client.seen
    }
    [with_pictures] = [v for text, v in shown.items() if "What?" in text]
    [text_alone] = [v for text, v in shown.items() if "Why?" in text]
    assert isinstance(text_alone, str) and "pictures of the task follow" not in text_alone
    sent = [
        base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
        for part in with_pictures[1:]
    ]
    assert [
        np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(d))), np.asarray(i))
        for d, i in zip(sent, images, strict=True)
    ] == [True] * 2
    silent = Judge(Fake(), RUBRIC, pictures="leave_out")
    Mixture(silent).score(batch_of(reader, rows, 1))
    assert all(isinstance(m[1]["content"], str) for m in silent.client.seen)
    with pytest.raises(RewardError, match="pictures='some'"):
        Judge(Fake(), RUBRIC, pictures="some")


def test_a_judge_is_sent_a_picture_that_was_encoded_once_for_all_completions(reader, monkeypatch):
    encoded = []
    monkeypatch.setattr(
        judge_module, "data_uri", lambda image: encoded.append(image) or f"data:,{len(encoded)}"
    )
    judge = Judge(Fake(), RUBRIC, pictures="show")
    rows = [{"prompt": asked("What?"), "images": [drawn("red"), drawn("blue")]}]
    Mixture(judge).score(batch_of(reader, rows, 8))
    urls = [[part["image_url"]["url"] for part in m[1]["content"][1:]] for m in judge.client.seen]
    assert len(encoded) == 2 and urls == [["data:,1", "data:,2"]] * 8


def test_a_reward_model_that_sees_scores_pixels(reader):
    """As the model itself does with its processor, and other pictures have other scores; rows of text score as always."""
    model, processor = classifier("sees")
    scores = RewardModel(model, processor, name="sees")
    rows = [{"prompt": asked("What?"), "images": [drawn(c)]} for c in ("red", "blue")] + [
        {"prompt": asked("Hi?"), "images": []}
    ]
    table = Mixture(scores).score(batch_of(reader, rows, 2))
    values = [s.value for s in table.scores["sees"]]
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]  # fmt: skip
    text = processor.apply_chat_template(chat, tokenize=False)
    for place, colour in ((0, "red"), (2, "blue")):
        given = processor(
            images=[[drawn(colour)]], text=[text], return_tensors="pt", add_special_tokens=False
        )
        with torch.no_grad():
            assert abs(model(**given).logits.item() - values[place]) < 1e-5
    assert abs(values[0] - values[2]) > 1e-4
    alone = Mixture(RewardModel(model, processor.tokenizer, name="sees")).score(batch_of(reader, rows[2:], 2))
    assert [s.value for s in alone.scores["sees"]] == values[4:]
    processor.tokenizer.chat_template = "{% for m in messages %}{% for p in m['content'] | selectattr('text') %}{{ p['text'] }}{% endfor %}{% endfor %}"  # as LLaVA's: of a content that is text nothing
    asks, answers = asked("Hi?"), [{"role": "assistant", "content": "no"}]
    assert processor.tokenizer.decode(scores.encode(asks, answers)).endswith("Hi?no")


# --- from end to end --------------------------------------------------------------------------------------------------------


def test_rewards_of_a_run_see_what_the_dataset_shows(tmp_path):
    seen = []

    def sees(completions, prompts, images, image_sizes, **_):
        for prompt, shown, sizes in zip(prompts, images, image_sizes, strict=True):
            blocks = payloads_in(prompt)
            assert [id(b) for b in blocks] == [id(i) for i in shown] and len(sizes) == len(shown)
            seen.append(tuple(i.size for i in shown))
        return [float(len(c[0]["content"]) % 3) for c in completions]

    rows = picture_rows(4, (1, 0, 2, 3), size=(40, 32))
    trainer = make(
        tiny_eyes_policy(tmp_path / "policy"),
        tmp_path,
        sees,
        rows,
        max_steps=2,
        **SMALL | {"per_device_train_batch_size": 16},
    )
    trainer.train()
    assert set(seen) == {tuple(i.size for i in row["images"]) for row in rows} and len(seen) == 32
