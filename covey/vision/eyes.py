"""The policy's own processor as eyes: one call per prompt gives token ids and pixels, and both stay together."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from covey.config.hardware import missing_to_see
from covey.errors import ConfigError, DatasetError
from covey.models.families import COUNTS_FROM_ONE, IN_WINDOWS, is_family, spans_of, type_behind
from covey.models.fitness import has_eyes
from covey.models.inspect import accepted_arguments, innermost, placeholder_ids
from covey.types import Picture, PromptKey
from covey.vision.pictures import PictureLimits, reopened
from covey.vision.sight import Sight

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin

Pairs = Sequence[tuple[Picture, "Image"]]
"""Pictures, each with its pixels, in the order of a prompt."""

TYPED = (
    "which stands for a picture, a film or sound, and there is none. Take it out of the text, or give the pictures in the "
    "column 'images'."
)
BLANK_SIDE = 32
"""Pixels; processors enlarge what is too small for them."""
BEFOREHAND = "covey_pixels"
"""The attribute of an image processor without limits of its own: pixels at least and at most, saved with it."""
MOST_PIXELS = 2**40
BICUBIC = 3
"""Pillow's number."""
MOST_BYTES = 2**30
"""Of pixels that are kept."""
NOT_SEEN = ("input_ids", "attention_mask", "labels")
"""What a processor gives beside what the policy sees: ids travel by themselves, and nothing is padded."""
FILM_MARKS = ("video_start_token_id", "video_end_token_id")
"""Fields of configs. Between these tokens a picture's token means a film's."""
OF_SAVING = ("processor_class", "image_processor_type")
"""What a folder adds to the settings of an image processor."""
TYPES = ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids")
"""Arguments with a number for each token."""


