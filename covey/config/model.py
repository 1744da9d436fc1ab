"""ModelConfig: the model that is trained, and its settings as peft and transformers take them."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from covey.config.choices import QuantType
from covey.config.hardware import has_cuda, has_package, use_instead
from covey.config.resolving import mapping
from covey.config.validation import check_choices, checks_names, help_text, parses
from covey.errors import ConfigError

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig


@checks_names
@parses
@dataclass
class ModelConfig:
    """Settings of the model that is trained, its precision and its adapter, with TRL's names.

    Args:
        trust_remote_code: run code that comes with the model. On a command line it is a flag of GRPOConfig, which has the same
            name: two flags of one name cannot be parsed side by side.
    """

    model_name_or_path: str | None = help_text(None, "Name on the hub, or a folder.")
    model_revision: str = help_text("main", "Branch, tag or commit.")
    revision: str | None = help_text(None, "The same as model_revision.")
    dtype: str | None = help_text(
        "float32", "Precision that the weights are loaded in: 'auto', 'bfloat16', 'float32', ..."
    )
    torch_dtype: str | None = help_text(None, "The same as dtype.")
    if TYPE_CHECKING:  # mypy knows no attribute that is given to the constructor and is no field
        trust_remote_code: bool = False
    else:
        trust_remote_code: InitVar[bool] = False
    attn_implementation: str | None = help_text(None, "'sdpa', 'eager', 'flash_attention_2', ...")
    use_peft: bool = help_text(False, "Train an adapter instead of all weights.")
    lora_r: int = help_text(16, "Rank of the adapter.")
    lora_alpha: int = help_text(32, "Scale of the adapter.")
    lora_dropout: float = help_text(
        0.0, "Dropout of the adapter; has an effect only with disable_dropout=False."
    )
    lora_target_modules: list[str] | str | None = help_text(None, "Modules to adapt: names, or 'all-linear'.")
    lora_target_parameters: list[str] | None = help_text(
        None, "Parameters to adapt, for layers that are no modules."
    )
    lora_modules_to_save: list[str] | None = help_text(
        None, "Modules that are trained in full beside the adapter."
    )
    lora_task_type: str = help_text("CAUSAL_LM", "Task type of the adapter.")
    # HfArgumentParser reads a union with None as text, and one without as a switch, which 'pissa' is not
    lora_init: Literal[True, False] | str | None = help_text(
        True, "How the adapter starts: True, False, 'gaussian', 'pissa', 'olora', ..."
    )
    lora_kwargs: dict[str, Any] | str | None = help_text(None, "More arguments for peft.LoraConfig.")
    use_rslora: bool = help_text(False, "Rank-stabilised scale (arXiv:2312.03732).")
    use_dora: bool = help_text(False, "Weight-decomposed adapter (arXiv:2402.09353).")
    load_in_8bit: bool = help_text(False, "Frozen weights in 8 bits.")
    load_in_4bit: bool = help_text(False, "Frozen weights in 4 bits.")
    bnb_4bit_quant_type: QuantType = help_text("nf4", "'nf4' or 'fp4'.")
    use_bnb_nested_quant: bool = help_text(False, "Quantise the constants of the quantisation too.")
    bnb_4bit_quant_storage: str | None = help_text(None, "Type that the 4-bit weights are stored in.")

    def __post_init__(self, trust_remote_code: bool) -> None:  # type: ignore[override]
        self.trust_remote_code = trust_remote_code
        if self.torch_dtype is not None:
            self.dtype = self.torch_dtype
        if self.revision is not None:
            self.model_revision = self.revision
        if self.load_in_4bit and self.load_in_8bit:
            raise ConfigError("load_in_4bit and load_in_8bit are both set. Choose one.")
        if isinstance(self.lora_init, str) and self.lora_init.lower() in ("true", "false"):
            self.lora_init = self.lora_init.lower() == "true"
        self.lora_kwargs = mapping("lora_kwargs", self.lora_kwargs)
        check_choices(self, ModelConfig)
        if self.lora_target_modules == ["all-linear"]:
            self.lora_target_modules = "all-linear"

    def init_kwargs(self) -> dict[str, object]:
        """Return arguments for from_pretrained."""
        given = {
            "revision": self.model_revision,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
            "attn_implementation": self.attn_implementation,
            "quantization_config": get_quantization_config(self),
        }
        return {name: value for name, value in given.items() if value is not None}


def get_peft_config(model_config: ModelConfig) -> LoraConfig | None:
    """Return the `peft.LoraConfig` that a ModelConfig describes; None without `use_peft`.

    Raises:
        ConfigError: `lora_kwargs` has a name that LoraConfig does not know.
    """
    if not model_config.use_peft:
        return None
    from peft import LoraConfig

    more = model_config.lora_kwargs
    assert not isinstance(more, str), "read by ModelConfig"
    unknown = sorted(set(more or {}) - {f.name for f in fields(LoraConfig)})
    if unknown:
        raise ConfigError(
            f"lora_kwargs has {', '.join(map(repr, unknown))}, which peft.LoraConfig does not know."
        )
    arguments: dict[str, Any] = {
        "r": model_config.lora_r,
        "lora_alpha": model_config.lora_alpha,
        "lora_dropout": model_config.lora_dropout,
        "target_modules": model_config.lora_target_modules,
        "modules_to_save": model_config.lora_modules_to_save,
        "task_type": model_config.lora_task_type,
        "init_lora_weights": model_config.lora_init,
        "use_rslora": model_config.use_rslora,
        "use_dora": model_config.use_dora,
    }
    if model_config.lora_target_parameters is not None:
        arguments["target_parameters"] = model_config.lora_target_parameters
    return LoraConfig(**{**arguments, **(more or {})})


def get_quantization_config(
    model_config: ModelConfig, strict_hardware: bool = False
) -> BitsAndBytesConfig | None:
    """Return the `transformers.BitsAndBytesConfig` that a ModelConfig describes; None where nothing is quantised.

    Without CUDA or without bitsandbytes the weights stay in full precision, with a warning.
    """
    if not (model_config.load_in_4bit or model_config.load_in_8bit):
        return None
    asked = "load_in_4bit=True" if model_config.load_in_4bit else "load_in_8bit=True"
    if not (has_cuda() and has_package("bitsandbytes")):
        use_instead(asked, "it needs a CUDA device and bitsandbytes", "full precision", strict_hardware)
        return None
    from transformers import BitsAndBytesConfig

    if model_config.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=model_config.dtype if model_config.dtype != "auto" else None,
        bnb_4bit_quant_type=model_config.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=model_config.use_bnb_nested_quant,
        bnb_4bit_quant_storage=model_config.bnb_4bit_quant_storage,
    )


def get_kbit_device_map() -> dict[str, int] | None:
    """Return a map that puts a quantised model on this process's own GPU; None without CUDA."""
    if not has_cuda():
        return None
    from accelerate import PartialState

    return {"": PartialState().local_process_index}
