"""Environments: one per completion, reset once per episode, closed once; observations, rewards, ends."""

import asyncio
import gc
import threading

import pytest

from covey.errors import CoveyWarning, DatasetError, ToolError
from covey.tools import tool
from covey.tools.environments import Environments, with_observation
from tests.clocks import PATIENCE, eventually
from tests.tools.chats import (
    adder,
    call,
    encode,
    hermes,
    maker,
    named,
    play,
    prompts_of,
    results,
    roles,
    says,
)

TOK = hermes()


def walker(log, observation=None, steps=1):
    class Walker:
        def __init__(self):
            self.resets, self.moves, self.closed = [], 0, 0
            log.append(self)

        def reset(self, **row):
            self.resets.append(row)
            self.moves = 0
            return observation

        def step(self, x: str) -> str:
            """Steps to a letter.

            Args:
                x: The letter.
            """
            return self._move()

        def press(self) -> str:
            """Presses the button."""
            return self._move()

        def _move(self):
            self.moves += 1
            return "+" if self.moves <= steps else "."

        def get_reward(self):
            return float(self.moves)

        def close(self):
            self.closed += 1

        @property
        def position(self):
            raise RuntimeError("not to be read")

    return Walker


def names(made):
    return [f.__name__ for f in made.tools]


def test_tools_are_the_functions_given_and_public_methods_by_name():
    made = maker([named("pick", lambda: "")], walker([]))
    assert names(made) == ["pick", "press", "step"]
    assert [s["function"]["name"] for s in made.reader_tools({"prompt": []})] == names(made)


def test_they_are_rendered_in_that_order_by_the_tokenizers_own_template():
    made = maker([named("pick", lambda: "")], walker([]))
    (prompt,) = prompts_of(made, "go")
    own = TOK.apply_chat_template(
        [{"role": "user", "content": "go"}], tools=made.tools, add_generation_prompt=True
    )
    assert list(prompt.ids) == list(own["input_ids"] if hasattr(own, "keys") else own)


def test_distinct_instances_reset_once_an_episode_with_the_rows_columns():
    log = []
    made = maker([], walker(log))
    rows = [{"prompt": [{"role": "user", "content": "go"}], "level": n, "tools": None} for n in range(2)]
    for step in range(3):
        played = play(
            made, rows, says(call("press"), call("press"), "over"), group_size=2, step=(step,), release=False
        )
        environments = played.episodes.environments(played.groups)
        assert len({id(e) for e in environments}) == 4
        assert [e.resets[-1]["level"] for e in environments] == [0, 0, 1, 1]
        assert [e.moves for e in environments] == [2] * 4, "no state of the episode before"
        assert [results(c) for c in played.completions] == [["+", "."]] * 4
        played.episodes.release()
    assert sum(len(e.resets) for e in log) == 12 and len(log) == 4, "instances are used again"
    assert log[0].resets[0] == {"prompt": rows[0]["prompt"], "level": 0, "tools": None}


def test_what_reset_does_to_its_row_changes_no_row():
    class Spoils(walker([])):
        def reset(self, prompt, **row):
            prompt[0]["content"] = "spoilt"

    rows = [{"prompt": [{"role": "user", "content": "go"}]}]
    played = play(maker([], Spoils), rows, says("over"))
    assert rows == [{"prompt": [{"role": "user", "content": "go"}]}]
    assert played.groups[0].prompt.content == rows[0]["prompt"]


def test_environments_are_back_in_the_pool_after_a_run_that_crashed():
    log = []
    made = maker([tool(on_error="raise")(named("f", lambda: 1 / 0))], walker(log))
    with pytest.raises(ToolError):
        play(made, ["go"], says(call("f")), group_size=2)
    made.close()
    assert [e.closed for e in log] == [1] * len(log)


# --- seeds --------------------------------------------------------------------------------------------------


