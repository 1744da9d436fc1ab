"""The page in a real browser: it opens, draws, filters, pages, obeys the keyboard, and shows texts as texts."""

import json
import math
import random
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import covey.runs
from covey.runs.report import write_report
from covey.runs.report.page import assets
from covey.runs.report.server import ReportServer
from covey.text.foreign import visible
from tests.runs.report.conftest import Browser
from tests.runs.synthetic import (
    HOSTILE,
    Story,
    batch,
    metrics,
    open_writer,
    record_evaluation,
    record_step,
    write_run,
)

VIEWS = ("overview", "curves", "groups", "prompts", "evaluations", "failures", "hints", "run")
STORY = Story(
    steps=40,
    prompts_per_step=4,
    group_size=6,
    num_prompts=16,
    evaluate_every=10,
    eval_prompts=10,
    failure_rate=0.02,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "first" / "record", STORY)
    write_run(
        folder / "second" / "record", replace(STORY, seed=1, skill=0.5, kl_growth=1.2), end="interrupted"
    )
    write_report([folder / "first"], folder / "one.html")
    write_report([folder / "first", folder / "second"], folder / "two.html")
    return folder


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", ["one.html", "two.html"])
def test_every_view_draws_without_complaints_and_fits_every_window(browser: Browser, report, page, view):
    for width, dark in ((1400, False), (400, True)):
        browser.size(width, 900, dark)
        browser.open(report / page, view)
        browser.wait("return document.querySelector('main').textContent.length > 80")
        time.sleep(0.15)
        assert browser.do("return document.documentElement.scrollWidth") <= width
        assert browser.complaints() == []


def test_a_narrow_list_of_groups_shows_every_reward_and_names_the_columns_that_it_has(
    browser: Browser, report
):
    browser.size(400, 900, False)
    browser.open(report / "one.html", "groups")
    browser.wait("return document.querySelectorAll('.list-row .dots circle').length > 5")
    cut = "return [...document.querySelectorAll('.list-row .dots circle')].filter((c) => c.getBoundingClientRect().right > c.ownerSVGElement.getBoundingClientRect().right).length"
    assert browser.do(cut) == 0
    seen = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.getBoundingClientRect().width > 0).length"
    cells = browser.do(seen, ".list-row:first-child > *")
    assert browser.do(seen, ".column-names > *") == cells == 4
    browser.size(1400, 900, False)


def test_curves_are_drawn_with_their_intervals(browser: Browser, report):
    browser.open(report / "one.html", "curves")
    browser.wait("return document.querySelectorAll('path.line').length > 6")
    first = browser.do(
        "return [...document.querySelectorAll('.chart')].find(c => c.textContent.startsWith('reward')).querySelector('path.line').getAttribute('d')"
    )
    assert first.count("L") == STORY.steps - 1
    assert browser.do("return document.querySelectorAll('path.band').length") >= 3
    assert "NaN" not in browser.do(
        "return [...document.querySelectorAll('path')].map(p => p.getAttribute('d')).join()"
    )


def test_the_cursor_reads_all_charts_at_the_same_step(browser: Browser, report):
    browser.open(report / "one.html", "curves")
    browser.wait("return document.querySelectorAll('path.line').length > 6")
    browser.do("document.querySelector('.plot').focus()")
    readings = browser.wait(  # charts read the cursor once they are on the screen
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}));"
        "const shown = [...document.querySelectorAll('.reading-x')].map(n => n.textContent);"
        "return shown.length > 3 && shown"
    )
    assert set(readings) == {"step 1"}
    browser.press("\ue014", "\ue014")
    assert browser.wait(
        "const r = [...document.querySelectorAll('.reading-x')].map(n => n.textContent); return r[0] === 'step 3' && r"
    )


def test_metrics_are_found_by_name(browser: Browser, report):
    browser.open(report / "one.html", "curves")
    browser.press("/", "entropy")
    browser.wait("return document.querySelectorAll('.chart').length === 1")
    assert browser.text(".chart-title") == ["entropy"]


