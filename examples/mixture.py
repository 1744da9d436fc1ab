"""A real chat model learns three tasks at once from a mixture of rewards, each of which judges the rows of one task alone.

    python examples/mixture.py                       SmolLM2-135M-Instruct from the hub, all weights
    python examples/mixture.py --lora --seed 1       an adapter, other rows
    python examples/mixture.py --model FOLDER        from a folder

    sum      What is 17 + 4?                                           an exact rule
    larger   Which is larger, 17 or 40?                                that number and no other; then fewer words are better
    text     Write a friendly sentence about a boat and an owl.        four rules, and where all are kept the bundled reward model

For a row of another task a reward says None, and the others decide. Results of this command are in docs/results.md.
"""

import random
import re

from before_and_after import adapter, read_options, settings, train_and_measure

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import Mixture, NumberMatch, load_reward_model, reward
from covey.tasks import text_rows
from covey.tasks.assets import REWARD_MODEL
from covey.tasks.split import Split, split_of

COLUMNS = ("prompt", "task", "target", "topics")
MOST_WORDS = 25


def rows(count: int, seed: int, split: Split) -> dict[str, list[dict]]:
    """Return `count` rows of each task. No pair of numbers or topics is both held out and trained on."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(10, 90) for b in range(3, 60) if a != b and split_of((a, b)) == split]
    found = {
        "sum": [asked(f"What is {a} + {b}?", "sum", a + b) for a, b in rng.sample(pairs, count)],
        "larger": [
            asked(f"Which is larger, {a} or {b}?", "larger", max(a, b)) for a, b in rng.sample(pairs, count)
        ],
        "text": text_rows(count, seed=seed, split=split),
    }
    return {task: [{name: row.get(name) for name in COLUMNS} for row in part] for task, part in found.items()}


def asked(question: str, task: str, target: int) -> dict[str, object]:
    return {"prompt": [{"role": "user", "content": question}], "task": task, "target": target}


def larger_alone(completions, target, **kwargs):
    """Give a point for naming the larger number and no other: the last number alone is no answer in "17 is larger than 40"."""
    said = [set(re.findall(r"\d+", completion[0]["content"])) for completion in completions]
    return [float(numbers == {str(right)}) for numbers, right in zip(said, target, strict=True)]


def brief(completions, **kwargs):
    """Give 1 for one word, less for more, 0 from `MOST_WORDS` on."""
    lengths = [len(completion[0]["content"].split()) for completion in completions]
    return [max(0.0, 1 - (words - 1) / (MOST_WORDS - 1)) for words in lengths]


def whole_sentence(completions, topics, **kwargs):
    """Give a quarter for each rule that the sentence keeps: one sentence, short, about both topics, no word of weight twice."""
    rewards = []
    for completion, pair in zip(completions, topics, strict=True):
        text = completion[0]["content"].strip()
        words = re.findall("[a-z']+", text.lower())
        rules = (
            bool(re.fullmatch(r"[A-Z][^.!?\n]*[.!]", text)),
            len(words) <= MOST_WORDS,
            all(topic in words for topic in pair),
            len({w for w in words if len(w) > 3}) == sum(len(w) > 3 for w in words) > 0,
        )
        rewards.append(sum(rules) / 4)
    return rewards


def keeps_all_rules(completions, topics, **kwargs):
    """Say whether the sentence keeps all rules; of weight 0, so a metric alone."""
    return [float(share == 1) for share in whole_sentence(completions, topics)]


def mixture() -> Mixture:
    """Return the rewards, each for the rows of its own task."""
    friendly = load_reward_model(str(REWARD_MODEL), std=4.0, clip=1.5)
    return Mixture(
        reward(NumberMatch(sources=("number",)), tasks="sum"),
        reward(larger_alone, tasks="larger"),
        reward(brief, tasks="larger", weight=0.5, requires="larger_alone"),
        reward(whole_sentence, tasks="text"),
        reward(keeps_all_rules, tasks="text", weight=0),
        reward(friendly, name="friendly", tasks="text", weight=0.25, requires=("whole_sentence", 1.0)),
    )


def main() -> None:
    options = read_options(
        __doc__,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        out="runs/mixture",
        prompts=6,
        new_tokens=32,
        held_out=64,
    )
    train = [
        row
        for part in rows(options.prompts * options.steps // 3, options.seed, "train").values()
        for row in part
    ]
    random.Random(options.seed).shuffle(train)
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=mixture(),
        args=GRPOConfig(**settings(options)),
        train_dataset=train,
        eval_dataset=rows(options.held_out, 0, "held_out"),
        peft_config=adapter(options),
    )
    measures = {"sum": "number_match", "larger": "larger_alone", "text": "keeps_all_rules"}
    train_and_measure(trainer, measures, options)


if __name__ == "__main__":
    main()
