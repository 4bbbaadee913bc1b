"""Which dynamic sizes of the values in a graph are one and the same.

Keras says only that a size is not known. What is known beside it: the inputs share their batch, and a layer
that is told the sizes of its inputs tells those of its outputs. So two tensors that a layer takes can be told
to be equally long, or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import onnx_ir as ir
from keras import tree

from keras_tx_onnx.context import KERAS_TENSOR, Context
from keras_tx_onnx.sized import as_usual

SIZES = "sizes"
TOKENS = ("token_ids", "input_ids")  # keras-hub's word and Hugging Face's
ABOUT_TOKENS = (
    "padding_mask",
    "attention_mask",
    "response_mask",
    "vision_mask",
    "segment_ids",
    "token_type_ids",
    "position_ids",
)
# No layer has so many units: a number near a sample that comes out is one that went in, and what was added.
# None is near a half or a third of another, or near the sum of two.
SAMPLES = tuple(round(1_000_003 * 1.37**power) for power in range(24))
NEAR = 5_000
SMALL = (29, 41, 53, 67, 79, 97, 113, 131)  # for layers that refuse to be that long


@dataclasses.dataclass(frozen=True, eq=False)
class Size:
    """A dynamic size, and the first value that has it."""

    value: ir.Value
    axis: int
    shifted: dict[int, Size] = dataclasses.field(default_factory=dict)  # this size and a number more


def sizes_of(value: ir.Value) -> tuple[int | Size | None, ...]:
    """The sizes of a value: numbers, dynamic sizes, and None where nothing is known."""
    return value.meta.get(SIZES) or value.meta[KERAS_TENSOR].shape


def axis_length(cx: Context, value: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, as a vector of one; taken where it first came up, so that all share one node."""
    size = sizes_of(value)[axis]
    if isinstance(size, int):
        return cx.constant([size])
    source, axis = (value, axis) if size is None else (size.value, size.axis)
    return cx.op.Shape(source, start=axis, end=axis + 1)


def text_of(name: str, names: Sequence[str]) -> str | None:
    """Among a model's inputs the token ids that one is about, by the names that everybody gives them."""
    end = next((end for end in (*TOKENS, *ABOUT_TOKENS) if name.endswith(end)), None)
    texts = [] if end is None else [name.removesuffix(end) + tokens for tokens in TOKENS]
    return next((text for text in texts if text in names), None)


def begin(inputs: list[ir.Value], names: list[str]) -> None:
    """Notes the sizes of a model's inputs: the batch is one, any other dynamic size each input's own.

    But a padding mask and its like are as long as the `token_ids` that they are about.
    """
    batch: Size | None = None
    values = dict(zip(names, inputs, strict=True))
    for name in sorted(names, key=lambda name: not name.endswith(TOKENS)):
        value, text = values[name], text_of(name, names)
        if SIZES in value.meta:
            continue
        sizes: list[int | Size] = list(value.meta[KERAS_TENSOR].shape)
        if text not in (None, name) and len(sizes) == len(sizes_of(values[text])) == 2:
            value.meta[SIZES] = sizes_of(values[text])
            continue
        for axis, size in enumerate(sizes):
            if size is None:
                sizes[axis] = batch if axis == 0 and batch is not None else Size(value, axis)
        if sizes and isinstance(sizes[0], Size):
            batch = sizes[0]
        value.meta[SIZES] = tuple(sizes)


def expected(operation: Any, args: tuple, kwargs: dict) -> list[tuple[Any, ...]] | None:
    """The sizes of results: what the operation makes of sample sizes; None if it fails on them."""
    return _expected(operation, args, kwargs, SAMPLES, NEAR) or _expected(operation, args, kwargs, SMALL, 0)


def _expected(
    operation: Any, args: tuple, kwargs: dict, numbers: Sequence[int], near: int
) -> list[tuple[Any, ...]] | None:
    samples: dict[Size, int] = {}

    def sample(x: Any) -> Any:
        if not isinstance(x, ir.Value):
            return x
        sizes = sizes_of(x)
        for size in sizes:
            if isinstance(size, Size) and size not in samples:
                samples[size] = numbers[len(samples)]
        shape = [samples[n] if isinstance(n, Size) else n for n in sizes]
        return keras.KerasTensor(shape, x.meta[KERAS_TENSOR].dtype)

    try:
        with as_usual():
            spec = operation.compute_output_spec(
                *tree.map_structure(sample, args), **tree.map_structure(sample, kwargs)
            )
    except Exception:  # nothing is known then, as where a layer takes another way at such sizes
        return None
    results = [x for x in tree.flatten(spec) if x is not None]
    return [tuple(_size_of(n, samples, near) for n in x.shape) for x in results]


def _size_of(number: int | None, samples: dict[Size, int], near: int) -> Any:
    """A number that came out: itself, a size or a size and what was added, which is a tuple; else None."""
    for size, sample in samples.items():
        if number == sample:
            return size
        if number is not None and abs(number - sample) < near:
            return size.shifted.get(number - sample, (size, number - sample))
    return None if number is None or number > SAMPLES[0] - NEAR else number


def note(value: ir.Value, sizes: tuple[Any, ...]) -> None:
    """Gives a value its sizes. What is dynamic and not among them is a size of its own."""
    if SIZES in value.meta or len(sizes) != len(value.meta[KERAS_TENSOR].shape):
        return
    noted: list[Any] = []
    for axis, (size, n) in enumerate(zip(sizes, value.meta[KERAS_TENSOR].shape, strict=True)):
        if n is not None:
            noted.append(n)
        elif isinstance(size, tuple):
            base, more = size
            noted.append(base.shifted.setdefault(more, Size(value, axis)))
        else:
            noted.append(size if isinstance(size, Size) else Size(value, axis))
    value.meta[SIZES] = tuple(noted)


def name_axes(graph: ir.Graph) -> None:
    """Gives the sizes that shape inference could not trace the names of the inputs' axes that they are."""
    names: dict[Size, str] = {}

    def add(size: Size, name: str) -> None:
        names[size] = name
        for more, other in size.shifted.items():
            if other not in names:
                add(other, f"{name} {'+' if more > 0 else '-'} {abs(more)}")

    for value in graph.inputs:
        for size, axis in zip(value.meta.get(SIZES, ()), value.shape or (), strict=False):
            if isinstance(size, Size) and size not in names and isinstance(axis, ir.SymbolicDim):
                add(size, str(axis.value))
    values = [value for node in graph for value in node.outputs if value.shape is not None]
    found: dict[str, str] = {}
    for value in values:
        for size, axis in zip(value.meta.get(SIZES, ()), value.shape or (), strict=False):
            if isinstance(size, Size) and size in names and is_nameless(axis) and not is_empty(axis):
                found[str(axis)] = names[size]
    for value in values:
        shape = list(value.shape or ())
        sizes = value.meta.get(SIZES, (None,) * len(shape))
        known = [names.get(size) if isinstance(size, Size) else None for size in sizes]
        pairs = zip(shape, known, strict=False)
        value.shape = ir.Shape([name if is_empty(n) and name else found.get(str(n), n) for n, name in pairs])


def is_empty(axis: int | ir.SymbolicDim) -> bool:
    """Whether shape inference found nothing, as behind a Scan."""
    return isinstance(axis, ir.SymbolicDim) and axis.value is None


def is_nameless(axis: int | ir.SymbolicDim) -> bool:
    """Whether a size has no name, or one that shape inference invented."""
    return is_empty(axis) or (isinstance(axis, ir.SymbolicDim) and str(axis).startswith("unk__"))
