"""Writes files of lower precision into a folder, from its fp32 file, and compares each with it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError, RunError
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_cache import shared_cache_difference
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.model_file import check_graph, write_graph
from keras_tx_onnx.graph.passes import infer_shapes
from keras_tx_onnx.graph.shared_cache import note_of, write_shared
from keras_tx_onnx.quantizing import activation_ranges, calibration_inputs, products, recipes
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.float16 import NEAR_THE_END
from keras_tx_onnx.quantizing.int8 import Range

# The largest error of an int8 layer, relative to its result. MiniLM's layers lose up to 0.07. In a trained
# decoder some layers lose 0.1 to 0.3: a few of their inputs are hundreds of times as large as the rest, for
# which one range has no steps left. Those get blocks, as slow as int8-blocks and as small as int8.
LARGEST_ERROR_OF_A_RANGE = 0.08


@dataclasses.dataclass(frozen=True)
class Options:
    """How to quantize.

    Attributes:
        keep: layers that stay in fp32.
        calibration: batches for the ranges of int8.
        examples: a batch on which to compare the files; random inputs if it is None.
    """

    keep: tuple[str, ...] = ()
    calibration: Any = None
    examples: Any = None


class PrecisionWriter:
    """Writes files of lower precision into a folder, and compares them with its fp32 file.

    Args:
        folder: with the fp32 file.
        manifest: of the folder.
        options: how to quantize.

    Attributes:
        manifest: with the files that were added.
        batch: on which the files are compared.
        expected: the outputs of the fp32 file for it.

    Raises:
        ConfigError: if the batches of the options do not fit the inputs.
        ExportError: if the fp32 file does not run on the batch.
    """

    def __init__(self, folder: Path, manifest: contract.Manifest, options: Options):
        self.folder = folder
        self.manifest = manifest
        self._options = options
        self._source = folder / manifest.precisions["fp32"]
        self._in_blocks: tuple[str, ...] = ()  # layers of int8
        self._ranges: dict[str, Range] | None = None
        specs, calibration = manifest.inputs, options.calibration
        self._calibration = (
            None if calibration is None else calibration_inputs.checked(calibration, specs, "calibration")
        )
        if options.examples is not None:
            batches = iter(calibration_inputs.checked(options.examples, specs, "examples")[:1])
        elif self._calibration is not None:
            batches = iter(self._calibration[:1])
        else:
            batches = calibration_inputs.drawn(specs, ir.load(self._source).graph)
        self.batch, self.expected = self._first_that_runs(batches)

    def _first_that_runs(self, batches: Iterator[Feed]) -> tuple[Feed, dict[str, np.ndarray]]:
        reason = "none"
        with Session(self._source, provider="cpu") as session:
            for batch in batches:
                try:
                    outputs = session.run(batch)
                except RunError as error:
                    reason = str(error)
                    continue
                if all(np.isfinite(y).all() for y in outputs.values() if y.dtype.kind == "f"):
                    return batch, outputs
                reason = "its outputs are not finite"
        raise calibration_inputs.failed(reason)

    def add(self, precision: str, also_keep: Sequence[str] = ()) -> contract.Variant:
        """Writes the file of a precision, compares it, and enters it in the manifest.

        Args:
            precision: its name.
            also_keep: layers that stay in fp32, beside those of the options.

        Returns:
            The entry of the manifest.

        Raises:
            ExportError: if a layer or an output is off by more than rounding costs.
        """
        model = ir.load(self._source)
        if precision == "fp16":
            recipe, kept, notes = "half precision", (), self._convert_to_float16(model)
        else:
            recipe, kept, notes = self._quantize(model, precision, (*self._options.keep, *also_keep))
        path = self.folder / contract.PRECISIONS[precision]
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        write_graph(model, path)
        check_graph(path)
        noise, agreement, specs = self._compare(path, precision)
        if precision != "fp16":  # for devices; the shared cache is for the CPU
            notes = [*notes, *self._share_cache(path, precision)]
        variant = contract.Variant(recipe, noise, agreement, kept=kept, notes=tuple(notes), **specs)
        self._enter(precision, variant)
        return variant

    def _convert_to_float16(self, model: ir.Model) -> list[str]:
        infer_shapes(model)
        largest = activation_ranges.largest(self._source, self.batch)
        return recipes.convert_to_float16(
            model, [x for x, size in largest.items() if not size < NEAR_THE_END]
        )

    def _quantize(
        self, model: ir.Model, precision: str, keep: Sequence[str]
    ) -> tuple[str, tuple[str, ...], list[str]]:
        """Quantizes a graph in place; returns the recipe's name, the layers that were kept, and notes."""
        self._in_blocks = ()
        errors = self.errors(precision)
        activation_ranges.check(errors, precision)
        if precision == "int8":
            self._in_blocks = _needing_blocks(products.plan(model.graph, keep), errors)
        if self._in_blocks:
            activation_ranges.check(self.errors(precision), precision)
        recipe = self._recipe(precision)
        plan, notes = recipes.quantize_graph(model, precision, recipe, keep)
        if self._in_blocks:
            notes = [*notes, _in_blocks_note(self._in_blocks)]
        return recipe.name, plan.kept, [*notes, *_left_in_float32(model)]

    def errors(self, precision: str) -> list[activation_ranges.Error]:
        """The error of each quantized layer alone."""
        return activation_ranges.errors(self._source, self._recipe(precision), self._options.keep, self.batch)

    def _recipe(self, precision: str) -> recipes.Recipe:
        if precision != "int8" or self._calibration is None:
            return recipes.recipe_of(precision, in_blocks=self._in_blocks)
        if self._ranges is None:
            self._ranges = activation_ranges.ranges(self._source, self._options.keep, self._calibration)
        return recipes.recipe_of(precision, self._ranges, self._in_blocks)

    def _share_cache(self, path: Path, precision: str) -> list[str]:
        """Writes the graph with a shared cache if fp32 has one; returns a note.

        The two graphs agree in fp32. In lower precision they may round to different steps. If a model
        amplifies that beyond the tolerance, the folder has no such graph: an answer must not depend on which
        graph runs.
        """
        if not self._source.with_name(contract.shared_name(self._source.name)).exists():
            return []
        shared = write_shared(path)
        assert shared is not None, f"fp32 has a shared cache, but {precision} none"
        check_graph(shared)
        context = _read(self.folder / contract.GENAI_CONFIG)["model"]["context_length"]
        difference, tolerance = shared_cache_difference(path, shared, context, exact=False)
        if difference <= tolerance:
            return [note_of(shared, path, difference)]
        shared.unlink()
        return [
            "No graph with a cache that is written in place: it rounds differently, and its logits differ "
            f"from those of onnx/{path.name} by {difference:.1e} of their scale (tolerance {tolerance:.0e})."
        ]

    def _compare(self, path: Path, precision: str) -> tuple[float, float | None, dict[str, Any]]:
        """Returns the noise, the agreement, and the specs of inputs and outputs of another dtype."""
        with Session(path, provider="cpu") as session:
            outputs = run_with_dtypes(session, self.batch)
            specs = {
                "inputs": _changed(self.manifest.inputs, session.inputs),
                "outputs": _changed(self.manifest.outputs, session.outputs),
            }
        noise = 0.0
        for name, expected in self.expected.items():
            if expected.dtype.kind == "f":
                noise = max(noise, tolerances.difference(expected, outputs[name].astype("float32")))
        if not np.isfinite(noise):
            raise ExportError(
                f"The {precision} graph computes NaN or infinity where fp32 does not. Use another precision."
            )
        if precision == "fp16" and noise > tolerances.HALF:
            raise ExportError(
                f"The fp16 graph differs from fp32 by {noise:.1e} of an output's scale (tolerance "
                f"{tolerances.HALF:.0e}): its numbers exceed half precision. Use fp32 or int8."
            )
        return noise, _agreement(self.expected, outputs, self.batch), specs

    def _enter(self, precision: str, variant: contract.Variant) -> None:
        manifest = self.manifest
        files = {**manifest.precisions, precision: contract.PRECISIONS[precision]}
        ordered = {name: files[name] for name in contract.PRECISIONS if name in files}
        self.manifest = dataclasses.replace(
            manifest, precisions=ordered, variants={**manifest.variants, precision: variant}
        )

    def leave_only(self, precisions: Collection[str]) -> None:
        """Removes the files of all other precisions."""
        for name in set(self.manifest.precisions) - set(precisions):
            path = self.folder / self.manifest.precisions[name]
            for file in (*path.parent.glob(f"{path.name}*"), path.with_name(contract.shared_name(path.name))):
                file.unlink(missing_ok=True)
        left = {k: v for k, v in self.manifest.precisions.items() if k in precisions}
        made = {k: v for k, v in self.manifest.variants.items() if k in precisions}
        self.manifest = dataclasses.replace(self.manifest, precisions=left, variants=made)

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


