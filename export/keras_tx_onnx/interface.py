"""What the exported graph takes and gives: the names of the contract, or the model's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models import TransformerModel, ViT
from keras_tx.processing import ImageTransform
from keras_tx.weights.huggingface import vit_to_config
from keras_tx_onnx import graph
from keras_tx_onnx.context import Context
from keras_tx_onnx.lower import onnx_dtype

Example = tuple[dict[str, np.ndarray], list[np.ndarray]]  # what onnxruntime gets, what Keras gets


@dataclasses.dataclass(frozen=True)
class Interface:
    """The outside of a graph.

    `open` adds the graph's inputs and gives the values of the model's inputs; `example` makes a batch
    for both sides; `files` are the JSON files that tell clients about the model.
    """

    task: str | None
    open: Callable[[Context], list[ir.Value]]
    outputs: list[str]
    example: Callable[[int, np.random.Generator], Example]
    files: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def interface_of(
    model: Any, labels: Sequence[str] | None, image: ImageTransform | None, raw_pixels: bool
) -> Interface:
    """The contract's interface for our families, the model's own for any other."""
    if isinstance(model, ViT):
        return _vision(model, _checked(model, labels), _transform(model, image), raw_pixels)
    for name, value in (("labels", labels), ("image", image), ("raw_pixels", raw_pixels or None)):
        if value is not None:
            raise ConfigError(
                f"{name}={value!r} was given, but {model.name!r} is a {type(model).__name__}, which exports "
                "with its own inputs and outputs. Leave it out, or export a model as keras_tx.vit() gives it."
            )
    return _generic(model)


def _vision(model: ViT, labels: list[str] | None, transform: ImageTransform, raw_pixels: bool) -> Interface:
    config, beyond = vit_to_config(model, labels)
    notes = []
    if beyond:
        notes.append(
            f"config.json has no model_type: Hugging Face's ViT cannot have {', '.join(beyond)}. "
            "Clients that need one (Optimum, transformers.js) will not open the folder; onnxruntime and "
            "keras_tx.runtime do."
        )
    if model.head is not None:
        output = contract.LOGITS
    else:
        output = contract.LAST_HIDDEN_STATE if model.config.pooling == "none" else contract.IMAGE_EMBEDS

    def open_graph(cx: Context) -> list[ir.Value]:
        height, width, channels = transform.height, transform.width, transform.channels
        if raw_pixels:
            pixels = cx.input(
                contract.PIXELS, ir.DataType.UINT8, [contract.BATCH_AXIS, height, width, channels]
            )
            with cx.inside("image_transform"):
                scale = transform.rescale / np.asarray(transform.std)
                shift = -np.asarray(transform.mean) / np.asarray(transform.std)
                return [cx.op.Add(cx.op.Mul(cx.op.Cast(pixels, to=ir.DataType.FLOAT), scale), shift)]
        values = cx.input(
            contract.PIXEL_VALUES, ir.DataType.FLOAT, [contract.BATCH_AXIS, channels, height, width]
        )
        with cx.inside("channels_last"):
            return [cx.op.Transpose(values, perm=[0, 2, 3, 1])]

    def example(batch: int, random: np.random.Generator) -> Example:
        pixels = random.integers(
            0, 256, (batch, transform.height, transform.width, transform.channels), "uint8"
        )
        images = transform(pixels)
        if raw_pixels:
            return {contract.PIXELS: pixels}, [images]
        return {contract.PIXEL_VALUES: np.ascontiguousarray(images.transpose(0, 3, 1, 2))}, [images]

    return Interface(
        task=model.task,
        open=open_graph,
        outputs=[output],
        example=example,
        files={contract.CONFIG: config, contract.PREPROCESSOR: transform.to_preprocessor_config(raw_pixels)},
        labels=None if labels is None else tuple(labels),
        notes=tuple(notes),
    )


def _transform(model: ViT, image: ImageTransform | None) -> ImageTransform:
    if image is not None and not isinstance(image, ImageTransform):
        raise ConfigError(f"image={image!r}: expected a keras_tx.ImageTransform.")
    transform = image or model.processing
    given, taken = (
        (transform.height, transform.width, transform.channels),
        (*model.config.size, model.config.channels),
    )
    if given != taken:
        raise ConfigError(f"image gives (height, width, channels) {given}, but the model takes {taken}.")
    return transform


def _checked(model: TransformerModel, labels: Sequence[str] | None) -> list[str] | None:
    """The labels of a classifier; LABEL_0, LABEL_1 ... where none were given."""
    if model.head is None:
        if labels is not None:
            raise ConfigError(f"labels were given, but model {model.name!r} has no classifier head.")
        return None
    classes = model.head.classes
    if labels is None:
        return [f"LABEL_{index}" for index in range(classes)]
    if not isinstance(labels, list | tuple) or not all(isinstance(x, str) and x for x in labels):
        raise ConfigError(f"labels={labels!r}: expected a list of names, one for each class in order.")
    labels = list(labels)
    if len(labels) != classes:
        raise ConfigError(f"{len(labels)} labels were given, but the model tells {classes} classes apart.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"labels has {twice[0]!r} more than once; each class needs a name of its own.")
    return labels


def _generic(model: Any) -> Interface:
    function = graph.function_of(model)
    tensors: list[keras.KerasTensor] = list(function.inputs)
    names = _distinct([_plain(tensor.name) for tensor in tensors])

    def shape(name: str, tensor: keras.KerasTensor) -> list[int | str]:
        axes = enumerate(tensor.shape)
        return [contract.BATCH_AXIS if i == 0 else (f"{name}_axis_{i}" if n is None else n) for i, n in axes]

    def open_graph(cx: Context) -> list[ir.Value]:
        return [cx.input(n, onnx_dtype(t.dtype), shape(n, t)) for n, t in zip(names, tensors, strict=True)]

    def example(batch: int, random: np.random.Generator) -> Example:
        length = 2 * batch + 2  # another one for each batch, or a frozen size would not be noticed
        arrays = [_random(batch, length, tensor, random) for tensor in tensors]
        return dict(zip(names, arrays, strict=True)), arrays

    kind = type(model).__name__
    note = (
        f"Exported as a generic model, with its own inputs and outputs: {model.name!r} is a {kind}, not what "
        "keras_tx.vit() made."
    )
    return Interface(None, open_graph, [_plain(n) for n in function.output_names], example, notes=(note,))


def _distinct(names: list[str]) -> list[str]:
    """Names with a number where one comes again."""
    return [f"{name}_{names[:i].count(name)}" if name in names[:i] else name for i, name in enumerate(names)]


def _plain(name: str) -> str:
    """Keras names without the number of the output, `dense:0`."""
    return name.split(":")[0]


def _random(batch: int, length: int, tensor: keras.KerasTensor, random: np.random.Generator) -> np.ndarray:
    shape = [batch, *(length if n is None else n for n in tensor.shape[1:])]
    if tensor.dtype == "bool":
        return random.random(shape) < 0.7
    if keras.backend.is_float_dtype(tensor.dtype):
        return random.standard_normal(shape, "float32")
    return random.integers(0, 2, shape, "int64")
