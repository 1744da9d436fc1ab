"""A client for servers that speak OpenAI's chat protocol: a local vLLM, llama.cpp, Ollama, or a service."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import httpx2

from covey.errors import RewardError
from covey.text.foreign import visible
from covey.text.secrets import BLANK, without_secrets
from covey.types import Message


class ClientError(Exception):
    """The server did not give an answer."""


class ChatClient(Protocol):
    """A judge's connection to a model: messages in, text out.

    Raises:
        ClientError: there is no answer, also after retries.
    """

    async def complete(self, messages: Sequence[Message]) -> str: ...


MAX_ANSWER = 8 << 20
"""Bytes of an answer that are read. A judge's words take kilobytes."""
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may be better next time."""


def check_address(base_url: str) -> None:
    """Raise where a server's address is none.

    Raises:
        RewardError: it cannot be read, or has no http:// or https://, or no host.
    """
    try:
        address = httpx2.URL(base_url)
        is_whole = address.scheme in ("http", "https") and bool(address.host)
        fault = "" if is_whole else "it needs http:// or https://, and a host"
    except httpx2.InvalidURL as error:
        fault = str(error)
    if fault:
        raise RewardError(
            f"base_url is {without_secrets(repr(base_url))}: {fault}. Give one like http://localhost:8000/v1."
        )


class OpenAIClient:
    """Client that asks `base_url`/chat/completions.

    A call that is cancelled, or takes longer than `timeout`, closes its connection at once.

    Args:
        base_url: up to and including the version, for example `http://localhost:8000/v1`.
        model: the model's name on the server.
        api_key_env: the environment variable with the key; none is sent where it is not set. The key itself is never kept.
        max_concurrency: requests at a time.
        requests_per_minute: evenly spaced; None: no limit.
        timeout: seconds per request.
        max_retries: further tries after a time-out, a lost connection, or an answer that says to come back.
        backoff: seconds before the first retry; doubled each time, plus up to as much again at random.
        parameters: sent along: temperature, max_tokens, seed, ...

    Raises:
        RewardError: `base_url` is no address.
    """

    _next: float
    """When the next request may start, where their rate is limited; of a monotonic clock."""
    _loops: dict[asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, asyncio.Semaphore]]

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        max_concurrency: int = 8,
        requests_per_minute: float | None = None,
        timeout: float = 60.0,
        max_retries: int = 4,
        backoff: float = 1.0,
        **parameters: object,
    ) -> None:
        check_address(base_url)
        self.url, self.model = base_url.rstrip("/") + "/chat/completions", model
        self.api_key_env = api_key_env
        self.max_concurrency, self.requests_per_minute = max_concurrency, requests_per_minute
        self.timeout, self.max_retries, self.backoff = timeout, max_retries, backoff
        self.parameters = {"temperature": 0.0, **parameters}
        self._start()

    async def complete(self, messages: Sequence[Message]) -> str:
        """Return the text of the first choice; raise `ClientError` where there is none, also after retries."""
        connection, slots = self._of_this_loop()
        async with slots:
            for attempt in range(self.max_retries + 1):
                if self.requests_per_minute is not None:
                    with self._lock:
                        now = time.monotonic()
                        start = max(self._next, now)
                        self._next = start + 60.0 / self.requests_per_minute
                    await asyncio.sleep(start - now)
                try:
                    return await self._post(connection, messages)
                except _Later as later:
                    if attempt == self.max_retries:
                        raise self._error(f"{later} ({attempt + 1} tries)") from None
                    wait = self.backoff * 2**attempt * (1 + random.random())
                    await asyncio.sleep(max(wait, later.seconds))
        raise AssertionError("a loop of at least one try")

    async def _post(self, connection: httpx2.AsyncClient, messages: Sequence[Message]) -> str:
        """Ask once; raise `_Later` where it may go better another time, `ClientError` where it will not.

        Redirects are not followed: the key is for the address that was given.
        """
        body = {"model": self.model, "messages": list(messages), **self.parameters}
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        received = bytearray()
        try:
            async with (
                asyncio.timeout(self.timeout),  # over the whole, not per read
                connection.stream("POST", self.url, content=json.dumps(body), headers=headers) as response,
            ):
                async for part in response.aiter_raw():
                    received += part
                    if len(received) > MAX_ANSWER:
                        raise _Later(f"an answer of more than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise _Later("TimeoutError: timed out") from None
        except httpx2.RequestError as error:  # refused, lost
            raise _Later(f"{type(error).__name__}: {error}") from None
        if response.is_success:
            return self._text(bytes(received))
        reason = f"status {response.status_code}: {self._quoted(received, 500)}"
        if response.status_code not in RETRIED:
            raise self._error(reason)
        try:
            seconds = min(float(response.headers.get("Retry-After") or 0), 120.0)
        except ValueError:  # a date
            seconds = 0.0
        raise _Later(reason, seconds)

    def _text(self, received: bytes) -> str:
        """Return the text of an answer's first choice; `_Later` for whatever else a server sent."""
        try:
            content = json.loads(received)["choices"][0]["message"]["content"]
            if content is None or isinstance(content, str):
                key = self._key()
                return (content or "").replace(key, BLANK) if key else content or ""
        except Exception:  # the boundary: an answer of another form, of any depth and size
            pass
        raise _Later(f"an answer of another form: {self._quoted(received, 200)!r}")

    def _key(self) -> str:
        """Return the key without the line end that a file leaves behind it.

        Raises:
            ClientError: it holds what no header can; the text does not show it.
        """
        key = os.environ.get(self.api_key_env, "").strip()
        if not all("!" <= letter <= "~" for letter in key):
            raise self._error(
                f"the key in {self.api_key_env} cannot be sent: it holds spaces, line ends or letters beyond ASCII"
            )
        return key

    def _blanked(self, text: str) -> str:
        return without_secrets(text, os.environ.get(self.api_key_env, "").strip())

    def _quoted(self, received: bytes | bytearray, length: int) -> str:
        """Return the start of an answer as text. The key is taken out before it is cut, which would leave half of it."""
        return self._blanked(received[:100_000].decode("utf-8", "replace"))[:length]

    def _error(self, reason: str) -> ClientError:
        return ClientError(visible(self._blanked(f"{self.url}: {reason}")))

    def _of_this_loop(self) -> tuple[httpx2.AsyncClient, asyncio.Semaphore]:
        """Return the connections and the semaphore of the running loop; another trainer has another loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {known: parts for known, parts in self._loops.items() if not known.is_closed()}
            try:
                connection = httpx2.AsyncClient(
                    verify=ssl.create_default_context(),  # the system's certificates, as other programs use them
                    timeout=None,  # `_post` limits the request as a whole
                    # Connections that nobody uses would outlive the loop.
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                )
            except (ImportError, ValueError, httpx2.InvalidURL) as error:
                raise self._error(
                    f"the proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: {error}"
                ) from None
            self._loops[loop] = connection, asyncio.Semaphore(self.max_concurrency)
        return self._loops[loop]

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0
        self._loops = {}

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()


class _Later(Exception):
    """Not now; perhaps later, after some seconds."""

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds
