"""The mask or bias of cached attention at each distance of query and key.

Masks and biases of a graph with a cache depend on padding and on the distance of tokens only
(keras_tx_onnx.lowerings.nodes.cached_masks refuses others). The row of the last token of the longest text
therefore has every number that a text without padding can see.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from keras_tx import contract

LINEAR = 1e-5  # of the largest number of a bias: rounding
EXCLUDED = -1e4  # a bias below excludes keys
PREFILL = 16  # tokens of the text whose mask must be causal


def row_of_last_token(mask: ir.Value, context: int) -> np.ndarray | None:
    """The numbers (heads or 1, keys) of a mask or bias for the last token of a text.

    Args:
        mask: (batch or 1, heads or 1, queries, keys), a value of the outermost graph.
        context: the number of tokens of the text.

    Returns:
        The numbers; None if the mask does not exclude later keys, or depends on something else than
        attention_mask and the numbers of tokens.
    """
    prefill = _numbers(mask, 0, min(PREFILL, context))
    if prefill is None or not _is_causal(prefill):
        return None
    last = _numbers(mask, context - 1, 1)
    return None if last is None else last[:, 0]


def window_of(row: np.ndarray) -> int | None:
    """The number of tokens that the last one attends to, itself included; None if others are between them."""
    seen = int(row.sum())
    return seen if seen and len(row) == 1 and row[0, row.shape[1] - seen :].all() else None


def is_linear(row: np.ndarray) -> bool:
    """Whether a bias grows with the distance by the same number at each step.

    Such a bias may be counted from any token: softmax does not change if a number is added to all scores.
    """
    exact, count = row.astype("float64"), row.shape[1]
    line = np.linspace(exact[:, 0], exact[:, -1], count, axis=1)
    return bool(np.abs(exact - line).max() <= LINEAR * np.abs(exact).max())


def slopes_of(row: np.ndarray) -> np.ndarray:
    """The number by which a linear bias grows from key to key, of each head."""
    exact = row.astype("float64")
    return ((exact[:, -1] - exact[:, 0]) / max(exact.shape[1] - 1, 1)).astype("float32")


def _is_causal(numbers: np.ndarray) -> bool:
    """Whether (heads, queries, keys) excludes the keys that follow each query."""
    later = numbers[:, *np.triu_indices(numbers.shape[1], 1)]
    return bool((~later if later.dtype == bool else later < EXCLUDED).all())


def _numbers(mask: ir.Value, past: int, tokens: int) -> np.ndarray | None:
    """A mask (heads or 1, queries, keys) of a text without padding, whose last tokens are new."""
    node = mask.producer()
    feed = None if node is None else _inputs_of(mask, past, tokens)
    if node is None or feed is None:
        return None
    assert isinstance(node.graph, ir.Graph)
    part = ir.convenience.extract(node.graph, list(feed), [mask])
    for value, array in zip(part.inputs, feed.values(), strict=True):
        value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
    model = ir.to_proto(ir.Model(part, ir_version=contract.IR_VERSIONS[part.opset_imports[""]]))
    names = [str(value.name) for value in part.inputs]
    (numbers,) = ReferenceEvaluator(model).run(None, dict(zip(names, feed.values(), strict=True)))
    return np.asarray(numbers)[0]


def _inputs_of(mask: ir.Value, past: int, tokens: int) -> dict[ir.Value, np.ndarray] | None:
    """The sizes and inputs of which a mask is computed; None if there are others."""
    sizes = {
        contract.BATCH_AXIS: 1,
        contract.SEQUENCE_AXIS: tokens,
        contract.PAST_AXIS: past,
        contract.TOTAL_AXIS: past + tokens,
    }
    feed: dict[ir.Value, np.ndarray] = {}
    known, values = {mask}, [mask]
    while values:
        value = values.pop()
        node = value.producer()
        if value.name == contract.ATTENTION_MASK and value.is_graph_input():
            feed[value] = np.ones((1, past + tokens), "int64")
        elif value.is_initializer():
            continue
        elif node is None:
            return None
        elif node.op_type == "Shape" and (shape := _shape(node, sizes)) is not None:
            feed[value] = shape
        else:
            inputs = {x for x in node.inputs if x is not None} - known
            known |= inputs
            values += inputs
    return feed


def _shape(node: ir.Node, sizes: dict[str, int]) -> np.ndarray | None:
    """The result of a Shape for these sizes of axes; None if an axis is another one."""
    (x,) = node.inputs
    if x is None or x.shape is None:
        return None
    axes = list(x.shape)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(axes))
    lengths = [axis if isinstance(axis, int) else sizes.get(str(axis.value)) for axis in axes[start:end]]
    return None if None in lengths else np.array(lengths, "int64")
