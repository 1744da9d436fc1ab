"""A policy that says what a script says, in place of the sampler; all else of a run with tools is the real thing."""

import torch
from datasets import Dataset

from covey import GRPOTrainer
from covey.sample.turns import Answer
from covey.types import Completion, Group
from tests.tiny import tiny_model
from tests.tools.chats import call, encode, hermes
from tests.trainer.harness import config

END = "<|im_end|>"


class Scripted:
    """An engine whose policy says, turn by turn, what `says(prompt, index, turn)` returns."""

    def __init__(self, says):
        self.says, self.tok, self.facts = says, hermes(), {"kind": "scripted"}

    samples_beside_updates = swaps_in_flight = False

    def load(self, policy, version=None):
        pass

    def metrics(self):
        return {}

    def sleep(self):
        pass

    def close(self):
        pass

    def generate(self, prompts, group_size, settings, turns=None):
        for prompt in prompts:
            yield Group(
                prompt,
                tuple(self.completion(prompt, i, turns, settings.max_new_tokens) for i in range(group_size)),
            )

    def completion(self, prompt, index, turns, limit):
        ids, written, finish, turn = turns.opening(prompt, index), [], None, 0
        written, start = [False] * len(ids), len(ids)
        while finish is None:
            said = encode(self.tok, self.says(prompt, index, turn) + END)
            ids, written, turn = (*ids, *said), written + [True] * len(said), turn + 1
            answer = turns.ended(prompt, index, ids, "stop", limit - len(ids) + start)
            answer = answer if isinstance(answer, Answer) else answer.wait()
            ids, written = (*ids, *answer.ids), written + [False] * len(answer.ids)
            finish = answer.finish
        logprobs = tuple(-5.0 if own else 0.0 for own in written)
        return turns.closed(prompt, index, Completion(ids, logprobs, "", finish, tuple(written)))


def sums(prompt, index, turn):
    """One call, then the answer; every other member answers at once."""
    if index % 2:
        return "no idea"
    return call("add", '{"a": 1, "b": 2}') if turn == 0 else "it is 3"


def chats(count=2, **columns):
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"q{i}"}] for i in range(count)], **columns}
    )


def correct(completions):
    return [float("3" in c[-1]["content"]) for c in completions]


def made(folder, rewards=correct, data="two", says=sums, **given):
    names = ("tools", "environment_factory", "rollout_func", "eval_dataset", "callbacks")
    extra = {name: given.pop(name) for name in names if name in given}
    torch.manual_seed(0)
    policy = tiny_model(vocab_size=len(hermes()), max_position_embeddings=2048)
    data = chats() if isinstance(data, str) else data
    args = config(folder, **{"max_completion_length": 400, "learning_rate": 1e-2, **given})
    trainer = GRPOTrainer(policy, rewards, args, data, processing_class=hermes(), **extra)
    if "rollout_func" not in extra:
        trainer.engine = Scripted(says)
    return trainer


def trained(*args, **given):
    trainer = made(*args, **given)
    trainer.train()
    return trainer


def counter(log, reset=lambda self, row: None):
    class Counter:
        def __init__(self):
            self.count, self.closed = 0, 0
            log.append(self)

        def reset(self, **row):
            self.count = 0
            return reset(self, row)

        def add(self, a: int, b: int) -> str:
            """Adds two numbers.

            Args:
                a: The first.
                b: The second.
            """
            self.count += 1
            return str(a + b)

        def close(self):
            self.closed += 1

    return Counter
