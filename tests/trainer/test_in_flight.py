"""A run whose weights change under running requests learns from all that it sampled, knows how old that is, and says that it is relaxed."""

import json
import time
from contextlib import contextmanager

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import ConfigError
from covey.runs.record.reader import read_events
from covey.sample.remote import served_queue
from covey.sample.remote.wire import DrawBody
from covey.trainer.rollouts import Rollouts
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, by_length, make, rows

pytestmark = pytest.mark.any_version

STEPS, GROUPS, SIZE = 5, 2, 4
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=2.0, generation=MANY_ENDS)


@pytest.fixture
def is_stuck(monkeypatch):
    """Whether the trainer waits for what is being drawn, a proof or a rollout: until it has that it sends no weights."""
    due, begin, waited = Rollouts.due, Rollouts._begin_those, [None]

    def begins(self, *given):
        seconds = begin(self, *given)
        waited[:] = self.queue[:1]
        return seconds

    def is_due(self, trainer, rows):
        if not (ahead := self.ahead(trainer)).due(ahead.present):
            waited[:] = self.queue[:1]
        rollout = due(self, trainer, rows)
        waited.clear()
        return rollout

    monkeypatch.setattr(Rollouts, "_begin_those", begins)
    monkeypatch.setattr(Rollouts, "due", is_due)
    return lambda: any(rollout is None or not rollout.sampled.is_set() for rollout in [*waited])


@contextmanager
def vllm(folder, faults):
    with FakeVllm(folder, faults) as fake:
        yield fake.url, fake


@contextmanager
def covey(folder, faults):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with serving(model, AutoTokenizer.from_pretrained(folder)) as (server, http):
        yield server.url, http


@pytest.fixture
def taken(monkeypatch):
    """Each rollout as it is trained on: its step, when its sampling began, and its groups."""
    original, seen = Rollouts.finished, []

    def finished(self, trainer, rollout):
        scored = original(self, trainer, rollout)
        seen.append((trainer.state.global_step, rollout.version, [s.group for s in scored]))
        return scored

    monkeypatch.setattr(Rollouts, "finished", finished)
    return seen


def run(folder, out, url, kind, **given):
    settings = {
        "engine": kind, "engine_urls": url, "engine_timeout": 600.0, "engine_canary": False, "async_lag": 1, "async_in_flight": True,
        "max_steps": STEPS, "learning_rate": 0.05, "max_completion_length": 12, "max_staleness": 0, "save_strategy": "steps",
        "save_steps": STEPS,
    }  # fmt: skip
    trainer = make(folder, out, by_length, rows(16), **{**settings, **given})
    with pytest.warns(UserWarning, match="cannot be repeated"):
        trainer.train()
    return trainer


@pytest.mark.parametrize(("kind", "server", "faults"), [
    ("vllm", vllm, {}), ("vllm", vllm, {"drops": 5, "restarts": 4}), ("covey", covey, {}),
], ids=["vllm", "vllm that fails", "covey serve"])  # fmt: skip
def test_no_sample_is_lost_its_oldest_weights_are_known_and_the_old_ones_are_counted(
    folder, tmp_path, taken, is_stuck, monkeypatch, kind, server, faults
):
    original, draws = served_queue.ServedQueue._do, []

    def late(self, jobs):  # weights come between the two requests of a rollout
        original(self, jobs)
        draws.extend(job for job in jobs if isinstance(job.work, DrawBody))
        end = time.monotonic() + 60
        while draws and jobs[0] is draws[-1] and len(draws) in (3, 5, 7) and time.monotonic() < end:
            if is_stuck() or any(not isinstance(job.work, DrawBody) for job in list(self.waiting)):
                break
            time.sleep(0.01)

    monkeypatch.setattr(served_queue.ServedQueue, "_do", late)
    with server(folder, {"halves": is_stuck, **faults}) as (url, there):
        trainer = run(folder, tmp_path, url, kind)
        if kind == "vllm":
            assert there.happened == {"halves", *faults} and not there.is_paused
            pauses = [body["mode"] for route, body in there.asked if route == "/pause"]
            assert set(pauses) <= {"keep", "wait"} and pauses.count("keep") >= STEPS - 1
    assert [step for step, _, _ in taken] == list(range(STEPS)) == list(range(trainer.state.global_step))
    assert all(
        len(groups) == GROUPS and all(len(g.completions) == SIZE for g in groups) for *_, groups in taken
    )
    ages = [[step - c.version for g in groups for c in g.completions] for step, _, groups in taken]
    assert all(0 <= age <= 1 for of_step in ages for age in of_step), "lag 1: at most one update old"
    shares = [entry["async/stale_share"] for entry in trainer.state.log_history if "loss" in entry]
    assert shares == [sum(age > 0 for age in of_step) / len(of_step) for of_step in ages] and max(shares) > 0
    if kind == "covey":
        begun = [
            (version, {c.version for g in groups for c in g.completions}) for _, version, groups in taken
        ]
        assert any(versions != {version} for version, versions in begun), (
            "weights changed between two requests of a rollout"
        )
    manifest = json.loads((tmp_path / f"checkpoint-{STEPS}" / "covey" / "manifest.json").read_text())
    assert manifest["relaxed"] == ["async_in_flight"]
    assert any("The run is relaxed" in event["message"] for event in read_events(tmp_path / "record"))


def test_a_request_names_its_adapter_and_keeps_it(folder, tmp_path, taken):
    with vllm(folder, {"halves": 0.3}) as (url, fake):
        trainer = run(folder, tmp_path, url, "vllm", peft_config=LORA, max_staleness=None)
        drawn = [
            body["model"] for route, body in fake.asked if route == "/v1/completions" and body.get("n", 1) > 1
        ]
        assert len(set(drawn)) >= STEPS - 1 and fake.happened == set(), (
            "no weights change; each version has its name"
        )
        assert [body["mode"] for route, body in fake.asked if route == "/pause"].count("keep") <= 1
    assert trainer.state.global_step == STEPS
    assert all(c.version == version for _, version, groups in taken for g in groups for c in g.completions)


def test_without_it_nothing_is_marked_and_no_completion_has_a_version(folder, tmp_path, taken):
    with covey(folder, {}) as (url, _):
        settings = {"engine": "covey", "engine_urls": url, "engine_canary": False, "async_lag": 1, "max_steps": 2, "save_strategy": "steps",
                    "save_steps": 2}  # fmt: skip
        make(folder, tmp_path, by_length, rows(16), **settings).train()
    assert {c.version for *_, groups in taken for g in groups for c in g.completions} == {None}
    assert "relaxed" not in json.loads((tmp_path / "checkpoint-2" / "covey" / "manifest.json").read_text())


def test_an_engine_that_cannot_is_refused_by_its_name(folder, tmp_path):
    settings = {"async_lag": 1, "async_in_flight": True}
    with pytest.raises(ConfigError, match=r"does not go with engine='sglang'.*weight_sync='adapter'"):
        make(
            folder,
            tmp_path / "s",
            by_length,
            rows(16),
            engine="sglang",
            engine_urls="http://127.0.0.1:1",
            **settings,
        )
    trainer = make(folder, tmp_path / "n", by_length, rows(16), **settings)
    with pytest.raises(ConfigError, match="does not go with NativeEngine"):
        trainer.train()