def seeds(rows, group_size=2, **kw):
    seen = []

    class Seeded(walker([])):
        def reset(self, seed, **row):
            seen.append(seed)

    run_seed = kw.pop("seed", 0)
    play(maker([], Seeded, seed=run_seed), rows, says("over"), group_size=group_size, **kw)
    return seen


def test_a_seed_is_equal_within_a_group_and_another_for_all_others():
    a, b, c, d = seeds(["x", "x"])
    assert a == b != c == d and seeds(["x", "x"]) == [a, b, c, d]
    assert not {a, c} & set(seeds(["x", "x"], step=(1,))) and not {a, c} & set(seeds(["x", "x"], seed=1))
    assert all(0 <= s < 2**31 for s in (a, c))


def test_only_a_reset_that_names_it_gets_one_and_a_column_of_that_name_wins():
    log = []
    play(maker([], walker(log)), ["x"], says("over"))
    assert "seed" not in log[0].resets[0]
    assert seeds([{"prompt": [{"role": "user", "content": "x"}], "seed": 7}]) == [7, 7]


def test_a_reset_without_keywords_gets_what_it_names():
    seen = []

    class Plain(walker([])):
        def reset(self, level=3):
            seen.append(level)

    play(
        maker([], Plain),
        [{"prompt": [{"role": "user", "content": "x"}], "level": 5, "more": 1}],
        says("over"),
    )
    play(maker([], Plain), ["x"], says("over"))
    assert seen == [5, 3]


def test_an_async_reset_is_waited_for():
    class Late(walker([])):
        async def reset(self, **row):
            await asyncio.sleep(0)
            return " 3 4"

    assert play(maker([], Late), ["sum"], says("over")).groups[0].prompt.content[-1]["content"] == "sum 3 4"


# --- observations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content,observation,expected",
    [
        ("sum ", "3 4", "sum 3 4"),
        ("sum ", None, "sum "),
        ("sum ", [{"type": "text", "text": "3"}], "sum 3"),
        (
            [{"type": "text", "text": "sum "}],
            "3",
            [{"type": "text", "text": "sum "}, {"type": "text", "text": "3"}],
        ),
        (None, "3", "3"),
    ],
)
def test_an_observation_is_appended_to_the_last_message(content, observation, expected):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    assert with_observation(chat, observation, "E")[-1] == {"role": "user", "content": expected}
    assert chat[-1]["content"] == content


@pytest.mark.parametrize(
    "observation,word", [(3, "int"), ([{"type": "image"}], "image"), ([1], "list"), ({}, "dict")]
)
def test_another_observation_is_refused(observation, word):
    with pytest.raises(ToolError, match=f"E.reset returned.*{word}"):
        with_observation([{"role": "user", "content": ""}], observation, "E")


def test_the_policy_reads_the_observation_once_and_the_row_stays():
    row = {"prompt": [{"role": "user", "content": "sum "}]}
    played = play(
        maker([adder()], walker([], observation="3 4")),
        [row, row],
        says(call("add", '{"a": 3, "b": 4}'), "7"),
        group_size=2,
    )
    assert [g.prompt.content for g in played.groups] == [[{"role": "user", "content": "sum 3 4"}]] * 2
    assert TOK.decode(played.groups[0].prompt.ids).count("sum 3 4") == 1
    assert row == {"prompt": [{"role": "user", "content": "sum "}]}
    assert all(c.own_prompt is None and c.opening == 0 for c in played.completions)


def test_w7_members_that_start_differently_have_their_own_openings():
    openings = iter(["walk", "say", "wall", "walk"])

    class Start(walker([])):
        def reset(self, **row):
            return next(openings)

    made = maker([], Start)
    played = play(
        made, [{"prompt": [{"role": "user", "content": ""}], "level": 1}], says("over"), group_size=4
    )
    (group,) = played.groups
    own = [made.reader.read({"prompt": c.own_prompt}, 0, (0,)).ids for c in group.completions]
    assert [c.own_prompt[-1]["content"] for c in group.completions] == ["walk", "say", "wall", "walk"]
    for completion, ids in zip(group.completions, own, strict=True):
        assert group.prompt.ids + completion.ids[: completion.opening] == ids
        assert completion.ids[completion.opening :] == encode(TOK, "over<|im_end|>")
        assert completion.num_written == 5 and completion.turns[0].start == completion.opening
    assert len({ids[len(group.prompt.ids)] for ids in own}) > 1, "the longest start that they have in common"
    assert group.prompt.content == [{"role": "user", "content": ""}]


