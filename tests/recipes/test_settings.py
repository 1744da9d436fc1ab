"""Settings: every field can be said, and what is wrong with one is said with its line."""

from dataclasses import MISSING, dataclass, fields
from enum import Enum

import pytest

from covey import GRPOConfig, ModelConfig
from covey.config.validation import describe, kinds_of
from covey.errors import ConfigError
from covey.recipes.listing import listing
from covey.recipes.nodes import Mark, node_of
from covey.recipes.reading import read_yaml
from covey.recipes.settings import default_of, make, named, read_settings

HERE = Mark("r.yaml", 1)


def read(text, cls=GRPOConfig):
    return read_settings(read_yaml(text, "r.yaml"), cls, {"lora_r": "model"})


def plain_default(field):
    value = default_of(field)
    return value.value if isinstance(value, Enum) else value


@pytest.mark.parametrize("cls", [GRPOConfig, ModelConfig])
def test_every_field_can_be_said_and_its_default_fits(cls):
    given = {f.name: plain_default(f) for f in fields(cls) if f.init}
    assert read_settings(node_of(given, HERE), cls, {}) == given
    assert len(given) > (100 if cls is GRPOConfig else 20)


@pytest.mark.parametrize("cls", [GRPOConfig, ModelConfig])
def test_every_field_refuses_what_its_kind_is_not(cls):
    class Nothing:
        """Fits no kind."""

    for name, kind in kinds_of(cls).items():
        with pytest.raises(ConfigError, match=f"r.yaml:1: {name} is "):
            read_settings(node_of({name: Nothing()}, HERE), cls, {})
        assert "typing" not in describe(kind) and "class" not in describe(kind), (name, describe(kind))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "beta: 0.1\nlerning_rate: 1",
            "r.yaml:2: GRPOConfig has no setting 'lerning_rate'. Did you mean learning_rate",
        ),
        ("beta: 0.1\nlora_r: 8", "r.yaml:2: GRPOConfig has no setting 'lora_r'. It belongs under 'model'."),
        ("beta: high", "r.yaml:1: beta is 'high'; it must be a number."),
        ("beta: true", "r.yaml:1: beta is True; it must be a number."),
        ("num_generations: 8.5", "r.yaml:1: num_generations is 8.5; it must be a whole number."),
        ("seed: false", "seed is False; it must be a whole number."),
        ("bf16: yes", "bf16 is 'yes'; it must be true or false or null."),
        ("run_name: 7", "run_name is 7; it must be text or null."),
        ("reward_weights: [1, x]", "reward_weights is a list; it must be a list (a number) or null."),
        ("generation_kwargs: [1]", "it must be a mapping or text or null."),
        ("save_strategy: 3", "it must be text."),
        ("lr_scheduler_type: linnear", "is 'linnear', which is none of its values. Did you mean linear"),
        (
            "save_strategy: sometimes",
            "r.yaml:1: save_strategy is 'sometimes', which is none of its values. It is one of no,",
        ),
        ("- beta", "r.yaml:1: GRPOConfig is a list; it must be a mapping of names to values."),
        ("7: 1", "r.yaml:1: GRPOConfig has the key 7; keys are text."),
    ],
)
def test_mistakes_are_named_with_their_line(text, message):
    with pytest.raises(ConfigError) as error:
        read(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1e-6\nnum_generations: 8\nbeta: -1", "r.yaml:3: beta is -1"),
        ("learning_rate: 1e-6\nloss_type: dappo", "r.yaml:2: loss_type is 'dappo'"),
        ("logging_steps: 1\nentropy_target: 0.5", "r.yaml:2: entropy_target=0.5 has no effect"),
    ],
)
def test_what_the_settings_complain_about_is_said_with_the_line_of_the_one_they_name(text, message, tmp_path):
    node = read_yaml(text, "r.yaml")
    with pytest.raises(ConfigError) as error:
        make(GRPOConfig, {"output_dir": str(tmp_path), **read(text)}, node)
    assert str(error.value).startswith(message)


def test_a_name_inside_another_name_is_not_it():
    entries = read_yaml("epsilon: 0.2\nepsilon_high: 0.1", "r").value
    assert named("epsilon_high is 0.1", entries, node_of(0, HERE)).mark.line == 2
    quoted = read_yaml("a: 1\nb: odd one", "r").value
    assert named("'odd one' is not known", quoted, node_of(0, HERE)).mark.line == 2
    assert named("nothing of this", entries, node_of(0, HERE)).mark == HERE


def test_a_mapping_becomes_the_dataclass_that_the_field_holds():
    @dataclass
    class Inner:
        size: int = 1

    @dataclass
    class Outer:
        inner: Inner | None = None

    kinds_of.cache_clear()
    Outer.__annotations__["inner"] = Inner | None
    found = read_settings(node_of({"inner": {"size": 3}}, HERE), Outer, {})
    assert found == {"inner": Inner(3)}
    with pytest.raises(ConfigError, match=r"r\.yaml:1: .*length"):
        read_settings(node_of({"inner": {"length": 3}}, HERE), Outer, {})


def test_the_listing_has_every_setting_with_its_default():
    text = "\n".join(listing())
    for cls in (GRPOConfig, ModelConfig):
        for field in fields(cls):
            assert f"  {field.name}: " in text
            assert field.default is not MISSING or field.default_factory is not MISSING
    assert "  learning_rate: 1e-06   # a number" in text and "  use_peft: false   # true or false" in text
    assert listing("zzz") == []
