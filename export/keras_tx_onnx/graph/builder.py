"""The ONNX graph while it is being built: nodes named after layers, weights after Keras variables."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx import contract
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.cache_ports import Cache

MADE = (
    "tiers",
    "warnings",
    "bounds",
    "predicates",
    "_names",
    "_weights",
    "_constants",
)  # what grows with the graph
KERAS_TENSOR = "keras_tensor"  # where a value remembers what Keras knows of its shape and dtype


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


def shape_of(value: ir.Value) -> tuple[Any, ...]:
    """The shape that Keras knows: integers, and None for what is dynamic."""
    return value.meta[KERAS_TENSOR].shape


def onnx_dtype(dtype: str) -> ir.DataType:
    """How the file holds a Keras dtype: every float as float32, every integer as int64."""
    if dtype == "bool":
        return ir.DataType.BOOL
    return ir.DataType.FLOAT if keras.backend.is_float_dtype(dtype) else ir.DataType.INT64


def _kept(dtype: Any) -> ir.DataType:
    """How the file holds a variable: as any value of its dtype, and what was quantized as it is."""
    name = keras.backend.standardize_dtype(dtype)
    return ir.DataType.INT8 if name == "int8" else onnx_dtype(name)


class GraphContext:
    """What a lowering gets: `context.op.MatMul(x, w)` adds a node, `context.weight(variable)` a weight.

    Weights are kept as promises that are read when the file is written, so that no second copy of the
    model is in memory. Every floating-point weight is written as float32, whatever the policy.
    """

    def __init__(self, name: str, opset: int):
        self.opset = opset
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name)
        self.tiers: dict[str, str] = {}
        self.warnings: list[str] = []
        self.predicates: dict[str, Predicate] = {}  # by the name of an If node
        self.op = Nodes(self)
        self.bounds: dict[str, None] = {}  # for which sizes of its inputs the graph is right
        self.lower_call_of: Callable[..., Any] | None = None  # adds the nodes of a function of keras.ops
        # Adds the nodes of a traced body to the graph that is open, and returns its results.
        self.lower_body: Callable[[GraphContext, Any, list[Any]], list[Any]] | None = None
        self.cache: Cache | None = None  # where the graph decodes with a cache
        self.misled = False  # whether a layer turned out to give another shape than it promised
        self.rank = 0  # of the first result of the layer that is being lowered
        self._inner = self.graph
        self._scopes: list[str] = []
        self._names: set[str] = set()
        self._weights: dict[tuple, ir.Value] = {}
        self._constants: dict[tuple, ir.Value] = {}

    @property
    def scope(self) -> str:
        """The layer that is being lowered, as a path."""
        return "/".join(self._scopes)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Nodes that are added inside carry this name; a layer called twice gets a second name."""
        path = f"{self.scope}/{name}" if self._scopes else name
        self._scopes.append(self.unique(f"{path}/").removesuffix("/").rsplit("/", 1)[-1])
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def attempt(self, values: Sequence[ir.Value]) -> Iterator[None]:
        """What is added within, and noted of the values that are there, is taken back where it fails."""
        notes = [dict(value.meta) for value in values]
        kept = {name: copy.copy(vars(self)[name]) for name in MADE}
        graph, count, initializers = self._inner, len(self._inner), set(self.graph.initializers)
        try:
            yield
        except Exception:
            graph.remove(list(graph)[count:], safe=True)
            for name in set(self.graph.initializers) - initializers:
                del self.graph.initializers[name]
            vars(self).update(kept)
            for value, before in zip(values, notes, strict=True):
                value.meta.clear()
                value.meta.update(before)
            raise

    def unique(self, name: str) -> str:
        """`name`, or with a number where it is taken. A final slash stays final."""
        stem, end = (name[:-1], "/") if name.endswith("/") else (name, "")
        count = 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}{end}"
        self._names.add(name)
        return name

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> ir.Value:
        value = ir.val(self.unique(name), dtype=dtype, shape=shape)
        self.graph.inputs.append(value)
        return value

    @contextmanager
    def body(self, inputs: Sequence[ir.Value]) -> Iterator[ir.Graph]:
        """The graph inside a node such as Scan: nodes that are added within go there, weights do not."""
        name = self.unique(f"{self.scope}/body")
        outer, self._inner = self._inner, ir.Graph(inputs, [], nodes=[], name=name)
        try:
            yield self._inner
        finally:
            self._inner = outer

    def output(self, value: ir.Value, name: str) -> None:
        """Makes a value an output; one that is an input or an output already gets an Identity."""
        if value.producer() is None or value in self.graph.outputs:
            source, value = value, self.op.Identity(value)
            value.type, value.shape = source.type, source.shape
        value.name = self.unique(name)
        self.graph.outputs.append(value)

    def weight(
        self, variable: Any, permute: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None
    ) -> ir.Value:
        """A Keras variable under its path, its axes in another order and then another shape where asked.

        It is stored once.

        A kernel with LoRA is not a variable but a sum, and is named after its layer. A value of the graph is
        brought into the same form by nodes: a layer that was opened may compute its kernel.
        """
        if isinstance(variable, ir.Value):
            turned = self.op.Transpose(variable, perm=permute) if permute else variable
            return self.op.Reshape(turned, shape) if shape else turned
        order = permute or tuple(range(len(variable.shape)))
        shape = shape or tuple(variable.shape[axis] for axis in order)
        return self._stored(
            (id(variable), order, shape),
            getattr(variable, "path", f"{self.scope}/kernel"),
            shape,
            lambda: array_of(variable).transpose(order).reshape(shape),
            _kept(variable.dtype),
        )

    def packed(
        self,
        name: str,
        variables: Sequence[Any],
        axis: int,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> ir.Value:
        """Several variables side by side as one weight, each in another shape where asked; stored once."""
        parts = [tuple(variable.shape) for variable in variables] if shapes is None else list(shapes)
        shape = list(parts[0])
        shape[axis] = sum(part[axis] for part in parts)

        def read() -> np.ndarray:
            pairs = zip(variables, parts, strict=True)
            return np.concatenate([array_of(v).reshape(part) for v, part in pairs], axis=axis)

        return self._stored((*map(id, variables), axis, *parts), name, shape, read)

    def made_of(
        self, name: str, variables: Sequence[Any], shape: Sequence[int], make: Callable[..., np.ndarray]
    ) -> ir.Value:
        """A weight that `make` computes of variables when the file is written; stored once for each name."""

        def read() -> np.ndarray:
            return make(*(array_of(variable) for variable in variables))

        return self._stored((*map(id, variables), name), name, shape, read)

    def _stored(
        self,
        key: tuple,
        name: str,
        shape: Sequence[int],
        read: Callable[[], np.ndarray],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        if key not in self._weights:
            name = self.unique(name)
            tensor = ir.LazyTensor(
                lambda: ir.tensor(np.ascontiguousarray(read(), dtype=dtype.numpy()), name=name),
                dtype=dtype,
                shape=ir.Shape(shape),
                name=name,
            )
            self._weights[key] = self._initializer(name, tensor)
        return self._weights[key]

    def constant(self, value: Any, dtype: str | None = None) -> ir.Value:
        """A small constant; equal ones are stored once. Floats are float32, integers int64, unless said."""
        array = np.asarray(value, dtype)
        if dtype is None and array.dtype.name != "bool":
            array = array.astype("int64" if array.dtype.kind in "iu" else "float32")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            shown = "x".join(map(str, array.shape)) if array.size != 1 else str(array.item())
            name = self.unique(f"constant/{array.dtype.name}_{shown}")
            self._constants[key] = self._initializer(name, ir.tensor(array, name=name))
        return self._constants[key]

    def vector(self, numbers: Sequence[Any]) -> ir.Value:
        """Integers, some of which may be scalars of the graph, as one vector."""
        if not any(isinstance(n, ir.Value) for n in numbers):
            return self.constant(list(numbers), "int64")
        parts = [self.op.Unsqueeze(n, [0]) if isinstance(n, ir.Value) else [int(n)] for n in numbers]
        return self.op.Concat(*parts, axis=0)

    def _initializer(self, name: str, tensor: Any) -> ir.Value:
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def value(self, x: Any) -> ir.Value | None:
        """Anything that may stand as a node's input: a value, a Keras variable, a number or an array."""
        if x is None or isinstance(x, ir.Value):
            return x
        if hasattr(x, "path") and hasattr(x, "value"):
            return self.weight(x)
        return self.constant(
            x if isinstance(x, (bool, int, float, list, tuple, np.ndarray)) else ops.convert_to_numpy(x)
        )

    def opened(self, function: Callable[[Any], Any], x: ir.Value) -> ir.Value:
        """What a function of keras.ops, such as an activation, does to a step inside a lowering."""
        if KERAS_TENSOR not in x.meta:
            x.meta[KERAS_TENSOR] = keras.KerasTensor((None,) * self.rank, "float32")
        assert self.lower_call_of is not None
        with self.inside(getattr(function, "__name__", "function").strip("<>")):
            return self.lower_call_of(self, function, x)

    def floating(self, x: ir.Value) -> ir.Value:
        """A value as float32: Keras casts integers where a layer computes with floats.

        A value that Keras does not know is a step inside a lowering, and float already.
        """
        known = x.meta.get(KERAS_TENSOR)
        if known is None or keras.backend.is_float_dtype(known.dtype):
            return x
        return self.op.Cast(x, to=ir.DataType.FLOAT)

    def add_node(
        self, op_type: str, inputs: Sequence[Any], outputs: int, domain: str, attributes: dict[str, Any]
    ) -> Any:
        name = self.unique(f"{self.scope}/{op_type}" if self._scopes else op_type)
        names = [name] if outputs == 1 else [f"{name}.{index}" for index in range(outputs)]
        values = [self.value(x) for x in inputs]
        while values and values[-1] is None:  # onnxruntime crashes on an empty name at the end
            values.pop()
        node = ir.node(
            op_type,
            inputs=values,
            attributes=attributes,
            domain=domain,
            outputs=[ir.Value(name=n) for n in names],
            name=name,
        )
        self._inner.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def model(self) -> ir.Model:
        version = contract.IR_VERSIONS[self.opset]
        metadata = {contract.BOUNDS: json.dumps(list(self.bounds))} if self.bounds else {}
        return ir.Model(self.graph, ir_version=version, producer_name="keras-tx", metadata_props=metadata)


class Nodes:
    """`op.MatMul(x, w)` adds the node MatMul; `outputs=` says how many values it gives."""

    def __init__(self, context: GraphContext):
        self._context = context

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def add(*inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
            return self._context.add_node(op_type, inputs, outputs, domain, attributes)

        return add
