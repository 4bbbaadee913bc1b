"""The one public call: a Keras model becomes a verified ONNX folder."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import onnx_ir as ir

import keras_tx
from keras_tx import contract
from keras_tx.atomic_write import atomic_directory, check_export_target
from keras_tx.errors import ConfigError, ExportError
from keras_tx.processing import ImageTransform
from keras_tx.weights.weight_values import check_finite
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.graph import passes, unpadding
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.model_file import check_graph, write_graph
from keras_tx_onnx.graph.shared_cache import SHARED_FROM, check_shared, no_shared, note_of, write_shared
from keras_tx_onnx.interfaces.base import Interface, axis_names
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.quantizing.precision_files import add_precisions
from keras_tx_onnx.quantizing.recipes import precisions
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.signature import as_functional
from keras_tx_onnx.reading.walk import lower
from keras_tx_onnx.report import Report
from keras_tx_onnx.verifying import branches, comparison, evidence
from keras_tx_onnx.verifying.cases import Case


def export_onnx(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    tokenizer: Any = None,
    image: ImageTransform | Callable[..., Any] | None = None,
    task: str | None = None,
    raw_pixels: bool = False,
    input_signature: Any = None,
    precision: str | Sequence[str] = "fp32",
    opset: int = contract.DEFAULT_OPSET,
    cache: bool | str | None = None,
    unpad: bool = True,
    verify: bool = True,
    overwrite: bool = False,
) -> Report:
    """Writes a folder that onnxruntime, keras_tx.runtime and other clients open, and proves it right.

    The folder gets its name only after onnxruntime has given the same answers as Keras; whatever goes
    wrong before, nothing is left behind.

    >>> import keras_tx, tempfile
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(model, folder + "/flowers", labels=["daisy", "rose", "tulip"])
    >>> report.nodes["Attention"]
    1

    Args:
        model: a Keras model. What keras_tx.vit(), keras_tx.bert() or keras_tx.gpt() made gets the names that
            clients expect; any other keeps its own inputs and outputs.
        folder: where to write. Missing parent folders are created.
        labels: names of the classes, in order. For a model with one sigmoid, the two names of 0 and 1: the
            folder then scores both, with 1 - p and p.
        tokenizer: of a text model, in place of `model.processing`: a TextTransform, a tokenizers.Tokenizer,
            the text of a tokenizer.json, or the path of one or of the folder with its files.
        image: the image transform to store, in place of `model.processing`; for a classifier also
            `preprocess_input` of a module of keras.applications.
        task: "image-classification" for any model with one image in and one vector out, a number for each
            class; implied by labels, image or raw_pixels. The folder then classifies files of pictures. The
            preprocessing of keras.applications and of keras-hub's image classifiers is known; any other
            model needs image. "text-classification", or labels, for a text classifier of keras-hub: the
            folder has the tokenizer of its preprocessor, and classifies texts.
        raw_pixels: whether the graph takes uint8 pixels (batch, height, width, channels) and normalizes them
            itself, in place of `pixel_values`.
        input_signature: the inputs of a subclassed model, with its own `call`: a keras.InputSpec(shape,
            dtype, name), or a list with one for each argument of the call, in the structure of that argument.
            A size of None is dynamic; None in place of an InputSpec keeps the argument's default.
        precision: "fp32", "fp16", "int8", "int8-blocks" or "int4", or several of them for one folder. What
            is not fp32 is made of the verified fp32 graph, and compared with it; `keras_tx_onnx.quantize`
            adds more to a folder, and has the options.
        opset: 17 to 26. Below 23 Attention, below 20 Gelu are written out in older nodes.
        cache: whether the graph takes and gives keys and values of earlier tokens, so that it can generate.
            By default where the model can: one that keras_tx.gpt() made, with its head. True insists on it.
            Weights in a data file (64 MB or more) then serve a second graph, too: onnx/model_shared.onnx,
            which writes its cache in place. "shared" insists on that one.
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
    wanted = precisions(precision)
    if wanted != ["fp32"] and _precision(model) != "fp32":
        raise ConfigError(
            f"precision={precision!r} was given, but Keras quantized model {model.name!r} already. Leave it "
            "out, or export the model as it was before."
        )
    if cache == "shared" and opset < SHARED_FROM:
        raise ConfigError(
            f"cache='shared' was given with opset={opset}, expected {SHARED_FROM} or more: below it "
            "attention is written out in older nodes. Leave one of the two out."
        )
    functional = as_functional(model, input_signature)
    outside = choose_interface(functional, labels, tokenizer, image, raw_pixels, cache, unpad, task)
    model = outside.model or functional.model
    function = functional_graph.function_of(model)
    check_export_target(folder, overwrite)
    check_finite(model, "Export the model as it was before its training diverged.", ExportError)

    seconds: dict[str, float] = {}
    computed, notes, found = _precision(model), outside.notes, None
    with atomic_directory(folder, ExportError) as aside:
        path = aside / contract.MODEL
        with _timed(seconds, "lower"):
            context, onnx_model = _lowered(function, outside, outside.outputs, opset, outside.passes)
        with _timed(seconds, "write"):
            external = write_graph(onnx_model, path)
            check_graph(path)
            sharing = outside.shared or (external and outside.context and opset >= SHARED_FROM)
            shared = write_shared(path) if sharing else None
            if shared is not None:
                check_graph(shared)
            elif sharing:
                notes = (*notes, no_shared(model.name, outside.shared))
            _write_files(aside, outside, external)
        parity = None
        if verify:
            with _timed(seconds, "verify"):
                parity, more = _verified(model, outside, context, path)
                notes = (*notes, *more)
                if shared is not None:
                    found = check_shared(path, shared, outside.context, computed)
        if shared is not None:
            notes = (*notes, note_of(shared, path, found))
        with _timed(seconds, "hash"):
            manifest = _manifest(aside, outside, context, opset, parity, computed, notes)
            manifest.save(aside)
        if wanted != ["fp32"]:
            with _timed(seconds, "quantize"):
                manifest = add_precisions(aside, manifest, wanted)
    nodes = Counter(node.op_type for node in onnx_model.graph)
    return Report(folder, manifest, nodes, model.count_params(), seconds)


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
) -> tuple[GraphContext, ir.Model]:
    context = GraphContext(function.name, opset)
    values = lower(context, function, outside.open(context))
    for value, name in zip(values, outputs, strict=True):
        context.output(value, name)
    outside.close(context)
    model = context.model()
    passes.simplify(model, further)
    symbolic_sizes.name_axes(context.graph)
    for value in context.graph.outputs:
        _name_what_is_left(value)
    return context, model


