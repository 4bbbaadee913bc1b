"""The registry of lowerings: each with an example and the nodes that it must produce."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from keras_tx.errors import nearest
from keras_tx_onnx.reading.functional_graph import is_keras_operation, operation_names

Target = type | str  # a layer's class, or the name of an operation of keras.ops


@dataclasses.dataclass(frozen=True)
class Lowering:
    """`function` is None for a layer that is opened: its `call` is lowered instead."""

    target: Target
    function: Callable[..., Any] | None
    example: Callable[..., Any]
    shape: tuple[int | None, ...]
    nodes: Counter[str]
    takes_sizes: bool = False
    quantized_parts: bool = False

    @property
    def name(self) -> str:
        return self.target if isinstance(self.target, str) else self.target.__name__


_LOWERINGS: dict[Target, Lowering] = {}


def lowers(
    target: Target,
    *,
    example: Callable[..., Any],
    shape: tuple[int | None, ...],
    nodes: str,
    takes_sizes: bool = False,
    quantized_parts: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `function(context, operation, *args, **kwargs)`, which returns the output values.

    Args:
        target: the class of a layer (exactly this class, not its subclasses), or the name of an operation
            of keras.ops.
        example: returns an output for a Keras input; a test exports it.
        shape: shape of that input, without the batch.
        nodes: the nodes of the exported example, such as "MatMul Add".
        takes_sizes: whether an integer argument or attribute may be a scalar of the graph, which an opened
            layer computed from a size.
        quantized_parts: whether dense layers inside the layer may be quantized; otherwise it is opened then.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        counts = Counter(nodes.split())
        _register(Lowering(target, function, example, shape, counts, takes_sizes, quantized_parts))
        return function

    return register


def opens(target: type, *, example: Callable[..., Any], shape: tuple[int | None, ...], nodes: str) -> None:
    """Registers a layer that is opened: the operations of its `call` are lowered."""
    _register(Lowering(target, None, example, shape, Counter(nodes.split())))


def _register(lowering: Lowering) -> None:
    if isinstance(lowering.target, str) and lowering.target not in operation_names():
        raise ValueError(
            f"keras.ops has no operation {lowering.target!r}. {nearest(lowering.target, operation_names())}"
        )
    if lowering.target in _LOWERINGS:
        raise ValueError(f"{lowering.name} is registered already. Each layer or operation has one lowering.")
    _LOWERINGS[lowering.target] = lowering


def find(operation: Any) -> Lowering | None:
    """The lowering of an operation in a Keras graph."""
    target = type(operation).__name__ if is_keras_operation(operation) else type(operation)
    if isinstance(target, type) and target.__module__.startswith("keras_hub."):
        import keras_tx_onnx.lowerings.keras_hub  # noqa: F401  fills the registry; only here, as it loads keras-hub
    return _LOWERINGS.get(target)


def registered() -> tuple[Lowering, ...]:
    """Every lowering, in order of registration."""
    return tuple(_LOWERINGS.values())
