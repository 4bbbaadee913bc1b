"""Writes files of lower precision into a folder, from its fp32 files, and compares each with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError, RunError
from keras_tx.runtime.adapter_file import read_adapter_file
from keras_tx.runtime.example_inputs import first_call, next_call
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_cache import compare_shared_cache, window_error
from keras_tx_onnx.graph.model_file import check_graph
from keras_tx_onnx.graph.shared_cache import note_of, write_shared
from keras_tx_onnx.quantizing import activation_ranges, calibrated_blocks, calibration_inputs, products
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.graph_quantizer import Example, GraphQuantizer

Graphs = TypeVar("Graphs", contract.Manifest, contract.EncoderGraphs)


@dataclasses.dataclass(frozen=True)
class Options:
    """How to quantize.

    Attributes:
        keep: layers that stay in fp32.
        calibration: batches for the rounding of a decoder's int4, and for the ranges of other models' int8.
        calibration_name: describes these batches, for the manifest.
        examples: a batch on which to compare the files; random inputs if it is None.
    """

    keep: tuple[str, ...] = ()
    calibration: Any = None
    calibration_name: str = ""
    examples: Any = None


class PrecisionWriter:
    """Writes files of lower precision into a folder, and compares them with its fp32 files.

    Args:
        folder: with the fp32 files.
        manifest: of the folder; the files of its `misplaced` precisions are removed.
        options: how to quantize.

    Attributes:
        manifest: with the files that were added.

    Raises:
        ConfigError: if the batches of the options do not fit the inputs, or no graph has a layer of `keep`.
        ExportError: if the fp32 files do not run on the batch.
    """

    def __init__(self, folder: Path, manifest: contract.Manifest, options: Options):
        self.folder = folder
        self.manifest = manifest
        self._graph = folder / manifest.precisions["fp32"]
        quantizers = _of_graph if manifest.encoder is None else _of_encoder_and_decoder
        self._quantizers: list[GraphQuantizer] = quantizers(folder, manifest, options)
        if other := misplaced(manifest):
            self.leave_only(set(manifest.precisions) - set(other))

    def add(self, precision: str, also_keep: Sequence[str] = ()) -> contract.Variant:
        """Writes the files of a precision, compares them, and enters them in the manifest.

        Args:
            precision: its name.
            also_keep: layers that stay in fp32, beside those of the options.

        Returns:
            The entry of the manifest for the main graph.

        Raises:
            ExportError: if a layer or an output is off by more than rounding costs.
        """
        paths = [_path(x.source, precision) for x in self._quantizers]
        keeps: list[list[str]] = [[] for _ in paths]
        if also_keep:
            plans = [products.plan(ir.load(x.source).graph) for x in self._quantizers]
            keeps = _keep_by_graph(also_keep, plans)
        try:
            variants = [
                quantizer.write(precision, path, keep)
                for quantizer, path, keep in zip(self._quantizers, paths, keeps, strict=True)
            ]
        except ExportError:
            self._remove(precision, paths)
            raise
        main = variants[-1]
        if precision != "fp16":  # for devices; the shared cache is for the CPU
            main = dataclasses.replace(main, notes=(*main.notes, *self._share_cache(paths[-1], precision)))
        self._enter(precision, paths[-1], main)
        encoder = self.manifest.encoder
        if encoder is not None:
            encoder = _with(encoder, precision, self._name(paths[0]), variants[0])
            self.manifest = dataclasses.replace(self.manifest, encoder=encoder)
        return main

    def errors(self, precision: str) -> list[activation_ranges.Error]:
        """The error of each quantized layer alone."""
        return [error for quantizer in self._quantizers for error in quantizer.errors(precision)]

    def _share_cache(self, path: Path, precision: str) -> list[str]:
        """Writes the graph with a shared cache if fp32 has one; returns a note.

        The two graphs agree in fp32. In lower precision they may round to different steps. If a model
        amplifies that beyond the tolerance, the folder has no such graph: an answer must not depend on which
        graph runs.
        """
        fp32 = self._graph.with_name(contract.shared_name(self._graph.name))
        if not fp32.exists():
            return []
        context = _read(self.folder / contract.GENAI_CONFIG)["model"]["context_length"]
        shared = write_shared(path, context)
        assert shared is not None, f"fp32 has a shared cache, but {precision} none"
        check_graph(shared)
        if error := window_error(shared, fp32):
            self._remove(precision, [path, shared])
            raise ExportError(f"{error} Please report this defect of keras-tx.")
        comparison = compare_shared_cache(path, shared, context, exact=False)
        if comparison.difference <= comparison.tolerance:
            return [note_of(shared, path, comparison)]
        shared.unlink()
        return [
            "No graph with a cache that is written in place: it rounds differently, and its logits differ "
            f"from those of onnx/{path.name} by {comparison.difference:.1e} of their scale "
            f"(tolerance {comparison.tolerance:.0e})."
        ]

    def _remove(self, precision: str, paths: Sequence[Path]) -> None:
        """Removes files that differ too much, and an older entry of the manifest."""
        self.leave_only(set(self.manifest.precisions) - {precision})
        for path in paths:
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()

    def _enter(self, precision: str, path: Path, variant: contract.Variant) -> None:
        self.manifest = _with(self.manifest, precision, self._name(path), variant)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def leave_only(self, precisions: Collection[str]) -> None:
        """Removes the files of all other precisions."""
        for graphs in all_graphs(self.manifest):
            for name in set(graphs.precisions) - set(precisions):
                path = self.folder / graphs.precisions[name]
                shared = path.with_name(contract.shared_name(path.name))
                for file in (*path.parent.glob(f"{path.name}*"), shared):
                    file.unlink(missing_ok=True)
        encoder = self.manifest.encoder
        self.manifest = dataclasses.replace(
            _only(self.manifest, precisions),
            encoder=None if encoder is None else _only(encoder, precisions),
        )

    def finish(self, more: Sequence[str] = ()) -> contract.Manifest:
        """Lists the files for other clients, hashes them and `more`, and writes the manifest."""
        _update_configs(self.folder, self.manifest)
        graphs = {path for path in (self.folder / "onnx").iterdir()}
        known = {self.folder / name for name in (*self.manifest.files, *more)}
        paths = sorted(path for path in known | graphs if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): contract.describe_file(path) for path in paths}
        self.manifest = dataclasses.replace(self.manifest, files=files)
        self.manifest.save(self.folder)
        return self.manifest


def add_precisions(folder: Path, manifest: contract.Manifest, precisions: Sequence[str]) -> contract.Manifest:
    """Adds precisions to a folder that is being exported; removes fp32 if it is not one of them."""
    writer = PrecisionWriter(folder, manifest, Options())
    for precision in precisions:
        if precision != "fp32":
            writer.add(precision)
    writer.leave_only(precisions)
    return writer.finish()


def misplaced(manifest: contract.Manifest) -> list[str]:
    """The precisions in files of another name: those of a decoder whose int8 was dynamic."""
    if manifest.task != contract.TEXT_GENERATION:
        return []
    return [
        name
        for name, file in manifest.precisions.items()
        if name in manifest.variants and file != contract.graph_name(name)
    ]


def all_graphs(manifest: contract.Manifest) -> list[contract.Manifest | contract.EncoderGraphs]:
    """The graphs of a folder by precision: those of its encoder, if it has one, and the main ones."""
    return [manifest] if manifest.encoder is None else [manifest.encoder, manifest]


def input_specs(manifest: contract.Manifest) -> tuple[contract.TensorSpec, ...]:
    """The inputs of a batch: those of the graph, or of an encoder and the ids of its decoder."""
    if manifest.encoder is None:
        return manifest.inputs
    target = (contract.BATCH_AXIS, contract.TARGET_AXIS)
    return (*manifest.encoder.inputs, contract.TensorSpec(contract.DECODER_INPUT_IDS, "int64", target))


def first_call_of(manifest: contract.Manifest, batch: Feed, hidden: np.ndarray) -> Feed:
    """The inputs of the decoder's graph for a batch and the output of the encoder."""
    ids, mask = batch[contract.DECODER_INPUT_IDS], batch[contract.ATTENTION_MASK]
    return first_call(manifest.inputs, ids, mask, hidden)


