"""export_onnx: writes a Keras model as a verified ONNX folder."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

import keras_tx
from keras_tx import contract
from keras_tx.atomic_write import atomic_directory, check_export_target
from keras_tx.errors import ConfigError, ExportError, nearest
from keras_tx.processing import ImageTransform
from keras_tx.runtime.folder import check_precision
from keras_tx.weights.weight_values import check_finite
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.model_file import check_graph, write_beside, write_graph
from keras_tx_onnx.graph.shared_cache import check_shared, note_of
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.model_graph import Exported, graph_of, recorded_options
from keras_tx_onnx.interfaces.separate_adapters import Adapters, SeparateAdapters
from keras_tx_onnx.quantizing.precision_files import add_precisions
from keras_tx_onnx.reading.keras_patches import patched
from keras_tx_onnx.reading.signature import as_functional
from keras_tx_onnx.report import Report
from keras_tx_onnx.targets import TargetGraphs, sizes_of, targets_of
from keras_tx_onnx.verifying.model_weights import common_weights
from keras_tx_onnx.verifying.verification import verify_adapter, verify_graphs


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
    opset: int | None = None,
    target: str | Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    cache: bool | str | None = None,
    unpad: bool | None = None,
    adapters: Adapters | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> Report:
    """Exports a Keras model to a folder for onnxruntime, keras_tx.runtime and other clients.

    The graph is verified against Keras before the folder is written to its final path. If a step fails, no
    folder is written.

    Args:
        model: a Keras model. Models of keras_tx's families (keras_tx.vit(), keras_tx.t5() ...) are exported
            with the input and output names of Hugging Face, other models with their own.
        folder: the folder to write. Missing parent folders are created.
        labels: names of the classes, in order. A model with one sigmoid has two: those of 0 and 1.
        tokenizer: the tokenizer of a text model: a TextTransform, a tokenizers.Tokenizer, the text of a
            tokenizer.json, or the path of that file or of its folder. Default: `model.processing`.
        image: how pixels become the input of an image model: an ImageTransform or, for a classifier,
            `preprocess_input` of a module of keras.applications. Default: `model.processing`, or the
            preprocessing of the model in keras.applications or keras-hub.
        task: "image-classification" exports any model with one image as input and one vector as output as a
            classifier, "text-classification" a text classifier of keras-hub with its tokenizer. Implied by
            labels, image and raw_pixels. "translation" and "summarization" are tasks of encoder-decoders,
            whose default is "text2text-generation".
        raw_pixels: whether the input is uint8 `pixels` (batch, height, width, channels), which the graph
            normalizes, instead of `pixel_values`.
        input_signature: the inputs of a subclassed model: a keras.InputSpec(shape, dtype, name), or a list
            with one for each argument of `call`, in the structure of that argument. A size of None is
            dynamic. None instead of an InputSpec keeps the default of an argument.
        precision: "fp32", "fp16", "int8", "int8-blocks" (of a decoder "int8-dynamic") or "int4", or a list of
            them. The others are computed from the verified fp32 graph and compared with it.
            `keras_tx_onnx.quantize` has more options.
        opset: the ONNX opset, from 17 to 26. Opsets below 23 have no Attention operator and opsets below 20
            no Gelu, so older operators replace them. Default: 23, or the newest of which the target has
            kernels.
        target: where onnxruntime will run the graph: "cpu", "cuda", "webgpu", "tensorrt", "openvino",
            "coreml" or "qnn". The graph consists of operators that have kernels there. With a list, each
            further target that needs another form has its own graph beside the first, over the same weights.
        sizes: dynamic axes of the inputs that get one size, such as {"batch_size": 1}. "coreml" and "qnn"
            require a size for each.
        cache: whether the graph of a decoder has a cache of keys and values, which text generation requires.
            Default: True if the model has a head, and for a CausalLM of keras-hub whose only inputs are
            token_ids and padding_mask. "shared" also writes onnx/model_shared.onnx, which updates
            its cache in place; weights of 64 MB or more imply it.
        unpad: whether per-token layers of a BERT skip padding. Default: True, if the target supports it.
        adapters: adapter folders that `keras_tx.save_adapter` or PEFT wrote for the model, which has no
            adapters itself: a list, where each has the name of its folder, or a dict by name. They are stored
            beside the base, and selected in each call: `model(inputs, adapter="reviews")`. Adapters in the
            model are merged into its weights.
        verify: whether to compare the graph with Keras, without and with each adapter.
        overwrite: whether to replace an export that exists in the folder.

    Returns:
        A Report. Printed, it is a table.

    Raises:
        ConfigError: if an argument is invalid or not supported for the model.
        ExportError: if the folder cannot be written, if the model cannot be exported, or if the graph differs
            from Keras by more than the tolerance. The message names the first layer that differs.

    Example:
        >>> import keras_tx, tempfile
        >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_onnx(model, folder + "/flowers", labels=["daisy", "rose", "tulip"])
        >>> report.nodes["Attention"]
        1
    """
    options = {"labels": labels, "tokenizer": tokenizer, "image": image, "task": task}
    options |= {"raw_pixels": raw_pixels, "cache": cache}
    folder = Path(folder).absolute()
    _check_arguments(model, opset)
    precisions = checked_precisions(precision)
    names, fixed = targets_of(target), sizes_of(sizes)
    targets = TargetGraphs(as_functional(model, input_signature), options, names, opset, fixed, unpad)
    targets.check_alone(precisions, adapters)
    interface = targets.main
    _check_precisions(precisions, interface, model)
    separate = None if adapters is None else SeparateAdapters(model, interface, adapters)
    beside = [] if separate is None else separate.adapters
    check_export_target(folder, overwrite)
    check_finite(interface.model, "Export the model as it was before its training diverged.", ExportError)

    seconds: dict[str, float] = {}
    parity, comparison, notes = None, None, []
    adapter_parities: dict[str, contract.Parity] = {}
    # Keras is patched once, not in each step.
    with patched(), atomic_directory(folder, ExportError) as partial:
        with _timed(seconds, "lower"):
            graphs = [
                Exported(part, partial / part.path, *graph_of(part, part.model)) for part in interface.parts
            ]
        with _timed(seconds, "write"):
            external = _write_graphs(graphs, interface.notes)
            path = graphs[-1].path
            shared = interface.write_second_graph(path, bool(external))
            external += targets.write(path)
            _write_files(partial, interface, external)
            if separate is not None:
                separate.write(partial)
        if verify:
            with _timed(seconds, "verify"):
                parity, notes, weights = verify_graphs(interface, graphs)
                notes += targets.verify()
                for each in beside:
                    adapter_parities[each.name] = verify_adapter(interface, graphs, each, partial)
                if shared is not None:
                    exact = interface.tolerance == tolerances.FLOAT32
                    weights = common_weights(weights, path, shared)
                    context, farthest = interface.context_length, interface.farthest
                    comparison = check_shared(path, shared, context, exact, weights, farthest)
        if shared is not None:
            notes = [*notes, note_of(shared, path, comparison)]
        with _timed(seconds, "hash"):
            stored = {
                each.name: contract.Adapter(
                    contract.ADAPTERS.format(each.name), adapter_parities.get(each.name), each.labels
                )
                for each in beside
            }
            notes = [*interface.notes, *notes]
            manifest = _write_manifest(partial, targets, graphs, parity, notes, stored)
        if precisions != ["fp32"]:
            with _timed(seconds, "quantize"):
                manifest = add_precisions(partial, manifest, precisions)
    nodes = Counter(node.op_type for each in graphs for node in each.model.graph.all_nodes())
    rounds_inputs = interface.tolerance == tolerances.INT8
    return Report(folder, manifest, nodes, interface.model.count_params(), seconds, rounds_inputs)


def _check_arguments(model: Any, opset: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model is a {type(model).__name__}, expected a Keras model. Load one with keras_tx.load_model."
        )
    if opset is not None and (not isinstance(opset, int) or opset not in contract.IR_VERSIONS):
        first, last = min(contract.IR_VERSIONS), max(contract.IR_VERSIONS)
        raise ConfigError(f"opset={opset!r} is out of range. Pass {first} to {last}.")


def _check_precisions(names: Sequence[str], interface: Interface, model: keras.Model) -> None:
    """Raises a ConfigError for precisions that the model cannot have."""
    for name in names:
        check_precision(name, interface.task)
    if names != ["fp32"] and interface.precision != "fp32":
        raise ConfigError(
            f"precision={names} is not supported: Keras already quantized model {model.name!r}. Omit "
            "precision, or export the model that was not quantized."
        )


def checked_precisions(names: str | Sequence[str]) -> list[str]:
    """The names of precisions, checked, each once, in the order of the contract."""
    names = [names] if isinstance(names, str) else list(names)
    expected = ", ".join(contract.PRECISIONS)
    for name in names:
        if name not in contract.PRECISIONS:
            raise ConfigError(
                f"precision has {name!r}, expected some of {expected}. "
                f"{nearest(str(name), contract.PRECISIONS)}"
            )
    if not names:
        raise ConfigError(f"precision is empty, expected some of {expected}.")
    return [name for name in contract.PRECISIONS if name in names]


def _write_graphs(graphs: Sequence[Exported], notes: list[str]) -> list[str]:
    """Writes the graphs, the main one first; returns the names of those with a data file."""
    *others, main = graphs
    external = {main.path.name: write_graph(main.model, main.path)}
    for each in others:
        external[each.path.name], shared = write_beside(each.model, each.path, main.path)
        if shared:
            notes.append(
                f"onnx/{each.path.name} reads {shared / 1e6:,.0f} MB of weights that both graphs use from "
                f"onnx/{main.path.name}_data. transformers.js in a web page cannot open such a graph: use "
                "files of a lower precision there."
            )
    for each in graphs:
        check_graph(each.path)
    return [name for name, has_data in external.items() if has_data]


def _write_files(folder: Path, interface: Interface, external: Sequence[str]) -> None:
    """Writes the files for clients; `external` are the names of the graphs with a data file."""
    for name, content in interface.files.items():
        if name == contract.CONFIG and external:
            use = {"use_external_data_format": dict.fromkeys(external, True)}
            content = {**content, "transformers.js_config": use}
        if not isinstance(content, str):
            content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8", newline="\n")


def _write_manifest(
    folder: Path,
    targets: TargetGraphs,
    graphs: Sequence[Exported],
    parity: contract.Parity | None,
    notes: Sequence[str],
    adapters: dict[str, contract.Adapter],
) -> contract.Manifest:
    """Hashes the files of the folder and writes the manifest."""
    interface = targets.main
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    encoders = [
        contract.EncoderGraphs(
            {interface.precision: each.interface.path},
            *each.specs,
            adapters={name: each.interface.adapter_path.format(name) for name in adapters},
        )
        for each in graphs[:-1]
    ]
    inputs, outputs = graphs[-1].specs
    manifest = contract.Manifest(
        keras_tx_version=keras_tx.__version__,
        task=interface.task,
        opset=interface.opset,
        precisions={interface.precision: graphs[-1].interface.path},
        inputs=inputs,
        outputs=outputs,
        tiers={layer: tier for each in graphs for layer, tier in each.context.tiers.items()},
        files={path.relative_to(folder).as_posix(): contract.describe_file(path) for path in files},
        parity=parity,
        labels=interface.labels,
        notes=tuple(notes),
        bounds=tuple(dict.fromkeys(bound for each in graphs for bound in each.context.bounds)),
        export_options=recorded_options(interface),
        encoder=encoders[0] if encoders else None,
        adapters=adapters,
        targets=targets.records(),
    )
    manifest.save(folder)
    return manifest


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start
