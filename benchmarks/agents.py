"""Agents: seconds of a step in which 32 episodes make three calls of 100 ms each, beside TRL; and what an answer costs to read.

    python -m venv ../trl && ../trl/bin/pip install torch==2.13.0 trl==1.16.0 jmespath
    python benchmarks/agents.py --trl ../trl/bin/python
    python benchmarks/agents.py --cases answer                  64 ids of an answer against 64 ids that are sampled

The policy is taught its script at once (some seconds): it calls `look` three times and says that it is done. Steps of all
libraries are taken in processes of their own, one after the other, on the same policy.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import add_options, environment, report

EPISODES, CALLS, SECONDS = 32, 3, 0.1
CASES = ["sync", "async"]
QUESTION = [{"role": "user", "content": "go"}]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RESPONSE = {
    "start_anchor": "<|im_start|>assistant\n",
    "defaults": {"role": "assistant"},
    "fields": {
        "content": {"content": "text", "close_pattern": r"<\|im_end\|>\s*"},
        "tool_calls": {
            "content": "json",
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""How TRL is told to read calls: it knows some templates, and this is none of them."""


# --- the policy -----------------------------------------------------------------------------------------------------------


def tokenizer() -> Any:
    """Return a tokenizer of bytes and markers."""
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Qwen2Tokenizer(
        vocab={c: n for n, c in enumerate(alphabet)},
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        padding_side="left",
    )
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    made.chat_template = TEMPLATE
    return made


def script(tok: Any) -> tuple[list[int], list[bool]]:
    """Return the ids of a whole episode, and which of them the policy says."""
    turns = [f'<tool_call>\n{{"name": "look", "arguments": {{"n": {n}}}}}\n</tool_call>' for n in (1, 2, 3)]
    parts = [
        (
            tok.apply_chat_template(
                QUESTION, tools=[look_schema()], add_generation_prompt=True, tokenize=False
            ),
            False,
        )
    ]
    for number, turn in enumerate([*turns, "done"]):
        parts.append((f"{turn}<|im_end|>", True))
        if number < CALLS:
            answer = f"<|im_start|>user\n<tool_response>\n{number + 1}\n</tool_response><|im_end|>\n"
            parts.append((f"\n{answer}<|im_start|>assistant\n", False))
    ids, said = [], []
    for text, is_said in parts:
        own = tok(text, add_special_tokens=False)["input_ids"]
        ids, said = ids + own, said + [is_said] * len(own)
    return ids, said


def look_schema() -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}


