"""Which tensor of a checkpoint holds which variables of ours, and in what form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_tx.errors import ConfigError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """How variables of ours stand in a tensor of theirs; it is read in both directions.

    Each variable has its axes permuted, then gets the shape `reshape`, in which one size may be -1; several
    are joined along the axis `join`. Values of ours are theirs times `factors`, one for each variable.
    """

    permute: tuple[int, ...] | None = None
    reshape: Shape | None = None
    join: int = 0
    factors: tuple[float, ...] | None = None

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        parts = [self._part(value) for value in ours]
        if self.factors is not None:
            parts = [part / factor for part, factor in zip(parts, self.factors, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.join)

    def to_ours(self, theirs: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        sizes = [self._shape(shape)[self.join] for shape in shapes] if len(shapes) > 1 else []
        parts = np.split(theirs, np.cumsum(sizes)[:-1], axis=self.join) if sizes else [theirs]
        if self.factors is not None:
            parts = [np.float32(factor) * part for part, factor in zip(parts, self.factors, strict=True)]
        return [self._back(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    def their_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of their tensor, from the shapes of ours."""
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
    """A tensor that their class must have and that changes nothing, for what a model of ours lacks."""

    shape: Shape = ()

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros(self.shape, "float32")


@dataclasses.dataclass(frozen=True)
class Copy(Form):
    """An additional tensor that their class requires, with the values of another one."""

    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "float32"))

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        return self.values


@dataclasses.dataclass(frozen=True)
class Scaled(Form):
    """The first variable times the second, which scales its last axis; it is written only, not read."""

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        values, scale = ours
        return super().to_theirs([values.astype("float32") * scale.astype("float32")])

    def their_shape(self, shapes: Sequence[Shape]) -> Shape:
        return super().their_shape(shapes[:1])


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
        name: as the checkpoint's own library writes it, prefix included.
        paths: of the variables of ours that it holds.
        part: BODY must be there; any other part may be missing as a whole, and is then new.
        fit: makes a tensor of another shape fit (positions of another image size), or raises a ConfigError;
            it gets the tensor and the shape that is expected of it.
        always: whether `fit` is needed for the right shape, too (a grid of 2 x 8 for one of 4 x 4).
    """

    name: str
    paths: tuple[str, ...]
    form: Form = AS_IT_IS
    part: str = BODY
    fit: Callable[[np.ndarray, Shape], np.ndarray] | None = None
    always: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every tensor of a checkpoint for one model.

    Args:
        entries: which hold all the variables of the model, each once; a LayerScale that is written as part
            of a kernel and a bias is named by both.
        canonical: brings any spelling of a name (old keys, another prefix) to one; entries and checkpoint
            are compared after it.
        copies: canonical names that a checkpoint may have besides, by the canonical name of the tensor that
            they must be equal to (tied weights).
        computed: canonical names, or ends of them, of what is no weight (buffers): passed over.
        others: the beginnings of canonical names of parts that this model does not have (another head): said,
            but no error.
    """

    entries: tuple[Entry, ...]
    canonical: Callable[[str], str] = str
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    computed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def first_rows(table: np.ndarray, shape: Shape) -> np.ndarray:
    """A `fit` for learned positions of a text model: a model with fewer takes the first ones."""
    if table.shape[1:] != shape[1:] or len(table) < shape[0]:
        raise ConfigError(
            f"The checkpoint has {len(table)} positions of width {table.shape[-1]}, but the model needs "
            f"{shape[0]} of width {shape[-1]}. It can have fewer (max_length=), but not more."
        )
    return table[: shape[0]]


def linear(name: str, path: str, *, bias: bool = True, part: str = BODY) -> list[Entry]:
    """PyTorch's Linear as a Dense of ours."""
    return [
        Entry(f"{name}.weight", (f"{path}/kernel",), TRANSPOSED, part),
        *([Entry(f"{name}.bias", (f"{path}/bias",), part=part)] if bias else []),
    ]


def layer_norm(name: str, path: str, *, bias: bool = True, part: str = BODY) -> list[Entry]:
    return [
        Entry(f"{name}.weight", (f"{path}/gamma",), part=part),
        *([Entry(f"{name}.bias", (f"{path}/beta",), part=part)] if bias else []),
    ]
