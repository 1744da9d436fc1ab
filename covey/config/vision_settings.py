"""Settings of runs whose policy sees: which pictures are opened, how large they are shown, and what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from covey.config.validation import defaults, help_text
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

BadImages = Literal["error", "drop"]
"""A row with a picture that cannot be used is an error, or is left out and counted."""

RecordPictures = Literal["thumbnail", "full", "none"]
"""Pictures in the record: small, as they were too, or not at all, and in no logger either."""


@dataclass
class VisionSettings:
    """Settings that act where the policy sees and rows have pictures."""

    use_images: bool = help_text(True, "Show pictures to the policy. False: to rewards alone.")
    min_pixels: int | None = help_text(
        None, "Pictures with fewer pixels are enlarged, their ratio kept. Default: as the processor says."
    )
    max_pixels: int | None = help_text(
        None,
        "Pictures with more pixels are made smaller, their ratio kept: fewer tokens where these follow the size. Default: as the processor says.",
    )
    image_root: str | None = help_text(
        None, "Folder that paths of pictures lie below. Default: none, and no path is opened."
    )
    max_image_megapixels: float = help_text(89.0, "Larger pictures are not opened.")
    bad_images: BadImages = help_text(
        "error", "A row with a picture that cannot be used is an error, or dropped."
    )
    allow_image_urls: bool = help_text(
        False, "Fetch pictures by address: https alone, 20 MB, 10 s, no private addresses."
    )
    freeze_vision_tower: bool = help_text(
        False,
        "Leave the tower that looks at pictures as it is; in Qwen's families and GLM-4V the projector is part of it.",
    )
    freeze_projector: bool = help_text(
        False,
        "With freeze_vision_tower: what joins it to the decoder too, so each picture is looked at once a round.",
    )
    lora_vision: bool = help_text(
        False, "Adapters reach the tower too. Default: names and 'all-linear' mean the decoder."
    )
    record_pictures: RecordPictures = help_text(
        "thumbnail",
        "Pictures beside the texts in the record: small, or 'full' too, for rescore; 'none' anywhere.",
    )
    log_multimodal: bool = help_text(True, "With log_completions: loggers get each picture once, small.")


NEED_EYES = (
    "min_pixels", "max_pixels", "image_root", "allow_image_urls", "max_image_megapixels", "bad_images", "lora_vision",
    "freeze_vision_tower", "freeze_projector",
)  # fmt: skip
"""Settings that do nothing for a policy that reads text alone."""


def check_vision_settings(config: GRPOConfig) -> None:
    """Raise where a setting of pictures is out of its range, or contradicts another."""
    for name in ("min_pixels", "max_pixels", "max_image_megapixels"):
        if (value := getattr(config, name)) is not None and value <= 0:
            raise ConfigError(f"{name} is {value}; it must be above 0.")
    if config.freeze_projector and not config.freeze_vision_tower:
        raise ConfigError(
            "freeze_projector=True goes with freeze_vision_tower=True: gradients that reach the tower pass what joins it."
        )
    if config.lora_vision and config.freeze_vision_tower:
        raise ConfigError(
            "lora_vision=True trains adapters in the tower, and freeze_vision_tower=True trains nothing there. Leave one of them out."
        )
    if config.min_pixels is not None and config.max_pixels is not None and config.min_pixels > config.max_pixels:  # fmt: skip
        raise ConfigError(
            f"min_pixels={config.min_pixels} is above max_pixels={config.max_pixels}: no picture fits. Exchange them."
        )


def check_eyes_needed(config: GRPOConfig, sees: bool) -> None:
    """Raise where a setting of pictures is given to a run whose policy is shown none."""
    expected = defaults(type(config))
    for name in NEED_EYES if not sees else ():
        if getattr(config, name) != expected[name]:
            raise ConfigError(
                f"{name}={getattr(config, name)!r} has no effect: the policy is shown no pictures. Give a model that sees with its "
                f"processor, and leave use_images at True; or leave {name} at {expected[name]!r}."
            )
