"""Text of others has one way out at every door: nothing hidden reaches a terminal, and no markup is obeyed anywhere.

Others are the policy, the dataset, rewards, servers, files, models and exceptions of all these. A door is a place where
Covey's words leave it; each has a row here. What opens a new door adds a row.
"""

from __future__ import annotations

import ast
import io
import json
import re
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from transformers import TrainerCallback

import covey
from covey.cli import arguments, main
from covey.config import GRPOConfig
from covey.errors import CoveyWarning, DatasetError, RewardError, warn
from covey.rewards import Failure, Judge, Mixture, OpenAIClient, reward
from covey.rewards.check.report import CheckReport, RewardStatistics
from covey.runs.hints.hint import Hint
from covey.runs.record import tables
from covey.runs.record.completions_jsonl import completion_rows
from covey.runs.report import cell
from covey.runs.report.page import document
from covey.runs.terminal.display import Display
from covey.text.foreign import show, visible
from covey.trainer import notebook
from covey.trainer.model_card import model_card
from covey.types import Completion, Group, Picture, Prompt, Score, ScoredGroup
from tests.runs.episodes import Told, episodes, write_episodes
from tests.runs.episodes import call as tool_call
from tests.runs.synthetic import Story, batch, with_advantages, write_run
from tests.tiny import tiny_policy
from tests.trainer.harness import rows as prompts
from tests.trainer.harness import train

WORD = "zebra"
"""Stands in every hostile text, so that a door that shows nothing of it is not taken for a door that holds."""
MARKUP = "[bold]x[/bold] <script>alert(1)</script> <img src=x onerror=y> ![p](http://h/p.png) **b** `c` | d"
HOSTILE = f"{WORD} \x1b]0;owned\x07\x1b[31m \x9b31m \x00\x08\x7f\r \u202e\u2066\u200b\u2028\ufeff\U000e0041 \ud800 {MARKUP}"
LONG = f"{WORD} " + HOSTILE * 5_000