def _with(graphs: Graphs, precision: str, name: str, variant: contract.Variant) -> Graphs:
    """The entries of the manifest with another graph, in the order of precisions."""
    return dataclasses.replace(
        graphs,
        precisions=contract.in_order({**graphs.precisions, precision: name}),
        variants={**graphs.variants, precision: variant},
    )


def _only(graphs: Graphs, precisions: Collection[str]) -> Graphs:
    left = {k: v for k, v in graphs.precisions.items() if k in precisions}
    made = {k: v for k, v in graphs.variants.items() if k in precisions}
    return dataclasses.replace(graphs, precisions=left, variants=made)


def _path(source: Path, precision: str) -> Path:
    """The file of a precision, by the fp32 graph."""
    return source.with_name(Path(contract.graph_name(precision, source.name)).name)


def _of_graph(folder: Path, manifest: contract.Manifest, options: Options) -> list[GraphQuantizer]:
    source = folder / manifest.precisions["fp32"]
    calibration, batches = _batches(options, manifest.inputs, [ir.load(source).graph])
    if manifest.task == contract.TEXT_GENERATION:
        if calibration is not None:
            calibrated_blocks.check_tokens(calibration)
        if options.examples is None:  # its logits are large
            batches = (next(calibrated_blocks.parts_of(batch)) for batch in batches)
    adapters = _adapters(folder, [x.file for x in manifest.adapters.values()])
    with Session(source, provider="cpu") as session:

        def run(batch: Feed) -> list[Example]:
            """The graph without and with each adapter."""
            feeds = [{**batch, **values} for values in adapters]
            return [Example(feed, session.run(feed)) for feed in feeds]

        examples = _first_that_runs(batches, run)
    specs = (manifest.inputs, manifest.outputs)
    return [
        GraphQuantizer(
            source,
            specs,
            examples,
            options.keep,
            calibration,
            manifest.task,
            options.calibration_name,
            examples_of_calibration=options.examples is None and calibration is not None,
        )
    ]