def _name_what_is_left(output: ir.Value) -> None:
    """Sizes that nobody could trace to an input are called after the output that has them."""
    assert output.shape is not None and output.name is not None
    known = [None if symbolic_sizes.is_nameless(n) else n for n in output.shape]
    names = axis_names(tuple(n if isinstance(n, int) else None for n in known), output.name)
    output.shape = ir.Shape([b if a is None else a for a, b in zip(known, names, strict=True)])


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
    return (
        "int8" if any(part.quantization_mode == "int8" for part in functional_graph.parts(model)) else "fp32"
    )


def _verified(
    model: Any, outside: Interface, lowered: GraphContext, path: Path
) -> tuple[contract.Parity, tuple[str, ...]]:
    """Compares the graph with Keras; returns the result and notes about branches that no example reaches."""
    outside = dataclasses.replace(outside, bounds=tuple(lowered.bounds))
    precision, outputs = _precision(model), _names(lowered)[: len(outside.outputs)]
    run = comparison.expected_of(model, outside)
    cases = comparison.cases_for(model, outside)
    branching = branches.control_flow(path)
    if branching:
        cases += branches.scaled(cases, run)

    def compare(path: Path, cases: Sequence[Case]) -> contract.Parity:
        return comparison.verify(path, cases, outputs, precision)[0]

    try:
        parity, weak = comparison.verify(path, cases, outputs, precision)
        notes = _compared_otherwise(model, outside, lowered.opset, path, cases, weak) if weak else ()
        if branching:
            notes += branches.compare_untested(path, cases, run, compare, lowered.predicates)
        return parity, notes
    except ExportError as error:

        def write(probe: Any, path: Path) -> list[str]:
            outputs = [f"output_{index}" for index in range(len(probe.outputs))]
            context, onnx_model = _lowered(
                functional_graph.function_of(probe), outside, outputs, lowered.opset
            )
            write_graph(onnx_model, path)
            return _names(context)

        try:
            tolerance = tolerances.TOLERANCES[precision]
            places = (
                comparison.first_difference(model, case, write, lowered.tiers, tolerance) for case in cases
            )
            where = next(filter(None, places), None)
            if where is None:
                where = "No single layer differs by that much."
                if unpadding.unpad in outside.passes:
                    where += " If the head reads masked tokens, which are not computed, pass unpad=False."
        except Exception as other:  # whatever Keras raises for a part of the model
            where = f"The layers could not be compared: {one_line(other)}"
        raise ExportError(f"{error} {where} No folder was left.") from None


