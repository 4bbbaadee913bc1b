"""The attention of a graph with a cache: one Attention node, or with a soft cap the nodes of its formula."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from keras_tx_onnx.graph.properties import array_of, has_one_use, input_at


@dataclasses.dataclass(frozen=True)
class AttentionWithCache:
    """One attention of a graph.

    Attributes:
        qkv: query, key and value (batch, tokens, heads * width).
        past: keys and values of earlier tokens (batch, heads, tokens, width), inputs of the graph.
        result: (batch, tokens, heads * width); padding may have any numbers.
        presents: keys and values of past and new tokens.
        heads: the numbers of query heads, and of key and value heads.
        scale: of the scores; None for 1 / sqrt(width).
        causal: whether later keys are excluded beside the mask.
        mask: boolean, or numbers that are added to the scores; or None.
        soft_cap: of the scores; 0 for none.
    """

    qkv: tuple[ir.Value, ...]
    past: tuple[ir.Value, ir.Value]
    result: ir.Value
    presents: tuple[ir.Value, ir.Value]
    heads: tuple[int, int]
    scale: float | None
    causal: bool
    mask: ir.Value | None
    soft_cap: float = 0.0

    @property
    def width(self) -> int | None:
        """Of a head; None if it is unknown, or if keys and values differ."""
        widths = {None if past.shape is None else past.shape[3] for past in self.past}
        (width,) = widths if len(widths) == 1 else (None,)
        return width if isinstance(width, int) else None

    @property
    def node(self) -> ir.Node:
        node = self.result.producer()
        assert node is not None
        return node


def attention_with_cache(graph: ir.Graph) -> list[AttentionWithCache]:
    """The attention of the outermost graph that reads the inputs of a cache."""
    results = []
    for node in graph:
        one = None
        if node.op_type == "Attention" and input_at(node, 4) is not None and "q_num_heads" in node.attributes:
            one = _of_node(node)
        elif node.op_type == "Tanh":
            one = _of_soft_cap(node)
        if one is not None:
            results.append(one)
    return results


def _of_node(node: ir.Node) -> AttentionWithCache:
    query, key, value, mask, past_key, past_value = node.inputs[:6]
    assert query and key and value and past_key and past_value
    result, present_key, present_value = node.outputs
    attributes = node.attributes
    if mask is not None and mask.dtype != ir.DataType.BOOL:
        result = _with_zeros(result)
    return AttentionWithCache(
        (query, key, value),
        (past_key, past_value),
        result,
        (present_key, present_value),
        (attributes["q_num_heads"].as_int(), attributes["kv_num_heads"].as_int()),
        attributes.get_float("scale") if "scale" in attributes else None,
        attributes.get_int("is_causal", 0) == 1,
        mask,
        attributes.get_float("softcap", 0.0),
    )


def _with_zeros(result: ir.Value) -> ir.Value:
    """The result after queries that may attend to no key, all of them padding, are set to zero."""
    try:
        (node,) = result.consumers()
        product = _user(node, "Mul")
        _producer(
            _producer(_producer(product.inputs[1], "Transpose").inputs[0], "ReduceMax").inputs[0], "Cast"
        )
        return _user(product, "Reshape").outputs[0]
    except (_Other, ValueError):
        return result


class _Other(Exception):
    """The nodes are not those of an attention with a soft cap."""


def _of_soft_cap(tanh: ir.Node) -> AttentionWithCache | None:
    try:
        return _matched(tanh)
    except _Other:
        return None


def _matched(tanh: ir.Node) -> AttentionWithCache:
    """Matches cap * tanh(q k^T / cap), a mask, softmax, the mask again, and the product with the values."""
    divided = _producer(tanh.inputs[0], "Div")
    cap = _number(divided.inputs[1])
    scores = _producer(divided.inputs[0], "MatMul")
    capped = _user(tanh, "Mul")
    if cap <= 0 or _number(capped.inputs[1]) != cap:
        raise _Other
    masked = _user(capped, "Where")
    weights = _user(_user(masked, "Softmax"), "Where")
    product = _user(weights, "MatMul")
    result = _user(_user(product, "Transpose"), "Reshape").outputs[0]
    mask = masked.inputs[0]
    if mask is not weights.inputs[0] or _number(weights.inputs[2]) != 0:
        raise _Other
    query, scale = scores.inputs[0], 1.0
    if query is not None and (node := query.producer()) is not None and node.op_type == "Mul":
        query, scale = node.inputs[0], _number(node.inputs[1])
    query, query_heads = _with_heads(query)
    present_key = _one_per_head(_producer(scores.inputs[1], "Transpose").inputs[0])
    present_value = _one_per_head(product.inputs[1])
    (past_key, key, heads), (past_value, value, value_heads) = map(_extended, (present_key, present_value))
    if heads != value_heads:
        raise _Other
    return AttentionWithCache(
        (query, key, value),
        (past_key, past_value),
        result,
        (present_key, present_value),
        (query_heads, heads),
        scale,
        False,
        mask,
        cap,
    )


def _producer(x: ir.Value | None, op_type: str) -> ir.Node:
    node = None if x is None else x.producer()
    if node is None or node.op_type != op_type:
        raise _Other
    return node


def _user(node: ir.Node, op_type: str) -> ir.Node:
    """The only node that reads a result."""
    (value,) = node.outputs
    (user, _), *_ = value.uses() or ((None, 0),)
    if user is None or user.op_type != op_type or not has_one_use(value):
        raise _Other
    return user


def _number(x: ir.Value | None) -> float:
    array = array_of(x)
    if array is None or array.size != 1:
        raise _Other
    return float(array.item())


def _with_heads(x: ir.Value | None) -> tuple[ir.Value, int]:
    """For (batch, heads, tokens, width), the value (batch, tokens, heads * width), and the heads."""
    reshape = _producer(_producer(x, "Transpose").inputs[0], "Reshape")
    source, shape = reshape.inputs[0], array_of(reshape.inputs[1])
    if source is None or shape is None or len(shape) != 4:
        raise _Other
    return source, int(shape[2])


def _one_per_head(x: ir.Value | None) -> ir.Value:
    """Keys or values before they are repeated for the query heads that share them."""
    node = None if x is None else x.producer()
    if node is not None and node.op_type == "Reshape":
        x = _producer(_producer(node.inputs[0], "Expand").inputs[0], "Unsqueeze").inputs[0]
    assert x is not None
    return x


def _extended(present: ir.Value) -> tuple[ir.Value, ir.Value, int]:
    """Past and new keys or values of a present, and their heads."""
    past, new = _producer(present, "Concat").inputs
    if past is None or not past.is_graph_input() or not present.is_graph_output():
        raise _Other
    return past, *_with_heads(new)
