"""Model → log-probability and entropy of every completion token.

The fast way packs a group into one row (`packing`), attends over it (`packed_attention`), and takes only the hidden states
that predict a completion token through the head, in chunks (`logprob_forward`). It is for models whose tokens meet by attention
alone. At first use it is compared with the model's own forward pass, row by row, and tokens of one completion are changed,
which may not move another's numbers at all; the same again at optimizer steps 2, 4, 8, and so on. Where one of these fails,
because the architecture does something that packing does not know of, the plain way is taken from then on, with one line in
the log.

Old, new and reference log-probabilities all come from here, at the sampling temperature, with the soft-max in float32.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from covey.errors import ConfigError
from covey.models.inference_mode import logits_alone
from covey.models.inspect import accepted_arguments, innermost, other_mixers, text_config
from covey.text.foreign import fit
from covey.types import PromptKey
from covey.update.logprob_forward import LogprobRequest, body_and_head, logprob_forward
from covey.update.micro_batch import MicroBatch
from covey.update.packed_attention import packed
from covey.update.packing import pack
from covey.update.view import Viewer
from covey.vision.sight import Eyes, Sight, placed, typed

logger = logging.getLogger(__name__)

FINE = 1e-3
"""Largest difference of a log-probability between the two ways, in nats, where float32 is computed in."""
COARSE = 0.03
"""Mean difference in half precision, whose rounding differs with the shape of a batch."""
ROUTED = 1e-4
"""What a neighbour may move a log-probability in float32 where tokens are sent to experts: each expert's batch, and so its
rounding, depends on all of them. Elsewhere nothing may move."""


EXPERTS = re.compile("Expert|MoE|MOE|Moe|Router|MoA|8bit")
"""Names of classes of modules whose result for a token depends on the batch, by rounding."""


class Forward:
    """Computes token log-probabilities of one policy.

    Args:
        policy: the causal model, before it is wrapped for training.
        temperature: logits are divided by it.
        fast: False takes the plain way always.
        balances: whether passes keep the loss that balances a mixture's experts (`aux_loss`), as the model reckons it over
            whole rows. In a packed row a prompt counts once for each of its completions.
        note_event: takes what the record of the run should know.
        eyes: look at the pictures of prompts; None: the policy sees none.
        agree: returns whether all processes say yes, where they take passes together. Collective.
    """

    def __init__(
        self,
        policy: nn.Module,
        temperature: float = 1.0,
        fast: bool = True,
        balances: bool = False,
        note_event: Callable[[str], object] = str,
        agree: Callable[[bool], bool] = bool,
        eyes: Eyes | None = None,
    ) -> None:
        self.temperature, self.balances, self.note_event = temperature, balances, note_event
        self.agree = agree
        self.causal = innermost(policy)
        self.viewer = None if eyes is None else Viewer(self.causal, eyes)
        self.aux_loss: Tensor | None = None
        """The balancing loss of the last pass, a scalar; None: none is asked for."""
        self.sliding_window = shortest_window(policy)
        self.is_fast = fast and all(isinstance(part, nn.Module) for part in body_and_head(self.causal))
        self.is_due = True
        """Whether the ways are compared before the next pass."""
        self.vocabulary = int(text_config(self.causal).vocab_size)
        self.steps = 0
        """Optimizer steps so far."""
        self.routes = any(EXPERTS.search(type(m).__name__) for m in policy.modules())
        if self.is_fast and self.viewer is not None and not self.viewer.shares:
            self._give_up("in this release of transformers it takes no features, so each row shows its own")
        if self.is_fast and (joined := other_mixers(policy)):
            self._give_up(f"it has {', '.join(joined[:3])} beside attention")
        # Before the model is wrapped for training: wrappers act on its own `forward`.
        self.causal.forward = MethodType(logprob_forward, self.causal)

    def __call__(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Compute the log-probability of each completion token, and the entropy of its distribution.

        Args:
            model: the policy, possibly wrapped for training. Forward and backward pass run inside `layout(batch)`.

        Returns:
            Two float32 tensors of shape (tokens,); 0 at tokens outside the mask, which the head does not see.
        """
        with self.layout(batch), logits_alone(self.causal):
            compute = packed_logprobs if self._packs(batch) else plain_logprobs
            numbers = compute(model, batch, self.temperature, self.balances, self.viewer)
            logprobs, entropy, self.aux_loss = numbers
        has_gradient = isinstance(self.aux_loss, Tensor) and self.aux_loss.requires_grad
        if self.balances and torch.is_grad_enabled() and not has_gradient:
            raise ConfigError(
                f"{type(self.causal).__name__} gives no balancing loss that has a gradient. Set router_aux_loss_coef=0, or "
                "gradient_checkpointing_kwargs={'use_reentrant': False} where layers are checkpointed."
            )
        return logprobs, entropy

    def layout(self, batch: MicroBatch) -> AbstractContextManager[None]:
        """Return the context in which a micro-batch goes forward and backward: checkpointed layers run again in the latter."""
        return packed(self.causal) if self._packs(batch) else nullcontext()

    def begin_window(self, batches: Sequence[MicroBatch]) -> None:
        """Note that these are the batches to come: of frozen towers, features of other prompts are forgotten."""
        if self.viewer is not None:
            self.viewer.begin_window(batches)

    def next_step(self) -> None:
        """Note that an optimizer step begins: at 1, 2, 4, 8, ... the ways are compared again, as weights have moved."""
        self.steps += 1
        self.is_due = self.is_due or (self.steps > 1 and self.steps & (self.steps - 1) == 0)

    def _packs(self, batch: MicroBatch) -> bool:
        # First of all and whatever the batch: with sharded weights every process takes part in every pass.
        if self.is_fast and self.is_due:
            if not self._suits_zero3():
                return False
            self._check(batch)
            if not self.agree(self.is_fast) and self.is_fast:
                self._give_up("another process found that it cannot be packed")
        if self.sliding_window is None:
            return self.is_fast
        longest = max(len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True))
        return self.is_fast and longest <= self.sliding_window

    def _suits_zero3(self) -> bool:
        """Let DeepSpeed ZeRO-3 gather the head together with the whole model, as packing reads its weight from outside.

        Its order of gathering is learned from passes that are all alike: where some would be too long to pack, none is.
        """
        _, head = body_and_head(self.causal)
        if hasattr(head.weight, "ds_id"):
            import deepspeed

            if self.sliding_window is not None:
                self._give_up("DeepSpeed ZeRO-3 with a sliding window; FSDP2 packs")
            for parameter in head.parameters():
                deepspeed.zero.register_external_parameter(self.causal, parameter)
        return self.is_fast

    @torch.no_grad()
    def _check(self, batch: MicroBatch) -> None:
        """Compare the two ways on a few completions, without autocast; change neighbours, and see whether that moves anything."""
        rows = self._comparable(batch)
        self.is_due = not rows
        if not rows:
            return
        batch = batch.select(rows)
        batch = replace(batch, mask=torch.ones_like(batch.mask))  # injected tokens are read as the others are
        batch = batch if self.sliding_window is None else batch.shortened(self.sliding_window)
        holders = frozenset[int]() if self.viewer is None else self.viewer.eyes.placeholders
        autocast = torch.autocast(batch.mask.device.type, enabled=False)
        try:
            with _unwrapped(self.causal) as dtypes, autocast, logits_alone(self.causal):
                # The tower runs once for each way, in its layout: neighbours are no pictures.
                views = [self.viewer and replace(self.viewer, kept={}, is_still=True) for _ in range(2)]
                settings = self.temperature, self.balances
                with packed(self.causal):
                    fast, _, balance = packed_logprobs(self.causal, batch, *settings, views[0])
                plain, _, own = plain_logprobs(self.causal, batch, *settings, views[1])
                moved = max(
                    (packed_logprobs(self.causal, changed, self.temperature, viewer=views[0])[0] - fast)[kept]
                    .abs()
                    .max()
                    .item()
                    for changed, kept in with_other_neighbours(batch, self.vocabulary, holders)
                )
        except Exception as error:  # whatever somebody else's model raises: it does not take a packed row
            return self._give_up(f"it does not take a packed row ({type(error).__name__}: {error})")
        is_exact = dtypes <= {torch.float32, torch.float64}
        self._judge((fast - plain).abs(), moved, is_exact)
        if self.is_fast and not equal_balance(balance, own, FINE if is_exact else COARSE):
            self._give_up(f"its balancing loss would be {balance:.4g} in place of {own:.4g}")

    def _comparable(self, batch: MicroBatch) -> list[int]:
        """Return rows to compare the ways with; none where pictures leave no room in the window."""
        rows = rows_to_compare(batch)
        if self.sliding_window is None or not batch.pictures:
            return rows
        return [r for r in rows if not batch.pictures[r] or len(batch.prompts[r]) < self.sliding_window]

    def _judge(self, gap: Tensor, moved: float, is_exact: bool) -> None:
        """Give packing up where it is off by too much, or where changed neighbours have moved a number by `moved`."""
        largest, mean = float(gap.max()), float(gap.mean())
        bound = 0.0 if not self.routes else ROUTED if is_exact else COARSE
        if not (largest <= FINE if is_exact else mean <= COARSE):
            self._give_up(
                f"its log-probabilities would differ by {largest:.2g} at most, {mean:.2g} on average"
            )
        elif not moved <= bound:
            self._give_up(f"a completion's log-probabilities depend on its neighbours', by {moved:.2g}")

    def _give_up(self, reason: str) -> None:
        """Take the plain way from now on, and say so."""
        self.is_fast = False
        message = f"{type(self.causal).__name__} is trained row by row, without packing: {reason}."
        logger.warning(fit(message))
        if self.steps > 1:  # found in the middle of a run
            self.note_event(message)


