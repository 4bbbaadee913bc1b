"""Layers that Keras quantized: their modes, and their kernels and tables as integers with scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.integer_weights import IntegerWeight

CALIBRATED = ("gptq", "awq")  # modes in which a layer keeps its float kernel until it is calibrated
INTEGER_MODES = ("int4", *CALIBRATED)


def mode_of(layer: Any) -> str | None:
    """How Keras quantized a layer; None for a layer that computes with its float kernel."""
    mode = getattr(layer, "quantization_mode", None)
    if mode in CALIBRATED and not getattr(layer, f"is_{mode}_calibrated", False):
        return None
    return mode


def rounds_inputs(layer: Any) -> bool:
    """Whether a layer rounds its inputs to integers."""
    mode = mode_of(layer)
    if mode not in ("int8", "int4"):
        return False
    return getattr(layer, "inputs_quantizer", None) is not None and not (
        mode == "int4" and is_grouped(layer) and hasattr(layer, "_kernel")
    )


def is_grouped(layer: Any) -> bool:
    """Whether a layer with mode int4 has several scales for each row, and zero points."""
    return (getattr(layer, "_int4_block_size", None) or -1) > 0


def precision_of(layers: Iterable[Any]) -> str:
    """The name of the precision of a model with these layers."""
    modes = {(mode_of(layer), _bits_of(layer)) for layer in layers}
    for precision, expected in (
        ("float8", {("float8", 0)}),
        ("int4", {(mode, 4) for mode in INTEGER_MODES}),
        ("int8", {("int8", 0)}),
        ("int8-blocks", {("gptq", 8)}),
    ):
        if modes & expected:
            return precision
    return "fp32"


def kernel_shape(layer: Any) -> tuple[int, ...]:
    """The shape of the float kernel of a Dense or EinsumDense."""
    mode = getattr(layer, "quantization_mode", None)
    if mode is None:
        return tuple(layer.kernel.shape)
    if mode_of(layer) not in INTEGER_MODES:
        return tuple(layer._kernel.shape)
    if hasattr(layer, "original_kernel_shape"):
        return tuple(layer.original_kernel_shape)
    if mode == "int4":
        return (layer._orig_input_dim, layer._orig_output_dim)
    return tuple(layer.kernel_shape)


def integer_kernel(layer: Any) -> IntegerWeight:
    """The kernel of a Dense or EinsumDense in one of INTEGER_MODES, as the matrix of its outputs."""
    if mode_of(layer) == "int4":
        columns = int(layer.kernel_scale.shape[-1])
        return _int4(layer, "_kernel", "kernel", lambda packed: _halves(packed, 1)[:, :columns].T)
    rows = int(layer.kernel_scale.shape[0])
    packed = mode_of(layer) == "awq" or layer_policy(layer).weight_bits == 4

    def integers() -> np.ndarray:
        stored = array_of(layer.quantized_kernel)
        return _halves(stored, 0)[:rows] if packed else stored

    return IntegerWeight(
        (layer.quantized_kernel, layer.kernel_scale, layer.kernel_zero),
        _bits_of(layer),
        array_of(layer.g_idx).astype("int64"),
        array_of(layer.kernel_zero).astype("int64"),
        integers,
        lambda: array_of(layer.kernel_scale),
    )


def integer_table(layer: Any) -> IntegerWeight:
    """The table of an Embedding with mode int4."""
    width = layer.output_dim
    return _int4(
        layer, "_embeddings", "embeddings", lambda packed: _halves(packed, 1)[:, :width], is_table=True
    )


def integer_projection(layer: Any) -> IntegerWeight:
    """The kernel of the reversed direction of a ReversibleEmbedding with mode int4 and its own kernel."""
    width = layer.output_dim
    return _int4(
        layer, "reverse_embeddings", "reverse_embeddings", lambda packed: _halves(packed, 0)[:width].T
    )


def layer_policy(layer: Any) -> Any:
    """The dtype policy of a layer; a map has one for each path."""
    policy = layer.dtype_policy
    return policy[layer.path] if hasattr(policy, "default_policy") else policy


def _int4(
    layer: Any,
    kernel: str,
    name: str,
    unpack: Callable[[np.ndarray], np.ndarray],
    *,
    is_table: bool = False,
) -> IntegerWeight:
    """A weight with mode int4: signed integers, and a scale for each row or for blocks of it.

    Without blocks, Keras divides by the scale.
    """
    packed, scale = getattr(layer, kernel), getattr(layer, f"{name}_scale")
    variables = (packed, scale)
    order = (0, 1) if is_table else (1, 0)
    if is_grouped(layer):
        zero = getattr(layer, f"{name}_zero")
        variables = (*variables, zero)
        groups = array_of(layer.g_idx).astype("int64")
        zeros = array_of(zero).astype("int64").transpose(order) + 8
    else:
        rows = scale.shape[0]
        of_table = isinstance(layer, keras.layers.Embedding)
        columns = layer.output_dim if of_table else math.prod(kernel_shape(layer)) // rows
        groups, zeros = np.zeros(columns, "int64"), np.full((rows, 1), 8)

    def scales() -> np.ndarray:
        stored = array_of(scale).astype("float32")
        return stored.transpose(order) if is_grouped(layer) else np.reciprocal(stored)[:, None]

    # The order of Keras's signed integers is that of unsigned ones with the highest bit inverted.
    return IntegerWeight(
        variables, 4, groups, zeros, lambda: unpack(array_of(packed).view("uint8")) ^ 8, scales, is_table
    )


def _bits_of(layer: Any) -> int:
    """The bits in the file of an integer of a layer; 0 for other layers. Fewer than 4 are stored as 4."""
    mode = mode_of(layer)
    if mode == "gptq":
        return 8 if layer_policy(layer).weight_bits == 8 else 4
    return 4 if mode in INTEGER_MODES else 0


def _halves(packed: np.ndarray, axis: int) -> np.ndarray:
    """The integers of bytes, two of each, the first in the lower half."""
    pairs = np.stack([packed & 15, packed >> 4], axis=axis + 1)
    shape = list(packed.shape)
    shape[axis] *= 2
    return pairs.reshape(shape)
