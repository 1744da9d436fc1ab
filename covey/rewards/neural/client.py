"""A client for servers that speak OpenAI's chat protocol: a local vLLM, llama.cpp, Ollama, or a service."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from covey.types import Message


class ClientError(Exception):
    """The server did not give an answer."""


class ChatClient(Protocol):
    """What a judge needs: messages in, text out.

    Raises:
        ClientError: there is no answer, also after retries.
    """

    async def complete(self, messages: Sequence[Message]) -> str: ...


RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may be better next time."""


class OpenAIClient:
    """Asks `base_url`/chat/completions.

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
    """

    _next: float
    """When the next request may start, where their rate is limited; of a monotonic clock."""

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
        **parameters: Any,
    ) -> None:
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.model = model
        self.api_key_env = api_key_env
        self.max_concurrency = max_concurrency
        self.requests_per_minute = requests_per_minute
        self.timeout = timeout
        self.max_retries = max_retries
        self.backoff = backoff
        self.parameters = {"temperature": 0.0, **parameters}
        self._prepare()

    async def complete(self, messages: Sequence[Message]) -> str:
        """The text of the first choice."""
        async with self._slot():
            for attempt in range(self.max_retries + 1):
                try:
                    return await self._ask(messages)
                except _Later as later:
                    if attempt == self.max_retries:
                        raise ClientError(f"{self.url}: {later} ({attempt + 1} tries)") from None
                    wait = self.backoff * 2**attempt * (1 + random.random())
                    await asyncio.sleep(max(wait, later.seconds))
        raise AssertionError("a loop of at least one try")

    async def _ask(self, messages: Sequence[Message]) -> str:
        await self._turn()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._post, list(messages))

    async def _turn(self) -> None:
        """Wait until the rate allows one more request."""
        if self.requests_per_minute is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(self._next, now)
            self._next = start + 60.0 / self.requests_per_minute
        wait = start - now
        await asyncio.sleep(wait)

    def _post(self, messages: list[Message]) -> str:
        body = {"model": self.model, "messages": messages, **self.parameters}
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self.api_key_env)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return _text(response.read())
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            if error.code in RETRIED:
                raise _Later(
                    f"status {error.code}: {said}", _seconds(error.headers.get("Retry-After"))
                ) from None
            raise ClientError(f"{self.url}: status {error.code}: {said}") from None
        except (OSError, http.client.HTTPException) as error:  # refused, lost, too slow
            raise _Later(f"{type(error).__name__}: {error}") from None

    def _slot(self) -> asyncio.Semaphore:
        """A semaphore belongs to the loop that it is used in; another trainer has another loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            self._slots[loop] = asyncio.Semaphore(self.max_concurrency)
        return self._slots[loop]

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0
        self._pool = ThreadPoolExecutor(self.max_concurrency, thread_name_prefix="covey-judge")
        self._slots: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


class _Later(Exception):
    """Not now; perhaps later, after some seconds."""

    def __init__(self, said: str, seconds: float = 0.0) -> None:
        super().__init__(said)
        self.seconds = seconds


def _text(body: bytes) -> str:
    try:
        return str(json.loads(body)["choices"][0]["message"]["content"] or "")
    except (ValueError, KeyError, IndexError, TypeError):
        raise _Later(f"an answer of another form: {body[:200]!r}") from None


def _seconds(retry_after: str | None) -> float:
    try:
        return min(float(retry_after or 0), 120.0)
    except ValueError:
        return 0.0
