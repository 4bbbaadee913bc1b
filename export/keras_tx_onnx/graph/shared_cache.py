"""A decoder's graph with a cache that is written in place: an extra file over the same weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.shared_cache import shared_cache_difference
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.properties import CONTRIB, input_at

SHARED_FROM = 23  # the first opset with an operator Attention
CHANNELS = 8  # GroupQueryAttention requires that the width of a head is a multiple of this


def share_cache(model: ir.Model) -> int:
    """Replaces each Attention with a cache by onnxruntime's GroupQueryAttention.

    Past and present of that operator have one size and may be the same memory: it writes the keys and values
    of new tokens behind those of earlier ones, and copies nothing. Their places are counted from
    attention_mask, so padding must be on the right; the standard graph accepts padding anywhere. Heads of a
    width that the operator does not accept are padded with zeros, also in the cache. Nothing else changes,
    whatever the precision of the weights. The cache consists of inputs and outputs of the outermost graph, so
    no branch or loop has such attention.

    Returns:
        How many were replaced: 0, and the graph is unchanged, if one of them has no counterpart.
    """
    attention = [
        node for node in model.graph if node.op_type == "Attention" and input_at(node, 4) is not None
    ]
    if not attention or not all(map(_has_counterpart, attention)):
        return 0
    editor = GraphEditor(model.graph)
    lengths, total = _counts(editor)
    for node in attention:
        _replace(editor, node, lengths, total)
    RemoveUnusedNodesPass()(model)
    return len(attention)


def write_shared(path: Path) -> Path | None:
    """Writes the graph with a shared cache beside a written graph; None if it has no counterpart."""
    model = ir.load(path)
    if not share_cache(model):
        return None
    shared = path.with_name(contract.shared_name(path.name))
    ir.save(model, shared)  # weights in a data file stay there
    return shared


def check_shared(
    path: Path, shared: Path, context: int, exact: bool, weights: SharedWeights | None = None
) -> float:
    """The difference between the logits of two graphs; raises an ExportError above the tolerance.

    Args:
        path: the standard graph.
        shared: the graph with a shared cache.
        context: how many tokens the model supports.
        exact: whether the model computes in float32 and rounds no inputs.
        weights: weights of both graphs that are in memory.
    """
    difference, tolerance = shared_cache_difference(path, shared, context, exact, weights)
    if difference > tolerance:
        raise ExportError(
            f"The graph with a shared cache differs from the one without by {difference:.1e} of the logits' "
            f"scale (tolerance {tolerance:.0e}). No folder was written."
        )
    return difference


def no_shared(name: str, insist: bool) -> str:
    """The note that a graph has no shared cache; raises an ExportError if the user insists on one."""
    reason = (
        f"model {name!r} has attention that onnxruntime's GroupQueryAttention cannot compute: only causal "
        "attention without a bias and with value heads as wide as key heads is supported"
    )
    if insist:
        raise ExportError(f"cache='shared' is not possible: {reason}. Use cache=True.")
    return f"No graph with a cache that is written in place: {reason}."


def note_of(shared: Path, path: Path, difference: float | None) -> str:
    """The note about a written graph with a shared cache."""
    compared = "NOT compared with it" if difference is None else f"within {difference:.1e} of it"
    return (
        f"onnx/{shared.name} is onnx/{path.name} with a cache that is written in place, {compared}; "
        "keras_tx.runtime uses it on the CPU."
    )


def _has_counterpart(node: ir.Node) -> bool:
    """Whether attention is causal, its mask only excludes tokens, and keys are as wide as values."""
    mask, key, value = node.inputs[3], node.inputs[4], node.inputs[5]
    assert key is not None and value is not None and key.shape is not None and value.shape is not None
    same_width = key.shape[3] == value.shape[3] and isinstance(key.shape[3], int)
    causal = node.attributes.get_int("is_causal", 0) == 1 and "q_num_heads" in node.attributes
    biased = mask is not None and mask.dtype != ir.DataType.BOOL
    return same_width and causal and not biased and not node.attributes.get_float("softcap", 0.0)


def _counts(editor: GraphEditor) -> tuple[ir.Value, ir.Value]:
    """The place of each row's last token, and the length of the longest row, as the operator reads them."""
    mask = next(x for x in editor.graph.inputs if x.name == contract.ATTENTION_MASK)
    one, first = editor.constant([1]), editor.graph[0]

    def add(op_type: str, inputs: list[ir.Value], dtype: ir.DataType, shape: list[Any], **attributes: Any):
        name = f"shared_cache/{op_type}"
        return editor.add(op_type, inputs, [(dtype, shape)], before=first, name=name, **attributes)

    int32, int64 = ir.DataType.INT32, ir.DataType.INT64
    batch = [contract.BATCH_AXIS]
    real = add("ReduceSum", [mask, one], int64, batch, keepdims=0)
    last = add("Cast", [add("Sub", [real, one], int64, batch)], int32, batch, to=int32.value)
    length = add("Squeeze", [add("Shape", [mask], int64, [1], start=1, end=2)], int64, [])
    return last, add("Cast", [length], int32, [], to=int32.value)


