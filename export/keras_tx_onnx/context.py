"""The ONNX graph while it is being built: nodes named after layers, weights after Keras variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx import contract

KERAS_TENSOR = "keras_tensor"  # where a value remembers what Keras knows of its shape and dtype


def shape_of(value: ir.Value) -> tuple[Any, ...]:
    """The shape that Keras knows: integers, and None for what is dynamic."""
    return value.meta[KERAS_TENSOR].shape


class Context:
    """What a lowering gets: `context.op.MatMul(x, w)` adds a node, `context.weight(variable)` a weight.

    Weights are kept as promises that are read when the file is written, so that no second copy of the
    model is in memory. Every floating-point weight is written as float32, whatever the policy.
    """

    def __init__(self, name: str, opset: int):
        self.opset = opset
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name)
        self.tiers: dict[str, str] = {}
        self.op = Nodes(self)
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

    def output(self, value: ir.Value, name: str) -> None:
        """Makes a value an output; one that is an input or an output already gets an Identity."""
        if value.producer() is None or value in self.graph.outputs:
            source, value = value, self.op.Identity(value)
            value.type, value.shape = source.type, source.shape
        value.name = self.unique(name)
        self.graph.outputs.append(value)

    def weight(self, variable: Any, permute: tuple[int, ...] | None = None) -> ir.Value:
        """A Keras variable under its path, its axes in another order where asked; stored once.

        A kernel with LoRA is not a variable but a sum, and is named after its layer.
        """
        order = permute or tuple(range(len(variable.shape)))
        return self._stored(
            (id(variable), order),
            getattr(variable, "path", f"{self.scope}/kernel"),
            [variable.shape[axis] for axis in order],
            lambda: ops.convert_to_numpy(variable).transpose(order),
        )

    def packed(self, name: str, variables: Sequence[Any], axis: int) -> ir.Value:
        """Several variables side by side as one weight; stored once."""
        shape = list(variables[0].shape)
        shape[axis] = sum(variable.shape[axis] for variable in variables)
        return self._stored(
            (*map(id, variables), axis),
            name,
            shape,
            lambda: np.concatenate([ops.convert_to_numpy(variable) for variable in variables], axis=axis),
        )

    def _stored(
        self, key: tuple, name: str, shape: Sequence[int], read: Callable[[], np.ndarray]
    ) -> ir.Value:
        if key not in self._weights:
            name = self.unique(name)
            tensor = ir.LazyTensor(
                lambda: ir.tensor(np.ascontiguousarray(read(), dtype="float32"), name=name),
                dtype=ir.DataType.FLOAT,
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
        self.graph.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def model(self) -> ir.Model:
        return ir.Model(self.graph, ir_version=contract.IR_VERSIONS[self.opset], producer_name="keras-tx")


class Nodes:
    """`op.MatMul(x, w)` adds the node MatMul; `outputs=` says how many values it gives."""

    def __init__(self, context: Context):
        self._context = context

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def add(*inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
            return self._context.add_node(op_type, inputs, outputs, domain, attributes)

        return add
