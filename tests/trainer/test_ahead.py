"""A run that samples ahead is a function of its settings: schedules decide who waits, and resuming changes nothing."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from covey.errors import CheckpointError, ConfigError, DatasetError, EngineError, RewardError
from covey.runs.record.reader import read_events
from covey.trainer.checkpoint.folders import checkpoints
from covey.trainer.stop_signals import RunStopped
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy
from tests.trainer import scripted
from tests.trainer.elsewhere import Elsewhere, Lagging
from tests.trainer.harness import MANY_ENDS, Recorder, config, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", lr_scheduler_type="cosine", max_steps=6)
VARIANTS = {
    "one step per rollout": dict(),
    "steps and passes": dict(
        per_device_train_batch_size=4, steps_per_generation=2, num_iterations=2, max_steps=10
    ),
    "refills": dict(dynamic_sampling=True, dynamic_sampling_rounds=2),
}


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


class Slow:
    """A reward that takes its time, depends on the step, and remembers: the order of its calls shows in what it gives."""

    def __init__(self, delay=0.0, seed=0):
        self.delay, self.random, self.calls, self.seen = delay, random.Random(seed), 0, []
        self.begun = 0
        self.__name__ = "slow"

    def __call__(self, prompts, completion_ids, trainer_state, **_):
        self.begun += 1  # every other call is late: those that are not in order would overtake it
        time.sleep((0.5 + self.random.random()) * self.delay * (self.begun % 2))
        self.calls += 1
        self.seen.append((trainer_state.global_step, list(prompts), [list(ids) for ids in completion_ids]))
        return [value + 0.1 * (self.calls % 3) * (i % 2) for i, value in enumerate(by_ids(completion_ids))]

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def numbers(trainer):
    """Every logged number but those of the clock, of the machine's memory, and of who waited."""
    own = ("time/", "step_time", "memory/", "async/")
    return [
        {k: v for k, v in entry.items() if not k.startswith(own)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]


def made(tmp_path, name, engine=None, reward=None, data=None, **settings):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = make(
        folder,
        tmp_path / name,
        reward or Slow(),
        rows(16) if data is None else data,
        **{**SETTINGS, **settings},
    )
    if engine is not None:
        trainer.engine = engine(trainer.engine)
    return trainer


def trained(*args, **settings):
    trainer = made(*args, **settings)
    trainer.train()
    return trainer


def is_same(a, b):
    """Return whether two runs are the same to the bit; what an engine says of itself only where both have the same kind."""
    first, second = numbers(a), numbers(b)
    if type(a.engine) is not type(b.engine):
        first, second = [
            [{k: v for k, v in e.items() if not k.startswith("engine/")} for e in x] for x in (first, second)
        ]
    assert first == second
    return same(weights(a), weights(b))


@pytest.mark.parametrize(
    ("lag", "variant"), [(1, "one step per rollout"), (2, "steps and passes"), (2, "refills")]
)
def test_whatever_the_schedule_a_rollout_is_sampled_with_the_weights_of_so_many_rollouts_ago(
    tmp_path, lag, variant
):
    settings = VARIANTS[variant]
    slowly = trained(tmp_path, "slow", lambda native: Lagging(native, lag), **settings)
    inside = trained(tmp_path, "inside", None, Slow(0.5, 1), async_lag=lag, **settings)
    beside = trained(
        tmp_path, "beside", lambda n: Elsewhere(n, 0.05), Slow(0.5, 2), async_lag=lag, **settings
    )
    assert is_same(slowly, inside) and is_same(slowly, beside)
    fresh = trained(tmp_path, "fresh", **settings)
    assert not same(weights(fresh), weights(slowly))


@pytest.mark.parametrize(
    ("lag", "engine", "variant"),
    [
        (1, None, "steps and passes"),
        (2, lambda native: Elsewhere(native, 0.02), "one step per rollout"),
        (1, lambda native: Elsewhere(native, 0.02), "refills"),
    ],
)
def test_stopped_after_any_step_and_resumed_it_is_the_same_run(tmp_path, lag, engine, variant):
    settings = {
        **VARIANTS[variant],
        "async_lag": lag,
        "save_strategy": "steps",
        "save_steps": 1,
        "log_completions": True,
    }
    reward = Slow(0.6)
    whole = trained(tmp_path, "run", engine, reward, **settings)
    lines = (tmp_path / "run" / "completions.jsonl").read_text()
    steps = whole.args.max_steps
    for stop in range(1, steps, 1 if whole.plan.steps_per_rollout == 1 else 3):
        again = made(tmp_path, "run", engine, Slow(0.02, stop), **settings)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
        assert is_same(whole, again), stop
        assert again.scorer.rewards[0].function.calls == reward.calls
        assert (tmp_path / "run" / "completions.jsonl").read_text() == lines
        files = sorted(path.name for path in (tmp_path / "run" / f"checkpoint-{stop}" / "covey").iterdir())
        assert "ahead0.json" in files or stop >= steps - whole.plan.steps_per_rollout


@pytest.mark.parametrize("given", ["rows", "stream", "workers", "repeated"])
def test_rows_come_in_the_order_in_which_they_come_without_a_lag(tmp_path, given):
    """Over epochs of 3 rollouts; the last rollout of a run is the last that is sampled."""
    data = rows(7 if given != "repeated" else 1)
    data = data.to_iterable_dataset() if given == "stream" else data
    more = {"dataloader_num_workers": 1} if given == "workers" else {}
    seen = {}
    for lag in (0, 1, 4):
        reward = Slow()
        trained(tmp_path, f"{lag}", None, reward, data, async_lag=lag, max_steps=8, **more)
        seen[lag] = [(step, prompts) for step, prompts, _ in reward.seen]
    assert seen[0] == seen[1] == seen[4] and len(seen[0]) == 8


def test_half_an_epoch_is_sampled_for_no_longer_than_it_is_trained_on(tmp_path):
    reward = Slow()
    trainer = trained(tmp_path, "run", None, reward, async_lag=3, max_steps=-1, num_train_epochs=1.5)
    assert trainer.state.global_step == 12 == len(reward.seen)


def test_a_run_that_is_made_longer_goes_on(tmp_path):
    """At its end nothing was sampled ahead: the rollouts that begin are sampled with the present weights."""
    settings = dict(async_lag=2, save_strategy="steps", save_steps=1, lr_scheduler_type="constant")
    trained(tmp_path, "run", None, **settings, max_steps=4)
    reward = Slow()
    longer = made(tmp_path, "run", None, reward, **settings, max_steps=8)
    longer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    whole = Slow()
    trained(tmp_path, "whole", None, whole, **settings, max_steps=8)
    assert [(s, p) for s, p, _ in reward.seen] == [(s, p) for s, p, _ in whole.seen][4:]


def begun():
    return [thread for thread in threading.enumerate() if thread.name.startswith("covey-rollout")]


def ended():
    """Whether no thread of a rollout is left, nor comes to no end."""
    for thread in begun():
        thread.join(60)
    return begun() == []


@pytest.mark.parametrize("engine", [None, lambda native: Elsewhere(native, 0.02)])
def test_evaluation_leaves_no_trace(tmp_path, engine):
    plain = trained(tmp_path, "plain", engine, Recorder(by_ids), async_lag=2)
    settings = dict(eval_strategy="steps", eval_steps=1, eval_on_start=True, per_device_eval_batch_size=2)
    settings |= dict(num_generations_eval=1, eval_dataset=rows(3))
    evaluated = trained(tmp_path, "evaluated", engine, Recorder(by_ids), async_lag=2, **settings)
    assert is_same(plain, evaluated) and ended()
    first = plain.engine.versions if engine else []
    assert first == ([None, 1, 2, 3] if engine else []), "weights are sent once for a rollout"


def raising_at(call):
    def slow(completion_ids, trainer_state, **_):
        if trainer_state.global_step == call:
            raise ValueError("the judge is gone")
        return by_ids(completion_ids)

    return slow


@pytest.mark.parametrize("engine", [None, lambda native: Elsewhere(native, 0.02)])
def test_a_reward_that_fails_ahead_ends_the_run_and_leaves_its_checkpoints(tmp_path, engine):
    settings = dict(async_lag=1, save_strategy="steps", save_steps=1)
    trainer = made(tmp_path, "run", engine, raising_at(3), **settings)
    with pytest.raises(RewardError, match="the judge is gone"):
        trainer.train()
    assert ended() and list(checkpoints(tmp_path / "run"))[-1] in (1, 2)
    assert "the judge is gone" in read_events(tmp_path / "run" / "record")[-1]["message"]
    mended = made(tmp_path, "run", engine, raising_at(-1), **settings)
    mended.train(resume_from_checkpoint=True)
    whole = trained(tmp_path, "whole", engine, raising_at(-1), **settings)
    assert is_same(mended, whole)


def test_an_engine_that_fails_ahead_ends_the_run(tmp_path):
    class Failing(Elsewhere):
        def generate(self, prompts, group_size, settings, turns=None):
            if settings.step == (0, 3):
                raise EngineError("all servers are gone")
            yield from super().generate(prompts, group_size, settings, turns)

    trainer = made(tmp_path, "run", Failing, async_lag=2)
    with pytest.raises(EngineError, match="all servers are gone"):
        trainer.train()
    assert ended() and trainer.engine.closed
    trainer.engine = trainer.engine.native
    trainer.train()
    assert same(weights(trainer), weights(trainer)) and trainer.state.global_step == 6


def test_an_update_that_fails_leaves_no_thread_behind(tmp_path):
    def loss(terms):
        raise KeyboardInterrupt

    trainer = made(tmp_path, "run", lambda n: Elsewhere(n, 0.1), Slow(0.1), async_lag=2, loss=loss)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert ended()
    trainer.evaluate(rows(2))


def test_an_environment_that_cannot_be_closed_leaves_no_server_behind(tmp_path, monkeypatch):
    trainer = made(tmp_path, "run", Elsewhere, max_steps=1)

    def fails(agents):
        raise RuntimeError("the environment is stuck")

    monkeypatch.setattr(type(trainer.agents), "close", fails)
    with pytest.raises(RuntimeError, match="is stuck"):
        trainer.train()
    assert trainer.engine.closed == 1


@pytest.mark.parametrize("engine", [None, lambda native: Elsewhere(native, 0.02)])
def test_a_signal_saves_what_was_sampled_ahead(tmp_path, engine):
    def recorder(completion_ids, trainer_state, **_):
        if trainer_state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return by_ids(completion_ids)

    with pytest.raises(RunStopped):
        trained(tmp_path, "run", engine, recorder, async_lag=2)
    assert ended()
    resumed = made(tmp_path, "run", engine, Recorder(by_ids), async_lag=2)
    resumed.train(resume_from_checkpoint=True)
    whole = trained(tmp_path, "whole", engine, Recorder(by_ids), async_lag=2)
    assert same(weights(resumed), weights(whole)) and resumed.state.global_step == 6


def test_a_row_that_cannot_be_used_costs_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.trainer.checks.MOST_RENDERED", 0)
    settings = dict(shuffle_dataset=False, save_strategy="steps", save_steps=100, async_lag=2)
    whole = rows(16)
    broken = Dataset.from_list([*whole.to_list()[:9], {"prompt": "say " * 2000}, *whole.to_list()[10:]])
    with pytest.raises(
        DatasetError, match=f"Row 9: .* The run is saved in {tmp_path / 'run' / 'checkpoint-2'}"
    ):
        trained(tmp_path, "run", None, Recorder(by_ids), broken, **settings)
    resumed = made(tmp_path, "run", None, Recorder(by_ids), whole, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert is_same(resumed, trained(tmp_path, "whole", None, Recorder(by_ids), whole, **settings))


def test_numbers_say_how_old_samples_are_and_who_waited(tmp_path):
    trainer = trained(tmp_path, "run", lambda n: Elsewhere(n, 0.02), async_lag=2)
    assert [entry["async/lag"] for entry in trainer.state.log_history if "loss" in entry] == [
        0,
        1,
        2,
        2,
        2,
        2,
    ]
    last = trainer.state.log_history[-2]
    assert {"async/wait_sampler", "async/wait_trainer", "async/sample_seconds", "async/score_seconds"} <= set(
        last
    )
    plain = trained(tmp_path, "plain")
    assert not any(name.startswith("async/") for entry in plain.state.log_history for name in entry)


def test_rollouts_ahead_of_other_settings_are_refused(tmp_path):
    settings = dict(async_lag=2, save_strategy="steps", save_steps=2)
    trained(tmp_path, "run", **settings)
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    for other in (
        "num_generations=2",
        "temperature=0.5",
    ):  # the update computes at the temperature of the sampling
        name, value = other.split("=")
        with pytest.raises(
            CheckpointError, match=f"sampled ahead, which were made with other settings: {other}"
        ):
            made(tmp_path, "run", **settings, **{name: type(getattr(config(tmp_path), name))(value)}).train(
                checkpoint
            )
    with pytest.raises(
        CheckpointError, match="sampled ahead and scored by slow; the rewards of this run are recorder"
    ):
        made(tmp_path, "run", None, Recorder(by_ids), **settings).train(checkpoint)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(async_lag=1, kl_in_reward=True, beta=0.1), "async_lag=1 does not go with kl_in_reward"),
        (dict(async_lag=-1), "async_lag is -1"),
        (dict(async_in_flight=True), "async_in_flight=True has no effect with async_lag=0"),
        (dict(async_lag=1, max_staleness=3), "max_staleness=3 has no effect without async_in_flight"),
    ],
)
def test_settings_that_do_nothing_or_cannot_be_are_refused(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        config(tmp_path, **settings)


def test_old_samples_and_samples_without_correction_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="async_lag=3: samples are 3 rollouts old"):
        config(tmp_path, async_lag=3)
    with pytest.warns(UserWarning, match="importance_sampling_correction=False"):
        config(tmp_path, async_lag=1, importance_sampling_correction=False)


