"""The values of a model's weights as NumPy arrays, and the check that all of them are finite numbers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.errors import ConfigError, KerasTxError


def array_of(variable: Any) -> np.ndarray:
    """The values of a weight, read only, in the backend's own memory where the backend shares it.

    keras.ops.convert_to_numpy copies twice, and JAX keeps one of the copies as long as the weight.
    """
    tensor = variable.value if isinstance(variable, keras.Variable) else variable
    if hasattr(tensor, "read_value"):  # a variable of TensorFlow
        tensor = tensor.read_value()
    if hasattr(tensor, "detach"):  # a parameter of PyTorch
        tensor = tensor.detach()
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "bfloat16":  # NumPy does not have it, and TensorFlow warns when it shares its own
        tensor = ops.cast(tensor, "float32")
    if dtype == "float32":
        for share in (np.from_dlpack, memoryview):
            # Only memory of the CPU is shared, and not by every backend.
            with suppress(AttributeError, BufferError, RuntimeError, TypeError):
                return np.asarray(share(tensor))
    return ops.convert_to_numpy(tensor)


def merged_weights(model: keras.Model) -> dict[str, Any]:
    """The weights of a model by path, with the matrices of Keras's LoRA added to the weights they adapt.

    A weight is a variable, or a tensor where it is such a sum.
    """
    weights = {variable.path: variable for variable in model.weights}
    for layer in model._flatten_layers():
        if not getattr(layer, "lora_enabled", False):
            continue
        name = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
        for matrix in "ab":
            del weights[getattr(layer, f"lora_{name}_{matrix}").path]
        weights[getattr(layer, f"_{name}").path] = getattr(layer, name)
    return weights


def check_finite(model: keras.Model, remedy: str, error: type[KerasTxError] = ConfigError) -> None:
    """Raises `error` for the first weight of a model that holds NaN or an infinite value."""
    for variable in model.weights:
        if keras.backend.is_float_dtype(variable.dtype):
            check_values(
                array_of(variable), f"Weight {variable.path!r} of model {model.name!r}", remedy, error
            )


def check_values(values: np.ndarray, name: str, remedy: str, error: type[KerasTxError] = ConfigError) -> None:
    """Raises `error` where an array of floats holds NaN or an infinite value."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Not finite as soon as one value is not; otherwise only where the sum itself overflows.
        if np.isfinite(np.sum(values, dtype="float32")):
            return
        finite = np.isfinite(values)
    if not finite.all():
        first = values[~finite][0]
        raise error(
            f"{name} holds {first} ({finite.size - np.count_nonzero(finite)} of {finite.size} values are "
            f"NaN or infinite), expected finite numbers. {remedy}"
        )
