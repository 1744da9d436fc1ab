"""TRL's reward functions under their own names, on top of ours: `from covey.rewards import accuracy_reward`.

Arguments, their order, the names in metrics and the numbers are those of `trl.rewards`. What differs is how an answer is
found and compared, which is `SameAnswer`'s way (docs/from-trl.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from covey.rewards.rules.equivalence import SameAnswer, gold_answer, is_words, plain
from covey.rewards.rules.lengths import CosineLength, SoftOverlong
from covey.rewards.rules.repetition import Repetition
from covey.rewards.text import text_of
from covey.types import PromptContent

LogMetric = Callable[[str, float], None]

_same_answer = cache(partial(SameAnswer, gold="solution", sources=("boxed", "answer", "phrase")))


def accuracy_reward(
    completions: Sequence[PromptContent],
    solution: Sequence[object],
    log_extra: object = None,
    prompts: Sequence[PromptContent] | None = None,
    log_metric: LogMetric | None = None,
    **_: object,
) -> list[float | None]:
    """Return 1.0 where the completion's last box is equivalent to the solution, else 0.0; None for an unreadable solution.

    The answer may also stand in an `<answer>` block or after "answer is". A solution in words cannot be read: `SameAnswer` compares words.

    Args:
        completions, solution: texts or messages, and the right answer of each, in LaTeX or plain.
        log_extra: stands for TRL's order of arguments, and is not called.
        prompts: what the completions answer; an answer that only repeats the prompt's example does not count.
        log_metric: called with the share of solutions that cannot be read.
    """
    solution = ["" if is_words(plain(gold_answer(gold) or "")) else gold for gold in solution]
    return _same_answer()(completions, prompts, log_metric, solution=solution)


def reasoning_accuracy_reward(
    completions: Sequence[PromptContent],
    solution: Sequence[object],
    reasoning_delimiters: Sequence[str] | None = None,
    log_extra: object = None,
    prompts: Sequence[PromptContent] | None = None,
    log_metric: LogMetric | None = None,
    **_: object,
) -> list[float | None]:
    """Return `accuracy_reward` of what follows the reasoning; 0.0 where the reasoning does not end.

    Args:
        completions, solution, prompts, log_metric: as in `accuracy_reward`.
        reasoning_delimiters: texts that end the reasoning, the last occurrence of any of them; by default `</think>`.
        log_extra: is not called.
    """
    delimiters = ("</think>",) if reasoning_delimiters is None else reasoning_delimiters
    texts = [text_of(completion) for completion in completions]
    starts = [max((text.rfind(d) + len(d) for d in delimiters if d in text), default=None) for text in texts]
    answers = ["" if start is None else text[start:] for text, start in zip(texts, starts, strict=True)]
    scores = accuracy_reward(answers, solution, prompts=prompts, log_metric=log_metric)
    return [0.0 if start is None else score for score, start in zip(scores, starts, strict=True)]


def think_format_reward(completions: Sequence[PromptContent], **_: object) -> list[float]:
    """Return 1.0 where the completion begins with `<think>`, which stands nowhere else, and `</think>` follows; else 0.0.

    It may be blank inside and end there. `ThinkFormat` asks for an answer block too.
    """
    texts = [text_of(completion) for completion in completions]
    return [
        float(text.startswith("<think>") and text.count("<think>") == 1 and "</think>" in text)
        for text in texts
    ]


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> SoftOverlong:
    """Return `SoftOverlong`: DAPO's equation 13 (arXiv:2503.14476), in tokens.

    Args:
        max_completion_len: longest completion.
        soft_punish_cache: width of the slope before it; 0: no slope.
    """
    reward = SoftOverlong(max_completion_len, soft_punish_cache)
    reward.__name__ = "soft_overlong_punishment_reward"
    return reward


def get_cosine_scaled_reward(
    max_len: int,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> Callable[..., list[float | None]]:
    """Return `CosineLength` of `accuracy_reward`: scaled by length in tokens along a half cosine (arXiv:2502.03373).

    Args:
        max_len: length in tokens from which on the value does not change.
        min_value_wrong, max_value_wrong: of a wrong answer at length 0 and at `max_len`.
        min_value_correct, max_value_correct: of a right answer at `max_len` and at length 0.
    """
    right, wrong = (max_value_correct, min_value_correct), (min_value_wrong, max_value_wrong)
    reward = _CosineScaled(accuracy_reward, max_len, right, wrong)
    reward.__name__ = "cosine_scaled_reward"
    return reward


def get_repetition_penalty_reward(
    ngram_size: int = 3, max_penalty: float = -1.0
) -> Callable[..., list[float]]:
    """Return `Repetition` over token ids: the share of repeated n-grams × `max_penalty` (arXiv:2502.03373, C.2)."""
    reward = _RepetitionPenalty(ngram_size, max_penalty)
    reward.__name__ = "repetition_penalty_reward"
    return reward


class _CosineScaled(CosineLength):
    """`CosineLength` with TRL's order of arguments."""

    def __call__(  # type: ignore[override]  # TRL's order of arguments
        self,
        completions: Sequence[PromptContent],
        solution: Sequence[object],
        completion_ids: Sequence[Sequence[int]],
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **columns: object,
    ) -> list[float | None]:
        return super().__call__(
            completions, completion_ids, completion_masks=completion_masks, solution=solution, **columns
        )


class _RepetitionPenalty(Repetition):
    """`Repetition` with TRL's order of arguments."""

    def __call__(  # type: ignore[override]  # TRL's order of arguments
        self,
        completion_ids: Sequence[Sequence[int]],
        completion_masks: Sequence[Sequence[bool]] | None = None,
        **_: object,
    ) -> list[float]:
        return super().__call__((), completion_ids, completion_masks)
