"""Restrictions on tensors equal a reference that looks at one sequence at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.sample.native.logits_processors import NOTHING, Restrictions
from covey.sample.sampling import Sampling

pytestmark = pytest.mark.any_version

VOCAB = 8
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=0, max_size=12)


def forbidden(options: Sampling, prompt: list[int], written: list[int]) -> set[int]:
    """The slow reference."""
    ids = set(options.suppress_tokens)
    if options.padding_id is not None:
        ids.add(options.padding_id)
    if len(written) < options.min_new_tokens:
        ids.update(options.stop_ids)
    if not written:
        ids.update(options.begin_suppress_tokens)
    tokens = prompt + written
    for word in options.bad_words_ids:
        if list(word[:-1]) == tokens[len(tokens) - len(word) + 1 :] and len(tokens) >= len(word) - 1:
            ids.add(word[-1])
    size = options.no_repeat_ngram_size
    if size and len(tokens) >= size:
        tail = tokens[len(tokens) - size + 1 :]
        ids.update(
            tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == tail
        )
    return ids


OPTIONS = st.builds(
    Sampling,
    max_new_tokens=st.just(12),
    stop_ids=st.just((2, 5)),
    padding_id=st.sampled_from([None, 0]),
    min_new_tokens=st.integers(0, 4),
    suppress_tokens=st.sampled_from([(), (3,), (1, 6)]),
    begin_suppress_tokens=st.sampled_from([(), (4, 7)]),
    bad_words_ids=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3).map(tuple), max_size=3
    ).map(tuple),
    no_repeat_ngram_size=st.integers(0, 3),
)


@given(OPTIONS, st.lists(st.tuples(TOKENS.filter(bool), TOKENS), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_restrictions_equal_the_reference(options, sequences):
    width = max(len(prompt) for prompt, _ in sequences)
    tokens = torch.full((len(sequences), width + 14), NOTHING)
    for row, (prompt, written) in zip(tokens, sequences, strict=True):
        row[width - len(prompt) : width] = torch.tensor(prompt)
        row[width : width + len(written)] = torch.tensor(written, dtype=torch.long)
    lengths = torch.tensor([len(written) for _, written in sequences])
    restrictions = Restrictions(options, VOCAB, tokens.device)
    history = (tokens, width + lengths) if restrictions.reads_history else (None, None)
    masks = restrictions.masks(lengths, *history)
    mask = torch.zeros(len(sequences), VOCAB, dtype=torch.bool)
    if masks.never is not None:
        mask |= masks.never
    if masks.columns is not None:
        mask[:, masks.columns] |= masks.blocked
    got = [set(torch.nonzero(row)[:, 0].tolist()) for row in mask]
    assert got == [forbidden(options, prompt, written) for prompt, written in sequences]


def test_the_repetition_penalty_sees_prompt_and_completion():
    options = Sampling(max_new_tokens=4, repetition_penalty=1.2)
    tokens = torch.tensor([[NOTHING, 3, 5, 1, NOTHING, NOTHING]])
    masks = Restrictions(options, VOCAB, tokens.device).masks(torch.tensor([1]), tokens, torch.tensor([4]))
    assert torch.nonzero(masks.seen[0])[:, 0].tolist() == [1, 3, 5]
