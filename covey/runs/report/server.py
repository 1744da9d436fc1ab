"""Serves the page of runs that go on, to this machine alone.

The server binds to the loopback address, answers GET requests whose Host header names it (so that a foreign page cannot
reach it under a name of its own, by DNS rebinding), and gives no page of another origin leave to read. What it serves
is read from the record; nothing is written.

    /           the page
    /summary    everything but completions; 204 while nothing has changed since `version`
    /numbers    numbers of the completions of a source, from a row on
    /excerpts   the start of every prompt
    /texts      a chunk of completions
    /prompts    a chunk of prompts
    /picture    a small picture, as base64
"""

from __future__ import annotations

import base64
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from covey.runs.record import schema
from covey.runs.record.json_text import Json
from covey.runs.record.picture_files import read_thumbnail
from covey.runs.report.page import assets, document, policy
from covey.runs.report.source import CompletionSource, as_json
from covey.runs.report.summary import RunSummary, record_version
from covey.text.foreign import fit, show

HOST = "127.0.0.1"
DEFAULT_PORT = 8765


class ReportServer(ThreadingHTTPServer):
    """A page about runs at `url`, up to date whenever it asks."""

    daemon_threads = True

    def __init__(self, runs: Sequence[str | Path], port: int = DEFAULT_PORT) -> None:
        """Open the records and bind.

        Args:
            runs: output directories or record folders.
            port: 0 takes a free one.

        Raises:
            FileNotFoundError: one of the runs has no record.
            OSError: the port is taken.
        """
        self.runs = [RunSummary(schema.record_folder(run)) for run in runs]
        for run in self.runs:
            run.data()
        self.lock = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def stamp(self) -> str:
        """Return a text that differs whenever one of the records has changed."""
        versions = [record_version(run.folder) for run in self.runs]
        return blake2b(repr(versions).encode(), digest_size=12).hexdigest()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless a browser went away in the middle of an answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            show(fit(traceback.format_exc()), sys.stderr)

    def data(self) -> Json:
        """Return the data of the page, without completions."""
        stamp = self.stamp()  # before reading: what comes in meanwhile is news for the next question
        return {"runs": [run.data() for run in self.runs], "live": True, "stamp": stamp}

    def source(self, query: Mapping[str, str]) -> CompletionSource:
        """Return the source of completions that a request names.

        Raises:
            IndexError, KeyError, ValueError: it names none.
        """
        run, source = int(query["run"]), int(query["source"])
        if min(run, source) < 0:
            raise IndexError("runs and sources are numbered from 0")
        return self.runs[run].sources[source]


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "covey"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, b"This server answers to its own address only.", "text/plain")
            return
        # The boundary at which a malformed request, or a record that changes while it is read, becomes a status. What is
        # sent goes out without the lock: a client that does not read must not hold up others.
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            with self.server.lock:
                answer = self._answer(parts.path, query)
        except (KeyError, IndexError, ValueError):
            answer = HTTPStatus.BAD_REQUEST, b"The request cannot be understood.", "text/plain"
        except FileNotFoundError:
            answer = HTTPStatus.SERVICE_UNAVAILABLE, b"The record is changing; ask again.", "text/plain"
        self._send(*answer)

    def _answer(self, path: str, query: dict[str, str]) -> tuple[HTTPStatus, bytes, str]:
        """Return status, body and kind of the answer to a request."""
        if path == "/":
            page = "".join(document(self.server.data(), connect="'self'")).encode("utf-8", "backslashreplace")
            return HTTPStatus.OK, page, "text/html; charset=utf-8"
        if path == "/summary":
            if query.get("version") == self.server.stamp():
                return HTTPStatus.NO_CONTENT, b"", "application/json"
            return HTTPStatus.OK, as_json(self.server.data()), "application/json"
        if path == "/numbers":
            numbers = self.server.source(query).numbers(int(query.get("from", "0")))
            return HTTPStatus.OK, numbers, "application/octet-stream"
        if path in ("/excerpts", "/texts", "/prompts"):
            source = self.server.source(query)
            chunks = {"/texts": source.texts, "/prompts": source.prompts}
            block = chunks[path](int(query["chunk"])) if path in chunks else source.index.excerpts
            return HTTPStatus.OK, as_json(block), "application/json"
        record = self.server.source(query).folder if path == "/picture" else None
        if record and (picture := read_thumbnail(record, query["digest"])):
            return HTTPStatus.OK, base64.b64encode(picture), "text/plain"
        return HTTPStatus.NOT_FOUND, b"There is no such page.", "text/plain"

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
            "Content-Security-Policy": policy(*assets(), connect="'self'"),
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if status is not HTTPStatus.NO_CONTENT:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: requests of the page are of no interest to the terminal."""
