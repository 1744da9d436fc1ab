"""Eyes of the tests: what the family's own processor and model say, without a line of `covey.vision.eyes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from covey.types import Picture, Prompt
from covey.vision.sight import Sight

TYPES = ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids")


class ProcessorEyes:
    """Shows what the processor has made of a prompt."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.sights: dict[object, Sight] = {}

    def prompt(self, question: str, images: Sequence[Image.Image] = (), row: int = 0) -> Prompt:
        """A question about pictures, which stand before it."""
        parts = [{"type": "image"}] * len(images) + [{"type": "text", "text": question}]
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True
        )
        given = {"images": [list(images)]} if images else {}
        of_text = (
            not images and type(self.processor).__name__ == "PaliGemmaProcessor"
        )  # it takes no text alone
        read = dict(
            (self.processor.tokenizer if of_text else self.processor)(
                text=[text], return_tensors="pt", **given
            )
        )
        if of_text:
            read["token_type_ids"] = torch.zeros_like(read["input_ids"])
        ids = tuple(read.pop("input_ids")[0].tolist())
        pictures = tuple(Picture(image, str(hash(image.tobytes())), image.size) for image in images)
        prompt = Prompt(text, ids, {}, row, (row, 0), pictures=pictures)
        self.sights[prompt.key] = self._sight(ids, read)
        return prompt

    def look(self, ids: Sequence[int], pictures: Sequence[Picture]) -> Sight:
        key = tuple(ids), tuple(picture.digest for picture in pictures)
        if key in self.sights or pictures:
            return self.sights[key]
        is_prefix = self.model.config.model_type == "paligemma"
        return self._sight(
            key[0], {"token_type_ids": torch.zeros(1, len(ids), dtype=torch.long)} if is_prefix else {}
        )

    def _sight(self, ids: Sequence[int], read: dict[str, Tensor]) -> Sight:
        for unused in ("attention_mask", "labels"):
            read.pop(unused, None)
        types = {name: read.pop(name)[0] for name in TYPES if name in read}
        config, text, positions = self.model.config, torch.tensor([ids]), None
        if "image_grid_thw" in read:  # integers, by the model's own rule
            grid = read["image_grid_thw"]
            positions = self.model.model.get_rope_index(text, types["mm_token_type_ids"][None], grid)[0][:, 0]
        if config.model_type == "paligemma":
            positions = 1 + torch.arange(len(ids))[None]
        behind = 1 if config.model_type == "paligemma" else 0
        places = torch.tensor(ids) == config.image_token_id if "pixel_values" in read else None
        return Sight(read, types, positions, places, next_type=behind)
