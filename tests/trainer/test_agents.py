"""Tools, environments and rollout functions through the trainer. What the policy says is scripted; all else is the real thing."""

import copy
import itertools
import random

import pytest
from transformers import TrainerCallback

import covey.runs
from covey import GRPOConfig
from covey.errors import ConfigError, CoveyWarning, DatasetError, RewardError, ToolError
from covey.tools import Tags, tool
from tests.tools.chats import adder, call, encode
from tests.trainer.harness import logged, same, weights
from tests.trainer.scripted import END, chats, correct, counter, made, trained

NUMBERS = itertools.count(3000)
"""What a tool returns whose every call has another result; the generators of random numbers are restored by a resume."""


# --- refused before anything is sampled ------------------------------------------------------------------------------------


def test_tools_and_a_rollout_function_exclude_each_other(tmp_path):
    for name, given in (
        ("tools", {"tools": [adder()]}),
        ("environment_factory", {"environment_factory": counter([])}),
    ):
        with pytest.raises(ConfigError, match=f"{name} and rollout_func, which exclude each other"):
            made(tmp_path, rollout_func=lambda prompts, trainer: {}, **given)


def test_a_tool_that_stands_in_no_list_is_named(tmp_path):
    with pytest.raises(ToolError, match=r"tools is function; it is a list of functions"):
        made(tmp_path, tools=adder())


def test_settings_of_tools_need_tools(tmp_path):
    with pytest.raises(
        ConfigError, match="max_turn_length=8 has no effect: GRPOTrainer was given neither tools"
    ):
        made(tmp_path, max_turn_length=8)


def test_tags_end_turns_in_evaluation_too_whatever_else_ends_its_completions(tmp_path):
    def count(text: str) -> str:
        """Counts letters.

        Args:
            text: Any.
        """
        return str(len(text))

    given = {"tool_format": Tags("<add>", "</add>"), "eval_generation_kwargs": {"stop_strings": ["STOP"]}}
    trainer = made(tmp_path, tools=[count], **given)
    assert trainer.sampling.stop_strings == ("</add>",)
    assert trainer.eval_sampling.stop_strings == ("STOP", "</add>")
    trainer.args.temperature = 0.7
    trainer.heed_settings()
    assert trainer.eval_sampling.stop_strings == ("STOP", "</add>")


def test_a_late_length_reaches_the_prompts_of_members_that_start_differently(tmp_path):
    trainer = made(tmp_path, environment_factory=counter([]))
    trainer.args.max_completion_length = 100
    trainer.heed_settings()
    assert trainer.agents.maker.reader.reserved == trainer.prompts.reader.reserved == 100


def test_a_schedule_of_late_answers_needs_a_tool_that_may_be_late(tmp_path):
    with pytest.raises(ConfigError, match="tool_schedule='eager' has no effect"):
        made(tmp_path, tools=[adder()], tool_schedule="eager")
    made(tmp_path, tools=[adder(), tool(where="thread", name="late")(adder())], tool_schedule="eager")


def test_environments_are_asked_for_where_there_are_some_and_in_their_own_process(tmp_path):
    def needy(completions, environments):
        return [0.0] * len(completions)

    with pytest.raises(
        RewardError, match="'needy' asks for environments, and GRPOTrainer was given no environment_factory"
    ):
        made(tmp_path, needy, tools=[adder()])
    from covey.rewards import reward

    with pytest.raises(
        RewardError, match="'needy' asks for environments, which live in the trainer's own process"
    ):
        made(tmp_path, reward(needy, where="process"), environment_factory=counter([]))


def test_the_weights_of_the_settings_are_those_of_the_functions(tmp_path):
    class Scored(counter([])):
        def get_reward(self):
            return float(self.count)

    trainer = made(tmp_path, [correct], environment_factory=Scored, reward_weights=[0.5])
    assert trainer.run_log.rewards == {"correct": 0.5, "Scored": 1.0}
    with pytest.raises(ConfigError, match="2 weights for 1 rewards"):
        made(tmp_path, [correct], environment_factory=Scored, reward_weights=[0.5, 1.0])


def test_a_row_that_names_what_is_not_there_is_found_wherever_it_stands(tmp_path):
    log, names = [], ["here"] * 2000
    names[1999] = "nowhere"
    with pytest.raises(DatasetError, match="train_dataset: Row 1999 has the environment 'nowhere'"):
        made(tmp_path, data=chats(2000, environment=names), environment_factory={"here": counter(log)})
    assert len(log) == 1  # the one that the class is known from