def _of_encoder_and_decoder(
    folder: Path, manifest: contract.Manifest, options: Options
) -> list[GraphQuantizer]:
    """The quantizers of both graphs."""
    encoder = manifest.encoder
    assert encoder is not None
    paths = [folder / graphs.precisions["fp32"] for graphs in (encoder, manifest)]
    graphs = [ir.load(path).graph for path in paths]
    _ids_of_the_target(graphs[1]).name = contract.DECODER_INPUT_IDS
    calibration, batches = _batches(options, input_specs(manifest), graphs)
    sources = _adapters(folder, [encoder.adapters[name] for name in manifest.adapters])
    targets = _adapters(folder, [x.file for x in manifest.adapters.values()])
    with Session(paths[0], provider="cpu") as first, Session(paths[1], provider="cpu") as second:

        def of_encoder(batch: Feed, adapter: Feed) -> Example:
            source = {**{spec.name: batch[spec.name] for spec in encoder.inputs}, **adapter}
            return Example(source, first.run(source))

        def of_decoder(batch: Feed, source: Example) -> Feed:
            return first_call_of(manifest, batch, source.expected[contract.LAST_HIDDEN_STATE])

        def run(batch: Feed) -> list[Example]:
            """The encoder, and the decoder without and with a cache; all without and with each adapter."""
            examples = []
            for of_source, of_target in zip(sources, targets, strict=True):
                source = of_encoder(batch, of_source)
                feed = {**of_decoder(batch, source), **of_target}
                target = Example(feed, second.run(feed))
                later = next_call(feed, target.expected, feed[contract.INPUT_IDS][:, -1:])
                examples += [source, target, Example(later, second.run(later))]
            return examples

        examples = _first_that_runs(batches, run)
        calibrations: list[list[Feed] | None] = [None, None]
        if calibration is not None:
            encoded = [of_encoder(batch, {}) for batch in calibration]
            pairs = zip(calibration, encoded, strict=True)
            calibrations = [[x.batch for x in encoded], [of_decoder(*pair) for pair in pairs]]
    keeps = _keep_by_graph(options.keep, [products.plan(graph) for graph in graphs])
    with_logits = [x for x in examples if contract.LOGITS in x.expected]
    without = [x for x in examples if contract.LOGITS not in x.expected]
    return [
        GraphQuantizer(paths[0], (encoder.inputs, encoder.outputs), without, keeps[0], calibrations[0]),
        GraphQuantizer(paths[1], (manifest.inputs, manifest.outputs), with_logits, keeps[1], calibrations[1]),
    ]


