"""Functions of keras-hub that a trace replaces by operations for every size.

They loop over tokens in Python, or call one backend. Each replacement computes the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

MODELS = "keras_hub.src.models"


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A function of a module, or a method of a class in it, and what makes its replacement from it."""

    module: str
    path: str  # "function" or "Class.method"
    make: Callable[[Any], Callable[..., Any]]


def _replace_with(function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda usual: function


# -- recurrences --------------------------------------------------------------------------------------------


def _move_tokens_first(tensors: Sequence[Any]) -> list[Any]:
    """(batch, tokens, ...) -> (tokens, batch, ...), in float32."""
    return [ops.transpose(ops.cast(x, "float32"), (1, 0, *range(2, len(x.shape)))) for x in tensors]


def _move_batch_first(x: Any, dtype: Any) -> Any:
    return ops.cast(ops.transpose(x, (1, 0, *range(2, len(x.shape)))), dtype)


def _row(x: Any) -> Any:
    return ops.expand_dims(x, -2)


def _column(x: Any) -> Any:
    return ops.expand_dims(x, -1)


def gated_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    chunk_size: int = 64,
    initial_state: Any = None,
    output_final_state: bool = False,
    padding_mask: Any = None,
) -> tuple[Any, Any]:
    """The gated delta rule of Qwen 3.5, which keras-hub computes in chunks, token by token.

    Args:
        query, key, value: Tensors of shape (batch, tokens, heads, size).
        g, beta: The logarithm of the decay and the strength of writing, of shape (batch, tokens, heads).
    """

    def normalized(x: Any) -> Any:
        return x * ops.rsqrt(ops.sum(x * x, axis=-1, keepdims=True) + 1e-6)

    def step(state: Any, token: Any) -> tuple[Any, Any]:
        q, k, v, decay, strength = token  # (batch, heads, size) and (batch, heads)
        state = state * _column(_column(ops.exp(decay)))
        known = ops.squeeze(ops.matmul(_row(k), state), -2)
        state = state + _column(k) * _row((v - known) * _column(strength))
        return state, ops.squeeze(ops.matmul(_row(q), state), -2)

    batch, _, heads, size = ops.shape(key)
    scale = 1.0 / size**0.5
    state = initial_state
    if state is None:
        state = ops.zeros((batch, heads, size, ops.shape(value)[-1]), "float32")
    tokens = _move_tokens_first([normalized(query) * scale, normalized(key), value, g, beta])
    state, outputs = ops.scan(step, ops.cast(state, "float32"), tokens)
    return _move_batch_first(outputs, query.dtype), state if output_final_state else None


def generalized_delta_rule(
    r: Any,
    w: Any,
    k: Any,
    v: Any,
    a: Any,
    b: Any,
    initial_state: Any = None,
    output_final_state: bool = True,
    head_first: bool = False,
) -> Any:
    """The generalized delta rule of RWKV-7, of tensors (batch, tokens, heads, size)."""

    def step(state: Any, token: Any) -> tuple[Any, Any]:
        r, decay, k, v, a, b = token  # (batch, heads, size)
        removed = ops.matmul(ops.matmul(state, _column(a)), _row(b))
        state = state * _row(decay) + removed + ops.matmul(_column(v), _row(k))
        return state, ops.squeeze(ops.matmul(state, _column(r)), -1)

    tensors = [r, w, k, v, a, b]
    if head_first:
        tensors = [ops.transpose(x, (0, 2, 1, 3)) for x in tensors]
    batch, _, heads, size = ops.shape(tensors[0])
    shape = (batch, heads, size, size)
    tokens = _move_tokens_first(tensors)
    tokens[1] = ops.exp(-ops.exp(tokens[1]))
    state = ops.zeros(shape, "float32") if initial_state is None else ops.broadcast_to(initial_state, shape)
    state, outputs = ops.scan(step, ops.cast(state, "float32"), tokens)
    outputs = _move_batch_first(outputs, r.dtype)
    return (outputs, state) if output_final_state else outputs


