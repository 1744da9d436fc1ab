"""`covey generate MODEL PROMPTS`: groups of completions from any model, with the sampler that trains."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from covey.cli.engines import engine_of, never_drawn, reader_of
from covey.cli.line_output import line_output
from covey.cli.prompt_files import Row, as_chats, folder_of, read_rows, shown_with
from covey.errors import ConfigError
from covey.runs.terminal.any_encoding import holds_any_character
from covey.text.foreign import show, write_json
from covey.vision.marks import marked

if TYPE_CHECKING:
    import torch

    from covey.sample.prompts import PromptReader
    from covey.sample.sampling import Sampling
    from covey.tools.episodes import EpisodeMaker
    from covey.types import Group, Prompt

EXAMPLES = """
examples:
  covey generate my-model -p "The capital of France is"
  covey generate my-model questions.jsonl -n 8 > samples.jsonl       8 completions of each prompt
  covey generate my-model questions.txt --chat --system "Be brief."  each line is what a user says
  covey generate my-model questions.jsonl --greedy --max-tokens 64
  covey generate my-vlm -p "What is this?" --image cat.jpg            a model that sees; several: --image A --image B
  covey generate my-model questions.txt --chat --tool my_tools:search     it may call the tool, and reads what comes back
  head -20 train.jsonl | covey generate my-model -                   prompts from another program
  covey generate my-model train.jsonl -n 4 -o samples.jsonl          ... and what rewards say of them:
  covey check train.jsonl --reward SameAnswer --completions samples.jsonl

in:   A .jsonl file has an object per line with "prompt": text, or a list of messages; other files have a prompt per line.
      "-" is standard input, and its first line says which of the two it is. Messages go through the model's chat template.
      Pictures stand in the columns "image" and "images" or in the messages (docs/vision.md), as paths below --image-root
      (default: the folder of the file) or as data URIs. --image shows its pictures with every -p TEXT, before what the user says.
out:  One line per completion, in the order of the prompts:
      {"row": 0, "index": 0, "prompt": ..., "completion": ..., "finish": "stop" | "stop_string" | "length" | ..., "tokens": 17}
      --logprobs adds "ids", and "logprobs" under the distribution that was drawn from. What the model saw is "pictures": the
      SHA-256 of each.

What a completion says depends on the model, its prompt and row, its index, the seed and the options; not on the other
prompts, and not on -n.

Exit status: 0 done, 2 wrong input.
"""

CHUNK = 2048
"""Completions that are asked for at once; what has finished is written in between."""


MAX_TOKENS = 512
"""Tokens per completion where nothing is said, as max_completion_length has it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model's name or folder, a checkpoint, or an adapter")
    add("prompts", nargs="?", metavar="PROMPTS", help="a file, or - for standard input")
    add("-p", "--prompt", action="append", default=[], metavar="TEXT", help="a prompt; several times")
    add("--image", action="append", default=[], metavar="PATH", help="a picture for each -p; several times")
    add(
        "--image-root",
        metavar="FOLDER",
        help="paths of pictures lie below it (default: the folder of PROMPTS)",
    )
    add("--chat", action="store_true", help="take text prompts as what a user says")
    add("--system", metavar="TEXT", help="a system message before each chat")
    number: Any = {"type": int, "metavar": "N"}
    share: Any = {"type": float, "metavar": "P"}
    add("-n", "--samples", default=1, help="completions per prompt (default: 1)", **number)
    add("--max-tokens", help="tokens per completion (default: 512, at most half of the context)", **number)
    add("--min-tokens", default=0, help="no end before so many tokens", **number)
    add("--temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    add("--top-p", default=1.0, help="the most probable tokens that hold P (default: 1, all)", **share)
    add("--top-k", default=0, help="the N most probable tokens (default: 0, all)", **number)
    add("--min-p", default=0.0, help="tokens P times as probable as the best (default: 0, all)", **share)
    add(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1: fewer repeats (default: 1)",
    )
    add("--greedy", action="store_true", help="take the most probable token each time")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="a text that ends a completion; several times",
    )
    add(
        "--tool",
        action="append",
        default=[],
        metavar="NAME",
        help="MODULE:NAME of a function that the model may call; several times. Prompts are chats",
    )
    add("--max-calls", metavar="N", type=int, help="turns of calls that are answered (default: no limit)")
    add("--seed", default=42, help="(default: 42)", **number)
    add("--dtype", default="auto", metavar="NAME", help="of the weights (auto: as saved)")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--logprobs", action="store_true", help="write token ids and their log-probabilities too")
    add("-o", "--output", metavar="FILE", help="write there instead of standard output")


def run(args: argparse.Namespace) -> int:
    """Sample, and write every group as soon as it and those before it are finished."""
    if args.prompts is None and not args.prompt:
        raise ConfigError("There is no prompt. Give a file, - for standard input, or -p TEXT.")
    if args.samples < 1:
        raise ConfigError(f"--samples is {args.samples}; it must be at least 1.")
    if args.image and not args.prompt:
        raise ConfigError(
            "--image has no effect without -p TEXT. The rows of a file name their own pictures, in a column 'image' or 'images'."
        )
    rows = read_rows(args.prompts, args.prompt)
    if args.image:
        rows = shown_with(rows, args.image, len(args.prompt))
    if args.chat or args.system is not None:
        rows = as_chats(rows, args.system)
    if args.tool and any(isinstance(row.get("prompt"), str) for row in rows):
        raise ConfigError(
            "--tool needs chats, and there are prompts that are text. Add --chat to take them as what a user says."
        )
    if args.max_calls is not None and not args.tool:
        raise ConfigError(f"--max-calls {args.max_calls} has no effect without --tool.")
    source = Source(args)
    prompts = source.read(rows)
    start, tokens = time.perf_counter(), 0
    with line_output(args.output) as out:
        for group in source.groups(prompts, args.samples):
            tokens += sum(completion.num_written for completion in group.completions)
            for line in lines(group, args.logprobs):
                write_json(json.dumps(line, ensure_ascii=not holds_any_character(out)), out)
        seconds, reason = time.perf_counter() - start, source.engine.reason
        path = "fast path" if reason is None else f"general path: {reason}"
        show(
            f"{len(prompts) * args.samples:,} completions of {len(prompts):,} prompts, {tokens:,} tokens in "
            f"{seconds:.1f} s: {tokens / seconds:,.0f} tokens/s ({path})",
            sys.stderr,
        )
    return 0


