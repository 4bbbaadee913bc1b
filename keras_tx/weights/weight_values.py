"""The weights of a model as NumPy arrays, and the check that their values are finite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.errors import ConfigError, KerasTxError


def array_of(variable: Any) -> np.ndarray:
    """Returns the values of a weight as a read-only array, without a copy if the backend shares its memory.

    keras.ops.convert_to_numpy copies twice, and JAX keeps one of the copies as long as the weight.
    """
    tensor = variable.value if isinstance(variable, keras.Variable) else variable
    if hasattr(tensor, "read_value"):  # a variable of TensorFlow
        tensor = tensor.read_value()
    if hasattr(tensor, "detach"):  # a parameter of PyTorch
        tensor = tensor.detach()
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "bfloat16":  # NumPy has no bfloat16, and TensorFlow warns when it shares the memory
        tensor = ops.cast(tensor, "float32")
    if dtype == "float32":
        for share in (np.from_dlpack, memoryview):
            # Only some backends share memory, and only that of the CPU.
            with suppress(AttributeError, BufferError, RuntimeError, TypeError):
                return np.asarray(share(tensor))
    return ops.convert_to_numpy(tensor)


def merged_weights(model: keras.Model) -> dict[str, Any]:
    """Returns the weights of a model by path, with adapters merged into their weights.

    Merged weights are tensors; all others are variables.
    """
    return _merged(model, lambda layer: True)


def saved_weights(model: keras.Model) -> dict[str, Any]:
    """Returns the weights as Keras saves them: the matrices of its own `enable_lora` are merged."""
    return _merged(model, lambda layer: not hasattr(layer, "adapter_variables"))


def _merged(model: keras.Model, is_merged: Callable[[Any], bool]) -> dict[str, Any]:
    weights = {variable.path: variable for variable in model.weights}
    for layer in model._flatten_layers():
        if not getattr(layer, "lora_enabled", False) or not is_merged(layer):
            continue
        name = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
        matrices = getattr(layer, "adapter_variables", None) or {
            matrix: getattr(layer, f"lora_{name}_{matrix}") for matrix in "ab"
        }
        for variable in matrices.values():
            weights.pop(variable.path, None)  # a layer may be listed twice
        weights[getattr(layer, f"_{name}").path] = getattr(layer, name)
    return weights


def check_finite(model: keras.Model, remedy: str, error: type[KerasTxError] = ConfigError) -> None:
    """Raises `error` for the first weight of a model that contains NaN or infinite values."""
    for variable in model.weights:
        if keras.backend.is_float_dtype(variable.dtype):
            check_values(
                array_of(variable), f"Weight {variable.path!r} of model {model.name!r}", remedy, error
            )


def check_values(values: np.ndarray, name: str, remedy: str, error: type[KerasTxError] = ConfigError) -> None:
    """Raises `error` if a float array contains NaN or infinite values."""
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum is finite only if all values are. It can also overflow, so values are checked next.
        if np.isfinite(np.sum(values, dtype="float32")):
            return
        finite = np.isfinite(values)
    if not finite.all():
        first = values[~finite][0]
        raise error(
            f"{name} holds {first} ({finite.size - np.count_nonzero(finite)} of {finite.size} values are "
            f"NaN or infinite), expected finite numbers. {remedy}"
        )
