"""Functional models composed at random from keras.layers and keras.ops; a seed always makes the same model.

A step adds one or two calls behind a tensor. Steps that Keras itself refuses are skipped. Functions with
jumps, such as rounding and comparisons, are left out: a last bit would change their results by much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.drawing import redraw

Step = Callable[["Composer", Any], Any]

MOST_NUMBERS = 4000  # of a sample of a tensor, with dynamic sizes at UNKNOWN
UNKNOWN = 12
VOCABULARY = 17
ACTIVATIONS = (
    *("relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "softsign", "elu", "selu", "relu6", "mish"),
    *("hard_sigmoid", "hard_silu", "leaky_relu", "exponential", "log_sigmoid", "softmax", "linear", "celu"),
    *("glu", "tanh_shrink", "squareplus", "sparse_plus", "hard_tanh", "log_softmax"),
)
ELEMENTWISE = ("relu", "tanh", "sigmoid", "silu", "softplus", "negative", "abs", "sin", "cos", "erf")
REDUCTIONS = ("mean", "sum", "max", "min", "var", "std", "logsumexp")


class Composer:
    """Draws the parts of a model.

    Args:
        seed: of all draws.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shared: list[tuple[Any, tuple[Any, ...]]] = []  # layers and models, with the shape of an input
        self.tensors: list[Any] = []
        self.depth = 0  # of nested models

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.random.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.random.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def shape(self) -> tuple[Any, ...]:
        """Of a sample; None for dynamic sizes."""
        rank = self.choice((1, 2, 2, 2, 3, 3, 3, 4))
        if rank == 1:
            return (self.integer(2, 8),)
        sizes = [None if self.chance(0.4) else self.integer(5, 10) for _ in range(rank - 1)]
        if rank == 4:
            sizes = [None if size is None else min(size, 6) for size in sizes]
        return (*sizes, self.integer(1, 6))

    def model(self) -> keras.Model:
        inputs = [self.input(index) for index in range(self.choice((1, 1, 2, 3)))]
        outputs = self.outputs(inputs, self.integer(3, 12))
        if len(outputs) > 1 and self.chance(0.3):
            outputs = {f"out_{index}": x for index, x in enumerate(outputs)}
        elif len(outputs) == 1:
            (outputs,) = outputs
        return redraw(keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs))

    def input(self, index: int) -> Any:
        if self.chance(0.25):
            length = None if self.chance(0.6) else self.integer(5, 10)
            return keras.Input((length,), dtype="int32", name=f"ids_{index}")
        return keras.Input(self.shape(), name=f"x_{index}")

    def outputs(self, inputs: list[Any], steps: int) -> list[Any]:
        """Adds steps behind the inputs, and returns the tensors that no step reads."""
        outer, self.tensors = self.tensors, []
        used: set[int] = set()
        for x in inputs:
            if x.dtype == "int32":
                y = layers.Embedding(VOCABULARY, self.integer(2, 6), mask_zero=self.chance(0.4))(x)
                used.add(id(x))
                self.tensors += [x, y]
            else:
                self.tensors.append(x)
        for _ in range(steps):
            x = self.choice([x for x in self.tensors if x.dtype != "int32"][-4:])
            y = self.step(x)
            for tensor in [] if y is None else (y if isinstance(y, (list, tuple)) else [y]):
                used |= {id(z) for z in self.tensors if z is x}
                self.tensors.append(tensor)
        ends = [x for x in self.tensors if id(x) not in used and x.dtype != "int32"]
        computed = [x for x in ends if all(x is not y for y in inputs)]
        ends = computed or [layers.Identity()(self.tensors[-1])]
        self.tensors = outer
        return ends[-3:]

    def step(self, x: Any) -> Any:
        """The result of a random step, or None if Keras refuses it or it would be too large."""
        rank = len(x.shape)
        step = self.choice([*ANY_RANK, *BY_RANK.get(rank, ()) * 2])
        try:
            y = step(self, x)
        except (ValueError, TypeError, ZeroDivisionError, AttributeError, NotImplementedError, IndexError):
            return None  # Keras's own
        results = y if isinstance(y, (list, tuple)) else [y]
        if any(z is None or not 2 <= len(z.shape) <= 5 or numbers(z.shape) > MOST_NUMBERS for z in results):
            return None
        if any(0 in z.shape[1:] for z in results):
            return None
        return y

    def call(self, layer: Any, x: Any, *more: Any, **options: Any) -> Any:
        y = layer(x, *more, **options)
        if not more:
            self.shared.append((layer, tuple(x.shape)))
        return y


