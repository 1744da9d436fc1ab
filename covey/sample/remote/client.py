"""JSON over HTTP with one server: nothing is waited for without an end, nothing is sent twice that may count twice.

A request that draws may take as long as tokens come: it is given up where the server's counter of tokens stands still, or where
the server takes no connection any more, and not by the clock. Every other one has so many seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypedDict, Unpack
from urllib.parse import urlsplit

from covey.errors import EngineError, ServerLost
from covey.sample.remote.many_sockets import readable
from covey.text.foreign import excerpt

TOKEN = "COVEY_ENGINE_TOKEN"
"""Environment variable that holds what servers ask for as a bearer token."""

CONNECT_SECONDS = 10.0
QUOTED = 2_000
"""Characters of a server's text that an error quotes."""

MOST_BYTES = 1 << 28
"""Of an answer: a group of 16 completions of 32,000 tokens takes a fifth of it."""

TRIES = 3
"""Of a call that may be repeated."""

BACK_OFF = 0.1
"""Seconds before the second try; twice as many before each one after it."""

Progress = Callable[[], int | None]
"""Tokens that the server has drawn; None: it does not say."""

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that a server listens on, as a client has to write them."""


class Terms(TypedDict, total=False):
    """The terms of a request beside what is asked; see `Client.text`."""

    seconds: float | None
    progress: Progress | None
    repeats: bool | None


class Refused(EngineError):
    """A server's answer with a status that says no.

    Attributes:
        status: of HTTP.
        said: the server's text.
    """

    def __init__(self, where: str, status: int, said: str) -> None:
        hint = f" Set the environment variable {TOKEN} to the token of that server." if status == 401 else ""
        super().__init__(
            f"{where} answered {status}: {excerpt(said, QUOTED) or http.client.responses.get(status, 'no text')}{hint}"
        )
        self.status, self.said = status, said


class Client:
    """Speaks with one server. Any number of threads may use it; each request has a connection of its own.

    Args:
        url: scheme, host and port; a path in front of all routes may follow. Without a scheme it is http.
        timeout: seconds that a request may take, or that a request which draws may go without a new token.
        token: sent as a bearer token; by default what the environment variable `COVEY_ENGINE_TOKEN` holds.

    Raises:
        EngineError: an address that is none.
    """

    def __init__(self, url: str, timeout: float = 240.0, token: str | None = None) -> None:
        self.is_tls, self.host, self.port, self.path = _address(url)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"
        self.timeout, self._token = timeout, (token or os.environ.get(TOKEN) or "").strip()
        if not (self._token.isascii() and self._token.isprintable()):
            raise EngineError(
                f"The token for {self.url} has letters that no header of HTTP can hold. Set {TOKEN} to printable ASCII."
            )
        self._still = Standstill(timeout)

    def ask(self, method: str, route: str, body: object = None, **terms: Unpack[Terms]) -> Any:
        """Return what the server answers, read as JSON; None where it answers nothing. See `text`.

        Raises:
            EngineError: it is no JSON, or holds a number that is none.
        """
        said = self.text(method, route, body, **terms)
        return _as_json(f"{self.url}{route}", said) if said.strip() else None

    def text(
        self,
        method: str,
        route: str,
        body: object = None,
        *,
        seconds: float | None = None,
        progress: Progress | None = None,
        repeats: bool | None = None,
    ) -> str:
        """Return what the server answers, as text.

        Args:
            route: begins with a slash.
            body: sent as JSON; a path is sent as the bytes of that file.
            seconds: until the whole answer is there; by default `timeout`.
            progress: the request draws tokens, and has as long as they come.
            repeats: whether it may be sent again where the connection is lost; by default a GET may.

        Raises:
            ServerLost: no connection, or one that was lost; no answer in time; 502, 503 or 504.
            Refused: another status than 200 to 299.
            EngineError: the answer is too long.
        """
        end = time.monotonic() + (self.timeout if seconds is None else seconds)
        may_repeat = method == "GET" if repeats is None else repeats
        for tried in range(1, TRIES + 1):
            try:
                return self._once(method, route, body, end, progress)
            except ServerLost:
                pause = BACK_OFF * 2 ** (tried - 1)
                if not may_repeat or tried == TRIES or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        raise AssertionError

    def _once(self, method: str, route: str, body: object, end: float, progress: Progress | None) -> str:
        """Send a request, and return the text of its answer."""
        where, connection = f"{method} {self.url}{route}", self._connection(end)
        with closing(connection), _faults_of(where):
            connection.connect()
            sock = connection.sock
            self._send(connection, method, route, body)
            if progress is not None:
                self._wait_for_tokens(where, sock, progress)
                end = time.monotonic() + self.timeout
            sock.settimeout(max(end - time.monotonic(), 0.001))
            answer = connection.getresponse()
            said = _read(where, answer, sock, end)
        if answer.status in (502, 503, 504):
            raise ServerLost(f"{where} answered {answer.status}: {excerpt(said, QUOTED) or answer.reason}")
        if not 200 <= answer.status < 300:
            raise Refused(where, answer.status, said)
        return said

    def _connection(self, end: float) -> http.client.HTTPConnection:
        seconds = max(min(CONNECT_SECONDS, end - time.monotonic()), 0.001)
        if self.is_tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=seconds)
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)

    def _send(self, connection: http.client.HTTPConnection, method: str, route: str, body: object) -> None:
        """Send a request; a socket that takes no bytes for `timeout` seconds is lost."""
        connection.sock.settimeout(self.timeout)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if isinstance(body, Path):
            headers |= {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(body.stat().st_size),
            }
            with body.open("rb") as file:
                connection.request(method, self.path + route, file, headers)
            return
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, allow_nan=False).encode()
        connection.request(method, self.path + route, data, headers)

    def _wait_for_tokens(self, where: str, sock: socket.socket, progress: Progress) -> None:
        """Return once the answer begins.

        Raises:
            ServerLost: no token came anywhere on the server for `timeout` seconds, or it takes no connection any more.
        """
        began = time.monotonic()
        while not readable([sock], self._still.interval):
            try:
                self._still.look(where, began, progress)
            except ServerLost:
                if not readable([sock], 0):  # an answer that came meanwhile is why the counter stands still
                    raise


class Standstill:
    """When the server's counter of tokens last moved. One thread looks for all that wait.

    Args:
        timeout: seconds that it may stand still.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout, self.interval = timeout, min(max(timeout / 8, 0.05), 5.0)
        self.last = self.looked = self.asked = float("-inf")
        """When it moved, when somebody last looked, and when the last look that was answered began."""
        self.count: int | None = None
        self.refusals = 0
        """How often in a row no connection was taken."""
        self.lock = threading.Lock()

    def look(self, where: str, began: float, progress: Progress) -> None:
        """Raise ServerLost where no token had come for `timeout` seconds when it was last seen: a job may have been suspended since."""
        if self.lock.acquire(blocking=False):
            try:
                if time.monotonic() - self.looked >= self.interval:
                    self._ask(progress)
            finally:
                self.lock.release()
        if self.refusals >= 2:  # it is ending, and would let this request hang
            raise ServerLost(f"{where}: the server takes no connection any more.")
        still = self.asked - max(began, self.last)
        if still >= self.timeout:
            counts = (
                f"its counter stands at {self.count} tokens"
                if self.count is not None
                else "it counts no tokens"
            )
            raise ServerLost(f"{where}: no answer for {still:.1f} seconds, and {counts}.")

    def _ask(self, progress: Progress) -> None:
        asked = time.monotonic()
        try:
            count, self.refusals = progress(), 0
        except EngineError as error:
            self.refusals += isinstance(error.__cause__, ConnectionRefusedError)
            count = self.count
        self.looked = time.monotonic()
        if count not in (None, self.count):
            self.last = self.looked
        self.count, self.asked = count, asked  # last: others judge by it


