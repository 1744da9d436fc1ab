"""The file that `covey report` writes: whole in itself, safe against what stands in it, bounded in size."""

import base64
import gzip
import hashlib
import json
import re
import struct
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import covey.runs
from covey.rewards.reserved import FAMILIES
from covey.runs.report import write_report
from covey.runs.report.columns import STATUSES, pack
from covey.runs.report.page import assets, script_json
from tests.runs.synthetic import HOSTILE, Story, open_writer, write_run

STORY = Story(steps=12, prompts_per_step=4, group_size=4, evaluate_every=4, eval_prompts=8)


class Page(HTMLParser):
    """A page as a browser's parser sees it: elements, and what scripts hold."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.tags, self.scripts, self.meta, self._open = [], {}, {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._open = dict(attributes).get("id") or tag
            self.scripts.setdefault(self._open, "")
        if tag == "meta" and "http-equiv" in dict(attributes):
            self.meta[dict(attributes)["http-equiv"]] = dict(attributes)["content"]

    def handle_data(self, data):
        if self._open:
            self.scripts[self._open] += data

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._open = None

    def blob(self, name):
        return gzip.decompress(base64.b64decode(self.scripts[name]))

    @property
    def data(self):
        return json.loads(self.scripts["data"])


def unpack(block):
    """A packed block, read by the description in `pack` alone."""
    (size,) = struct.unpack("<I", block[:4])
    directory = json.loads(block[4 : 4 + size])
    kinds = {"i4": "<i4", "f4": "<f4", "u1": "u1"}
    columns = {}
    for name, kind, offset, length in directory["columns"]:
        assert (4 + size + offset) % 4 == 0
        columns[name] = np.frombuffer(block, kinds[kind], length, 4 + size + offset)
    return directory, columns


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    name = "</title><script>alert(1)</script>"
    settings = {"note": "</script><script>document.title='owned'</script>\u2028"}
    write_run(folder / "record", replace(STORY, hostile=True, failure_rate=0.1), name=name, settings=settings)
    return folder, Page(write_report([folder], folder / "report.html").read_text(encoding="utf-8"))


def test_nothing_hostile_becomes_an_element(hostile):
    _, page = hostile
    kinds = [(tag, attributes.get("type")) for tag, attributes in page.tags]
    assert kinds.count(("script", None)) == 1  # ours
    assert {kind for tag, kind in kinds if tag == "script"} == {None, "application/json", "text/plain"}
    assert {tag for tag, _ in page.tags} == {
        "html", "head", "meta", "title", "style", "body", "noscript", "div", "script",
    }  # fmt: skip
    assert page.data["runs"][0]["name"] == "</title><script>alert(1)</script>"


def test_the_data_element_holds_no_character_that_a_parser_acts_on(hostile):
    _, page = hostile
    assert not set("<>&\u2028\u2029") & set(page.scripts["data"])


@pytest.mark.parametrize("text", [*HOSTILE, "<!--", "-->", "]]>", "&lt;", "</SCRIPT >"])
def test_script_json_says_the_same_as_json(text):
    escaped = script_json({"text": text})
    assert json.loads(escaped) == {"text": text} and not set("<>&\u2028\u2029") & set(escaped)


def test_the_policy_allows_our_script_and_style_by_their_hashes_and_nothing_else(hostile):
    _, page = hostile
    policy = dict(part.strip().split(" ", 1) for part in page.meta["Content-Security-Policy"].split(";"))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(page.scripts[element].encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert (
        policy["default-src"]
        == policy["connect-src"]
        == policy["base-uri"]
        == policy["form-action"]
        == "'none'"
    )


def test_the_page_names_no_address(hostile):
    _, page = hostile
    ours = page.scripts["script"].replace("http://www.w3.org/2000/svg", "") + page.scripts["style"]
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", ours)
    assert not any(set(attributes) & {"src", "href", "action"} for _, attributes in page.tags)


def test_the_scripts_never_make_markup_or_code_of_a_text(hostile):
    _, page = hostile
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment|"
        r"DOMParser|srcdoc|setTimeout\(['\"`]|\.on(click|error|load)\s*="
    )
    assert not re.search(forbidden, page.scripts["script"])


def test_every_completion_is_in_the_page(hostile):
    folder, page = hostile
    run = covey.runs.open(folder)
    frame = run.completions()
    directory, columns = unpack(page.blob("b0-0-numbers"))
    assert directory["rows"] == len(frame) == 12 * 4 * 4
    for name in ("step", "group", "index", "row", "tokens", "prompt_tokens"):
        assert (columns[name] == frame[name]).all(), name
    np.testing.assert_allclose(columns["advantage"], frame["advantage"], rtol=1e-6)
    for reward in run.rewards:
        np.testing.assert_allclose(
            columns[f"score/{reward}"], frame[f"score/{reward}"].astype("f4"), rtol=1e-6
        )
        assert [STATUSES[s] for s in columns[f"status/{reward}"]] == list(frame[f"status/{reward}"])
    facts = page.data["runs"][0]["sources"][0]
    texts = [e for i in range(facts["textChunks"]) for e in json.loads(page.blob(f"b0-0-text-{i}"))]
    assert [e["text"] for e in texts] == list(frame["completion"])
    prompts = [e for i in range(facts["promptChunks"]) for e in json.loads(page.blob(f"b0-0-prompt-{i}"))]
    assert [json.dumps(prompts[p]["prompt"]) for p in columns["prompt"]] == [
        json.dumps(json.loads(p)) for p in frame["prompt"]
    ]
    failed = [e for e in texts if "error" in e]
    assert failed and all("TimeoutError" in e["error"]["style_model"] for e in failed)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 1001])
def test_packed_columns_come_back_whatever_their_length(rows):
    rng = np.random.default_rng(rows)
    columns = {
        "small": ("u1", rng.integers(0, 255, rows)), "whole": ("i4", rng.integers(-9, 9, rows)),
        "odd": ("u1", rng.integers(0, 9, rows)), "real": ("f4", rng.normal(size=rows)),
    }  # fmt: skip
    directory, found = unpack(pack(columns, rows=rows, note="ü"))
    assert directory["rows"] == rows and directory["note"] == "ü" and list(found) == list(columns)
    for name, (_, values) in columns.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


def test_evaluations_are_sources_of_completions_too(hostile):
    _, page = hostile
    names = [s["name"] for s in page.data["runs"][0]["sources"]]
    assert names == ["training", "held_out"]
    _, columns = unpack(page.blob("b0-1-numbers"))
    assert sorted(set(columns["step"])) == [0, 4, 8, 12] and len(columns["step"]) == 4 * 8 * 4


def test_a_page_over_its_limit_keeps_whole_groups_of_evenly_spread_steps_and_says_so(tmp_path):
    story = replace(STORY, steps=60, evaluate_every=0)
    write_run(tmp_path / "record", story)
    whole = write_report([tmp_path], tmp_path / "whole.html").stat().st_size
    limit = 0.045
    path = write_report([tmp_path], tmp_path / "small.html", max_megabytes=limit)
    page = Page(path.read_text(encoding="utf-8"))
    facts = page.data["runs"][0]["sources"][0]
    blobs = sum(len(v) for k, v in page.scripts.items() if k.startswith("b0-"))
    assert blobs <= limit * 1e6 and path.stat().st_size < whole
    _, columns = unpack(page.blob("b0-0-numbers"))
    kept = {int(s) for s, t in zip(columns["step"], columns["text"], strict=True) if t == 1}
    left_out = {int(s) for s, t in zip(columns["step"], columns["text"], strict=True) if t == 2}
    assert not kept & left_out and kept | left_out == set(range(1, 61)) and 60 in kept
    assert facts["leftOut"] == 16 * len(left_out) > 0 and facts["rows"] == 960
    gaps = np.diff(sorted({0, *kept}))
    assert gaps.max() - gaps.min() <= 1


def test_texts_that_were_not_recorded_are_told_from_those_left_out(tmp_path):
    write_run(tmp_path / "record", STORY, record_completions="none")
    page = Page(write_report([tmp_path], tmp_path / "r.html").read_text(encoding="utf-8"))
    _, columns = unpack(page.blob("b0-0-numbers"))
    assert set(columns["text"]) == {0} and len(columns["text"]) == 192
    assert "Using the numbers" not in page.blob("b0-0-excerpts").decode()


def test_a_run_that_has_just_begun_and_several_runs_make_a_page(tmp_path):
    open_writer(tmp_path / "new" / "record", STORY)
    write_run(tmp_path / "done" / "record", STORY)
    page = Page(
        write_report([tmp_path / "new", tmp_path / "done"], tmp_path / "r.html").read_text(encoding="utf-8")
    )
    assert [run["name"] for run in page.data["runs"]] == ["new", "done"]
    assert page.data["runs"][0]["curves"]["steps"] == [] and page.data["runs"][0]["state"] == "running"
    assert unpack(page.blob("b0-0-numbers"))[0]["rows"] == 0


def test_equal_records_make_equal_pages(tmp_path):
    write_run(tmp_path / "record", STORY)
    pages = [write_report([tmp_path], tmp_path / f"{i}.html").read_text(encoding="utf-8") for i in range(2)]
    assert re.sub(r'"written":[\d.]+', "", pages[0]) == re.sub(r'"written":[\d.]+', "", pages[1])


def test_no_number_of_covey_is_drawn_among_those_of_rewards_and_callbacks():
    panels = dict(re.findall(r"\['(\w+)', '[^']*', /(.*)/\],", assets()[0]))
    assert panels.pop("Other") == "."
    patterns = [re.compile(pattern.replace(r"\/", "/")) for pattern in panels.values()]
    assert len(patterns) > 4 and not [f for f in FAMILIES if not any(p.search(f"{f}/x") for p in patterns)]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No run record"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(ValueError, match="no run"):
        write_report([], tmp_path / "r.html")
    write_run(tmp_path / "record", replace(STORY, steps=1))
    with pytest.raises(ValueError, match="above 0"):
        write_report([tmp_path], tmp_path / "r.html", max_megabytes=0)