# --- ends ---------------------------------------------------------------------------------------------------


def test_an_environment_that_is_done_ends_the_episode():
    class Short(walker([])):
        done = False

        def reset(self, **row):
            super().reset(**row)
            self.done = False

        def press(self) -> str:
            """Presses the button."""
            self.done = self.moves >= 1
            return self._move()

    c = play(maker([], Short), ["go"], says(call("press"), call("press"), "never")).first
    assert roles(c) == ["assistant", "tool"] * 2 and c.finish == "environment" and not c.is_truncated


def test_an_environment_that_cannot_say_whether_it_is_done_is_told():
    class Odd(walker([])):
        @property
        def done(self):
            raise KeyError("board")

    with pytest.warns(CoveyWarning, match=r"Odd.done raised KeyError: 'board'"):
        c = play(maker([], Odd), ["go"], says(call("press"), "never")).first
    assert c.finish == "failed"


def test_calls_of_an_environment_never_overlap_and_stay_in_order():
    seen = []

    class Slow(walker([])):
        async def wait(self, x: int) -> str:
            """Waits.

            Args:
                x: A number.
            """
            seen.append(("in", x))
            await asyncio.sleep(0.02 / (x + 1))
            seen.append(("out", x))
            return str(x)

        def now(self) -> str:
            """Says what happened."""
            seen.append(("now", None))
            return "now"

    turn = call("wait", '{"x": 0}') + call("now") + call("wait", '{"x": 1}')
    c = play(maker([], Slow), ["go"], says(turn, "over")).first
    assert results(c) == ["0", "now", "1"]
    assert seen == [("in", 0), ("out", 0), ("now", None), ("in", 1), ("out", 1)]


def test_a_call_that_was_given_up_meets_no_other_call_and_no_other_episode():
    """Its thread goes on with the instance: whoever had it too would find its state changed under its hands."""
    stop, made_so_far = threading.Event(), []

    class Slow:
        def __init__(self):
            self.calls = 0
            made_so_far.append(self)

        def reset(self, **row):
            self.calls = 0

        @tool(where="thread", timeout=0.05)
        def wait(self) -> str:
            """Waits."""
            self.calls += 1
            stop.wait(PATIENCE)
            self.calls += 100
            return "waited"

    made = maker([], Slow)
    c = play(made, ["go"], says(call("wait"), call("wait"), "over")).first
    assert "still runs" in results(c)[1] and [t.calls[0].status for t in c.turns[:2]] == ["timeout"] * 2
    assert eventually(lambda: made_so_far[0].calls == 1)
    play(made, ["go"], says("nothing"))
    assert len(made_so_far) == 2, "the first is still in use"
    stop.set()
    [(_, is_in_use)] = [free for free in made.environments._free[None] if free[0] is made_so_far[0]]
    assert eventually(lambda: not is_in_use()) and made_so_far[0].calls == 101
    play(made, ["go"], says("nothing"), group_size=2)
    assert len(made_so_far) == 2 and made_so_far[0].calls == 0
    made.close()


def test_a_tool_beside_an_environments_calls_does_not_wait_for_them():
    here = []

    async def alone():
        here.append(1)
        return "beside"

    class Waits(walker([])):
        async def wait(self) -> str:
            """Waits."""
            return "together" if await asyncio.to_thread(eventually, lambda: here) else "alone"

    c = play(
        maker([named("f", alone)], Waits), ["go"], says(call("wait") + call("wait") + call("f"), "over")
    ).first
    assert results(c) == ["together", "together", "beside"]