def taught(folder: Path) -> None:
    """Save a tiny policy that is sure of its script."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    tok = tokenizer()
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    ends = dict(bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(tok), num_key_value_heads=2, max_position_embeddings=1024, **sizes, **ends)
    )
    ids, said = script(tok)
    inputs, labels = (
        torch.tensor([ids]),
        torch.tensor([[i if s else -100 for i, s in zip(ids, said, strict=True)]]),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(600):
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 2e-4:
            break
    assert loss < 1e-3, f"the policy did not learn its script: loss {float(loss):.2g}"
    with torch.no_grad():
        model.model.norm.weight.mul_(
            4
        )  # sharper: a slip in one of hundreds of tokens would end an episode early
    tok.response_template = RESPONSE
    model.save_pretrained(folder)
    tok.save_pretrained(folder)


# --- steps of one library, in its own process --------------------------------------------------------------------------------


def steps(library: str, case: str, model: str, count: int) -> list[float]:
    """Train for some steps; return the seconds of each."""
    import importlib

    from datasets import Dataset
    from transformers import TrainerCallback

    lib = importlib.import_module(library)
    called: list[int] = []

    def look(n: int) -> str:
        """Look something up.

        Args:
            n: What to look for.
        """
        called.append(n)
        time.sleep(SECONDS)
        return str(n)

    async def look_later(n: int) -> str:
        """Look something up.

        Args:
            n: What to look for.
        """
        called.append(n)
        await asyncio.sleep(SECONDS)
        return str(n)

    look_later.__name__ = "look"
    function: Any = look_later if case == "async" else look
    if library == "covey" and case == "sync":
        from covey.tools import tool

        function = tool(where="thread")(look)
    moments: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            moments.append(time.perf_counter())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = lib.GRPOConfig(
            output_dir=folder,
            max_steps=count,
            num_generations=8,
            per_device_train_batch_size=EPISODES,
            max_completion_length=400,
            learning_rate=1e-9,
            beta=0.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"prompt": [QUESTION] * 4 * count})
        reward = lambda completions, **_: [float(i % 2) for i in range(len(completions))]  # noqa: E731
        trainer = lib.GRPOTrainer(model, reward, args, data, tools=[function])
        trainer.add_callback(Clock())
        trainer.train()
    assert len(called) == EPISODES * CALLS * count, f"{len(called)} calls in {count} steps"
    return [b - a for a, b in itertools.pairwise(moments)]


def measured(python: str, library: str, case: str, model: str, count: int, threads: int) -> list[float]:
    """Return the seconds of the steps of one library, the first one left out: it warms up."""
    command = [
        python,
        __file__,
        "--worker",
        library,
        "--cases",
        case,
        "--model",
        model,
        "--steps",
        str(count + 1),
    ]
    done = subprocess.run(
        command, env=environment(threads, TRL_EXPERIMENTAL_SILENCE="1"), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return list(json.loads(done.stdout.splitlines()[-1]))[1:]


def beside_trl(args: argparse.Namespace, model: str) -> Any:
    """Yield, for calls in threads and for coroutines, the seconds of a step of both libraries."""
    pythons = {"covey": sys.executable} | ({"trl": args.trl} if args.trl else {})
    for case in (case for case in args.cases if case in CASES):
        found = {
            name: measured(p, name, case, model, args.steps, args.threads) for name, p in pythons.items()
        }
        row: dict[str, Any] = {"case": case}
        row |= {name: statistics.median(seconds) for name, seconds in found.items()}
        if "trl" in row:
            row["ratio"] = row["trl"] / row["covey"]
        yield row


# --- an answer against sampling ------------------------------------------------------------------------------------------------


class Answers:
    """Answers every first turn with so many ids, and ends with the second."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    def opening(self, prompt: Any, index: int) -> tuple[int, ...]:
        return ()

    def ended(self, prompt: Any, index: int, ids: Any, reason: str, room: int) -> Any:
        from covey.sample.turns import Answer

        return Answer((), reason) if len(ids) > len(self.ids) else Answer(self.ids)

    def closed(self, prompt: Any, index: int, completion: Any) -> Any:
        return completion


def answer_cost(model: str, rows: int = 32, length: int = 64, rounds: int = 7) -> dict[str, Any]:
    """Return the seconds that 64 ids take, sampled and read as an answer, the medians of some rounds."""
    from transformers import AutoModelForCausalLM

    from covey.sample.native.engine import NativeEngine
    from covey.sample.sampling import Sampling
    from covey.types import Prompt

    policy = AutoModelForCausalLM.from_pretrained(model)
    engine = NativeEngine(lambda ids: "")
    engine.load(policy)
    prompts = [Prompt("", (1, 2, 3, 4), seed_key=(n,)) for n in range(rows // 8)]
    nothing = tuple(range(policy.config.vocab_size))

    def seconds(settings: Sampling, turns: Any) -> float:
        begin = time.perf_counter()
        list(engine.generate(prompts, 8, settings, turns))
        return time.perf_counter() - begin

    # Every id ends a turn: a turn is one token, so what is timed beside it is the answer alone.
    short = Sampling(max_new_tokens=1, stop_ids=nothing)
    sampled = Sampling(max_new_tokens=1 + length)
    read = Sampling(max_new_tokens=2 + length, stop_ids=nothing)
    answers = Answers(tuple(range(5, 5 + length)))
    times = [(seconds(short, None), seconds(sampled, None), seconds(read, answers)) for _ in range(rounds)]
    base, drawn, answered = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "case": "answer",
        "sampled": drawn - base,
        "read": answered - base,
        "share": (answered - base) / (drawn - base),
    }


def show(row: dict[str, Any]) -> None:
    print(
        "  ".join(f"{name} {v if isinstance(v, str) else f'{v:.3f}'}" for name, v in row.items()), flush=True
    )


def main() -> None:
    """Measure, and print one line per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, [*CASES, "answer"], ["float32"], 1, ("covey", "trl"))
    parser.add_argument("--trl", metavar="PYTHON", help="the Python of an environment with TRL")
    parser.add_argument("--model", help="a policy for the case `answer`; by default the taught one")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(steps(args.worker, args.cases[0], args.model, args.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        taught(Path(folder))
        rows = beside_trl(args, folder)
        if "answer" in args.cases:
            rows = itertools.chain(rows, (answer_cost(args.model or folder) for _ in range(1)))
        report(rows, show, args.json)


if __name__ == "__main__":
    main()
