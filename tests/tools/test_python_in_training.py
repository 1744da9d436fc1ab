"""Python for a policy, in a run: each completion has an interpreter of its own, and the end of the run leaves none."""

import psutil
import pytest
from datasets import Dataset

from covey import GRPOConfig, GRPOTrainer
from covey.tasks import calculator_reward, calculator_rows
from covey.tasks.assets import CALCULATOR_POLICY
from covey.tools import Python, PythonInterpreter, tool
from tests.clocks import PATIENCE, eventually


class Desk:
    """The bundled policy knows a tool of this name; here Python computes, and counts how often it was asked."""

    def __init__(self, python: Python) -> None:
        self._interpreter = PythonInterpreter(python)

    def reset(self, **row: object) -> None:
        self._interpreter.reset()

    @tool(where="thread")
    def calculator(self, expression: str) -> str:
        """Compute an expression.

        Args:
            expression: what to compute
        """
        self._interpreter.python("times = globals().get('times', 0) + 1")
        return self._interpreter.python(expression)

    def get_reward(self) -> float:
        return float(self._interpreter.python("globals().get('times', 0)"))

    def close(self) -> None:
        self._interpreter.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Reports of two steps, and whether few processes are left by its environments, and none by it."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    python = Python(seconds=PATIENCE, preload=())
    seen = []

    def right(completions, value, environments, **columns):
        scores = calculator_reward(completions, value)
        asked = [sum(len(m.get("tool_calls", ())) for m in completion) for completion in completions]
        told = [sum(m["role"] == "tool" and "'error'" not in m["content"] for m in c) for c in completions]
        counted = [int(environment.get_reward()) for environment in environments]
        seen.extend(zip(scores, told, counted, asked, strict=True))
        return scores

    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("run")),
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=64,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        display="plain",
    )
    data = Dataset.from_list(calculator_rows(8))
    trainer = GRPOTrainer(str(CALCULATOR_POLICY), right, args, data, environment_factory=lambda: Desk(python))
    trainer.train()
    trainer.agents.environments.close()
    # The process that starts interpreters, and its own in a namespace.
    few = eventually(lambda: len({p.pid for p in psutil.Process().children(recursive=True)} - before) <= 2)
    python.close()
    none = eventually(lambda: not {p.pid for p in psutil.Process().children(recursive=True)} - before)
    return seen, few, none


def test_each_completion_has_an_interpreter_of_its_own(trained):
    seen = trained[0]

    assert len(seen) == 32 and sum(told for _, told, _, _ in seen) > 4
    assert all(told <= counted <= asked for _, told, counted, asked in seen)


def test_python_computes_what_the_policy_asks(trained):
    assert sum(score for score, told, _, _ in trained[0] if told) > 0


def test_the_run_leaves_no_interpreter(trained):
    _, few, none = trained

    assert few and none