# --- failures -----------------------------------------------------------------------------------------------


def failing_walker(fails, in_reset=True):
    number = iter(range(1000))

    class Fails(walker([])):
        def __init__(self):
            super().__init__()
            if not in_reset and next(number) in fails:
                raise RuntimeError("no factory")

        def reset(self, **row):
            super().reset(**row)
            if in_reset and next(number) in fails:
                raise RuntimeError("no reset")

    return Fails


@pytest.mark.parametrize("in_reset", [True, False], ids=["reset", "factory"])
def test_a_member_that_could_not_start_has_no_score_and_its_siblings_have(in_reset):
    made = maker([], failing_walker({1}, in_reset))
    with pytest.warns(
        CoveyWarning, match=r"1 of 3 environments could not be reset.*Fails.*RuntimeError"
    ) as told:
        played = play(made, ["go"], says(call("press"), "over"), group_size=3)
    assert len(told) == 1
    assert [c.finish for c in played.completions] == ["stop", "failed", "stop"]
    assert roles(played.completions[1]) == ["assistant"], "its calls are not run"


def test_where_nothing_could_start_the_run_ends():
    with pytest.raises(ToolError, match=r"No environment could be reset.*no reset") as e:
        play(maker([], failing_walker({0, 1})), ["go"], says("over"), group_size=2)
    assert isinstance(e.value.__cause__.__cause__, RuntimeError)


def test_one_row_that_cannot_start_ends_no_run_that_has_begun():
    """An evaluation of one prompt at a time would end a training run of days for it."""
    made = maker([], failing_walker({1, 2, 5, 6}))
    play(made, ["go"], says("over"))
    with pytest.warns(CoveyWarning, match="2 of 2 environments could not be reset"):
        played = play(made, ["bad"], says("over"), group_size=2)
    assert {c.finish for c in played.completions} == {"failed"}
    assert play(made.for_evaluation(), ["go"], says("over"), group_size=2).first.finish == "stop"
    with pytest.raises(ToolError, match="No environment could be reset"):
        play(made, ["bad", "worse"], says("over"))


