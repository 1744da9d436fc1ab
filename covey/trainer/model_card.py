"""The model card of a run: README.md with the fields that the hub reads, and what was trained, on what and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from covey.config import GRPOConfig
from covey.config.validation import defaults

SHOWN = (
    "loss_type", "num_generations", "max_completion_length", "temperature", "learning_rate", "beta", "epsilon",
    "num_iterations", "scale_rewards",
)  # fmt: skip
CARD = """---
{head}
---

# {title}

`{base}`, trained with GRPO ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)){data} by Covey.

Rewards: {rewards}.

| setting | |
| --- | --- |
{settings}

```python
from transformers import pipeline

generator = pipeline("text-generation", model="{model}")
print(generator([{{"role": "user", "content": "..."}}], max_new_tokens=256, return_full_text=False)[0]["generated_text"])
```

Versions: {versions}.
"""
PACKAGES = ("covey", "transformers", "torch", "datasets", "tokenizers")


def model_card(
    args: GRPOConfig,
    rewards: Sequence[str],
    name: str | None,
    base: object,
    dataset: str | None,
    tags: str | Sequence[str] | None,
    others: Mapping[str, object],
) -> str:
    """Return the text of a model card.

    Args:
        rewards: their names.
        name: of the model; by default that of output_dir.
        base: name or folder of the model that training began with.
        dataset: name of the data set.
        others: more fields for the hub: language, license, ...
    """
    title = name or Path(args.hub_model_id or args.output_dir or "model").name
    given = [tags] if isinstance(tags, str) else list(tags or ())
    sets = others.get("dataset") or dataset
    fields = {
        **{
            key: value for key, value in others.items() if value is not None and not key.startswith("dataset")
        },
        "base_model": base,
        "datasets": [sets] if isinstance(sets, str) else sets,
        "library_name": "transformers",
        "model_name": title,
        "tags": list(dict.fromkeys([*given, "grpo", "covey", "reinforcement-learning"])),
    }
    # JSON is YAML, and needs no quoting of its own
    head = "\n".join(f"{key}: {json.dumps(value, default=str)}" for key, value in fields.items() if value)
    standard = defaults(type(args))
    settings = "\n".join(
        f"| `{n}` | {getattr(args, n)} |"
        for n in SHOWN
        if n in ("learning_rate", "beta") or getattr(args, n) != standard[n]
    )
    return CARD.format(
        head=head,
        title=title,
        base=base,
        data=f" on [{sets}](https://huggingface.co/datasets/{sets})" if isinstance(sets, str) else "",
        rewards=", ".join(f"`{reward}`" for reward in rewards),
        settings=settings,
        model=args.hub_model_id or title,
        versions=", ".join(f"{package} {found_version(package)}" for package in PACKAGES),
    )


def found_version(package: str) -> str:
    """Return the installed version of a package, or what says that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