def _ids_of_the_target(decoder: ir.Graph) -> ir.Value:
    return next(value for value in decoder.inputs if value.name == contract.INPUT_IDS)


def _adapters(folder: Path, files: Iterable[str]) -> list[Feed]:
    """Values for no adapter, and those of each."""
    return [{}, *(read_adapter_file(folder / file) for file in files)]


def _keep_by_graph(keep: Sequence[str], plans: Sequence[products.Plan]) -> list[list[str]]:
    """The paths of `keep` that each graph has; raises a ConfigError for one that none has."""
    whole = products.Plan(
        tuple(x for plan in plans for x in plan.products), tuple(x for plan in plans for x in plan.lookups)
    )
    whole.without(keep)
    return [[path for path in keep if plan.has(path)] for plan in plans]


def _batches(
    options: Options, specs: Sequence[contract.TensorSpec], graphs: Sequence[ir.Graph]
) -> tuple[list[Feed] | None, Iterator[Feed]]:
    """The batches of the calibration, and those on which to compare, best first."""
    calibration = options.calibration
    if calibration is not None:
        calibration = calibration_inputs.checked(calibration, specs, "calibration")
    if options.examples is not None:
        return calibration, iter(calibration_inputs.checked(options.examples, specs, "examples")[:1])
    if calibration is not None:
        return calibration, iter(calibration[:1])
    return None, calibration_inputs.drawn(specs, graphs)


def _first_that_runs(batches: Iterator[Feed], run: Callable[[Feed], list[Example]]) -> list[Example]:
    reason = "none"
    for batch in batches:
        try:
            examples = run(batch)
        except RunError as error:
            reason = str(error)
            continue
        if all(example.is_finite for example in examples):
            return examples
        reason = "its outputs are not finite"
    raise calibration_inputs.failed(reason)


def _update_configs(folder: Path, manifest: contract.Manifest) -> None:
    """Lists graphs with a data file in config.json, and names an existing graph in genai_config.json."""
    names = [Path(name).name for graphs in all_graphs(manifest) for name in graphs.precisions.values()]
    with_data = {name: True for name in names if (folder / "onnx" / f"{name}_data").exists()}
    if contract.CONFIG in manifest.files:
        config = _read(folder / contract.CONFIG)
        config.pop("transformers.js_config", None)
        if with_data:
            config["transformers.js_config"] = {"use_external_data_format": with_data}
        _write(folder / contract.CONFIG, config)
    if contract.GENAI_CONFIG in manifest.files:
        genai = _read(folder / contract.GENAI_CONFIG)
        genai["model"]["decoder"]["filename"] = next(iter(manifest.precisions.values()))
        _write(folder / contract.GENAI_CONFIG, genai)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
