"""The books of cache, scheduler and batch agree, after every step of every test that samples on the fast path."""

import pytest

from covey.sample.native.decode_loop import _Call

METHODS = ("_enter", "_finish_ended")


@pytest.fixture(scope="module", autouse=True)
def checked_books():
    """Check the books whenever completions have entered or ended."""
    with pytest.MonkeyPatch.context() as patch:
        for name in METHODS:
            patch.setattr(_Call, name, checked(getattr(_Call, name)))
        yield


def checked(method):
    def inner(call, *arguments):
        found = method(call, *arguments)
        check_books(call)
        return found

    return inner


def check_books(call):
    check_cache(call.cache)
    scheduler = call.scheduler
    rows = sum(scheduler.completion_bytes[row] for row in scheduler.active | scheduler.parked)
    prompts = sum(scheduler.prompt_bytes[prompt] for prompt in scheduler.held)
    assert scheduler.reserved == rows + prompts
    assert {scheduler.prompt_of[row] for row in scheduler.active | scheduler.parked} <= scheduler.held
    assert scheduler.reserved <= scheduler.budget or len(scheduler.active | scheduler.parked) <= 1
    if call.turns is not None:
        aside = call.turns.aside
        assert set(aside.pool) == scheduler.parked == set(call.turns.waiting.pending)
        assert {row for pool in aside.completions.values() for row in pool.slots} == scheduler.parked
    assert set(call.cache.pool) == scheduler.active
    assert set(call.cache.prompt_pool) == scheduler.held
    owned = [row for row in call.batch.active.rows.tolist() if row != call.table.spare]
    assert sorted(owned) == sorted(scheduler.active)


def check_cache(cache):
    """Pools agree with the maps from numbers to pools."""
    for pools, pool_of in ((cache.prompts, cache.prompt_pool), (cache.completions, cache.pool)):
        for pool in pools.values():
            check_pool(pool)
        owned = {owner: pool for pool in pools.values() for owner in pool.slots}
        assert owned == pool_of, "a slot without an owner, or an owner without a slot"
    assert all(pool.capacity <= reach for reach, pool in cache.completions.items())
    for prompt, length in cache.prompt_length.items():
        assert length <= cache.prompt_pool[prompt].capacity
    assert cache.peak >= cache.bytes or not cache.prompt_pool


def check_pool(pool):
    """Every owner has one slot, and tensors have the slots that the lists name."""
    named = {owner: slot for slot, owner in enumerate(pool.owners) if owner is not None}
    assert named == pool.slots, (pool.owners, pool.slots)
    assert all(len(t) == len(pool.owners) for t in (*pool.keys, *pool.values))
    assert pool.width >= max(pool.slots.values(), default=-1) + 1
