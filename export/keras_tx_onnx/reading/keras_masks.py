"""Keras masks, which Embedding(mask_zero=True) or Masking attach to a tensor.

A functional graph does not hold them: Keras computes them at every call, and so does the walk.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import onnx_ir as ir
from keras import tree

from keras_tx.errors import ExportError
from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.reading import functional_graph

MASK = "keras_mask"


def mask_of(value: Any) -> ir.Value | None:
    """The mask of a value, or None."""
    return value.meta.get(MASK) if isinstance(value, ir.Value) else None


def attach(values: list[ir.Value], masks: list[ir.Value | None]) -> None:
    """Sets the masks of values; None sets no mask."""
    for value, mask in zip(values, masks, strict=False):
        if mask is not None:
            value.meta[MASK] = mask


def implicit_masks(layer: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The masks of the inputs that Keras passes to a layer's `call` by name."""
    parameters = inspect.signature(layer.call).parameters
    try:
        arguments = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ExportError(f"The layer {layer.name!r} does not accept its arguments: {error}.") from None
    tensors = {name: x for name, x in arguments.items() if functional_graph.distinct_values(x)}
    if len(tensors) == 1:
        names = dict.fromkeys(tensors, "mask")
    else:
        names = {name: f"{name}_mask" for name in tensors}
    implicit = {}
    for name, mask_name in names.items():
        if mask_name in parameters and arguments.get(mask_name) is None:
            masks = tree.map_structure(mask_of, tensors[name])
            if any(mask is not None for mask in tree.flatten(masks)):
                implicit[mask_name] = masks
    return implicit


def merges_masks(layer: Any, args: tuple) -> bool:
    """Whether Keras merges the masks of the inputs of a layer into its output, unlike the lowering."""
    joins = type(layer) in (keras.layers.Maximum, keras.layers.Minimum, keras.layers.Multiply)
    return joins and any(mask_of(value) is not None for value in functional_graph.distinct_values(args))


def propagate(context: GraphContext, layer: Any, args: tuple, kwargs: dict, results: Any) -> None:
    """Sets the masks of the results of a layer as Keras does."""
    if not isinstance(layer, keras.layers.Layer) or not layer.supports_masking:
        return
    values = [x for x in tree.flatten(results) if isinstance(x, ir.Value)]
    if all(mask_of(value) is not None for value in values):
        return
    first = args[0] if args else next(iter(kwargs.values()), None)
    previous = kwargs.get("mask")
    if previous is None:
        previous = tree.map_structure(mask_of, first)
    computed = _computed(context, layer, first, previous)
    for value, mask in zip(values, tree.flatten(computed), strict=False):
        if mask is not None and mask_of(value) is None:
            value.meta[MASK] = mask


def _computed(context: GraphContext, layer: Any, inputs: Any, previous: Any) -> Any:
    if type(layer).compute_mask is keras.layers.Layer.compute_mask:
        return previous
    assert context.lower_call_of is not None
    try:
        with context.inside("mask"):
            return context.lower_call_of(context, layer.compute_mask, inputs, previous, layer=layer)
    except NotLowered as error:
        raise ExportError(f"The mask of the layer {layer.name!r} cannot be exported. {error}") from error
