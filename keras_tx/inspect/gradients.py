"""Gradients of scores with respect to inputs and inner tensors, on TensorFlow, JAX and PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, nearest
from keras_tx.inspect.graph_evaluation import as_float32

# A layer and the name of its method whose results are recorded or shifted.
Point = tuple[Any, str]


def gradients(
    function: Callable[..., Any], arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Computes scores and their gradients with respect to the arguments.

    The score of a row must depend only on the same row of the arguments, as in every model in inference mode:
    the gradient of the sum of all scores then contains that of each score.

    Args:
        function: computes scores (batch,) of tensors with Keras models and `keras.ops`.
        arrays: arguments of `function`, float arrays.

    Returns:
        The scores (batch,), and a list with the gradient for each array, in its shape.

    Raises:
        ConfigError: if no argument affects the scores, or Keras runs on an unsupported backend.

    Example:

    >>> from keras import ops
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
    >>> scores, (gradient,) = gradients(lambda x: ops.sum(x * x, axis=1), [x])
    >>> scores, gradient
    (array([ 5., 25.], dtype=float32), array([[2., 4.],
           [6., 8.]], dtype=float32))
    """
    import keras

    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise ConfigError(
            f"Gradients are not supported on the backend {backend!r}. Set KERAS_BACKEND to one of "
            f"{', '.join(BACKENDS)}."
        )
    scores, computed = BACKENDS[backend](function, [keras.ops.convert_to_tensor(x) for x in arrays])
    if all(gradient is None for gradient in computed):
        raise ConfigError(
            "The scores do not depend on the tensors in a differentiable way. Choose a layer between the "
            "input and the output."
        )
    return as_float32(scores), [
        np.zeros_like(x) if gradient is None else as_float32(gradient)
        for x, gradient in zip(arrays, computed, strict=True)
    ]


def _on_tensorflow(function: Callable[..., Any], tensors: list[Any]) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        scores = function(*tensors)
    return scores, tape.gradient(scores, tensors)  # of the sum of the scores


def _on_jax(function: Callable[..., Any], tensors: list[Any]) -> tuple[Any, list[Any]]:
    import jax

    def total(tensors: list[Any]) -> tuple[Any, Any]:
        scores = function(*tensors)
        return scores.sum(), scores

    (_, scores), computed = jax.value_and_grad(total, has_aux=True)(tensors)
    return scores, computed


def _on_torch(function: Callable[..., Any], tensors: list[Any]) -> tuple[Any, list[Any]]:
    import torch

    with torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        scores = function(*leaves)
        if not scores.requires_grad:
            return scores, [None] * len(leaves)
        return scores.detach(), list(torch.autograd.grad(scores.sum(), leaves, allow_unused=True))


BACKENDS: dict[str, Callable[..., tuple[Any, list[Any]]]] = {
    "tensorflow": _on_tensorflow,
    "jax": _on_jax,
    "torch": _on_torch,
}


@dataclasses.dataclass(frozen=True)
class InnerTensor:
    """The result of a call of a layer's method, and the gradient of the scores with respect to it."""

    point: Point
    value: np.ndarray
    gradient: np.ndarray


def inner_gradients(
    function: Callable[[], Any], points: Sequence[Point]
) -> tuple[np.ndarray, list[InnerTensor]]:
    """Computes scores and their gradients with respect to tensors inside of layers.

    The layers run twice: once to record the tensors, and once with a zero added to each, of which the
    gradient is computed. This works on every backend and leaves the layers unchanged.

    Args:
        function: computes scores (batch,) with the layers.
        points: layers with the name of the method whose results are the inner tensors. For a method that
            returns a tuple, the inner tensor is the first element.

    Returns:
        The scores (batch,), and the inner tensors in the order of the calls.

    Raises:
        ConfigError: if `function` does not call the methods, or no tensor affects the scores.
    """
    from keras import ops

    recorded = record_calls(function, points)

    def shifted(*shifts: Any) -> Any:
        remaining = iter(shifts)
        with intercept_calls(points, lambda _, x: ops.add(x, ops.cast(next(remaining), x.dtype))):
            return function()

    scores, computed = gradients(shifted, [np.zeros_like(x) for _, x in recorded])
    return scores, [
        InnerTensor(point, value, gradient)
        for (point, value), gradient in zip(recorded, computed, strict=True)
    ]


def record_calls(function: Callable[[], Any], points: Sequence[Point]) -> list[tuple[Point, np.ndarray]]:
    """Returns the results of layers' methods while a function runs, in the order of the calls.

    Raises:
        ConfigError: if the function does not call the methods.
    """
    recorded: list[tuple[Point, np.ndarray]] = []

    def record(point: Point, x: Any) -> Any:
        recorded.append((point, as_float32(x)))
        return x

    with intercept_calls(points, record):
        function()
    if not recorded:
        raise ConfigError(
            f"The model does not call the layers {sorted({layer.name for layer, _ in points})}. Choose "
            "layers that compute the output."
        )
    return recorded


@contextlib.contextmanager
def intercept_calls(points: Sequence[Point], replace: Callable[[Point, Any], Any]) -> Iterator[None]:
    """Replaces the results of layers' methods while the context is open.

    Args:
        points: layers with the name of a method. Calls of an embedding with `reverse=True`, which compute
            scores of tokens, are not affected.
        replace: function of a point and the result. For a method that returns a tuple, it replaces the first
            element.
    """
    from keras_tx.layers.dot_product_attention import writing_out_weights

    attributes = [vars(layer) for layer, _ in points]  # not setattr: Keras would track the value
    before = list(map(dict, attributes))
    for point, attribute in zip(points, attributes, strict=True):
        attribute[point[1]] = _replacing(point, replace)
    try:
        with writing_out_weights():
            yield
    finally:
        for (_, name), attribute, old in zip(points, attributes, before, strict=True):
            attribute.pop(name)
            if name in old:  # of a context around this one
                attribute[name] = old[name]


def _replacing(point: Point, replace: Callable[[Point, Any], Any]) -> Callable[..., Any]:
    method = getattr(*point)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        if kwargs.get("reverse"):
            return result
        if isinstance(result, tuple):
            return (replace(point, result[0]), *result[1:])
        return replace(point, result)

    return call


def flatten_layers(layer: Any) -> list[Any]:
    """Returns the layer and all layers inside of it, each once."""
    return list(layer._flatten_layers())


def find_layer(model: Any, name: str) -> Any:
    """Returns a layer of a model by its name.

    Args:
        model: a Keras model.
        name: the name of a layer at any depth, such as "conv5_block3_out". If several layers have this
            name, add that of a layer that contains it: "block_3/attention".

    Returns:
        The layer.

    Raises:
        ConfigError: if no layer or several layers have this name.
    """
    layers = [model]
    for part in name.split("/"):
        below = {id(x): x for layer in layers for x in flatten_layers(layer) if x is not layer}
        layers = [x for x in below.values() if x.name == part]
    layers = [layer for layer in layers if layer in model.layers] or layers
    if len(layers) == 1:
        return layers[0]
    if not layers:
        known = [layer.name for layer in model.layers]
        raise ConfigError(f"Model {model.name!r} has no layer {name!r}. {nearest(name, known)}")
    raise ConfigError(
        f"Model {model.name!r} has {len(layers)} layers named {name!r}. Add the name of a layer around it, "
        f"as in '{model.layers[-1].name}/{name}'."
    )
