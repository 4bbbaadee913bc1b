"""Layers and operations of keras-hub's families for images."""

from __future__ import annotations

from typing import Any

import keras
import onnx_ir as ir
from keras import ops
from keras_hub.layers import SAMPromptEncoder
from keras_hub.src.models.depth_anything import depth_anything_layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.size_expressions import Bound, Expression, of_number
from keras_tx_onnx.lowerings.nodes.channels import to_first, to_last
from keras_tx_onnx.reading.keras_hub_functions import AlignedResize
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.reading.symbolic_sizes import axis_length, axis_name, sizes_of


class _Interpolation(keras.layers.Layer):
    """Calls keras-hub's function, which an export replaces, by its name in the module."""

    def call(self, x: Any) -> Any:
        return depth_anything_layers.interpolate(x, (9, 4), "channels_last")


@lowers(
    AlignedResize,
    example=lambda x: _Interpolation()(x),
    shape=(6, 5, 3),
    nodes="Transpose Shape Concat Resize Transpose",
)
def aligned_resize(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    last = operation.data_format == "channels_last"
    x = to_first(cx, images, 2) if last else images
    sizes = cx.op.Concat(cx.op.Shape(x, start=0, end=2), list(operation.size), axis=0)
    options = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    x = cx.op.Resize(x, None, None, sizes, **options)
    return to_last(cx, x, 2) if last else x


def _prompted(x: Any) -> Any:
    """For the example: points, labels, boxes and masks from one tensor (b, 4, 4)."""
    encoder = SAMPromptEncoder(
        hidden_size=4, image_embedding_size=(1, 1), input_image_size=(8, 8), mask_in_channels=16
    )
    boxes = ops.reshape(x, (-1, 4, 2, 2))
    masks = ops.reshape(x, (-1, 1, 4, 4, 1))
    return encoder(points=x[..., :2], labels=ops.round(x[..., 2]), boxes=boxes, masks=masks)


@lowers(
    SAMPromptEncoder,
    example=_prompted,
    shape=(4, 4),
    nodes=(
        "Gather Reshape Round Reshape Slice Expand CumSum Sub CumSum Sub Div Div Unsqueeze Unsqueeze Concat "
        "Mul Sub MatMul Mul Sin Cos Concat Add Range Gather Div Gather Div Unsqueeze Unsqueeze Concat Mul "
        "Sub MatMul Mul Sin Cos Concat Unsqueeze Shape Squeeze Unsqueeze Concat Expand Equal Gather Add "
        "Gather Add Where Equal Gather Where Add Gather Div Gather Div Unsqueeze Unsqueeze Concat Mul Sub "
        "MatMul Mul Sin Cos Concat Gather Gather Add Gather Gather Add Unsqueeze Unsqueeze Concat Concat "
        "Reshape Concat Equal Squeeze If Unsqueeze"
    ),
)
def prompt_encoder(
    cx: GraphContext,
    layer: Any,
    /,
    images: Any = None,
    points: Any = None,
    labels: Any = None,
    boxes: Any = None,
    masks: Any = None,
) -> Any:
    """Without masks, the dense embedding is a weight; otherwise each mask has its own."""
    if any(x is None for x in (points, labels, boxes, masks)):
        return NotImplemented
    assert cx.lower_call_of is not None

    def sparse(points: Any, labels: Any, boxes: Any) -> Any:
        return ops.concatenate([layer._embed_points(points, labels), layer._embed_box(boxes)], axis=1)

    places = layer.positional_embedding_layer
    positional = cx.lower_call_of(cx, places.encode_image, layer.image_embedding_size, layer=places)
    return {
        "prompt_sparse_embeddings": cx.lower_call_of(cx, sparse, points, labels, boxes),
        "prompt_dense_embeddings": _dense_embeddings(cx, layer, masks),
        "prompt_dense_positional_embeddings": cx.op.Unsqueeze(positional, [0]),
    }


def _dense_embeddings(cx: GraphContext, layer: Any, masks: ir.Value) -> ir.Value:
    assert cx.lower_call_of is not None
    height, width = layer.image_embedding_size
    _check_size_of_masks(cx, masks, (4 * height, 4 * width))
    size, channels = [height, width], layer.hidden_size

    def downscaled(masks: Any) -> Any:
        for part in layer.mask_downscaler.layers:
            masks = part(masks)
        return masks

    none = cx.op.Equal(axis_length(cx, masks, 1), [0])
    with cx.body([]) as without:
        embedding = cx.weight(layer.no_mask_embed.embeddings, shape=(1, 1, 1, channels))
        shape = cx.op.Concat(cx.op.Shape(masks, start=0, end=1), [*size, channels], axis=0)
        without.outputs.append(_typed(cx.op.Expand(embedding, shape)))
    with cx.body([]) as given:
        flat = cx.op.Reshape(masks, cx.op.Concat([-1], cx.op.Shape(masks, start=2), axis=0))
        flat.meta[KERAS_TENSOR] = keras.KerasTensor((None, 4 * height, 4 * width, 1), "float32")
        given.outputs.append(_typed(cx.lower_call_of(cx, downscaled, flat)))
    return cx.op.If(cx.op.Squeeze(none, [0]), then_branch=without, else_branch=given)


def _typed(value: ir.Value) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.FLOAT)
    return value


def _check_size_of_masks(cx: GraphContext, masks: ir.Value, expected: tuple[int, int]) -> None:
    """Raises an ExportError for masks of another size; a dynamic size becomes a bound of the graph."""
    for axis, size, right in zip((2, 3), sizes_of(masks)[2:4], expected, strict=True):
        if isinstance(size, Expression) and size.constant is None:
            names = {symbol: axis_name(cx.graph, symbol) for symbol in size.symbols()}
            if None not in names.values():
                cx.bounds[Bound(size - of_number(right), "==").text(names)] = None
                continue
        elif size == right or (isinstance(size, Expression) and size.constant == right):
            continue
        raise ExportError(
            f"The layer {cx.scope!r} has masks with axis {axis} of size {size}, expected {right}: 4 times "
            "image_embedding_size. Pass masks of this size."
        )
