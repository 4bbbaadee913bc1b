"""adapter_config.json of PEFT: the fields of a LoraConfig, checked and in both directions."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.layers.low_rank import LowRank
from keras_tx.weights.checkpoint import read_json

CONFIG = "adapter_config.json"
# Fields that describe the file, the initialization or the selection of modules, which the tensors show.
WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "layers_pattern"),
    *("layers_to_transform", "megatron_core", "modules_to_save", "peft_version", "qalora_group_size"),
    *("revision", "target_modules", "task_type", "fan_in_fan_out", "ensure_weight_tying"),
    *("runtime_config", "loftq_config", "corda_config", "eva_config", "lora_ga_config", "use_bdlora"),
}
READ = {
    *("peft_type", "r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("use_dora", "bias", "init_lora_weights"),
}
# Initializations that leave the weights of the base unchanged.
INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "lora_ga")


class PeftConfig:
    """A LoraConfig.

    Args:
        folder: folder that contains the file.

    Raises:
        ConfigError: the file cannot be read, or a field has a value that is not supported.
    """

    def __init__(self, folder: Path):
        self.where = folder / CONFIG
        if not self.where.is_file():
            raise ConfigError(
                f"{folder} has no {CONFIG}. Pass a folder that PEFT or keras_tx.save_adapter wrote."
            )
        self.fields = read_json(folder, CONFIG)
        if self.fields.get("peft_type") != "LORA":
            raise self._error("peft_type", "expected 'LORA'")
        if self.fields.get("bias", "none") != "none":
            raise self._error("bias", "only 'none' is supported")
        if self.fields.get("init_lora_weights", True) not in INITIALIZATIONS:
            raise self._error(
                "init_lora_weights",
                "it changes the weights of the base. Convert the adapter with PEFT's "
                "path_initial_model_for_weight_conversion",
            )
        if self.fields.get("use_bdlora"):
            raise self._error("use_bdlora", "only ordinary LoRA and DoRA are supported")
        for name in sorted(set(self.fields) - WITHOUT_EFFECT - READ):
            if self.fields[name]:
                raise self._error(name, "the field is not supported")
        for name in ("rank_pattern", "alpha_pattern"):
            if not isinstance(self.fields.get(name) or {}, dict):
                raise self._error(name, "expected an object")

    def _error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where} has {name}={self.fields.get(name)!r}: {expected}.")

    def options(self, module: str, *, embedding: bool = False) -> LowRank:
        """Returns the options of the adapter of a module."""
        values = {
            "rank": self._of(module, "rank_pattern", "r", 8),
            "alpha": self._of(module, "alpha_pattern", "lora_alpha", 8),
            # PEFT applies no dropout to ids.
            "dropout": 0.0 if embedding else self.fields.get("lora_dropout") or 0.0,
            "rank_stabilized": bool(self.fields.get("use_rslora")),
            "dora": bool(self.fields.get("use_dora")),
        }
        try:
            return LowRank(**values)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from error

    def _of(self, module: str, pattern: str, name: str, default: int) -> Any:
        for key, value in (self.fields.get(pattern) or {}).items():
            try:
                if re.match(rf"(.*\.)?({key})$", module):
                    return value
            except re.error:
                raise self._error(pattern, f"{key!r} is not a regular expression") from None
        return self.fields.get(name, default)


def config_json(
    adapters: Mapping[str, LowRank], modules_to_save: Sequence[str], base: str | None, *, transposed: bool
) -> dict[str, Any]:
    """Returns the content of adapter_config.json.

    Args:
        adapters: the options of each module. They differ in rank and alpha only.
        modules_to_save: the modules that are fully saved.
        base: name or path of the base checkpoint.
        transposed: whether the kernels of the modules have the axes (in, out), as PyTorch's Conv1D in GPT-2.
    """
    first = next(iter(adapters.values()))
    rank = _most_common([options.rank for options in adapters.values()])
    alpha = _most_common([options.alpha for options in adapters.values()])
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "rank_pattern": {name: x.rank for name, x in adapters.items() if x.rank != rank},
        "alpha_pattern": {name: _plain(x.alpha) for name, x in adapters.items() if x.alpha != alpha},
        "lora_dropout": first.dropout,
        "use_rslora": first.rank_stabilized,
        "use_dora": first.dora,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "target_modules": sorted(adapters),
        "modules_to_save": list(modules_to_save) or None,
    }


def _most_common(values: Sequence[Any]) -> Any:
    return collections.Counter(values).most_common(1)[0][0]


def _plain(alpha: float) -> float | int:
    return int(alpha) if float(alpha).is_integer() else alpha
