"""Rewards of a recipe: bundled and own, with arguments, terms, schedules and gates; and the mixture that they make."""

import sys

import pytest

from covey.errors import ConfigError, RewardError
from covey.recipes.mixtures import check_rewards_node, make_mixture, placeholder
from covey.recipes.reading import read_yaml
from covey.rewards import Cosine, CosineLength, Linear, Mixture, Reward, Sandbox, Steps, Tagged
from covey.rewards.rules.countdown import Countdown


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with rewards of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_rewards_of_recipes.py").write_text(
        "from covey.rewards import Mixture, ThinkFormat, reward\n"
        "def paid(completions, amount=1.0, **_): return [amount] * len(completions)\n"
        "@reward(weight=0.5, tasks='sums')\n"
        "def decorated(completions, **_): return [0.0] * len(completions)\n"
        "class Made:\n"
        "    def __init__(self, size): self.size, self.__name__ = size, 'made'\n"
        "    def __call__(self, completions, **_): return [float(self.size)] * len(completions)\n"
        "mixture = Mixture(ThinkFormat(), paid)\n"
        "def late(progress): return progress ** 2\n"
        "def is_long(row): return len(row['prompt']) > 5\n"
    )
    yield
    sys.modules.pop("own_rewards_of_recipes", None)


def mix(text, load_model=placeholder):
    root = read_yaml(text, "r.yaml").value
    check_rewards_node(root["rewards"])
    return make_mixture(root["rewards"], root.get("mixture"), "task", load_model)


def one(text):
    [found] = mix(f"rewards:\n  - {text}")
    return found


def test_bundled_rewards_by_name_with_arguments():
    assert [r.name for r in mix("rewards: [ThinkFormat, SameAnswer]")] == ["think_format", "same_answer"]
    found = one("{reward: Countdown, arguments: {rule: all}}")
    assert isinstance(found.function, Countdown) and found.name == "countdown_all"
    tags = one("{reward: Tagged, arguments: {tags: [plan, code], only: true}}").function
    assert tags.tags == Tagged("plan", "code", only=True).tags


def test_own_rewards_by_import_path():
    texts = ["a", "b"]
    assert one("own_rewards_of_recipes:paid")(completions=texts) == [1.0, 1.0]
    bound = one("{reward: 'own_rewards_of_recipes:paid', arguments: {amount: 0.25}, name: fee}")
    assert bound(completions=texts) == [0.25, 0.25] and bound.name == "fee"
    assert one("{reward: 'own_rewards_of_recipes:Made', arguments: {size: 3}}")(completions=texts) == [
        3.0,
        3.0,
    ]
    found = one("{reward: 'own_rewards_of_recipes:decorated', weight: 2}")
    assert found.options.weight == 2 and found.options.tasks == {"sums"}, "what the decorator says stays"


def test_arguments_can_be_objects():
    scaled = one(
        "{reward: CosineLength, arguments: {accuracy: {call: SameAnswer}, max_length: 100}}"
    ).function
    assert isinstance(scaled, CosineLength) and scaled.accuracy.name == "same_answer"
    text = """{reward: CallTests, arguments: {sandbox: {call: Sandbox, arguments:
        {level: limits, limits: {call: 'covey.rewards.sandbox.limits:Limits', arguments: {cpu_seconds: 3}}}}}}"""
    sandbox = one(text).function.sandbox
    assert isinstance(sandbox, Sandbox) and sandbox.level == "limits" and sandbox.limits.cpu_seconds == 3


