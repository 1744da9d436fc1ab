"""RemoteEngine over servers that fail: the undisturbed result, or one clear error in time; nothing is lost or counted twice."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from covey.errors import CoveyWarning, EngineError, ServerLost
from covey.sample.engine import in_order
from covey.sample.native.engine import NativeEngine
from covey.sample.remote import dispatch, post, remote_round
from covey.sample.remote import engine as engine_module
from covey.sample.remote.labels import _started, new_label, pushed_again
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer
from covey.types import Prompt
from tests.contracts.test_turns import Script, answered, decode, soon
from tests.contracts.test_turns import late as late_answer
from tests.ranks import on_ranks
from tests.sample.remote.scripted import (
    IN_TIME,
    WRONG,
    MemorySync,
    ScriptedServer,
    before,
    die,
    drop,
    drop_once,
    hang,
    late,
    remote,
    restart,
    restart_unseen,
    taken,
)
from tests.tiny import EOS, PAD, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.any_version

TOKENIZER = tiny_tokenizer()
SETTINGS = Sampling(max_new_tokens=16, stop_ids=(EOS, *range(20, 24)), padding_id=PAD, seed=3)
PROMPTS = [
    Prompt(text, tuple(TOKENIZER(text)["input_ids"]), {}, n, (n, 0))
    for n, text in enumerate(["2 + 3 =", "hello", "a longer prompt than the others", *"abcdefgh"])
]
SIZE = 3


@pytest.fixture(scope="module")
def start():
    """What servers are started with."""
    return tiny_model("qwen2", seed=1, scale=2.0)


@pytest.fixture(scope="module")
def policy():
    return tiny_model("qwen2", scale=2.0)


@pytest.fixture
def serve(start):
    """Make servers, and let go of what hangs on them."""
    made = list[ScriptedServer]()

    def make(name="a", **options):
        made.append(ScriptedServer(start, decode, name, **options))
        return made[-1]

    yield make
    for server in made:
        server.ends.set()


@pytest.fixture(scope="module")
def undisturbed(start, policy):
    """What is sampled without turns and with them."""
    engine = loaded([ScriptedServer(start, decode)], policy)
    return {turns: sampled(engine, turns) for turns in (False, True)}


def loaded(servers, policy, **options):
    engine = remote(servers, decode, **options)
    engine.load(policy, 0)
    return engine


def sampled(engine, turns=False, settings=SETTINGS, prompts=PROMPTS):
    script = Script(seconds=soon if turns is True else turns) if turns else None
    groups = list(engine.generate(prompts, SIZE, settings, script))
    assert Counter(id(g.prompt) for g in groups) == {id(p): 1 for p in prompts}, "each prompt once"
    return in_order(prompts, groups)


def left(others):
    """The engine's threads that do not end, but for others."""
    threads = [t for t in threading.enumerate() if t.name == "covey-engine" and t not in others]
    for thread in threads:
        thread.join(IN_TIME)
    return [t for t in threads if t.is_alive()]


# --- nothing fails ----------------------------------------------------------------------------------------------------


