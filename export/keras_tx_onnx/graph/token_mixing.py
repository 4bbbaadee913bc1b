"""Whether a node computes each token from that token alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from keras_tx_onnx.graph.properties import ELEMENTWISE, NORMS, array_of, input_at

# Attention has the past of a cache beside its tokens. After a Reshape, the axis of tokens is unknown.
PER_TOKEN = ELEMENTWISE | {
    "Attention",
    "Expand",
    "Reshape",
    "RotaryEmbedding",
    "Shape",
    "Squeeze",
    "Unsqueeze",
}
ONE_AXIS = frozenset({"ArgMax", "ArgMin", "Concat", "Gather", "LogSoftmax", "Softmax", "Split", "TopK"})
# Refused also after a Reshape or Transpose, where the axis of tokens is unknown.
OVER_TOKENS = frozenset("Conv ConvTranspose GRU InstanceNormalization Loop LSTM RNN Scan".split())
AXES_INPUT = {"CumSum": 1, "Slice": 3}


class Tokens(NamedTuple):
    """Where a value has its tokens: an axis, and the number of all axes."""

    axis: int
    rank: int


def mixes_tokens(node: ir.Node, inputs: Sequence[Tokens | None]) -> bool:
    """Whether a node may relate tokens to each other; an operator that is not known may.

    Args:
        node: the node.
        inputs: where each of its inputs has tokens; None for one that has none.
    """
    if node.op_type in OVER_TOKENS:
        return True
    if node.op_type in PER_TOKEN or not any(inputs):
        return False
    if node.op_type == "Einsum":
        return _sums_over_tokens(node, inputs)
    first = inputs[0]
    if node.op_type == "MatMul":
        return inputs[1] is not None or (first is not None and first.axis == first.rank - 1)
    if node.op_type == "Gather" and first is None:  # tokens are the indices
        return False
    tokens = next(each for each in inputs if each is not None)
    axes = _axes(node, tokens.rank)
    return axes is None or tokens.axis in {axis % tokens.rank for axis in axes}


def _sums_over_tokens(node: ir.Node, inputs: Sequence[Tokens | None]) -> bool:
    """Whether an Einsum has no axis of tokens in its result, or several."""
    equation = node.attributes["equation"].as_string().replace(" ", "")
    terms, result = equation.split("->")
    letters = {term[x.axis] for term, x in zip(terms.split(","), inputs, strict=True) if x is not None}
    return "." in equation or len(letters) != 1 or not letters <= set(result)


def _axes(node: ir.Node, rank: int) -> Sequence[int] | None:
    """The axes along which a node combines or selects numbers; None if they are unknown."""
    if node.op_type in NORMS:
        return range(node.attributes.get_int("axis", -1) % rank, rank)
    if node.op_type in ONE_AXIS:
        return [node.attributes.get_int("axis", 0 if node.op_type in ("Gather", "Split") else -1)]
    if node.op_type.startswith("Reduce") and "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    index = 1 if node.op_type.startswith("Reduce") else AXES_INPUT.get(node.op_type)
    axes = None if index is None else array_of(input_at(node, index))
    return None if axes is None else [int(axis) for axis in axes.ravel()]
