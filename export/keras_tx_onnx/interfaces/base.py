"""What the exported graph takes and gives: the names of the contract, or the model's own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads.base import label_names
from keras_tx.models.vit.huggingface import to_config
from keras_tx.models.vit.model import ViT
from keras_tx.processing import ImageTransform
from keras_tx.runtime.example_inputs import MASKS, draw, is_mask
from keras_tx.runtime.session import Session
from keras_tx_onnx.graph.builder import GraphContext, onnx_dtype
from keras_tx_onnx.graph.token_selection import select_tokens
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.verifying import cases

_UNNAMED = re.compile(r"(keras_tensor|input_layer)(_\d+)?")  # the names that Keras invents

Example = tuple[dict[str, np.ndarray], list[np.ndarray]]  # what onnxruntime gets, what Keras gets


@dataclasses.dataclass(frozen=True)
class Interface:
    """The outside of a graph.

    `open` adds the graph's inputs and returns the values of the model's inputs; `example(sizes, masks,
    random)` draws inputs for both sides, with these sizes of `axes` and a row for each kind of mask; `files`
    are the files that tell clients about the model, by name: text, or what becomes JSON.
    """

    task: str | None
    open: Callable[[GraphContext], list[ir.Value]]
    outputs: list[str]
    example: Callable[[cases.Sizes, cases.Masks, np.random.Generator], Example]
    files: dict[str, Any] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()  # the dynamic axes beside the batch
    sequences: bool = False  # whether these are of sequences, which may be very short and very long
    pictures: bool = False  # whether these are heights and widths
    permits: Callable[[cases.Sizes], bool] = lambda sizes: True  # the sizes that the graph supports
    bounds: tuple[str, ...] = ()  # on these axes, from the layers' code
    batch: int | None = None  # where the model has a fixed one
    further: Callable[[cases.Case], list[cases.Case]] = lambda case: []  # other ways to run a case
    close: Callable[[GraphContext], None] = lambda cx: None  # adds outputs behind those of the model
    masked: bool = False  # whether examples have padding masks
    model: Any = None  # what is exported, where it is not the model itself
    context: int = 0  # of a decoder with a cache: how many tokens it takes
    shared: bool = False  # whether a graph with a shared cache was asked for
    # Over the graph with its shapes, behind those that need none.
    passes: tuple[Callable[[ir.Model], int], ...] = (select_tokens,)
    # What the graph shall give, from what Keras gives for these inputs.
    expected: Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]] = lambda outputs, inputs: (
        outputs
    )
    run: Callable[[Session, dict[str, np.ndarray]], dict[str, np.ndarray]] = Session.run  # of an example

    def case(self, sizes: cases.Sizes, masks: cases.Masks) -> str:
        """What an example is called in the report."""
        name = f"batch {len(masks)}"
        if len(set(sizes.values())) == 1:
            name += f", length {next(iter(sizes.values()))}"
        else:
            name += "".join(f", {axis} {size}" for axis, size in sizes.items())
        kinds = list(dict.fromkeys(masks))
        if kinds == ["all"]:
            return name
        return f"{name}, {'every mask' if set(kinds) == set(MASKS) else 'masks ' + ' '.join(kinds)}"


def interface_of(
    functional: Functional, labels: Sequence[str] | None, image: ImageTransform | None, raw_pixels: bool
) -> Interface:
    """The contract's interface for our families, the model's own for any other."""
    model = functional.model
    if isinstance(model, ViT):
        names = label_names(model.head, labels, model.name)
        return _vision(model, names, _transform(model, image), raw_pixels)
    return _generic(functional)


def _vision(model: ViT, labels: list[str] | None, transform: ImageTransform, raw_pixels: bool) -> Interface:
    config = to_config(model, labels)
    notes = [config.note] if config.note else []
    if model.head is not None:
        output = contract.LOGITS
    else:
        output = contract.LAST_HIDDEN_STATE if model.config.pooling == "none" else contract.IMAGE_EMBEDS

    def example(sizes: cases.Sizes, masks: cases.Masks, random: np.random.Generator) -> Example:
        return image_example(transform, raw_pixels, len(masks), random)

    return Interface(
        task=model.task,
        open=lambda cx: [image_input(cx, transform, raw_pixels)],
        outputs=sorted(model.output) if isinstance(model.output, dict) else [output],
        example=example,
        files={
            contract.CONFIG: config.content,
            contract.PREPROCESSOR: transform.to_preprocessor_config(raw_pixels),
        },
        labels=None if labels is None else tuple(labels),
        notes=tuple(notes),
    )


def image_input(cx: GraphContext, transform: ImageTransform, raw_pixels: bool) -> ir.Value:
    """Adds the input of an image model: `pixels` or `pixel_values`; returns the images, channels last."""
    height, width, channels = transform.height, transform.width, transform.channels
    if raw_pixels:
        pixels = cx.input(contract.PIXELS, ir.DataType.UINT8, [contract.BATCH_AXIS, height, width, channels])
        with cx.inside("image_transform"):
            scale = transform.rescale / np.asarray(transform.std)
            shift = -np.asarray(transform.mean) / np.asarray(transform.std)
            return cx.op.Add(cx.op.Mul(cx.op.Cast(pixels, to=ir.DataType.FLOAT), scale), shift)
    values = cx.input(
        contract.PIXEL_VALUES, ir.DataType.FLOAT, [contract.BATCH_AXIS, channels, height, width]
    )
    with cx.inside("channels_last"):
        return cx.op.Transpose(values, perm=[0, 2, 3, 1])


def image_example(
    transform: ImageTransform, raw_pixels: bool, batch: int, random: np.random.Generator
) -> Example:
    """Random pixels for such a graph, and the images that the model receives for them."""
    pixels = random.integers(0, 256, (batch, transform.height, transform.width, transform.channels), "uint8")
    images = transform(pixels)
    if raw_pixels:
        return {contract.PIXELS: pixels}, [images]
    return {contract.PIXEL_VALUES: np.ascontiguousarray(images.transpose(0, 3, 1, 2))}, [images]


def _transform(model: ViT, image: ImageTransform | None) -> ImageTransform:
    if image is not None and not isinstance(image, ImageTransform):
        raise ConfigError(f"image={image!r}: expected a keras_tx.ImageTransform.")
    transform = image or model.processing
    given, taken = (
        (transform.height, transform.width, transform.channels),
        (*model.config.size, model.config.channels),
    )
    if given != taken:
        raise ConfigError(f"image gives (height, width, channels) {given}, but the model expects {taken}.")
    return transform


def _generic(functional: Functional) -> Interface:
    model = functional.model
    function = functional_graph.function_of(model)
    tensors: list[keras.KerasTensor] = list(function.inputs)
    names = _distinct(_input_names(function))

    shapes = [
        axis_names(tensor.shape, _owner(name, names)) for name, tensor in zip(names, tensors, strict=True)
    ]

    def open_graph(cx: GraphContext) -> list[ir.Value]:
        known = zip(names, shapes, tensors, strict=True)
        return [cx.input(name, onnx_dtype(tensor.dtype), shape) for name, shape, tensor in known]

    uses = dict(zip(names, cases.uses_of(function), strict=True))
    specs = [
        contract.TensorSpec(name, _numpy_dtype(tensor.dtype), tuple(shape))
        for name, shape, tensor in zip(names, shapes, tensors, strict=True)
    ]

    def example(sizes: cases.Sizes, masks: cases.Masks, random: np.random.Generator) -> Example:
        inputs = draw(specs, uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return inputs, list(inputs.values())

    kind = type(model).__name__
    note = (
        f"Exported as a generic model, with its own inputs and outputs: {model.name!r} is a {kind}, not what "
        "keras_tx.vit() made."
    )
    outputs = [_plain(name) for name in functional.outputs]
    axes = tuple(dict.fromkeys(n for spec in specs for n in spec.shape[1:] if isinstance(n, str)))
    dynamic = [tensor for tensor in tensors if None in tensor.shape[1:]]
    padded = any(use.padding is not None for use in uses.values())
    batch = tensors[0].shape[0] if tensors and tensors[0].shape else None
    return Interface(
        None,
        open_graph,
        outputs,
        example,
        notes=(note, *functional.notes),
        axes=axes,
        sequences=bool(dynamic) and all(len(tensor.shape) <= 3 for tensor in dynamic),
        pictures=bool(dynamic) and all(len(tensor.shape) == 4 for tensor in dynamic),
        batch=batch,
        masked=padded or any(map(is_mask, specs)),
    )


def _numpy_dtype(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "float32" if keras.backend.is_float_dtype(dtype) else "int64"


def axis_names(shape: tuple[int | None, ...], owner: str) -> list[int | str]:
    """Dynamic axes by the names that people know; each input's own where there are several inputs.

    Two inputs with one name would have to be of equal length. Names are identifiers, so that bounds can
    contain them.
    """
    owner = re.sub(r"\W|^(?=\d)", "_", owner)
    names = {4: ("height", "width"), 5: ("depth", "height", "width")}.get(len(shape), ("sequence_length",))
    first = 2 if len(shape) > 3 and shape[1] is not None and shape[-1] is None else 1  # behind the channels
    found: list[int | str] = []
    for index, size in enumerate(shape):
        if size is not None:
            found.append(size)
        elif index == 0:
            found.append(contract.BATCH_AXIS)
        else:
            name = names[index - first] if 0 <= index - first < len(names) else f"axis_{index}"
            found.append(f"{owner}_{name}" if owner else name)
    return found


def _owner(name: str, names: list[str]) -> str:
    """Whose dynamic axes an input has; nobody's where there is one input, or one text."""
    text = symbolic_sizes.text_of(name, names)
    return "" if len(names) == 1 else name if text is None else _without_end(text).rstrip("_")


def _without_end(text: str) -> str:
    return text.removesuffix(next(end for end in symbolic_sizes.TOKENS if text.endswith(end)))


def _distinct(names: list[str]) -> list[str]:
    """Names with a number where one comes again."""
    return [f"{name}_{names[:i].count(name)}" if name in names[:i] else name for i, name in enumerate(names)]


def _input_names(function: Any) -> list[str]:
    """The names of a graph's inputs. Keras numbers unnamed ones, differently in every process.

    An unnamed input gets its key in a dict of inputs as its name, or `input`, `input_2` ... in order.
    """
    names = []
    for place, (path, tensor) in enumerate(keras.tree.flatten_with_path(function.input)):
        name = _plain(tensor.name)
        if _UNNAMED.fullmatch(name):
            keys = [key for key in path if isinstance(key, str)]
            name = keys[-1] if keys else "input" if place == 0 else f"input_{place + 1}"
        names.append(name)
    return names


def _plain(name: str) -> str:
    """Keras names without the number of the output, `dense:0`."""
    return name.split(":")[0]
