"""A reward: any callable `f(completions, ...)` that returns one number or None per completion.

`Reward` wraps a callable with what the rest of Covey needs to know of it: a name, the arguments that it asks for,
whether it is a coroutine, its options. It passes only what the signature names (or everything to `**kwargs`), and turns
what comes back into scores, or into an error that names the reward, what was expected and what came.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, overload

from covey.errors import RewardError
from covey.rewards.batch import ON_REQUEST, RESERVED, Notes, RewardBatch
from covey.rewards.bounds import TWO_WEIGHTS
from covey.rewards.options import DECORATED, RewardOptions, reward_name
from covey.rewards.own import own
from covey.rewards.results import CONTAINERS, listed, number, shown
from covey.rewards.sandbox.limits import check_can_fork
from covey.rewards.signature import judges, open_parameters
from covey.types import Score

RewardFunction = Callable[..., Any]
"""Called by keyword with what its signature names; returns one number or None per completion."""
F = TypeVar("F", bound=RewardFunction)
V = TypeVar("V")

NOT_FINITE = "is not a finite number"
"""End of the reason of a failure that the reward itself did not explain."""


class Failure(float):
    """NaN with a reason. A reward returns it where it could not judge a completion, and that is not the policy's fault.

    The sample is left out; it does not count as 0. To other libraries it is a plain NaN.

        >>> scores = [1.0, Failure("the judge did not answer"), 0.0]
    """

    reason: str

    def __new__(cls, reason: str) -> Failure:
        failure = super().__new__(cls, math.nan)
        failure.reason = reason
        return failure

    def __reduce__(self) -> tuple[type[Failure], tuple[str]]:
        return Failure, (self.reason,)

    def __repr__(self) -> str:
        return f"Failure({self.reason!r})"


@dataclass(eq=False)
class Reward:
    """A callable, its name, options and arguments. It is itself a plain reward function.

    `names` are the arguments it asks for; `required` those without a default; `takes_all` says that it has `**kwargs`
    and gets everything.

    Raises:
        RewardError: it cannot be called by keyword, or its options ask for what cannot be kept.
    """

    function: RewardFunction
    name: str
    options: RewardOptions = None  # type: ignore[assignment]
    """Terms under which it takes part; by default those that the function brings along."""
    names: frozenset[str] = field(init=False)
    required: frozenset[str] = field(init=False)
    takes_all: bool = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        parameters = _parameters(self.function, self.name)
        by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.names, self.takes_all = frozenset(by_name), any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.required = frozenset(n for n, p in by_name.items() if p.default is p.empty)
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        self.is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        options = self.options = self.options or options_of(self.function)
        self.__name__ = self.name
        if self.is_async and options.where != "inline":
            raise RewardError(
                f"Reward {self.name!r} is a coroutine function, which runs on the event loop; leave where={options.where!r} out."
            )
        if options.where in ("process", "sandbox"):
            check_can_fork(f"Reward {self.name!r} (where={options.where!r}) is run")
        if options.timeout is not None and options.where == "inline" and not self.is_async:
            raise RewardError(
                f"Reward {self.name!r}: timeout={options.timeout} cannot be kept inline, where nothing can interrupt a "
                "function. Use where='process' (killed at the deadline), 'thread' (given up, runs on) or 'sandbox'."
            )

    @property
    def is_inline(self) -> bool:
        """Whether it runs in the caller's own thread."""
        return self.options.where == "inline" and not self.is_async

    def missing_columns(self, columns: Iterable[str]) -> list[str]:
        """Return the required arguments that neither Covey nor the dataset provides.

        A callable may know better than its signature says, and have a method `missing_columns` of its own.
        """
        columns = list(columns)
        missing = self.required - set(columns) - set(RESERVED)
        asked = getattr(self.function, "missing_columns", None)
        return sorted(missing | set(asked(columns) if asked is not None else ()))

    def __call__(self, **arguments: object) -> object:
        """Call the function with those of the arguments that it asks for; a coroutine function returns a coroutine."""
        return self.function(**self.wanted(arguments))

    def arguments(self, batch: RewardBatch, notes: Notes, opens: bool = True) -> dict[str, object]:
        """Return what the function asks for of a batch, in lists and dictionaries of its own for each sample.

        It may change them: no other sample, reward, record or dataset holds them too.

        Args:
            opens: whether a picture is a PIL image, one for all completions and rewards; False: it stays a reference.
        """
        wanted, album = self.wanted(batch.arguments(notes)), batch.album if opens else None
        return {name: own(v, album) if isinstance(v, list) else v for name, v in wanted.items()}

    def wanted(self, arguments: Mapping[str, V]) -> dict[str, V]:
        """Return those of the arguments that the function asks for: what its signature names, or all for `**kwargs`."""
        names = self.names | {name for name in arguments if self.takes_all and name not in ON_REQUEST}
        return {name: value for name, value in arguments.items() if name in names}

    def scores(self, result: object, expected: int) -> list[Score]:
        """Return the result of a call as scores.

        Raises:
            RewardError: wrong container, wrong length, or a value that is neither a number nor None.
        """
        values = self.values(result, expected)
        return [self.score(value, row) for row, value in enumerate(values)]

    def values(self, result: object, expected: int) -> Sequence[object]:
        """Return the result of a call as a sequence of the right length; its elements are not looked at.

        Raises:
            RewardError: wrong container or wrong length.
        """
        values = listed(result, expected)
        if values is None:
            raise RewardError(
                f"Reward {self.name!r} returned {shown(result)} for {expected} completions. Return a list with one "
                "number per completion, None where the reward does not apply."
            )
        if len(values) != expected:
            raise RewardError(
                f"Reward {self.name!r} returned {len(values)} values for {expected} completions. Return one number per "
                f"completion, None where the reward does not apply.{_advice(result)}"
            )
        return values

    def score(self, value: object, row: int, num_turns: int | None = None) -> Score:
        """Return one value as a score; NaN and infinities are failures.

        Args:
            num_turns: turns of the completion, which may be judged turn by turn, with a list of so many numbers. None: it was
                sampled in one piece.

        Raises:
            RewardError: neither a number nor None, nor one number for each turn.
        """
        if value is None:
            return Score(None, "not_applicable")
        if num_turns is not None and (by_turn := listed(value, num_turns)) is not None:
            return self._score_of_turns(by_turn, row, num_turns)
        try:
            found = number(value)
        except (TypeError, ValueError, RuntimeError):
            raise RewardError(
                f"Reward {self.name!r} returned {shown(value)} for completion {row}. Return a number, or None where "
                f"the reward does not apply.{_advice(value)}"
            ) from None
        if not math.isfinite(found):
            reason = value.reason if isinstance(value, Failure) else f"{found} {NOT_FINITE}"
            return Score(None, "failed", reason)
        return Score(found)

    def _score_of_turns(self, values: Sequence[object], row: int, num_turns: int) -> Score:
        """Return the score of a completion that was judged turn by turn: the sum, and its parts; None counts as 0."""
        if len(values) != num_turns:
            raise RewardError(
                f"Reward {self.name!r} returned {len(values)} values for completion {row}, which has {num_turns} turns. Return "
                "one number, or one for each turn of the policy."
            )
        parts = [Score(0.0) if value is None else self.score(value, row) for value in values]
        failed = next((part for part in parts if part.status == "failed"), None)
        numbers = tuple(part.value or 0.0 for part in parts)
        return failed or Score(math.fsum(numbers), turns=numbers or None)


