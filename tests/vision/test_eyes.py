"""Eyes: one call of the family's own processor is the source of ids, pixels, types and positions."""

import sys
import threading

import pytest
import torch

from covey.errors import ConfigError, DatasetError
from covey.vision.eyes import ProcessorEyes, size_of
from covey.vision.pictures import PictureLimits, read_picture
from covey.vision.sight import placed
from tests.vision.tiny_eyes import EYES, drawn, tiny_eyes

SIZES = ((32, 32), (60, 40), (28, 84))
"""Three sizes, one more tokens than the other."""


@pytest.fixture(scope="module", params=EYES)
def policy(request):
    return (request.param, *tiny_eyes(request.param))


def seen(processor, model, num, question="What?", colours=("red", "blue", "gold")):
    """Eyes, and a prompt with so many pictures that they have read."""
    eyes = ProcessorEyes(processor, model)
    pairs = [read_picture(drawn(colours[i], SIZES[i], seed=i)) for i in range(num)]
    parts = [{"type": "image"}] * num + [{"type": "text", "text": question}]
    chat = [{"role": "user", "content": parts}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return eyes, eyes.read(text, pairs), [picture for picture, _ in pairs], text, [i for _, i in pairs]


def same(a, b):
    """Whether two sights are equal in every bit."""
    first, second = vars(a), vars(b)
    tensors = [(first[n][k], second[n][k]) for n in ("inputs", "types") for k in first[n] | second[n]]
    tensors += [(first[n], second[n]) for n in ("positions", "places") if first[n] is not None]
    rest = [n for n in first if n not in ("inputs", "types", "positions", "places")]
    return all(torch.equal(x, y) for x, y in tensors) and all(first[n] == second[n] for n in rest)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_ids_and_pixels_are_those_of_the_processor(policy, num):
    kind, model, processor = policy
    eyes, ids, pictures, text, images = seen(processor, model, num)
    own = processor(images=[images], text=[text], return_tensors="pt")
    sight = eyes.look(ids, pictures)
    assert list(ids) == own["input_ids"][0].tolist()
    for name, value in {**sight.inputs, **{n: t[None] for n, t in sight.types.items()}}.items():
        assert torch.equal(value, own[name]), name
    left = set(own) - set(sight.inputs) - set(sight.types)
    assert left <= {"input_ids", "attention_mask", "labels"}, kind
    assert int(sight.places.sum()) == own["input_ids"][0].tolist().count(eyes.image_id) > 0


@pytest.mark.parametrize("num", [1, 3])
def test_a_forgotten_prompt_is_seen_again_the_same(policy, num):
    _, model, processor = policy
    eyes, ids, pictures, _, _ = seen(processor, model, num)
    first = eyes.look(ids, pictures)
    assert eyes.look(ids, pictures) is first
    eyes.kept.clear()
    again = eyes.look(ids, pictures)
    assert again is not first and same(again, first)


def test_another_text_about_known_pictures_shows_their_pixels(policy, monkeypatch):
    """As when neighbours are changed to compare the two ways: nothing is processed again, and it is what would have been."""
    _, model, processor = policy
    eyes, ids, pictures, _, _ = seen(processor, model, 2)
    other = (*(i if i in eyes.placeholders else 9 for i in ids[:-3]), 10, 11)
    expected = ProcessorEyes(processor, model).look(other, pictures)
    monkeypatch.setattr(eyes, "_processed", None)
    assert same(eyes.look(other, pictures), expected)
    monkeypatch.undo()
    with pytest.raises(DatasetError, match="tokens of pictures"):
        eyes.look((*other, eyes.image_id), pictures)


def test_positions_are_the_policys_own(policy):
    """A forward pass that is handed them says what one says that works them out itself."""
    _, model, processor = policy
    eyes, ids, pictures, text, images = seen(processor, model, 2)
    own = processor(images=[images], text=[text], return_tensors="pt")
    own.pop("labels", None)
    sight, captured = eyes.look(ids, pictures), {}
    decoder = model.get_decoder()
    hook = decoder.register_forward_pre_hook(lambda m, a, k: captured.update(k), with_kwargs=True)
    with torch.no_grad():
        model(**own)
    hook.remove()
    theirs = captured.get("position_ids")
    ours = placed(sight, len(ids))
    if theirs is None:
        assert ours.tolist() == [list(range(len(ids)))]
    elif theirs.ndim == 3:
        assert torch.equal(theirs[-3:, 0], ours)
    else:
        assert torch.equal(theirs, ours)


def test_positions_of_a_worked_example():
    """A picture 56 wide and 84 high has 3 rows of 2 tokens, behind 7 tokens of text: the published rule, by hand."""
    model, processor = tiny_eyes("qwen2_5_vl")
    eyes = ProcessorEyes(processor, model)
    pair = read_picture(drawn("red", (56, 84)))
    ids = eyes.read("abcdef<|vision_start|><|image_pad|><|vision_end|>" + "x" * 18, [pair])
    sight = eyes.look(ids, [pair[0]])
    assert sight.inputs["image_grid_thw"].tolist() == [[1, 6, 4]]
    assert sight.places.nonzero().flatten().tolist() == list(range(7, 13))
    t, h, w = sight.positions.tolist()
    assert t[7:13] == [7] * 6
    assert h[7:13] == [7, 7, 8, 8, 9, 9]
    assert w[7:13] == [7, 8, 7, 8, 7, 8]
    assert [t[13], h[13], w[13]] == [10] * 3
    assert (len(ids), t[31], sight.next_position) == (32, 28, 29)


def test_what_sees_both_ways_is_what_the_family_lets():
    for kind, runs in (("gemma3", 2), ("paligemma", 1), ("qwen2_5_vl", 0)):
        model, processor = tiny_eyes(kind)
        eyes, ids, pictures, _, _ = seen(processor, model, 2)
        sight = eyes.look(ids, pictures)
        assert len(sight.spans) == runs, kind
        if kind == "gemma3":
            assert all(sight.places[a:b].all() for a, b in sight.spans)
            assert sum(b - a for a, b in sight.spans) == int(sight.places.sum())
        if kind == "paligemma":
            assert (sight.spans, sight.next_type) == (((0, len(ids)),), 1)


def test_a_text_shows_nothing(policy):
    kind, model, processor = policy
    sight = ProcessorEyes(processor, model).look(list(range(6, 12)), [])
    assert not sight.inputs and sight.places is None
    assert placed(sight, 6).tolist() == [[*range(1, 7)] if kind == "paligemma" else [*range(6)]]
    assert all(not kinds.any() for kinds in sight.types.values())


def test_pictures_tell_prompts_of_equal_ids_apart():
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    text = "<|image_pad|>What?"
    pairs = [read_picture(drawn(colour)) for colour in ("red", "blue")]
    first, second = (eyes.read(text, [pair]) for pair in pairs)
    assert first == second
    a, b = (eyes.look(first, [picture]).inputs["pixel_values"] for picture, _ in pairs)
    assert not torch.equal(a, b)


def test_what_is_kept_is_bounded():
    model, processor = tiny_eyes()
    one = ProcessorEyes(processor, model)
    pairs = [read_picture(drawn("red", seed=i)) for i in range(6)]
    ids = one.read("<|image_pad|>?", pairs[:1])
    size = size_of(one.look(ids, [pairs[0][0]]))
    eyes = ProcessorEyes(processor, model, most_bytes=3 * size)
    for pair in pairs:
        eyes.read("<|image_pad|>?", [pair])
    assert len(eyes.kept) == 3 and eyes.num_bytes == 3 * size
    eyes.look(ids, [pairs[3][0]])  # the oldest of those that are left is used again, and stays
    eyes.read("<|image_pad|>?", [pairs[0]])
    assert (ids, (pairs[3][0].digest,)) in eyes.kept and (ids, (pairs[4][0].digest,)) not in eyes.kept


def test_other_numbers_of_places_than_of_pictures_are_refused():
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    pair = read_picture(drawn())
    with pytest.raises(DatasetError, match=r"2 places for pictures \(<\|image_pad\|>\) and 1 pictures"):
        eyes.read("<|image_pad|> <|image_pad|>", [pair])
    ids = eyes.read("<|image_pad|>", [pair])
    with pytest.raises(DatasetError, match="has 2 tokens of pictures, and its 1 pictures make 1 now"):
        eyes.look((*ids, eyes.image_id), [pair[0]])


def test_a_picture_that_has_changed_is_no_longer_the_same(tmp_path):
    model, processor = tiny_eyes()
    path, limits = tmp_path / "a.png", PictureLimits(root=tmp_path)
    drawn("red").save(path)
    eyes = ProcessorEyes(processor, model, limits)
    pair = read_picture(str(path), limits=limits)
    ids = eyes.read("<|image_pad|>", [pair])
    eyes.kept.clear()
    eyes.look(ids, [pair[0]])
    eyes.kept.clear()
    drawn("blue").save(path)
    with pytest.raises(DatasetError, match=r"a\.png has changed since its prompt was read"):
        eyes.look(ids, [pair[0]])


def test_what_the_policy_does_not_take_is_named(monkeypatch):
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    eyes.accepted.discard("image_grid_thw")
    with pytest.raises(ConfigError, match="gives image_grid_thw, and the policy"):
        eyes.read("<|image_pad|>", [read_picture(drawn())])


def test_placeholders_are_all_that_no_completion_may_hold():
    for kind, names in {
        "qwen2_5_vl": ("<|image_pad|>", "<|video_pad|>"),
        "internvl": ("<IMG_CONTEXT>", "<video>"),
        "gemma3": ("<image_soft_token>",),
        "llava": ("<image>",),
    }.items():
        model, processor = tiny_eyes(kind)
        ids = {processor.tokenizer.convert_tokens_to_ids(name) for name in names}
        assert ids <= ProcessorEyes(processor, model).placeholders, kind


def test_the_side_of_padding_changes_nothing():
    model, processor = tiny_eyes()
    _, ids, _, text, images = seen(processor, model, 2)
    processor.tokenizer.padding_side = "right"
    pairs = [read_picture(image) for image in images]
    assert ProcessorEyes(processor, model).read(text, pairs) == ids


def test_it_looks_from_several_threads():
    """With async_lag rewards that ask for image_sizes run beside the update, and both look at what is kept."""
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    pairs = [read_picture(drawn("red", (32, 32), seed)) for seed in range(24)]
    ids = [eyes.read(eyes.image_token, [pair]) for pair in pairs]
    eyes.most_bytes, faults, before = eyes.num_bytes // 2, [], sys.getswitchinterval()
    eyes.kept.clear()
    eyes.num_bytes, blank = 0, eyes._processed(eyes.image_token, [pairs[0][1]])
    eyes._processed = lambda *_: blank  # nothing but the memory is looked at

    def look(step):
        try:
            for turn in range(300):
                number = turn * step % len(pairs)
                eyes.look(ids[number], [pairs[number][0]])
        except Exception as error:
            faults.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=look, args=(step,)) for step in (1, 5, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not faults, faults
    assert eyes.num_bytes == sum(map(size_of, eyes.kept.values())) <= eyes.most_bytes
