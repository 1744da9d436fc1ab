"""The command line and policies that see: every verb shows them the pictures, or refuses them by name; nothing is ever asked blind."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from covey.cli import main
from covey.cli.verbs import check, generate
from covey.config import hardware
from covey.errors import ConfigError, EngineError, LoadingError
from covey.models import loading
from covey.recipes import Recipe
from covey.recipes.reading import read_yaml
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.wire import DrawBody, read_as
from covey.sample.sampling import Sampling
from covey.types import Picture, Prompt
from tests.clocks import PATIENCE
from tests.sample.remote.serving import serving
from tests.tiny import EOS, PAD, tiny_policy
from tests.vision.tiny_eyes import COLOURS, asked, drawn, tiny_eyes, tiny_eyes_policy

RECIPE = """
model: {policy}
data: {{file: rows.jsonl}}
eval: {{file: rows.jsonl}}
rewards: [{{reward: "rewards_that_see:letters"}}]
train: {{learning_rate: 1.0e-2, max_steps: 2, num_generations: 4, per_device_train_batch_size: 8, max_completion_length: 6, use_cpu: true,
  disable_tqdm: true, report_to: none, image_root: shown, num_generations_eval: 1, save_strategy: "no"{more}}}
"""
REWARDS = "def letters(completions, **_): return [float(sum(map(ord, c[0]['content'])) % 97) for c in completions]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy, eight rows with none, one and two pictures, and recipes."""
    folder = tmp_path_factory.mktemp("verbs")
    tiny_eyes_policy(folder / "policy")
    tiny_policy(folder / "reads")
    (folder / "shown").mkdir()
    rows = []
    for number in range(8):
        name = list(COLOURS)[number % 4]
        drawn(name, (32 + 28 * (number % 3), 56), seed=number).save(folder / "shown" / f"{number}.png")
        rows.append({"prompt": asked("What?"), "images": [f"{number}.png"] * (number % 3), "answer": name})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "rewards_that_see.py").write_text(REWARDS)
    (folder / "recipe.yaml").write_text(RECIPE.format(policy="policy", more=""))
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    yield folder
    sys.modules.pop("rewards_that_see", None)


@pytest.fixture
def said(capsys):
    """Runs a verb; gives what it printed."""

    def command(*words, status=0):
        assert main([str(word) for word in words]) == status, capsys.readouterr().err
        out = capsys.readouterr()
        return out.out if status == 0 else out.err

    return command


def generated(said, *words):
    return [json.loads(line) for line in said("generate", *words, "--max-tokens", 6).splitlines()]


# --- what is shown is seen ------------------------------------------------------------------------------------------------


def by_hand(folder, question, picture, ids):
    """Log-probabilities of ids behind a question about a picture, by the family's own processor and model."""
    processor, model = (
        AutoProcessor.from_pretrained(folder),
        AutoModelForImageTextToText.from_pretrained(folder),
    )
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    read = dict(processor(images=[picture], text=[text], return_tensors="pt"))
    length, behind = read["input_ids"].shape[1], torch.tensor([ids])
    for name, filler in (
        ("input_ids", behind),
        ("attention_mask", behind * 0 + 1),
        ("mm_token_type_ids", behind * 0),
    ):
        read[name] = torch.cat([read[name], filler], 1)
    with torch.no_grad():
        logits = model.eval()(**read).logits[0, length - 1 : -1]
    logits[
        :, [PAD, *processor.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])]
    ] = -torch.inf
    return logits.log_softmax(-1).gather(1, behind.T)[:, 0].tolist()


def test_generate_shows_pictures_and_says_which(here, said):
    """The log-probabilities are the model's own; another picture changes them, and two are not one."""
    found = {}
    for name in ("1", "2"):
        [line] = generated(said, "policy", "-p", "What?", "--image", f"shown/{name}.png", "--logprobs")
        [mark, text] = line["prompt"][0]["content"]
        assert line["pictures"] == [mark["digest"]] and text["text"] == "What?"
        found[name] = line
        own = by_hand(
            "policy",
            "What?",
            drawn(list(COLOURS)[int(name)], (32 + 28 * int(name), 56), seed=int(name)),
            line["ids"],
        )
        assert line["logprobs"] == pytest.approx(own, abs=1e-4)
    assert found["1"]["logprobs"] != found["2"]["logprobs"]
    both = ["--image", "shown/1.png", "--image", "shown/2.png"]
    [line] = generated(said, "policy", "-p", "What?", *both, "--logprobs")
    assert line["pictures"] == found["1"]["pictures"] + found["2"]["pictures"]
    assert line["logprobs"] != found["1"]["logprobs"]


