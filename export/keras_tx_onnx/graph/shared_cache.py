"""A decoder's graph with a cache that is written in place: an extra file over the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.shared_cache import Comparison, compare_shared_cache
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx_onnx.graph import mask_distances
from keras_tx_onnx.graph.attention_with_cache import AttentionWithCache, attention_with_cache
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.properties import CONTRIB

SHARED_FROM = 23  # the first opset with an operator Attention
CHANNELS = 8  # GroupQueryAttention requires that the width of a head is a multiple of this
PAST_PREFIX = "past_key_values."  # of the names of the cache's inputs


def share_cache(model: ir.Model, context: int) -> int:
    """Replaces each attention with a cache by onnxruntime's GroupQueryAttention.

    Past and present of that operator have one size and may be the same memory: it writes the keys and values
    of new tokens behind those of earlier ones, and copies nothing. Their places are counted from
    attention_mask, so padding must be on the right; the standard graph accepts padding anywhere. Heads of a
    width that the operator does not accept are padded with zeros, also in the cache. Nothing else changes,
    whatever the precision of the weights. The cache consists of inputs and outputs of the outermost graph, so
    no branch or loop has such attention.

    A sliding window becomes local_window_size, a soft cap softcap, and a bias that grows linearly with the
    distance of tokens (ALiBi) attention_bias. Rows of a batch have different lengths: the operator counts a
    window from the row's own last token, and a linear bias may be counted from any.

    Args:
        model: the standard graph, which is changed.
        context: how many tokens the model supports.

    Returns:
        How many were replaced: 0, and the graph is unchanged, if one of them has no counterpart.
    """
    attention = attention_with_cache(model.graph)
    pasts = [x for x in model.graph.inputs if str(x.name).startswith(PAST_PREFIX)]
    options = _options_of(attention, context)
    if not attention or options is None or 2 * len(attention) != len(pasts):
        return 0
    editor = GraphEditor(model.graph)
    lengths, total = _counts(editor)
    for each, more in zip(attention, options, strict=True):
        _replace(editor, each, lengths, total, **more)
    RemoveUnusedNodesPass()(model)
    return len(attention)


def write_shared(path: Path, context: int) -> Path | None:
    """Writes the graph with a shared cache beside a written graph; None if it has no counterpart."""
    model = ir.load(path)
    if not share_cache(model, context):
        return None
    shared = path.with_name(contract.shared_name(path.name))
    ir.save(model, shared)  # weights in a data file stay there
    return shared


def check_shared(
    path: Path,
    shared: Path,
    context: int,
    exact: bool,
    weights: SharedWeights | None = None,
    farthest: int = 0,
) -> Comparison:
    """Compares the logits of two graphs; raises an ExportError above the tolerance.

    Args:
        path: the standard graph.
        shared: the graph with a shared cache.
        context: how many tokens the model supports.
        exact: whether the model computes in float32 and rounds no inputs.
        weights: weights of both graphs that are in memory.
        farthest: the largest distance that masks of the standard graph distinguish.
    """
    comparison = compare_shared_cache(path, shared, context, exact, weights, farthest)
    if comparison.difference > comparison.tolerance:
        raise ExportError(
            f"The graph with a shared cache differs from the one without by {comparison.difference:.1e} of "
            f"the logits' scale (tolerance {comparison.tolerance:.0e}). No folder was written."
        )
    return comparison


def no_shared(name: str, insist: bool) -> str:
    """The note that a graph has no shared cache; raises an ExportError if the user insists on one."""
    reason = (
        f"model {name!r} has attention that onnxruntime's GroupQueryAttention cannot compute: only causal "
        "attention with value heads as wide as key heads is supported, with a sliding window, a soft cap, or "
        "a bias that grows linearly with the distance of tokens"
    )
    if insist:
        raise ExportError(f"cache='shared' is not possible: {reason}. Use cache=True.")
    return f"No graph with a cache that is written in place: {reason}."


def note_of(shared: Path, path: Path, comparison: Comparison | None) -> str:
    """The note about a written graph with a shared cache."""
    compared = "NOT compared with it"
    if comparison is not None:
        compared = f"within {comparison.difference:.1e} of it{comparison.limits}"
    return (
        f"onnx/{shared.name} is onnx/{path.name} with a cache that is written in place, {compared}; "
        "keras_tx.runtime uses it on the CPU."
    )


def _options_of(attention: Sequence[AttentionWithCache], context: int) -> list[dict[str, Any]] | None:
    """What GroupQueryAttention needs beside the usual for each attention; None if one has no counterpart."""
    rows: dict[ir.Value, np.ndarray | None] = {}
    options = []
    for each in attention:
        if each.mask is not None and each.mask not in rows and not each.causal:
            rows[each.mask] = mask_distances.row_of_last_token(each.mask, context)
        more = None if each.width is None else _masking(each, rows)
        if more is None:
            return None
        options.append(more | ({"softcap": each.soft_cap} if each.soft_cap else {}))
    return options


def _masking(attention: AttentionWithCache, rows: dict[ir.Value, np.ndarray | None]) -> dict[str, Any] | None:
    """The window or the bias of an attention; None if its mask has no counterpart.

    A boolean mask of a causal attention only excludes padding.
    """
    mask = attention.mask
    if attention.causal:
        return {} if mask is None or mask.dtype == ir.DataType.BOOL else None
    row = None if mask is None else rows[mask]
    if mask is None or row is None:
        return None
    if mask.dtype != ir.DataType.BOOL:
        return {"slopes": mask_distances.slopes_of(row)} if mask_distances.is_linear(row) else None
    window = mask_distances.window_of(row)
    if window is None:
        return None
    return {} if window == row.shape[1] else {"local_window_size": window}


def _adder(editor: GraphEditor) -> Callable[..., ir.Value]:
    """Adds nodes at the beginning of the graph, in their order."""
    first = editor.once("first node", lambda: editor.graph[0])

    def add(op_type: str, inputs: list[ir.Value], dtype: ir.DataType, shape: list[Any], **attributes: Any):
        name = f"shared_cache/{op_type}"
        return editor.add(op_type, inputs, [(dtype, shape)], before=first, name=name, **attributes)

    return add


def _counts(editor: GraphEditor) -> tuple[ir.Value, ir.Value]:
    """The place of each row's last token, and the length of the longest row, as the operator reads them."""
    mask = next(x for x in editor.graph.inputs if x.name == contract.ATTENTION_MASK)
    one, add = editor.constant([1]), _adder(editor)
    int32, int64 = ir.DataType.INT32, ir.DataType.INT64
    batch = [contract.BATCH_AXIS]
    real = add("ReduceSum", [mask, one], int64, batch, keepdims=0)
    last = add("Cast", [add("Sub", [real, one], int64, batch)], int32, batch, to=int32.value)
    length = add("Squeeze", [add("Shape", [mask], int64, [1], start=1, end=2)], int64, [])
    return last, add("Cast", [length], int32, [], to=int32.value)


