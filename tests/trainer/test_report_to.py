"""Every logger of `report_to`, in its offline mode: numbers and tables of completions arrive."""

import json
import sqlite3

import pytest

from covey.errors import ConfigError
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, config, make, rows


def by_ids(completion_ids):
    return [float(sum(ids) % 3) for ids in completion_ids]


def run(tmp_path, report_to, **given):
    policy = tiny_policy(tmp_path / "policy", generation=MANY_ENDS)
    settings = {"max_steps": 2, "learning_rate": 1e-2, "log_completions": True, "run_name": "mine"}
    given = {**settings, **given, "report_to": report_to}
    trainer = make(policy, tmp_path / "run", Recorder(by_ids, "mine"), rows(16), **given)
    trainer.train()
    return trainer


def written(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]


def rewards_logged(trainer):
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = run(tmp_path, "tensorboard")
    events = EventAccumulator(str(next((tmp_path / "run" / "runs").iterdir()))).Reload()
    assert [e.value for e in events.Scalars("train/reward")] == pytest.approx(rewards_logged(trainer))
    tables = [e.tensor_proto.string_val[0].decode() for e in events.Tensors("completions/text_summary")]
    assert len(tables) == 2 and all(len(table.splitlines()) == 2 + 8 for table in tables)
    assert {"| step | group | prompt | completion | mine | reward | advantage | finish | tokens |"} == {
        table.splitlines()[0] for table in tables
    }


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = run(tmp_path, "wandb")
    try:
        assert wandb.run.name == "mine"
        assert wandb.run.summary["train/reward"] == rewards_logged(trainer)[-1]
    finally:
        wandb.finish()
    tables = [json.loads(path.read_text()) for path in tmp_path.rglob("*.table.json")]
    assert len(tables) == 2 and {len(table["data"]) for table in tables} == {8}
    column = tables[0]["columns"].index("completion")
    texts = [row[column] for table in tables for row in table["data"]]
    assert sorted(texts) == sorted(row["completion"] for row in written(tmp_path))


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
        trainer = run(tmp_path, "mlflow")
        client = mlflow.MlflowClient()
        (found,) = client.search_runs(["0"])
        assert found.data.params["num_generations"] == "4" and found.info.run_name == "mine"
        history = client.get_metric_history(found.info.run_id, "reward")
        assert [m.value for m in history] == pytest.approx(rewards_logged(trainer))
        table = mlflow.load_table("completions/step_00000002.json", run_ids=[found.info.run_id])
    finally:
        mlflow.set_tracking_uri(before)
    assert list(table["completion"]) == [r["completion"] for r in written(tmp_path) if r["step"] == 2]


def test_trackio(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    trainer = run(tmp_path, "trackio", project="covey-test")
    database = next((tmp_path / "trackio").glob("*.db"))
    with sqlite3.connect(database) as connection:
        lines = [
            json.loads(text) for (text,) in connection.execute("select metrics from metrics order by id")
        ]
    assert [x["train/reward"] for x in lines if "train/reward" in x] == pytest.approx(rewards_logged(trainer))
    tables = [x["completions"] for x in lines if "completions" in x]
    assert len(tables) == 2, "one per log"


def test_without_log_completions_no_table_is_sent(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, "tensorboard", log_completions=False)
    events = EventAccumulator(str(next((tmp_path / "run" / "runs").iterdir()))).Reload()
    assert not [tag for tag in events.Tags()["tensors"] if tag.startswith("completions")]


@pytest.mark.parametrize(("count", "lines"), [(None, 0), (0, 0), (3, 6), (100, 16)])
def test_so_many_completions_are_printed_at_each_log(tmp_path, capsys, count, lines):
    run(tmp_path, "none", num_completions_to_print=count, log_completions=False)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  completion: ")]
    assert len(said) == lines, "16 were sampled, 8 for each of the two logs"


def test_with_log_unique_prompts_one_completion_stands_for_each_prompt(tmp_path, capsys):
    run(tmp_path, "none", num_completions_to_print=100, log_unique_prompts=True)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  prompt: ")]
    halves = said[: len(said) // 2], said[len(said) // 2 :]
    assert all(len(half) == len(set(half)) for half in halves) and 2 <= len(said) < 16, said


def test_logging_steps_says_when(tmp_path, capsys):
    run(tmp_path, "none", num_completions_to_print=1, logging_steps=2)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Step ")]
    assert [line.split(",")[0] for line in said] == ["Step 2"]


def test_a_completion_cannot_give_orders_to_the_terminal(tmp_path):
    from covey.runs.record.tables import printed

    row = {
        "reward": None,
        "advantage": 0.0,
        "finish": "stop",
        "prompt": "a\x1b[2J",
        "completion": "b\rc\n\u202ed",
    }
    text = "".join(printed([row], 1))
    assert "\x1b" not in text and "\r" not in text and "\u202e" not in text and "⟨ESC⟩" in text


def test_a_number_of_completions_below_zero_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="num_completions_to_print is -1"):
        config(tmp_path, num_completions_to_print=-1)


def test_the_table_of_tensorboard_holds_no_markup_of_a_completion():
    from types import SimpleNamespace

    from covey.runs.record.tables import send

    said = []
    writer = SimpleNamespace(add_text=lambda name, text, step: said.append(text), flush=lambda: None)
    callback = type("TensorBoardCallback", (), {"tb_writer": writer})()
    send([callback], [{"completion": "<script>a|b\nc", "reward": 0.25}], 1)
    assert said == ["| completion | reward |\n| --- | --- |\n| &#60;script&#62;a&#124;b<br>c | 0.25 |"]
