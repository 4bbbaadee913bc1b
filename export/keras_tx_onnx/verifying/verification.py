"""Verifies an exported graph against Keras, and locates a difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.graph import unpadding
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.verifying import branches, comparison, evidence, first_difference
from keras_tx_onnx.verifying.cases import Case, cases_for, expected_of


def verify_graph(
    interface: Interface, context: GraphContext, path: Path
) -> tuple[contract.Parity, list[str]]:
    """Compares a graph with Keras on all cases, and raises an ExportError that names the layer that differs.

    Args:
        interface: the interface of the model.
        context: of the lowering that produced the graph.
        path: the graph.

    Returns:
        The result, and notes about outputs and branches that the cases do not test.
    """
    precision = interface.precision
    outputs = [str(value.name) for value in context.graph.outputs][: len(interface.outputs)]
    run_keras = expected_of(interface)
    cases = cases_for(interface, tuple(context.bounds))
    # The body of a Scan always runs.
    branching = any(node.op_type in ("If", "Loop") for node in context.graph.all_nodes())
    if branching:
        cases += branches.scaled(cases, run_keras)

    def compare(path: Path, cases: Sequence[Case]) -> contract.Parity:
        return comparison.compare_cases(path, cases, outputs, precision)[0]

    try:
        parity, weak = comparison.compare_cases(path, cases, outputs, precision)
        notes = evidence.compare_weak_outputs(interface, path, cases, weak) if weak else []
        if branching:
            notes += branches.compare_untested(path, cases, run_keras, compare, context.predicates)
        return parity, notes
    except ExportError as error:
        raise ExportError(f"{error} {_location(interface, context, cases)} No folder was written.") from None


def _location(interface: Interface, context: GraphContext, cases: Sequence[Case]) -> str:
    """The first layer that differs, in a sentence."""
    tolerance = tolerances.TOLERANCES[interface.precision]
    try:
        layer = first_difference.first_difference(interface, cases, context.tiers, tolerance)
    except Exception as error:  # Keras raises errors of any class for parts of a model
        return f"The layers could not be compared: {one_line(error)}"
    if layer is not None:
        return layer
    if unpadding.unpad in interface.passes:
        return (
            "No single layer differs by that much. If the head uses masked tokens, which are not computed, "
            "pass unpad=False."
        )
    return "No single layer differs by that much."
