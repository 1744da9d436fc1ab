"""The HTTP client over a socket that misbehaves: every wait ends, every fault is told with the server's own words."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest

from covey.errors import EngineError, ServerLost
from covey.sample.remote import client as client_module
from covey.sample.remote.client import QUOTED, Client, Refused, Standstill

pytestmark = pytest.mark.any_version

IN_TIME = 60.0
"""Seconds in which what is given up in time is over on a machine that has other things to do; servers here are silent for longer."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b'{"a": [1]}\n'


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Listener:
    """A server that does with its n-th connection what the n-th script says; the last script is used on."""

    def __init__(self, *scripts: Callable[[socket.socket, bytes], None]) -> None:
        self.scripts, self.requests = list(scripts), list[bytes]()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.ends = threading.Event()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            threading.Thread(target=self.serve, args=(connection, script), daemon=True).start()

    def serve(self, connection: socket.socket, script) -> None:
        connection.settimeout(3 * IN_TIME)
        with connection:
            try:
                head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
                length = next(
                    (
                        int(x.split()[1])
                        for x in head.split(b"\r\n")
                        if x.lower().startswith(b"content-length")
                    ),
                    0,
                )
                while len(body) < length:
                    body += connection.recv(1 << 16)
                self.requests.append(head + b"\r\n\r\n" + body)
                script(connection, self)
            except OSError:
                pass

    def close(self) -> None:
        self.ends.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # it is being waited on
        self.socket.close()


@pytest.fixture
def listen():
    made = list[Listener]()

    def make(*scripts):
        made.append(Listener(*scripts))
        return made[-1]

    yield make
    for listener in made:
        listener.close()


def says(data: bytes):
    return lambda connection, _: connection.sendall(data)


def silent(connection, listener):
    listener.ends.wait(3 * IN_TIME)


def reset(connection, listener):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def drips(data: bytes):
    def script(connection, listener):
        for byte in data:
            connection.sendall(bytes([byte]))
            if listener.ends.wait(0.05):
                return

    return script


def elapsed(work) -> tuple[BaseException, float]:
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        work()
    return caught.value, time.monotonic() - began


def test_json_goes_out_and_comes_back(listen, tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_ENGINE_TOKEN", "hf_abcdefghijklmnop")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    file = tmp_path / "weights"
    file.write_bytes(b"\x00" * 100_000)
    listener = listen(says(OK))
    client = Client(listener.url + "/under/")
    assert client.ask("POST", "/x?y=1", {"ids": [1, 2]}) == {"a": [1]}
    assert client.ask("PUT", "/f", file) == {"a": [1]} and client.text("GET", "/t") == '{"a": [1]}\n'
    posted, put, got = listener.requests
    assert posted.startswith(b"POST /under/x?y=1 HTTP/1.1\r\n") and json.loads(
        posted.split(b"\r\n\r\n")[1]
    ) == {"ids": [1, 2]}
    assert put.endswith(b"\r\n\r\n" + file.read_bytes()) and b"\r\n\r\n" in got
    assert all(b"Authorization: Bearer hf_abcdefghijklmnop" in request for request in listener.requests)
    assert Client(listen(says(answer(b""))).url).ask("GET", "/health") is None


def test_numbers_come_back_to_the_bit(listen):
    numbers = [0.1, -1e-300, -0.0, 3.4028234663852886e38, 1 / 3]
    assert repr(Client(listen(says(answer(json.dumps(numbers).encode()))).url).ask("GET", "/")) == repr(
        numbers
    )
    with pytest.raises(ValueError, match="Out of range float"):
        Client(listen(says(OK)).url).ask("POST", "/", {"x": float("nan")})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("0.0.0.0:8000/", "http://127.0.0.1:8000"),
        ("http://[::]:80", "http://[::1]:80"),
        ("https://host/v1/", "https://host:443/v1"),
        ("node-2:9", "http://node-2:9"),
    ],
)
def test_addresses(url, expected):
    """Report 6."""
    assert Client(url).url == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host",
        "http://",
        "http://h:port",
        "http://user:password@h",
        "http://h/?a=1",
        "http://h:99999",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(EngineError, match="is no address of a server") as caught:
        Client(url)
    assert "password" not in str(caught.value)