def _compared_otherwise(
    model: Any, outside: Interface, opset: int, path: Path, cases: Sequence[Case], weak: Sequence[str]
) -> tuple[str, ...]:
    """Compares outputs that hardly vary before their activation, or with redrawn weights; returns notes."""
    if _precision(model) != "fp32":
        return (_weak_note(weak),)
    outputs = outside.outputs
    differences = evidence.compare_before_activation(model, path, outputs, weak, cases)
    left = [name for name in weak if name not in differences]
    notes = tuple(
        f"Output {name!r} hardly varies over the examples; before the model's last activation, "
        f"onnxruntime is within {difference:.1e} of Keras."
        for name, difference in differences.items()
    )
    if not left:
        return notes
    with evidence.redrawn(model) as count, tempfile.TemporaryDirectory() as place:
        if not count:
            return (*notes, _weak_note(left))
        redrawn = Path(place, "redrawn.onnx")
        try:
            context, onnx_model = _lowered(
                functional_graph.function_of(model), outside, outputs, opset, outside.passes
            )
            write_graph(onnx_model, redrawn)
            again = comparison.cases_for(model, outside)
        except Exception as error:  # layers that need their own variables
            return (*notes, f"{_weak_note(left)} With redrawn weights: {one_line(error)}")
        parity, weak = comparison.verify(redrawn, again, _names(context)[: len(outputs)])
        weak = [name for name in weak if name in left]
        differences = evidence.compare_before_activation(model, redrawn, outputs, weak, again)
    proven = [name for name in left if name not in weak or name in differences]
    left = [name for name in left if name not in proven]
    if proven:
        worst = max([parity.max_difference, *differences.values()])
        notes += (
            f"Output{'s' * (len(proven) > 1)} {', '.join(map(repr, proven))} hardly "
            f"{'vary' if len(proven) > 1 else 'varies'} over the examples; with {count} constant weights "
            f"redrawn for the comparison, onnxruntime is within {worst:.1e} of Keras.",
        )
    return (*notes, _weak_note(left)) if left else notes


def _weak_note(names: Sequence[str]) -> str:
    return (
        f"{', '.join(map(repr, names))}: the output hardly varies over the random examples, so the "
        "comparison with Keras proves little. Compare it on your own inputs."
    )


def _names(context: GraphContext) -> list[str]:
    """The outputs as the graph has them: a name that was taken got a number."""
    return [str(value.name) for value in context.graph.outputs]


def _manifest(
    aside: Path,
    outside: Interface,
    context: GraphContext,
    opset: int,
    parity: contract.Parity | None,
    precision: str,
    notes: tuple[str, ...],
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
        notes=notes,
        bounds=tuple(context.bounds),
    )


def _spec(value: ir.Value) -> contract.TensorSpec:
    assert value.name and value.shape is not None and value.dtype
    shape = tuple(n if isinstance(n, int) else str(n.value) for n in value.shape)
    return contract.TensorSpec(value.name, value.dtype.numpy().name, shape)
