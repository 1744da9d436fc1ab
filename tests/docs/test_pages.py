"""What docs/losses.md and docs/metrics.md say is what the code does."""

import re
from pathlib import Path

from covey.config.choices import LOSS_TYPES
from covey.score.estimators import BASELINES
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, by_length, rows, train
from tests.update.steps import settings

DOCS = Path(__file__).parents[2] / "docs"
CORRECTION = {f"importance_sampling_{name}" for name in ("correction", "mode", "cap", "floor")}


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
]


def documented_metrics():
    text = (DOCS / "metrics.md").read_text()
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def test_every_metric_is_explained_and_every_explained_one_is_logged(tmp_path):
    logged = set()
    for number, given in enumerate(RUNS):
        folder = tiny_policy(tmp_path / f"m{number}", generation=MANY_ENDS)
        trainer = train(folder, tmp_path, Recorder(by_length, "mine"), rows(task=["sums"] * 8), **given)
        logged |= {key for entry in trainer.state.log_history if "loss" in entry for key in entry} - {"step"}
    shown = {"rewards/mine": "rewards/<name>", "tasks/sums": "tasks/<task>", "/mean/sums": "/mean/<task>"}
    for found, written in shown.items():
        logged = {key.replace(found, written) for key in logged}
    assert logged == documented_metrics()
