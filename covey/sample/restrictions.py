"""Which tokens may not be drawn next: minimum length, suppressed tokens, bad words, repeated n-grams.

Pure functions of the settings and of what was said so far. Called only where one of these options is set.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.sample.settings import Sampling


def has_restrictions(settings: Sampling) -> bool:
    """Whether any of these options is set."""
    return bool(
        settings.min_new_tokens
        or settings.suppress_tokens
        or settings.begin_suppress_tokens
        or settings.bad_words_ids
        or settings.no_repeat_ngram_size
    )


def forbidden(settings: Sampling, prompt: Sequence[int], written: Sequence[int]) -> set[int]:
    """Ids that may not follow `prompt` + `written`."""
    ids = set(settings.suppress_tokens)
    if len(written) < settings.min_new_tokens:
        ids.update(settings.stop_ids)
    if not written:
        ids.update(settings.begin_suppress_tokens)
    if settings.bad_words_ids or settings.no_repeat_ngram_size:
        said = [*prompt, *written]
        ids.update(_ends_of_bad_words(settings.bad_words_ids, said))
        ids.update(_ends_of_repeats(settings.no_repeat_ngram_size, said))
    return ids


def _ends_of_bad_words(words: Sequence[Sequence[int]], said: list[int]) -> set[int]:
    return {word[-1] for word in words if word and list(word[:-1]) == said[len(said) - len(word) + 1 :]}


def _ends_of_repeats(size: int, said: list[int]) -> set[int]:
    if size < 1 or len(said) < size:
        return set()
    tail = said[len(said) - size + 1 :]
    return {said[i + size - 1] for i in range(len(said) - size + 1) if said[i : i + size - 1] == tail}