def test_rows_of_a_file_bring_pictures_of_their_folder_or_of_the_one_that_is_named(here, said):
    lines = generated(said, "policy", "rows.jsonl", "--image-root", "shown", "--greedy")
    assert [len(line.get("pictures", ())) for line in lines] == [number % 3 for number in range(8)]
    (here / "shown" / "rows.jsonl").write_text((here / "rows.jsonl").read_text())
    assert generated(said, "policy", "shown/rows.jsonl", "--greedy") == lines
    assert "rows.jsonl" not in said("generate", "policy", "rows.jsonl", status=2)
    [line] = generated(said, "policy", "-p", "What?", "--image", "shown/4.png", "--greedy")
    assert line["completion"] == lines[4]["completion"]


@pytest.fixture(scope="module")
def trained(folder):
    """A run of the recipe: its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        assert main(["train", "recipe.yaml"]) == 0
    return folder / "runs" / "recipe"


def test_a_recipe_with_pictures_trains_and_its_model_sees_wherever_it_is_taken(here, trained, said):
    """Trained, evaluated, asked and checked: one answer to one question about one picture, whatever verb asks."""
    assert (trained / "model" / "processor_config.json").exists()
    said("eval", trained / "model", "recipe.yaml", "--greedy", "-o", "found.json")
    found = json.loads(Path("found.json").read_text())["sets"]["eval"]
    lines = generated(said, trained / "model", "rows.jsonl", "--image-root", "shown", "--greedy")
    assert found["pictures"] == [line.get("pictures", []) for line in lines]
    assert [c[0] for c in found["completions"]] == [line["completion"] for line in lines]
    words = (
        "rows.jsonl",
        "--reward",
        "rewards_that_see:letters",
        "--max-tokens",
        6,
        "--greedy",
        "-o",
        "plain.json",
    )
    said("eval", trained / "model", *words, "--image-root", "shown")
    assert json.loads(Path("plain.json").read_text())["sets"]["eval"]["completions"] == found["completions"]
    rows = [json.loads(text) for text in Path("rows.jsonl").read_text().splitlines()]
    sample = check.sampler(str(trained / "model"), 6, "shown")
    assert len(sample(rows, 2)) == 8
    assert "<|image_pad|>" in said("try", trained / "model", "recipe.yaml", "--row", 1)
    said(
        "check", "recipe.yaml", "--model", trained / "model", "--max-tokens", 4, "--json", status=1
    )  # letters pay for anything
    assert "recipe: finished" in said("doctor", trained)


def test_check_samples_what_the_row_shows(here):
    """The same row with another picture gets other draws; a sampler that sees nothing would repeat itself."""
    sample = check.sampler("policy", 6, "shown")
    questions = [{"prompt": asked("What?"), "images": [f"{number}.png"]} for number in (1, 4, 7)]
    texts = [[c[0]["content"] for c in group] for group in sample(questions, 4)]
    blind = [[c[0]["content"] for c in group] for group in sample([{"prompt": asked("What?")}] * 3, 4)]
    assert all(a != b for a, b in zip(texts, blind, strict=True))


def test_other_pictures_are_another_question(here, said):
    """A paired test takes no answers to other pictures for answers to the same prompts."""
    said("eval", "policy", "recipe.yaml", "-o", "before.json")
    kept = (here / "shown" / "1.png").read_bytes()
    try:
        drawn("blue", (60, 56), seed=99).save(here / "shown" / "1.png")
        assert "with other pictures" in said(
            "eval", "policy", "recipe.yaml", "--against", "before.json", status=2
        )
    finally:
        (here / "shown" / "1.png").write_bytes(kept)
    said("eval", "policy", "recipe.yaml", "--against", "before.json")


# --- adapters -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(folder):
    """An adapter on the decoder whose second matrix is not zero, without a tokenizer beside it."""
    model = get_peft_model(
        AutoModelForImageTextToText.from_pretrained(folder / "policy"),
        LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    )
    model.save_pretrained(folder / "adapter")
    return model.merge_and_unload()


def test_an_adapter_sees_and_merges_into_a_folder_that_sees(here, adapter, said):
    """What is merged answers as the adapter does, and as the sum of the weights."""
    words = ("-p", "What?", "--image", "shown/1.png", "--greedy", "--logprobs")
    [alone] = generated(said, "adapter", *words)
    assert "merged into it" in said("merge", "adapter", "merged")
    [merged] = generated(said, "merged", *words)
    [base] = generated(said, "policy", *words)
    assert alone["ids"] == merged["ids"] and alone["logprobs"] == pytest.approx(merged["logprobs"], abs=1e-5)
    assert base["logprobs"] != pytest.approx(merged["logprobs"], abs=1e-3)
    model, processor = (
        AutoModelForImageTextToText.from_pretrained("merged"),
        AutoProcessor.from_pretrained("merged"),
    )
    assert hasattr(processor, "image_processor")
    for (name, a), (_, b) in zip(
        sorted(model.state_dict().items()), sorted(adapter.state_dict().items()), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-6), name


def test_a_base_that_has_moved_brings_its_processor(here, adapter, said, tmp_path):
    (here / "policy").rename(here / "moved")
    try:
        said("merge", "adapter", tmp_path / "out", "--base", "moved")
        assert hasattr(AutoProcessor.from_pretrained(tmp_path / "out"), "image_processor")
    finally:
        (here / "moved").rename(here / "policy")


def test_without_the_extra_nothing_is_merged_blind(here, adapter, said, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "has_package", lambda name: name != "torchvision")
    assert r"pip install 'covey[vision]'" in said("merge", "adapter", tmp_path / "out", status=2)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_a_recipe_is_a_processor_where_the_policy_sees(here):
    """`tokenizer:` names a folder; of a policy that sees it is the processor that lies there."""
    values = {"tokenizer": "policy"}
    assert hasattr(Recipe.load("recipe.yaml", values=values).tokenizer(), "image_processor")
    reads = Recipe.load("recipe.yaml", values={**values, "model": {"model_name_or_path": "reads"}})
    assert not hasattr(reads.tokenizer(), "image_processor")


# --- never blind ----------------------------------------------------------------------------------------------------------

BLIND = r"Row \d: its column 'images' has pictures, and the policy reads text alone"


@pytest.mark.parametrize(
    "words",
    [
        ("train", "recipe.yaml", "--set", "model=reads", "image_root=null"),
        ("eval", "reads", "recipe.yaml", "--set", "image_root=null"),
        ("eval", "reads", "rows.jsonl", "--reward", "rewards_that_see:letters", "--max-tokens", "6"),
        ("try", "reads", "recipe.yaml", "--row", "1", "--set", "image_root=null"),
        ("generate", "reads", "rows.jsonl", "--image-root", "shown"),
        ("generate", "reads", "-p", "What?", "--image", "shown/1.png"),
        (
            "check",
            "rows.jsonl",
            "--reward",
            "rewards_that_see:letters",
            "--model",
            "reads",
            "--image-root",
            "shown",
        ),
    ],
)
def test_no_verb_asks_a_policy_that_reads_text_about_pictures(here, said, words):
    assert re.search(BLIND, said(*words, status=2))


def test_an_address_on_the_command_line_is_no_missing_file(here, said):
    text = said("generate", "policy", "-p", "What?", "--image", "https://example.org/a.png", status=2)
    assert "is an address, and nothing is fetched" in text


def test_a_plan_says_that_the_policy_would_be_blind(here, said):
    memory = json.loads(said("plan", "recipe.yaml", "--json", "--set", "model=reads", "image_root=null"))[
        "memory"
    ]
    assert "the policy reads text alone" in memory["not reckoned"]


def test_a_policy_without_its_processor_is_asked_nothing_about_pictures(here, said, tmp_path):
    model, processor = tiny_eyes()
    model.save_pretrained(tmp_path / "lame")
    processor.tokenizer.save_pretrained(tmp_path / "lame")
    text = said("generate", tmp_path / "lame", "-p", "What?", "--image", "shown/1.png", status=2)
    assert "a tokenizer stands where the policy's processor should" in text
    [line] = generated(said, tmp_path / "lame", "-p", "What?")
    assert "pictures" not in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", "policy", "rows.jsonl", "--image", "shown/1.png"), "--image has no effect without -p"),
        (("generate", "policy", "-p", "x", "--image", "none.png"), "--image none.png cannot be read"),
        (("generate", "policy", "-p", "x", "--image", "rows.jsonl"), "it is no picture that is read"),
        (("generate", "policy", "rows.jsonl"), "cannot be read"),
        (
            ("check", "rows.jsonl", "--reward", "rewards_that_see:letters", "--image-root", "x"),
            "no effect without --model",
        ),
    ],
)
def test_what_cannot_be_shown_is_said(here, said, words, message):
    assert message in said(*words, status=2)


def test_a_command_with_tools_shows_no_pictures(here, monkeypatch, said):
    """Whatever the template makes of tools: the reader is blind before it is used."""
    monkeypatch.setattr(generate.Source, "made_episodes", lambda self, reader: SimpleNamespace(reader=reader))
    words = ("policy", "-p", "x", "--image", "shown/1.png", "--tool", "rewards_that_see:letters")
    assert "a command with tools shows the policy text alone" in said("generate", *words, status=2)


def test_servers_refuse_pictures_by_name():
    """The engine of a run before it sends anything, and the server whatever it is sent."""
    model, processor = tiny_eyes()
    engine = RemoteEngine.__new__(RemoteEngine)
    engine.policy, engine.label, engine._own = model, "1", []
    shown = Prompt("x", (5, 6), row=3, pictures=(Picture(b"", "d", (1, 1)),))
    with pytest.raises(
        EngineError, match="Row 3: its prompt shows pictures, and servers draw from text alone"
    ):
        next(engine.generate([shown], 2, Sampling(4)))
    with pytest.raises(ConfigError, match=r"images: this server draws from text alone.*engine='native'"):
        read_as(DrawBody, {"prompt": [5], "settings": {"max_new_tokens": 4}, "images": ["x"]})
    with serving(model, processor.tokenizer) as (_, http):
        image = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        body = {"prompt": [5, image], "settings": {"max_new_tokens": 4, "stop_ids": [EOS], "padding_id": PAD}}
        with pytest.raises(
            ConfigError, match=rf"the id {image} \(<\|image_pad\|>\), which stands for a part of a picture"
        ):
            http.policy.check(read_as(DrawBody, body))
        http.policy.check(read_as(DrawBody, {**body, "prompt": [5, 6]}))


# --- without the extra ----------------------------------------------------------------------------------------------------

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('PIL', 'torchvision'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition('.')[0] in ('PIL', 'torchvision') else found(name, package)
from covey import GRPOConfig, GRPOTrainer
from covey.errors import DatasetError
reward = lambda completions, **_: [float(len(str(c)) % 7) for c in completions]
def trainer(model, rows):
    args = GRPOConfig(output_dir=sys.argv[2], use_cpu=True, max_steps=1, per_device_train_batch_size=4, num_generations=4,
                      max_completion_length=4, report_to='none', disable_tqdm=True, save_strategy='no')
    return GRPOTrainer(model, reward, args, rows)
chat = [{'role': 'user', 'content': 'What?'}]
trainer(sys.argv[1], [{'prompt': chat}]).train()
trainer(sys.argv[3], [{'prompt': chat}]).train()
try:
    trainer(sys.argv[3], [{'prompt': chat, 'image': 'a.png'}]).train()
except DatasetError as error:
    assert "pip install 'covey[vision]'" in str(error), error
    print('named')
assert not {'PIL', 'torchvision'} & set(sys.modules)
"""