def test_what_is_sampled_is_what_the_native_engine_samples(serve, policy):
    engine = NativeEngine(decode, path="general")
    engine.load(policy)
    expected = in_order(PROMPTS, engine.generate(PROMPTS, SIZE, SETTINGS))
    found = sampled(loaded([serve("a"), serve("b")], policy))
    for one, other in zip(found, expected, strict=True):
        assert [c.ids for c in one.completions] == [c.ids for c in other.completions]
        assert [(c.text, c.finish) for c in one.completions] == [
            (c.text, c.finish) for c in other.completions
        ]
        for a, b in zip(one.completions, other.completions, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            assert a.policy_logprobs == pytest.approx(b.policy_logprobs, abs=1e-5)


@pytest.mark.parametrize("seconds", [None, late_answer], ids=["at once", "late"])
@pytest.mark.parametrize("opened", [False, True])
def test_turns_are_those_of_the_native_engine(serve, policy, seconds, opened):
    openings = (
        {(n, index): tuple(range(40, 40 + n + index)) for n in range(3) for index in range(SIZE)}
        if opened
        else {}
    )
    native, ours = (Script(answered, seconds, openings) for _ in range(2))
    engine = NativeEngine(decode, path="general")
    engine.load(policy)
    expected = in_order(PROMPTS, engine.generate(PROMPTS, SIZE, SETTINGS, native))
    engine = loaded([serve("a", every=(1, late)), serve("b")], policy)
    found = in_order(PROMPTS, engine.generate(PROMPTS, SIZE, SETTINGS, ours))
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            nothing = {"logprobs": (), "policy_logprobs": ()}
            assert replace(a, **nothing) == replace(b, **nothing)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
    assert sorted(native.asked) == sorted(ours.asked), "the other side hears the same"


def test_stop_strings_are_found_by_our_rule(serve, policy, undisturbed):
    """The server draws on behind one; what it takes for one and is none, is drawn on."""
    text = undisturbed[False][0].completions[0].text
    settings = replace(SETTINGS, stop_strings=(text[3:5],))
    engine = NativeEngine(decode, path="general")
    engine.load(policy)
    prompts = PROMPTS[:4]
    expected = in_order(prompts, engine.generate(prompts, SIZE, settings))
    assert "stop_string" in {c.finish for g in expected for c in g.completions}

    def deaf(server, request, drawn):  # it looks for no stop string at all
        return server.drawn(replace(request, settings=replace(request.settings, stop_strings=())))

    def hasty(server, request, drawn):  # it takes the second id of each turn for the end of one
        return [
            replace(
                d,
                ids=d.ids[:2],
                logprobs=d.logprobs[:2],
                policy_logprobs=d.policy_logprobs[:2],
                reason="stop_string",
            )
            if len(d.ids) > 2
            else d
            for d in drawn
        ]

    for fault in (deaf, hasty):
        found = sampled(loaded([serve(every=(1, fault))], policy), settings=settings, prompts=prompts)
        assert [[c.ids for c in g.completions] for g in found] == [
            [c.ids for c in g.completions] for g in expected
        ]
        assert [[c.finish for c in g.completions] for g in found] == [
            [c.finish for c in g.completions] for g in expected
        ]


@pytest.mark.parametrize("most", [1, 60])
@pytest.mark.parametrize("turns", [False, True], ids=["", "turns"])
def test_a_group_whose_answer_would_be_too_long_is_drawn_in_parts(
    serve, policy, undisturbed, monkeypatch, most, turns
):
    monkeypatch.setattr(remote_round, "MOST_TOKENS", most)
    server = serve()
    found = sampled(loaded([server], policy), turns)
    assert server.requests > len(PROMPTS)
    pairs = [
        (one, other)
        for a, b in zip(found, undisturbed[turns], strict=True)
        for one, other in zip(a.completions, b.completions, strict=True)
    ]
    assert all((a.ids, a.finish, a.written) == (b.ids, b.finish, b.written) for a, b in pairs)
    for a, b in pairs:  # rounding hangs on what is decoded together
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_both_servers_draw(serve, policy):
    def busy(server, request, drawn):  # the first server is asked first
        end = time.monotonic() + IN_TIME
        while not servers[1].requests and time.monotonic() < end:
            time.sleep(0.01)
        return drawn

    servers = [serve("a", every=(1, busy)), serve("b", every=(1, late))]
    engine = loaded(servers, policy)
    sampled(engine)
    assert all(server.requests for server in servers)
    numbers = engine.metrics()
    assert numbers["engine/tokens/0"] + numbers["engine/tokens/1"] == sum(s.tokens for s in servers)
    assert numbers["engine/retries"] == numbers["engine/lost"] == 0 and numbers["engine/wait_seconds"] > 0


# --- what fails and can be repeated -----------------------------------------------------------------------------------

LOST = {
    "drops every 7th": {"every": (7, drop)},
    "drops each once": {"every": (1, drop_once)},
    "restarts": {"faults": {3: restart, 5: restart}},
    "restarts unseen": {"faults": {0: restart_unseen, 4: restart_unseen}},
    "restarts at once": {"faults": {0: restart, 1: restart, 2: drop}},
}


@pytest.mark.parametrize("turns", [False, True], ids=["", "turns"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_sent_again(serve, policy, undisturbed, name, number, turns):
    """Reports 4 and 33: the result is that of the undisturbed run, to the bit."""
    servers = [serve("a", **LOST[name]), *(serve("b", every=(1, late)) for _ in range(number - 1))]
    engine = loaded(servers, policy)
    assert sampled(engine, turns) == undisturbed[turns]
    failures = servers[0].failures
    assert (engine.metrics()["engine/retries"] > 0) == (failures > 0) and (failures or number == 2)


def test_a_server_that_dies_for_good_is_done_without(serve, policy, undisturbed):
    engine = loaded([serve("a", faults={2: die}), serve("b", every=(1, late))], policy)
    assert sampled(engine) == undisturbed[False]
    assert sampled(engine, True) == undisturbed[True], "and in the next round"


def test_a_server_that_comes_back_gets_the_weights(serve, policy, undisturbed):
    def away(server, request, drawn):
        def back():
            server.restart()
            server.is_dead = False

        server.is_dead = True
        threading.Timer(0.3, back).start()
        server.ask()

    server = serve(faults={2: away})
    engine = loaded([server], policy)
    assert sampled(engine) == undisturbed[False]
    assert server.pushes == 2


def test_a_server_that_hangs_is_done_without(serve, policy, undisturbed):
    """Report 35: no answer and no new token."""
    engine = loaded([serve("a", faults={1: hang}), serve("b", every=(1, late))], policy, timeout=0.4)
    began = time.monotonic()
    assert sampled(engine) == undisturbed[False]
    assert time.monotonic() - began < IN_TIME


def test_an_answer_that_comes_when_it_is_given_up_counts_for_nothing(serve, policy, undisturbed):
    """The same request is drawn elsewhere by then."""
    back = threading.Event()

    def too_late(server, request, drawn):
        back.wait(IN_TIME)
        return drawn

    def slow(server, request, drawn):
        back.set()
        time.sleep(0.1)
        return drawn

    one, other = serve("a", every=(1, too_late), stands_still=True), serve("b", every=(1, slow))
    others = set(threading.enumerate())
    engine = loaded([one, other], policy, timeout=0.4)
    assert sampled(engine, prompts=PROMPTS[:1]) == undisturbed[False][:1]
    engine.load(policy, 1)
    assert not left(others), "also the thread that was held there"
    assert [post.number_open for post in engine.posts] == [0, 0]
    assert engine.metrics()["engine/tokens/0"] == 0


def test_a_slow_server_is_waited_for_as_long_as_tokens_come(serve, policy, undisturbed):
    def slow(server, request, drawn):
        time.sleep(1.0)
        return drawn

    engine = loaded([serve(faults={0: slow})], policy, timeout=0.3)
    assert sampled(engine) == undisturbed[False]
    assert engine.metrics()["engine/lost"] == 0


def test_a_server_that_was_lost_and_draws_slowly_since_is_not_given_up(serve, policy, undisturbed):
    """Nothing is finished for longer than the time-out, and a second request is lost then: tokens have come all the while."""

    def slow(server, request, drawn):
        time.sleep(1.5)
        looks = server.looks
        while server.looks < looks + 2:  # what was seen is weighed between two looks
            time.sleep(0.01)
        return drawn if server.requests > 4 else drop(server, request, drawn)

    engine = loaded([serve(faults={0: drop, 1: slow, 2: slow, 3: slow})], policy, timeout=0.5)
    assert sampled(engine, prompts=PROMPTS[:2]) == undisturbed[False][:2]
    assert engine.metrics()["engine/lost"] >= 2


# --- what ends the round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_none_ends_the_round(serve, policy, name):
    fault, text = WRONG[name]
    engine = loaded([serve(faults={4: fault})], policy)
    with pytest.raises(EngineError) as caught:
        sampled(engine)
    assert text in str(caught.value) and "http://a:1, prompt row" in str(caught.value)
    assert not isinstance(caught.value, ServerLost)


def test_all_servers_gone_is_an_error_with_the_state_of_each(serve, policy):
    engine = loaded([serve("a", faults={1: die}), serve("b", faults={1: die})], policy, timeout=0.5)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"No server has drawn anything for 0\.5 seconds") as caught:
        sampled(engine)
    assert time.monotonic() - began < IN_TIME
    assert all(f"http://{name}:1: draws nothing for" in str(caught.value) for name in "ab")
    assert "takes no connection" in str(caught.value)


def test_all_servers_that_hang_are_an_error_in_time(serve, policy):
    engine = loaded([serve("a", faults={1: hang}), serve("b", faults={1: hang})], policy, timeout=0.3)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"No server has drawn anything for 0\.3 seconds") as caught:
        sampled(engine)
    assert time.monotonic() - began < IN_TIME and "no answer for" in str(caught.value)


def test_a_server_that_loses_every_request_in_its_own_time_is_an_error_in_time(serve, policy):
    """It tells its label, and its own deadline ends each call: eight of them would take an hour."""

    @before
    def lose(server, request, drawn):
        time.sleep(0.3)
        raise ServerLost("no answer for 0.3 seconds")

    engine = loaded([serve(every=(1, lose), stands_still=True)], policy, timeout=0.3)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"No server has drawn anything for 0\.3 seconds"):
        sampled(engine, prompts=PROMPTS[:1])
    assert time.monotonic() - began < IN_TIME


