"""Which function lowers which layer or operation, with an example and the nodes that it must become."""

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
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `function(context, operation, *args, **kwargs)`, which gives the output values.

    Args:
        target: the class of a layer (exactly this class, not its subclasses), or the name of an operation
            of keras.ops.
        example: gives an output for a Keras input; a test exports it.
        shape: shape of that input, without the batch.
        nodes: what the example must become, "MatMul Add".
        takes_sizes: whether an integer among the arguments or attributes may be a scalar of the graph,
            because a layer that was opened took it from the size of a tensor.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _register(Lowering(target, function, example, shape, Counter(nodes.split()), takes_sizes))
        return function

    return register


def opens(target: type, *, example: Callable[..., Any], shape: tuple[int | None, ...], nodes: str) -> None:
    """Marks a layer that is opened: what its `call` does to Keras tensors is lowered in turn."""
    _register(Lowering(target, None, example, shape, Counter(nodes.split())))


def _register(lowering: Lowering) -> None:
    if isinstance(lowering.target, str) and lowering.target not in operation_names():
        raise ValueError(
            f"keras.ops has no operation {lowering.target!r}. {nearest(lowering.target, operation_names())}"
        )
    if lowering.target in _LOWERINGS:
        raise ValueError(
            f"{lowering.name} is registered already; there is one lowering for each layer or operation."
        )
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
