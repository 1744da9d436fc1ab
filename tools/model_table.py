"""Write docs/models.md: for every causal family of transformers, and every one that is shown pictures, what one step of a tiny model does.

    python tools/model_table.py                     all families, some minutes
    python tools/model_table.py lfm2 mamba          only these are tried again, the other rows stay
    python tools/model_table.py pictures            all that are shown pictures

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


def outcome(family: str, sees: bool = False) -> tuple[str, str, str, str]:
    """Return class, way of sampling, way of the update and gap of one step; a refusal has its words in place of the last three.

    Args:
        sees: the step is on prompts with no picture, one and two.
    """
    from covey.errors import CoveyError
    from tests.trainer import harness

    def by_ids(completion_ids: Any, **_: Any) -> list[float]:
        """Return numbers that differ within a group, whatever is sampled."""
        return [float((sum(ids) + 3 * len(ids)) % 7) for ids in completion_ids]

    try:
        model, processing, rows = _with_pictures(family) if sees else _of_text(family)
    except Exception as error:  # the table says so
        return "", f"no tiny model: {_short(error)}", "", ""
    name = type(model).__name__
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = harness.train(
                model, folder, by_ids, rows, processing_class=processing, generation_kwargs=ENDS
            )
    except CoveyError as error:
        return name, f"refused: {_short(error)}", "", ""
    engine: Any = trainer.engine
    sampler = "fast" if engine.reason is None else f"general, {engine.decoding[1].way}"
    update = "packed" if trainer.updater.forward.is_fast else "row by row"
    gap = max(entry["sampling/logp_gap/mean"] for entry in trainer.state.log_history if "loss" in entry)
    moved = any(not p.detach().equal(before[n]) for n, p in model.named_parameters())
    return name, sampler, update, f"{gap:.0e}" if moved else "no weight moved"


def _of_text(family: str) -> tuple[Any, Any, Any]:
    """Return a tiny model, its tokenizer, and prompts of two lengths."""
    from datasets import Dataset

    from tests.families import tiny_of
    from tests.tiny import tiny_tokenizer

    return tiny_of(family), tiny_tokenizer(), Dataset.from_dict({"prompt": ["ab", "abcdefghi"] * 4})


def _with_pictures(family: str) -> tuple[Any, Any, Any]:
    """Return a tiny model, its processor, and prompts with one picture, none and two; windows are longer than these."""
    from tests.vision.tiny_eyes import picture_rows, tiny_eyes

    model, processor = tiny_eyes(family, window=512)
    return model, processor, picture_rows(6, (1, 0, 2))


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


SEEN = """
## With pictures

The same step on prompts with one picture, none and two, for each kind of model that is trained with pictures
([Policies that see](vision.md)). Other models that read pictures are refused by name where a row has some. `gemma3n` wants the
package timm and is not tried. Positions are what the model's own code gives for a picture, integer by integer; the fast sampler and
packing are compared with the model's own pass over a picture of the run before they are used.

| family | class | sampler | update | gap |
| --- | --- | --- | --- | --- |
"""


def table(sees: bool = False) -> dict[str, list[str]]:
    """Return the rows of the page by family: of texts, or of prompts with pictures."""
    text, _, pictures = PAGE.read_text().partition("## With pictures") if PAGE.exists() else ("", "", "")
    lines = (pictures if sees else text).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def tried(family: str, rows: dict[str, list[str]], sees: bool) -> None:
    """Try one family, and put its row into a table."""
    signal.alarm(LIMIT)
    try:
        rows[family] = list(outcome(family, sees))
    except Exception as error:  # the table says what is wrong with us
        rows[family] = ["", f"FAULT: {_short(error)}", "", ""]
    signal.alarm(0)
    print(family, *rows[family], sep=" | ", file=sys.stderr, flush=True)


def main() -> None:
    """Try the families that are named, or all, and write the page."""
    from tests.families import FAMILIES
    from tests.vision.tiny_eyes import EYES

    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    named = sys.argv[1:] or [*FAMILIES, "pictures"]
    texts, pictures = table(), table(sees=True)
    for family in [name for name in named if name != "pictures"]:
        tried(family, texts, sees=False)
    for kind in EYES if "pictures" in named else ():
        tried(kind, pictures, sees=True)
    parts = [f"{HEAD}{_lines(texts)}", f"{SEEN}{_lines(pictures)}"]
    PAGE.write_text("".join(parts))


def _lines(rows: dict[str, list[str]]) -> str:
    return "".join(f"| `{name}` | {' | '.join(cells)} |\n" for name, cells in sorted(rows.items()))


if __name__ == "__main__":
    main()
