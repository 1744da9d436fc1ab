"""The live server: to this machine alone, read-only, and always what a fresh look would say."""

import base64
import gzip
import http.client
import json
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from covey.runs.record import segments
from covey.runs.report.embed import embed
from covey.runs.report.server import ReportServer
from covey.runs.report.source import CHUNK, CompletionSource
from tests.clocks import PATIENCE
from tests.runs.report.test_page import unpack
from tests.runs.synthetic import WEIGHTS, Story, open_writer, record_evaluation, record_step, write_run

STORY = Story(steps=30, prompts_per_step=3, group_size=4, evaluate_every=0, eval_prompts=5, failure_rate=0.05)


@pytest.fixture
def served(tmp_path):
    write_run(tmp_path / "record", replace(STORY, steps=6, evaluate_every=3))
    server = ReportServer([tmp_path], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_it_listens_on_the_loopback_address_only(served):
    assert served.server_address[0] == "127.0.0.1"
    outside = [
        a[4][0]
        for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not a[4][0].startswith("127.")
    ]
    for address in outside:
        with pytest.raises(OSError):
            socket.create_connection((address, served.server_address[1]), timeout=1)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1", "", "127.0.0.1:1"],
)
def test_a_foreign_host_header_is_refused(served, host):
    response, body = ask(served, "/summary", Host=host.format(port=served.server_address[1]))
    assert response.status == 403 and b"<think>" not in body and b"curves" not in body


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_names_are_answered(served, name):
    response, body = ask(served, "/", Host=f"{name}:{served.server_address[1]}")
    assert response.status == 200 and b'id="data"' in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_but_reading_is_possible(served, method):
    response, _ = ask(served, "/summary", method)
    assert response.status == 501


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../../etc/passwd", 404), ("/record/run.json", 404), ("/texts", 400), ("/texts?run=0&source=0&chunk=x", 400),
        ("/texts?run=7&source=0&chunk=0", 400), ("/texts?run=-1&source=0&chunk=0", 400), ("/numbers?run=0&source=0&from=z", 400),
        ("/texts?run=0&source=0&chunk=99", 200),
    ],
)  # fmt: skip
def test_odd_requests_get_a_status_and_the_server_lives_on(served, path, status):
    assert ask(served, path)[0].status == status
    assert ask(served, "/")[0].status == 200


def test_every_answer_forbids_what_a_foreign_page_could_do_with_it(served):
    for path in ("/", "/summary", "/texts?run=0&source=0&chunk=0", "/nothing"):
        response, _ = ask(served, path)
        assert "Access-Control-Allow-Origin" not in response.headers
        assert (
            response.headers["X-Content-Type-Options"] == "nosniff"
            and response.headers["X-Frame-Options"] == "DENY"
        )
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


def test_nothing_is_sent_while_nothing_has_changed(served, tmp_path):
    _, body = ask(served, "/summary")
    stamp = json.loads(body)["stamp"]
    response, body = ask(served, f"/summary?version={stamp}")
    assert response.status == 204 and body == b""
    with open(tmp_path / "record" / "events.jsonl", "ab") as file:
        file.write(b'{"time":1,"step":null,"kind":"note","message":"news","details":{}}\n')
    response, body = ask(served, f"/summary?version={stamp}")
    assert response.status == 200 and json.loads(body)["runs"][0]["events"][-1]["message"] == "news"


def test_the_page_in_the_browser_gets_what_the_file_would_hold(served, tmp_path):
    source = fresh(tmp_path / "record")
    blobs = embed(source, 10**9).blocks
    assert json.loads(ask(served, "/summary")[1])["runs"][0]["sources"][0]["rows"] == source.rows
    numbers = ask(served, "/numbers?run=0&source=0")[1]
    assert inflated(blobs["numbers"]) == numbers
    directory, columns = unpack(numbers)
    assert directory["rows"] == source.rows and directory["tasks"] == ["countdown", "code"]
    block = ask(served, "/texts?run=0&source=0&chunk=0")[1]
    assert inflated(blobs["text-0"]) == block
    texts = json.loads(block)
    assert len(texts) == source.rows and texts[0]["text"]
    block = ask(served, "/prompts?run=0&source=0&chunk=0")[1]
    assert inflated(blobs["prompt-0"]) == block
    prompts = json.loads(block)
    assert len(prompts) == columns["prompt"].max() + 1
    assert len(json.loads(ask(served, "/excerpts?run=0&source=0")[1])) == len(prompts)
    assert json.loads(ask(served, "/summary")[1])["runs"][0]["sources"][1]["name"] == "held_out"


def inflated(blob):
    return gzip.decompress(base64.b64decode(blob))


def fresh(folder):
    source = CompletionSource(folder, "training", list(WEIGHTS))
    source.refresh()
    return source


def assert_same(one, two):
    assert (
        one.rows == two.rows
        and one.index.excerpts == two.index.excerpts
        and one.index.entries == two.index.entries
    )
    assert set(one.columns) == set(two.columns)
    for name, (_, values) in two.columns.items():
        np.testing.assert_array_equal(one.columns[name][1], values, err_msg=name)
    chunks = range(-(-two.rows // CHUNK))
    assert [one.texts(c) for c in chunks] == [two.texts(c) for c in chunks]


@pytest.mark.parametrize("segment_bytes", [3_000, 12_000, 8 << 20])
def test_a_source_that_follows_a_run_holds_what_a_fresh_one_holds(tmp_path, monkeypatch, segment_bytes):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (segment_bytes,))
    writer = open_writer(tmp_path / "record", STORY)
    following = fresh(tmp_path / "record")
    for step in range(1, 31):
        record_step(writer, STORY, step)
        if step % 3 == 0:
            following.refresh()
            assert_same(following, fresh(tmp_path / "record"))
    writer.close()
    following.refresh()
    assert following.rows == 360
    assert_same(following, fresh(tmp_path / "record"))


@pytest.mark.parametrize("segment_bytes", [3_000, 8 << 20])
@pytest.mark.parametrize("after", [0, 5, 11])
def test_a_source_that_follows_a_run_notices_a_resume(tmp_path, monkeypatch, segment_bytes, after):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (segment_bytes,))
    writer = open_writer(tmp_path / "record", STORY)
    for step in range(1, 13):
        record_step(writer, STORY, step)
    following = fresh(tmp_path / "record")
    other = replace(STORY, seed=1)
    writer = open_writer(tmp_path / "record", other, resume_step=after)
    for step in range(after + 1, 20):
        record_step(writer, other, step)
    following.refresh()
    assert_same(following, fresh(tmp_path / "record"))


def test_an_evaluation_that_comes_later_becomes_a_source(tmp_path):
    writer = open_writer(tmp_path / "record", STORY)
    record_step(writer, STORY, 1)
    server = ReportServer([tmp_path], port=0)
    assert [s["name"] for s in server.data()["runs"][0]["sources"]] == ["training"]
    record_evaluation(writer, STORY, 1)
    assert [s["name"] for s in server.data()["runs"][0]["sources"]] == ["training", "held_out"]
    server.server_close()