def test_filters_and_orders_of_groups_agree_with_the_record(browser: Browser, report):
    run = covey.runs.open(report / "first")
    frame, groups = run.completions(), run.groups()
    browser.open(report / "one.html", "groups")
    status = "return document.querySelector('.list-status').textContent"
    browser.wait("return document.querySelectorAll('.list-row').length > 5")
    assert browser.do(status) == f"{len(groups)} groups"

    best = groups.sort_values("signal", ascending=False).iloc[0]
    head = browser.wait("return document.querySelector('.detail h2').textContent")
    shown = groups[
        (groups["step"] == int(head.split()[1].rstrip(","))) & (groups["group"] == int(head.split()[-1]) - 1)
    ]
    assert shown["signal"].iloc[0] == pytest.approx(best["signal"], abs=1e-5)

    choose = "const s = document.querySelector(`select[title=\"${arguments[0]}\"]`); s.value = arguments[1]; s.dispatchEvent(new Event('change'))"
    browser.do(choose, "task", "code")
    wanted = int((groups["task"] == "code").sum())
    browser.wait(
        f"return document.querySelector('.list-status').textContent === '{wanted} of {len(groups)} groups'"
    )
    browser.do(choose, "rewards", "failed:style_model")
    hit = frame[(frame["task"] == "code") & (frame["status/style_model"] == "failed")]
    wanted = len(hit[["step", "group"]].drop_duplicates())
    assert wanted > 0
    browser.wait(
        f"return document.querySelector('.list-status').textContent === '{wanted} of {len(groups)} groups'"
    )


def test_a_link_leads_to_a_group_and_the_address_names_what_is_open(browser: Browser, report):
    browser.open(report / "one.html", "groups/5/2")
    browser.wait(
        "const head = document.querySelector('.detail h2'); return head && head.textContent === 'Step 5, group 2'"
    )
    browser.becomes("return location.hash", "#groups/5/2")


def test_every_chart_gives_its_points_as_a_table(browser: Browser, report):
    browser.open(report / "one.html", "curves")
    browser.wait("return document.querySelectorAll('path.line').length > 6")
    plot = "[...document.querySelectorAll('.chart')].find(c => c.textContent.startsWith('reward')).querySelector('.plot')"
    lines = browser.do(f"return {plot}.chart.csv()").splitlines()
    rewards = covey.runs.open(report / "first").steps()["reward"]
    assert lines[0] == '"series","step","value","low","high"' and len(lines) == len(rewards) + 1
    assert float(lines[1].split(",")[2]) == pytest.approx(rewards.iloc[0], rel=1e-5)


def test_texts_are_searched(browser: Browser, report):
    frame = covey.runs.open(report / "first").completions()
    browser.open(report / "one.html", "groups")
    browser.wait("return document.querySelectorAll('.list-row').length > 5")
    browser.do(
        "[...document.querySelectorAll('.choice button')].find(b => b.textContent === 'completions').click()"
    )
    browser.wait("return document.querySelector('.list-status').textContent.includes('completions')")
    browser.press("/", "Work BACKWARDS")
    wanted = int(frame["completion"].str.lower().str.contains("work backwards").sum())
    assert 0 < wanted < len(frame)
    browser.wait(
        f"return document.querySelector('.list-status').textContent === '{wanted} of {len(frame)} completions'"
    )


def test_the_same_prompt_is_shown_at_two_steps_with_what_changed(browser: Browser, report):
    browser.open(report / "one.html", "prompts")
    browser.wait("return document.querySelectorAll('.side-card .text').length === 2")
    before = browser.text(".side-card h3")
    steps = [int(h.split()[-1]) for h in before]
    assert steps[0] < steps[1]
    assert browser.do("return document.querySelectorAll('.text .gone, .text .new').length") > 0
    frame = covey.runs.open(report / "first").completions(steps=[steps[0]])
    texts = browser.do("return [...document.querySelectorAll('.side-card .text')].map(n => n.textContent)")
    assert texts[0] in set(frame["completion"])  # marks add and take nothing
    browser.do("document.querySelector('.strip-box').focus()")
    browser.press("\ue012")  # left: B one visit back
    browser.wait(
        f"return [...document.querySelectorAll('.side-card h3')].at(-1).textContent !== {json.dumps(before[1])}"
    )


