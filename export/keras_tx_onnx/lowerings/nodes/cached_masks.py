"""Masks of a graph with a cache, computed from the masks that Keras's graph computes for its tokens.

Keras's graph has no past. Its masks and biases depend on padding_mask and on the number of tokens. The same
nodes, for the mask and the number of past and tokens, compute those of the whole text. A graph with a cache
needs the rows of the new tokens: the axis of queries is sliced as early in these nodes as possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.cache_ports import STAND_IN, Cache
from keras_tx_onnx.graph.properties import ELEMENTWISE, TO_THE_END, array_of, is_constant
from keras_tx_onnx.graph.size_expressions import Expression
from keras_tx_onnx.lowerings.nodes.arguments import as_bool
from keras_tx_onnx.reading.symbolic_sizes import SIZES, axis_length, sizes_of

QUERIES, KEYS = -2, -1  # axes of a mask, from the end
CONJUNCTIONS = frozenset({"And", "Min", "Mul"})
COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
TRUTHS = COMPARISONS | {"And", "Not", "Or", "Xor"}


def cache_of(cx: GraphContext) -> Cache:
    """The cache of a decoder's graph; raises an ExportError for that of an encoder-decoder."""
    if not isinstance(cx.cache, Cache):
        raise ExportError(
            f"The layer {cx.scope!r} of keras-hub is not supported in an encoder-decoder with a cache."
        )
    return cx.cache


def after_past(
    cx: GraphContext, mask: ir.Value | None, causal: bool = False
) -> tuple[ir.Value | None, ir.Value | None]:
    """The masks of a cached attention for a mask (..., queries, keys) that Keras's graph computes for tokens.

    Args:
        cx: of the graph.
        mask: excludes keys; None if it excludes none.
        causal: whether later keys are excluded beside the mask.

    Returns:
        The padding mask (batch, keys) for a causal attention without another mask, or None; and the mask
        (batch or 1, heads or 1, queries, keys) of any other attention, the causal one included, or None.

    Raises:
        ExportError: the attention is not causal, or the mask depends on something else than padding_mask and
            the distance of tokens.
    """
    parts = [] if mask is None else _conjuncts(mask)
    if not causal and not any(map(_is_causal, parts)):
        raise ExportError(
            f"The layer {cx.scope!r} ({_name(mask)}) attends to later tokens, or its mask is not recognized "
            "as causal, so it cannot decode with a cache. Export with cache=False."
        )
    others = [part for part in parts if not _is_causal(part)]
    padding = [part for part in others if _is_padding(part)]
    if len(padding) == len(others):
        return (cache_of(cx).mask if padding else None), None
    for part in others:
        check_columns(cx, part, "mask")
    assert mask is not None
    return None, cx.once(("mask after past", mask, causal), lambda: _full(cx, parts, causal))


def _full(cx: GraphContext, parts: list[ir.Value], causal: bool) -> ir.Value:
    """The conjunction of masks, with a row for each token and a column for each key of past and tokens."""
    rows = [_four_axes(cx, rows_of_tokens(cx, as_bool(cx, part), QUERIES), _rank(part)) for part in parts]
    if causal:
        keys = _counting_whole(cx)
        queries = cx.op.Slice(keys, _past(cx), [TO_THE_END], [0])
        rows.append(
            cx.op.GreaterOrEqual(cx.op.Unsqueeze(queries, [0, 1, 3]), cx.op.Unsqueeze(keys, [0, 1, 2]))
        )
    result = rows[0]
    for each in rows[1:]:
        result = cx.op.And(result, each)
    if cx.opset < 23:
        return result
    sizes = cx.op.Concat([1, 1], _token_count(cx), _whole_count(cx), axis=0)
    return cx.op.Expand(result, sizes)


def _four_axes(cx: GraphContext, mask: ir.Value, rank: int) -> ir.Value:
    """(batch, queries, keys) -> (batch, 1, queries, keys); fewer axes are the last ones."""
    if rank == 4:
        return mask
    return cx.op.Unsqueeze(mask, [1] if rank == 3 else list(range(4 - rank)))


# -- the parts of a mask ------------------------------------------------------------------------------------


