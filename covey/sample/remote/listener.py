"""The HTTP that `covey serve` and the agent beside vLLM share: who may ask, how much is read, how a no is said.

A request is refused before it is read where it is too long, comes from a web page, or lacks the token.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from typing import Any
from urllib.parse import parse_qs

from covey.errors import ConfigError, EngineError, ServerLost
from covey.sample.remote.upload_store import BLOCK, Status, UploadStore
from covey.text.foreign import excerpt, fit, show

MOST_BYTES = 64 << 20
"""Of a request that is no upload: a prompt of a million ids has ten as JSON."""

MOST_CONNECTIONS = 1024


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Listener(ThreadingHTTPServer):
    """An address at which requests are answered, each connection in a thread.

    Args:
        exchange: answers them.
        uploads: takes files that are sent; deleted with the listener.
        host: an address of this machine.
        port: 0 takes a free one.
        token: clients have to send it as a bearer token; None: they need none.

    Raises:
        OSError: the address cannot be had.
    """

    daemon_threads, allow_reuse_address, request_queue_size = True, True, 512

    def __init__(
        self, exchange: type[Exchange], uploads: UploadStore, host: str, port: int, token: str | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.uploads, self.token = uploads, token
        self.connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), exchange)  # closes all that where it fails
        host = f"[{host}]" if ":" in host else host
        self.url = f"http://{host}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless there are too many."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless a client went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            show(fit(traceback.format_exc()), sys.stderr)

    def server_close(self) -> None:
        """Listen no more, and delete what was sent."""
        super().server_close()
        self.uploads.close()


class Exchange(BaseHTTPRequestHandler):
    """A request and its answer."""

    server: Listener
    server_version, sys_version = "covey", ""
    protocol_version = "HTTP/1.1"
    timeout = 60
    """Seconds that a client may take between two bytes of a request."""
    unread = 0
    """Bytes of the body that were not read yet."""

    def answer(self, route: str, query: Mapping[str, str]) -> tuple[int, object]:
        """Return the status and the answer: an object for JSON, text, or bytes that are either.

        Raises:
            Status: the answer is no.
            Gone: there is nobody to answer.
        """
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer. At this boundary whatever goes wrong with a request becomes a status."""
        route, _, query = self.path.partition("?")
        try:
            self._admit()
            status, answer = self.answer(route, {name: texts[-1] for name, texts in parse_qs(query).items()})
        except (Gone, ConnectionError, TimeoutError):
            self.close_connection = True
            return
        except Status as error:
            status, answer = error.status, {"error": str(error)}
        except (ConfigError, EngineError) as error:
            status = 400 if isinstance(error, ConfigError) else 503 if isinstance(error, ServerLost) else 500
            answer = {"error": str(error)}
        except Exception as error:
            show(fit(traceback.format_exc()), sys.stderr)
            what = excerpt(f"{type(error).__name__}: {error}", 400)
            status, answer = 500, {"error": f"It could not be done: {what}"}
        self.send(status, answer)

    do_POST = do_PUT = do_DELETE = do_GET

    def _admit(self) -> None:
        """Refuse a request by its head alone."""
        length, given = self.headers.get("Content-Length") or "0", self.headers.get("Authorization") or ""
        if not re.fullmatch("[0-9]{1,18}", length) or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise Status(411, "Send the body's length as Content-Length, and no Transfer-Encoding.")
        self.unread = int(length)
        if self.headers.get("Origin") is not None:
            raise Status(403, "This server answers no web page.")
        token = self.server.token
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Status(401, "The token is missing or another one. It is sent as a bearer token.")

    def read(self, number: int) -> bytes:
        """Return so many bytes of the body, or fewer at its end."""
        block = self.rfile.read(min(number, self.unread))
        self.unread = self.unread - len(block) if block else 0
        return block

    def body(self) -> bytes:
        """Return the body of a request that is no upload.

        Raises:
            Status: it is too long.
        """
        if self.unread > MOST_BYTES:
            raise Status(413, f"The body has {self.unread:,} bytes; at most {MOST_BYTES:,} are read.")
        return self.read(self.unread)

    def has_gone(self) -> bool:
        """Return whether the client waits no more."""
        try:
            return bool(wait([self.connection], 0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def send(self, status: int, answer: object) -> None:
        """Send an answer."""
        if self.unread:  # what was refused was not read: the next request cannot be told from it
            self.close_connection = True
        said = answer if isinstance(answer, str | bytes) else json.dumps(answer, allow_nan=False)
        body = said.encode() if isinstance(said, str) else said
        is_json = not isinstance(answer, str) and body[:1] in (b"{", b"[", b'"')
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if is_json else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        for _ in range(0, MOST_BYTES, BLOCK):  # else the answer is lost with the connection
            if not self.read(BLOCK):
                break

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing for each request."""