def run_with_dtypes(session: Session, batch: Feed) -> dict[str, np.ndarray]:
    """Runs inputs of fp32 on a graph whose cache may have half precision."""
    dtypes = {spec.name: spec.dtype for spec in session.inputs}
    return session.run({name: x.astype(dtypes[name], copy=False) for name, x in batch.items()})


def _needing_blocks(plan: products.Plan, errors: Sequence[activation_ranges.Error]) -> tuple[str, ...]:
    """Layers whose error is too large with one range for their input, without tables."""
    tables = {lookup.layer for lookup in plan.lookups}
    beyond = {error.layer for error in errors if error.measured > LARGEST_ERROR_OF_A_RANGE}
    return tuple(layer for layer in plan.layers if layer in beyond - tables)


def _in_blocks_note(layers: Sequence[str]) -> str:
    return (
        "In 8-bit blocks, because one range for their input loses more than "
        f"{LARGEST_ERROR_OF_A_RANGE:.0%} of their result: {', '.join(layers)}."
    )


def _left_in_float32(model: ir.Model) -> list[str]:
    """A note if most weights of a quantized graph are not quantized, with the nodes that use them."""
    sizes: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            quantized = value.dtype != ir.DataType.FLOAT
            user = next((node.op_type for node, _ in value.uses()), "nothing")
            sizes["" if quantized else user] += value.const_value.size
    total, quantized = sizes.total(), sizes.pop("", 0)
    if quantized >= total / 2:
        return []
    most = ", ".join(name for name, _ in sizes.most_common(3))
    return [
        f"{quantized / total:.1%} of the weights are quantized, those of matrix products and tables, so the "
        f"file is hardly smaller than fp32's. The others stay in float32, most of them in {most}."
    ]