def _conjuncts(mask: ir.Value) -> list[ir.Value]:
    """The masks of which a mask is the conjunction; broadcasting and changes of type are left out."""
    node = mask.producer()
    if node is None:
        return [mask]
    if node.op_type in CONJUNCTIONS and all(map(_is_truth, node.inputs)):
        return [part for x in node.inputs if x is not None for part in _conjuncts(x)]
    source = node.inputs[0] if node.inputs else None
    if source is not None and (node.op_type in ("Cast", "Expand") or _adds_outer_axes(node)):
        return _conjuncts(source)
    return [mask]


def _adds_outer_axes(node: ir.Node) -> bool:
    """Whether a node adds axes of size 1 before those of queries and keys."""
    if node.op_type != "Unsqueeze" or _rank(node.inputs[0]) < 2:
        return False
    return all(_moved(node, axis) == axis for axis in (QUERIES, KEYS))


def _is_truth(x: ir.Value | None) -> bool:
    """Whether a value is 0 or 1 everywhere, or a boolean."""
    node = None if x is None else x.producer()
    if x is not None and KERAS_TENSOR in x.meta and x.meta[KERAS_TENSOR].dtype == "bool":
        return True
    if node is None:
        return x is not None and STAND_IN in x.meta
    if node.op_type in ("Cast", "Expand", "Unsqueeze"):
        return _is_truth(node.inputs[0])
    if node.op_type in ("Min", "Mul"):
        return all(map(_is_truth, node.inputs))
    return node.op_type in TRUTHS


def _is_padding(mask: ir.Value) -> bool:
    """Whether a mask excludes the keys that padding_mask excludes, and no others."""
    axis = KEYS
    while (node := mask.producer()) is not None:
        if node.op_type not in ("Cast", "Unsqueeze") or node.inputs[0] is None:
            return False
        moved = _source_axis(node, axis) if node.op_type == "Unsqueeze" else axis
        if moved is None:
            return False
        axis, mask = moved, node.inputs[0]
    return STAND_IN in mask.meta and axis == KEYS


def _is_causal(mask: ir.Value) -> bool:
    """Whether a mask excludes the keys that follow the query, and no others."""
    node = mask.producer()
    if node is None or node.op_type not in ("GreaterOrEqual", "LessOrEqual"):
        return False
    axes = [_counted_axis(x) for x in node.inputs]
    return axes == ([QUERIES, KEYS] if node.op_type == "GreaterOrEqual" else [KEYS, QUERIES])


def _counted_axis(x: ir.Value | None) -> int | None:
    """The axis, from the end, along which a value is 0, 1, 2 ...; None if it is another value."""
    node = None if x is None else x.producer()
    if node is None:
        return None
    if node.op_type == "Range":
        return KEYS if is_constant(node.inputs[0], 0) and is_constant(node.inputs[2], 1) else None
    axis = _counted_axis(node.inputs[0]) if node.inputs else None
    if axis is None or node.op_type == "Cast":
        return axis
    if node.op_type == "Unsqueeze":
        return _moved(node, axis)
    adds_zero = node.op_type in ("Add", "Sub") and is_constant(node.inputs[1], 0)
    return axis if adds_zero else None


# -- texts that begin in a later column ---------------------------------------------------------------------


def check_columns(cx: GraphContext, x: ir.Value, kind: str) -> None:
    """Raises an ExportError if a mask or bias changes where padding moves a text to later columns."""
    if _shift(x) != 0:
        raise ExportError(
            f"The layer {cx.scope!r} attends with the {kind} {x.name!r}, which depends on the columns of "
            "tokens, and padding moves them. Only padding_mask and the distance of query and key are "
            "supported with a cache. Export with cache=False."
        )


def _shift(x: ir.Value) -> int | None:
    """By how much a value changes for a text that begins one column later; None if that is unknown."""
    node = x.producer()
    if node is None:
        return 0 if x.const_value is not None or STAND_IN in x.meta else None
    if node.op_type == "Range":
        start, _, step = node.inputs
        assert start is not None
        return 1 if start.const_value is not None and is_constant(step, 1) else None
    if node.op_type == "CumSum":
        return _shift_of_sum(node)
    to_bool = node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL
    if node.op_type in ("Cast", "Expand", "Identity", "Transpose", "Unsqueeze") and not to_bool:
        (source, *_) = node.inputs
        return None if source is None else _shift(source)
    return _shift_of_operands(node) if node.op_type in ELEMENTWISE else None