def test_a_prompt_that_ends_servers_is_named(serve, policy, monkeypatch):
    monkeypatch.setattr(post, "LAST_DELAY", 0.01)

    def poison(server, request, drawn):
        if request.prompt.row == 5:
            server.restart()
            raise ServerLost("EngineCore encountered an issue")
        return drawn

    engine = loaded([serve("a", every=(1, poison)), serve("b", every=(1, poison))], policy)
    with pytest.raises(EngineError, match="Prompt row 5 was lost 8 times on servers that answer otherwise"):
        sampled(engine)


def test_weights_of_another_run_are_never_used(serve, policy):
    """Report 42."""
    engine = loaded([serve(faults={3: taken})], policy)
    with pytest.raises(
        EngineError, match=r"weights of update 7 of the run 'theirs'.*weights of update 0 of the run 'ours'"
    ):
        sampled(engine)


def test_what_was_drawn_under_another_label_is_not_used(serve, policy, undisturbed, monkeypatch):
    """A restart that nobody has seen, and a fellow process that has already given the weights again."""

    def fellow(server, request, drawn):
        wrong = server.drawn(request)
        server.put(engine.sync.copy, pushed_again(engine.label))
        return wrong

    fellow.comes_before = False

    def unseen(server, request, drawn):
        server.restart()
        return fellow(server, request, drawn)

    server = serve(faults={2: unseen})
    engine = loaded([server], policy)
    assert sampled(engine) == undisturbed[False]
    assert engine.metrics()["engine/retries"] >= 1


