"""The protocol of a server: a process elsewhere that samples. One file per kind says how it is spoken to.

A server is asked by ids and answers with ids: text that is read into ids again gives others. It knows nothing of groups, rollouts
or runs; what it serves is told by its label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from covey.errors import CoveyError, EngineError
from covey.sample.sampling import Sampling
from covey.sample.turns import TurnEnd
from covey.types import Prompt

ServerKind = Literal["vllm", "sglang", "covey"]
"""Programs that serve a policy."""

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
Call = Callable[Concatenate[Any, Asked], Answer]

UNLABELLED = "default"
"""The label of a server that nobody has sent weights to: it was started, or started again."""


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Completions of one prompt that a server is to draw, or the next turn of one of them.

    The random numbers hang on the run's seed, the step, the prompt's `seed_key`, the completion's index and its place in the
    completion; so the same request draws the same, whichever server gets it, how often, and beside what.
    """

    prompt: Prompt
    settings: Sampling
    first: int = 0
    """Index in the group of the first completion."""
    count: int = 1
    """Completions; 1 where `given` goes on."""
    given: tuple[int, ...] = ()
    """The completion so far, opening included, where its next turn is drawn."""
    opening: int = 0
    """Ids at the beginning of `given` that take no random number."""
    room: int | None = None
    """Tokens of this turn at most; None: what `settings` allow."""
    adapter: str | None = None
    """Name of the adapter to draw with; None: the weights that the server holds."""

    @property
    def limit(self) -> int:
        """Tokens of this turn at most."""
        return self.settings.longest_turn if self.room is None else self.room


@dataclass(frozen=True, slots=True)
class Drawn:
    """One turn that a server drew."""

    ids: tuple[int, ...]
    """Without padding; an end-of-sequence id, where one ended it, is the last."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id under the distribution that it was drawn from."""
    reason: TurnEnd
    policy_logprobs: tuple[float, ...] | None = None
    """The same under the policy's own distribution at the temperature; None: not known, or no other."""
    label: str | None = None
    """Of the oldest weights that it was drawn with; None: the answer does not say."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that a server tells about itself. None: it does not say."""

    kind: ServerKind
    release: str | None = None
    model: str = ""
    """The name under which it serves its own weights."""
    dtype: str | None = None
    """As torch names it: "float32"."""
    device: str | None = None
    max_length: int | None = None
    """Tokens of prompt and completion together."""
    logprobs_mode: str | None = None
    """What vLLM calls so: processed_logprobs are those of the distribution that was drawn from."""
    quantization: str | None = None
    max_adapter_rank: int | None = None
    """Largest rank of an adapter that it takes; None: it takes none, or does not say."""
    chunks_prompts: bool | None = None
    """Whether it reads long prompts in pieces."""
    drafts_tokens: bool | None = None
    """Whether a second model proposes tokens."""

    def __post_init__(self) -> None:
        for name, kind in (("dtype", str), ("max_length", int), ("max_adapter_rank", int)):
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise TypeError(f"{name} is {value!r}")


def reads_answers(call: Call[Asked, Answer]) -> Call[Asked, Answer]:
    """Return a server's method that raises EngineError for an answer which is made otherwise than the method reads it.

    A boundary: an answer is foreign input, and any part of it may be missing or of another type.
    """

    @wraps(call)
    def read(self: Any, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        try:
            return call(self, *args, **kwargs)
        except CoveyError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            what = call.__name__.replace("_", " ")
            raise EngineError(
                f"{self.url} answered in a form that is not known here, when it was asked for {what} ({type(error).__name__}: {error}). "
                f"It is no {self.kind} server, or its release is not one that this version of Covey knows."
            ) from error

    return read


class Server(Protocol):
    """One server. Every call has a deadline and raises EngineError with what the server said.

    Attributes:
        url: where it is, without a slash at the end.
        kind: which program it is.
        gives_policy_logprobs: whether it says the policy's own log-probabilities where options change the distribution.
        swaps_in_flight: whether it has `swap`.
    """

    url: str
    kind: ServerKind
    gives_policy_logprobs: bool
    swaps_in_flight: bool

    def facts(self) -> ServerFacts:
        """Ask what it is."""
        ...

    def draw(self, request: DrawRequest) -> list[Drawn]:
        """Draw completions, in the order of their indices.

        Raises:
            ServerLost: it is gone, or gave up: the same request may be sent again, here or elsewhere.
            EngineError: it refuses the request, or its answer is no answer.
        """
        ...

    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """Return the log-probability of each id but the first, after those before it, at temperature 1."""
        ...

    def label(self) -> str:
        """Return the label of the weights that it serves; `UNLABELLED` after its start."""
        ...

    def update(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder, and nothing else from then on: no key or value of older ones is left.

        Weights that are not in the folder stay as they are. Waits for requests that run. Where the new weights are refused, it is
        left as it was, or lost.

        Args:
            folder: absolute path of safetensors files, readable where the server is.
        """
        ...

    def swap(self, folder: Path, label: str) -> None:
        """Do as `update` does, without waiting for requests: those that run or wait go on with the new weights.

        No key or value of older weights is left: those of a text that is half drawn are computed anew.

        Raises:
            EngineError: it cannot, or refuses them.
        """
        ...

    def load_adapter(self, name: str, folder: Path) -> None:
        """Have it hold an adapter beside its weights, under a name that was never used before."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Have it forget an adapter."""
        ...

    def sleep(self, keeps_weights: bool) -> None:
        """Have it give back the memory of its cache, and of its weights unless they are to be kept."""
        ...

    def wake(self) -> None:
        """Have it take its memory back. Weights that were not kept have to be sent again before anything is drawn."""
        ...

    def progress(self) -> int | None:
        """Return how many tokens it has drawn since its start; None: it does not say. Stands still where it hangs."""
        ...

    def is_alive(self) -> bool:
        """Return whether it answers at once."""
        ...
