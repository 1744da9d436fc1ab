"""Rewards that run code: function calls, programs, assertions.

What the code does wrong (a wrong value, endless loops, crashes, floods) counts as a test that is not passed. What is
not its fault (a test that cannot be judged, a sandbox that broke down) is a `Failure`: the sample is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, get_args

from covey.errors import RewardError
from covey.rewards.contract import Failure
from covey.rewards.rules.extract import texts_without_echo
from covey.rewards.sandbox.extract import extract_code
from covey.rewards.sandbox.grade import (
    OUR_FAULTS,
    AssertsJob,
    Call,
    CallsJob,
    Job,
    RunStatus,
    StdioJob,
)
from covey.rewards.sandbox.limits import check_can_fork
from covey.rewards.sandbox.sandbox import Sandbox, shared_sandbox
from covey.types import PromptContent

Scoring = Literal["share", "all"]
LogMetric = Callable[[str, float], None]


class _CodeReward:
    """Base of the rewards that run code: jobs from completions, numbers from grades."""

    pure = True
    _name: ClassVar[str]

    def __init__(
        self, scoring: Scoring = "share", sandbox: Sandbox | None = None, tests: str = "tests"
    ) -> None:
        if scoring not in ("share", "all"):
            raise ValueError(
                f"scoring={scoring!r}: 'share' pays the share of tests passed, 'all' all or nothing."
            )
        if sandbox is None:  # the shared one is made at the first job, which is too late for bad news
            check_can_fork(f"{type(self).__name__}, a code reward, runs a completion's code")
        self.scoring = scoring
        self._sandbox = sandbox
        self.tests = tests
        self.__name__ = self._name

    @property
    def sandbox(self) -> Sandbox:
        return self._sandbox or shared_sandbox()

    def missing_columns(self, columns: Sequence[str]) -> list[str]:
        return [] if self.tests in columns else [self.tests]

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        log_metric: LogMetric | None = None,
        **columns: object,
    ) -> list[float | None]:
        codes = [extract_code(text) for text in texts_without_echo(completions, prompts)]
        rows: list[dict[str, object]] = [{} for _ in codes]
        for name, values in columns.items():
            if isinstance(values, Sequence) and not isinstance(values, str):
                for row, value in zip(rows, values, strict=False):
                    row[name] = value
        applies = [row.get(self.tests) is not None for row in rows]
        jobs: dict[int, Job] = {}
        for i, code in enumerate(codes):
            if not applies[i] or code is None:
                continue
            try:
                jobs[i] = self.make_job(code, rows[i])
            except (RewardError, TypeError, ValueError, KeyError, RecursionError) as error:
                reason = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
                raise RewardError(
                    f"Reward {self.__name__!r}: the tests of row {i} of the batch cannot be read. {reason}"
                ) from None
        graded = self.sandbox.grade_all(list(jobs.values()), self.scoring == "all") if jobs else []
        grades = dict(zip(jobs, graded, strict=True))
        if log_metric is not None and any(applies):
            # also the shares of what did not happen, so that curves have no holes
            counts = Counter(
                grades[i].status if i in grades else "no_code" for i in range(len(codes)) if applies[i]
            )
            for status in (*get_args(RunStatus), "no_code"):
                log_metric(f"code/{status}_share", counts[status] / sum(applies))
        scores: list[float | None] = [0.0 if is_judged else None for is_judged in applies]
        for i, grade in grades.items():
            if grade.status in OUR_FAULTS:
                scores[i] = Failure(grade.detail)
            else:
                scores[i] = grade.passed_share if self.scoring == "share" else float(grade.status == "ok")
        return scores

    def make_job(self, code: str, row: Mapping[str, object]) -> Job:
        """Return the job of one completion.

        Args:
            code: of the completion.
            row: the dataset's columns of its row.

        Raises:
            RewardError: the row's tests are none.
        """
        raise NotImplementedError


class CallTests(_CodeReward):
    """Calls functions of the completion's code and compares what they return.

    Args:
        scoring: `share` of the tests passed, or 1.0 for `all` of them.
        sandbox: where the code runs; by default one that they share, isolated by seccomp or better.
        tests: the column of tests. A row's tests are a list, or its JSON text, of
            `{"args": [...], "expected": value}`, with `"kwargs"` and `"name"` where needed.
        entry_point: the column with the function's name, for tests without a `"name"`.

    A row without tests is not applicable: None.
    """

    _name = "call_tests"

    def __init__(
        self,
        scoring: Scoring = "share",
        sandbox: Sandbox | None = None,
        tests: str = "tests",
        entry_point: str = "entry_point",
    ) -> None:
        super().__init__(scoring, sandbox, tests)
        self.entry_point = entry_point

    def make_job(self, code: str, row: Mapping[str, object]) -> Job:
        calls = []
        for test in _listed(row[self.tests], self.__name__):
            if not isinstance(test, Mapping) or "args" not in test or "expected" not in test:
                raise _bad_test(self.__name__, test, '{"args": [...], "expected": value}')
            name = test.get("name") or row.get(self.entry_point)
            if not isinstance(name, str):
                raise RewardError(
                    f"Reward {self.__name__!r}: a test names no function, and the row has no {self.entry_point!r}: {test!r}."
                )
            calls.append(Call(name, tuple(test["args"]), test["expected"], dict(test.get("kwargs") or {})))
        return CallsJob(code, tuple(calls))


class StdioTests(_CodeReward):
    """Runs the completion's code as a program and compares what it writes.

    Lines are compared without spaces at their end; empty lines at the end do not count.

    Args:
        scoring: `share` of the tests passed, or 1.0 for `all` of them.
        sandbox: where the code runs; by default one that they share, isolated by seccomp or better.
        tests: the column of tests. A row's tests are a list, or its JSON text, of `{"input": text, "output": text}`; or
            one object with the lists `"inputs"` and `"outputs"`.

    A row without tests is not applicable: None.
    """

    _name = "stdio_tests"

    def make_job(self, code: str, row: Mapping[str, object]) -> Job:
        given = row[self.tests]
        given = json.loads(given) if isinstance(given, str) else given
        if isinstance(given, Mapping) and "inputs" in given:
            pairs = zip(given["inputs"], given["outputs"], strict=True)
            return StdioJob(code, tuple((str(i), str(o)) for i, o in pairs))
        tests = []
        for test in _listed(given, self.__name__):
            fields = test if isinstance(test, Mapping) else {}
            stdin, stdout = ("input", "output") if "output" in fields else ("stdin", "stdout")
            if stdout not in fields:
                raise _bad_test(self.__name__, test, '{"input": text, "output": text}')
            tests.append((str(fields.get(stdin) or ""), str(fields[stdout])))
        return StdioJob(code, tuple(tests))


class AssertTests(_CodeReward):
    """Runs statements, `assert f(2) == 4`, against the completion's code.

    They run in a process of their own, where the code's functions are proxies. Tests that hand over functions or objects,
    or ask for methods of what is returned, cannot be judged; they fail as a check of the dataset shows.

    Args:
        scoring: `share` of the tests passed, or 1.0 for `all` of them.
        sandbox: where the code runs; by default one that they share, isolated by seccomp or better.
        tests: the column of tests: a list of statements, or one text.
        entry_point: the column with the name of the function that the tests call `candidate`. A text of tests that
            defines `check` is called with it, as HumanEval's are.
        setup: the column with what is executed before the tests.

    A row without tests is not applicable: None.
    """

    _name = "assert_tests"

    def __init__(
        self,
        scoring: Scoring = "share",
        sandbox: Sandbox | None = None,
        tests: str = "tests",
        entry_point: str = "entry_point",
        setup: str = "test_setup_code",
    ) -> None:
        super().__init__(scoring, sandbox, tests)
        self.entry_point, self.setup = entry_point, setup

    def make_job(self, code: str, row: Mapping[str, object]) -> Job:
        given = row[self.tests]
        tests = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
        if not all(isinstance(test, str) for test in tests) or not tests:
            raise _bad_test(self.__name__, given, "a list of statements, or one text")
        entry_point = row.get(self.entry_point)
        names = {"candidate": str(entry_point)} if entry_point else {}
        if entry_point and len(tests) == 1 and "def check(" in tests[0] and "\ncheck(" not in tests[0]:
            tests = (f"{tests[0]}\ncheck(candidate)",)
        return AssertsJob(code, tests, str(row.get(self.setup) or ""), names)


def _listed(tests: object, reward: str) -> list[object]:
    """Return the tests of a row as a list.

    Raises:
        RewardError: they are none, or no list.
    """
    try:
        listed = json.loads(tests) if isinstance(tests, str) else tests
    except ValueError as error:
        raise RewardError(
            f"Reward {reward!r}: a row's tests are text that is no JSON ({error}): {str(tests)[:200]!r}."
        ) from None
    if not isinstance(listed, list | tuple) or not listed:
        raise _bad_test(reward, tests, "a list of tests that is not empty")
    return list(listed)


def _bad_test(reward: str, test: object, expected: str) -> RewardError:
    return RewardError(f"Reward {reward!r}: a row's tests are {repr(test)[:200]}; expected {expected}.")