def test_a_refused_request_is_not_repeated(serve, policy):
    def refuse(server, request, drawn):
        raise EngineError("400: prompt too long")

    server = serve(every=(1, refuse))
    with pytest.raises(EngineError, match="prompt too long"):
        sampled(loaded([server], policy), prompts=PROMPTS[:1])
    assert server.requests == 1


def test_nothing_is_sent_when_the_round_has_failed(serve, policy, monkeypatch):
    """Also where nobody asks for the rest: the next weights must not wait for it."""
    monkeypatch.setattr(dispatch, "MOST_OPEN", 1)

    def refuse(server, request, drawn):
        raise EngineError("400")

    server = serve(faults={1: refuse})
    engine = loaded([server], policy)
    groups = engine.generate(PROMPTS, SIZE, SETTINGS)
    next(groups)
    engine.load(policy, 1)
    assert server.requests == 2
    with pytest.raises(EngineError, match="400"):
        list(groups)


def test_what_the_other_side_raises_ends_the_round(serve, policy):
    def broken(*_):
        raise ZeroDivisionError("theirs")

    engine = loaded([serve()], policy)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        list(engine.generate(PROMPTS, SIZE, SETTINGS, Script(broken)))

    def long(prompt, index, turn, reason, room):  # which turn ends first is the threads' affair
        return Answer(finish="length") if reason == "length" else Answer((9,) * 100)

    with pytest.raises(EngineError, match="has 100 ids; there is room for"):
        list(engine.generate(PROMPTS, SIZE, SETTINGS, Script(long)))
    assert sampled(engine), "the engine can be used on"


# --- loading ----------------------------------------------------------------------------------------------------------


