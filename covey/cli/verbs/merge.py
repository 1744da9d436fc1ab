"""`covey merge ADAPTER OUT`: an adapter and its base model as one model that needs no peft."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.text.foreign import show

EXAMPLES = """
examples:
  covey merge runs/math/model runs/math/merged
  covey merge runs/math/checkpoint-200 merged --dtype bfloat16
  covey merge adapter merged --base path/to/base           where the base has moved since

The sum of base and adapter is made in float32 on the CPU, and saved in the precision of the base's own files, with the tokenizer,
or the processor of a model that sees.

Exit status: 0 merged, 2 wrong input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
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
    """Merge, save, and print where the model is."""
    from transformers import AutoConfig

    from covey.config.hardware import missing_to_see
    from covey.models import adapters, loading
    from covey.models.families import is_family
    from covey.models.inspect import innermost

    out = Path(args.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already. Name a folder that is not, or empty it.")
    dtype = loading.resolved_dtype(args.dtype)
    base_kwargs = {"trust_remote_code": True} if args.trust_remote_code else {}
    policy: Any = adapters.load_adapter(args.adapter, args.base, base_kwargs)
    if is_family(innermost(policy).config) and (missing := missing_to_see()):
        raise ConfigError(
            f"The policy sees, and its processor needs {' and '.join(missing)}, without which what is merged would be blind: "
            "pip install 'covey[vision]'."
        )
    base = args.base or policy.peft_config["default"].base_model_name_or_path
    processing = loading.load_processing_class(None, args.adapter, args.trust_remote_code, base)
    if dtype is None:  # the precision of the base's own files
        dtype = AutoConfig.from_pretrained(base, **base_kwargs).dtype
    adapters.merge_adapter(policy, args.out, processing, keep=False, dtype=dtype)
    show(f"{args.out}: {base} with {args.adapter} merged into it")
    return 0
