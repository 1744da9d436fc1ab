"""Settings that need a package: optimizers and loggers, looked at with the other settings and not after the model is loaded."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from covey.config.hardware import has_package, use_instead
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

OPTIMIZER_PACKAGES = {
    "bnb": "bitsandbytes",
    "paged_": "bitsandbytes",
    "ademamix": "bitsandbytes",
    "lion": "bitsandbytes",
    "adamw_8bit": "bitsandbytes",
    "galore": "galore_torch",
    "apollo": "apollo_torch",
    "grokadamw": "grokadamw",
    "schedule_free": "schedulefree",
    "stable_adamw": "optimi",
    "adamw_torch_4bit": "torchao",
    "adamw_torch_8bit": "torchao",
    "adamw_torch_xla": "torch_xla",
    "adamw_torch_npu": "torch_npu",
    "adamw_anyprecision": "torchdistx",
    "adamw_apex": "apex",
}
"""How the names of optimizers begin, or what they hold, and the package that they come from; the others are torch's."""

NEEDS_THE_BACKWARD_PASS = ("lomo", "layerwise")
"""Optimizers that step within the backward pass, before it is known whether the step is finite, and whole."""

LOGGER_PACKAGES = {
    "azure_ml": ("azureml",),
    "comet_ml": ("comet_ml",),
    "dagshub": ("dagshub", "mlflow"),
    "flyte": ("flytekit",),
    "kubeflow": ("kubeflow",),
    "tensorboard": ("tensorboard", "tensorboardX"),
}
"""Packages of which a logger of report_to needs one; the others are called like their logger."""


def resolve_optimizer(config: GRPOConfig) -> None:
    """Fall back to AdamW, with a warning, where the package of the optimizer is missing.

    Raises:
        ConfigError: with `strict_hardware`.
    """
    name = str(getattr(config.optim, "value", config.optim))
    package = next((p for part, p in OPTIMIZER_PACKAGES.items() if part in name), None)
    reason = None
    if any(part in name for part in NEEDS_THE_BACKWARD_PASS):
        reason = (
            "it updates weights within the backward pass, before the step is whole and known to be finite"
        )
    elif package is not None and not has_package(package):
        reason = f"it needs the package {package}, which is not installed"
    if reason is not None:
        use_instead(f"optim={name!r}", reason, "optim='adamw_torch_fused'", config.strict_hardware)
        config.optim, config.optim_args, config.optim_target_modules = "adamw_torch_fused", None, None


def check_loggers(config: GRPOConfig) -> None:
    """Raise where a logger of report_to is unknown, or its package is missing."""
    asked = config.report_to or []
    for name in [asked] if isinstance(asked, str) else asked:
        packages = LOGGER_PACKAGES.get(name, (name,))
        if name not in (*INTEGRATION_TO_CALLBACK, "all", "none"):
            close = difflib.get_close_matches(str(name), INTEGRATION_TO_CALLBACK, n=2)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            known = ", ".join(map(repr, INTEGRATION_TO_CALLBACK))
            raise ConfigError(f"report_to has {name!r}; it takes {known}, 'all' or 'none'.{hint}")
        if name not in ("all", "none") and not any(map(has_package, packages)):
            raise ConfigError(
                f"report_to has {name!r}, and the package {packages[0]} is not installed: pip install {packages[0]}, or "
                "leave it out. The record in output_dir/record is written without it."
            )