def _with_generalized_delta_rule(usual: Any) -> Callable[..., Any]:
    """`call` of a layer that keeps its recurrence in attributes."""

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        copied = object.__new__(type(layer))
        vars(copied).update(vars(layer))
        for name in ("RWKV7_OP", "RWKV7_OP_RNN", "RWKV7_OP_INFERENCE"):
            vars(copied)[name] = generalized_delta_rule
        return usual(copied, *args, **kwargs)

    return call


# -- images -------------------------------------------------------------------------------------------------


class AlignedResize(keras.Operation):
    """Bilinear resizing that maps the corner pixels to the corner pixels."""

    def __init__(self, size: Sequence[int], data_format: str):
        super().__init__()
        self.size, self.data_format = tuple(size), data_format

    def call(self, images: Any) -> Any:
        raise NotImplementedError("It is only traced.")

    def compute_output_spec(self, images: Any) -> keras.KerasTensor:
        batch, *rest = images.shape
        last = self.data_format == "channels_last"
        shape = (batch, *self.size, rest[-1]) if last else (batch, rest[0], *self.size)
        return keras.KerasTensor(shape, images.dtype)


def _interpolate(x: Any, size: Sequence[int], data_format: str | None = None) -> Any:
    return AlignedResize(size, data_format or keras.config.image_data_format()).symbolic_call(x)


def _bilinear_interpolate(
    feature_maps: Any,
    roi_batch_ind: Any,
    y: Any,
    x: Any,
    ymask: Any,
    xmask: Any,
    height: int,
    width: int,
    hidden_dim: int,
) -> Any:
    """The pixels of boxes at fractional places: (boxes, rows, columns, samples, samples, channels).

    Args:
        feature_maps: Images of shape (batch, height, width, channels).
        roi_batch_ind: The image of each box.
        y, x: The places of shape (boxes, rows, samples) and (boxes, columns, samples).
        ymask, xmask: Which samples a box has, of shape (boxes, samples).
    """

    def find_neighbours(place: Any, mask: Any, count: int) -> tuple[Any, Any, Any]:
        """The pixels before and after a place, and the weight of the second."""
        place = ops.maximum(place, 0.0)
        before = ops.minimum(ops.cast(place, "int32"), count - 1)
        after = ops.minimum(before + 1, count - 1)
        weight = place - ops.cast(before, place.dtype)
        has = ops.expand_dims(mask, 1)
        return ops.where(has, before, 0), ops.where(has, after, 0), weight

    def rows(t: Any) -> Any:
        return t[:, :, None, :, None]

    def columns(t: Any) -> Any:
        return t[:, None, :, None, :]

    pixels = ops.reshape(feature_maps, (-1, hidden_dim))
    first = ops.cast(roi_batch_ind, "int32")[:, None, None, None, None] * (height * width)
    (top, bottom, down), (left, right, along) = (
        find_neighbours(y, ymask, height),
        find_neighbours(x, xmask, width),
    )
    total = None
    for row, vertical in ((top, 1.0 - down), (bottom, down)):
        for column, horizontal in ((left, 1.0 - along), (right, along)):
            values = ops.take(pixels, first + rows(row) * width + columns(column), axis=0)
            weighted = values * ops.expand_dims(rows(vertical) * columns(horizontal), -1)
            total = weighted if total is None else total + weighted
    return total


REPLACED = (
    Replaced(
        f"{MODELS}.qwen3_5.qwen3_5_gated_delta_net",
        "_chunk_gated_delta_rule",
        _replace_with(gated_delta_rule),
    ),
    Replaced(f"{MODELS}.rwkv7.rwkv7_layer", "RWKV7TimeMix.call", _with_generalized_delta_rule),
    Replaced(f"{MODELS}.depth_anything.depth_anything_layers", "interpolate", _replace_with(_interpolate)),
    Replaced(f"{MODELS}.sam3.roi_align", "_bilinear_interpolate", _replace_with(_bilinear_interpolate)),
)