def test_a_token_of_two_lines_is_refused_and_the_end_of_a_line_is_none_of_it(monkeypatch):
    monkeypatch.setenv("COVEY_ENGINE_TOKEN", "first-secret\n")
    assert Client("h:1")._token == "first-secret"
    for token in ("first-secret\nsecond", "sécret-sécret"):
        monkeypatch.setenv("COVEY_ENGINE_TOKEN", token)
        with pytest.raises(EngineError, match="Set COVEY_ENGINE_TOKEN to printable ASCII") as caught:
            Client("h:1")
        assert "secret" not in str(caught.value)


# --- every wait ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        silent,
        lambda c, at: (c.sendall(OK[:20]), silent(c, at)),
        lambda c, at: (c.sendall(OK[:-5]), silent(c, at)),
        drips(answer(b" " * 4000)),
    ],
    ids=["silent", "half a head", "half a body", "a byte at a time"],
)
def test_a_server_that_is_silent_is_left_in_time(listen, script):
    """Report 1."""
    client = Client(listen(script).url, timeout=0.5)
    for how in ({}, {"progress": lambda: None}):
        error, seconds = elapsed(lambda how=how: client.ask("POST", "/draw", {}, **how))
        assert isinstance(error, ServerLost) and seconds < IN_TIME, seconds
        assert "POST http://127.0.0.1:" in str(error)


def test_seconds_of_one_call(listen):
    error, seconds = elapsed(
        lambda: Client(listen(silent).url, timeout=2 * IN_TIME).ask("GET", "/health", seconds=0.2)
    )
    assert isinstance(error, ServerLost) and 0.2 <= seconds < IN_TIME
    assert "/health had not answered after " in str(error)


