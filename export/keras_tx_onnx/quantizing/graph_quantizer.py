"""Writes versions of one fp32 graph in lower precision, and compares each with it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.model_file import check_graph, write_graph
from keras_tx_onnx.graph.passes import infer_shapes
from keras_tx_onnx.quantizing import activation_ranges, agreement, calibrated_blocks, products, recipes
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.float16 import NEAR_THE_END
from keras_tx_onnx.quantizing.int8 import BLOCK, Int8Recipe, Range
from keras_tx_onnx.quantizing.offset_blocks import Calibrated, OffsetRecipe
from keras_tx_onnx.quantizing.weight_blocks import BlockRecipe

# The largest error of an int8 layer, relative to its result. MiniLM's layers lose up to 0.07. In a trained
# decoder some layers lose 0.1 to 0.3: a few of their inputs are hundreds of times as large as the rest, for
# which one range has no steps left. Those have blocks, too.
LARGEST_ERROR_OF_A_RANGE = 0.08

Specs = Sequence[contract.TensorSpec]


@dataclasses.dataclass(frozen=True)
class Example:
    """A batch of inputs, and the outputs of the fp32 graph for it."""

    batch: Feed
    expected: dict[str, np.ndarray]

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(y).all() for y in self.expected.values() if y.dtype.kind == "f")


class GraphQuantizer:
    """Writes versions of an fp32 graph.

    Args:
        source: the fp32 graph.
        specs: its inputs and outputs, by the manifest.
        examples: the versions are compared on all of them; the errors of layers are measured on the first.
        keep: layers that stay in fp32.
        calibration: batches for the rounding of a decoder's int4, and for the ranges of other models' int8,
            which without them are computed when the graph runs.
        task: of the model, which decides how int8 is made.
        calibration_name: describes the calibration in the manifest.
        examples_of_calibration: whether the examples are part of the calibration.
    """

    def __init__(
        self,
        source: Path,
        specs: tuple[Specs, Specs],
        examples: Sequence[Example],
        keep: Sequence[str] = (),
        calibration: Sequence[Feed] | None = None,
        task: str | None = None,
        calibration_name: str = "",
        examples_of_calibration: bool = False,
    ):
        self.source = source
        self._specs = specs
        self._examples = examples
        self._keep = tuple(keep)
        self._calibration = calibration
        self._task = task
        self._calibration_name = calibration_name
        self._examples_of_calibration = examples_of_calibration
        self._in_blocks: tuple[str, ...] = ()  # layers of int8
        self._ranges: dict[str, Range] | None = None
        self._calibrated: Calibrated | None = None  # of int4

    def write(self, precision: str, path: Path, also_keep: Sequence[str] = ()) -> contract.Variant:
        """Writes and compares the graph of a precision.

        Args:
            precision: its name.
            path: its file.
            also_keep: more layers that stay in fp32.

        Raises:
            ExportError: if a layer or an output is off by more than rounding costs.
        """
        model = ir.load(self.source)
        if precision == "fp16":
            recipe, fp32_layers, notes = "half precision", (), self._convert_to_float16(model)
        else:
            recipe, fp32_layers, notes = self._quantize(model, precision, (*self._keep, *also_keep))
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        write_graph(model, path)
        check_graph(path)
        noise, agreement, specs = self._compare(path, precision)
        return contract.Variant(recipe, noise, agreement, kept=fp32_layers, notes=tuple(notes), **specs)

    def _convert_to_float16(self, model: ir.Model) -> list[str]:
        infer_shapes(model)
        largest = activation_ranges.largest(self.source, self._examples[0].batch)
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
        if self._has_ranges(precision):
            self._in_blocks = _needing_blocks(products.plan(model.graph, keep), errors)
        if self._in_blocks:
            activation_ranges.check(self.errors(precision), precision)
        recipe = self._recipe(precision)
        plan, notes = recipes.quantize_graph(model, precision, recipe, keep)
        if self._in_blocks:
            notes = [*notes, _in_blocks_note(self._in_blocks)]
        if isinstance(recipe, OffsetRecipe) and self._calibration is not None:
            notes = [*notes, *self._calibration_notes(self._calibration)]
        return recipe.name, plan.kept, [*notes, *_left_in_float32(model)]

    def errors(self, precision: str) -> list[activation_ranges.Error]:
        """The error of each quantized layer alone."""
        return activation_ranges.errors(
            self.source, self._recipe(precision), self._keep, self._examples[0].batch
        )

    def _has_ranges(self, precision: str) -> bool:
        """Whether a precision has one range for the input of a layer, and not one for each block."""
        return contract.method_of(precision, self._task) == "int8-dynamic"

    def _recipe(self, precision: str) -> recipes.Recipe:
        decodes = self._task == contract.TEXT_GENERATION
        if precision == "int4" and decodes:
            return self._offset_recipe()
        if not self._has_ranges(precision):
            return BlockRecipe(4 if precision == "int4" else 8, BLOCK)
        if self._ranges is None and self._calibration is not None and not decodes:
            self._ranges = activation_ranges.ranges(self.source, self._keep, self._calibration)
        return Int8Recipe(self._ranges, self._in_blocks, self._calibration_name)

    def _offset_recipe(self) -> OffsetRecipe:
        vocabulary_size = self._vocabulary_size()
        if self._calibrated is None and self._calibration is not None:
            data = self._calibration_name or f"{calibrated_blocks.token_count(self._calibration):,} tokens"
            has_offsets = OffsetRecipe(vocabulary_size, BLOCK).has_offsets
            self._calibrated = calibrated_blocks.calibrated(
                self.source, self._keep, self._calibration, data, BLOCK, has_offsets
            )
        return OffsetRecipe(vocabulary_size, BLOCK, self._calibrated)

    def _calibration_notes(self, calibration: Sequence[Feed]) -> list[str]:
        """What limits the rounding on calibration data, and the comparison on them."""
        if self._calibrated is None or not self._calibrated.blocks:
            return ["The calibration has no effect: no weight is rounded on it."]
        notes, count = [], calibrated_blocks.token_count(calibration)
        if count < calibrated_blocks.FEW_TOKENS:
            notes.append(
                f"Rounded on {count:,} tokens, fewer than {calibrated_blocks.FEW_TOKENS:,}: measure "
                "whether it is better than without calibration, or pass more."
            )
        if self._examples_of_calibration:
            notes.append(
                "Compared with fp32 on tokens on which it was rounded, so others may differ more. Pass "
                "examples= to compare on others."
            )
        return notes

    def _vocabulary_size(self) -> int:
        (logits,) = (spec for spec in self._specs[1] if spec.name == contract.LOGITS)
        return int(logits.shape[-1])

    def _compare(self, path: Path, precision: str) -> tuple[float, float | None, dict[str, Any]]:
        """Returns the noise, the agreement, and the specs of inputs and outputs of another dtype."""
        with Session(path, provider="cpu") as session:
            results = [run_with_dtypes(session, example.batch) for example in self._examples]
            inputs, outputs = self._specs
            specs = {
                "inputs": _changed(inputs, session.inputs),
                "outputs": _changed(outputs, session.outputs),
            }
        noise = max(map(_noise, self._examples, results))
        if not np.isfinite(noise):
            raise ExportError(
                f"The {precision} graph computes NaN or infinity where fp32 does not. Use another precision."
            )
        if precision == "fp16" and noise > tolerances.HALF:
            raise ExportError(
                f"The fp16 graph differs from fp32 by {noise:.1e} of an output's scale (tolerance "
                f"{tolerances.HALF:.0e}): its numbers exceed half precision. Use fp32 or int8."
            )
        return noise, _agreement(self._examples[0], results[0]), specs


def run_with_dtypes(session: Session, batch: Feed) -> dict[str, np.ndarray]:
    """Runs inputs of fp32 on a graph whose cache may have half precision."""
    dtypes = {spec.name: spec.dtype for spec in (*session.inputs, *session.optional)}
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


def _noise(example: Example, outputs: Mapping[str, np.ndarray]) -> float:
    """The largest difference of an output, relative to its scale."""
    return max(
        tolerances.difference(expected, outputs[name].astype("float32"))
        for name, expected in example.expected.items()
        if expected.dtype.kind == "f"
    )


def _agreement(example: Example, outputs: Mapping[str, np.ndarray]) -> float | None:
    """The share of rows or tokens with the same largest logit, without padding."""
    if not any(name in example.expected for name in agreement.LOGITS):
        return None
    mask = example.batch.get(contract.ATTENTION_MASK)
    expected, actual = (agreement.answers(x, mask) for x in (example.expected, outputs))
    return None if expected is None or actual is None else agreement.agreement([expected], [actual])
