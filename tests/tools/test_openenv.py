"""Clients of OpenEnv as environments."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from covey.tools import Environments, ToolError, from_openenv
from tests.tools.chats import call, maker, play, results, roles, says


@dataclass
class Move:
    """Moves the stone."""

    place: int
    how: Literal["slow", "fast"] = "slow"
    note: str | None = None


@dataclass
class Board:
    board: str
    done: bool = False
    reward: float | None = None


@dataclass
class StepResult:
    observation: Board
    reward: float | None = None
    done: bool = False


class Client:
    made: ClassVar[list] = []

    def __init__(self):
        self.seeds, self.closed = [], 0
        Client.made.append(self)

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.steps = 0
        return StepResult(Board(" Begin."))

    def step(self, action):
        assert isinstance(action, Move)
        self.steps += 1
        return StepResult(Board(f"at {action.place} {action.how}"), 0.5 * action.place, action.place == 2)

    def close(self):
        self.closed += 1


class AsyncClient(Client):
    async def reset(self, seed=None):
        return super().reset(seed)

    async def step(self, action):
        return super().step(action)

    async def close(self):
        super().close()


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_an_episode(client):
    Client.made.clear()
    Stones = from_openenv(client, Move, name="move", arguments={"place": "Where to."}, title="Stones")
    made = maker([], Stones)
    turns = (
        call("move", '{"place": 1, "how": "fast"}'),
        call("move", '{"place": 5, "how": "odd"}'),
        call("move", '{"place": 2}'),
        "never",
    )
    played = play(made, ["Go."], says(*turns), group_size=2, release=False)
    c = played.first
    assert played.groups[0].prompt.content[-1]["content"] == "Go. Begin."
    assert (
        results(c)[0] == "at 1 fast"
        and "'how'" in results(c)[1].replace("\\", "")
        and results(c)[2] == "at 2 slow"
    )
    assert roles(c) == ["assistant", "tool"] * 3 and c.finish == "environment"
    assert [t.reward for t in c.turns] == [0.5, None, 1.0]
    (reward,) = made.environments.rewards()
    assert reward.__name__ == "Stones"
    assert reward(completions=["", ""], environments=played.episodes.environments(played.groups)) == [
        1.5,
        1.5,
    ]
    seeds = [one.seeds for one in Client.made]
    assert seeds[0] == seeds[1] and isinstance(seeds[0][0], int)
    made.close()
    assert [one.closed for one in Client.made] == [1, 1]


def test_the_schema_is_that_of_the_action():
    (kind,) = Environments(from_openenv(Client, Move)).kinds.values()
    (step,) = kind.tools
    assert step.name == "step" and step.schema["function"]["description"] == "Moves the stone."
    assert step.schema["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "place": {"type": "integer", "description": ""},
            "how": {"type": "string", "enum": ["slow", "fast"], "description": ""},
            "note": {"type": "string", "nullable": True, "description": ""},
        },
        "required": ["place"],
    }


def test_of_an_observation_only_what_the_policy_needs():
    seen = []

    class Plain(Client):
        def step(self, action):
            return StepResult({"a": 1, "b": [2], "reward": 3, "metadata": {}})

    made = maker([], from_openenv(Plain, Move, text=None))
    assert results(play(made, ["x"], says(call("step", '{"place": 1}'), "ok")).first) == [
        '{"a": 1, "b": [2]}'
    ]
    made = maker([], from_openenv(Plain, Move, text=lambda o: (seen.append(o), "words")[1]))
    assert results(play(made, ["x"], says(call("step", '{"place": 1}'), "ok")).first) == ["words"] and seen


def test_a_description_of_no_argument_is_refused():
    with pytest.raises(ToolError, match=r"'plaec'.*place, how, note"):
        from_openenv(Client, Move, arguments={"plaec": "Where to."})