def printed(action: Callable[[], object]) -> str:
    """What an action prints, on a terminal that has ASCII alone and raises for all else."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with redirect_stdout(out), redirect_stderr(out):
        action()
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode("ascii")


def drawn(action: Callable[[Console], object]) -> str:
    """What an action draws with rich, on a terminal that obeys: its own colours are left out."""
    out = io.StringIO()
    action(Console(file=out, width=400, force_terminal=True, color_system=None, highlight=False))
    return out.getvalue()


# --- the command line ---------------------------------------------------------------------------------------------------


def verb_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> str:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr("covey.cli.verbs.recipes.run", run)
    return printed(lambda: main(["recipes"]))


def error_of_a_verb(text: str, here: SimpleNamespace) -> str:
    return verb_that_raises(here.patch, DatasetError(text))


def crash_of_a_verb(text: str, here: SimpleNamespace) -> str:
    return verb_that_raises(here.patch, ValueError(text))


def reward_that_raised_under_a_verb(text: str, here: SimpleNamespace) -> str:
    error = RewardError("a reward raised")
    try:
        exec("raise ValueError(text)", {"text": text})
    except ValueError as cause:
        error.__cause__ = cause
    return verb_that_raises(here.patch, error)


def warning_of_another_library(text: str, here: SimpleNamespace) -> str:
    return printed(lambda: arguments.show_warning(UserWarning(text), UserWarning, "file.py", 1))


def unknown_option(text: str, here: SimpleNamespace) -> str:
    return printed(lambda: main(["recipes", f"--{text}"]))


def unknown_verb(text: str, here: SimpleNamespace) -> str:
    return printed(lambda: main([text]))


def hints_of(text: str) -> SimpleNamespace:
    hint = Hint("rule", "problem", f"{text}.", text, (text,), (f"rewards/{text}",), text, 1, 2)
    return SimpleNamespace(hints=[hint], history=SimpleNamespace(length=2), holds=lambda hint: True)


def doctor(text: str, here: SimpleNamespace) -> str:
    from covey.cli.verbs.doctor import print_hints

    here.patch.setattr(
        "rich.console.Console",
        lambda **_: Console(file=here.out, width=400, force_terminal=True, color_system=None),
    )
    print_hints(text, "finished", hints_of(text))  # type: ignore[arg-type]
    return str(here.out.getvalue()).replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")


def doctor_as_json(text: str, here: SimpleNamespace) -> str:
    here.patch.setattr("covey.runs.hints.watch_record", lambda folder: hints_of(text))
    found = printed(lambda: main(["doctor", str(here.record), "--json"]))
    assert WORD in json.loads(found)[0]["title"]
    return found


def generated(text: str, here: SimpleNamespace) -> str:
    """A line of `covey generate` on a terminal of UTF-8, where letters are written as they are."""
    from covey.text.foreign import write_json

    out = io.StringIO()
    write_json(json.dumps({"completion": text}, ensure_ascii=False), out)
    assert json.loads(out.getvalue()) == {"completion": text}
    return out.getvalue()


def evaluated(text: str, here: SimpleNamespace) -> str:
    from covey.cli.verbs.eval import print_tables
    from covey.recipes.measure import EvalScores

    scores = EvalScores(["p"], [text], [["c"]], {"reward": [[1.0]], text: [[1.0]]}, {})
    args = SimpleNamespace(model=text, dataset=text, against=text)
    here.patch.setattr("rich.console.Console", lambda **_: Console(file=here.out, width=400, soft_wrap=True))
    print_tables(args, {text: scores}, {})  # type: ignore[arg-type]
    return str(here.out.getvalue())


def check_report(text: str, here: SimpleNamespace) -> str:
    report = CheckReport(1, "stubs", rewards={text: RewardStatistics()})
    report.add("error", text, "check", text)
    return str(report)


def shown(text: str, here: SimpleNamespace) -> str:
    return printed(lambda: show(text))


# --- words to a script ----------------------------------------------------------------------------------------------------


def warning_of_ours(text: str, here: SimpleNamespace) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(text)
    return str(caught[0].message)


def error_of_ours(text: str, here: SimpleNamespace) -> str:
    return str(RewardError(text))


def first_failure_of_a_reward(text: str, here: SimpleNamespace) -> str:
    @reward(on_error="missing")
    def judge(completions: list[str], **_: object) -> list[Any]:
        return [Failure(text)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Mixture(judge)(prompts=["p"], completions=["c"])
    return "".join(str(w.message) for w in caught if issubclass(w.category, CoveyWarning))


def traceback_of_a_reward(text: str, here: SimpleNamespace) -> str:
    """What Python prints of a reward that raised, in a script."""

    def judge(completions: list[str], **_: object) -> list[float]:
        raise ValueError(text[:10_000])

    with pytest.raises(RewardError) as caught:
        Mixture(judge)(prompts=["p"], completions=["c"])
    return "".join(traceback.format_exception(caught.value))


def answer_of_a_server(text: str, here: SimpleNamespace) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = text.encode("utf-8", "surrogatepass")
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = OpenAIClient(f"http://127.0.0.1:{server.server_address[1]}/v1", "m", max_retries=0)
    [found] = Judge(client, {"criteria": [{"name": "c", "question": "?"}]})(["p"], ["c"])
    server.shutdown()
    server.server_close()
    assert isinstance(found, Failure)
    return found.reason


# --- a run on a terminal --------------------------------------------------------------------------------------------------

NUMBERS = {"reward": 1.0, "step_time": 1.0}


def plain_display(text: str, here: SimpleNamespace) -> str:
    def action(console: Console) -> None:
        display = Display(text, 3, name=text, rewards=[text], is_live=False, console=console)
        display.update(1, {**NUMBERS, f"rewards/{text}/mean": 1.0, f"tasks/{text}/reward": 1.0})
        display.evaluated(1, {f"eval_{text}_reward": 0.5})
        display.hint(text)

    return drawn(action)


def live_display(text: str, here: SimpleNamespace) -> str:
    groups = [
        replace(
            g, group=replace(g.group, completions=tuple(replace(c, text=text) for c in g.group.completions))
        )
        for g in batch(Story(), 1)
    ]

    def action(console: Console) -> None:
        display = Display(
            "", 3, name=text, rewards=[text], is_live=False, console=Console(file=io.StringIO())
        )
        display.update(1, {**NUMBERS, f"rewards/{text}/mean": 1.0, f"tasks/{text}/reward": 1.0}, groups)
        display.hint(text)
        console.print(display.render(200, 60))

    return drawn(action)


ROW = {"step": 1, "prompt": HOSTILE, "completion": HOSTILE, "reward": 1.0, "advantage": 0.5, "finish": "stop"}


def completions_printed(text: str, here: SimpleNamespace) -> str:
    return "\n".join(tables.printed([{**ROW, "prompt": text, "completion": text}], 1))


def hostile_episode(text: str) -> ScoredGroup:
    """An episode of which everything is hostile: what is said, thought, called and answered, and by whom."""
    told = Told().says(text, tool_call(text, text, "raised", query=text), tool_call("f", text))
    told.messages += [
        {"role": text, "name": text, "content": text},
        {"role": "assistant", "thinking": text, "content": text},
    ]
    return episodes([told.ends(own_prompt=[{"role": "user", "content": text}])], [1.0])


def episode_printed(text: str, here: SimpleNamespace) -> str:
    return "\n".join(tables.printed(completion_rows(1, [hostile_episode(text)]), 1))


def episode_drawn(text: str, here: SimpleNamespace) -> str:
    def action(console: Console) -> None:
        display = Display("", 3, is_live=False, console=Console(file=io.StringIO()))
        display.update(1, NUMBERS, [hostile_episode(text)])
        console.print(display.render(200, 60))

    return drawn(action)


def pictured_prompt_printed(text: str, here: SimpleNamespace) -> str:
    """A chat with a picture, in which everything else is hostile: its text, names of columns, keys and the path of the picture."""
    picture = Picture(text, "ab" * 32, (4, 4))
    content = [
        {
            "role": text,
            "content": [{"type": "image", "image": picture, text: text}, {"type": "text", "text": text}],
        }
    ]
    scored = with_advantages(
        Group(Prompt(content, (1,), {text: text, "image": picture}, pictures=(picture,)), (Completion((1,), (0.0,), text, "stop"),)),
        {"accuracy": [Score(1.0)]}, {"accuracy": 1.0},
    )  # fmt: skip
    return "\n".join(tables.printed(completion_rows(1, [scored]), 1))


def episode_exported(text: str, here: SimpleNamespace) -> str:
    return printed(lambda: main(["export", str(write_episodes(here.folder, [hostile_episode(text)]))]))


TERMINAL = [
    error_of_a_verb, crash_of_a_verb, reward_that_raised_under_a_verb, warning_of_another_library, unknown_option, unknown_verb,
    doctor, doctor_as_json, generated, evaluated, check_report, shown, warning_of_ours, error_of_ours,
    first_failure_of_a_reward, traceback_of_a_reward, answer_of_a_server, plain_display, live_display, completions_printed,
    episode_printed, episode_drawn, episode_exported, pictured_prompt_printed,
]  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "record"
    write_run(folder, Story(steps=2, prompts_per_step=1, group_size=2, evaluate_every=9, eval_prompts=1))
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, record: Path, tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(patch=monkeypatch, record=record, folder=tmp_path, out=io.StringIO())


@pytest.mark.parametrize("door", TERMINAL, ids=lambda door: door.__name__)
def test_nothing_hidden_reaches_a_terminal_and_no_markup_is_obeyed(door, here):
    said = door(HOSTILE, here)
    assert WORD in said and "[bold]x" in said, "the door shows the text, markup as it stands"
    assert visible(said) == said


BOUNDED = [
    error_of_a_verb, crash_of_a_verb, reward_that_raised_under_a_verb, check_report, warning_of_ours, error_of_ours,
    first_failure_of_a_reward, answer_of_a_server, live_display, episode_drawn,
]  # fmt: skip


@pytest.mark.parametrize("door", BOUNDED, ids=lambda door: door.__name__)
def test_what_is_endless_is_cut(door, here):
    said = door(LONG, here)
    assert WORD in said and len(said) < 60_000 and visible(said) == said


# --- pages, notebooks, loggers, cards -------------------------------------------------------------------------------------


def title_of_the_page(text: str, here: SimpleNamespace) -> str:
    whole = "".join(document({"runs": [{"name": text}], "live": False}))
    found = re.search(r"<title>(.*?)</title>", whole, re.DOTALL)
    assert found
    return found[1]


def data_of_the_page(text: str, here: SimpleNamespace) -> str:
    whole = "".join(document({"runs": [{"name": text, "events": [text]}], "live": False}))
    found = re.search(r'id="data">(.*?)</script>', whole, re.DOTALL)
    assert found
    return found[1]


def cell_of_a_notebook(text: str, here: SimpleNamespace) -> str:
    return cell.summary_html(text, [], {}).removeprefix("<div><b>").removesuffix("</b><br></div>")


def heading_in_a_notebook(text: str, here: SimpleNamespace) -> str:
    lines: list[dict[str, object]] = []
    table = notebook.NotebookTable()
    table.table = SimpleNamespace(write_line=lines.append)  # type: ignore[assignment]
    state, logs = (
        SimpleNamespace(global_step=1),
        {"loss": 0.0, f"rewards/{text}/mean": 1.0, "rewards/b/mean": 1.0},
    )
    table.on_log(None, state, None, logs)  # type: ignore[arg-type]
    table.on_log(None, state, None, {f"eval_{text.replace('/', '')}_reward": 1.0})  # type: ignore[arg-type]
    return " ".join(name for line in lines for name in line)


def table_of_tensorboard(text: str, here: SimpleNamespace) -> str:
    texts: list[str] = []
    writer = SimpleNamespace(add_text=lambda name, found, step: texts.append(found), flush=lambda: None)
    logger = type("TensorBoardCallback", (), {"tb_writer": writer})()
    tables.send([logger], [{**ROW, "prompt": text, text: text}], 1)
    assert len(texts[0].split("\n")) == 3, "a heading, a rule and one row"
    return texts[0].replace("<br>", "").replace("|", "")


def card_of_a_model(text: str, here: SimpleNamespace) -> str:
    args = GRPOConfig(output_dir="out", use_cpu=True)
    card = model_card(args, [text], text, text, text, text, {})
    head, body = card.split("\n---\n", 1)
    import yaml

    assert yaml.safe_load(head)["model_name"]
    plain = re.sub(r"```.*?```|`[^`\n]*`", f"{WORD}, as code", body, flags=re.DOTALL)  # code obeys nothing
    return re.sub(r"\[arXiv.*?\)", "", plain)


MARKED_UP = [
    title_of_the_page, data_of_the_page, cell_of_a_notebook, heading_in_a_notebook, table_of_tensorboard, card_of_a_model,
]  # fmt: skip


@pytest.mark.parametrize("door", MARKED_UP, ids=lambda door: door.__name__)
def test_no_markup_of_others_is_obeyed(door, here):
    said = door(HOSTILE, here)
    assert WORD in said and "<" not in said and visible(said) == said
    if door in (table_of_tensorboard, card_of_a_model):
        assert not re.search(r"\*\*|!\[|\]\(|://", said), "no emphasis, no picture, no link"


def test_a_frame_in_a_notebook_holds_the_page_and_nothing_behind_it():
    framed = cell.framed(f'"><script>{WORD}</script>', 10).html
    assert framed.count("<") == 2 and WORD in framed


@pytest.mark.parametrize("logger", ["WandbCallback", "TrackioCallback", "MLflowCallback"])
def test_tables_of_loggers_hide_nothing(logger, monkeypatch):
    found: list[Any] = []
    monkeypatch.setitem(
        tables.SENDERS, logger, lambda callback, columns, cells, step, shown: found.extend([columns, *cells])
    )
    tables.send([type(logger, (), {})()], [{**ROW, HOSTILE: {"a": [HOSTILE]}}], 1)
    texts = [value for line in found for value in line if isinstance(value, str)]
    assert sum(WORD in text for text in texts) == 4 and all(visible(text) == text for text in texts)


# --- a whole run ------------------------------------------------------------------------------------------------------------


class Logged(TrainerCallback):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.names |= set(logs)


def test_a_run_whose_names_and_texts_are_hostile_ends_and_prints_nothing_hidden(tmp_path):
    def judge(completions: list[str], log_extra: Any, log_metric: Any, **_: object) -> list[float]:
        log_extra(HOSTILE, [HOSTILE] * len(completions))
        log_metric(f"{HOSTILE} metric", 1.0)
        return [float(len(c)) for c in completions]

    judge.__name__ = HOSTILE
    names = Logged()
    text = re.sub("[\ud800\0]", "", HOSTILE)  # Arrow, which holds the dataset, takes neither
    data = prompts(8, task=[text, "b"] * 4, **{text: [text] * 8})
    settings = dict(
        run_name=HOSTILE,
        log_completions=True,
        num_completions_to_print=2,
        eval_strategy="steps",
        eval_steps=1,
    )

    def go() -> None:
        trainer = train(
            tiny_policy(tmp_path / "policy"), tmp_path / "run", judge, data, callbacks=[names], display="plain",
            eval_dataset={text: data}, disable_tqdm=False, **settings,
        )  # fmt: skip
        trainer.create_model_card(model_name=HOSTILE)

    said = printed(go)
    assert WORD in said and visible(said.replace("\r", "")) == said.replace("\r", "")
    assert any(WORD in name for name in names.names) and all(visible(name) == name for name in names.names)
    run, extra = (
        covey.runs.open(tmp_path / "run"),
        f"extra/{HOSTILE}".encode("utf-8", "backslashreplace").decode(),
    )
    assert run.completions()[extra].notna().all() and len(run.evaluation_rows(text, 1)) == 32


# --- the law behind the rows ------------------------------------------------------------------------------------------------

ROOT = Path(covey.__file__).parent


def prints(tree: ast.AST) -> list[int]:
    """Lines that print past `show`."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = getattr(
            getattr(call.func, "value", None), "id", getattr(getattr(call.func, "value", None), "attr", "")
        )
        if (name == "print" and not isinstance(call.func, ast.Attribute)) or f"{owner}.{name}" in PRINTERS:
            found.append(call.lineno)
    return found


PRINTERS = {
    "stdout.write", "stderr.write", "traceback.print_exc", "traceback.print_exception", "traceback.print_stack", "warnings.warn",
}  # fmt: skip
OWN = {"text/foreign.py", "errors.py", "tools/python_inside.py", "sample/remote/watcher.py"}
"""The doors themselves; a program inside the sandbox, whose output is a tool's answer; and a script of the standard library, which
prints one number into a pipe that the trainer reads."""


def test_everything_that_is_printed_goes_through_one_door():
    paths = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).as_posix() not in OWN]
    found = {
        str(path.relative_to(ROOT)): prints(ast.parse(path.read_text(encoding="utf-8"))) for path in paths
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["print(x)", "sys.stderr.write(x)", "traceback.print_exc()", "warnings.warn(x)"]
)
def test_the_law_sees_what_prints(line):
    assert prints(ast.parse(line)) == [1] and prints(ast.parse("console.print(x); show(x)")) == []