def test_ctrl_c_in_a_reset_passes():
    class Stops(walker([])):
        def reset(self, **row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(maker([], Stops), ["go"], says("over"), group_size=2)


# --- several ------------------------------------------------------------------------------------------------


class Sums:
    def reset(self, **row):
        self.row = row

    def add(self, a: int, b: int) -> str:
        """Adds.

        Args:
            a: The first.
            b: The second.
        """
        return str(a + b)

    def get_reward(self):
        return 2.0


def test_the_column_selects_the_environment_and_its_tools():
    log = []
    made = maker([named("pick", lambda: "")], {"walk": walker(log), "sums": Sums})
    assert names(made) == ["pick", "press", "step", "add"]
    rows = [{"prompt": [{"role": "user", "content": "go"}], "environment": name} for name in ("walk", "sums")]
    shown = [[s["function"]["name"] for s in made.reader_tools(row)] for row in rows]
    assert shown == [["pick", "press", "step"], ["pick", "add"]]
    played = play(made, rows, says(call("add", '{"a": 3, "b": 4}'), "over"), release=False)
    walk, sums = played.completions
    assert "add" in results(walk)[0] and "error" in results(walk)[0] and results(sums) == ["7"]
    first, second = played.episodes.environments(played.groups)
    assert type(first).__name__ == "Walker" and type(second) is Sums
    assert "environment" not in first.resets[-1] and "environment" not in second.row


@pytest.mark.parametrize(
    "row,words",
    [
        ({"environment": "nowhere"}, ("nowhere", "'walk', 'sums'")),
        ({}, ("no column", "'walk'")),
        ({"environment": 3}, ("3", "'walk'")),
    ],
)
def test_an_unknown_environment_is_refused_when_a_prompt_is_only_checked(row, words):
    log = []
    made = maker([], {"walk": walker(log), "sums": Sums})
    with pytest.raises(DatasetError, match="Row 5") as e:
        made.reader.read({"prompt": [{"role": "user", "content": "go"}], **row}, 5, (0,))
    assert all(word in str(e.value) for word in words)
    assert not any(w.resets for w in log)


def test_a_row_without_what_reset_takes_is_refused():
    class Needs(walker([])):
        def reset(self, level, seed, prompt):
            pass

    with pytest.raises(DatasetError, match=r"'level', which Needs.reset takes"):
        maker([], Needs).reader_tools({"prompt": []})


def test_rewards_are_one_per_class_by_its_name():
    log = []
    Walker = walker(log)
    rewards = Environments({"walk": Walker, "again": Walker, "sums": Sums}).rewards()
    assert [r.__name__ for r in rewards] == ["Walker", "Sums"]
    log[0].moves = 3
    environments = [log[0], Sums(), None]
    assert [r(completions=["", "", ""], environments=environments) for r in rewards] == [
        [3.0, None, None],
        [None, 2.0, None],
    ]


def test_an_async_reward_is_waited_for():
    class Late(Sums):
        async def get_reward(self):
            await asyncio.sleep(0)
            return 1.5

    environments = Environments(Late)
    (reward,) = environments.rewards()
    assert reward(completions=[""], environments=[environments.take(environments.kinds[None])]) == [1.5]


# --- close --------------------------------------------------------------------------------------------------


def test_every_instance_is_closed_once_and_close_is_no_tool():
    log = []
    made = maker([], walker(log))
    play(made, ["go"], says("over"), group_size=3)
    evaluation = made.for_evaluation()
    play(evaluation, ["go"], says("over"), group_size=2)
    assert len(log) == 5, "evaluation has instances of its own"
    evaluation.close()
    assert [e.closed for e in log] == [0, 0, 0, 1, 1]
    made.close()
    made.close()
    assert [e.closed for e in log] == [1] * 5


def test_those_of_a_trainer_that_never_trains_are_closed_with_it():
    log = []

    class Room(walker([])):
        def close(self):
            log.append("closed")

    made = Environments(Room)
    made.take(made.kinds[None])
    evaluation = made.for_evaluation()
    evaluation.take(evaluation.kinds[None])
    evaluation.close()
    assert log == ["closed"], "the first one is that of training"
    del made, evaluation
    gc.collect()
    assert log == ["closed"] * 2


def test_a_close_that_raises_leaves_no_other_open():
    log = []

    class Broken(walker(log)):
        def close(self):
            super().close()
            raise OSError("stuck")

    made = maker([], Broken)
    play(made, ["go"], says("over"), group_size=3)
    with pytest.warns(CoveyWarning, match=r"Broken.close.*stuck"):
        made.close()
    assert [e.closed for e in log] == [1] * 3


def test_a_close_that_describes_itself_as_a_tool_is_one():
    class Door(Sums):
        def close(self) -> str:
            """Closes the door.

            Returns:
                What happened.
            """
            return "closed"

    assert names(maker([], Door)) == ["add", "close"]


# --- refused ------------------------------------------------------------------------------------------------


class Still:
    def press(self) -> str:
        """Presses."""


class Mute(Sums):
    def shout(self, x) -> str:
        return ""


def broken_factory():
    raise RuntimeError("no server")


@pytest.mark.parametrize(
    "factory,words",
    [
        (Still, "reset"),
        (Mute, "shout"),
        (broken_factory, "no server"),
        (3, "int"),
        ({}, "empty"),
        ({"a": Sums, "b": Still}, "Still"),
        ({"a": broken_factory}, "'a'"),
    ],
)
def test_what_cannot_be_an_environment_is_refused(factory, words):
    with pytest.raises(ToolError, match=words):
        Environments(factory)


def test_a_tool_with_the_name_of_a_method_is_refused():
    with pytest.raises(ToolError, match="'add'"):
        maker([adder()], Sums)
