"""A server of another kind than the settings name is called by its name, with what to do."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from covey.errors import EngineError
from covey.sample.remote.client import Client
from covey.sample.remote.served import CoveyServer
from covey.sample.remote.sglang import SglangServer
from covey.sample.remote.strangers import ROUTES, kind_at
from covey.sample.remote.vllm import VllmServer

pytestmark = pytest.mark.any_version

ASKED = {
    "covey": lambda url: CoveyServer(Client(url, 60.0)),
    "sglang": lambda url: SglangServer(url, 60.0),
    "vllm": lambda url: VllmServer(url, 60.0),
}


@contextmanager
def answering(*routes, page=None):
    """Serve an empty object at these routes; elsewhere a page, or status 404."""

    class Routes(BaseHTTPRequestHandler):
        def do_GET(self):
            said = b"{}" if self.path in routes else page
            self.send_response(404 if said is None else 200)
            self.end_headers()
            self.wfile.write(said or b"<html>not here</html>")

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Routes) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def complaint(wanted, url):
    """Return what a run says that asks what is there, in its order: the label, then the facts."""
    server = ASKED[wanted](url)
    with pytest.raises(EngineError) as caught:
        server.label()
        server.facts()
    return str(caught.value)


@pytest.mark.parametrize("wanted", ROUTES)
@pytest.mark.parametrize("found", ROUTES)
def test_another_kind_is_named_with_the_engine_to_set(wanted, found):
    if wanted == found:
        return
    with answering(ROUTES[found]) as url:
        assert kind_at(Client(url, 60.0)) == found
        said = complaint(wanted, url)
    assert f"Set engine={found!r}" in said and "older than" not in said


@pytest.mark.parametrize("wanted", ROUTES)
@pytest.mark.parametrize("page", [None, b"<html>welcome</html>"])
def test_a_web_server_is_none_of_them(wanted, page):
    with answering(page=page) as url:
        assert kind_at(Client(url, 60.0)) is None
        said = complaint(wanted, url)
        behind = complaint(wanted, f"{url}/v1")
    if page is None or wanted == "covey":
        assert "is no server of covey serve, SGLang, vLLM" in said and "html" not in said
        assert "Leave '/v1' out of the address" in behind and "Leave" not in said