def test_the_keyboard_goes_everywhere(browser: Browser, report):
    browser.open(report / "one.html")
    for number, view in enumerate(VIEWS, 1):
        browser.press(str(number))
        browser.becomes("return document.querySelector('[role=tab][aria-selected=true]').id", f"tab-{view}")
        # a view of groups names the one that is shown
        browser.becomes("return location.hash.split('/')[0]", f"#{view}")
    browser.press("3")
    browser.wait("return document.querySelectorAll('.list-row').length > 5")
    first = browser.wait("return document.querySelector('.detail h2')?.textContent")
    browser.press("j", "j")
    browser.becomes("return document.querySelector('[aria-selected=true][role=option]')?.ariaPosInSet", "3")
    browser.becomes(f"return document.querySelector('.detail h2').textContent === {json.dumps(first)}", False)
    browser.press("\ue010")  # end
    browser.wait(
        "return document.querySelector('[aria-selected=true][role=option]')?.ariaPosInSet === document.querySelector('[role=option]').ariaSetSize"
    )
    browser.press("?")
    browser.becomes("return document.querySelector('dialog')?.open", True)
    browser.press("\ue00c")
    browser.wait("return document.querySelector('dialog') === null")
    theme = "return getComputedStyle(document.documentElement).colorScheme"
    other = {"light": "dark", "dark": "light"}[browser.do(theme)]
    browser.press("t")
    browser.becomes(theme, other)


def test_everything_that_can_be_clicked_has_a_name(browser: Browser, report):
    for view in VIEWS:
        browser.open(report / "one.html", view)
        time.sleep(0.2)
        nameless = browser.do(
            "return [...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')]"
            ".filter(n => !(n.textContent.trim() || n.getAttribute('aria-label') || n.closest('label')?.textContent.trim()))"
            ".map(n => n.outerHTML.slice(0, 120))"
        )
        assert nameless == []