class Cools(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        args.temperature = 0.5


def test_the_temperature_stays_while_rollouts_wait_that_were_sampled_at_it(tmp_path):
    trainer = made(tmp_path, "run", async_lag=1)
    trainer.args.temperature = 0.7  # nothing is ahead yet
    trainer.add_callback(Cools())
    with pytest.raises(ConfigError, match=r"temperature=0\.5 cannot be changed while a run with async_lag=1"):
        trainer.train()
    assert trainer.args.temperature == trainer.updater.forward.temperature == 0.7


def test_the_lag_cannot_be_changed_later(tmp_path):
    trainer = made(tmp_path, "run")
    with pytest.raises(ConfigError, match="async_lag=1"):
        trainer.async_lag = 1


class Swapping(Elsewhere):
    """Takes new weights while it samples."""

    swaps_in_flight = True


class Early(Swapping):
    """Takes new weights once the rollout that is trained on next is sampled: that one is too old, whoever is late."""

    sampled = 0

    def load(self, policy, version=None):
        end = time.monotonic() + 60
        while self.versions and self.sampled <= len(self.versions) and time.monotonic() < end:
            time.sleep(0.001)
        super().load(policy, version)

    def generate(self, *given):
        yield from super().generate(*given)
        self.sampled += 1


def test_in_flight_is_named_relaxed_and_leaves_out_what_is_too_old(tmp_path):
    settings = dict(async_lag=2, async_in_flight=True, max_steps=5)
    with pytest.raises(ConfigError, match="async_in_flight=True does not go with Elsewhere"):
        trained(tmp_path, "refused", Elsewhere, **settings)
    with pytest.warns(UserWarning, match="cannot be repeated"):
        trainer = trained(tmp_path, "run", lambda n: Swapping(n, 0.05), **settings)
    assert trainer.state.global_step == 5 and ended()
    assert any("cannot be repeated" in event["message"] for event in read_events(tmp_path / "run" / "record"))
    stale = trained(tmp_path, "stale", Early, max_staleness=0, **settings)
    shares = [entry["async/stale_share"] for entry in stale.state.log_history if "loss" in entry]
    losses = [entry["loss"] for entry in stale.state.log_history if "loss" in entry]
    assert shares == [0, 1, 1, 1, 1] and [loss == 0 for loss in losses] == [share == 1 for share in shares]


def test_on_servers_it_is_the_run_of_the_native_engine(tmp_path):
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    native = trained(tmp_path, "native", async_lag=1, max_steps=4)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with serving(model, AutoTokenizer.from_pretrained(folder)) as (server, _):
        settings = {**SETTINGS, "engine": "covey", "engine_urls": server.url, "async_lag": 1, "max_steps": 4}
        served = train(folder, tmp_path / "served", Slow(0.05), rows(16), **settings)
    assert served.engine.samples_beside_updates and ended()
    # What is decoded together changes the last bits of log-probabilities, which weigh samples that are older than the policy.
    of_both = zip(weights(native).values(), weights(served).values(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-3) for one, other in of_both)
    assert native.state.log_history[-2]["reward"] == served.state.log_history[-2]["reward"]


def test_environments_of_a_rollout_are_judged_before_the_next_begins(tmp_path):
    log = []

    def counted(environments, **_):
        time.sleep(0.1)
        return [float(environment.count) for environment in environments]

    given = dict(environment_factory=scripted.counter(log), async_lag=1, max_steps=3)
    trainer = scripted.trained(tmp_path, counted, **given)
    assert [entry["reward"] for entry in trainer.state.log_history if "loss" in entry] == [0.5] * 3
    assert len(log) == 8, "they are used again"