@contextmanager
def _faults_of(where: str) -> Iterator[None]:
    """Raise what goes wrong with a connection as a ServerLost."""
    began = time.monotonic()
    try:
        yield
    except TimeoutError as error:
        raise ServerLost(f"{where} had not answered after {time.monotonic() - began:.1f} seconds.") from error
    except ssl.SSLCertVerificationError as error:
        raise EngineError(f"{where}: its certificate does not hold: {error.verify_message}.") from error
    except ConnectionRefusedError as error:
        raise ServerLost(
            f"{where}: nothing listens there (connection refused). Start the server, or look at host and port."
        ) from error
    except socket.gaierror as error:
        raise ServerLost(f"{where}: no machine of that name is known: {error.strerror}.") from error
    except ssl.SSLError as error:
        raise ServerLost(f"{where}: it does not speak TLS: {error.reason}. Is it http?") from error
    except (OSError, http.client.HTTPException) as error:
        what = f"{type(error).__name__}: {excerpt(str(error), QUOTED)}"
        raise ServerLost(f"{where}: the connection was lost: {what}") from error


def _as_json(where: str, said: str) -> Any:
    """Return what a server has said, read as JSON."""
    try:
        return json.loads(said, parse_constant=_no_number)
    except _NoNumber as error:
        raise EngineError(
            f"{where} answered with {error} among its numbers: the weights or the logits there are not finite. Look at the "
            "policy's loss before this, and at the dtype that the server computes in."
        ) from None
    except (ValueError, RecursionError) as error:
        raise EngineError(
            f"{where} answered with what is no JSON ({error}): {excerpt(said, QUOTED)}"
        ) from None


class _NoNumber(Exception):
    """JSON holds NaN or an infinity."""


def _no_number(name: str) -> NoReturn:
    raise _NoNumber(name)


def _read(where: str, answer: http.client.HTTPResponse, sock: socket.socket, end: float) -> str:
    """Return the text of an answer that is whole by `end`."""
    parts, size = list[bytes](), 0
    while True:
        if sock.fileno() >= 0:  # closed once all is read
            sock.settimeout(max(end - time.monotonic(), 0.001))
        part = answer.read1(1 << 20)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise EngineError(
                f"{where} answers with more than {MOST_BYTES >> 20} MiB. Nothing that was asked is so long."
            )
    if answer.length:  # read1 tells a connection that ended early from the end of the answer by nothing else
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts).decode("utf-8", "replace")


def _address(url: str) -> tuple[bool, str, int, str]:
    """Return whether an address is https, its host, port and path."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    is_tls = parts.scheme == "https"
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment or parts.username:
        raise EngineError(
            f"{excerpt(url, 200)!r} is no address of a server. It must be a scheme, a host and a port, such as "
            f"http://127.0.0.1:8000; what the server asks for as a token goes into the environment variable {TOKEN}."
        )
    return is_tls, ANY_HOST.get(host, host), port or (443 if is_tls else 80), parts.path.rstrip("/")