def test_runs_are_compared(browser: Browser, report):
    browser.open(report / "two.html")
    browser.becomes(
        "return [...document.querySelectorAll('table tbody tr td:first-child')].map(n => n.textContent)",
        ["first", "second"],
    )
    browser.becomes("return document.querySelector('.chart')?.querySelectorAll('path.line').length", 2)
    browser.do("document.querySelectorAll('.run-chip')[1].click()")
    browser.wait("return document.querySelector('.chart').querySelectorAll('path.line').length === 1")
    browser.view("run")
    browser.becomes(
        "return [...document.querySelectorAll('.settings tbody th')].map(n => n.textContent)", ["seed"]
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    story = Story(steps=9, prompts_per_step=4, group_size=3, hostile=True, evaluate_every=0, failure_rate=0.1)
    name = "<img src=x onerror=\"document.title='owned'\"> \u202egnp"
    settings = {"<b>": "<script>document.title='owned'</script>", "path": "\u202e" * 3}
    write_run(
        folder / "record", story, name=name, settings=settings, rewards={"accuracy": 1.0, "<i>x</i>": 1.0}
    )
    return write_report([folder], folder / "report.html"), folder


def test_no_text_becomes_markup_and_nothing_runs(browser: Browser, hostile):
    path, folder = hostile
    shown = set()
    for view in VIEWS:
        browser.open(path, view)
        time.sleep(0.3)
        assert (
            browser.do(
                "return document.querySelectorAll('#app img, #app script, #app b[onerror], #app iframe').length"
            )
            == 0
        )
        assert browser.complaints() == []
    browser.open(path, "groups")
    count = int(browser.wait("return document.querySelector('[role=option]')?.ariaSetSize"))
    for _ in range(count):
        browser.wait(
            "const texts = document.querySelectorAll('.card .text').length;"
            "return texts > 0 && texts === document.querySelectorAll('.card').length"
        )
        shown.update(browser.text(".card .text"))
        browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    title = "<img src=x onerror=\"document.title='owned'\"> ⟨U+202E⟩gnp"
    assert browser.do("return document.title") == title  # a script that ran would have changed it
    frame = covey.runs.open(folder).completions()
    for text in frame["completion"]:
        assert any(s.startswith(browser_text(text)[:2000]) for s in shown), text[:80]
    assert browser.complaints() == []


def browser_text(text):
    """What a browser's textContent holds of a text that the page shows: hidden characters as marks."""
    return visible(text).replace("⟨", "").replace("⟩", "")


def test_hidden_characters_are_marked_and_cannot_turn_the_line(browser: Browser, hostile):
    path, _ = hostile
    browser.open(path, "groups")
    browser.wait("return document.querySelectorAll('.list-row').length > 3")
    browser.press("/", "hidden")
    browser.wait("return document.querySelector('.list-status').textContent.includes(' of ')")
    browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    browser.wait(
        "return [...document.querySelectorAll('.card .hidden-mark')].some(m => m.textContent === 'U+202E')"
    )
    marks = set(browser.text(".card .hidden-mark"))
    assert {"U+202E", "U+2066", "U+200B", "ESC", "BEL", "NUL"} <= marks
    # Behind a right-to-left override that were obeyed, "000,1" would stand to the left of what precedes it.
    order = browser.do(
        "const card = [...document.querySelectorAll('.card .text')].find(n => n.textContent.includes('000,1'));"
        "const span = card.querySelector('span'), find = (word) => { for (const node of span.childNodes) {"
        " const at = node.nodeType === 3 ? node.data.indexOf(word) : -1; if (at >= 0) { const r = document.createRange();"
        " r.setStart(node, at); r.setEnd(node, at + word.length); return r.getBoundingClientRect().left; } } };"
        "return [find('total is'), find('000,1')]"
    )
    assert order[0] < order[1]


def test_a_line_of_200_000_characters_is_shown_in_parts_and_breaks(browser: Browser, hostile):
    path, _ = hostile
    browser.open(path, "groups")
    browser.wait("return document.querySelectorAll('.list-row').length > 3")
    browser.press("/", "xxxxxxxxxxxx")
    browser.wait("return document.querySelector('.list-status').textContent.includes(' of ')")
    begin = time.monotonic()
    browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    browser.wait(
        "return [...document.querySelectorAll('.card .text')].some(n => n.textContent.includes('show more (188,000 characters left)'))"
    )
    assert time.monotonic() - begin < 2
    assert browser.do("return document.documentElement.scrollWidth") <= 1400
    assert browser.do("const d = document.querySelector('.detail'); return d.scrollWidth <= d.clientWidth")
    browser.do("document.querySelector('.card .text .link').click()")
    browser.wait(
        "return [...document.querySelectorAll('.card .text')].some(n => n.textContent.length > 50000)"
    )


def test_the_marks_of_the_page_are_those_of_the_terminal(browser: Browser, report):
    browser.open(report / "one.html")
    source = assets()[0]
    start = source.index("// Makes visible what a text hides")
    code = source[start : source.index("// Numbers as people read them.")]
    rng = random.Random(0)
    texts = [
        *HOSTILE[:2],
        *HOSTILE[4:],
        *(
            "".join(
                chr(
                    rng.choice(
                        [
                            rng.randrange(0x250),
                            rng.randrange(0x2000, 0x2100),
                            rng.randrange(0xD800, 0x10000),
                            rng.randrange(0xE0000, 0xE1000),
                        ]
                    )
                )
                for _ in range(20)
            )
            for _ in range(200)
        ),
    ]
    pairs = [t.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") for t in texts]
    shown = [
        browser.do(code + "return visible(String.fromCharCode(...arguments[0]))", _units(t)) for t in pairs
    ]
    assert shown == [browser_text(t) for t in pairs]


def _units(text):
    data = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def test_what_is_marked_as_changed_adds_up_to_both_texts(browser: Browser, report):
    browser.open(report / "one.html")
    source = assets()[0]
    code = source[
        source.index("// What changed between two texts") : source.index("// Pieces that several views")
    ]
    rng = random.Random(1)
    pairs = [["".join(rng.choices("ab c.\n", k=rng.randrange(14))) for _ in range(2)] for _ in range(400)]
    found = browser.do(code + "return arguments[0].map(([a, b]) => difference(a, b))", pairs)
    for (a, b), parts in zip(pairs, found, strict=True):
        assert "".join(text for _, text in parts["a"]) == a and "".join(text for _, text in parts["b"]) == b
        assert {kind for kind, _ in parts["a"]} <= {"same", "gone"} and {kind for kind, _ in parts["b"]} <= {
            "same",
            "new",
        }
    assert browser.do(code + "return difference('one two three', 'one 2 three')") == {
        "a": [["same", "one "], ["gone", "two"], ["same", " three"]],
        "b": [["same", "one "], ["new", "2"], ["same", " three"]],
    }
    far = browser.do(
        code
        + "const r = () => Array.from({length: 5000}, () => Math.random().toString(36).slice(2, 6)).join(' '); const t = performance.now(); difference(r(), r()); return performance.now() - t"
    )
    assert far < 3000


def test_smoothed_intervals_cover_the_truth_as_often_as_they_say(browser: Browser, report):
    browser.open(report / "one.html")
    source = assets()[0]
    code = source[source.index("// Smoothing, ranges and ticks") : source.index("/** Width of the Gaussian")]
    quantiles = browser.do(code + "return [1, 2, 3, 4, 7, 30, 120].map(studentQuantile)")
    assert quantiles == pytest.approx([12.706, 4.303, 3.182, 2.776, 2.365, 2.042, 1.980], rel=2e-3)
    rng = np.random.default_rng(0)
    covered = {0: 0, 2: 0}
    for _ in range(300):
        groups = rng.normal(0.5, 0.3, (21, 3))  # 21 steps of 3 groups each around 0.5
        errors = {"se": (groups.std(axis=1, ddof=1) / math.sqrt(3)).tolist(), "degrees": [2] * 21}
        for sigma in covered:
            found = browser.do(
                code + "return smoothed(...arguments)", groups.mean(axis=1).tolist(), errors, sigma
            )
            covered[sigma] += abs(found["values"][10] - 0.5) <= found["halves"][10]
    assert 0.92 <= covered[0] / 300 <= 0.98 and 0.92 <= covered[2] / 300 <= 0.98


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    story = Story(
        steps=1000, prompts_per_step=10, group_size=10, num_prompts=400, evaluate_every=0, sentences=2
    )
    writer, batches = open_writer(folder / "record", story), [batch(story, 25 * i + 1) for i in range(40)]
    for step in range(1, story.steps + 1):
        groups = batches[(step - 1) // 25]
        statistics = writer.groups(step, groups)
        writer.step(step, metrics(story, step, groups, statistics))
    writer.close()
    return write_report([folder], folder / "report.html")


SCROLL = """
const done = arguments[0], list = document.querySelector('.list'), gaps = [], frames = 120;
let last = performance.now(), n = 0;
const step = (now) => {
  gaps.push(now - last);
  last = now;
  list.scrollTop = (n / frames) * list.scrollHeight;
  if (n++ < frames) requestAnimationFrame(step);
  else done({median: gaps.sort((a, b) => a - b)[frames / 2], worst: gaps[gaps.length - 1], rows: document.querySelectorAll('.list-row').length});
};
requestAnimationFrame(step);
"""


def test_a_thousand_steps_and_100_000_completions_open_at_once_and_page_without_freezing(
    browser: Browser, large
):
    browser.open(large)
    drawn = "return document.querySelectorAll('path.line').length > 3 && performance.now()"
    assert browser.wait(drawn) < 2000  # milliseconds since the page was asked for
    browser.view("groups")
    browser.wait("return document.querySelectorAll('.card .text').length > 3")
    browser.do(
        "[...document.querySelectorAll('.choice button')].find(b => b.textContent === 'completions').click()"
    )
    browser.wait("return document.querySelector('.list-status').textContent === '100,000 completions'")
    found = browser.do_async(SCROLL)
    assert found["rows"] < 80
    assert found["median"] < 60 and found["worst"] < 1000  # a frozen page stands still for seconds
    browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
    browser.wait(
        "return document.querySelector('[aria-selected=true][role=option]')?.ariaPosInSet === '100000'"
    )
    browser.wait("return document.querySelectorAll('.card .text').length > 3")
    assert browser.complaints() == []


def test_a_page_that_leaves_texts_out_says_so(browser: Browser, tmp_path):
    write_run(tmp_path / "record", replace(STORY, evaluate_every=0))
    browser.open(write_report([tmp_path], tmp_path / "small.html", max_megabytes=0.03), "groups")
    status = browser.wait(
        "const t = document.querySelector('.list-status')?.textContent; return t?.includes('left out') && t"
    )
    assert "completions left out for the size of this file" in status
    browser.do(
        "const s = document.querySelector('select[title=order]'); s.value = 'step'; s.dispatchEvent(new Event('change'))"
    )
    browser.wait("return document.querySelectorAll('.list-row').length > 5")
    browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    assert browser.wait(
        "return [...document.querySelectorAll('.card')].some(c => c.textContent.includes('not in this file'))"
    )


def test_a_run_that_has_not_begun_has_words_instead_of_curves(browser: Browser, tmp_path):
    open_writer(tmp_path / "record", STORY)
    path = write_report([tmp_path], tmp_path / "empty.html")
    expected = {
        "groups": "no group yet",
        "prompts": "Nothing is recorded",
        "evaluations": "No evaluation yet",
        "failures": "No reward has failed",
        "hints": "Nothing found",
        "curves": "Nothing has been logged",
    }
    for view in VIEWS:
        browser.open(path, view)
        if view in expected:
            browser.wait(
                f"return document.querySelector('main').textContent.includes({json.dumps(expected[view])})"
            )
        assert browser.complaints() == []


def test_the_live_page_follows_a_run(browser: Browser, tmp_path):
    writer = open_writer(tmp_path / "record", STORY)
    for step in range(1, 4):
        record_step(writer, STORY, step)
    server = ReportServer([tmp_path], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.open(server.url, "groups")
        browser.wait("return document.querySelector('.list-status').textContent === '12 groups'")
        browser.do("document.querySelector('.list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
        chosen = browser.do("return document.querySelector('.detail h2').textContent")
        for step in range(4, 9):
            record_step(writer, STORY, step)
        record_evaluation(writer, STORY, 8)
        browser.wait("return document.querySelector('.list-status').textContent === '32 groups'")
        assert (
            browser.do("return document.querySelector('.detail h2').textContent") == chosen
        )  # nobody is interrupted
        assert "step 8 of 40" in browser.do("return document.querySelector('.run-head').textContent")
        browser.view("evaluations")
        browser.wait("return document.querySelector('main').textContent.includes('held_out')")
        writer.close("interrupted")
        browser.wait("return document.querySelector('.state').textContent === 'interrupted'")
        assert browser.complaints() == []
    finally:
        server.shutdown()
        server.server_close()


def test_servers_stand_in_the_head_and_their_numbers_in_a_panel(browser: Browser, tmp_path):
    writer = open_writer(tmp_path / "record", STORY)
    writer.engine({"kind": "vllm", "release": "0.33.0", "urls": ["http://a:8000", "http://b:8000"]})
    for step in range(1, 8):
        statistics = writer.groups(step, groups := batch(STORY, step))
        numbers = {f"engine/tokens/{n}": 900.0 + 100 * n + step for n in (0, 1)}
        numbers |= {f"engine/sync/{part}": 0.1 * step for part in ("gather", "write", "load")}
        numbers |= {"engine/sync_seconds": 0.3 * step, "async/lag": 1.0, "sampling/ess": 0.5 + step / 100}
        writer.step(step, metrics(STORY, step, groups, statistics) | numbers)
    path = write_report([tmp_path], tmp_path / "page.html")
    browser.open(path, "run")
    browser.wait("return document.querySelector('main').textContent.includes('http://b:8000')")
    assert "sampled by vllm 0.33.0 on 2 servers" in browser.do(
        "return document.querySelector('.run-head').textContent"
    )
    browser.open(path, "curves")
    browser.wait("return document.querySelectorAll('path.line').length > 6")
    text = browser.do("return document.querySelector('main').textContent")
    assert "who waits for whom" in text and "effective sample size" in text
    assert "tokens a round, by server" in text and "server 1" in text and "sending weights" in text
    assert browser.complaints() == []