def numbers(shape: Sequence[Any]) -> int:
    return math.prod(UNKNOWN if size is None else size for size in shape[1:])


# -- steps for tensors of any rank


def dense(c: Composer, x: Any) -> Any:
    return c.call(layers.Dense(c.integer(1, 8), c.choice((None, *ACTIVATIONS[:13])), c.chance(0.8)), x)


def einsum_dense(c: Composer, x: Any) -> Any:
    letters = "abcde"[: len(x.shape) - 1]
    width = c.integer(1, 6)
    if c.chance(0.5):
        equation = f"{letters}x,xy->{letters}y"
        return c.call(layers.EinsumDense(equation, (*x.shape[1:-1], width), bias_axes="y"), x)
    return c.call(layers.EinsumDense("...x,xy->...y", (None,) * (len(x.shape) - 2) + (width,)), x)


def normalization(c: Composer, x: Any) -> Any:
    last = c.choice(([-1], [-1], [-2, -1])) if len(x.shape) > 3 else [-1]
    kind = c.choice(("layer", "layer", "rms", "batch", "unit", "group", "constant", "spectral"))
    if kind == "layer":
        options = {"center": c.chance(0.8), "scale": c.chance(0.8), "epsilon": c.choice((1e-3, 0.1))}
        return c.call(layers.LayerNormalization(axis=last if c.chance(0.8) else [1], **options), x)
    if kind == "rms":
        return c.call(layers.RMSNormalization(axis=-1, epsilon=0.01), x)
    if kind == "batch":
        axis = -1 if c.chance(0.8) else 1
        return c.call(layers.BatchNormalization(axis, center=c.chance(0.8), scale=c.chance(0.8)), x)
    if kind == "unit":
        return c.call(layers.UnitNormalization(axis=-1), x)
    if kind == "group":
        groups = c.choice([n for n in (1, 2, 3, -1) if n == -1 or x.shape[-1] % n == 0])
        return c.call(layers.GroupNormalization(groups, epsilon=0.01), x)
    if kind == "spectral":
        return c.call(layers.SpectralNormalization(layers.Dense(c.integer(1, 5))), x)
    width = x.shape[-1]
    draws = c.random.standard_normal(width), c.random.uniform(0.5, 2, width)
    return layers.Normalization(axis=-1, mean=draws[0], variance=draws[1], invert=c.chance(0.2))(x)


def activation(c: Composer, x: Any) -> Any:
    kind = c.integer(0, 8)
    if kind == 0:
        return c.call(layers.LeakyReLU(c.choice((0.1, 0.3))), x)
    if kind == 1:
        shared = list(range(1, len(x.shape) - 1)) if None in x.shape[1:] or c.chance(0.5) else None
        return c.call(layers.PReLU(shared_axes=shared), x)
    if kind == 2:
        options = {"max_value": c.choice((None, 1.5)), "negative_slope": c.choice((0.0, 0.2))}
        return c.call(layers.ReLU(threshold=c.choice((0.0, 0.5)), **options), x)
    if kind == 3:
        return c.call(layers.ELU(c.choice((1.0, 0.5))), x)
    if kind == 4:
        return c.call(layers.Softmax(axis=c.choice((-1, 1))), x)
    return c.call(layers.Activation(c.choice(ACTIVATIONS)), x)


def nothing_at_inference(c: Composer, x: Any) -> Any:
    kind = c.choice(("dropout", "noise", "gaussian", "alpha", "regularization", "identity", "rescaling"))
    if kind == "rescaling":
        return c.call(layers.Rescaling(c.choice((0.5, -2.0)), offset=c.choice((0.0, 0.25))), x)
    made = {
        "dropout": lambda: layers.Dropout(0.4),
        "noise": lambda: layers.GaussianNoise(0.5),
        "gaussian": lambda: layers.GaussianDropout(0.3),
        "alpha": lambda: layers.AlphaDropout(0.3),
        "regularization": lambda: layers.ActivityRegularization(0.1),
        "identity": lambda: layers.Identity(),
    }
    return c.call(made[kind](), x)