def test_weights_are_sent_where_they_moved(serve, policy, start):
    server = serve()
    engine = remote([server], decode)
    with pytest.raises(EngineError, match="no policy yet"):
        list(engine.generate(PROMPTS, SIZE, SETTINGS))
    engine.load(policy, 0)
    engine.load(policy, 0)
    assert server.pushes == 1
    engine.load(policy, 1)
    assert server.pushes == 2
    engine.load(policy)
    engine.load(policy)
    assert server.pushes == 4, "a version that is not known"
    engine.load(start, 1)
    assert server.pushes == 5, "another policy"
    assert engine.checks.calls == ["start", *["probe"] * 5]


def test_loading_waits_for_what_is_being_drawn(serve, policy):
    """Also for what nobody reads any more: weights under a request that runs would be mixed."""
    running = threading.Event()

    def slow(server, request, drawn):
        running.set()
        time.sleep(0.3)
        slow.over = True
        return drawn

    engine = loaded([serve(faults={0: slow})], policy)
    groups = engine.generate(PROMPTS[:1], SIZE, SETTINGS)
    thread = threading.Thread(target=lambda: next(groups), daemon=True)
    thread.start()
    assert running.wait(IN_TIME)
    engine.load(policy, 1)
    assert slow.over
    thread.join(IN_TIME)


def test_a_round_that_is_given_up_leaves_nothing(serve, policy):
    others = set(threading.enumerate())
    engine = loaded([serve(every=(1, late))], policy)
    groups = engine.generate(PROMPTS, SIZE, SETTINGS)
    next(groups)
    groups.close()
    engine.load(policy, 1)
    assert not left(others)
    assert sampled(engine)


def test_no_prompts_is_no_round(serve, policy):
    server = serve()
    assert list(loaded([server], policy).generate([], SIZE, SETTINGS)) == []
    assert server.requests == 0


def test_a_server_that_is_missing_at_the_start_is_waited_for(serve, policy):
    server = serve("b")
    server.is_dead = True
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"1 of 2 servers do not answer after 0\.3 seconds:\nhttp://b:1"):
        remote([serve("a"), server], decode, timeout=0.3).load(policy, 0)
    assert time.monotonic() - began < IN_TIME
    threading.Timer(0.2, lambda: setattr(server, "is_dead", False)).start()
    loaded([serve("a"), server], policy)
    assert server.pushes == 1


def test_who_waits_at_the_start_is_told_for_what(serve, policy, monkeypatch):
    server, told = serve("b"), list[str]()
    server.is_dead = True

    def tell(message):
        told.append(message)
        server.is_dead = False

    monkeypatch.setattr(engine_module, "PATIENCE", 0.0)
    monkeypatch.setattr(engine_module, "warn", tell)
    loaded([serve("a"), server], policy, timeout=30.0)
    assert len(told) == 1 and told[0].startswith("Waiting up to 30 seconds (engine_timeout) for http://b:1: ")


def test_a_server_that_is_missing_later_gets_the_weights_when_it_is_back(serve, policy, undisturbed):
    one, other = serve("a"), serve("b", every=(1, late))
    engine = loaded([one, other], policy)
    one.is_dead = True
    engine.load(policy, 1)
    assert (one.pushes, other.pushes) == (1, 2)
    one.is_dead = False
    assert sampled(engine) == undisturbed[False]
    assert one.pushes == 2 and one.served != other.served, "it held the weights of update 0 of this run"


def test_a_failure_on_one_process_is_raised_on_all(start, policy):
    """Nothing hangs: the others are waiting for the one that failed."""

    def run(rank, gather):
        sync = MemorySync()
        sync.fault = "no space left on device" if rank == 1 else None
        engine = remote([ScriptedServer(start, decode)], decode, sync=sync, gather=gather)
        with pytest.raises(EngineError) as caught:
            engine.load(policy, 0)
        sync.fault = None
        engine.load(policy, 0)
        prompts = PROMPTS if rank == 0 else []
        return str(caught.value), len(list(engine.generate(prompts, 1, SETTINGS)))

    texts, numbers = zip(*on_ranks(2, run), strict=True)
    assert set(texts) == {"no space left on device"} and numbers == (len(PROMPTS), 0)


def test_processes_push_one_label(start, policy):
    def run(rank, gather):
        server = ScriptedServer(start, decode)
        remote([server], decode, gather=gather).load(policy, 0)
        return server.served

    first, second = on_ranks(2, run)
    assert first == second


