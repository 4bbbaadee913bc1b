"""The recipes behind the precisions of a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError, nearest
from keras_tx_onnx.graph.editor import Rewriter
from keras_tx_onnx.quantizing import products
from keras_tx_onnx.quantizing.float16 import Half
from keras_tx_onnx.quantizing.int8 import BLOCK, Integers, Range
from keras_tx_onnx.quantizing.weight_blocks import Blocks

BITS = {"int8-blocks": 8, "int4": 4}


class Recipe(Protocol):
    """How a file is made of the fp32 graph."""

    name: str

    def apply(self, rewriter: Rewriter, plan: products.Plan) -> list[str]:
        """Rewrites products and tables; gives notes."""
        ...

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        """The squares of the steps to which a kernel (inner, outer) is rounded."""
        ...

    def input_step(self, low: float, high: float) -> float:
        """The step, at most, to which a product rounds what it is given, from its range."""
        ...


def precisions(wanted: str | Sequence[str]) -> list[str]:
    """What was asked for, checked, in the order of the ladder and each once."""
    given = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in given:
        if name not in contract.PRECISIONS:
            raise ConfigError(
                f"precision has {name!r}, expected some of {', '.join(contract.PRECISIONS)}. "
                f"{nearest(str(name), contract.PRECISIONS)}"
            )
    if not given:
        raise ConfigError(f"precision is empty, expected some of {', '.join(contract.PRECISIONS)}.")
    return [name for name in contract.PRECISIONS if name in given]


def paths(keep: object) -> tuple[str, ...]:
    """The paths of `keep`, checked."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ConfigError(f'keep is {keep!r}, expected a list of layer paths, such as ["block_0"].')
    found = tuple(keep)
    for path in found:
        if not isinstance(path, str) or not path.strip("/"):
            raise ConfigError(f'keep has {path!r}, expected a layer\'s path, such as "block_0".')
    return found


def check_options(wanted: Sequence[str], keep: Sequence[str], calibration: object) -> None:
    """Refuses options that none of the precisions would use."""
    if keep and not set(wanted) & {"int8", *BITS}:
        raise ConfigError(f"keep was given, but {', '.join(wanted)} quantizes no layer. Leave it out.")
    if calibration is not None and "int8" not in wanted:
        raise ConfigError(f"calibration was given, but only int8 has ranges, not {', '.join(wanted)}.")


def recipe(
    precision: str, ranges: Mapping[str, Range] | None = None, in_blocks: Collection[str] = ()
) -> Recipe:
    """The recipe of a precision below fp16; with `ranges`, int8 is static."""
    return Integers(ranges, in_blocks) if precision == "int8" else Blocks(BITS[precision], BLOCK)


def rewrite(
    model: ir.Model, precision: str, recipe: Recipe, keep: Sequence[str]
) -> tuple[products.Plan, list[str]]:
    """Quantizes a graph in place; gives what of it was quantized, and notes."""
    plan = products.plan(model.graph, keep)
    if not plan.products and not plan.lookups:
        kept = f"; {', '.join(plan.kept)} stays because of keep" if plan.kept else ""
        raise ExportError(
            f"The graph has no product with a weight of {products.SMALLEST_KERNEL} numbers or more{kept}: "
            f"{precision} would change nothing. Use fp32 or fp16."
        )
    weights = plan.weights()
    rewriter = Rewriter(model.graph)
    notes = recipe.apply(rewriter, plan)
    rewriter.forget(weights)
    if inside := products.inside_branches(model.graph):
        notes = [*notes, f"In float32, because they are in branches or loops: {', '.join(inside)}."]
    return plan, notes


def halve(model: ir.Model, large: Iterable[str]) -> list[str]:
    """Brings a graph to half precision in place; gives notes. `large` names values that it cannot hold."""
    half = Half(model.graph, large)
    half.run()
    if not half.kept:
        return []
    listed = ", ".join(f"{count} {op}" for op, count in sorted(half.kept.items()))
    return [f"In float32: {listed}."]
