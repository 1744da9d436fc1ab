"""Pictures by address: only where asked for, only over https from public addresses, within 20 MB and 10 seconds."""

import contextlib
import http.server
import io
import shutil
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from covey.errors import DatasetError
from covey.vision import fetching
from covey.vision.pictures import PictureLimits, read_picture
from tests.clocks import PATIENCE

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
ASKED = PictureLimits(urls=True)


def png():
    file = io.BytesIO()
    IMAGE.save(file, "PNG")
    return file.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path; keeps what was asked."""

    asked: list

    def do_GET(self):
        self.asked.append((self.path, dict(self.headers)))
        name, _, rest = self.path[1:].partition("?")
        if name == "redirect":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
        elif name == "missing":
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the other side has left
                self.answer(name)

    def answer(self, name):
        if name == "large":
            for _ in range(30):
                self.wfile.write(b"x" * 1_000_000)
        elif name == "slow":
            for _ in range(6_000):
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif name == "silent":
            self.rfile.read(1)  # until the other side has left
        else:
            self.wfile.write(png())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the server's certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pictures.test -addext subjectAltName=DNS:pictures.test"
    made = [*command.split(), "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(made, check=True, capture_output=True)
    return folder


@pytest.fixture
def server(certificate, monkeypatch):
    """A server over https that is found under pictures.test, whose address counts as public."""
    handler = type("Own", (Handler,), {"asked": []})
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        fetching, "trust", lambda: ssl.create_default_context(cafile=certificate / "cert.pem")
    )
    monkeypatch.setattr(
        fetching, "looked_up", lambda host, port: {"inside.test": ["10.0.0.5"]}.get(host, ["127.0.0.1"])
    )
    public = fetching.is_public
    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1" or public(address))
    monkeypatch.setattr(fetching, "SECONDS", PATIENCE)  # but where it is what is asked for
    yield f"https://pictures.test:{serving.server_port}", handler.asked
    serving.shutdown()
    serving.server_close()


def test_a_picture_is_fetched_where_it_is_asked_for(server, monkeypatch):
    """Its bytes are kept; nothing of the surroundings goes along."""
    url, asked = server
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    picture, image = read_picture(f"{url}/a.png", 0, "image", limits=ASKED)
    assert np.array_equal(np.asarray(image), np.asarray(IMAGE)) and picture.source == png()
    [(_, headers)] = asked
    assert headers["Host"] == url.removeprefix("https://")
    assert not {"Cookie", "Authorization", "Referer"} & set(headers)
    assert read_picture(f"{url}/redirect?/b.png", limits=ASKED)[0].digest == picture.digest
    with pytest.raises(
        DatasetError,
        match=r"Row 3, column 'image', picture 0: .* is an address, and nothing is fetched\..*allow_image_urls=True",
    ):
        read_picture(f"{url}/a.png", 3, "image")
    assert len(asked) == 3


CASES = {
    "/missing": "answers with status 404",
    "/large": "is larger than 20 MB",
    "/redirect?http://pictures.test/a.png": "leads to http://, and https:// alone is fetched",
    "/redirect?https://inside.test/a.png": r"leads to 10\.0\.0\.5, which is not public",
    "/redirect?file:///etc/hostname": "leads to file://",
    "/redirect?/redirect?/redirect?/redirect?/redirect?/redirect?/a.png": "redirects more than 5 times",
    "/text": "",
}


@pytest.mark.parametrize("path", [path for path in CASES if CASES[path]])
def test_what_is_beyond_the_limits_is_one_error_with_its_row(server, path):
    url, _ = server
    with pytest.raises(
        DatasetError, match=f"Row 4, column 'images', picture 2: .*{CASES[path]}.*Download it"
    ):
        read_picture(url + path, 4, "images", 2, ASKED)


def test_a_server_that_never_ends_is_left_after_the_limit(server, monkeypatch):
    """However steadily it sends; the same holds for a name that is looked up for ever."""
    url, _ = server
    monkeypatch.setattr(fetching, "SECONDS", 0.5)
    with pytest.raises(DatasetError, match=r"took more than 0\.5 s"):
        read_picture(f"{url}/slow", limits=ASKED)
    found = threading.Event()
    monkeypatch.setattr(fetching, "looked_up", lambda *_: found.wait(PATIENCE) and ["127.0.0.1"])
    with pytest.raises(DatasetError, match=r"took more than 0\.5 s"):
        read_picture(f"{url}/a.png", limits=ASKED)
    found.set()


def test_a_limit_of_one_step_says_what_the_limit_of_the_whole_says(server, monkeypatch):
    """Which of them is seen first hangs on who is let run."""
    url, _ = server
    join = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda self, _=None: join(self, PATIENCE))
    monkeypatch.setattr(fetching, "SECONDS", 0.5)
    with pytest.raises(DatasetError, match=r"took more than 0\.5 s"):
        read_picture(f"{url}/silent", limits=ASKED)


def test_a_certificate_of_another_name_is_refused(server):
    url, asked = server
    with pytest.raises(DatasetError, match=r"cannot be fetched.*certificate"):
        read_picture(url.replace("pictures.test", "others.test") + "/a.png", limits=ASKED)
    assert not asked


def test_the_connection_goes_to_the_address_that_was_looked_at(server, monkeypatch):
    """A name that is public when it is looked at, and points inwards when it is connected to, gains nothing."""
    url, asked = server

    def elsewhere(host, *args, **more):
        assert host == "127.0.0.1", f"{host} was looked up again"
        return resolve(host, *args, **more)

    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", elsewhere)
    read_picture(f"{url}/a.png", limits=ASKED)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/a.png", "https://localhost/a.png", "https://[::1]/a.png", "https://10.1.2.3/a", "https://192.168.0.1/a", "https://169.254.169.254/latest/meta-data",
     "https://[::ffff:127.0.0.1]/a", "https://[64:ff9b::7f00:1]/a", "https://[fe80::1]/a", "https://0.0.0.0/a", "https://2130706433/a", "https://100.64.0.1/a", "https://224.0.0.1/a"],
)  # fmt: skip
def test_private_addresses_are_refused_unopened(url, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(DatasetError, match=r"which is not public|not found") as told:
        read_picture(url, 0, "image", limits=ASKED)
    assert "AssertionError" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://pictures.test/a.png", "https:// alone"),
        ("file:///etc/hostname", "https:// alone"),
        ("ftp://pictures.test/a", "https:// alone"),
        ("//pictures.test/a", "https:// alone"),
        ("https://", "https:// alone"),
        ("https://user:word@pictures.test/a", "holds a login"),
    ],
)
def test_other_addresses_are_refused_unopened(url, words, monkeypatch):
    monkeypatch.setattr(fetching, "looked_up", lambda *_: pytest.fail("a name was looked up"))
    with pytest.raises(DatasetError, match=words):
        read_picture(url, limits=ASKED)


def test_public_addresses_are_public():
    assert all(map(fetching.is_public, ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"]))
    assert not any(map(fetching.is_public, ["2002:7f00:1::", "2001:0:1::", "::", "fc00::1", "ff02::1"]))
