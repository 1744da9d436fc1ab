"""Code that comes with a model runs where it is trusted: that of the policy, of its tokenizer and of reward models by name."""

import json
from pathlib import Path

import pytest
import transformers.dynamic_module_utils

from covey import GRPOConfig, GRPOTrainer
from covey.errors import ConfigError, LoadingError
from covey.recipes import Recipe
from tests.tiny import tiny_policy, tiny_reward_model
from tests.trainer.harness import rows

CODE = """
import transformers

class OwnConfig(transformers.Qwen2Config):
    model_type = "own"

class OwnModel(transformers.Qwen2Model):
    config_class = OwnConfig

transformers.AutoModel.register(OwnConfig, OwnModel)  # the classifier asks it for its body

class OwnPolicy(transformers.Qwen2ForCausalLM):
    config_class = OwnConfig

class OwnScores(transformers.Qwen2ForSequenceClassification):
    config_class = OwnConfig

class OwnTokenizer(transformers.PreTrainedTokenizerFast):
    pass
"""


def with_code(folder):
    """Let a saved model and its tokenizer be of classes that lie beside them."""
    Path(folder, "own.py").write_text(CODE)
    kinds = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": "OwnPolicy"}
    kinds["AutoModelForSequenceClassification"] = "OwnScores"
    own = {kind: f"own.{name}" for kind, name in kinds.items()}
    for name, added in (
        ("config.json", {"model_type": "own", "auto_map": own}),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}},
        ),
    ):
        path = Path(folder, name)
        path.write_text(json.dumps(json.loads(path.read_text()) | added))
    return folder


def made(policy, reward, folder, trusts):
    settings = {"report_to": "none", "num_generations": 2, "per_device_train_batch_size": 2}
    args = GRPOConfig(str(folder), max_completion_length=4, trust_remote_code=trusts, **settings)
    return GRPOTrainer(policy, reward, args, rows(2))


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def test_code_of_policy_tokenizer_and_reward_model_runs_where_it_is_trusted(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "n")
    policy, reward = with_code(tiny_policy(tmp_path / "p")), with_code(tiny_reward_model(tmp_path / "r"))
    trainer = made(policy, reward, tmp_path / "out", trusts=True)
    scores = trainer.reward_funcs[0]
    parts = (trainer.model, trainer.processing_class, scores.model, scores.tokenizer)
    assert [type(part).__name__ for part in parts] == [
        "OwnPolicy",
        "OwnTokenizer",
        "OwnScores",
        "OwnTokenizer",
    ]
    assert not asked, "the setting is the answer"
    plain = tiny_policy(tmp_path / "plain")
    for model, scored in ((policy, tiny_reward_model(tmp_path / "r2")), (plain, reward)):
        with pytest.raises(LoadingError, match="trust_remote_code"):
            made(model, scored, tmp_path / "out", trusts=False)


def test_a_recipe_that_trusts_its_model_trusts_its_reward_model(tmp_path):
    reward, path = with_code(tiny_reward_model(tmp_path / "r")), tmp_path / "r.yaml"
    path.write_text(
        f"model: {{model_name_or_path: m, trust_remote_code: true}}\nrewards:\n- model: {reward}\n"
    )
    (part,) = Recipe.load(path).rewards()
    assert type(part.function.model).__name__ == "OwnScores"
    path.write_text(f"model: m\nrewards:\n- model: {reward}\n")
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Recipe.load(path).rewards()