def _bias(editor: GraphEditor, slopes: np.ndarray) -> ir.Value:
    """The slope of each head, times the place of the key, counted from the last column of the batch."""
    return editor.once(("bias", slopes.tobytes()), lambda: _new_bias(editor, slopes))


def _new_bias(editor: GraphEditor, slopes: np.ndarray) -> ir.Value:
    add = _adder(editor)
    ids, mask = (
        next(x for x in editor.graph.inputs if x.name == name)
        for name in (contract.INPUT_IDS, contract.ATTENTION_MASK)
    )
    int64, float32 = ir.DataType.INT64, ir.DataType.FLOAT
    one, total = editor.constant(1), contract.TOTAL_AXIS
    queries = add("Shape", [ids], int64, [1], start=1, end=2)
    keys = add("Shape", [mask], int64, [1], start=1, end=2)
    first = add("Sub", [one, add("Squeeze", [keys], int64, [])], int64, [])
    places = add(
        "Cast", [add("Range", [first, one, one], int64, [total])], float32, [total], to=float32.value
    )
    heads = len(slopes)
    row = add("Mul", [editor.constant(slopes[None, :, None, None]), places], float32, [1, heads, 1, total])
    sizes = add("Concat", [editor.constant([1, heads]), queries, keys], int64, [4], axis=0)
    return add("Expand", [row, sizes], float32, [1, heads, contract.SEQUENCE_AXIS, total])


def _replace(
    editor: GraphEditor,
    attention: AttentionWithCache,
    lengths: ir.Value,
    total: ir.Value,
    slopes: np.ndarray | None = None,
    **attributes: Any,
) -> None:
    node, presents, (past_key, past_value) = attention.node, attention.presents, attention.past
    assert past_key.shape is not None
    *outer, width = list(past_key.shape)
    assert isinstance(width, int)
    padded = width + -width % CHANNELS
    queries, keys = attention.heads
    attributes |= {"num_heads": queries, "kv_num_heads": keys}
    if padded != width or attention.scale is not None:
        attributes["scale"] = width**-0.5 if attention.scale is None else attention.scale
    inputs = _projections(editor, attention, width, padded)
    for cache in (past_key, past_value, *presents):
        cache.shape = ir.Shape([*outer, padded])  # presents are as long as pasts
    more = [] if slopes is None else [None, None, None, _bias(editor, slopes)]
    result = attention.result
    shape = result.shape if padded == width else _with_channels(result, queries * padded)
    result, *new_presents = editor.add(
        "GroupQueryAttention",
        [*inputs, past_key, past_value, lengths, total, *more],
        [(result.dtype, shape), *((present.dtype, present.shape) for present in presents)],
        before=node,
        domain=CONTRIB,
        **attributes,
    )
    if padded != width:
        result = _with_width(editor, node, result, queries, padded, width)
    _exchange(editor, attention, result, new_presents)


def _projections(
    editor: GraphEditor, attention: AttentionWithCache, width: int, padded: int
) -> list[ir.Value | None]:
    """Query, key and value with heads of a width that the operator accepts."""
    qkv, (queries, keys) = attention.qkv, attention.heads
    if padded == width:
        whole = _fused_source(qkv)
        return list(qkv) if whole is None else [whole, None, None]
    return [
        _with_width(editor, attention.node, x, heads, width, padded)
        for x, heads in zip(qkv, (queries, keys, keys), strict=True)
    ]


def _exchange(
    editor: GraphEditor, attention: AttentionWithCache, result: ir.Value, presents: Sequence[ir.Value]
) -> None:
    """Replaces the results of an attention; its other nodes are not used any more."""
    new = dict(zip((attention.result, *attention.presents), (result, *presents), strict=True))
    for old in dict.fromkeys(value.producer() for value in new):
        assert old is not None
        editor.replace(old, *(new.get(value, result) for value in old.outputs))


def _with_width(
    editor: GraphEditor, before: ir.Node, x: ir.Value, heads: int, width: int, target: int
) -> ir.Value:
    """(batch, tokens, heads * width) with heads of another width: zeros are added, or channels are cut."""
    assert x.shape is not None
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


def _fused_source(qkv: Sequence[ir.Value]) -> ir.Value | None:
    """The value that a Split divides into query, key and value; the operator accepts it whole."""
    producers = {x.producer() for x in qkv}
    split = producers.pop()
    if producers or split is None or split.op_type != "Split":
        return None
    return split.inputs[0] if list(split.outputs) == list(qkv) else None
