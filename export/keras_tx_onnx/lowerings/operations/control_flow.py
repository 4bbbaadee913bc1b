"""Branches and loops: the nodes If, Loop and Scan, whose graphs are the traced bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, Predicate, onnx_dtype
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.reading.traced_functions import Body, Choice, Repeat, Steps, spec_of


class _Lambda(keras.layers.Layer):
    """Makes a layer of an example: outside of layers, Keras's graph does not contain the branches."""

    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


@lowers(
    Choice,
    example=lambda x: _Lambda(lambda x: ops.cond(ops.max(x) > 1.0, lambda: x + 1.0, lambda: 2.0 * x))(x),
    shape=(5,),
    nodes="ReduceMax Greater If",
)
def choice(cx: GraphContext, operation: Any, /, index: Any, captured: Sequence[Any]) -> list[ir.Value]:
    branches = list(zip(operation.bodies, captured, strict=True))
    if operation.traced == "Cond":
        names = ["where its predicate is true", "where its predicate is false"]
        return _if(cx, operation, [_boolean(cx, index)], branches[::-1], names)
    predicates = [cx.op.LessOrEqual(index, np.int64(place)) for place in range(len(branches) - 1)]
    names = [f"of index {place}" for place in range(len(branches))]
    return _if(cx, operation, predicates, branches, names)


def _if(
    cx: GraphContext,
    operation: Choice,
    predicates: list[ir.Value],
    branches: list[tuple[Body, Any]],
    names: list[str],
) -> list[ir.Value]:
    """The branch of the first true predicate, or else the last branch."""
    body, last = branches[0][0], len(branches) == 2
    with cx.body([]) as then:
        _return(cx, then, body, _lowered(cx, *branches[0]))
    with cx.body([]) as other:
        if last:
            rest = _lowered(cx, *branches[1])
        else:
            rest = _if(cx, operation, predicates[1:], branches[1:], names[1:])
        _return(cx, other, body, rest)
    results = cx.op.If(predicates[0], outputs=len(body.results), then_branch=then, else_branch=other)
    results = _several(results)
    node = results[0].producer()
    assert node is not None
    is_cond = operation.traced == "Cond"
    cx.predicates[str(node.name)] = Predicate(cx.scope, names[0], names[1] if last else "", is_cond)
    return results


@lowers(
    Repeat,
    example=lambda x: _Lambda(lambda x: ops.while_loop(lambda y: ops.max(y) < 9.0, lambda y: y + 1.0, x))(x),
    shape=(5,),
    nodes="ReduceMax Less Loop",
    takes_sizes=True,
)
def repeat(
    cx: GraphContext, operation: Any, /, variables: Sequence[Any], captured: Sequence[Any], limit: Any = None
) -> list[ir.Value]:
    condition, body = operation.bodies
    specs = body.known_specs()
    start = [_as(cx, x, spec) for x, spec in zip(variables, specs, strict=True)]
    proceed = _boolean(cx, _lowered(cx, condition, [*start, *captured[0]])[0])
    parameters = [_parameter(cx, "variable", spec) for spec in specs]
    counters = [
        _parameter(cx, name, keras.KerasTensor((), dtype))
        for name, dtype in (("step", "int64"), ("proceed", "bool"))
    ]
    with cx.body([*counters, *parameters]) as inner:
        after = _lowered(cx, body, [*parameters, *captured[1]])
        after = [_as(cx, x, spec) for x, spec in zip(after, specs, strict=True)]
        again = _boolean(cx, _lowered(cx, condition, [*after, *captured[0]])[0])
        inner.outputs.append(_made_in(cx, inner, again))
        _return(cx, inner, body, after)
    count = None if limit is None else _as(cx, limit, keras.KerasTensor((), "int64"))
    return _several(cx.op.Loop(count, proceed, *start, outputs=len(start), body=inner))


@lowers(
    Steps,
    example=lambda x: _Lambda(lambda x: ops.map(lambda row: row / ops.max(row), x))(x),
    shape=(5,),
    nodes="Scan",
    takes_sizes=True,
)
def steps(
    cx: GraphContext,
    operation: Any,
    /,
    states: Sequence[Any],
    sequences: Sequence[Any],
    captured: Sequence[Any],
) -> list[ir.Value]:
    (body,) = operation.bodies
    specs, count = body.known_specs(), operation.states
    start = [_as(cx, x, spec) for x, spec in zip(states, specs, strict=False)]
    over = [x if isinstance(x, ir.Value) else _as(cx, x, spec_of(x)) for x in sequences]
    before = [_parameter(cx, "state", spec) for spec in specs[:count]]
    elements = [_parameter(cx, "element", _element(x)) for x in over]
    with cx.body([*before, *elements]) as inner:
        _return(cx, inner, body, _lowered(cx, body, [*before, *elements, *captured[0]]))
    directions = {}
    if operation.reverse:
        directions = {
            "scan_input_directions": [1] * len(over),
            "scan_output_directions": [1] * (len(specs) - count),
        }
    made = cx.op.Scan(*start, *over, outputs=len(specs), body=inner, num_scan_inputs=len(over), **directions)
    return _several(made)


def _several(results: Any) -> list[ir.Value]:
    return list(results) if isinstance(results, tuple) else [results]


def _lowered(cx: GraphContext, body: Body, values: Sequence[Any]) -> list[ir.Value]:
    """The results of a body for values of its parameters and of captured tensors."""
    assert cx.lower_body is not None
    results = cx.lower_body(cx, body, list(values))
    return [_as(cx, x, spec) for x, spec in zip(results, body.known_specs(), strict=True)]


def _as(cx: GraphContext, x: Any, spec: keras.KerasTensor) -> ir.Value:
    """A value, or a number or array as a constant, in the dtype in which the file holds `spec`."""
    onnx_type = onnx_dtype(spec.dtype)
    if not isinstance(x, ir.Value):
        x = cx.constant(ops.convert_to_numpy(x), onnx_type.numpy().name)
    elif x.dtype is not None and x.dtype != onnx_type:
        x = cx.op.Cast(x, to=onnx_type)
    if KERAS_TENSOR not in x.meta:
        x.meta[KERAS_TENSOR] = spec
    if x.type is None:
        x.type = ir.TensorType(onnx_type)
    return x


def _boolean(cx: GraphContext, x: ir.Value) -> ir.Value:
    return x if x.dtype == ir.DataType.BOOL else cx.op.Cast(x, to=ir.DataType.BOOL)


def _element(sequence: ir.Value) -> keras.KerasTensor:
    known = sequence.meta[KERAS_TENSOR]
    return keras.KerasTensor(known.shape[1:], known.dtype)


def _parameter(cx: GraphContext, name: str, spec: keras.KerasTensor) -> ir.Value:
    value = ir.Value(
        name=cx.unique(f"{cx.scope}/{name}"),
        type=ir.TensorType(onnx_dtype(spec.dtype)),
        shape=ir.Shape(spec.shape),
    )
    value.meta[KERAS_TENSOR] = spec
    return value


def _return(cx: GraphContext, inner: ir.Graph, body: Body, values: Sequence[ir.Value]) -> None:
    for value, spec in zip(values, body.known_specs(), strict=True):
        inner.outputs.append(_made_in(cx, inner, _as(cx, value, spec)))


def _made_in(cx: GraphContext, inner: ir.Graph, value: ir.Value) -> ir.Value:
    """The value, or a copy: a graph must compute the values that it returns, and return each once."""
    node = value.producer()
    if node is not None and node.graph is inner and value not in inner.outputs:
        return value
    copy = cx.op.Identity(value)
    copy.type = value.type
    return copy