@overload
def reward(function: RewardFunction, /, *, name: str | None = None, **options: object) -> Reward: ...
@overload
def reward(function: None = None, /, *, name: str | None = None, **options: object) -> Callable[[F], F]: ...
def reward(
    function: RewardFunction | None = None, /, *, name: str | None = None, **options: object
) -> Reward | Callable[[F], F]:
    """Give a reward its terms, as a decorator or as a call.

        @reward(weight=0.5, tasks="code", requires="format")
        def tidy(completions, **_):
            return [...]

        Mixture(ThinkFormat(), reward(Countdown(), weight=2.0, tasks={"countdown"}))

    A decorated function stays a plain function that any trainer can call. The call form returns a new `Reward` beside the
    function, so one function can take part twice under different terms.

    Args:
        name: its name in metrics.
        options: those of `RewardOptions`.

    Raises:
        RewardError: an option that does not exist or cannot be kept.
    """
    if function is not None:
        return Reward(function, name or reward_name(function), options_of(function, **options))

    def decorate(decorated: F) -> F:
        called = name or reward_name(decorated)
        setattr(decorated, DECORATED, (called, options_of(decorated, **options)))
        if not isinstance(decorated, type):  # objects of a class have its terms
            Reward(decorated, called)  # raises now what a mixture would raise later
        return decorated

    return decorate