def _shift_of_operands(node: ir.Node) -> int | None:
    operands = [x for x in node.inputs if x is not None]
    shifts = [shift for x in operands if (shift := _shift(x)) is not None]
    if len(shifts) < len(operands):
        return None
    if node.op_type == "Add":
        return sum(shifts)
    if node.op_type == "Sub":
        return shifts[0] - shifts[1]
    same = shifts[0] == shifts[1] if node.op_type in COMPARISONS else set(shifts) == {0}
    return 0 if same else None


def _shift_of_sum(node: ir.Node) -> int | None:
    """Of a CumSum: padding before a text adds nothing to a sum of padding_mask."""
    source = node.inputs[0]
    while source is not None and (before := source.producer()) is not None and before.op_type == "Cast":
        source = before.inputs[0]
    counts = source is not None and STAND_IN in source.meta and not node.attributes.get_int("reverse", 0)
    return 0 if counts else None


# -- axes, from the end -------------------------------------------------------------------------------------


def _new_axes(node: ir.Node) -> tuple[list[int], int]:
    """The axes that an Unsqueeze adds, from the beginning, and the rank of its result."""
    axes = array_of(node.inputs[1])
    assert axes is not None
    rank = _rank(node.inputs[0]) + axes.size
    return [int(axis) % rank for axis in axes.ravel()], rank


def _moved(node: ir.Node, axis: int) -> int:
    """Where an Unsqueeze moves an axis."""
    added, rank = _new_axes(node)
    kept = [place for place in range(rank) if place not in added]
    return kept[axis] - rank


def _source_axis(node: ir.Node, axis: int) -> int | None:
    """The axis of the input of an Unsqueeze that is an axis of its result; None for one that it adds."""
    added, rank = _new_axes(node)
    kept = [place for place in range(rank) if place not in added]
    return kept.index(rank + axis) - len(kept) if rank + axis in kept else None


def _rank(x: ir.Value | None) -> int:
    assert x is not None
    if KERAS_TENSOR in x.meta:
        return len(x.meta[KERAS_TENSOR].shape)
    if x.const_value is not None:
        return len(x.const_value.shape)
    node = x.producer()
    if node is not None and node.op_type == "Range":
        return 1
    if node is not None and node.op_type == "Unsqueeze":
        return _new_axes(node)[1]
    if node is not None and node.op_type in (*ELEMENTWISE, "CumSum", "Expand"):
        return max(_rank(each) for each in node.inputs if each is not None)
    raise ExportError(
        f"The rank of {x.name!r}, which is part of a mask, is unknown. Export with cache=False."
    )


# -- the values of past and tokens --------------------------------------------------------------------------


def of_whole_text(cx: GraphContext, x: ir.Value) -> ir.Value:
    """A value that depends on padding_mask and the number of tokens, for past and tokens."""
    return cx.once(("of past and tokens", x), lambda: _of_whole_text(cx, x))


def _of_whole_text(cx: GraphContext, x: ir.Value) -> ir.Value:
    cache, node = cache_of(cx), x.producer()
    if x is cache.stand_in:
        return cache.mask
    if node is None:
        if x.is_initializer():
            cache.farthest = max(cache.farthest, _distance(x))
            return x
        raise _depends(cx, x)
    if node.op_type == "Shape":
        return _whole_shape(cx, node)
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        raise _depends(cx, x)
    inputs = [None if each is None else of_whole_text(cx, each) for each in node.inputs]
    return x if inputs == list(node.inputs) else _again(cx, node, inputs)[x.index() or 0]


def _distance(x: ir.Value) -> int:
    """A constant that may be a distance of tokens, such as a window; otherwise 0."""
    array = array_of(x)
    if array is None or array.size != 1 or array.dtype.kind not in "iu":
        return 0
    number = abs(int(array.item()))
    return number if 1 < number < TO_THE_END else 0