def test_a_dead_run_is_taken_over_and_a_live_one_is_warned_of(serve, policy, recwarn):
    ours, server = new_label("theirs", 3), serve()
    gone = replace(ours, process=2**22 + 5)
    server.served = str(gone)
    loaded([server], policy)
    server.served = str(replace(ours, started="1"))
    loaded([server], policy)
    server.served = str(replace(ours, run="ours"))
    loaded([server], policy)
    assert not [w for w in recwarn if issubclass(w.category, CoveyWarning)]
    server.served = str(
        ours
    )  # an earlier trainer of this process: a notebook has several, one after the other
    loaded([server], policy)
    assert not [w for w in recwarn if issubclass(w.category, CoveyWarning)]
    theirs = replace(ours, process=os.getppid(), started=_started(os.getppid()))
    server.served = str(theirs)
    with pytest.warns(
        CoveyWarning,
        match=r"weights of update 3 of the run 'theirs'.*still runs. This run takes the server over",
    ):
        loaded([server], policy)
    server.served = str(replace(ours, host="elsewhere"))
    with pytest.warns(CoveyWarning, match="cannot be asked from here"):
        loaded([server], policy)
    server.served = "made by hand"
    loaded([server], policy)


class Nursery:
    """Children that do what the launcher's would."""

    sleeps = True

    def __init__(self, *servers):
        self.servers, self.calls = servers, list[str]()

    def revive(self, server, *, hangs=False):
        if server not in self.servers or not (hangs or server.is_dead):
            return False
        server.restart()
        server.is_dead = server.hangs = False
        self.calls.append(f"revive, hangs={hangs}")
        return True

    def sleep(self, keeps_weights):
        self.calls.append(f"sleep, keeps={keeps_weights}")
        return True

    def wake(self):
        self.calls.append("wake")

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize(("fault", "hangs", "timeout"), [(die, False, 30.0), (hang, True, 0.8)])
def test_children_are_started_again_put_to_sleep_and_woken(serve, policy, undisturbed, fault, hangs, timeout):
    """This process draws from its own ones alone; those of others get the weights all the same."""
    own, others = serve("a", faults={2: fault}), serve("b")
    children = Nursery(own)
    engine = loaded([own, others], policy, timeout=timeout, launcher=children)
    assert not engine.samples_beside_updates
    assert sampled(engine) == undisturbed[False]
    assert (
        children.calls == [f"revive, hangs={hangs}"]
        and others.requests == 0
        and (own.pushes, others.pushes) == (2, 1)
    )
    engine.sleep()
    engine.sleep()
    engine.load(policy, 0)
    assert children.calls[1:] == ["sleep, keeps=False", "wake"], (
        "what slept without its weights gets them again"
    )
    assert (own.pushes, others.pushes) == (3, 2)
    engine.close()
    assert children.calls[-1] == "close"


def test_who_waits_when_the_engine_is_closed_is_told(serve, policy):
    """A round in the background; the run has ended."""
    server, told = serve(faults={0: hang}), list[str]()
    engine = loaded([server], policy)

    def wait():
        try:
            list(engine.generate(PROMPTS, SIZE, SETTINGS))
        except EngineError as error:
            told.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not server.hangs:
        time.sleep(0.01)
    engine.close()
    thread.join(IN_TIME)
    assert told == ["The engine was closed while it sampled."]


def test_close_lets_go_and_the_engine_can_be_used_again(serve, policy, undisturbed):
    server = serve()
    engine = loaded([server], policy)
    engine.close()
    engine.close()
    engine.load(policy, 0)
    assert server.pushes == 2 and sampled(engine) == undisturbed[False]
    assert engine.facts == {"kind": "covey", "release": "1.0", "urls": ["http://a:1"], "model": "tiny"}


def test_what_it_is_is_not_asked_of_a_server_that_may_sleep(serve, policy, monkeypatch):
    server = serve()
    engine = loaded([server], policy)

    def woken():
        raise AssertionError("a server that is asked wakes up")

    monkeypatch.setattr(server, "facts", woken)
    assert engine.facts["kind"] == "covey" and engine.facts["release"] == "1.0"
