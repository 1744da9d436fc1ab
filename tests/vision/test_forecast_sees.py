"""The forecast of policies that see, against what tiny ones really hold, and the lines of `covey plan` about pictures."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from covey.cli import main
from covey.config import get_peft_config
from covey.errors import CoveyError
from covey.forecast.fitting import fit
from covey.forecast.memory import Demand, phases, totals
from covey.forecast.seeing import PictureDemand, Tower, features, tower_activations, tower_layer, tower_share
from covey.forecast.sizes import demand_of, prompt_lengths, sizes_of
from covey.forecast.tower_sizes import patches_of, tower_of
from covey.models.adapters import with_adapter
from covey.models.loading import load_policy
from covey.recipes import Recipe
from covey.update.oom_retry import OomRetry, TokenBudget
from covey.vision.eyes import ProcessorEyes, size_of
from covey.vision.features import encode, freeze, sees_with
from covey.vision.pictures import read_picture
from tests.forecast.test_memory import SIZES, bytes_kept_by
from tests.vision.tiny_eyes import EYES, FAST, MAKERS, asked, drawn, tiny_eyes_policy

LORA = {"use_peft": True, "lora_r": 2, "lora_target_modules": "all-linear"}
SIDES = (140, 84)
"""Of a picture whose patches are as many as no weight is wide."""


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    return {kind: tiny_eyes_policy(folder / kind, kind) for kind in EYES}


def recipe(folder, rows=None, model=None, **train):
    sections = {
        "model": {"model_name_or_path": folder, **(model or {})},
        "data": {"generator": "countdown", "arguments": {"count": 12}},
        "rewards": ["covey.tasks:countdown_reward"],
        "train": {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "max_completion_length": 8,
            "use_cpu": True,
            **train,
        },
    }
    found = Recipe.of(sections, "test")
    if rows is not None:
        found.__dict__["train_dataset"] = rows
    return found


# --- the tower's weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"freeze_vision_tower": True},
        {"freeze_vision_tower": True, "freeze_projector": True},
        {"model": LORA},
        {"model": LORA, "lora_vision": True},
    ],
)
@pytest.mark.parametrize("kind", EYES)
def test_weights_of_tower_and_decoder_are_those_of_the_loaded_model(policies, kind, given):
    given = dict(given)
    asked_for = recipe(policies[kind], model=given.pop("model", {}), **given)
    found, args = sizes_of(asked_for), asked_for.config
    loaded = load_policy(policies[kind])
    policy = with_adapter(loaded, get_peft_config(asked_for.model_config), 0, args.lora_vision)
    if args.freeze_vision_tower:
        freeze(loaded, args.freeze_projector)
    seen = {id(p) for p in sees_with(loaded)}
    for part, mine in ((found.tower, True), (found, False)):
        own = [p for p in policy.parameters() if (id(p) in seen) is mine]
        assert part.weights == sum(p.numel() for p in own)
        assert part.trained == sum(p.numel() for p in own if p.requires_grad)
    tower = loaded.get_encoder(modality="image")
    assert found.tower.keeps is any(p.requires_grad for p in tower.parameters())


# --- what the tower keeps -------------------------------------------------------------------------------------------------


def made(kind, layers, is_checkpointed=False):
    """A policy whose tower has so many layers, its eyes, and a picture."""
    config, processor = MAKERS[kind]()
    vision = config.vision_config
    setattr(vision, "depth" if hasattr(vision, "depth") else "num_hidden_layers", layers)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config).float().train()
    if is_checkpointed:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    eyes = ProcessorEyes(processor, model)
    picture, image = read_picture(drawn("red", SIDES))
    return model, eyes.look(eyes.read(eyes.image_token, [(picture, image)]), [picture])


def kept_bytes(kind, layers, is_checkpointed=False, lowered=False):
    """What a pass of the tower keeps for the backward pass, the policy, and what was shown."""
    model, sight = made(kind, layers, is_checkpointed)
    kept = bytes_kept_by(model, lambda: encode(model, sight.inputs, [sight.num_places]), lowered)
    return kept, model, sight


def demand_for(model, sight):
    patches = patches_of(model, sight.inputs)
    return PictureDemand(sight.num_places, patches, patches, size_of(sight), size_of(sight))


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("kind", EYES)
def test_what_a_layer_of_the_tower_keeps_is_what_was_counted(kind, lowered):
    """Towers differ in what stands between their products: a quarter more or less, and never more than a fifth too little."""
    more, model, sight = kept_bytes(kind, 4, lowered=lowered)
    counted, shown = more - kept_bytes(kind, 3, lowered=lowered)[0], demand_for(model, sight)
    if kind == "gemma4":  # a mask for its padding: a number for each two patches
        counted -= shown.patches**2 * (2 if lowered else 4)
    reckoned = tower_layer(tower_of(model, set()), shown, 4, 2 if lowered else 4)
    least = 0.6 if (kind, lowered) == ("gemma4", True) else 0.8  # its norms keep float32
    assert least * counted < reckoned < 1.25 * counted, reckoned / counted


@pytest.mark.parametrize("kind", EYES)
def test_with_checkpointing_a_layer_of_the_tower_keeps_its_input_alone(kind):
    more, model, sight = kept_bytes(kind, 4, is_checkpointed=True)
    counted = more - kept_bytes(kind, 3, is_checkpointed=True)[0]
    tower, shown = tower_of(model, set()), demand_for(model, sight)
    reckoned = [tower_activations(replace(tower, layers=n), shown, 4, 4, True) for n in (3, 4)]
    own = (
        0.07 if kind.startswith(("llava", "internvl")) else 0
    )  # they have a token of their own for each tile
    assert reckoned[1] - reckoned[0] == pytest.approx(counted, rel=own)


@pytest.mark.parametrize("kind", EYES)
def test_features_and_pixels_are_counted_to_the_byte(kind):
    model, sight = made(kind, 3)
    tower, shown = tower_of(model, set()), demand_for(model, sight)
    with torch.no_grad():
        [found] = encode(model, sight.inputs, [sight.num_places])
    hidden = model.config.get_text_config().hidden_size
    assert features(tower, shown, hidden, 4) == sum(layer.nbytes for layer in found.layers)
    assert shown.pixels == sum(x.nbytes for x in (*sight.inputs.values(), *sight.types.values()))


def test_a_frozen_tower_keeps_nothing_and_its_features_stay():
    model, sight = made("qwen2_5_vl", 3)
    freeze(model, True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        encode(model, sight.inputs, [sight.num_places])
    tower = tower_of(model, set())
    assert not kept and not tower.keeps and not tower.trained
    shown = demand_for(model, sight)
    assert tower_activations(tower, shown, 4, 4, False) == tower_layer(tower, shown, 4, 4)


# --- sums by hand ---------------------------------------------------------------------------------------------------------

TOWER = Tower(
    weights=1000, trained=1000, quantised=0, layers=4, hidden=8, intermediate=16, heads=2, widths=6, inner=2
)
SHOWN = PictureDemand(tokens=5, patches=20, largest=20, pixels=800, held=4000)
DEMAND = Demand(completions=8, group=4, sampled=16, prompt_tokens=10, completion_tokens=20, shown=SHOWN)


def test_worked_numbers():
    """Two prompts in a pass, four in a rollout; a layer keeps 20 × (2 × 4 × 8 + 4 × (6 × 8 + 2 × 16)) = 7,680 bytes of one."""
    sizes = replace(SIZES, tower=TOWER)
    text, found = phases(SIZES, replace(DEMAND, is_cpu=True)), phases(sizes, replace(DEMAND, is_cpu=True))
    new = {phase: {p: b for p, b in found[phase].items() if p not in text[phase]} for phase in found}
    assert new["always"] == {"tower": 1000 * 4 + 1000 * 8, "pixels": 4000}
    assert new["sample"] == {"tower's activations": 4 * 7680, "features of pictures": 4 * 5 * 8 * 4}
    assert new["update"] == {
        "tower's gradients": 4000,
        "tower's activations": 2 * (2 * 7680 + 20 * 8 * 4 * 4 + 800),
        "features of pictures": 2 * 5 * 8 * 4,
    }
    frozen = replace(sizes, tower=replace(TOWER, trained=0, keeps=False))
    update = phases(frozen, replace(DEMAND, is_cpu=True))["update"]
    assert "tower's gradients" not in update and update["features of pictures"] == 4 * 5 * 8 * 4
    assert update["tower's activations"] == 2 * (7680 + 800)
    away = phases(sizes, DEMAND)["always"]
    assert "pixels" not in away  # of a GPU they are not: the host holds them
    assert totals(found)["update"] == sum(found["always"].values()) + sum(found["update"].values())


def test_text_is_reckoned_as_before():
    assert phases(SIZES, DEMAND) == phases(SIZES, replace(DEMAND, shown=None))


def test_attention_that_keeps_its_weights_grows_with_the_square_of_the_patches():
    eager = [tower_layer(TOWER, replace(SHOWN, patches=n, largest=n, is_eager=True), 4, 4) for n in (20, 40)]
    fused = [tower_layer(TOWER, replace(SHOWN, patches=n, largest=n), 4, 4) for n in (20, 40)]
    assert [a - b for a, b in zip(eager, fused, strict=True)] == [2 * 2 * n * n * 4 for n in (20, 40)]


def test_the_tower_s_share_by_hand():
    """Trained: 1000 × 20 × (1 + 4) products of the tower; 500 × (10 + 80) × (1 + 4) of the decoder. Frozen: the tower twice."""
    assert tower_share(TOWER, SHOWN, 500, 10, 80, 4.0) == 100_000 / (100_000 + 225_000)
    frozen = replace(TOWER, keeps=False)
    assert tower_share(frozen, SHOWN, 500, 10, 80, 4.0) == 40_000 / (40_000 + 225_000)


# --- what a run holds, and what the plan says -----------------------------------------------------------------------------

ROWS = [
    {
        "prompt": asked("What?"),
        "images": [drawn("red", (56 * (1 + i), 56), seed=n) for i in range(n % 3)],
        "target": 1,
        "nums": [1],
    }
    for n in range(6)
]


@pytest.mark.parametrize("kind", FAST)
def test_lengths_count_pictures_as_training_reads_them(policies, kind):
    """Prompts, tokens of pictures, pixels that the run holds: read again with the loaded model."""
    asked_for = recipe(policies[kind], ROWS)
    found = prompt_lengths(asked_for)
    trainer = asked_for.trainer()
    reader = trainer.prompts.reader
    prompts = [reader.read(row, n, (n, 0)) for n, row in enumerate(ROWS)]
    sights = [reader.eyes.look(p.ids, p.pictures) for p in prompts if p.pictures]
    assert (found.longest, found.rows) == (max(len(p.ids) for p in prompts), 6)
    assert (found.pictures.pictures, found.pictures.prompts) == (6, 4)
    assert found.pictures.demand.tokens == max(sight.num_places for sight in sights)
    assert found.pictures.demand.held == pytest.approx(reader.eyes.num_bytes, rel=0.01)
    assert found.pictures.least <= found.pictures.median <= found.pictures.most


def test_a_smaller_max_pixels_is_proposed_where_it_has_an_effect(policies):
    """The proposal is tried with the processor itself: half the tokens, at most."""
    folder = policies["qwen2_5_vl"]
    found = prompt_lengths(recipe(folder, ROWS)).pictures
    limit, left = found.halved
    assert left <= found.most // 2
    with_it = prompt_lengths(recipe(folder, ROWS, max_pixels=limit)).pictures
    assert with_it.most == left


def test_a_run_that_does_not_fit_is_told_what_smaller_pictures_and_a_frozen_tower_come_to(policies):
    asked_for = recipe(policies["qwen2_5_vl"], ROWS)
    found = fit(asked_for, asked_for.plan(), prompt_lengths(asked_for), 2**30)
    names = " ".join(found.instead)
    assert not found.fits and "a frozen tower and projector" in names and "max_pixels=" in names
    assert all(size < found.needed for size in found.instead.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overlong_prompts": "drop", "max_prompt_length": 14}, None),
        ({"bad_images": "drop"}, None),
        ({"image_root": "."}, None),
    ],
)
def test_a_plan_drops_the_rows_that_training_drops(policies, given, message):
    broken = [*ROWS, {"prompt": asked("x"), "images": [b"no picture"], "target": 1, "nums": [1]}]
    rows = broken if "bad_images" in given else ROWS
    asked_for = recipe(policies["qwen2_5_vl"], rows, **given)
    planned = asked_for.plan()
    assert planned == asked_for.trainer().plan
    assert planned.num_prompts == {"overlong_prompts": 4, "bad_images": 6, "image_root": 6}[next(iter(given))]


def test_settings_of_pictures_for_a_policy_that_reads_text_stand_in_the_plan(tmp_path):
    from tests.tiny import tiny_policy

    asked_for = recipe(tiny_policy(tmp_path / "reads"), max_pixels=100)
    with pytest.raises(CoveyError, match="max_pixels=100 has no effect"):
        prompt_lengths(asked_for)


def test_the_plan_names_pictures_tower_and_pixels(policies, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown").mkdir()
    rows = []
    for number in range(6):
        drawn("blue", (56 * (1 + number % 2), 56), seed=number).save(tmp_path / "shown" / f"{number}.png")
        rows.append({"prompt": asked("What?"), "image": f"{number}.png" if number else None, "answer": "x"})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "recipe.yaml").write_text(
        f"model: {policies['qwen2_5_vl']}\ndata: {{file: rows.jsonl}}\nrewards: [SameAnswer]\n"
        "train: {num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6, use_cpu: true, image_root: shown}\n"
    )
    assert main(["plan", "recipe.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["memory"]
    assert found["pictures"] == {
        "pictures": 5,
        "prompts": 5,
        "least": 4,
        "median": 8,
        "most": 8,
        "pixels": found["pictures"]["pixels"],
    }
    assert 0 < found["the tower's share of a step"] < 1 and found["smaller pictures"]["tokens"] <= 4
    assert found["of them, tower and projector"]["all"] < found["weights"]["all"]
    assert found["always: tower"] > 0 and found["always: pixels"] > 0
    assert main(["plan", "recipe.yaml"]) == 0
    text = capsys.readouterr().out
    assert "5 in 5 prompts; 4 to 8 tokens each, 8 in the middle" in text and "of its products" in text


# --- memory that runs out -------------------------------------------------------------------------------------------------


def test_memory_that_runs_out_in_the_tower_names_the_tokens_of_pictures(monkeypatch):
    model, sight = made("qwen2_5_vl", 2)

    def full(*_, **__):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(model, "get_image_features", full)
    said = rf"pictures of 1 prompt\(s\), which are {sight.num_places} tokens.*max_pixels.*20 GiB"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        encode(model, sight.inputs, [sight.num_places])
    monkeypatch.setattr(model, "get_image_features", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encode(model, sight.inputs, [sight.num_places])


def test_memory_that_runs_out_in_an_update_says_how_many_tokens_are_of_pictures():
    """One group of two: its prompt of five tokens, three of them of a picture, is read once."""
    from covey.update.micro_batch import MicroBatch

    batch = MicroBatch([(1, 9, 9, 9, 2)] * 2, [(3,), (3, 4)], [0, 0], *[torch.zeros(0)] * 4)
    retry = OomRetry(TokenBudget(), lambda: 3, print, rank=0, ranks=1, placeholders=frozenset({9}))

    def work(_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.warns(match=r"2 completion\(s\) \(3 of 8 tokens are of pictures\): it is repeated"):
        assert retry.attempt(work, batch) is None
    with pytest.raises(torch.OutOfMemoryError, match="make pictures smaller"):
        retry.attempt(work, MicroBatch([(1, 9, 9, 9, 2)], [(3,)], [0], *[torch.zeros(0)] * 4))


def test_a_run_with_a_frozen_tower_holds_the_features_that_were_reckoned(policies, tmp_path):
    """All prompts of a rollout, as wide as the decoder; rows are alike, so the fullest prompt stands for each. With beta none is left out."""
    rows = [{**ROWS[0], "images": [drawn("red", (56, 56), seed=n)]} for n in range(4)]
    frozen = {
        "freeze_vision_tower": True,
        "freeze_projector": True,
        "output_dir": str(tmp_path),
        "max_steps": 1,
        "beta": 0.1,
    }
    asked_for = recipe(policies["qwen3_vl"], rows, **frozen)  # whose features stand behind layers too
    trainer = asked_for.trainer()
    trainer.train()
    kept = trainer.updater.forward.viewer.kept.values()
    sizes, demand = sizes_of(asked_for), demand_of(asked_for, trainer.plan, prompt_lengths(asked_for))
    held = phases(sizes, demand)["update"]["features of pictures"]
    assert held == sum(layer.nbytes for found in kept for layer in found.layers) > 0
