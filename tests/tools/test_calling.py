"""Where calls run, side by side or in order, and that none outlives its deadline."""

import asyncio
import os
import threading
import time

import psutil
import pytest

from covey.errors import ConfigError
from covey.tools import tool
from covey.tools.calling import Caller
from covey.tools.tool_contract import Tool
from tests.clocks import PATIENCE
from tests.tools.chats import call, maker, named, play, results, says


def meeting(size):
    """A coroutine function that returns once so many wait inside it, or says that it was left alone."""
    here = []

    async def meet():
        here.append(1)
        end = time.monotonic() + PATIENCE
        while len(here) < size and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return "together" if len(here) >= size else "alone"

    return meet


def test_async_calls_of_one_turn_and_of_all_completions_run_together():
    made = maker([named("f", meeting(8))])
    played = play(made, ["x", "y"], says(call("f") + call("f"), "ok"), group_size=2)
    assert [results(c) for c in played.completions] == [["together"] * 2] * 4


def test_threads_of_all_completions_run_together():
    barrier = threading.Barrier(4, timeout=PATIENCE)
    meets = tool(where="thread")(named("f", lambda: str(barrier.wait() >= 0)))
    played = play(maker([meets]), ["x"], says(call("f"), "ok"), group_size=4)
    assert [results(c) for c in played.completions] == [["True"]] * 4


def test_no_more_run_at_once_than_was_said():
    """Nor fewer: each waits for another."""
    running, most, pairs, barrier = [], [], asyncio.Barrier(2), threading.Barrier(2, timeout=PATIENCE)

    async def counted():
        running.append(1)
        most.append(len(running))
        async with asyncio.timeout(PATIENCE):
            await pairs.wait()
        await asyncio.sleep(0.01)  # a third one would come in
        running.pop()

    def counted_too():
        running.append(1)
        most.append(len(running))
        barrier.wait()
        time.sleep(0.01)
        running.pop()

    for f in (named("f", counted), tool(where="thread")(named("f", counted_too))):
        most.clear()
        play(maker([f], tool_concurrency=2), ["x"], says(call("f"), "ok"), group_size=6)
        assert max(most) == 2 and len(most) == 6


def test_results_stand_in_the_order_of_the_calls():
    """The first is the last to come."""

    async def slow():
        await asyncio.sleep(0.05)
        return "slow"

    tools = [
        named("slow", slow),
        named("inline", lambda: "inline"),
        tool(where="thread")(named("thread", lambda: "thread")),
    ]
    c = play(maker(tools), ["x"], says(call("slow") + call("thread") + call("inline"), "ok")).first
    assert results(c) == ["slow", "thread", "inline"]


def test_inline_calls_run_in_the_callers_thread_in_order():
    seen = []

    def body():
        seen.append(threading.current_thread())
        return str(len(seen))

    played = play(maker([named("f", body)]), ["x"], says(call("f") + call("f"), "ok"), group_size=2)
    assert set(seen) == {threading.current_thread()}
    assert [results(c) for c in played.completions] == [["1", "2"], ["3", "4"]]


@pytest.mark.parametrize("where", ["async", "thread", "process"])
def test_a_call_that_hangs_costs_its_deadline(where):
    async def hangs():
        await asyncio.sleep(3_600)

    if where == "async":
        f = tool(timeout=0.2)(named("f", hangs))
    else:
        f = tool(where=where, timeout=0.2)(named("f", lambda: time.sleep(3_600)))
    made = maker([f])
    c = play(made, ["x"], says(call("f"), "ok")).first
    assert c.turns[0].calls[0].status == "timeout"
    assert "error" in results(c)[0] and "0.2 s" in results(c)[0] and c.finish == "stop"
    made.close()


def test_the_deadline_of_the_run_is_for_tools_that_have_none():
    sleeps = tool(where="thread")(named("f", lambda: time.sleep(3_600)))
    c = play(maker([sleeps], tool_timeout=0.1), ["x"], says(call("f"), "ok")).first
    assert c.turns[0].calls[0].status == "timeout" and "0.1 s" in results(c)[0]


def test_a_deadline_that_nothing_keeps_is_refused():
    with pytest.raises(ConfigError, match="tool_timeout"):
        maker([named("f", lambda: "")], tool_timeout=1)
    with pytest.raises(ConfigError, match="tool_concurrency is 2"):
        maker([named("f", lambda: "")], tool_concurrency=2)


