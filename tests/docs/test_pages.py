"""What docs/losses.md and docs/metrics.md say is what the code does."""

import re
from pathlib import Path
from typing import get_args

from covey.config.choices import LOSS_TYPES
from covey.rewards import reward
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.weight_sync import WeightSync
from covey.score.estimators import BASELINES
from covey.types import FinishReason
from tests.ranks import alone
from tests.sample.remote.serving import serving
from tests.tiny import tiny_model, tiny_policy
from tests.tools.chats import adder
from tests.trainer.harness import MANY_ENDS, Recorder, by_length, make, rows, train
from tests.trainer.scripted import trained
from tests.update.steps import settings

DOCS = Path(__file__).parents[2] / "docs"
CORRECTION = {f"importance_sampling_{name}" for name in ("correction", "mode", "cap", "floor", "m2")}


def table(page, head):
    """Cells of the table whose head begins with the given cell."""
    text = (DOCS / page).read_text()
    block = text[text.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block]


def names(cell):
    return set(re.findall(r"`([a-z_]+)`", cell)) | (CORRECTION if "correction" in cell.split() else set())


def test_every_loss_stands_in_the_table_with_its_normalisation_and_its_settings():
    documented, last = {}, set()
    for name, _, reduction, acting in table("losses.md", "`loss_type`"):
        last = last if acting == "the same" else names(acting)
        documented[re.findall("`(.+?)`", name)[0]] = (reduction.strip("`"), last)
    assert documented == {name: (t.reduction, set(t.settings)) for name, t in LOSS_TYPES.items()}


def test_every_estimator_stands_in_the_table():
    assert {row[0].strip("`") for row in table("losses.md", "name | advantage")} == {"grpo", *BASELINES}


def test_every_setting_that_a_page_names_exists():
    known = set(vars(settings()))
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)(?:=[^`]*)?`", (DOCS / "losses.md").read_text()))
    others = {*LOSS_TYPES, *BASELINES, "log_metric", *settings_values(), "needs_every_row"}
    assert named - known - others == set()


def settings_values():
    """Values of settings that look like names."""
    return {
        "sequence_token",
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
        "token_m2",
        "geometric_truncate",
        "geometric_mask",
        "tokens_and_sequences",
    }


RUNS = [
    {},
    {
        "beta": 0.1,
        "use_adaptive_entropy": True,
        "top_entropy_quantile": 0.5,
        "off_policy_mask_threshold": 0.5,
    },
    {"beta": 0.1, "kl_in_reward": True},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "vespo"},
    {"loss_type": "dppo"},
    {"loss_type": "clip_cov"},
    {"dynamic_sampling": True},
    {"group_allocation": "grow", "advantage_estimator": "rloo"},
    {"async_lag": 1, "max_steps": 4},
    {"curriculum": "biased", "task_weights": "equal", "task_shares": {"sums": 2, "words": 1}},
    {"replay_groups": 1, "max_steps": 2},
    {"at_least": 0.5},
]


def documented_metrics():
    text = (DOCS / "metrics.md").read_text()
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def numbers_of_servers(tmp_path):
    """Names of what a run logs that samples on a server."""
    folder = tiny_policy(tmp_path / "served", generation=MANY_ENDS)
    trainer = make(folder, tmp_path / "run", Recorder(by_length, "mine"), rows())
    with serving(tiny_model(), trainer.processing_class) as (server, _):
        sync = WeightSync("run", tmp_path, alone, folder=tmp_path / "weights")
        trainer.engine = RemoteEngine(
            [server], sync, Proven(), trainer.engine.decode, run="run", gather=alone
        )
        trainer.train()
    return {key for entry in trainer.state.log_history for key in entry}


def numbers_of_pictures(tmp_path):
    """Names of what a run logs whose policy sees."""
    from tests.vision.tiny_eyes import picture_rows, tiny_eyes_policy

    folder = tiny_eyes_policy(tmp_path / "eyes")
    trainer = train(folder, tmp_path, lambda completions, **_: [1.0] * len(completions), picture_rows(2))
    return {key for entry in trainer.state.log_history for key in entry}


class Proven:
    """Stands for the proofs of a server."""

    gap = 1e-5

    def start(self, policy, servers):
        pass

    def probe(self, policy, servers):
        pass


def test_every_metric_is_explained_and_every_explained_one_is_logged(tmp_path):
    logged = set()
    for number, given in enumerate(map(dict, RUNS)):
        folder = tiny_policy(tmp_path / f"m{number}", generation=MANY_ENDS)
        bound = {name: given.pop(name) for name in ("at_least",) if name in given}
        mine = reward(Recorder(by_length, "mine"), **bound)
        trainer = train(folder, tmp_path, mine, rows(task=["sums", "words"] * 4), **given)
        logged |= {key for entry in trainer.state.log_history if "loss" in entry for key in entry} - {"step"}
    with_tools = trained(tmp_path / "tools", tools=[adder()])
    own = ("tools/", "episodes/", "completions/injected", "time/tools")
    logged |= {key for entry in with_tools.state.log_history for key in entry if key.startswith(own)}
    logged |= {key for key in numbers_of_servers(tmp_path) if key.startswith("engine/")}
    logged |= {key for key in numbers_of_pictures(tmp_path) if key.startswith("vision/")}
    ends = {f"episodes/ended/{finish}": "episodes/ended/<finish>" for finish in get_args(FinishReason)}
    shown = {
        "tokens/0": "tokens/<server>",
        "rewards/mine": "rewards/<name>",
        "constraints/mine": "constraints/<name>",
        **{f"tasks/{task}": "tasks/<task>" for task in ("sums", "words")},
        **{f"/mean/{task}": "/mean/<task>" for task in ("sums", "words")},
    }
    logged = {ends.get(key, key).replace("tools/add/", "tools/<name>/") for key in logged}
    for found, written in shown.items():
        logged = {key.replace(found, written) for key in logged}
    relaxed = {"async/stale_share"}  # of engines that take weights in the middle
    assert logged | relaxed == documented_metrics()