def test_text_trains_without_the_extra_and_pictures_name_it(folder, tmp_path):
    """Neither package can be imported: text alone trains, also on a policy that sees; a picture is an error that names the extra."""
    words = [sys.executable, "-W", "ignore", "-c", BLOCKED, folder / "reads", tmp_path, folder / "policy"]
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and done.stdout.strip().endswith("named"), done.stderr[-2000:]


def test_a_processor_that_cannot_be_loaded_is_an_error(here, tmp_path):
    """It is there, and broken: the tokenizer alone would be blind."""
    tiny_eyes_policy(tmp_path / "broken")
    (tmp_path / "broken" / "processor_config.json").write_text("{")
    with pytest.raises(LoadingError, match="processor of"):
        loading.load_processing_class(None, str(tmp_path / "broken"))


def test_the_recipe_of_the_page_can_be_read():
    """What docs/vision.md shows of a recipe is one."""
    page = (Path(__file__).parents[2] / "docs" / "vision.md").read_text(encoding="utf-8")
    lines = page[page.index("    model: Qwen") :].split("\n\n")[0].splitlines()
    found = Recipe(read_yaml("\n".join(line[4:] for line in lines), "page"), "page")
    assert found.config.image_root == "data/cats" and found.config.max_pixels == 200704
    assert set(found.sections) == {"model", "data", "rewards", "train"}