def _changed(
    specs: Sequence[contract.TensorSpec], actual: Sequence[contract.TensorSpec]
) -> tuple[contract.TensorSpec, ...] | None:
    """The specs with the actual dtypes; None if they are the same."""
    dtypes = {spec.name: spec.dtype for spec in actual}
    new = tuple(dataclasses.replace(spec, dtype=dtypes[spec.name]) for spec in specs)
    return None if new == tuple(specs) else new


def _agreement(expected: dict[str, np.ndarray], outputs: dict[str, np.ndarray], batch: Feed) -> float | None:
    """The share of rows or tokens with the same largest logit, without padding."""
    name = next((n for n in (contract.LOGITS, contract.PREDICTION_LOGITS) if n in expected), None)
    if name is None or expected[name].ndim < 2 or expected[name].shape[-1] < 2:
        return None
    same = expected[name].argmax(-1) == outputs[name].argmax(-1)
    mask = batch.get(contract.ATTENTION_MASK)
    if mask is not None and mask.shape == same.shape:
        same = same[mask != 0]
    return float(same.mean())


def _update_configs(folder: Path, manifest: contract.Manifest) -> None:
    """Lists graphs with a data file in config.json, and names an existing graph in genai_config.json."""
    graphs = [Path(name).name for name in manifest.precisions.values()]
    with_data = {name: True for name in graphs if (folder / "onnx" / f"{name}_data").exists()}
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
