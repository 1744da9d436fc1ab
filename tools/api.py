"""Write docs/api.md from the docstrings of the names that Covey promises.

    python tools/api.py

Everything else may change without notice. tests/docs/test_api.py holds the page against the code.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
sys.path.insert(0, str(ROOT))

PROMISED: dict[str, list[str]] = {
    "Train": [
        "covey.GRPOTrainer",
        "covey.GRPOConfig",
        "covey.ModelConfig",
        "covey.get_peft_config",
        "covey.get_quantization_config",
        "covey.get_kbit_device_map",
        "covey.trainer.evaluation.Evaluation",
        "covey.trainer.stop_signals.RunStopped",
        "covey.trainer.distributed.end_processes",
        "covey.plan.Plan",
    ],
    "The nouns that travel": [
        "covey.types.Prompt",
        "covey.types.Completion",
        "covey.types.Group",
        "covey.types.Score",
        "covey.types.ScoredGroup",
    ],
    "Sample": [
        "covey.sample.engine.Engine",
        "covey.sample.sampling.Sampling",
        "covey.sample.native.engine.NativeEngine",
    ],
    "Rewards": [
        "covey.rewards.Mixture",
        "covey.rewards.Reward",
        "covey.rewards.reward",
        "covey.rewards.RewardOptions",
        "covey.rewards.Failure",
        "covey.rewards.check_rewards",
        "covey.rewards.text_of",
        "covey.rewards.SameAnswer",
        "covey.rewards.NumberMatch",
        "covey.rewards.ExactMatch",
        "covey.rewards.MultipleChoice",
        "covey.rewards.Countdown",
        "covey.rewards.ThinkFormat",
        "covey.rewards.Tagged",
        "covey.rewards.BoxedFormat",
        "covey.rewards.JsonFormat",
        "covey.rewards.SoftOverlong",
        "covey.rewards.CosineLength",
        "covey.rewards.LengthBudget",
        "covey.rewards.Repetition",
        "covey.rewards.AssertTests",
        "covey.rewards.CallTests",
        "covey.rewards.StdioTests",
        "covey.rewards.Sandbox",
        "covey.rewards.Judge",
        "covey.rewards.Rubric",
        "covey.rewards.OpenAIClient",
        "covey.rewards.RewardModel",
        "covey.rewards.load_reward_model",
    ],
    "Rewards under TRL's names": [
        "covey.rewards.accuracy_reward",
        "covey.rewards.reasoning_accuracy_reward",
        "covey.rewards.think_format_reward",
        "covey.rewards.get_soft_overlong_punishment",
    ],
    "Tools": [
        "covey.tools.tool",
        "covey.tools.Tags",
        "covey.tools.Python",
        "covey.tools.PythonInterpreter",
        "covey.tools.Search",
    ],
    "Score": [
        "covey.score.advantages.group_advantages",
    ],
    "Update": [
        "covey.update.terms.LossTerms",
        "covey.update.objective.Objective",
        "covey.update.reduction.row_weights",
        "covey.update.losses.clipped.clipped_loss",
        "covey.metrics.Mean",
    ],
    "Runs": [
        "covey.runs.open",
        "covey.runs.RunWriter",
        "covey.recipes.Recipe",
    ],
    "Errors": [
        "covey.errors.CoveyError",
        "covey.errors.ConfigError",
        "covey.errors.DatasetError",
        "covey.errors.LoadingError",
        "covey.errors.RewardError",
        "covey.errors.ToolError",
        "covey.errors.SandboxError",
        "covey.errors.EngineError",
        "covey.errors.CheckpointError",
        "covey.errors.DivergedError",
        "covey.errors.CoveyWarning",
    ],
}

HEAD = """\
# Promised names

These names, their arguments and what they return stay as they are from one release to the next; a change of one is
announced in the [changelog](../CHANGELOG.md). Everything else is built to be read, and may change without notice.
`GRPOConfig` has a [page of its settings](losses.md) and `covey plan`; the rewards have a [cookbook](rewards.md).

This page is made from the docstrings: `python tools/api.py`.
"""


def find(name: str) -> object:
    """Return what a dotted name stands for.

    Raises:
        AttributeError: there is no such name.
    """
    module, _, attribute = name.rpartition(".")
    found: object = getattr(importlib.import_module(module), attribute)
    return found


def signature(name: str, found: object) -> str:
    """Return the call as one writes it; nothing where it cannot be called."""
    if isinstance(found, type) and (
        issubclass(found, BaseException) or getattr(found, "_is_protocol", False)
    ):
        return name
    try:
        call = inspect.signature(found)  # type: ignore[arg-type]  # asked of callables and others
    except (TypeError, ValueError):
        return name
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in call.parameters.values()]
    if len(shown) > 30:
        return f"{name}(...)"
    return name + str(call.replace(parameters=shown, return_annotation=inspect.Signature.empty))


def fields_of(found: object) -> list[str]:
    """Return the fields of a dataclass as one writes and explains them; nothing for others, and for settings."""
    if not dataclasses.is_dataclass(found) or len(dataclasses.fields(found)) > 30:
        return []
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body  # type: ignore[arg-type]  # a class
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    lines = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            lines.append(f"    {ast.unparse(node)}")
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                lines.append(textwrap.indent(inspect.cleandoc(str(after.value.value)), " " * 8))
    return ["", "Fields:", *lines] if lines else []


def entry(name: str) -> str:
    """Return the entry of one name: its call, its docstring, and the fields of a dataclass."""
    found = find(name)
    text = [signature(name, found), "", inspect.getdoc(found) or "", *fields_of(found)]
    return "\n".join([f"### `{name}`", "", "```text", *text, "```", ""])


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, names in PROMISED.items():
        parts += [f"## {title}\n", *map(entry, names)]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