# --- a run -----------------------------------------------------------------------------------------------------------------


def test_a_run_with_a_tool(tmp_path):
    log, seen = [], []

    def reward(completions, completion_ids, completion_masks):
        seen.append((copy.deepcopy(completions), completion_ids, completion_masks))
        return correct(completions)

    trainer = trained(tmp_path, reward, tools=[adder(log)])
    assert log == [(1, 2)] * 4
    completions, ids, masks = seen[0]
    assert [[m["role"] for m in c] for c in completions[:2]] == [
        ["assistant", "tool", "assistant"],
        ["assistant"],
    ]
    own = [sum(mask) for mask in masks]
    assert logged(trainer, "completions/mean_length") == [sum(own) / 8] and own[0] < len(ids[0])
    assert logged(trainer, "tools/call_frequency") == [0.5] and logged(trainer, "tools/add/calls") == [0.5]
    assert logged(trainer, "tools/failure_frequency") == [0.0] and logged(trainer, "tools/no_call_share") == [
        0.5
    ]
    assert logged(trainer, "episodes/turns/mean") == [1.5] and logged(trainer, "episodes/ended/stop") == [1.0]
    assert logged(trainer, "reward") == [0.5]
    assert trainer.tools[0].__name__ == "add" and trainer.environments is None


def test_results_move_no_weight(tmp_path):
    """The update with another result of the same length is the same to the bit where the policy reads nothing behind them."""

    def ends(answer):
        def add(a: int, b: int) -> str:
            """Adds two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return answer

        from covey.tools import tool

        return tool(ends=True)(add)

    def reward(completions):
        return [float(len(c)) for c in completions]

    one, other = (trained(tmp_path / text, reward, tools=[ends(text)]) for text in ("3", "7"))
    assert same(weights(one), weights(other))


def test_each_completion_has_an_environment_of_its_own_closed_once_at_the_end(tmp_path):
    log, seen = [], []

    def reward(completions, environments):
        seen.append(list(environments))
        assert not any(e.closed for e in environments)
        return [float(e.count) for e in environments]

    trainer = trained(tmp_path, reward, data=chats(4), environment_factory=counter(log), max_steps=2)
    assert [len({id(e) for e in step}) for step in seen] == [8, 8]
    assert len(log) == 8 and [e.closed for e in log] == [1] * 8
    assert logged(trainer, "reward") == [0.5, 0.5]


def test_environments_are_closed_where_a_run_fails(tmp_path):
    log = []

    def broken(completions, environments):
        raise ValueError("no")

    with pytest.raises(RewardError):
        trained(tmp_path, broken, environment_factory=counter(log))
    assert [e.closed for e in log] == [1] * 8


def test_an_evaluation_has_its_own_and_leaves_no_trace(tmp_path):
    """A run that evaluates between two steps is the run without, to the bit; its environments are others, and are closed."""
    runs = []
    for eval_strategy in ("no", "steps"):
        log = []

        def reward(completions, environments):
            return [float(e.count + len(c)) for e, c in zip(environments, completions, strict=True)]

        kw = {"eval_dataset": chats(2)} if eval_strategy == "steps" else {}
        runs.append(
            trained(
                tmp_path / eval_strategy,
                reward,
                data=chats(4),
                environment_factory=counter(log),
                eval_strategy=eval_strategy,
                eval_steps=1,
                max_steps=2,
                **kw,
            )
        )
        assert [e.closed for e in log] == [1] * (8 if eval_strategy == "no" else 24)
    assert same(*map(weights, runs))
    assert logged(runs[1], "eval_tools/call_frequency") == [0.5, 0.5]


def test_an_episode_that_could_not_begin_has_no_score_and_its_siblings_do(tmp_path):
    """Rewards 1, 0, 1 and none: the baseline is that of the three."""
    seen = []

    def fails(self, row):
        if len(log) % 4 == 0:
            raise OSError("no more of them")

    log = []

    def reward(completions):
        seen.append(len(completions))
        return [1.0, 0.0, 1.0] * 2

    with pytest.warns(CoveyWarning, match="2 of 8 environments could not be reset"):
        trainer = trained(tmp_path, reward, environment_factory=counter(log, fails))
    assert seen == [6] and logged(trainer, "reward/unscored") == [0.25]
    assert logged(trainer, "reward") == [pytest.approx(2 / 3)]
    assert logged(trainer, "episodes/ended/failed") == [0.25]


def test_where_no_environment_begins_the_run_ends(tmp_path):
    def fails(self, row):
        raise OSError("down")

    with pytest.raises(ToolError, match=r"No environment could be reset.*down"):
        trained(tmp_path, environment_factory=counter([], fails))


def test_the_environment_may_bring_prompts_and_rewards(tmp_path):
    class Scored(counter([], lambda self, row: "what is 1 + 2?")):
        def get_reward(self):
            return float(self.count)

    trainer = trained(tmp_path, None, None, environment_factory=Scored, max_steps=1)
    assert logged(trainer, "rewards/Scored/mean") == [0.5]
    with pytest.raises(RewardError, match="reward_funcs is missing"):
        made(tmp_path, None, None, environment_factory=counter([]), max_steps=1)


def test_a_turn_may_have_an_advantage_of_its_own(tmp_path):
    """The first turn of the members that call has nothing from a reward for the last alone, but for its return."""

    def by_turn(completions):
        return [[0.0, 1.0] if len(c) > 1 else 0.0 for c in completions]

    def of_record(trainer):
        rollout = trainer.rollout.batches[0]
        return rollout.token_advantages

    whole = trained(tmp_path / "a", by_turn, tools=[adder()], credit_assignment="turn")
    later = trained(tmp_path / "b", by_turn, tools=[adder()], credit_assignment="turn", turn_discount=0.5)
    flat = trained(tmp_path / "c", by_turn, tools=[adder()])
    assert flat.rollout.batches[0].token_advantages is None
    assert same(weights(whole), weights(flat))  # a reward at the end, without a discount
    assert not same(weights(later), weights(flat))
    assert (
        len(set(of_record(later).tolist())) == 4
    )  # two turns, the other members, and ids that were not sampled


# --- rollout functions -------------------------------------------------------------------------------------------------------


def roll(logprobs=None):
    def play(prompts, trainer):
        tok = trainer.processing_class
        begin = [tok.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
        said = [encode(tok, f"number {n}{END}") for n in range(len(prompts))]
        given = None if logprobs is None else [[logprobs] * len(s) for s in said]
        return {
            "prompt_ids": begin,
            "completion_ids": said,
            "logprobs": given,
            "bonus": list(range(len(prompts))),
        }

    return play


def test_a_rollout_function_samples_and_its_fields_reach_rewards(tmp_path):
    seen = []

    def reward(completions, bonus):
        seen.append((completions, bonus))
        return [float(b) for b in bonus]

    trainer = trained(tmp_path, reward, rollout_func=roll())
    completions, bonus = seen[0]
    assert bonus == list(range(8)) and completions[3][0]["content"] == "number 3"
    assert logged(trainer, "reward") == [3.5]


def test_a_rollout_function_is_not_asked_for_nothing(tmp_path):
    """Dynamic sampling may want more prompts than there are; other processes may want some where this one wants none."""
    asked, play = [], roll()

    def counted(prompts, trainer):
        asked.append(len(prompts))
        return play(prompts, trainer)

    def flat(completions, bonus):
        return [0.0 for _ in bonus]

    trained(tmp_path, flat, rollout_func=counted, dynamic_sampling=True, max_steps=1)
    assert asked == [8]


def test_without_log_probabilities_the_policys_own_are_taken(tmp_path):
    """So the correction for the sampler is 1: the run is that of a function that gives the exact ones."""
    trainer = trained(
        tmp_path / "a", lambda completions: [float(i % 3) for i in range(8)], rollout_func=roll()
    )
    assert logged(trainer, "sampling/logp_gap/max") == [pytest.approx(0, abs=1e-5)]
    wrong = trained(
        tmp_path / "b", lambda completions: [float(i % 3) for i in range(8)], rollout_func=roll(-9.0)
    )
    assert logged(wrong, "sampling/logp_gap/max")[0] > 1
    assert not same(weights(trainer), weights(wrong))


def test_names_of_settings_are_no_arguments():
    assert {"tools", "environment_factory", "rollout_func"}.isdisjoint(GRPOConfig.__dataclass_fields__)


# --- what a run leaves behind ----------------------------------------------------------------------------------------------


def test_the_record_names_the_tools_and_what_became_of_every_turn(tmp_path):
    trained(tmp_path, tools=[adder()], max_steps=1, record=True)
    run = covey.runs.open(tmp_path)
    (name,) = run.header["tools"]
    assert run.header["tools"][name]["where"] == "inline"
    assert run.header["tools"][name]["schema"]["function"]["name"] == name == "add"
    frame = run.completions()
    assert set(frame["calls"]) == {0, 1} and set(frame["num_turns"]) == {1, 2}
    called = frame[frame["calls"] == 1].iloc[0]
    assert called["tokens"] > called["written_tokens"] > 0
    assert run.transcript(1, int(called["group"]), int(called["index"])).splitlines() == [
        "call: add(a=1, b=2)", "| tool add: 3", "assistant: it is 3",
    ]  # fmt: skip
    assert run.statistics()["calls/mean"].iloc[0] == 0.5


def test_a_run_without_tools_says_nothing_of_them(tmp_path):
    def rollout(prompts, trainer):
        return {
            "prompt_ids": [[5, 6]] * len(prompts),
            "completion_ids": [[7, 8]] * len(prompts),
            "logprobs": None,
        }

    trained(tmp_path, rewards=lambda completions: [float(i % 2) for i in range(len(completions))], rollout_func=rollout, max_steps=1, record=True)  # fmt: skip
    run = covey.runs.open(tmp_path)
    assert "tools" not in run.header and "turns" not in run.completions().columns


# --- resume ------------------------------------------------------------------------------------------------------------------


class StopsAfter(TrainerCallback):
    """Breaks the run off behind a step, as a kill does: nothing is saved."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise RuntimeError("gone")