@pytest.fixture
def refusing():
    """The address of a port that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_nobody_listens(refusing):
    error, seconds = elapsed(lambda: Client(refusing).ask("POST", "/draw", {}))
    assert isinstance(error, ServerLost) and isinstance(error.__cause__, ConnectionRefusedError)
    assert seconds < IN_TIME
    assert "nothing listens there (connection refused). Start the server" in str(error)


def test_a_name_or_a_scheme_that_is_wrong_is_said_without_a_libraries_words(listen):
    error, _ = elapsed(lambda: Client("http://no-such-host.invalid:8000").ask("POST", "/draw", {}))
    assert isinstance(error, ServerLost) and "no machine of that name is known" in str(error)
    url = listen(says(OK)).url.replace("http:", "https:")
    error, _ = elapsed(lambda: Client(url).ask("POST", "/draw", {}))
    assert isinstance(error, ServerLost) and "Is it http?" in str(error)


def test_a_request_that_draws_has_as_long_as_tokens_come(listen):
    def slow(connection, listener):
        listener.ends.wait(1.5)
        connection.sendall(OK)

    tokens = iter(range(1000))
    listener = listen(slow, silent)
    client = Client(listener.url, timeout=0.4)
    assert client.ask("POST", "/draw", {}, progress=lambda: next(tokens)) == {"a": [1]}
    error, seconds = elapsed(lambda: client.ask("POST", "/draw", {}, progress=lambda: 7))
    assert isinstance(error, ServerLost) and 0.4 <= seconds < IN_TIME
    assert "its counter stands at 7 tokens" in str(error)
    error, seconds = elapsed(lambda: client.ask("POST", "/draw", {}, progress=lambda: None))
    assert "it counts no tokens" in str(error) and seconds < IN_TIME


def test_a_server_that_ends_and_holds_its_connection_is_left_at_once(listen, refusing):
    """vLLM after SIGTERM: the open request would hang for ever, new ones are refused."""
    client, ending = Client(listen(silent).url, timeout=2 * IN_TIME), Client(refusing)
    client._still.interval = 0.1
    error, seconds = elapsed(
        lambda: client.ask("POST", "/draw", {}, progress=lambda: ending.ask("GET", "/metrics", seconds=0.2))
    )
    assert isinstance(error, ServerLost) and "takes no connection any more" in str(error)
    assert seconds < IN_TIME


def test_an_answer_that_comes_while_the_counter_is_looked_at_counts(listen):
    """It is why the counter stands still."""
    asked, sent = threading.Event(), threading.Event()

    def late(connection, listener):
        asked.wait(IN_TIME)
        connection.sendall(OK)
        sent.set()

    def progress():
        asked.set()
        sent.wait(IN_TIME)
        return None

    client = Client(listen(late).url)
    client._still = Standstill(0.0)  # the first look is the last
    assert client.ask("POST", "/draw", {}, progress=progress) == {"a": [1]}


def test_the_clock_alone_blames_no_server(monkeypatch):
    """A job that was suspended: tokens came meanwhile, and whoever goes on first has not asked for them yet."""
    still, clock = Standstill(10.0), SimpleNamespace(monotonic=lambda: 1000.0, sleep=time.sleep)
    monkeypatch.setattr(client_module, "time", clock)
    with still.lock:  # another one asks
        still.look("there", 0.0, lambda: 7)
    still.look("there", 0.0, lambda: 7)
    clock.monotonic = lambda: 1010.0
    with pytest.raises(
        ServerLost, match=r"there: no answer for 10\.0 seconds, and its counter stands at 7 tokens"
    ):
        still.look("there", 0.0, lambda: 7)


def test_one_of_many_that_wait_looks_at_the_counter(listen):
    looks = list[float]()
    client = Client(listen(silent).url, timeout=0.6)

    def progress():
        looks.append(time.monotonic())
        return 7

    def wait():
        with pytest.raises(ServerLost):
            client.ask("POST", "/draw", {}, progress=progress)

    threads = [threading.Thread(target=wait) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(IN_TIME)
        assert not thread.is_alive()
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert min(pauses) >= client._still.interval, "as seldom as one that waits alone"


# --- what is sent again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        reset,
        says(b""),
        says(OK[:-5]),
        says(b"SSH-2.0-OpenSSH\r\n"),
        says(answer(b"x", "503 Service Unavailable")),
    ],
    ids=["reset", "closed", "half", "another program", "503"],
)
def test_what_may_be_repeated_is(listen, script):
    """Report 4; blind repetition of what counts twice is a fault of its own."""
    listener = listen(script, says(OK))
    assert Client(listener.url).ask("GET", "/facts") == {"a": [1]} and len(listener.requests) == 2
    listener = listen(script, says(OK))
    with pytest.raises(ServerLost):
        Client(listener.url).ask("POST", "/draw", {})
    assert len(listener.requests) == 1
    assert Client(listen(script, says(OK)).url).ask("POST", "/label", {}, repeats=True) == {"a": [1]}


def test_what_is_lost_every_time_is_told(listen):
    listener = listen(says(b""))
    with pytest.raises(
        ServerLost, match=r"GET http://127\.0\.0\.1:.*the connection was lost: RemoteDisconnected"
    ):
        Client(listener.url).ask("GET", "/facts")
    assert len(listener.requests) == client_module.TRIES


# --- what the server says ---------------------------------------------------------------------------------------------


def test_a_status_is_told_with_the_servers_text(listen):
    """Report 1: the error's body is thrown away by others."""
    secret = "key sk-abcdefghijklmnopqrst \x1b[2J " + "long " * 2000
    client = Client(listen(says(answer(secret.encode(), "500 Internal Server Error"))).url)
    with pytest.raises(Refused, match=r"POST .*/update answered 500: key ") as caught:
        client.ask("POST", "/update", {})
    text = str(caught.value)
    assert (
        caught.value.status == 500
        and "sk-abc" not in text
        and "\x1b" not in text
        and len(text) < QUOTED + 200
    )
    with pytest.raises(Refused, match="answered 302: Found"):
        Client(listen(says(answer(b"", "302 Found", "Location: http://elsewhere\r\n"))).url).ask("GET", "/")


@pytest.mark.parametrize("body", [b'{"logprobs": [NaN]}', b"[-Infinity]", b"[Infinity]"])
def test_numbers_that_are_none(listen, body):
    """Report 20."""
    with pytest.raises(
        EngineError, match="among its numbers: the weights or the logits there are not finite"
    ):
        Client(listen(says(answer(body))).url).ask("GET", "/")


@pytest.mark.parametrize(
    "body", [b"<html>proxy</html>", b"{", b"\xff\xfe", b"[" * 200_000], ids=["html", "half", "bytes", "deep"]
)
def test_what_is_no_json(listen, body):
    with pytest.raises(EngineError, match="answered with what is no JSON") as caught:
        Client(listen(says(answer(body))).url).ask("GET", "/")
    assert not isinstance(caught.value, ServerLost) and len(str(caught.value)) < QUOTED + 500


def test_an_answer_without_end_is_cut(listen, monkeypatch):
    monkeypatch.setattr(client_module, "MOST_BYTES", 1 << 16)

    def flood(connection, listener):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not listener.ends.is_set():
            connection.sendall(b" " * (1 << 14))

    with pytest.raises(EngineError, match="answers with more than 0 MiB"):
        Client(listen(flood).url, timeout=IN_TIME).ask("GET", "/")
