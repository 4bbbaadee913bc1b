"""Writes the files of a precision ladder into a folder, from its fp32 file, and compares each with that."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Sequence
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

# What an int8 layer may lose of its result. MiniLM's lose up to 0.07; in a trained decoder some layers are
# given a few numbers hundreds of times as large as the rest, for which one range has no steps left, and lose
# 0.1 to 0.3. Those get blocks, as slow as int8-blocks and as small as int8.
LOST_BY_A_RANGE = 0.08


@dataclasses.dataclass(frozen=True)
class Options:
    """How to quantize: layers to keep in fp32, and batches from which int8 takes its ranges."""

    keep: tuple[str, ...] = ()
    calibration: Any = None
    examples: Any = None  # to compare the files on, in place of random inputs


class Ladder:
    """One folder that is being written; `manifest` grows with it."""

    def __init__(self, folder: Path, manifest: contract.Manifest, options: Options):
        self.folder = folder
        self.manifest = manifest
        self._options = options
        self._source = folder / manifest.precisions["fp32"]
        self._in_blocks: tuple[str, ...] = ()  # layers of int8
        self._ranges: dict[str, Range] | None = None
        model = ir.load(self._source)
        specs = manifest.inputs
        self._calibration = (
            None
            if options.calibration is None
            else calibration_inputs.checked(options.calibration, specs, "calibration")
        )
        if options.examples is not None:
            drawn = iter(calibration_inputs.checked(options.examples, specs, "examples")[:1])
        elif self._calibration is not None:
            drawn = iter(self._calibration[:1])
        else:
            drawn = calibration_inputs.drawn(specs, model.graph)
        self.batch, self.expected = self._first_that_runs(drawn)

    def _first_that_runs(self, batches: Any) -> tuple[Feed, dict[str, np.ndarray]]:
        said = "none"
        with Session(self._source, provider="cpu") as session:
            for batch in batches:
                try:
                    got = session.run(batch)
                except RunError as error:
                    said = str(error)
                    continue
                if all(np.isfinite(y).all() for y in got.values() if y.dtype.kind == "f"):
                    return batch, got
                said = "its outputs are not finite"
        raise calibration_inputs.failed(said)

    def add(self, precision: str, also_keep: Sequence[str] = ()) -> contract.Variant:
        """Writes the file of a precision, checks and compares it, and enters it in the manifest."""
        keep = (*self._options.keep, *also_keep)
        path = self.folder / contract.PRECISIONS[precision]
        model = ir.load(self._source)
        if precision == "fp16":
            infer_shapes(model)
            largest = activation_ranges.largest(self._source, self.batch)
            large = [value for value, size in largest.items() if not size < NEAR_THE_END]
            notes, name, kept = recipes.convert_to_float16(model, large), "half precision", ()
        else:
            self._in_blocks = ()
            errors = self.errors(precision)
            activation_ranges.check(errors, precision)
            if precision == "int8":
                self._in_blocks = _beyond_a_range(products.plan(model.graph, keep), errors)
            if self._in_blocks:
                activation_ranges.check(self.errors(precision), precision)
            recipe = self._recipe(precision)
            plan, notes = recipes.quantize_graph(model, precision, recipe, keep)
            name, kept = recipe.name, plan.kept
            if precision == "int8" and self._in_blocks:
                notes = [*notes, _in_blocks_note(self._in_blocks)]
            notes = [*notes, *_left_in_float32(model)]
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        write_graph(model, path)
        check_graph(path)
        noise, agreement, dtypes = self._compare(path, precision)
        if precision != "fp16":  # which is for devices; the shared cache is the CPU's
            notes = [*notes, *self._share(path, precision)]
        variant = contract.Variant(
            recipe=name,
            noise=noise,
            agreement=agreement,
            kept=kept,
            notes=tuple(notes),
            **dtypes,
        )
        self._enter(precision, variant)
        return variant

    def errors(self, precision: str) -> list[activation_ranges.Error]:
        """What each quantized layer loses by itself."""
        return activation_ranges.errors(self._source, self._recipe(precision), self._options.keep, self.batch)

    def _recipe(self, precision: str) -> recipes.Recipe:
        if precision != "int8" or self._calibration is None:
            return recipes.recipe_of(precision, in_blocks=self._in_blocks)
        if self._ranges is None:
            self._ranges = activation_ranges.ranges(self._source, self._options.keep, self._calibration)
        return recipes.recipe_of(precision, self._ranges, self._in_blocks)

    def _share(self, path: Path, precision: str) -> list[str]:
        """The graph with a shared cache, where fp32 has one beside it.

        The same two graphs agreed in fp32. Here they round on either side of a step, and where a model makes
        much of that, the folder does without rather than with answers that depend on which of them is taken.
        """
        if not self._source.with_name(contract.shared_name(self._source.name)).exists():
            return []
        beside = write_shared(path)
        assert beside is not None, f"fp32 has a shared cache, but {precision} none"
        check_graph(beside)
        context = _read(self.folder / contract.GENAI_CONFIG)["model"]["context_length"]
        found, tolerance = shared_cache_difference(path, beside, context, exact=False)
        if found <= tolerance:
            return [note_of(beside, path, found)]
        beside.unlink()
        return [
            f"No graph with a cache that is written in place: rounding elsewhere, its logits are {found:.1e} "
            f"of their scale away from those of onnx/{path.name} (tolerance {tolerance:.0e})."
        ]

    def _compare(self, path: Path, precision: str) -> tuple[float, float | None, dict[str, Any]]:
        with Session(path, provider="cpu") as session:
            kinds = {spec.name: spec.dtype for spec in session.inputs}
            given = {name: x.astype(kinds[name], copy=False) for name, x in self.batch.items()}
            got = session.run(given)
            dtypes = {
                kind: _changed(
                    getattr(self.manifest, kind), {s.name: s.dtype for s in getattr(session, kind)}
                )
                for kind in ("inputs", "outputs")
            }
        noise = 0.0
        for name, expected in self.expected.items():
            if expected.dtype.kind == "f":
                noise = max(noise, tolerances.difference(expected, got[name].astype("float32")))
        if not np.isfinite(noise):
            raise ExportError(
                f"The {precision} graph computes numbers that are not finite where fp32's are. Use another "
                "precision."
            )
        if precision == "fp16" and noise > tolerances.HALF:
            raise ExportError(
                f"The fp16 graph differs from fp32 by {noise:.1e} of an output's scale (tolerance "
                f"{tolerances.HALF:.0e}): numbers inside are beyond half precision. Use fp32, or int8."
            )
        return noise, _agreement(self.expected, got, self.batch), dtypes

    def _enter(self, precision: str, variant: contract.Variant) -> None:
        manifest = self.manifest
        there = {**manifest.precisions, precision: contract.PRECISIONS[precision]}
        order = {name: there[name] for name in contract.PRECISIONS if name in there}
        self.manifest = dataclasses.replace(
            manifest, precisions=order, variants={**manifest.variants, precision: variant}
        )

    def leave_only(self, precisions: Collection[str]) -> None:
        """Removes the files of all others."""
        for name in set(self.manifest.precisions) - set(precisions):
            path = self.folder / self.manifest.precisions[name]
            for file in (*path.parent.glob(f"{path.name}*"), path.with_name(contract.shared_name(path.name))):
                file.unlink(missing_ok=True)
        left = {k: v for k, v in self.manifest.precisions.items() if k in precisions}
        made = {k: v for k, v in self.manifest.variants.items() if k in precisions}
        self.manifest = dataclasses.replace(self.manifest, precisions=left, variants=made)

    def finish(self, more: Sequence[str] = ()) -> contract.Manifest:
        """Tells other clients which files there are, hashes them and `more`, and writes the manifest."""
        _tell_clients(self.folder, self.manifest)
        graphs = {path for path in (self.folder / "onnx").iterdir()}
        known = {self.folder / name for name in (*self.manifest.files, *more)}
        paths = sorted(path for path in known | graphs if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): contract.describe_file(path) for path in paths}
        self.manifest = dataclasses.replace(self.manifest, files=files)
        self.manifest.save(self.folder)
        return self.manifest


def add_precisions(folder: Path, manifest: contract.Manifest, wanted: Sequence[str]) -> contract.Manifest:
    """The files of a folder that is being exported; without fp32 where that was not asked for."""
    ladder = Ladder(folder, manifest, Options())
    for precision in wanted:
        if precision != "fp32":
            ladder.add(precision)
    ladder.leave_only(wanted)
    return ladder.finish()


def _beyond_a_range(plan: products.Plan, errors: Sequence[activation_ranges.Error]) -> tuple[str, ...]:
    """Layers that lose too much of their result; not a tied table, which is stored once."""
    tied = {lookup.layer for lookup in plan.lookups}
    lost = {error.layer for error in errors if error.measured > LOST_BY_A_RANGE}
    return tuple(layer for layer in plan.layers if layer in lost - tied)


def _in_blocks_note(layers: Sequence[str]) -> str:
    return (
        f"In 8-bit blocks, because one range for their input loses more than {LOST_BY_A_RANGE:.0%} of their "
        f"result: {', '.join(layers)}."
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
        f"{quantized / total:.1%} of the weights are quantized, so that the file is hardly smaller than "
        "fp32's: only those of matrix products and tables are. The others stay in float32, most of them in "
        f"{most}."
    ]


def _changed(
    specs: Sequence[contract.TensorSpec], dtypes: dict[str, str]
) -> tuple[contract.TensorSpec, ...] | None:
    """The specs with these dtypes; None where they are the same."""
    new = tuple(dataclasses.replace(spec, dtype=dtypes[spec.name]) for spec in specs)
    return None if new == tuple(specs) else new


def _agreement(expected: dict[str, np.ndarray], got: dict[str, np.ndarray], batch: Feed) -> float | None:
    """The share of rows whose largest number stays where it is, over what is no padding."""
    name = next((n for n in (contract.LOGITS, contract.PREDICTION_LOGITS) if n in expected), None)
    if name is None or expected[name].ndim < 2 or expected[name].shape[-1] < 2:
        return None
    same = expected[name].argmax(-1) == got[name].argmax(-1)
    mask = batch.get(contract.ATTENTION_MASK)
    if mask is not None and mask.shape == same.shape:
        same = same[mask != 0]
    return float(same.mean())


def _tell_clients(folder: Path, manifest: contract.Manifest) -> None:
    """config.json lists the graphs with a data file; genai_config.json names a graph that is there."""
    graphs = [Path(name).name for name in manifest.precisions.values()]
    beside = {name: True for name in graphs if (folder / "onnx" / f"{name}_data").exists()}
    if contract.CONFIG in manifest.files:
        config = _read(folder / contract.CONFIG)
        config.pop("transformers.js_config", None)
        if beside:
            config["transformers.js_config"] = {"use_external_data_format": beside}
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
