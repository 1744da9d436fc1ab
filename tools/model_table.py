"""Write docs/models.md: for every causal family of transformers, what one training step of a tiny model does.

    python tools/model_table.py                     all families, some minutes
    python tools/model_table.py lfm2 mamba          only these are tried again, the other rows stay

tests/docs/test_models.py holds some rows of the page against the code, and all of them where slow tests are asked for.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
sys.path.insert(0, str(ROOT))

LIMIT = 120
"""Seconds for one family."""


def outcome(family: str) -> tuple[str, str, str, str]:
    """Return class, way of sampling, way of the update and gap of one step; a refusal has its words in place of the last three."""
    from datasets import Dataset

    from covey.errors import CoveyError
    from tests.families import tiny_of
    from tests.tiny import tiny_tokenizer
    from tests.trainer import harness

    def by_ids(completion_ids: Any) -> list[float]:
        """Return numbers that differ within a group, whatever is sampled."""
        return [float((sum(ids) + 3 * len(ids)) % 7) for ids in completion_ids]

    try:
        model: Any = tiny_of(family)
    except Exception as error:  # the table says so
        return "", f"no tiny model: {_short(error)}", "", ""
    name = type(model).__name__
    rows = Dataset.from_dict({"prompt": ["ab", "abcdefghi"] * 4})
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = harness.train(
                model,
                folder,
                by_ids,
                rows,
                processing_class=tiny_tokenizer(),
                generation_kwargs=ENDS,
            )
    except CoveyError as error:
        return name, f"refused: {_short(error)}", "", ""
    engine: Any = trainer.engine
    sampler = "fast" if engine.reason is None else f"general, {engine.decoding[1].way}"
    update = "packed" if trainer.updater.forward.is_fast else "row by row"
    gap = max(entry["sampling/logp_gap/mean"] for entry in trainer.state.log_history if "loss" in entry)
    moved = any(not p.detach().equal(before[n]) for n, p in model.named_parameters())
    return name, sampler, update, f"{gap:.0e}" if moved else "no weight moved"


def _too_long(*_: object) -> None:
    """Raise where a family is over its time; without this the alarm would end the whole table."""
    raise TimeoutError(f"no end within {LIMIT} s")


ENDS = {"eos_token_id": list(range(30, 42))}
"""More end ids, so that completions have several lengths."""


def _short(error: Exception) -> str:
    """Return the first sentences of an error, fit for a table."""
    words = re.sub(r"\s+", " ", str(error)).replace("|", "/")
    words = words if type(error).__module__.startswith("covey") else f"{type(error).__name__}: {words}"
    return words if len(words) <= 160 else f"{words[:157]}..."


HEAD = """# Models

Every causal language model of transformers can be a policy, or is refused by name before anything is sampled. The table is made
by `tools/model_table.py`: a tiny random model of each family takes one training step on prompts of two lengths.

- **sampler**: `fast` is Covey's own forward pass ([sampling](sampling.md)). `general` is the model's own: with the cache that it
  makes; with the cache, but prompts of equal length together, where a layer carries a state from token to token and padding
  would enter it; or without a cache, which is slow and exact, where the cache cannot be taken apart into rows.
- **update**: `packed` reads a prompt once per group ([memory](memory.md)); `row by row` is the model's own forward pass over each
  completion. Packing is for models whose tokens meet by attention alone: that is asked of the architecture. It is compared with
  the model's own pass at the first optimizer step and at steps 2, 4, 8 and so on; tokens of neighbours are changed then, too,
  which may not move a number. Where it fails, one line in the log says so, and the run goes on row by row.
- **gap**: mean difference between the sampler's log-probabilities and the update's, in nats, in float32.

Mixtures of experts: where the model's config has a `router_aux_loss_coef` above 0, the loss that balances the experts is added
with that weight and logged as `aux_loss`: the mean over the completions of an optimizer step, as the model reckons it over whole
rows. In a packed row a prompt counts once for each of its completions; where that is not the model's own number, the update goes
row by row. `GRPOConfig(router_aux_loss_coef=...)` sets another weight, and 0 leaves the loss out.

What is refused: encoder-decoders, models that see later tokens (BERT and its kin without `is_decoder=True`, XLNet, XLM), models
whose forward pass wants more than token ids, folders that lack weights, weights that are stored quantised where the package is
missing, tokenizers that are larger than the embedding. Rows of the embedding beyond the tokenizer are never drawn.

| family | class | sampler | update | gap |
| --- | --- | --- | --- | --- |
"""


def table() -> dict[str, list[str]]:
    """Return the rows of the page by family."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def main() -> None:
    """Try the families that are named, or all, and write the page."""
    from tests.families import FAMILIES

    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    rows = table()
    for family in sys.argv[1:] or FAMILIES:
        signal.alarm(LIMIT)
        try:
            rows[family] = list(outcome(family))
        except Exception as error:  # the table says what is wrong with us
            rows[family] = ["", f"FAULT: {_short(error)}", "", ""]
        signal.alarm(0)
        print(family, *rows[family], sep=" | ", file=sys.stderr, flush=True)
        lines = [f"| `{name}` | {' | '.join(cells)} |" for name, cells in sorted(rows.items())]
        PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