class Source:
    """A model that is sampled from, as the command's options say."""

    def __init__(self, args: argparse.Namespace) -> None:
        from covey.models import fitness, loading
        from covey.models.inspect import context_length
        from covey.recipes.bundled import policy_name
        from covey.recipes.objects import import_object

        trust, model = args.trust_remote_code, policy_name(args.model)
        self.policy: Any = loading.load_policy(model, {"dtype": args.dtype}, trust_remote_code=trust)
        fitness.check_causal(self.policy)
        self.policy.to(device_of(args.device))
        processing = loading.load_processing_class(None, model, trust)
        self.tokenizer = loading.tokenizer_of(processing)
        fitness.check_tokenizer(self.tokenizer, self.policy)
        self.reader = reader_of(self.policy, processing, args.image_root or folder_of(args.prompts))
        self.engine, ending = engine_of(self.policy, self.tokenizer, self.reader.eyes)
        if args.max_tokens is None:  # of the model alone: what one prompt gets must not depend on the others
            args.max_tokens = min(MAX_TOKENS, (context_length(self.policy) or 2 * MAX_TOKENS) // 2)
        self.settings = settings(args, ending, **never_drawn(self.policy, self.tokenizer, ending))
        self.tools, self.max_calls = [import_object(name) for name in args.tool], args.max_calls
        self.maker: EpisodeMaker | None = None

    def read(self, rows: Sequence[Row]) -> list[Prompt]:
        """Return the prompts with their token ids.

        Raises:
            DatasetError: a prompt that is none, or one that leaves no room for the completion.
        """
        from covey.sample.prompts import seed_keys

        reader = replace(self.reader, reserved=self.settings.max_new_tokens)
        if self.tools:
            blind = reader.blind or "a command with tools shows the policy text alone, up to now"
            self.maker = self.made_episodes(replace(reader, blind=blind))
            reader = self.maker.reader
        keys = seed_keys(range(len(rows)))
        return [
            reader.read(row, number, key) for number, (row, key) in enumerate(zip(rows, keys, strict=True))
        ]

    def made_episodes(self, reader: PromptReader) -> EpisodeMaker:
        """Return what lets the model call the tools of `--tool`."""
        from covey.tools.episode_settings import EpisodeSettings
        from covey.tools.episodes import EpisodeMaker

        limits = EpisodeSettings(max_tool_calling_iterations=self.max_calls)
        return EpisodeMaker(self.tools, None, reader, self.settings.stop_ids, limits, self.settings.seed)

    def groups(self, prompts: Sequence[Prompt], size: int) -> Iterator[Group]:
        """Yield a group of completions per prompt, in the order of the prompts, as soon as it is finished."""
        step = max(1, CHUNK // size)
        for first in range(0, len(prompts), step):
            part: Sequence[Prompt] = prompts[first : first + step]
            waiting: dict[int, Group] = {}
            wanted = first
            episodes = None if self.maker is None else self.maker.begin(part, size, self.settings.step)
            part = part if episodes is None else episodes.prompts
            for group in self.engine.generate(part, size, self.settings, episodes):
                waiting[group.prompt.row] = group
                while wanted in waiting:
                    yield waiting.pop(wanted)
                    wanted += 1


def settings(args: argparse.Namespace, ending: Sequence[int], **never: Any) -> Sampling:
    """Return how completions are sampled; `never` names ids that are not drawn."""
    from covey.sample.sampling import Sampling

    return Sampling(
        max_new_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        min_new_tokens=args.min_tokens,
        **never,
        stop_ids=tuple(ending),
        stop_strings=tuple(args.stop),
        seed=args.seed,
        greedy=args.greedy,
    )


def lines(group: Group, with_logprobs: bool) -> Iterator[dict[str, object]]:
    """Yield what is written of a group: one mapping per completion."""
    for index, (completion, content) in enumerate(zip(group.completions, group.contents(), strict=True)):
        line: dict[str, object] = {
            "row": group.prompt.row,
            "index": index,
            "prompt": marked(group.prompt)[0],
            "completion": content,
            "finish": completion.finish,
            "tokens": completion.num_written,
        }
        if group.prompt.pictures:
            line["pictures"] = [picture.digest for picture in group.prompt.pictures]
        if with_logprobs:
            line |= {"ids": list(completion.ids), "logprobs": list(completion.logprobs)}
        yield line


def device_of(name: str | None) -> torch.device:
    """Return the device that `--device` names; without it, CUDA's where there is one, else the CPU.

    Raises:
        ConfigError: no such device here.
    """
    import torch

    from covey.config.hardware import has_cuda

    if name is not None and name.startswith("cuda") and not has_cuda():
        raise ConfigError(f"--device is {name}, and this machine has no CUDA device. Leave it out.")
    try:
        return torch.device(name or ("cuda" if has_cuda() else "cpu"))
    except RuntimeError as error:
        raise ConfigError(f"--device is {name!r}; give cpu, cuda, or cuda:1.") from error
