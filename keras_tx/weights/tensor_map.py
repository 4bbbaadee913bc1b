"""Maps of the tensors of a checkpoint to the variables of a model, with the conversion of their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_tx.errors import ConfigError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """The conversion between variables of a model and a tensor of a checkpoint.

    Args:
        permute: permutation of the axes of each variable.
        reshape: shape of each variable after the permutation; one size may be -1.
        join: axis along which several variables are concatenated.
        factors: the values of each variable are those of the tensor times its factor.
    """

    permute: tuple[int, ...] | None = None
    reshape: Shape | None = None
    join: int = 0
    factors: tuple[float, ...] | None = None

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        parts = [self._part(value) for value in variables]
        if self.factors is not None:
            parts = [part / factor for part, factor in zip(parts, self.factors, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.join)

    def to_variables(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        sizes = [self._shape(shape)[self.join] for shape in shapes] if len(shapes) > 1 else []
        parts = np.split(tensor, np.cumsum(sizes)[:-1], axis=self.join) if sizes else [tensor]
        if self.factors is not None:
            parts = [np.float32(factor) * part for part, factor in zip(parts, self.factors, strict=True)]
        return [self._back(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Returns the shape of the tensor for variables of these shapes."""
        first, *others = (self._shape(shape) for shape in shapes)
        if not others:
            return first
        total = first[self.join] + sum(shape[self.join] for shape in others)
        return (*first[: self.join], total, *first[self.join + 1 :])

    def _part(self, value: np.ndarray) -> np.ndarray:
        value = value if self.permute is None else value.transpose(self.permute)
        return value if self.reshape is None else value.reshape(self.reshape)

    def _shape(self, shape: Shape) -> Shape:
        permuted = shape if self.permute is None else tuple(shape[axis] for axis in self.permute)
        if self.reshape is None:
            return permuted
        known = math.prod(size for size in self.reshape if size != -1)
        return tuple(math.prod(shape) // known if size == -1 else size for size in self.reshape)

    def _back(self, part: np.ndarray, shape: Shape) -> np.ndarray:
        if self.permute is None:
            return part.reshape(shape)
        permuted = tuple(shape[axis] for axis in self.permute)
        return part.reshape(permuted).transpose(np.argsort(self.permute))


@dataclasses.dataclass(frozen=True)
class Zeros(Form):
    """A tensor of zeros, which the format requires for a variable that the model does not have."""

    shape: Shape = ()

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros(self.shape, "float32")


@dataclasses.dataclass(frozen=True)
class Copy(Form):
    """A tensor that the format requires, with the values of another tensor."""

    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "float32"))

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        return self.values


@dataclasses.dataclass(frozen=True)
class Scaled(Form):
    """The first variable with its last axis scaled by the second; only written, never read."""

    def to_tensor(self, variables: Sequence[np.ndarray]) -> np.ndarray:
        values, scale = variables
        return super().to_tensor([values.astype("float32") * scale.astype("float32")])

    def tensor_shape(self, shapes: Sequence[Shape]) -> Shape:
        return super().tensor_shape(shapes[:1])


AS_IT_IS = Form()
TRANSPOSED = Form(permute=(1, 0))  # PyTorch's Linear has (out, in), Keras's Dense (in, out)
CONVOLUTION = Form(permute=(3, 2, 0, 1))  # PyTorch has (out, in, height, width)

