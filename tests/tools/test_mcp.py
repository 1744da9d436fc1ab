"""Tools of an MCP server, with a session that answers as the package's does; and that it stays on its own loop."""

import asyncio
import contextlib
import threading
from types import SimpleNamespace

import pytest

from covey.tools import ToolError, from_mcp
from tests.clocks import PATIENCE
from tests.tools.chats import call, maker, play, results, says

ADD = SimpleNamespace(
    name="add",
    description="Adds.",
    inputSchema={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)
SHOW = SimpleNamespace(name="show", description=None, inputSchema={"type": "object", "properties": {}})


def text(words):
    return SimpleNamespace(type="text", text=words)


class Session:
    """A session whose calls must run on the loop that it was opened on."""

    def __init__(self):
        self.loop, self.closed = asyncio.get_running_loop(), 0

    async def list_tools(self, cursor=None):
        assert asyncio.get_running_loop() is self.loop
        return SimpleNamespace(tools=[SHOW] if cursor else [ADD], nextCursor=None if cursor else "more")

    async def call_tool(self, name, arguments):
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        if name == "show":
            return SimpleNamespace(content=[SimpleNamespace(type="image", data="")], isError=False)
        if arguments["b"] == 0:
            return SimpleNamespace(content=[text("no way")], isError=True)
        return SimpleNamespace(content=[text(str(arguments["a"] + arguments["b"])), text("!")], isError=False)


def connecting(made):
    @contextlib.asynccontextmanager
    async def connect():
        task = asyncio.current_task()
        made.append(Session())
        yield made[0]
        assert asyncio.current_task() is task, "it is left where it was entered"
        made[0].closed += 1

    return connect


SAID = (
    call("add", '{"a": 3, "b": 4}')
    + call("add", '{"a": 1, "b": 0}')
    + call("show")
    + call("add", '{"a": "x", "b": 1}'),
    "ok",
)


def check(tools):
    got = results(play(maker(tools), ["x"], says(*SAID)).first)
    assert got[0] == "7\n!" and got[1] == str({"error": "no way"})
    assert "image" in got[2] and "'a'" in got[3].replace("\\", "")


def test_a_session_that_is_opened_here_is_closed_here():
    made = []
    tools = from_mcp(connecting(made))
    assert [f.__name__ for f in tools] == ["add", "show"]
    check(tools)
    assert made[0].closed == 0
    tools.close()
    tools.close()
    assert made[0].closed == 1


def test_an_open_session_is_asked_on_its_own_loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def opened():
        return Session()

    session = asyncio.run_coroutine_threadsafe(opened(), loop).result()
    check(from_mcp(session, loop=loop))
    with pytest.raises(ToolError, match="loop"):
        from_mcp(session)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_options_and_names():
    tools = from_mcp(connecting([]), prefix="math_", timeout=PATIENCE, max_result=5)
    made = maker(tools)
    assert [s["function"]["name"] for s in made.reader_tools({"prompt": []})] == ["math_add", "math_show"]
    assert results(play(made, ["x"], says(call("math_add", '{"a": 3, "b": 4}'), "ok")).first) == ["7\n!"]
    assert made.reader_tools({"prompt": []})[0]["function"]["parameters"] == ADD.inputSchema
    tools.close()


def test_a_server_that_does_not_open_is_told():
    @contextlib.asynccontextmanager
    async def connect():
        raise ConnectionError("nobody there")
        yield

    with pytest.raises(ToolError, match="did not open: ConnectionError: nobody there"):
        from_mcp(connect)
    with pytest.raises(ToolError, match="int"):
        from_mcp(3)