def _replace(editor: GraphEditor, node: ir.Node, lengths: ir.Value, total: ir.Value) -> None:
    past_key, past_value = node.inputs[4:6]
    assert past_key is not None and past_value is not None and past_key.shape is not None
    *outer, width = list(past_key.shape)
    assert isinstance(width, int)
    padded = width + -width % CHANNELS
    queries, keys = (node.attributes[name].as_int() for name in ("q_num_heads", "kv_num_heads"))
    attributes: dict[str, Any] = {"num_heads": queries, "kv_num_heads": keys}
    if padded != width or "scale" in node.attributes:
        attributes["scale"] = node.attributes.get_float("scale", width**-0.5)
    resized = partial(_with_width, editor, node)
    if padded == width:
        whole = _fused_source(node)
        inputs = list(node.inputs[:3]) if whole is None else [whole, None, None]
    else:
        heads = (queries, keys, keys)
        inputs = [resized(x, count, width, padded) for x, count in zip(node.inputs[:3], heads, strict=True)]
        past_key.shape = past_value.shape = ir.Shape([*outer, padded])
    result, *presents = node.outputs
    for present in presents:
        present.shape = past_key.shape
    shape = result.shape if padded == width else _with_channels(result, queries * padded)
    result, *presents = editor.add(
        "GroupQueryAttention",
        [*inputs, past_key, past_value, lengths, total],
        [(result.dtype, shape), *((present.dtype, present.shape) for present in presents)],
        before=node,
        domain=CONTRIB,
        **attributes,
    )
    if padded != width:
        result = resized(result, queries, padded, width)
    editor.replace(node, result, *presents)


def _with_width(
    editor: GraphEditor, before: ir.Node, x: ir.Value | None, heads: int, width: int, target: int
) -> ir.Value:
    """(batch, tokens, heads * width) with heads of another width: zeros are added, or channels are cut."""
    assert x is not None and x.shape is not None
    outer = list(x.shape)[:2]

    def add(op_type: str, x: ir.Value, numbers: list[int], *shape: int) -> ir.Value:
        inputs = [x, editor.constant(numbers)]
        return editor.add(op_type, inputs, [(x.dtype, [*outer, *shape])], before=before)

    split = add("Reshape", x, [0, 0, heads, width], heads, width)
    resized = add("Pad", split, [0, 0, 0, 0, 0, 0, 0, target - width], heads, target)  # below 0 it cuts
    return add("Reshape", resized, [0, 0, heads * target], heads * target)


def _with_channels(x: ir.Value, channels: int) -> ir.Shape:
    assert x.shape is not None
    return ir.Shape([*list(x.shape)[:2], channels])


def _fused_source(node: ir.Node) -> ir.Value | None:
    """The value that a Split divides into query, key and value; the operator accepts it whole."""
    producers = {None if x is None else x.producer() for x in node.inputs[:3]}
    split = producers.pop()
    if producers or split is None or split.op_type != "Split":
        return None
    return split.inputs[0] if list(split.outputs) == list(node.inputs[:3]) else None
