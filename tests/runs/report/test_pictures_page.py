"""Pictures on the page: inside it as far as they fit, links beyond, nothing that another file says; and live."""

import base64
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="pictures need the extra `vision`")

import covey.runs.report
from covey.runs.record.picture_files import read_thumbnail
from covey.runs.record.rows import table
from covey.runs.report import page as page_module
from covey.runs.report import write_report
from covey.runs.report.columns import ColumnIndex, number_columns
from covey.runs.report.server import ReportServer
from tests.clocks import PATIENCE
from tests.runs.episodes import write_episodes
from tests.runs.pictured import asked, painting, photo, pictured
from tests.runs.report.test_page import Page, unpack
from tests.runs.report.test_server import ask

EVIL = "</script><img src=x onerror=alert(1)>\u202e"


def groups():
    told = {
        "prompt": asked({"type": "image"}, {"type": "text", "text": EVIL}, {"type": "image"}),
        "images": [photo(0), photo(1)],
    }
    return [pictured(told, 0), pictured({"prompt": f"<image> {EVIL}", "images": [photo(2)]}, 1)]


def digests(found):
    return [p.digest for g in found for p in g.group.prompt.pictures]


def report(folder, **options):
    path = write_report([folder], folder / "report.html", **options)
    return Page(path.read_text(encoding="utf-8"))


def held(page):
    return {
        name.rpartition("-")[2]: base64.b64decode(data)
        for name, data in page.scripts.items()
        if "-picture-" in name
    }


def test_the_page_holds_each_picture_once_and_names_no_address(tmp_path):
    found = groups()
    record = write_episodes(tmp_path, found, found, record_pictures="full")
    page = report(tmp_path)
    assert held(page) == {d: (record / "pictures" / f"{d}.webp").read_bytes() for d in digests(found)}
    assert page.data["runs"][0]["pictures"] == "./record/pictures"
    assert not any(set(attributes) & {"src", "href"} for _, attributes in page.tags)
    assert "img-src data:;" in page.meta["Content-Security-Policy"]
    assert {tag for tag, _ in page.tags} & {"img", "a"} == set()


def test_what_does_not_fit_is_linked(tmp_path, monkeypatch):
    found = groups()
    record = write_episodes(tmp_path, found)
    sizes = [len(read_thumbnail(record, d)) * 4 / 3 for d in digests(found)]
    monkeypatch.setattr(page_module, "PICTURE_MEGABYTES", (sizes[0] + sizes[1] + 20) / 1e6)
    page = report(tmp_path)
    assert list(held(page)) == digests(found)[:2]
    nodes = [node for prompt in drawn(tmp_path, page) for node in prompt["nodes"]]
    assert [tag for tag, _ in nodes] == ["img", "img", "a"]
    assert nodes[2][1]["href"] == f"./record/pictures/{digests(found)[2]}.webp"
    assert (tmp_path / nodes[2][1]["href"]).exists(), "as seen from the page"


def test_a_run_without_pictures_has_none(tmp_path):
    write_episodes(tmp_path, groups(), record_pictures="none")
    page = report(tmp_path)
    assert held(page) == {} and page.data["runs"][0]["pictures"] is None
    assert [prompt["nodes"] for prompt in drawn(tmp_path, page)] == [[], []]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"<svg onload='alert(1)'/>",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\x04\x00\x00\x00WEBPmore",
        b"RIFF\x04\x00\x00\x00WAVE",
        b"FORM\x04\x00\x00\x00WEBP",
        bytes(2**21),
    ],
)
def test_a_file_that_is_no_thumbnail_is_not_held(tmp_path, other):
    found = groups()
    record = write_episodes(tmp_path, found)
    (record / "pictures" / f"{digests(found)[1]}.webp").write_bytes(other)
    assert list(held(report(tmp_path))) == [digests(found)[0], digests(found)[2]]


def test_a_digest_that_leads_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "elsewhere.webp").write_bytes(b"RIFF\x04\x00\x00\x00WEBP")
    scored = groups()[0]
    record = write_episodes(tmp_path, [scored])
    [segment] = (record / "groups").iterdir()
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(segment)
    for wrong in ("../../elsewhere", "/etc/passwd", EVIL, ""):
        text = json.dumps([{"digest": wrong, "size": ["a", None]}])
        column = rows.column_names.index("pictures")
        pq.write_table(rows.set_column(column, "pictures", pa.array([text] * 3)), segment)
        assert held(report(tmp_path)) == {}
        with pytest.raises(ValueError, match="no digest"):
            read_thumbnail(record, wrong)


def test_the_list_of_prompts_says_which_picture():
    found = groups()
    from covey.runs.record.group_lines import group_line

    index = ColumnIndex()
    number_columns(table([group_line(1, i, g, None, True) for i, g in enumerate(found)]), [], index)
    first, second = digests(found)[:2]
    assert (
        index.excerpts[0].startswith(f"[picture 400×300 {first[:4]}] </script>")
        and second[:4] in index.excerpts[0]
    )
    same_text = [pictured({"prompt": "<image>", "images": [painting(i)]}, 0) for i in range(2)]
    number_columns(
        table([group_line(1, i, g, None, True) for i, g in enumerate(same_text)]), [], index := ColumnIndex()
    )
    assert len(index.entries) == 2, "two pictures, one text"


def drawn(folder, page):
    """What the page's own scripts make of its prompts, by Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    directory, columns = unpack(page.blob("b0-0-numbers"))
    given = {
        "data": page.data, "texts": json.loads(page.blob("b0-0-text-0")), "directory": directory, "blocks": page.scripts,
        "prompts": json.loads(page.blob("b0-0-prompt-0")),
        "columns": {name: [None if v != v else v for v in values.tolist()] for name, values in columns.items()},
    }  # fmt: skip
    file = folder / "page.json"
    file.write_text(json.dumps(given))
    scripts = Path(covey.runs.report.__file__).parent / "page"
    command = [node, str(Path(__file__).parent / "dom.js"), str(scripts), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["prompts"]


def test_pictures_stand_where_the_prompt_has_them_and_texts_stay_texts(tmp_path):
    found = groups()
    record = write_episodes(tmp_path, found)
    chat, plain = drawn(tmp_path, report(tmp_path))
    sources = [
        "data:image/webp;base64," + base64.b64encode(read_thumbnail(record, d)).decode()
        for d in digests(found)
    ]
    assert [attributes["src"] for _, attributes in chat["nodes"]] == sources[:2]
    assert [attributes["src"] for _, attributes in plain["nodes"]] == sources[2:]
    assert chat["nodes"][0][1]["alt"] == f"[picture 400×300 {digests(found)[0][:4]}]"
    assert "onerror" in chat["text"] and set(chat["tags"]) <= {"div", "span", "img"}


def test_the_server_gives_pictures_by_their_digests(tmp_path):
    found = groups()
    record = write_episodes(tmp_path, found)
    server = ReportServer([tmp_path], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        response, body = ask(server, f"/picture?run=0&source=0&digest={digests(found)[0]}")
        assert base64.b64decode(body) == read_thumbnail(record, digests(found)[0])
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        for digest, status in ((64 * "0", 404), ("..%2f..%2frun", 400), ("", 400)):
            assert ask(server, f"/picture?run=0&source=0&digest={digest}")[0].status == status
    finally:
        server.shutdown()
        server.server_close()
