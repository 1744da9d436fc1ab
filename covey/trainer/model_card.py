"""The model card of a run: README.md with the fields that the hub reads, and what was trained, on what and how."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.config import GRPOConfig
from covey.config.validation import defaults
from covey.runs.record.environment import libraries
from covey.text.foreign import as_markdown, excerpt, visible
from covey.text.secrets import without_secrets

SHOWN = (
    "loss_type", "num_generations", "max_completion_length", "temperature", "learning_rate", "beta", "epsilon",
    "num_iterations", "scale_rewards",
)  # fmt: skip
CARD = """---
{head}
---

# {title}

{base}, trained with GRPO ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)){data} by Covey.

Rewards: {rewards}.

| setting | |
| --- | --- |
{settings}

```python
from transformers import pipeline

generator = pipeline("text-generation", model={model})
print(generator([{{"role": "user", "content": "..."}}], max_new_tokens=256, return_full_text=False)[0]["generated_text"])
```

Versions: {versions}.
"""
MAX_NAME = 300
"""Characters of a name that are shown."""
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
    head = "\n".join(f"{key}: {_json(value)}" for key, value in fields.items() if value)
    standard, installed = defaults(type(args)), libraries()
    settings = "\n".join(
        f"| `{n}` | {as_markdown(getattr(args, n))} |"
        for n in SHOWN
        if n in ("learning_rate", "beta") or getattr(args, n) != standard[n]
    )
    card = CARD.format(
        head=head,
        title=as_markdown(title),
        base=_code(base),
        data=f" on {_linked(sets)}" if isinstance(sets, str) else "",
        rewards=", ".join(map(_code, rewards)),
        settings=settings,
        model=_json(args.hub_model_id or title).replace("`", ""),
        versions=", ".join(f"{package} {installed[package]}" for package in PACKAGES if package in installed),
    )
    return without_secrets(card)


def _json(value: object) -> str:
    """Return a value as JSON on one line, nothing hidden."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def _code(name: object) -> str:
    """Return a name as code on one line; a backtick would end it."""
    return f"`{excerpt(str(name), MAX_NAME).replace('`', chr(39))}`"


def _linked(dataset: str) -> str:
    """Return the name of a data set, with a link where it can be one of the hub."""
    shown = as_markdown(excerpt(dataset, MAX_NAME))
    is_of_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset, re.ASCII)
    return f"[{shown}](https://huggingface.co/datasets/{dataset})" if is_of_hub else shown