class ProcessorEyes:
    """Looks at prompts with the processor that belongs to a policy. What was seen lately is kept, up to `most_bytes`.

    Args:
        processor: of the policy.
        policy: is asked for its arguments and its positions, never for what it computes.
        limits: which pictures may be opened.
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        policy: nn.Module,
        limits: PictureLimits | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.processor: Any = processor
        self.limits, self.most_bytes, self.num_bytes = limits or PictureLimits(), most_bytes, 0
        model: Any = innermost(policy)
        self.kind, self.config = str(model.config.model_type), model.config
        self.accepted = accepted_arguments(model) | set(
            inspect.signature(model.get_image_features).parameters
        )
        self.rope_index = rope_index(model)
        marks = {int(mark) for name in FILM_MARKS if (mark := getattr(model.config, name, None)) is not None}
        self.placeholders = frozenset({*placeholder_ids(model, self.processor.tokenizer), *marks})
        """Ids that stand for parts of pictures, films or sound, or say where a film is."""
        self.kept: OrderedDict[PromptKey, Sight] = OrderedDict()
        self._lock = threading.RLock()
        """Held while something is looked at: rewards that ask for sizes may run beside the update, and tokenizers are for one thread."""
        self._by_size: dict[tuple[int, int], int] = {}

    @property
    def name(self) -> str:
        """Return what makes pixels of pictures: class, back-end and a digest of the settings; others make other pixels."""
        image = self.processor.image_processor
        settings = {n: v for n, v in image.to_dict().items() if n not in OF_SAVING}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]
        return f"{type(image).__name__} on {getattr(image, 'backend', 'its own code')}, settings {digest}"

    @property
    def image_token(self) -> str:
        """The words that stand for a picture in a text, before its tokens take the place."""
        return str(self.processor.image_token)

    @property
    def image_id(self) -> int:
        """The token in whose place the policy puts a part of a picture."""
        names = ("image_token_id", "image_token_index")
        return int(next(i for name in names if (i := getattr(self.config, name, None)) is not None))

    def read(self, text: str, pictures: Pairs) -> tuple[int, ...]:
        """Return the token ids of a text as a chat template wrote it, `image_token` for each picture in turn; pixels are kept.

        Raises:
            DatasetError: other numbers of pictures than of places for them.
            ConfigError: the processor gives something that the policy does not take.
        """
        self._check(text, len(pictures))
        with self._lock:
            given = self._processed(text, [image for _, image in pictures])
            ids = tuple(given["input_ids"][0].tolist())
            self._keep((ids, tuple(p.digest for p, _ in pictures)), self._sight(ids, given))
        return ids

    def _check(self, text: str, count: int) -> None:
        """Raise where a text has not one place for each of so many pictures, or stands for something else than a picture."""
        if (places := text.count(self.image_token)) != count:
            raise DatasetError(
                f"the prompt has {places} places for pictures ({self.image_token}) and {count} pictures. Write one for each picture; "
                "words of a person that look like one have to be written otherwise."
            )
        names = map(str, self.processor.tokenizer.convert_ids_to_tokens(sorted(self.placeholders)))
        if typed := [name for name in names if name != self.image_token and name in text]:
            raise DatasetError(f"the prompt says {', '.join(typed)}, {TYPED}")

    def length(self, text: str, sizes: Sequence[tuple[int, int]]) -> int:
        """Return how many ids `read` gives for a text with pictures of these sizes, whose pixels are not needed.

        Into how many tokens a picture is made hangs on its size alone. What a size takes is remembered, where the processor
        writes a picture's tokens whatever stands beside them.

        Raises:
            DatasetError: as `read`.
        """
        self._check(text, len(sizes))
        if not self._adds_up:
            return self._num_ids(text, sizes)
        return len(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]) + sum(
            map(self._more_ids, sizes)
        )

    @cached_property
    def _adds_up(self) -> bool:
        """Whether ids of text and of pictures add up: so they do unless the processor or tokenizer joins what stands side by side."""
        sizes, token = [(BLANK_SIDE, 2 * BLANK_SIDE), (3 * BLANK_SIDE, BLANK_SIDE)], self.image_token
        texts = [f"a\n{token}\nb {token} c", f"{token}{token}\n\na", f"a {token}\n{token}"]
        together = [self._num_ids(text, sizes) for text in texts]
        alone = sum(map(self._more_ids, sizes))
        words = self.processor.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return together == [len(ids) + alone for ids in words]

    def _more_ids(self, size: tuple[int, int]) -> int:
        """Return how many ids more a picture takes than the one that stands for it in a text."""
        if size not in self._by_size:
            self._by_size[size] = self._num_ids(self.image_token, [size]) - 1
        return self._by_size[size]

    def _num_ids(self, text: str, sizes: Sequence[tuple[int, int]]) -> int:
        """Return how many ids the processor makes of a text with white pictures of these sizes."""
        import PIL.Image

        blank = [PIL.Image.new("RGB", size, (255, 255, 255)) for size in sizes]
        return len(self._processed(text, blank)["input_ids"][0])

    def seen_sizes(self, ids: Sequence[int], pictures: Sequence[Picture]) -> list[tuple[int, int]]:
        """Return width and height, in pixels, that the policy sees of each picture of a prompt, after it was made larger or smaller.

        Raises:
            ConfigError: a picture is shown in pieces, which have no size together.
        """
        inputs, count = self.look(ids, pictures).inputs, len(pictures)
        if (grid := inputs.get("image_grid_thw")) is not None:
            side = self.processor.image_processor.patch_size
            return [(w * side, h * side) for _, h, w in grid.tolist()]
        pixels = inputs.get("pixel_values")
        if count and (pixels is None or pixels.ndim != 4 or len(pixels) != count):
            raise ConfigError(
                f"image_sizes: {self.kind} sees a picture in pieces, which have no size together. Make the pictures of the dataset as large "
                "as they should be, and read their size from `images`."
            )
        if (sizes := inputs.get("image_sizes")) is not None:
            return [(w, h) for h, w in sizes.tolist()]
        return [] if pixels is None else [(pixels.shape[3], pixels.shape[2])] * count

    def checked(self, ids: list[int]) -> list[int]:
        """Return the ids of a text; raise a DatasetError where one of them stands for a picture, which is not there."""
        written = sorted(set(ids) & self.placeholders)
        if written:
            names = ", ".join(map(str, self.processor.tokenizer.convert_ids_to_tokens(written)))
            raise DatasetError(f"the prompt says {names}, {TYPED}")
        return ids

    def look(self, ids: Sequence[int], pictures: Sequence[Picture]) -> Sight:
        """Return what a prompt shows: from memory, or seen again.

        Args:
            ids: of the prompt, with a token for each part of a picture.
            pictures: in the order of those tokens; none: a prompt of text alone.

        Raises:
            DatasetError: a picture is not there any more, or another one.
        """
        if not pictures:
            return self._sight(ids, {})
        with self._lock:
            key = tuple(ids), tuple(picture.digest for picture in pictures)
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
            like = next((sight for (_, shown), sight in self.kept.items() if shown == key[1]), None)
            if like is not None and like.num_places == key[0].count(self.image_id):
                return self._sight(ids, like.inputs)  # another text about these pictures
            sight = self._seen_again(ids, pictures)
            self._keep(key, sight)
            return sight

    def _seen_again(self, ids: Sequence[int], pictures: Sequence[Picture]) -> Sight:
        """Return what a prompt with pictures shows, by another call of the processor."""
        given = self._processed(self.image_token * len(pictures), [reopened(p) for p in pictures])
        seen, had = (list(i).count(self.image_id) for i in (given["input_ids"][0].tolist(), ids))
        if seen != had:
            raise DatasetError(
                f"A prompt has {had} tokens of pictures, and its {len(pictures)} pictures make {seen} now: the processor is another "
                "one, or was changed. Go on with the processor that the prompt was read with."
            )
        return self._sight(ids, given)

    def blank(self) -> Sight:
        """Return what a small white picture shows, for passes in which there is none."""
        return self.of_size((BLANK_SIDE, BLANK_SIDE))

    def of_size(self, size: tuple[int, int]) -> Sight:
        """Return what a white picture shows: every picture of its width and height has as many tokens and patches."""
        import PIL.Image

        given = self._processed(self.image_token, [PIL.Image.new("RGB", size, (255, 255, 255))])
        return self._sight(given["input_ids"][0].tolist(), given)

    def _processed(self, text: str, images: list[Image]) -> Mapping[str, Any]:
        """Return what the processor makes of one prompt; nothing is added to the text or padded."""
        if size := getattr(self.processor.image_processor, BEFOREHAND, None):
            images = [within(image, size["shortest_edge"], size["longest_edge"]) for image in images]
        whole = {"add_special_tokens": False, "padding": False, "truncation": False}
        given: Mapping[str, Any] = self.processor(images=[images], text=[text], return_tensors="pt", **whole)
        return given

    def _sight(self, ids: Sequence[int], given: Mapping[str, Any]) -> Sight:
        """Sort what the processor gave; types, positions and places are those of `ids`."""
        inputs = {n: v for n, v in given.items() if n not in NOT_SEEN and n not in TYPES}
        unknown = [n for n, v in inputs.items() if n not in self.accepted or not isinstance(v, Tensor)]
        if unknown:
            raise ConfigError(
                f"The processor gives {', '.join(unknown)}, and the policy ({self.kind}) has no such argument: it would not see what it "
                "should. Take the processor that belongs to the policy, of the same release of transformers."
            )
        tokens = torch.tensor(list(ids))
        types, places = self._types(tokens), tokens == self.image_id
        return Sight(
            inputs,
            types,
            self._positions(tokens, inputs, types),
            places if inputs else None,
            spans_of(self.config, places),
            self.kind in IN_WINDOWS,
            type_behind(self.kind),
        )

    def _types(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return the kind of each token as the processor numbers them: 0 for text, 1 for pictures."""
        names = [n for n in TYPES if n in self.processor.model_input_names and n in self.accepted]
        if not getattr(self.processor, "return_mm_token_type_ids", False):
            return {name: torch.zeros_like(tokens) for name in names}
        usual, rows = self.processor.create_mm_token_type_ids, [tokens.tolist()]
        return {n: torch.tensor(getattr(self.processor, f"create_{n}", usual)(rows)[0]) for n in names}

    def _positions(
        self, tokens: Tensor, inputs: Mapping[str, Tensor], types: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Return the positions that the policy's own code works out, shape (axes, tokens); None: 0, 1, 2, ..."""
        if self.kind in COUNTS_FROM_ONE:
            return 1 + torch.arange(len(tokens))[None]
        if self.rope_index is None or not inputs:
            return None
        known = {**inputs, **{name: value[None] for name, value in types.items()}}
        wanted = inspect.signature(self.rope_index).parameters
        positions, _ = self.rope_index(
            input_ids=tokens[None], **{n: v for n, v in known.items() if n in wanted}
        )
        return torch.as_tensor(positions[:, 0]).long()

    def _keep(self, key: PromptKey, sight: Sight) -> None:
        """Keep what was seen; the longest unused goes where there is too much."""
        if key in self.kept:
            self.num_bytes -= size_of(self.kept.pop(key))
        self.kept[key] = sight
        self.num_bytes += size_of(sight)
        while self.num_bytes > self.most_bytes and len(self.kept) > 1:
            self.num_bytes -= size_of(self.kept.popitem(last=False)[1])


def eyes_of(policy: nn.Module, processing: Any, limits: PictureLimits | None = None) -> ProcessorEyes | None:
    """Return what shows pictures to a policy; None where it reads text alone, or its processor is not there."""
    return ProcessorEyes(processing, policy, limits) if has_eyes(policy, processing) else None


def blindness(eyes: ProcessorEyes | None, policy: nn.Module | None) -> str:
    """Return why pictures cannot be shown to a policy; empty where they can."""
    if eyes is not None:
        return ""
    config: Any = None if policy is None else getattr(innermost(policy), "config", None)
    if not is_family(config):
        is_other = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        return (
            f"a {config.model_type} is trained on text alone" if is_other else "the policy reads text alone"
        )
    if missing := missing_to_see():
        return (
            f"{' and '.join(missing)} must be installed for the policy to see (pip install 'covey[vision]')"
        )
    return "a tokenizer stands where the policy's processor should (processing_class, or the model's folder, which holds none)"


def rope_index(model: nn.Module) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """Return the model's own function from ids and grids to positions; None where positions are places."""
    found = (getattr(part, "get_rope_index", None) for part in (model, getattr(model, "model", None)))
    return next((f for f in found if callable(f)), None)


def size_of(sight: Sight) -> int:
    """Return the bytes of what a sight holds."""
    return sum(tensor.nbytes for tensor in (*sight.inputs.values(), *sight.types.values()))


def with_pixel_limits(processor: Any, least: int | None, most: int | None) -> Any:
    """Return a processor with these limits of pixels, the given one where neither is named.

    One that has no such limits keeps them beside its own settings, also where it is saved: `within` acts before it.

    Raises:
        ConfigError: no picture fits.
    """
    asked = {k: v for k, v in (("shortest_edge", least), ("longest_edge", most)) if v is not None}
    if not asked:
        return processor
    limited = copy.copy(processor)
    limited.image_processor = own = copy.copy(processor.image_processor)
    name = "size" if "min_pixels" in getattr(own.valid_kwargs, "__annotations__", {}) else BEFOREHAND
    size = dict(getattr(own, name, None) or {"shortest_edge": 1, "longest_edge": MOST_PIXELS}) | asked
    if name == "size" and not getattr(own, "do_resize", True):
        raise ConfigError(
            "min_pixels and max_pixels have no effect with do_resize=False of the processor. Leave either out."
        )
    if size["shortest_edge"] > size["longest_edge"]:
        raise ConfigError(
            f"min_pixels={size['shortest_edge']} is above max_pixels={size['longest_edge']}, one of them as the processor has it: no picture fits. Give both."
        )
    setattr(own, name, size)
    return limited


def within(image: Image, least: int, most: int) -> Image:
    """Return a picture with so many pixels at least and at most, its ratio of sides kept; the given one where it has them."""
    width, height = image.size
    if least <= width * height <= most:
        return image
    grows = width * height < least
    scale = math.sqrt((least if grows else most) / (width * height))
    size = [max(1, (math.ceil if grows else math.floor)(side * scale)) for side in (width, height)]
    return image.resize((size[0], size[1]), BICUBIC)
