"""The files of an exported folder beside its graphs: those of clients, and the manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

import keras_tx
from keras_tx import contract
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Interface


def write_files(folder: Path, interface: Interface, external: bool) -> None:
    """Writes the files for clients; `external` says whether the weights are in a data file."""
    for name, content in interface.files.items():
        if name == contract.CONFIG and external:
            use = {"use_external_data_format": {Path(contract.MODEL).name: True}}
            content = {**content, "transformers.js_config": use}
        if not isinstance(content, str):
            content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8", newline="\n")


def write_manifest(
    folder: Path,
    interface: Interface,
    context: GraphContext,
    parity: contract.Parity | None,
    notes: Sequence[str],
) -> contract.Manifest:
    """Hashes the files of the folder and writes the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = contract.Manifest(
        keras_tx_version=keras_tx.__version__,
        task=interface.task,
        opset=interface.opset,
        precisions={interface.precision: contract.MODEL},
        inputs=tuple(_spec(value) for value in context.graph.inputs if not value.is_initializer()),
        outputs=tuple(_spec(value) for value in context.graph.outputs),
        tiers=context.tiers,
        files={path.relative_to(folder).as_posix(): contract.describe_file(path) for path in files},
        parity=parity,
        labels=interface.labels,
        notes=tuple(notes),
        bounds=tuple(context.bounds),
        export_options=interface.export_options(),
    )
    manifest.save(folder)
    return manifest


def _spec(value: ir.Value) -> contract.TensorSpec:
    assert value.name and value.shape is not None and value.dtype
    shape = tuple(n if isinstance(n, int) else str(n.value) for n in value.shape)
    return contract.TensorSpec(value.name, value.dtype.numpy().name, shape)
