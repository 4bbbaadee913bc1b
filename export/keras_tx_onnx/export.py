"""The one public call: a Keras model becomes a verified ONNX folder."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnx_ir as ir

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.processing import ImageTransform
from keras_tx_onnx import graph, passes, verify
from keras_tx_onnx.aside import check_target, written_aside
from keras_tx_onnx.context import Context
from keras_tx_onnx.interface import Interface, interface_of
from keras_tx_onnx.lower import lower
from keras_tx_onnx.report import Report


def export_onnx(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    image: ImageTransform | None = None,
    raw_pixels: bool = False,
    opset: int = contract.DEFAULT_OPSET,
    verify: bool = True,
    overwrite: bool = False,
) -> Report:
    """Writes a folder that onnxruntime, keras_tx.runtime and other clients open, and proves it right.

    The folder gets its name only after onnxruntime has given the same answers as Keras; whatever goes
    wrong before, nothing is left behind.

    >>> import keras_tx, tempfile
    >>> model = keras_tx.vit("Mu/2", image_size=8, classes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(model, folder + "/flowers", labels=["daisy", "rose", "tulip"])
    >>> report.nodes["Attention"]
    1

    Args:
        model: a built functional Keras model. What keras_tx.vit() made gets the names that clients expect;
            any other keeps its own inputs and outputs.
        folder: where to write.
        labels: names of the classes, in order.
        image: the image transform to store, in place of `model.processing`.
        raw_pixels: whether the graph takes uint8 pixels (batch, height, width, channels) and normalizes them
            itself, in place of `pixel_values`.
        opset: 17 to 26. Below 23 Attention, below 20 Gelu are written out in older nodes.
        verify: whether to compare with Keras. The report says so when it was not done.
        overwrite: whether a former export in the folder may be replaced.
    """
    folder = Path(folder).absolute()
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model is a {type(model).__name__}, expected a Keras model; keras_tx.load_model loads one."
        )
    if not isinstance(opset, int) or opset not in contract.IR_VERSIONS:
        raise ConfigError(
            f"opset={opset!r}: expected one of {min(contract.IR_VERSIONS)} to {max(contract.IR_VERSIONS)}."
        )
    function = graph.function_of(model)
    outside = interface_of(model, labels, image, raw_pixels)
    check_target(folder, overwrite)

    seconds: dict[str, float] = {}
    with written_aside(folder) as aside:
        path = aside / contract.MODEL
        with _timed(seconds, "lower"):
            context, onnx_model = _lowered(function, outside, outside.outputs, opset)
        with _timed(seconds, "write"):
            external = write_graph(onnx_model, path)
            _check(path)
            _write_json(aside, outside, external)
        parity = None
        if verify:
            with _timed(seconds, "verify"):
                parity = _verified(model, outside, context, path)
        with _timed(seconds, "hash"):
            manifest = _manifest(aside, outside, context, opset, parity)
            manifest.save(aside)
    nodes = Counter(node.op_type for node in onnx_model.graph)
    return Report(folder, manifest, nodes, model.count_params(), seconds)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


def _lowered(
    function: Any, outside: Interface, outputs: Sequence[str], opset: int
) -> tuple[Context, ir.Model]:
    context = Context(function.name, opset)
    values = lower(context, function, outside.open(context))
    for value, name in zip(values, outputs, strict=True):
        context.output(value, name)
    model = context.model()
    passes.simplify(model)
    return context, model


def write_graph(model: ir.Model, path: Path) -> bool:
    """Writes the graph, and from 64 MB of weights on a data file beside it. Says whether it did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if weights < contract.EXTERNAL_DATA_FROM:
        ir.save(model, path)
        return False
    # Large tensors begin on a page of 16 kB (macOS; Linux has 4), so that the file can be memory-mapped.
    name = Path(contract.MODEL_DATA).name
    ir.save(model, path, external_data=name, alignment=16384, align_threshold=2**20 - 1)
    return True


def _check(path: Path) -> None:
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"The ONNX checker refuses the graph, so a lowering is wrong: {error}") from error


def _write_json(aside: Path, outside: Interface, external: bool) -> None:
    for name, content in outside.files.items():
        if name == contract.CONFIG and external:
            use = {"use_external_data_format": {Path(contract.MODEL).name: True}}
            content = {**content, "transformers.js_config": use}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (aside / name).write_text(text, encoding="utf-8")


def _verified(model: Any, outside: Interface, lowered: Context, path: Path) -> contract.Parity:
    random = np.random.default_rng(verify.SEED)
    reference = verify.in_float32(model)
    cases = [(f"batch {batch}", *outside.example(batch, random)) for batch in verify.BATCHES]
    try:
        return verify.verify(path, reference, cases, _names(lowered))
    except ExportError as error:

        def write(probe: Any, path: Path) -> list[str]:
            outputs = [f"output_{index}" for index in range(len(probe.outputs))]
            context, onnx_model = _lowered(graph.function_of(probe), outside, outputs, lowered.opset)
            write_graph(onnx_model, path)
            return _names(context)

        where = next(filter(None, (verify.first_difference(reference, case, write) for case in cases)), None)
        raise ExportError(f"{error} {where or ''} No folder was left.".replace("  ", " ")) from None


def _names(context: Context) -> list[str]:
    """The outputs as the graph has them: a name that was taken got a number."""
    return [str(value.name) for value in context.graph.outputs]


def _manifest(
    aside: Path, outside: Interface, context: Context, opset: int, parity: contract.Parity | None
) -> contract.Manifest:
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    return contract.Manifest(
        keras_tx_version=keras_tx.__version__,
        task=outside.task,
        opset=opset,
        precisions={"fp32": contract.MODEL},
        inputs=tuple(_spec(value) for value in context.graph.inputs),
        outputs=tuple(_spec(value) for value in context.graph.outputs),
        tiers=context.tiers,
        files={path.relative_to(aside).as_posix(): contract.describe_file(path) for path in files},
        parity=parity,
        labels=outside.labels,
        notes=outside.notes,
    )


def _spec(value: ir.Value) -> contract.TensorSpec:
    assert value.name and value.shape and value.dtype
    shape = tuple(n if isinstance(n, int) else str(n.value) for n in value.shape)
    return contract.TensorSpec(value.name, value.dtype.numpy().name, shape)