def equal_balance(one: Tensor | None, other: Tensor | None, bound: float) -> bool:
    """Return whether two balancing losses are one within rounding, as a share; so are two that were not asked for."""
    if one is None or other is None:
        return one is other
    return bool((one - other).abs() <= bound * other.abs())


def with_other_neighbours(
    batch: MicroBatch, vocabulary: int, holders: frozenset[int] = frozenset()
) -> list[tuple[MicroBatch, Tensor]]:
    """Return batches in which one completion is as it was and the others differ, and its tokens, a mask of shape (tokens,).

    Of the same prompt only completions differ. All have the shape of the batch, so that nothing but values can move a number.
    The number of batches does not depend on the batch.

    Args:
        holders: ids that stand for parts of pictures: they stay, and no others come to them.
    """
    ends = torch.tensor(batch.lengths).cumsum(0)
    tokens = torch.arange(int(ends[-1]), device=batch.mask.device)
    keys, result = batch.keys, []
    for row in (0, 1, 2):
        row = min(row, batch.num_rows - 1)
        others = [
            (
                p if key == keys[row] else shifted(p, vocabulary, holders),
                c if n == row else shifted(c, vocabulary, holders),
            )
            for n, (key, p, c) in enumerate(zip(keys, batch.prompts, batch.completions, strict=True))
        ]
        changed = replace(batch, prompts=[p for p, _ in others], completions=[c for _, c in others])
        kept = (tokens >= int(ends[row]) - batch.lengths[row]) & (tokens < int(ends[row]))
        result.append((changed, kept))
    return result