def elementwise(c: Composer, x: Any) -> Any:
    name = c.choice(ELEMENTWISE)
    y = getattr(ops, name)(x)
    if c.chance(0.3):
        y = c.choice((lambda y: y * 0.5, lambda y: y + 1.0, lambda y: 1.0 - y, lambda y: y / 3.0))(y)
    return y


def of_positive(c: Composer, x: Any) -> Any:
    positive = ops.add(ops.abs(x), 0.5)
    functions = (ops.log, ops.sqrt, ops.rsqrt, ops.reciprocal, ops.log1p, lambda y: ops.power(y, 1.5))
    return c.choice(functions)(positive)


def clip(c: Composer, x: Any) -> Any:
    return ops.clip(x, -0.8, c.choice((0.6, 1.2)))


def where(c: Composer, x: Any) -> Any:
    """Continuous where the condition changes."""
    return ops.where(ops.greater(x, 0.0), x * 2.0, x * c.choice((0.0, -1.0)))


def reduction(c: Composer, x: Any) -> Any:
    axes = list(range(1, len(x.shape)))
    axis = c.choice(axes)
    if len(axes) > 2 and c.chance(0.3):
        axis = tuple(sorted(c.random.choice(axes, 2, replace=False).tolist()))
    if c.chance(0.3):
        axis = tuple(a - len(x.shape) for a in axis) if isinstance(axis, tuple) else axis - len(x.shape)
    keepdims = c.chance(0.5) or len(axes) == 1
    return getattr(ops, c.choice(REDUCTIONS))(x, axis=axis, keepdims=keepdims)


def centered(c: Composer, x: Any) -> Any:
    """A reduction that broadcasts against its input."""
    axis = c.integer(1, len(x.shape) - 1)
    return x - getattr(ops, c.choice(("mean", "max", "min")))(x, axis=axis, keepdims=True)


def cumulative(c: Composer, x: Any) -> Any:
    return ops.cumsum(x, axis=c.integer(1, len(x.shape) - 1)) * 0.25


def permute(c: Composer, x: Any) -> Any:
    order = c.random.permutation(len(x.shape) - 1) + 1
    if c.chance(0.5):
        return c.call(layers.Permute(order.tolist()), x)
    return ops.transpose(x, (0, *order.tolist()))