def test_a_judge_with_its_rubric_in_the_recipe():
    text = """
      reward: Judge
      arguments:
        client: {call: OpenAIClient, arguments: {base_url: "http://127.0.0.1:9/v1", model: judge, max_tokens: 50}}
        rubric: {criteria: [{name: clear, question: "Is it clear?"}]}
      on_error: missing"""
    judge = one(text).function
    assert judge.rubric.criteria[0].name == "clear" and judge.client.parameters["max_tokens"] == 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("weight: 0.5", 0.5),
        ("weight: {schedule: linear, start: 0, end: 1, until: 0.3}", Linear(0, 1, until=0.3)),
        ("weight: {schedule: cosine, start: 1, end: 0}", Cosine(1, 0)),
        ("weight: {sums: 2, '*': 0.5}", {"sums": 2, "*": 0.5}),
        ("weight: {sums: {schedule: linear, start: 0, end: 1}}", {"sums": Linear(0, 1)}),
    ],
)
def test_weights_are_numbers_schedules_or_by_task(text, expected):
    assert one(f"{{reward: ThinkFormat, {text}}}").options.weight == expected


def test_weights_that_jump_and_weights_of_ones_own():
    steps = one("{reward: ThinkFormat, weight: {schedule: steps, weights: {0: 1, 0.5: 0.1}}}").options.weight
    assert isinstance(steps, Steps) and (steps(0.4), steps(0.6)) == (1.0, 0.1)
    own = one("{reward: ThinkFormat, weight: {schedule: 'own_rewards_of_recipes:late'}}").options.weight
    assert own(0.5) == 0.25


def test_terms_reach_the_mixture():
    text = """
rewards:
  - ThinkFormat
  - reward: SameAnswer
    tasks: [sums, products]
    requires: {think_format: 0.5}
    present: answer
    when: own_rewards_of_recipes:is_long
    where: process
    timeout: 5
    sample_timeout: 1
    on_error: zero
    optional: true
    pure: true
  - reward: Repetition
    requires: [think_format, same_answer]
    scope: group
mixture: {task_column: kind, max_failure_rate: 0.1, unscored: ignore, on_error: missing}
"""
    mixture = mix(text)
    options = mixture[1].options
    assert options.tasks == {"sums", "products"} and options.requires == (("think_format", 0.5),)
    assert (options.present, options.where, options.timeout, options.sample_timeout) == (
        "answer",
        "process",
        5,
        1,
    )
    assert options.on_error == "zero" and options.optional and options.pure
    assert options.when({"prompt": "abcdef"}) and not options.when({"prompt": "abc"})
    assert [name for name, _ in mixture[2].options.requires] == ["think_format", "same_answer"]
    assert mixture[2].options.scope == "group" and mixture[0].options.on_error == "missing"
    assert mixture.task_column == "kind" and mixture.unscored == "ignore"


def test_a_mixture_of_ones_own_is_taken_as_it_is():
    found = mix("rewards: own_rewards_of_recipes:mixture")
    assert isinstance(found, Mixture) and [r.name for r in found] == ["think_format", "paid"]


