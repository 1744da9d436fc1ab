"""Engines with weights of their own, as servers have them, inside the test's process."""

import copy
import random
import time
from collections import deque
from typing import ClassVar


class Elsewhere:
    """Samples with a copy of the policy, beside updates, and takes its time."""

    facts: ClassVar = {"kind": "elsewhere", "release": "0"}
    samples_beside_updates, swaps_in_flight = True, False

    def __init__(self, native, delay=0.0, seed=0):
        self.native, self.delay, self.random = native, delay, random.Random(seed)
        self.policy, self.versions, self.running = None, [], 0
        self.closed = self.drawn = 0

    def load(self, policy, version=None):
        assert self.swaps_in_flight or not self.running, "weights change while something is being sampled"
        if self.policy is None:
            self.policy = copy.deepcopy(policy)
        self.policy.load_state_dict(policy.state_dict())
        self.versions.append(version)
        self.native.load(self.policy, version)

    def generate(self, prompts, group_size, settings, turns=None):
        self.running += 1
        try:
            time.sleep(self.random.random() * self.delay)
            groups = list(self.native.generate(prompts, group_size, settings, turns))
            self.drawn = sum(len(c.ids) for group in groups for c in group.completions)
            yield from groups
        finally:
            self.running -= 1

    def sleep(self):
        self.native.sleep()

    def metrics(self):
        return {"engine/tokens/0": float(self.drawn)}

    def close(self):
        self.closed += 1


class Lagging(Elsewhere):
    """Keeps old weights: the slow way to sample with the weights of `lag` loads ago."""

    samples_beside_updates = False

    def __init__(self, native, lag):
        super().__init__(native)
        self.states = deque(maxlen=lag + 1)

    def load(self, policy, version=None):
        if self.policy is None:
            self.policy = copy.deepcopy(policy)
        self.states.append(copy.deepcopy(policy.state_dict()))
        self.policy.load_state_dict(self.states[0])
        self.native.load(self.policy)
