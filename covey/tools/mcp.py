"""Tools of an MCP server. Needs no package itself: the session is one of `mcp`, or whatever has `list_tools` and `call_tool`.

A session belongs to the event loop that it was opened on. Give what opens one, and it is opened on the loop that all tools of the run
share; or give one that is open already, and its loop, which runs in another thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

from covey.errors import ToolError
from covey.rewards.execution.loop import event_loop
from covey.tools.decorator import tool
from covey.tools.result_text import IMAGE_KINDS, as_json, image_refused

OPEN_SECONDS = 60.0
"""Seconds in which a server must answer when it is opened, and when it is closed."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a session: entered once, it gives one that is initialised; left, it closes it."""


class McpTools(list[Callable[..., Any]]):
    """The tools of a server, to be given as `tools=`. `close()` ends the session, where it was opened here."""

    def __init__(self, functions: list[Callable[..., Any]], close: Callable[[], None] = lambda: None) -> None:
        super().__init__(functions)
        self.close = close


def from_mcp(
    session: Any, *, loop: asyncio.AbstractEventLoop | None = None, prefix: str = "", **options: Any
) -> McpTools:
    """Return the tools of an MCP server as functions.

    Args:
        session: opens one (a function without arguments that returns an async context manager), or one that is open.
        loop: the event loop of an open session.
        prefix: put before the name of each tool, so that those of two servers can be told apart.
        options: terms of `covey.tools.tool` for each, such as `timeout` and `max_result`.

    Raises:
        ToolError: an open session without its loop, or a server that does not answer.
    """
    if hasattr(session, "list_tools"):
        return McpTools(listed_tools(session, checked_loop(loop), prefix, options))
    if not callable(session):
        raise ToolError(
            f"from_mcp got {type(session).__name__} {repr(session)[:80]}. Give a session, or a function that opens one."
        )
    opened = OpenedSession(session)
    return McpTools(listed_tools(opened.session, event_loop().loop, prefix, options), opened.close)


class OpenedSession:
    """A session that lives in one coroutine on the loop of all tools, from where it is opened to where it is closed."""

    def __init__(self, connect: Connect) -> None:
        self._closing: Future[asyncio.Event] = Future()
        opened: Future[Any] = Future()
        self._life = event_loop().submit(self._lives(connect, opened))
        self._lock, self._is_open = threading.Lock(), True
        self.session = answered(opened, "open")

    def close(self) -> None:
        """End the session; a second call does nothing."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        event_loop().loop.call_soon_threadsafe(self._closing.result().set)
        answered(self._life, "close")

    async def _lives(self, connect: Connect, opened: Future[Any]) -> None:
        closing = asyncio.Event()
        self._closing.set_result(closing)
        try:
            async with connect() as session:
                opened.set_result(session)
                await closing.wait()
        except BaseException as error:  # of a server, to whoever waits for it
            if opened.done():
                raise
            opened.set_exception(error)


def checked_loop(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the loop of an open session; raise where it is not known, or runs in this very thread."""
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if loop is None or loop is running:
        raise ToolError(
            "from_mcp got an open session, and training would wait in the very loop that it needs, or does not know which that is. "
            "Give a function that opens it, for example: async with stdio_client(...) as (read, write), ClientSession(read, write) "
            "as session: await session.initialize(); yield session - in an @asynccontextmanager."
        )
    return loop


def listed_tools(
    session: Any, loop: asyncio.AbstractEventLoop, prefix: str, options: dict[str, Any]
) -> list[Callable[..., Any]]:
    """Return a function for each tool that a session lists, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        asked = session.list_tools() if cursor is None else session.list_tools(cursor=cursor)
        page = answered(asyncio.run_coroutine_threadsafe(asked, loop), "list its tools")
        found += page.tools
        cursor = getattr(page, "nextCursor", None)
        if not cursor:
            return [mcp_tool(session, loop, one, prefix, options) for one in found]


def mcp_tool(
    session: Any, loop: asyncio.AbstractEventLoop, listed: Any, prefix: str, options: dict[str, Any]
) -> Callable[..., Any]:
    """Return the function of one tool: a coroutine function, which runs beside all others."""

    async def call(**arguments: Any) -> str:
        called = on_loop(session.call_tool(listed.name, arguments), loop)
        return content_text(await called, listed.name)

    call.__name__ = call.__qualname__ = prefix + listed.name
    call.__doc__ = listed.description or ""
    schema = {"description": listed.description or "", "parameters": dict(listed.inputSchema)}
    made: Callable[..., Any] = tool(schema=schema, **options)(call)
    return made


async def on_loop(call: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Wait for a coroutine of a loop, which may be another than this."""
    if loop is asyncio.get_running_loop():
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))


def content_text(result: Any, name: str) -> str:
    """Return the text of what a server answered.

    Raises:
        ToolError: it says that the call failed, or sends an image.
    """
    parts = list(getattr(result, "content", None) or [])
    if any(getattr(part, "type", None) in IMAGE_KINDS for part in parts):
        raise image_refused(name)
    text = "\n".join(part.text for part in parts if isinstance(getattr(part, "text", None), str))
    if getattr(result, "isError", False):
        raise ToolError(text or "the server says that the call failed")
    structured = getattr(result, "structuredContent", None)
    return text if text or structured is None else as_json(structured)


def answered(future: Future[Any], what: str) -> Any:
    """Return what a server answers; raise a ToolError that says what it was to do."""
    try:
        return future.result(OPEN_SECONDS)
    except Exception as error:
        raise ToolError(
            f"The MCP server did not {what}: {type(error).__name__}: {error or f'no answer within {OPEN_SECONDS:g} s'}"
        ) from error
