"""`covey merge ADAPTER OUT`: an adapter and its base model as one model that needs no peft."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from covey.cli.arguments import add_verb

HELP = "merge an adapter into its base model, and save the result"

EXAMPLES = """
examples:
  covey merge runs/math/model runs/math/merged
  covey merge runs/math/checkpoint-200 merged --dtype bfloat16
  covey merge adapter merged --base path/to/base           where the base has moved since

The sum of base and adapter is made in float32 on the CPU, and saved in the precision of the base's own files.

Exit status: 0 merged, 2 wrong input.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = add_verb(subparsers, "merge", HELP, EXAMPLES)
    parser.add_argument(
        "adapter", metavar="ADAPTER", help="folder of the adapter: a run's model, or a checkpoint"
    )
    parser.add_argument("out", metavar="OUT", help="folder to write; it must be empty, or not there yet")
    parser.add_argument("--base", metavar="MODEL", help="the base model (default: what the adapter says)")
    parser.add_argument(
        "--dtype", metavar="NAME", help="precision to save in: float32, bfloat16, ... (default: the base's)"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the base model"
    )


def run(args: argparse.Namespace) -> int:
    """Merge and say where the model is."""
    from covey.models.adapters import load_adapter, merge_adapter
    from covey.models.loading import load_tokenizer, resolved_dtype

    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        print(
            f"covey merge: {out} is there already. Name a folder that is not, or empty it.", file=sys.stderr
        )
        return 2
    dtype = resolved_dtype(args.dtype)
    policy: Any = load_adapter(args.adapter, args.base, _base_kwargs(args))
    base = args.base or policy.peft_config["default"].base_model_name_or_path
    own = (Path(args.adapter) / "tokenizer_config.json").exists()
    tokenizer = load_tokenizer(None, args.adapter if own else base, args.trust_remote_code)
    merge_adapter(policy, args.out, tokenizer, keep=False, dtype=dtype or _saved_dtype(base, args))
    print(f"{args.out}: {base} with {args.adapter} merged into it")
    return 0


def _base_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    return {"trust_remote_code": True} if args.trust_remote_code else {}


def _saved_dtype(base: str, args: argparse.Namespace) -> Any:
    """The precision of the base's files, as its config says it."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(base, **_base_kwargs(args)).dtype