BODY = ""
POOLER = "pooler"
HEAD = "head"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint.

    Args:
        name: name of the tensor as written by the library of the checkpoint, with its prefix.
        paths: paths of the variables that the tensor contains.
        form: conversion of the values.
        part: part of the model. BODY is required; every other part may be missing as a whole, and keeps its
            initial values.
        fit: function of the tensor and the expected shape that resizes the tensor, such as positions of
            another image size, or raises a ConfigError.
        always: whether `fit` also runs if the shape is the expected one (a grid of 2 x 8 for one of 4 x 4).
    """

    name: str
    paths: tuple[str, ...]
    form: Form = AS_IT_IS
    part: str = BODY
    fit: Callable[[np.ndarray, Shape], np.ndarray] | None = None
    always: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """All tensors of a checkpoint for one model.

    Args:
        entries: the tensors. Each variable of the model belongs to one entry, except a LayerScale that is
            merged into a kernel and a bias.
        canonical: function that maps all spellings of a name (old keys, other prefixes) to one. Entries and
            tensors are compared by their canonical names.
        copies: canonical names of optional copies (tied weights), with the canonical names of the tensors
            that they must equal.
        computed: canonical names, or their suffixes, of tensors that are not weights (buffers); ignored.
        others: prefixes of canonical names of parts that the model does not have, such as another head;
            reported in a warning.
        new: parts that keep their initial values even if the checkpoint has their tensors.
    """

    entries: tuple[Entry, ...]
    canonical: Callable[[str], str] = str
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    computed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


def first_rows(table: np.ndarray, shape: Shape) -> np.ndarray:
    """Returns the first rows of a table of learned positions; a `fit` for text models with fewer positions.

    Raises:
        ConfigError: the table has fewer rows than the model, or another width.
    """
    if table.shape[1:] != shape[1:] or len(table) < shape[0]:
        raise ConfigError(
            f"The checkpoint has {len(table)} positions of width {table.shape[-1]}, but the model needs "
            f"{shape[0]} of width {shape[-1]}. Pass max_length={len(table)} or less, and the same width."
        )
    return table[: shape[0]]


def linear(name: str, path: str, *, bias: bool = True, part: str = BODY) -> list[Entry]:
    """Returns the entries of PyTorch's Linear as a Dense layer."""
    return [
        Entry(f"{name}.weight", (f"{path}/kernel",), TRANSPOSED, part),
        *([Entry(f"{name}.bias", (f"{path}/bias",), part=part)] if bias else []),
    ]


def layer_norm(name: str, path: str, *, bias: bool = True, part: str = BODY) -> list[Entry]:
    """Returns the entries of PyTorch's LayerNorm as a LayerNormalization layer."""
    return [
        Entry(f"{name}.weight", (f"{path}/gamma",), part=part),
        *([Entry(f"{name}.bias", (f"{path}/beta",), part=part)] if bias else []),
    ]


def dense_layer(name: str, path: str, *, bias: bool = True, part: str = BODY) -> list[Entry]:
    """Returns the entries of a Dense layer of keras-hub."""
    return [Entry(f"{name}/{x}", (f"{path}/{x}",), part=part) for x in ("kernel", "bias")[: 1 + bias]]


def norm_layer(name: str, path: str, *, rms: bool = False, part: str = BODY) -> list[Entry]:
    """Returns the entries of a LayerNormalization or RMSNormalization layer of keras-hub."""
    weights = ("scale",) if rms else ("gamma", "beta")
    return [Entry(f"{name}/{x}", (f"{path}/{x}",), part=part) for x in weights]


def attention_layer(
    name: str, path: str, num_heads: int, size: int, *, kv_heads: int | None = None, bias: bool = True
) -> list[Entry]:
    """Returns the entries of an attention layer of keras-hub, whose kernels have an axis of heads."""
    entries = []
    for part in ("query", "key", "value", "output"):
        count = num_heads if part in ("query", "output") else kv_heads or num_heads
        kernel, vector = Form(reshape=(-1, count, size)), Form(reshape=(count, size))
        if part == "output":
            kernel, vector = Form(reshape=(count, size, -1)), AS_IT_IS
        source = f"{name}/attention_output" if part == "output" else f"{name}/{part}"
        entries.append(Entry(f"{source}/kernel", (f"{path}/{part}/kernel",), kernel))
        if bias:
            entries.append(Entry(f"{source}/bias", (f"{path}/{part}/bias",), vector))
    return entries
