"""The one public call: a Keras model becomes a verified ONNX folder."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import onnx
import onnx_ir as ir

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError, KerasTxError
from keras_tx.processing import ImageTransform
from keras_tx_onnx import dims, graph, passes, tolerances, verify
from keras_tx_onnx.aside import check_target, written_aside
from keras_tx_onnx.cases import cases_of
from keras_tx_onnx.context import Context
from keras_tx_onnx.decoder import decoder_of
from keras_tx_onnx.encoder import encoder_of
from keras_tx_onnx.interface import Interface, axis_names, interface_of
from keras_tx_onnx.lower import lower
from keras_tx_onnx.report import Report
from keras_tx_onnx.signature import Functional, as_functional


def export_onnx(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    tokenizer: Any = None,
    image: ImageTransform | None = None,
    raw_pixels: bool = False,
    input_signature: Any = None,
    opset: int = contract.DEFAULT_OPSET,
    cache: bool | None = None,
    unpad: bool = True,
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
        model: a Keras model. What keras_tx.vit(), keras_tx.bert() or keras_tx.gpt() made gets the names that
            clients expect; any other keeps its own inputs and outputs.
        folder: where to write.
        labels: names of the classes, in order.
        tokenizer: of a text model: a tokenizers.Tokenizer, or the path of a tokenizer.json.
        image: the image transform to store, in place of `model.processing`.
        raw_pixels: whether the graph takes uint8 pixels (batch, height, width, channels) and normalizes them
            itself, in place of `pixel_values`.
        input_signature: what a model takes whose class has a `call` of its own: keras.InputSpec(shape, dtype,
            name), in the structure of its call's arguments, None for each dynamic size.
        opset: 17 to 26. Below 23 Attention, below 20 Gelu are written out in older nodes.
        cache: whether the graph takes and gives keys and values of earlier tokens, so that it can generate.
            By default where the model can: one that keras_tx.gpt() made, with its head. True insists on it.
        unpad: whether what takes each token for itself leaves out padding, in the graph of keras_tx.bert().
            Accelerators that want fixed shapes do better without.
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
    functional = as_functional(model, input_signature)
    outside = _outside(functional, labels, tokenizer, image, raw_pixels, cache, unpad)
    model = outside.model or functional.model
    function = graph.function_of(model)
    check_target(folder, overwrite)

    seconds: dict[str, float] = {}
    with written_aside(folder) as aside:
        path = aside / contract.MODEL
        with _timed(seconds, "lower"):
            context, onnx_model = _lowered(function, outside, outside.outputs, opset, outside.passes)
        with _timed(seconds, "write"):
            external = write_graph(onnx_model, path)
            _check(path)
            _write_files(aside, outside, external)
        parity = None
        if verify:
            with _timed(seconds, "verify"):
                parity = _verified(model, outside, context, path)
        with _timed(seconds, "hash"):
            manifest = _manifest(aside, outside, context, opset, parity, _precision(model))
            manifest.save(aside)
    nodes = Counter(node.op_type for node in onnx_model.graph)
    return Report(folder, manifest, nodes, model.count_params(), seconds)


def _outside(
    functional: Functional,
    labels: Sequence[str] | None,
    tokenizer: Any,
    image: ImageTransform | None,
    raw_pixels: bool,
    cache: bool | None,
    unpad: bool,
) -> Interface:
    """The contract's interface for our families, the model's own for any other."""
    others = {"image": image, "raw_pixels": raw_pixels or None}
    found = decoder_of(functional, cache, tokenizer, {"labels": labels, **others})
    found = found or encoder_of(functional, labels, tokenizer, unpad, others)
    if found is None and tokenizer is not None:
        raise ConfigError(
            f"tokenizer was given, but {functional.model.name!r} is a {type(functional.model).__name__}, no "
            "text model of keras_tx. Leave it out."
        )
    return found or interface_of(functional, labels, image, raw_pixels)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


def _lowered(
    function: Any,
    outside: Interface,
    outputs: Sequence[str],
    opset: int,
    further: Sequence[Callable[[ir.Model], int]] = (),
) -> tuple[Context, ir.Model]:
    context = Context(function.name, opset)
    values = lower(context, function, outside.open(context))
    for value, name in zip(values, outputs, strict=True):
        context.output(value, name)
    outside.close(context)
    model = context.model()
    passes.simplify(model, further)
    dims.name_axes(context.graph)
    for value in context.graph.outputs:
        _name_what_is_left(value)
    return context, model


def _name_what_is_left(output: ir.Value) -> None:
    """Sizes that nobody could trace to an input are called after the output that has them."""
    assert output.shape is not None and output.name is not None
    known = [None if dims.is_nameless(n) else n for n in output.shape]
    names = axis_names(tuple(n if isinstance(n, int) else None for n in known), output.name)
    output.shape = ir.Shape([b if a is None else a for a, b in zip(known, names, strict=True)])


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


def _write_files(aside: Path, outside: Interface, external: bool) -> None:
    for name, content in outside.files.items():
        if name == contract.CONFIG and external:
            use = {"use_external_data_format": {Path(contract.MODEL).name: True}}
            content = {**content, "transformers.js_config": use}
        if not isinstance(content, str):
            content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (aside / name).parent.mkdir(exist_ok=True)
        (aside / name).write_text(content, encoding="utf-8", newline="\n")


def _precision(model: Any) -> str:
    """fp32, whatever the policy; int8 where Keras quantized a layer."""
    return "int8" if any(part.quantization_mode == "int8" for part in graph.parts(model)) else "fp32"


def _verified(model: Any, outside: Interface, lowered: Context, path: Path) -> contract.Parity:
    precision = _precision(model)
    found = cases_of(outside, lambda inputs: outside.expected(verify.run_keras(model, inputs), inputs))
    try:
        return verify.verify(path, found, _names(lowered)[: len(outside.outputs)], precision)
    except ExportError as error:

        def write(probe: Any, path: Path) -> list[str]:
            outputs = [f"output_{index}" for index in range(len(probe.outputs))]
            context, onnx_model = _lowered(graph.function_of(probe), outside, outputs, lowered.opset)
            write_graph(onnx_model, path)
            return _names(context)

        try:
            tolerance = tolerances.TOLERANCES[precision]
            places = (verify.first_difference(model, case, write, lowered.tiers, tolerance) for case in found)
            where = next(filter(None, places), None) or "No single layer differs by that much."
        except KerasTxError as other:
            where = f"Layer by layer they could not be compared: {other}"
        raise ExportError(f"{error} {where} No folder was left.") from None


def _names(context: Context) -> list[str]:
    """The outputs as the graph has them: a name that was taken got a number."""
    return [str(value.name) for value in context.graph.outputs]


def _manifest(
    aside: Path,
    outside: Interface,
    context: Context,
    opset: int,
    parity: contract.Parity | None,
    precision: str,
) -> contract.Manifest:
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    return contract.Manifest(
        keras_tx_version=keras_tx.__version__,
        task=outside.task,
        opset=opset,
        precisions={precision: contract.MODEL},
        inputs=tuple(_spec(value) for value in context.graph.inputs if not value.is_initializer()),
        outputs=tuple(_spec(value) for value in context.graph.outputs),
        tiers=context.tiers,
        files={path.relative_to(aside).as_posix(): contract.describe_file(path) for path in files},
        parity=parity,
        labels=outside.labels,
        notes=outside.notes,
    )


def _spec(value: ir.Value) -> contract.TensorSpec:
    assert value.name and value.shape is not None and value.dtype
    shape = tuple(n if isinstance(n, int) else str(n.value) for n in value.shape)
    return contract.TensorSpec(value.name, value.dtype.numpy().name, shape)
