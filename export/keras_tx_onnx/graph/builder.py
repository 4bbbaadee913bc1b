"""The ONNX graph while a model is lowered: nodes named after layers, weights after Keras variables."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx import contract
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.cache_ports import Cache, Seq2SeqCache
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.integer_weights import INTEGERS, IntegerWeight

# Attributes that grow with the graph, and that `attempt` restores.
NOTES = ("tiers", "warnings", "bounds", "predicates", "_names", "_made")
KERAS_TENSOR = "keras_tensor"  # the key in a value's meta of the KerasTensor that it stands for
SOURCE = "source"  # the key in a weight's meta of its Source


@dataclasses.dataclass(frozen=True)
class Predicate:
    """The origin of an If node.

    Attributes:
        operation: the path of the operation in the model.
        then: describes the branch for a true predicate.
        other: describes the other branch; empty if that is another If.
        is_cond: whether the operation is ops.cond, and not ops.switch.
    """

    operation: str
    then: str
    other: str
    is_cond: bool


@dataclasses.dataclass(frozen=True)
class Source:
    """The Keras variables from which a weight is computed.

    Attributes:
        variables: the variables.
        read: computes the weight from their current values.
        matrices: their shapes as the matrices whose columns the weight contains, in order; None if the weight
            is computed in another way.
    """

    variables: tuple[Any, ...]
    read: Callable[[], np.ndarray]
    matrices: tuple[tuple[int, ...], ...] | None = None


def shape_of(value: ir.Value) -> tuple[Any, ...]:
    """The shape that Keras knows: integers, and None for dynamic sizes."""
    return value.meta[KERAS_TENSOR].shape


def onnx_dtype(dtype: str) -> ir.DataType:
    """The dtype in the file of a Keras dtype: float32 for floats, int64 for integers."""
    if dtype == "bool":
        return ir.DataType.BOOL
    return ir.DataType.FLOAT if keras.backend.is_float_dtype(dtype) else ir.DataType.INT64


def _dtype_of_weight(dtype: Any) -> ir.DataType:
    """The dtype in the file of a variable; int8 stays, because Keras quantized it."""
    name = keras.backend.standardize_dtype(dtype)
    return ir.DataType.INT8 if name == "int8" else onnx_dtype(name)


class GraphContext(GraphEditor):
    """The graph to which lowerings add: `cx.op.MatMul(x, w)` adds a node, `cx.weight(variable)` a weight.

    Weights are read from their variables when the file is written, so that memory holds no second copy of the
    model. Every floating-point weight is written as float32, for any policy.

    Args:
        name: of the graph.
        opset: version of ONNX's operators.
        sizes: of axes of inputs that have one size instead of a name.

    Attributes:
        tiers: by layer, how it was lowered: "registered", "opened" or "tf2onnx".
        warnings: for the report.
        predicates: by the name of an If node, its origin.
        bounds: the sizes of inputs for which the graph is right, as expressions.
        lower_call_of: adds the nodes of a function of keras.ops.
        lower_body: adds the nodes of a traced body to the open graph and returns its results.
        cache: the ports of a decoder with a cache.
        misled: whether a layer returned another shape than it declared.
        rank: of the first result of the layer that is being lowered.
    """

    def __init__(self, name: str, opset: int, sizes: Mapping[str, int] | None = None):
        super().__init__(ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name))
        self.opset = opset
        self.sizes = sizes or {}
        self.op = Nodes(self)
        self.tiers: dict[str, str] = {}
        self.warnings: list[str] = []
        self.predicates: dict[str, Predicate] = {}
        self.bounds: dict[str, None] = {}
        self.lower_call_of: Callable[..., Any] | None = None
        self.lower_body: Callable[[GraphContext, Any, list[Any]], list[Any]] | None = None
        self.cache: Cache | Seq2SeqCache | None = None
        self.misled = False
        self.rank = 0
        self._open_graph = self.graph
        self._scopes: list[str] = []

    @property
    def scope(self) -> str:
        """The path of the layer that is being lowered."""
        return "/".join(self._scopes)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Nodes that are added inside carry this name; a layer that is called twice gets a second one.

        An empty name adds nothing.
        """
        if not name:
            yield
            return
        path = f"{self.scope}/{name}" if self._scopes else name
        self._scopes.append(self.unique(f"{path}/").removesuffix("/").rsplit("/", 1)[-1])
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def attempt(self, values: Sequence[ir.Value]) -> Iterator[None]:
        """Removes what was added inside if an error is raised, and restores the notes of `values`."""
        metas = [dict(value.meta) for value in values]
        notes = {name: copy.copy(vars(self)[name]) for name in NOTES}
        graph, count, initializers = self._open_graph, len(self._open_graph), set(self.graph.initializers)
        try:
            yield
        except Exception:
            graph.remove(list(graph)[count:], safe=True)
            for name in set(self.graph.initializers) - initializers:
                del self.graph.initializers[name]
            vars(self).update(notes)
            for value, meta in zip(values, metas, strict=True):
                value.meta.clear()
                value.meta.update(meta)
            raise

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> ir.Value:
        """Adds an input."""
        fixed = [self.sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in shape]
        value = ir.val(self.unique(name), dtype=dtype, shape=fixed)
        self.graph.inputs.append(value)
        return value

    @contextmanager
    def body(self, inputs: Sequence[ir.Value]) -> Iterator[ir.Graph]:
        """Opens the graph of a node such as Scan: nodes are added there, weights to the outermost graph."""
        name = self.unique(f"{self.scope}/body")
        outer, self._open_graph = self._open_graph, ir.Graph(inputs, [], nodes=[], name=name)
        try:
            yield self._open_graph
        finally:
            self._open_graph = outer

    def output(self, value: ir.Value, name: str) -> None:
        """Makes a value an output, behind an Identity if it is an input or an output already."""
        if value.producer() is None or value in self.graph.outputs:
            source, value = value, self.op.Identity(value)
            value.type, value.shape = source.type, source.shape
        value.name = self.unique(name)
        self.graph.outputs.append(value)

    def weight(
        self, variable: Any, permute: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None
    ) -> ir.Value:
        """A Keras variable as a weight under its path, stored once.

        Args:
            variable: the variable; or a sum, such as a kernel with LoRA, which is named after its layer; or a
                value of the graph, because a layer that is opened may compute its kernel.
            permute: the order of its axes.
            shape: its shape, after `permute`.
        """
        if isinstance(variable, ir.Value):
            transposed = self.op.Transpose(variable, perm=permute) if permute else variable
            return self.op.Reshape(transposed, shape) if shape else transposed
        order = permute or tuple(range(len(variable.shape)))
        shape = shape or tuple(variable.shape[axis] for axis in order)
        is_matrix = len(shape) == 2 and order == tuple(range(len(order)))
        return self._stored(
            (id(variable), order, shape),
            getattr(variable, "path", f"{self.scope}/kernel"),
            shape,
            Source(
                (variable,),
                lambda: array_of(variable).transpose(order).reshape(shape),
                (shape,) if is_matrix else None,
            ),
            _dtype_of_weight(variable.dtype),
        )

    def packed(
        self,
        name: str,
        variables: Sequence[Any],
        axis: int,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> ir.Value:
        """Several variables, reshaped to `shapes` and concatenated, as one weight that is stored once."""
        parts = [tuple(variable.shape) for variable in variables] if shapes is None else list(shapes)
        shape = list(parts[0])
        shape[axis] = sum(part[axis] for part in parts)

        def read() -> np.ndarray:
            pairs = zip(variables, parts, strict=True)
            return np.concatenate([array_of(v).reshape(part) for v, part in pairs], axis=axis)

        matrices = tuple(parts) if axis == 1 and len(shape) == 2 else None
        source = Source(tuple(variables), read, matrices)
        return self._stored((*map(id, variables), axis, *parts), name, shape, source)

    def made_of(
        self,
        name: str,
        variables: Sequence[Any],
        shape: Sequence[int],
        make: Callable[..., np.ndarray],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """A weight that `make` computes from variables when the file is written, stored once per name."""

        def read() -> np.ndarray:
            return make(*(array_of(variable) for variable in variables))

        return self._stored((*map(id, variables), name), name, shape, Source(tuple(variables), read), dtype)

    def integer_weight(self, name: str, weight: IntegerWeight) -> ir.Value:
        """The floats of an integer weight, stored once; the file has its integers and scales."""
        shape = (weight.rows, weight.columns) if weight.is_table else (weight.columns, weight.rows)
        key = (*map(id, weight.variables), "integers")
        value = self._stored(key, name, shape, Source(weight.variables, weight.floats))
        value.meta[INTEGERS] = weight
        return value

    def _stored(
        self,
        key: tuple,
        name: str,
        shape: Sequence[int],
        source: Source,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        if key not in self._made:
            self._made[key] = self.lazy_initializer(
                name, dtype, shape, lambda: ir.tensor(np.ascontiguousarray(source.read(), dtype.numpy()))
            )
            self._made[key].meta[SOURCE] = source
        return self._made[key]

    def vector(self, numbers: Sequence[Any]) -> ir.Value:
        """A vector of integers, some of which may be scalars of the graph."""
        if not any(isinstance(n, ir.Value) for n in numbers):
            return self.constant(list(numbers), "int64")
        parts = [self.op.Unsqueeze(n, [0]) if isinstance(n, ir.Value) else [int(n)] for n in numbers]
        return self.op.Concat(*parts, axis=0)

    def value(self, x: Any) -> ir.Value | None:
        """The input of a node for a value, a Keras variable, a number or an array."""
        if x is None or isinstance(x, ir.Value):
            return x
        if hasattr(x, "path") and hasattr(x, "value"):
            return self.weight(x)
        return self.constant(
            x if isinstance(x, (bool, int, float, list, tuple, np.ndarray)) else ops.convert_to_numpy(x)
        )

    def opened(self, function: Callable[[Any], Any], x: ir.Value) -> ir.Value:
        """The result of a function of keras.ops, such as an activation, for a value inside a lowering."""
        if KERAS_TENSOR not in x.meta:
            x.meta[KERAS_TENSOR] = keras.KerasTensor((None,) * self.rank, "float32")
        assert self.lower_call_of is not None
        with self.inside(getattr(function, "__name__", "function").strip("<>")):
            return self.lower_call_of(self, function, x)

    def floating(self, x: ir.Value) -> ir.Value:
        """A value as float32: Keras casts integers where a layer computes with floats.

        A value without a KerasTensor is an intermediate result of a lowering, and float already.
        """
        known = x.meta.get(KERAS_TENSOR)
        if known is None or keras.backend.is_float_dtype(known.dtype):
            return x
        return self.op.Cast(x, to=ir.DataType.FLOAT)

    def add_node(
        self, op_type: str, inputs: Sequence[Any], outputs: int, domain: str, attributes: dict[str, Any]
    ) -> Any:
        """Adds a node of the current layer to the open graph; returns one value, or a tuple of several."""
        values = [self.value(x) for x in inputs]
        while values and values[-1] is None:  # onnxruntime crashes on an empty name at the end
            values.pop()
        return self.add(
            op_type,
            values,
            [(None, None)] * outputs,
            graph=self._open_graph,
            name=f"{self.scope}/{op_type}" if self._scopes else op_type,
            domain=domain,
            **attributes,
        )

    def model(self) -> ir.Model:
        """The graph as a model."""
        version = contract.IR_VERSIONS[self.opset]
        metadata = {contract.BOUNDS: json.dumps(list(self.bounds))} if self.bounds else {}
        return ir.Model(self.graph, ir_version=version, producer_name="keras-tx", metadata_props=metadata)


class Nodes:
    """`op.MatMul(x, w)` adds the node MatMul; `outputs=` is the number of its results."""

    def __init__(self, context: GraphContext):
        self._context = context

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def add(*inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
            return self._context.add_node(op_type, inputs, outputs, domain, attributes)

        return add
