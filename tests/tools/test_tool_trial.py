"""`covey check --tools`: what a call of each tool comes to before a run."""

import itertools

import pytest

from covey.tools import Environments, ToolError, tool
from covey.tools.tool_trial import made_up, try_tools
from tests.tools.chats import adder, named
from tests.trainer.scripted import counter


def test_each_tool_is_called_twice_with_arguments_that_fit():
    log, numbers, rooms = [], itertools.count(), []

    def failing():
        raise ValueError("no way")

    given = [
        adder(log),
        named("count", lambda: str(next(numbers))),
        tool(where="thread")(named("broken", failing)),
    ]
    add, count, broken, method = try_tools(given, Environments(counter(rooms)), {"prompt": "p"})
    assert log == [(1, 1)] * 2 and (add.text, add.status, add.is_repeatable) == ("2", "ok", True)
    assert count.text == "0" and not count.is_repeatable
    assert (broken.status, broken.place) == ("raised", "thread") and "no way" in broken.text
    assert method.name == "add" and [room.closed for room in rooms] == [1]


def test_made_up_arguments_fit_their_schema():
    nested = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "w": {"type": "array", "items": {"type": "string"}}},
    }
    assert made_up(nested) == {"n": 1, "w": ["test"]}
    assert made_up({"enum": ["left", "right"]}) == "left" and made_up({"type": ["integer", "null"]}) == 1


def test_a_coroutine_reset_is_waited_for_and_one_that_raises_is_told():
    class Room:
        async def reset(self, size: int = 3, **row):
            self.size = 10 // size

        def look(self) -> str:
            """Looks around."""
            return str(self.size)

    [look] = try_tools([], Environments(Room), {"prompt": "p", "size": 5})
    assert (look.status, look.text) == ("ok", "2")
    with pytest.raises(ToolError, match=r"Room.reset raised ZeroDivisionError"):
        list(try_tools([], Environments(Room), {"prompt": "p", "size": 0}))


def test_a_result_that_no_policy_can_read_is_a_failure_of_the_tool():
    [trial] = try_tools([named("picture", lambda: [{"type": "image"}])], None, {})
    assert trial.status == "raised" and "reads text only" in trial.text
