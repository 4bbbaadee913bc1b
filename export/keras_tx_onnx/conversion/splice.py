"""Splices an ONNX model into the graph that is being built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.graph.builder import GraphContext

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FILE = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL)  # the dtypes between layers


def splice(
    context: GraphContext, proto: onnx.ModelProto, inputs: Sequence[Any]
) -> tuple[list[ir.Value], int]:
    """Adds the nodes of a model, applied to `inputs`, to the graph that is built.

    Everything is named after the current layer. Integers are int64 at inputs and outputs, and half precision
    is float32 throughout, as in the whole file.

    Returns:
        The values of the model's outputs, and the number of its nodes.
    """
    body = ir.from_proto(proto).graph
    graphs = [body, *body.subgraphs()]
    for inner in graphs:
        _write_defaults(inner)
        _widen(inner)
    dtypes = [value.dtype for value in body.outputs]
    for value, replacement in zip(body.inputs, inputs, strict=True):
        if value.uses() or value.is_graph_output():
            source = _as(context, context.value(replacement), value.dtype)
            value.replace_all_uses_with(source, replace_graph_outputs=True)
    outputs = list(body.outputs)
    body.outputs.clear()
    for inner in graphs:
        _rename(context, inner, inner is body)
    nodes = list(body)
    body.remove(nodes)
    context.graph.extend(nodes)
    count = len(nodes) + sum(len(inner) for inner in graphs[1:])
    return [_out(context, value, dtype) for value, dtype in zip(outputs, dtypes, strict=True)], count


def _write_defaults(body: ir.Graph) -> None:
    """Writes the default of attributes that passes read or that onnxruntime does not support."""
    for node in body:
        source = node.inputs[0] if node.inputs else None
        if node.op_type == "Transpose" and "perm" not in node.attributes:
            if source is None or source.shape is None:
                raise NotLowered("Transpose without perm is not supported for a tensor of unknown rank.")
            perm = list(reversed(range(len(source.shape))))
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)
        elif node.op_type.startswith("Reduce") and "keepdims" not in node.attributes:
            node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
        elif node.op_type == "Conv" and max(_numbers(node, "dilations"), default=1) > 1:
            _write_pads(node)


def _write_pads(node: ir.Node) -> None:
    """Replaces auto_pad of a dilated convolution, which onnxruntime refuses, by pads; the strides are 1."""
    auto_pad = node.attributes.get_string("auto_pad", "")
    if not auto_pad.startswith("SAME"):
        return
    weight = node.inputs[1]
    sizes = _numbers(node, "kernel_shape")
    if not sizes and weight is not None and weight.shape is not None:
        sizes = [n for n in weight.shape[2:] if isinstance(n, int)]
    totals = [(n - 1) * d for n, d in zip(sizes, _numbers(node, "dilations"), strict=True)]
    before = [total // 2 for total in totals]
    after = [total - n for total, n in zip(totals, before, strict=True)]
    pads = before + after if auto_pad == "SAME_UPPER" else after + before
    del node.attributes["auto_pad"]
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _numbers(node: ir.Node, name: str) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else []


def _widen(body: ir.Graph) -> None:
    """Half precision as float32. Shapes are inferred: tf2onnx's names of sizes are arbitrary."""
    for value in [*body.inputs, *body.outputs, *body.initializers.values()]:
        if value.dtype in HALF:
            value.dtype = ir.DataType.FLOAT
        if value.const_value is not None and value.const_value.dtype in HALF:
            value.const_value = _as_float(value.const_value)
        if value.shape is not None:
            value.shape = ir.Shape([n if isinstance(n, int) else None for n in value.shape])
    for node in body:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
        _widen_attributes(node)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALF:
            node.attributes[name] = ir.AttrTensor(name, _as_float(attribute.as_tensor()))
        elif name in ("to", "dtype") and attribute.as_int() in HALF:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _as_float(tensor: Any) -> Any:
    return ir.tensor(tensor.numpy().astype("float32"), name=tensor.name)


def _rename(context: GraphContext, body: ir.Graph, outermost: bool) -> None:
    """Names everything after the layer; moves initializers of the outermost graph to the context's."""
    prefix = f"{context.scope}/" if context.scope else ""
    for value in list(body.initializers.values()):
        name = context.unique(f"{prefix}constant")
        body.initializers.pop(str(value.name))
        value.name = name
        if value.const_value is not None:
            value.const_value.name = name
        (context.graph if outermost else body).register_initializer(value)
    if not outermost:
        for value in body.inputs:
            value.name = context.unique(f"{prefix}{value.name}")
    for node in body:
        node.name = context.unique(f"{prefix}{node.op_type}")
        for index, value in enumerate(node.outputs):
            if value.name:  # an output that is left out has none
                value.name = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"


def _out(context: GraphContext, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """An output in a dtype of the file."""
    if dtype in FILE:
        return value
    target = ir.DataType.FLOAT if dtype == ir.DataType.DOUBLE else ir.DataType.INT64
    return context.op.Cast(value, to=target)


def _as(context: GraphContext, value: ir.Value | None, dtype: ir.DataType | None) -> ir.Value:
    assert value is not None
    return value if dtype is None or dtype == value.dtype else context.op.Cast(value, to=dtype)
