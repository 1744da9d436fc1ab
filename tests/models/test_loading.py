"""What cannot be loaded is named, with what came and what to do; a folder that is not there is no name on a hub."""

import pytest

from covey import GRPOTrainer
from covey.cli import main
from covey.errors import LoadingError
from covey.models import loading
from covey.models.adapters import load_adapter
from covey.models.loading import is_absent
from covey.rewards.neural.reward_model import load_reward_model
from tests.tiny import tiny_policy
from tests.trainer.harness import Recorder, make, rows


@pytest.mark.parametrize(
    "name", ["/nope/model", "./nope", "../nope", "~/nope", "runs/nope/model", "runs\\nope"]
)
def test_a_folder_that_is_not_there_is_no_name_on_a_hub(name):
    for load in (
        loading.load_policy,
        lambda name: loading.load_tokenizer(None, name),
        load_adapter,
        load_reward_model,
    ):
        with pytest.raises(LoadingError, match="there is no such folder") as raised:
            load(name)
        assert repr(name) in str(raised.value) and "repo" not in str(raised.value).replace("repository", "")


def test_names_on_a_hub_are_no_folders(tmp_path):
    assert not is_absent("gpt2") and not is_absent("Qwen/Qwen2.5-0.5B-Instruct")
    (tmp_path / "weights").write_text("")
    with pytest.raises(LoadingError, match="it is a file"):
        loading.load_policy(str(tmp_path / "weights"))


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "/nope/model", "--prompt", "hello"],
        ["eval", "/nope/model", "countdown", "--reward", "Countdown"],
    ],
)
def test_the_verbs_say_it(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "'/nope/model' cannot be loaded: there is no such folder" in capsys.readouterr().err


def test_the_trainer_says_it(tmp_path):
    with pytest.raises(LoadingError, match="'/nope/rm' cannot be loaded: there is no such folder"):
        GRPOTrainer("/nope/model", "/nope/rm")
    with pytest.raises(LoadingError, match="'/nope/model' cannot be loaded: there is no such folder"):
        make("/nope/model", tmp_path, Recorder([1.0, 0.0]), rows())
    with pytest.raises(LoadingError, match="model is None; it must be the name"):
        make(None, tmp_path, Recorder([1.0, 0.0]), rows())
    with pytest.raises(LoadingError, match=r"peft_config is \{'r': 4\}; it must be a PeftConfig"):
        make(tiny_policy(tmp_path / "m"), tmp_path, Recorder([1.0, 0.0]), rows(), peft_config={"r": 4})


def test_an_implementation_of_attention_for_each_part_of_a_model_goes_through():
    parts = {"text_config": "sdpa"}
    assert loading.model_kwargs({"attn_implementation": parts})["attn_implementation"] == parts
