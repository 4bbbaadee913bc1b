"""A folder that was exported is compared with its Keras model once more."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import keras
import onnx

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.families import family_of
from keras_tx.runtime.folder import Folder, open_folder
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.interfaces.image_classifier import REVERSAL
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional, as_functional
from keras_tx_onnx.verifying import comparison


@dataclasses.dataclass(frozen=True)
class FolderComparison:
    """How far the graph of one precision is from Keras, in units of the output's scale."""

    precision: str
    found: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.found <= self.allowed


def compare(
    model: Any, folder: str | os.PathLike[str], *, input_signature: Any = None
) -> list[FolderComparison]:
    """Runs every graph of the folder and the model on the same inputs, as the export did.

    The fp32 graph may be as far away as at an export; one of lower precision as far as its own rounding took
    it when it was made, twice over.

    >>> import keras_tx, tempfile
    >>> from keras_tx_onnx import compare, export_onnx
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(model, folder + "/flowers")
    ...     [again.passed for again in compare(model, folder + "/flowers")]
    [True]

    Args:
        model: the Keras model that was exported.
        folder: what `export_onnx` wrote.
        input_signature: as passed to the export.
    """
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model is a {type(model).__name__}, expected a Keras model; keras_tx.load_model loads one."
        )
    opened = open_folder(folder)
    return [
        _compared(model, open_folder(folder, name), input_signature) for name in opened.manifest.precisions
    ]


def _compared(model: Any, folder: Folder, signature: Any) -> FolderComparison:
    functional = as_functional(model, signature)
    outside = _outside(functional, folder)
    exported = outside.model or functional.model
    _check_outputs(exported, outside, folder)
    worst = 0.0
    with Session(folder.graph, provider="cpu") as session:
        dtypes = {spec.name: spec.dtype for spec in session.inputs}
        for case in comparison.cases_for(exported, outside):
            given = {name: x.astype(dtypes.get(name, x.dtype), copy=False) for name, x in case.given.items()}
            got = case.run(session, given)
            for name, expected in zip(outside.outputs, case.expected, strict=True):
                worst = max(worst, tolerances.difference(expected, got[name].astype(expected.dtype)))
    variant = folder.manifest.variants.get(folder.precision)
    allowed = tolerances.TOLERANCES["fp32" if variant is not None else folder.precision]
    return FolderComparison(
        folder.precision, worst, allowed if variant is None else allowed + 2 * variant.noise
    )


def _outside(functional: Functional, folder: Folder) -> Interface:
    """The interface that the folder was exported with, as far as it changes numbers."""
    names = {spec.name for spec in folder.inputs}
    cached = any(name.startswith(contract.PAST[0].split("{")[0]) for name in names)
    graph_nodes = onnx.load(os.fspath(folder.graph), load_external_data=False).graph.node
    nodes = {node.op_type for node in graph_nodes}
    reverses = any(node.op_type == "Gather" and node.name.startswith(REVERSAL) for node in graph_nodes)
    stored = keras.applications.resnet.preprocess_input if reverses else folder.transform
    task = None if family_of(functional.model) is not None else folder.manifest.task
    return choose_interface(
        functional,
        None if task is None else folder.manifest.labels,
        None,
        stored if task == contract.IMAGE_CLASSIFICATION else None,
        contract.PIXELS in names,
        cached if contract.POSITION_IDS in names else None,
        "NonZero" in nodes,
        task,
    )


def _check_outputs(model: Any, outside: Interface, folder: Folder) -> None:
    there = [spec.name for spec in folder.outputs]
    missing = [name for name in outside.outputs if name not in there]
    if missing:
        raise ExportError(
            f"{folder.path} gives {', '.join(there)}, but model {model.name!r} gives "
            f"{', '.join(outside.outputs)}: it is not the model that was exported."
        )
    sizes = {spec.name: spec.shape for spec in folder.outputs}
    for name, tensor in zip(outside.outputs, functional_graph.function_of(model).outputs, strict=False):
        known = [(a, b) for a, b in zip(sizes[name], tensor.shape, strict=False) if isinstance(a, int) and b]
        binary = outside.labels is not None and known == [(len(outside.labels), 1)]  # one number, two logits
        if any(a != b for a, b in known) and not binary:
            raise ExportError(
                f"{folder.path} gives {name!r} with the shape {sizes[name]}, but model {model.name!r} with "
                f"{tuple(tensor.shape)}: it is not the model that was exported."
            )