def reshape(c: Composer, x: Any) -> Any:
    sizes = list(x.shape[1:])
    if None in sizes:
        if sizes.count(None) > 1:
            return None
        known = math.prod(size for size in sizes if size is not None)
        target = [-1, known] if c.chance(0.5) else [known, -1]
        return c.call(layers.Reshape(target), x)
    count = math.prod(sizes)
    first = c.choice([n for n in range(1, count + 1) if count % n == 0])
    target = [first, count // first]
    if c.chance(0.4):
        target[c.integer(0, 1)] = -1
    return c.call(layers.Reshape(target), x)


def flatten(c: Composer, x: Any) -> Any:
    return None if None in x.shape[1:] else c.call(layers.Flatten(), x)


def expand(c: Composer, x: Any) -> Any:
    return ops.expand_dims(x, c.integer(1, len(x.shape)))


def squeeze(c: Composer, x: Any) -> Any:
    ones = [axis for axis, size in enumerate(x.shape) if axis and size == 1]
    return ops.squeeze(x, c.choice(ones)) if ones else None


def flip_or_roll(c: Composer, x: Any) -> Any:
    axis = c.integer(1, len(x.shape) - 1)
    if c.chance(0.5):
        return ops.flip(x, axis)
    return ops.roll(x, c.choice((1, -2, 3)), axis=axis)


def piece(c: Composer, x: Any) -> Any:
    """A slice, with every kind of bound."""
    index: list[Any] = [slice(None)] * len(x.shape)
    axis = c.integer(1, len(x.shape) - 1)
    index[axis] = c.choice(
        (
            *(slice(1, None), slice(None, -1), slice(None, None, 2), slice(-3, None), slice(None, None, -1)),
            *(slice(1, 4), 0, -1),
        )
    )
    return x[tuple(index)]


def parts(c: Composer, x: Any) -> Any:
    axis = c.choice([axis for axis, size in enumerate(x.shape) if axis and size and size > 1] or [0])
    if axis == 0:
        return None
    size = x.shape[axis]
    count = c.choice([n for n in range(2, size + 1) if size % n == 0])
    pieces = ops.split(x, count, axis=axis)
    return pieces[0] + pieces[-1] * 0.5 if c.chance(0.5) else list(pieces[:2])


def pad(c: Composer, x: Any) -> Any:
    widths = [(0, 0), *((c.integer(0, 2), c.integer(0, 2)) for _ in x.shape[1:])]
    mode = c.choice(("constant", "constant", "reflect"))
    return ops.pad(x, widths, mode=mode)


def tile(c: Composer, x: Any) -> Any:
    if c.chance(0.5):
        return ops.repeat(x, 2, axis=c.integer(1, len(x.shape) - 1))
    return ops.tile(x, [1, *(c.integer(1, 2) for _ in x.shape[1:])])


def gather(c: Composer, x: Any) -> Any:
    axis = c.choice([axis for axis, size in enumerate(x.shape) if axis and size])
    return ops.take(x, c.random.integers(0, x.shape[axis], c.integer(1, 5)), axis=axis)


def with_sizes(c: Composer, x: Any) -> Any:
    """Arithmetic on the sizes of the tensor."""
    shape = ops.shape(x)
    if None in shape[1:]:  # outside of a layer, Keras knows no dynamic sizes
        return None
    if c.chance(0.5) and len(x.shape) > 2:
        return ops.reshape(x, (-1, shape[1], math.prod(shape[2:])))
    axis = c.integer(1, len(x.shape) - 1)
    places = ops.cast(ops.arange(shape[axis]), "float32")
    form = [1] * len(x.shape)
    form[axis] = shape[axis]
    return x + ops.reshape(places, form) * 0.1


def merge(c: Composer, x: Any) -> Any:
    """Two tensors of the same rank; Keras broadcasts sizes of 1."""
    others = [y for y in c.tensors if len(y.shape) == len(x.shape) and y.dtype != "int32"]
    same = [y for y in others if tuple(y.shape) == tuple(x.shape)]
    y = c.choice(same if same and c.chance(0.8) else others)
    kinds = ("Add", "Multiply", "Subtract", "Average", "Maximum", "Minimum", "Concatenate", "Concatenate")
    kind = c.choice(kinds)
    if kind == "Concatenate":
        return layers.Concatenate(axis=c.choice((-1, -1, 1)))([x, y])
    pair = [x, y] if kind == "Subtract" or c.chance(0.7) else [x, y, x]
    return getattr(layers, kind)()(pair)


def dot(c: Composer, x: Any) -> Any:
    others = [y for y in c.tensors if len(y.shape) == len(x.shape) and y.dtype != "int32"]
    return layers.Dot(axes=-1, normalize=c.chance(0.3))([x, c.choice(others)])


def product(c: Composer, x: Any) -> Any:
    if len(x.shape) < 3:
        return None
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    scores = ops.matmul(x, ops.transpose(x, order)) * 0.2
    return scores if c.chance(0.5) else ops.matmul(ops.softmax(scores), x)


def outer(c: Composer, x: Any) -> Any:
    if len(x.shape) != 3:
        return None
    return ops.einsum("btc,bsc->bts", x, x) * 0.2


def stack(c: Composer, x: Any) -> Any:
    same = [y for y in c.tensors if tuple(y.shape) == tuple(x.shape) and y.dtype != "int32"]
    return ops.stack([x, c.choice(same)], axis=c.integer(1, len(x.shape)))


def again(c: Composer, x: Any) -> Any:
    """A layer or a nested model that was called before."""
    fits = [layer for layer, shape in c.shared if _fits(shape, x.shape)]
    return c.choice(fits)(x) if fits else None


def _fits(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(a in (None, b) for a, b in zip(shape, other, strict=True))


def nested(c: Composer, x: Any) -> Any:
    """A model inside the model, perhaps called twice."""
    if c.depth > 1:
        return None
    c.depth += 1
    shared, c.shared = c.shared, []
    try:
        inner = keras.Input(tuple(x.shape[1:]))
        ends = c.outputs([inner], c.integer(1, 4))
        model = keras.Model(inner, ends[-1] if c.chance(0.7) else ends)
    finally:
        c.depth -= 1
        c.shared = shared
    y = model(x)
    if isinstance(y, (list, tuple)):
        return list(y)
    c.shared.append((model, tuple(x.shape)))
    return y + model(x * 0.5) if c.chance(0.3) else y


def sequential(c: Composer, x: Any) -> Any:
    return c.call(keras.Sequential([layers.Dense(c.integer(1, 6), "relu"), layers.Dense(c.integer(1, 4))]), x)


# -- steps for sequences, images and volumes


def convolution(c: Composer, x: Any) -> Any:
    dims = len(x.shape) - 2
    kind = c.choice(("Conv", "Conv", "Conv", "DepthwiseConv", "SeparableConv", "Transpose"))
    kernel = c.integer(1, 3) if c.chance(0.6) else tuple(c.integer(1, 3) for _ in range(dims))
    strides = c.choice((1, 1, 2)) if c.chance(0.8) else tuple(c.integer(1, 2) for _ in range(dims))
    padding = c.choice(("valid", "same", "same", *(("causal",) if dims == 1 and kind == "Conv" else ())))
    options: dict[str, Any] = {"strides": strides, "padding": padding, "use_bias": c.chance(0.8)}
    if strides == 1 and kind != "Transpose" and c.chance(0.3):
        options["dilation_rate"] = 2
    if kind == "Transpose":
        if padding == "same" and strides != 1 and c.chance(0.2):
            options["output_padding"] = 1
        return c.call(getattr(layers, f"Conv{dims}DTranspose")(c.integer(1, 4), kernel, **options), x)
    if kind != "Conv":
        if dims == 3:
            return None
        options["depth_multiplier"] = c.integer(1, 2)
        first = (kernel,) if kind == "DepthwiseConv" else (c.integer(1, 4), kernel)
        return c.call(getattr(layers, f"{kind}{dims}D")(*first, **options), x)
    channels = x.shape[-1]
    groups = c.choice([n for n in (1, 1, 2, 3) if channels % n == 0])
    activation = c.choice((None, "relu", "tanh"))
    layer = getattr(layers, f"Conv{dims}D")
    return c.call(layer(groups * c.integer(1, 3), kernel, groups=groups, activation=activation, **options), x)


def pooling(c: Composer, x: Any) -> Any:
    dims = len(x.shape) - 2
    kind = c.choice(("Max", "Average", "GlobalMax", "GlobalAverage", "AdaptiveAverage", "AdaptiveMax"))
    if kind.startswith("Global"):
        layer = getattr(layers, f"{kind}Pooling{dims}D")
        return c.call(layer(keepdims=c.chance(0.5)), x)
    if kind.startswith("Adaptive"):
        # TensorFlow ends the process for some volumes and for axes that are too short; the exporter refuses
        # dynamic sizes.
        if dims == 3 or (None in x.shape[1:] and c.chance(0.9)):
            return None
        size = min([c.integer(1, 3), *(n for n in x.shape[1:-1] if n is not None)])
        return c.call(getattr(layers, f"{kind}Pooling{dims}D")(size), x)
    layer = getattr(layers, f"{kind}Pooling{dims}D")
    strides = c.choice((None, 1, 2))
    return c.call(layer(c.integer(2, 3), strides=strides, padding=c.choice(("valid", "same"))), x)


def resizing(c: Composer, x: Any) -> Any:
    dims = len(x.shape) - 2
    kind = c.choice(("Cropping", "ZeroPadding", "UpSampling"))
    if kind == "UpSampling":
        interpolation = c.choice(("nearest", "bilinear")) if dims == 2 else None
        options = {"interpolation": interpolation} if interpolation else {}
        return c.call(getattr(layers, f"UpSampling{dims}D")(2, **options), x)
    amounts = tuple((c.integer(0, 2), c.integer(0, 1)) for _ in range(dims))
    return c.call(getattr(layers, f"{kind}{dims}D")(amounts if dims > 1 else amounts[0]), x)


def recurrent(c: Composer, x: Any) -> Any:
    kind = c.choice(("SimpleRNN", "GRU", "LSTM"))
    options: dict[str, Any] = {"return_sequences": c.chance(0.6), "go_backwards": c.chance(0.2)}
    if kind == "GRU":
        options["reset_after"] = c.chance(0.6)
    options["activation"] = c.choice(("tanh", "tanh", "relu", "sigmoid"))
    layer = getattr(layers, kind)(c.integer(1, 4), use_bias=c.chance(0.8), **options)
    wrapping = c.integer(0, 5)
    if wrapping == 0:
        options["go_backwards"] = False
        layer = getattr(layers, kind)(c.integer(1, 4), **options)
        layer = layers.Bidirectional(layer, merge_mode=c.choice(("concat", "sum", "mul", "ave")))
    elif wrapping == 1:
        cells = [layers.GRUCell(c.integer(1, 3)), layers.LSTMCell(c.integer(1, 3))]
        layer = layers.RNN(cells, return_sequences=c.chance(0.5))
    return c.call(layer, x)


def attention(c: Composer, x: Any) -> Any:
    others = [y for y in c.tensors if len(y.shape) == 3 and y.dtype != "int32"]
    y = x if c.chance(0.6) else c.choice(others)
    kind = c.choice(("multi", "multi", "grouped", "dot", "additive"))
    if kind == "multi":
        layer = layers.MultiHeadAttention(
            c.integer(1, 2),
            c.integer(1, 4),
            value_dim=c.choice((None, 3)),
            use_bias=c.chance(0.8),
            output_shape=c.choice((None, 5)),
        )
        return layer(x, y, use_causal_mask=c.chance(0.4))
    if kind == "grouped":
        return layers.GroupQueryAttention(c.integer(1, 4), 4, 2)(x, y, use_causal_mask=c.chance(0.4))
    if x.shape[-1] != y.shape[-1]:
        return None
    if kind == "dot":
        return layers.Attention(use_scale=c.chance(0.5))([x, y], use_causal_mask=c.chance(0.3))
    return layers.AdditiveAttention(use_scale=c.chance(0.5))([x, y])


def over_time(c: Composer, x: Any) -> Any:
    if len(x.shape) == 3:
        return c.call(layers.TimeDistributed(layers.Dense(c.integer(1, 5), "tanh")), x)
    inner = layers.Conv2D(c.integer(1, 3), 2, padding="same") if len(x.shape) == 5 else layers.Dense(3)
    return c.call(layers.TimeDistributed(inner), x)


def masking(c: Composer, x: Any) -> Any:
    return c.call(layers.Masking(0.0), x)


def spatial_dropout(c: Composer, x: Any) -> Any:
    return c.call(getattr(layers, f"SpatialDropout{len(x.shape) - 2}D")(0.3), x)


def resized_images(c: Composer, x: Any) -> Any:
    if None in x.shape[1:] and c.chance(0.9):  # which the exporter refuses
        return None
    if c.chance(0.5):
        return c.call(layers.CenterCrop(c.integer(2, 6), c.integer(2, 6)), x)
    interpolation = c.choice(("nearest", "bilinear"))
    return c.call(layers.Resizing(c.integer(2, 8), c.integer(2, 8), interpolation=interpolation), x)


def repeat_vector(c: Composer, x: Any) -> Any:
    return c.call(layers.RepeatVector(c.integer(1, 4)), x)


ANY_RANK: tuple[Step, ...] = (
    *(dense, dense, einsum_dense, normalization, normalization, activation, activation),
    *(nothing_at_inference, elementwise, of_positive, clip, where, reduction, centered, cumulative),
    *(permute, reshape, flatten, expand, squeeze, flip_or_roll, piece, parts, pad, tile, gather, with_sizes),
    *(merge, merge, merge, dot, product, outer, stack, again, again, nested, sequential),
)
_SPATIAL: tuple[Step, ...] = (convolution, convolution, pooling, resizing, spatial_dropout)
BY_RANK: dict[int, tuple[Step, ...]] = {
    2: (repeat_vector,),
    3: (*_SPATIAL, recurrent, recurrent, attention, attention, over_time, masking),
    4: (*_SPATIAL, over_time, resized_images),
    5: (*_SPATIAL, over_time),
}


def random_model(seed: int) -> keras.Model:
    """A model of 3 to 12 steps, with redrawn weights."""
    keras.utils.clear_session()
    return Composer(seed).model()