def shifted(ids: Sequence[int], vocabulary: int, holders: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Return other tokens in the same number; those of `holders` stay, and no others come to them."""
    others = [(i + 1 + n % 3) % vocabulary for n, i in enumerate(ids)]
    return tuple(i if i in holders or o in holders else o for i, o in zip(ids, others, strict=True))


def rows_to_compare(batch: MicroBatch) -> list[int]:
    """Return two long completions of one prompt and one of another, as far as they exist: the cases that packing joins.

    The plain way has all logits of its rows in memory, so it should not see more of them than it must.
    """
    lengths = batch.lengths
    groups: dict[tuple[int, PromptKey], list[int]] = {}
    keys = batch.keys
    for row in sorted(range(batch.num_rows), key=lambda row: -lengths[row]):
        groups.setdefault(keys[row], []).append(row)
    siblings = max(groups.values(), key=lambda rows: lengths[rows[1]] if len(rows) > 1 else 0)
    others = [rows[0] for rows in groups.values() if rows is not siblings]
    return siblings[:2] + others[:1]


@contextmanager
def _unwrapped(causal: Any) -> Iterator[set[torch.dtype]]:
    """Take off what training wrapped around the causal model's `forward`, such as autocast.

    Yields the dtypes of embedded tokens, filled as they are seen: those of the weights, or those that FSDP2 computes in
    while it keeps the weights in float32.
    """
    seen: set[torch.dtype] = set()
    hook = causal.get_input_embeddings().register_forward_hook(lambda _m, _x, out: seen.add(out.dtype))
    wrapped = causal.forward
    causal.forward = MethodType(logprob_forward, causal)
    try:
        yield seen
    finally:
        hook.remove()
        causal.forward = wrapped


def packed_logprobs(
    model: nn.Module,
    batch: MicroBatch,
    temperature: float = 1.0,
    balances: bool = False,
    viewer: Viewer | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the fast way: log-probabilities and entropies, of shape (tokens,) and float32, and the balancing loss if asked for.

    The head sees the tokens under the mask alone; the others' numbers are 0.
    """
    sights = None if viewer is None else viewer.sights(batch)
    row, kept = pack(batch, balances, sights), masked_tokens(batch.mask)
    more = (
        {}
        if viewer is None or sights is None
        else {"shown": viewer.shown(batch, sights, row.firsts), **row.types}
    )
    request = LogprobRequest(
        row.predicts[kept],
        batch.targets[kept],
        temperature,
        {"sections": row.sections},
        row.counts if balances else None,
    )
    with packed(innermost(model)):
        logprobs, entropy, *balance = model(
            input_ids=row.ids, position_ids=row.positions, use_cache=False, logprob_request=request, **more
        )
    return *at_places((logprobs, entropy), kept, batch.mask), balance[0] if balances else None


def plain_logprobs(
    model: nn.Module,
    batch: MicroBatch,
    temperature: float = 1.0,
    balances: bool = False,
    viewer: Viewer | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the same the plain way: one row per completion, padded on the right, the model's own logits and balancing loss.

    The logits of tokens outside the mask are made all the same: it is the model that makes them.
    """
    rows = [torch.tensor([*p, *c]) for p, c in zip(batch.prompts, batch.completions, strict=True)]
    device = batch.mask.device
    ids = pad_sequence(rows, batch_first=True).to(device)  # (rows, positions)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
    # A token is predicted by the position before it; logits are made from the first such position on.
    starts = [len(p) - 1 for p in batch.prompts]
    first, last = min(starts), ids.shape[1] - 1
    positions = torch.arange(ids.shape[1], device=device)
    optional = {"position_ids": positions.expand(len(rows), -1), "logits_to_keep": positions[first:last]}
    if viewer is not None:
        sights = viewer.sights(batch)
        optional |= rows_seen(sights, batch, device)
    more: dict[str, Any] = {name: optional[name] for name in optional.keys() & accepted_arguments(model)}
    if viewer is not None:
        more["shown"] = viewer.shown(batch, sights, range(batch.num_rows))
    if balances:
        more["output_router_logits"] = True
    output = model(input_ids=ids, attention_mask=mask, use_cache=False, **more)
    logits = (
        output.logits if "logits_to_keep" in more else output.logits[:, first:last]
    )  # (rows, last - first, vocab)
    picked = [logits[i, s - first :][:n] for i, (s, n) in enumerate(zip(starts, batch.lengths, strict=True))]
    kept, balance = masked_tokens(batch.mask), output.aux_loss if balances else None
    numbers = of_logits(torch.cat(picked)[kept].float() / temperature, batch.targets[kept])
    return *at_places(numbers, kept, batch.mask), balance


def rows_seen(sights: Sequence[Sight], batch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    """Return positions and types of the tokens of rows, padded on the right, as a policy that sees takes them.

    Returns:
        `position_ids` of shape (rows, tokens), or (axes, rows, tokens) where positions have several; types of shape (rows, tokens).
    """
    tokens = [len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True)]
    each = [placed(sight, n) for sight, n in zip(sights, tokens, strict=True)]
    axes = max(len(x) for x in each)
    padded = pad_sequence([x.expand(axes, -1).T for x in each], batch_first=True).permute(2, 0, 1)
    seen = {"position_ids": padded if axes > 1 else padded[0]}
    seen |= typed(sights, tokens, max(tokens), at_end=False)
    return {name: value.to(device) for name, value in seen.items()}


def masked_tokens(mask: Tensor) -> Tensor | slice:
    """Return which tokens the head has to see: those under the mask, shape (tokens,), or all of them.

    All where none is under it: with sharded weights the head takes part in every pass.
    """
    return slice(None) if bool(mask.all()) or not bool(mask.any()) else mask


def at_places(numbers: tuple[Tensor, Tensor], kept: Tensor | slice, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the kept tokens at their places among all tokens, 0 at the others; each of shape (tokens,)."""
    if isinstance(kept, slice):
        return numbers
    places = mask.nonzero()[:, 0]
    first, second = (x.new_zeros(len(mask)).index_copy(0, places, x) for x in numbers)
    return first, second


def of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies, each of shape (tokens,), from logits of shape (tokens, vocab)."""
    logprobs = torch.log_softmax(logits, -1)
    entropy = -(logprobs.exp() * logprobs.nan_to_num(neginf=0.0)).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def shortest_window(policy: nn.Module) -> int | None:
    """Return the shortest attention window of any layer; None where every layer sees all tokens."""
    text = text_config(policy)
    layers = getattr(text, "layer_types", None) or ["sliding_attention"]
    windows = [getattr(text, "sliding_window", None)] if "sliding_attention" in layers else []
    windows += [getattr(m, "sliding_window", None) for m in policy.modules()]
    return min((w for w in windows if isinstance(w, int) and w > 0), default=None)