def options_of(function: RewardFunction, **given: object) -> RewardOptions:
    """Return the options of a function: its own, over them those of its decorator, over them those given here."""
    if isinstance(function, Reward):
        base = function.options
    elif getattr(function, DECORATED, None) is not None:
        base = getattr(function, DECORATED)[1]
    else:
        base = RewardOptions(pure=getattr(function, "pure", False) is True)
    own = {field.name: getattr(base, field.name) for field in fields(base)}
    whole = RewardOptions.of(reward_name(function), **{**own, **given})
    if whole.bound is not None and "weight" in given:
        raise RewardError(f"Reward {reward_name(function)!r}: {TWO_WEIGHTS}")
    return whole


def _parameters(function: RewardFunction, name: str) -> list[inspect.Parameter]:
    """Return the arguments that are still open: those bound by a partial are the user's business."""
    if not callable(function):
        raise RewardError(
            f"Reward {name!r} is {shown(function)}, which cannot be called. A reward is a function, a coroutine "
            "function, an object with __call__, a module, or the name of a reward model."
        )
    if hasattr(function, "forward") and hasattr(function, "parameters"):
        raise RewardError(
            f"Reward {name!r} is a model. Give it with its tokenizer: RewardModel(model, tokenizer)."
        )
    if isinstance(function, type):
        raise RewardError(f"Reward {name!r} is a class. Give an object of it: {function.__name__}(...).")
    try:
        parameters = open_parameters(function)
    except ValueError:
        raise RewardError(
            f"Reward {name!r} does not say what it takes: it has no signature, as functions written in C. Wrap it in a "
            "function with the argument `completions`."
        ) from None
    for p in parameters:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise RewardError(
                f"Reward {name!r} takes {p.name!r} by position only. Rewards are called by keyword: "
                f"f(completions=..., prompts=..., <columns>=...)."
            )
    if not judges(parameters):
        raise RewardError(_what_a_reward_is(name, [p.name for p in parameters]))
    return parameters


def _what_a_reward_is(name: str, taken: Sequence[str]) -> str:
    """Return what to tell somebody whose function sees no completions."""
    makes = name.startswith(("get_", "make_", "build_", "create_"))
    return (
        f"Reward {name!r} takes {', '.join(taken) or 'nothing that is still open'}: neither `completions` nor `prompts`, so that "
        "it cannot judge. A reward gets the completions of a whole batch and columns of the dataset, by keyword, and returns "
        "one number per completion. "
        + (f"If {name} returns a reward, call it and give what comes back. " if makes else "")
        + f"A function of one text is wrapped: def reward(completions, **columns): return [{name}(text, ...) for text in "
        "completions]."
    )


def _advice(value: object) -> str:
    """Return what to do with more than one value per completion; nothing for what is none."""
    return " What else there is to say of each completion goes to log_extra(column, values)." * isinstance(
        value, CONTAINERS
    )