def test_coroutines_that_block_their_loop_are_given_up_with_those_behind_them():
    free = threading.Event()

    async def blocks():
        free.wait(PATIENCE)  # not a wait of asyncio's: nothing can cancel it

    played = play(maker([tool(timeout=0.1)(named("f", blocks))]), ["x"], says(call("f"), "ok"), group_size=3)
    assert [c.turns[0].calls[0].status for c in played.completions] == ["timeout"] * 3
    free.set()  # the loop is free again for those who come
    assert results(play(maker([named("f", meeting(1))]), ["x"], says(call("f"), "ok")).first) == ["together"]


def test_threads_that_were_given_up_leave_their_place_to_others():
    stop = threading.Event()
    hangs = tool(where="thread", timeout=0.05)(named("f", stop.wait))
    played = play(maker([hangs], tool_concurrency=1), ["x"], says(call("f"), "ok"), group_size=3)
    assert [c.turns[0].calls[0].status for c in played.completions] == ["timeout"] * 3
    stop.set()


def test_not_endlessly_many_threads_are_left_behind():
    stop = threading.Event()
    hangs = tool(where="thread", timeout=0.02)(named("f", stop.wait))
    made, before = maker([hangs]), threading.active_count()
    for _ in range(3):
        play(made, ["x"], says(call("f"), "ok"), group_size=8)
    assert threading.active_count() - before <= 24
    c = play(made, ["x"], says(call("f"), "ok")).first
    assert "not called" in results(c)[0]
    stop.set()


def test_async_faults_are_data_and_the_loop_lives_on():
    import sys

    async def exits():
        sys.exit(3)

    async def cancelled():
        raise asyncio.CancelledError

    async def late():
        raise TimeoutError("its own")

    tools = [
        named("exits", exits),
        named("cancelled", cancelled),
        tool(timeout=PATIENCE)(named("late", late)),
    ]
    c = play(maker(tools), ["x"], says(call("exits") + call("cancelled") + call("late"), "ok")).first
    assert [made.status for made in c.turns[0].calls] == ["raised"] * 3 and "its own" in results(c)[2]
    assert results(play(maker([named("f", meeting(1))]), ["x"], says(call("f"), "ok")).first) == ["together"]


@pytest.mark.parametrize("where", ["async", "thread"])
def test_ctrl_c_in_another_thread_reaches_the_caller(where):
    def interrupted():
        raise KeyboardInterrupt

    async def interrupted_too():
        raise KeyboardInterrupt

    f = named("f", interrupted_too) if where == "async" else tool(where="thread")(named("f", interrupted))
    with pytest.raises(KeyboardInterrupt):
        play(maker([f]), ["x"], says(call("f"), "ok"))


def test_a_function_that_returns_a_coroutine_is_waited_for():
    async def inner():
        return "inner"

    assert results(play(maker([named("f", lambda: inner())]), ["x"], says(call("f"), "ok")).first) == [
        "inner"
    ]


def test_a_process_has_its_own_memory_and_is_ended():
    count = [0]

    def body():
        count[0] += 1
        return f"{os.getpid()} {count[0]}"

    made = maker([tool(where="process")(named("f", body))])
    c = play(made, ["x"], says(call("f"), call("f"), "ok")).first
    (pid, one), (other, two) = (r.split() for r in results(c))
    assert pid == other != str(os.getpid()) and (one, two) == ("1", "2") and count == [0]
    made.close()
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_what_a_process_raises_or_cannot_send_is_data():
    def lock():
        return threading.Lock()

    def fails():
        raise ValueError("no way")

    def dies():
        os._exit(3)

    tools = [
        tool(where="process")(named(n, f)) for n, f in (("lock", lock), ("fails", fails), ("dies", dies))
    ]
    made = maker(tools)
    c = play(made, ["x"], says(call("lock") + call("fails") + call("dies"), "ok")).first
    assert (
        "lock" in results(c)[0]
        and results(c)[1] == str({"error": "no way"})
        and "process ended" in results(c)[2]
    )
    made.close()


def test_ready_says_whether_waiting_takes_time():
    stop = threading.Event()
    f = Tool.of(tool(where="thread")(named("f", lambda: str(stop.wait(PATIENCE)))))
    running = Caller(1).start(f, f.function, {}, None)
    assert not running.ready()
    stop.set()
    assert running.outcome().value == "True" and running.ready()