def test_reward_models_are_loaded_by_what_one_gives_and_can_be_left_out():
    asked = []

    def load(path, /, **arguments):
        asked.append((path, arguments))
        return Reward(lambda prompts, completions: [0.0], arguments.get("name", "model"))

    text = "rewards:\n  - {model: path/to/judge, name: quality, tasks: talk, arguments: {max_length: 9}}\n  - {model: b/c}"
    mix(text, load)
    assert asked == [("path/to/judge", {"name": "quality", "max_length": 9}), ("b/c", {})]
    assert [r.name for r in mix(text)] == ["quality", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewards: []", "r.yaml:1: rewards is empty"),
        ("rewards:\n  - 3", "r.yaml:2: a reward is 3; it must be a name, or a mapping"),
        ("rewards:\n  - {reward: A, model: b}", "r.yaml:2: a reward is either"),
        ("rewards:\n  - weight: 1", "r.yaml:2: a reward is either"),
        ("rewards:\n  - reward: SameAnswer\n    wieght: 1", "r.yaml:3: a reward has no 'wieght'. Did you mean weight"),
        ("rewards:\n  - SameAnser", "r.yaml:2: there is no bundled reward 'SameAnser'. Did you mean SameAnswer"),
        ("rewards:\n  - path/to/model", "r.yaml:2: there is no bundled reward 'path/to/model'."),
        ("rewards:\n  - no_module_here:f", "r.yaml:2: 'no_module_here:f' cannot be imported"),
        ("rewards:\n  - own_rewards_of_recipes:nothing", "cannot be imported: module 'own_rewards_of_recipes' has no"),
        ("rewards:\n  - reward: Countdown\n    arguments:\n      ruel: all", "r.yaml:4: Countdown takes no argument 'ruel'. Did you mean rule"),
        ("rewards:\n  - reward: Countdown\n    arguments:\n      rule: some", "r.yaml:4: Countdown: "),
        ("rewards:\n  - reward: SoftOverlong\n    arguments:\n      max_length: 5", "r.yaml:3: SoftOverlong: "),
        ("rewards:\n  - SoftOverlong", "SoftOverlong: "),
        ("rewards:\n  - reward: SameAnswer\n    weight: heavy", "r.yaml:3: weight is 'heavy'; it must be a number"),
        ("rewards:\n  - reward: SameAnswer\n    weight:\n      schedule: linnear", "r.yaml:4: there is no schedule 'linnear'. Did you mean linear"),
        ("rewards:\n  - reward: SameAnswer\n    weight: {schedule: linear, start: 0, stop: 1}", "takes no argument 'stop'"),
        ("rewards:\n  - reward: SameAnswer\n    weight: {sums: {start: 0, end: 1}}", "r.yaml:3: a schedule says which it is"),
        ("rewards:\n  - reward: SameAnswer\n    weight: {schedule: linear, start: 0, end: 1, until: 2}", "r.yaml:3: the schedule linear: begin="),
        ("rewards:\n  - reward: SameAnswer\n    on_error: ignore", "r.yaml:3: the reward: Reward 'same_answer': on_error='ignore'"),
        ("rewards:\n  - reward: SameAnswer\n    timeout: 3", "r.yaml:3: the reward: Reward 'same_answer': timeout=3 cannot be kept inline"),
        ("rewards:\n  - ThinkFormat\n  - reward: SameAnswer\n    requires: ThinkFormat", "r.yaml:3: Reward 'same_answer' requires 'ThinkFormat'"),
        ("rewards:\n  - reward: SameAnswer\n    requires: 3", "r.yaml:3: requires is 3"),
        ("rewards:\n  - reward: SameAnswer\n    when: is_long", "r.yaml:3: 'is_long' names no function"),
        ("rewards: [ThinkFormat]\nmixture: {max_failure_rat: 1}", "r.yaml:2: mixture has no 'max_failure_rat'. Did you mean max_failure_rate"),
        ("rewards: [ThinkFormat]\nmixture:\n  window: 9\n  unscored: maybe", "r.yaml:4: unscored='maybe'"),
        ("rewards: ['own_rewards_of_recipes:mixture']\nmixture: {window: 9}", "r.yaml:2: 'mixture' has no effect"),
        ("rewards: ['own_rewards_of_recipes:mixture', ThinkFormat]", "r.yaml:1: a mixture cannot be part"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(text, message):
    with pytest.raises((ConfigError, RewardError)) as error:
        mix(text)
    assert message in str(error.value)


def test_a_reward_model_that_cannot_be_loaded_is_named_with_its_line():
    def load(path, /, **_):
        raise OSError("not there")

    with pytest.raises(ConfigError, match=r"r\.yaml:2: the reward model 'a/b' cannot be loaded: not there"):
        mix("rewards:\n  - model: a/b", load)


def test_a_bound_is_said_with_what_its_multiplier_is_learned_with():
    found = one("{reward: ThinkFormat, at_least: 0.95, multiplier_step: 0.2, multiplier_max: 5}").options
    assert (found.at_least, found.multiplier_step, found.multiplier_damping, found.multiplier_max) == (
        0.95,
        0.2,
        2.0,
        5,
    )
    with pytest.raises((ConfigError, RewardError), match=r"r\.yaml:2: .*what it weighs is the multiplier"):
        one("{reward: ThinkFormat, at_least: 0.95, weight: 2}")