def _again(cx: GraphContext, node: ir.Node, inputs: list[Any]) -> tuple[ir.Value, ...]:
    """The results of a node for other inputs."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    made = cx.add_node(node.op_type, inputs, len(node.outputs), node.domain, attributes)
    return made if isinstance(made, tuple) else (made,)


def _whole_shape(cx: GraphContext, node: ir.Node) -> ir.Value:
    """The shape of a value, with the number of past and tokens in place of that of tokens."""
    (x,) = node.inputs
    assert x is not None
    if SIZES not in x.meta:
        return _again(cx, node, [of_whole_text(cx, x)])[0]
    sizes = list(sizes_of(x))
    end = node.attributes.get_int("end", len(sizes))
    parts = [_whole_size(cx, x, size) for size in sizes[node.attributes.get_int("start", 0) : end]]
    return parts[0] if len(parts) == 1 else cx.op.Concat(*parts, axis=0)


def _whole_size(cx: GraphContext, x: ir.Value, size: Any) -> ir.Value:
    batch, tokens = sizes_of(cache_of(cx).stand_in)
    if isinstance(size, int):
        return cx.constant([size])
    if size == tokens:
        return _whole_count(cx)
    if size == batch:
        return axis_length(cx, cache_of(cx).stand_in, 0)
    raise _depends(cx, x)


def rows_of_tokens(cx: GraphContext, x: ir.Value, axis: int) -> ir.Value:
    """A value of the whole text, of which an axis, from the end, has the tokens and no past."""
    return cx.once(("tokens of", x, axis), lambda: _rows_of_tokens(cx, x, axis))


def _rows_of_tokens(cx: GraphContext, x: ir.Value, axis: int) -> ir.Value:
    node = x.producer()
    if _rank(x) < -axis or _size(x, axis) == 1:
        return of_whole_text(cx, x)
    if node is not None and node.op_type in ELEMENTWISE:
        return _again(cx, node, [None if y is None else rows_of_tokens(cx, y, axis) for y in node.inputs])[0]
    if node is not None and node.op_type == "Unsqueeze":
        return _rows_of_unsqueezed(cx, node, axis)
    if node is not None and node.op_type == "Expand":
        return _rows_of_expanded(cx, node, axis)
    if x.is_initializer():
        raise _depends(cx, x)
    return cx.op.Slice(of_whole_text(cx, x), _past(cx), [TO_THE_END], [axis])


def _rows_of_unsqueezed(cx: GraphContext, node: ir.Node, axis: int) -> ir.Value:
    source, place = node.inputs[0], _source_axis(node, axis)
    assert source is not None
    if place is None:
        return of_whole_text(cx, node.outputs[0])
    return _again(cx, node, [rows_of_tokens(cx, source, place), node.inputs[1]])[0]


def _rows_of_expanded(cx: GraphContext, node: ir.Node, axis: int) -> ir.Value:
    source, shape = node.inputs
    assert source is not None and shape is not None
    whole = of_whole_text(cx, shape)
    sizes = [cx.op.Slice(whole, [0], [axis], [0]), _token_count(cx)]
    if axis < -1:
        sizes.append(cx.op.Slice(whole, [axis + 1], [TO_THE_END], [0]))
    return cx.op.Expand(rows_of_tokens(cx, source, axis), cx.op.Concat(*sizes, axis=0))


def _size(x: ir.Value, axis: int) -> int | Expression | None:
    """The size of an axis of a value; None if it is unknown."""
    if x.const_value is not None:
        return int(x.const_value.shape.numpy()[axis])
    if SIZES in x.meta:
        return sizes_of(x)[axis]
    return x.meta[KERAS_TENSOR].shape[axis] if KERAS_TENSOR in x.meta else None


def _whole_count(cx: GraphContext) -> ir.Value:
    """The number of past and tokens, as a vector of one."""
    return cx.op.Shape(cache_of(cx).mask, start=1, end=2)


def _token_count(cx: GraphContext) -> ir.Value:
    return axis_length(cx, cache_of(cx).stand_in, 1)


def _past(cx: GraphContext) -> ir.Value:
    """The number of tokens before this call, as a vector of one."""
    return cx.op.Sub(_whole_count(cx), _token_count(cx))


def _counting_whole(cx: GraphContext) -> ir.Value:
    return cx.op.Range(np.int64(0), cx.op.Squeeze(_whole_count(cx), [0]), np.int64(1))


def _depends(cx: GraphContext, x: ir.Value) -> ExportError:
    return ExportError(
        f"The layer {cx.scope!r} attends with a mask or bias that is computed from {x.name!r}. Only "
        "padding_mask and the number of tokens are supported with a cache. Export with cache=False."
    )


def _name(mask: ir.Value | None) -> str:
    return "no mask" if mask is None else f"mask {mask.name!r}"