def test_a_resumed_run_reads_what_tools_returned_before_it_stopped(tmp_path):
    """A tool that returns another number at each call: the round that is sampled again has the results of the first time."""
    seen, called = [], []

    def add(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        called.append(1)
        return str(next(NUMBERS))

    def reward(completions):
        seen.append([[m["content"] for m in c] for c in completions])
        return [float(len(c)) for c in completions]

    kw = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "tools": [add], "data": chats(8)}
    with pytest.raises(RuntimeError, match="gone"):
        trained(tmp_path, reward, callbacks=[StopsAfter(3)], **kw)
    first, calls = list(seen), len(called)
    made(tmp_path, reward, **kw).train(resume_from_checkpoint=True)
    assert seen[3] == first[2] and len({str(c) for c in seen[3]}) > 2
    assert len(called) - calls == 4  # those of step 4 alone
    # a run that begins anew asks again
    trained(tmp_path, reward, **{**kw, "max_steps": 1})
    assert seen[-1] != first[0]


def test_a_difference_to_what_was_noted_is_told_once(tmp_path):
    """Methods of environments are run again; where they say something else, the run goes on and says so."""

    class Random(counter([])):
        def add(self, a: int, b: int) -> str:
            """Adds two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return str(next(NUMBERS))

    kw = {
        "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "environment_factory": Random, "data": chats(8),
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="gone"):
        trained(tmp_path, callbacks=[StopsAfter(3)], **kw)
    with pytest.warns(CoveyWarning, match="Results of tools differ from those before the stop") as told:
        made(tmp_path, **kw).train(resume_from_checkpoint=True)
    assert sum("Results of tools differ" in str(w.message) for w in told) == 1


def test_a_trainer_may_train_twice(tmp_path):
    log = []
    trainer = trained(tmp_path, environment_factory=counter(log))
    trainer.train()
    assert [e.closed for e in log] == [1] * 16


def test_a_resumed_run_takes_what_tools_had_returned(tmp_path):
    """A tool that never returns the same twice: from the checkpoint on, nothing is asked again, and the weights are the same."""
    log = []

    def dice() -> str:
        """Throws a dice."""
        log.append(1)
        return str(random.SystemRandom().random())

    def thrown(completions):
        return [float(c[1]["content"]) if len(c) > 1 else 0.0 for c in completions]

    def says(prompt, index, turn):
        return call("dice") if turn == 0 and index % 2 == 0 else "done"

    given = {
        "says": says,
        "tools": [dice],
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "data": chats(4),
    }
    whole = trained(tmp_path, thrown, **given)
    calls = len(log)
    assert calls and len((tmp_path / "tool_calls-0.jsonl").read_text().splitlines()) == calls
    again = made(tmp_path, thrown, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(log) == calls and same(weights(whole), weights(again))
    anew = trained(tmp_path, thrown, **given)
    assert len(log) == 2 * calls and not same(weights(whole), weights(anew))
