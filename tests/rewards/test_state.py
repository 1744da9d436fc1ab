"""What a mixture remembers goes through a checkpoint: rewards with a state, cached scores, the breaker."""

import threading

import pytest

from covey.errors import CoveyWarning, RewardError
from covey.rewards import Mixture, RewardBatch, reward


class Counting:
    """Each completion is worth how many came before it."""

    def __init__(self):
        self.seen = 0

    def __call__(self, completions):
        first, self.seen = self.seen, self.seen + len(completions)
        return [float(first + i) for i in range(len(completions))]

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def method(self, completions):
        return self(completions)


class Spy:
    def __init__(self):
        self.asked = 0

    def __call__(self, completions):
        self.asked += len(completions)
        return [1.0] * len(completions)


def batch(*texts):
    return RewardBatch(
        prompts=["p"] * len(texts), completions=list(texts), columns={}, group_ids=[0] * len(texts)
    )


def values(mixture, name, *texts):
    return [score.value for score in mixture.score(batch(*texts)).scores[name]]


@pytest.mark.parametrize("as_method", [False, True])
def test_a_reward_goes_on_from_its_state(as_method):
    def mixture():
        counting = Counting()
        return Mixture(reward(counting.method if as_method else counting, name="counting"))

    first, second = mixture(), mixture()
    assert values(first, "counting", "a", "b") == [0.0, 1.0]
    second.load_state_dict(first.state_dict())
    assert values(second, "counting", "c") == values(first, "counting", "c") == [2.0]


def test_cached_scores_are_not_asked_for_again():
    spies = Spy(), Spy()
    first, second = (Mixture(reward(spy, name="spy", pure=True), cache=True) for spy in spies)
    values(first, "spy", "a", "b")
    second.load_state_dict(first.state_dict())
    assert values(second, "spy", "a", "b", "c") == [1.0, 1.0, 1.0] and spies[1].asked == 1


@pytest.mark.parametrize("is_lasting", [True, False])
def test_cached_scores_of_a_reward_that_has_changed_are_asked_for_again(is_lasting):
    def mixture(gold):
        held = [gold, None if is_lasting else threading.Lock()]  # with a lock it cannot be told apart
        return Mixture(
            reward(lambda completions: [float(held[0] in c) for c in completions], name="r", pure=True),
            cache=True,
        )

    first = mixture("a")
    assert values(first, "r", "a", "b") == [1.0, 0.0]
    same, other = mixture("a"), mixture("b")
    for resumed in (same, other):
        resumed.load_state_dict(first.state_dict())
    assert values(other, "r", "a", "b") == [0.0, 1.0]
    found = same.score(batch("a", "b"))
    assert found.metrics["rewards/r/cached_share"].value == (1.0 if is_lasting else 0.0)
    old = {
        **first.state_dict(),
        "cache": {n: v for n, v in first.state_dict()["cache"].items() if n != "fingerprints"},
    }
    other.load_state_dict(old)
    assert values(other, "r", "a", "b") == [0.0, 1.0], "a state of before, without fingerprints, is no proof"


def test_the_breaker_remembers_failures():
    def broken(completions):
        raise OSError("down")

    def mixture():
        return Mixture(reward(broken, name="broken", on_error="missing"), window=4, max_failure_rate=0.5)

    first, second = mixture(), mixture()
    first.score(batch("a", "b"))
    second.load_state_dict(first.state_dict())
    with pytest.raises(
        RewardError, match="broken"
    ):  # of four samples, two of them seen before the checkpoint
        second.score(batch("c", "d"))
    mixture().score(batch("c", "d"))


def test_states_that_find_no_reward_and_rewards_that_find_no_state_are_named():
    state = Mixture(reward(Counting(), name="old")).state_dict()
    with pytest.warns(CoveyWarning) as warned:
        Mixture(reward(Counting(), name="new")).load_state_dict(state)
    text = " ".join(str(w.message) for w in warned)
    assert "reward 'new' has no state" in text and "state of a reward 'old'" in text


def test_a_memory_in_another_process_is_out_of_reach_and_said_to_be():
    with pytest.warns(CoveyWarning, match="where='process' keeps its state in another process"):
        mixture = Mixture(reward(Counting(), name="far", where="process"))
    assert mixture.state_dict()["rewards"] == {}


def test_a_state_that_no_file_can_hold_is_refused_before_anything_is_sampled():
    from covey.trainer.checkpoint.state import checked_reward_states

    class Odd(Counting):
        def state_dict(self):
            return {"seen": object()}

    with pytest.raises(
        RewardError, match=r"The state of reward 'odd' cannot be saved.*turn arrays into lists"
    ):
        checked_reward_states(Mixture(reward(Odd(), name="odd")))
