"""Compares an exported folder with its Keras model."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import Folder, open_folder
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.interfaces.image_classifier import preprocessing_function
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional, as_functional, restored_signature
from keras_tx_onnx.verifying.cases import cases_for


@dataclasses.dataclass(frozen=True)
class FolderComparison:
    """The difference of the graph of one precision from Keras, in units of the output's scale.

    Attributes:
        precision: of the graph; behind it in parentheses, the file of an execution target.
        difference: the largest of all outputs and cases.
        tolerance: the largest difference that passes.
    """

    precision: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance


def compare(model: Any, folder: str | os.PathLike[str]) -> list[FolderComparison]:
    """Compares every graph of an exported folder with the Keras model, on the cases of an export.

    The tolerance of the fp32 graph is that of an export. A graph of lower precision may also differ by twice
    the difference from fp32 that its manifest records.

    Args:
        model: the Keras model that was exported.
        folder: a folder that `export_onnx` wrote.

    Returns:
        One FolderComparison for each precision of the folder and each further graph of a target; of the two
        graphs of an encoder-decoder, that with the larger difference relative to its tolerance.

    Raises:
        ConfigError: if `model` is not a Keras model.
        ExportError: if the folder was exported from a model with other inputs or outputs.

    Example:
        >>> import keras_tx, tempfile
        >>> from keras_tx_onnx import compare, export_onnx
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_onnx(model, folder + "/flowers")
        ...     [result.passed for result in compare(model, folder + "/flowers")]
        [True]
    """
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model is a {type(model).__name__}, expected a Keras model. Load one with keras_tx.load_model."
        )
    opened = open_folder(folder)
    functional = _functional(model, opened)
    results = [_compare(functional, open_folder(folder, name)) for name in opened.manifest.precisions]
    for target in opened.target_graphs:
        result = _compare(functional, opened.with_graph_of(target))
        results.append(dataclasses.replace(result, precision=f"{result.precision} ({target.file})"))
    return results


def _compare(functional: Functional, folder: Folder) -> FolderComparison:
    interface = _interface(functional, folder)
    _check_outputs(interface, folder)
    manifest = folder.manifest
    paths = [folder.graph] if folder.encoder is None else [folder.encoder, folder.graph]
    variants = [graphs.variants.get(folder.precision) for graphs in (manifest.encoder, manifest) if graphs]
    results = []
    for part, path, variant in zip(interface.parts, paths, variants, strict=True):
        tolerance = part.tolerance if variant is None else tolerances.FLOAT32 + 2 * variant.noise
        difference = _largest_difference(part, path, manifest.bounds)
        results.append(FolderComparison(folder.precision, difference, tolerance))
    return max(results, key=lambda result: result.difference / result.tolerance)


def _largest_difference(interface: Interface, path: Path, bounds: Sequence[str]) -> float:
    largest = 0.0
    with Session(path, provider="cpu") as session:
        dtypes = {spec.name: spec.dtype for spec in session.inputs}
        for case in cases_for(interface, bounds):
            feed = {name: x.astype(dtypes.get(name, x.dtype), copy=False) for name, x in case.feed.items()}
            outputs = case.run(session, feed)
            for name, expected in zip(interface.outputs, case.expected, strict=True):
                largest = max(largest, tolerances.difference(expected, outputs[name].astype(expected.dtype)))
    return largest


def _options(folder: Folder) -> dict[str, Any]:
    """The recorded options of the export."""
    recorded = folder.manifest.export_options
    if recorded is None:
        raise ExportError(f"{folder.path} does not record its export options. Export the model again.")
    return dict(recorded)


def _functional(model: Any, folder: Folder) -> Functional:
    """The model with the inputs that the folder was exported with."""
    text = _options(folder).get("input_signature")
    return as_functional(model, None if text is None else restored_signature(model, text))


def _interface(functional: Functional, folder: Folder) -> Interface:
    """The interface that the folder was exported with."""
    options = _options(folder)
    options.pop("input_signature", None)
    sizes = json.loads(options.pop("sizes", None) or "{}")
    if "image" in options:
        options["image"] = preprocessing_function(options["image"])
    elif "raw_pixels" in options:
        options["image"] = folder.transform
    if "task" in options:
        options["labels"] = folder.manifest.labels
    try:
        interface = choose_interface(functional, options, folder.manifest.opset)
        interface.fix(sizes)
        return interface
    except ConfigError as error:
        raise ExportError(
            f"{folder.path} was not exported from model {functional.model.name!r}: {error}"
        ) from error


def _check_outputs(interface: Interface, folder: Folder) -> None:
    """Raises an ExportError if the outputs of the model have other names or sizes than the folder's."""
    name_of_model = f"model {interface.model.name!r}"
    shapes = {spec.name: spec.shape for spec in folder.outputs}
    if not set(interface.outputs) <= set(shapes):
        raise ExportError(
            f"{folder.path} has the outputs {', '.join(shapes)}, but {name_of_model} has "
            f"{', '.join(interface.outputs)}. Pass the model that was exported."
        )
    tensors = functional_graph.function_of(interface.model).outputs
    for name, tensor in zip(interface.outputs, tensors, strict=False):
        pairs = zip(shapes[name], tensor.shape, strict=False)
        sizes = [(size, expected) for size, expected in pairs if isinstance(size, int) and expected]
        if interface.labels is not None and sizes == [(len(interface.labels), 1)]:
            continue  # a binary classifier, whose graph returns two logits
        if any(size != expected for size, expected in sizes):
            raise ExportError(
                f"{folder.path} has the output {name!r} with the shape {shapes[name]}, but {name_of_model} "
                f"has {tuple(tensor.shape)}. Pass the model that was exported."
            )
