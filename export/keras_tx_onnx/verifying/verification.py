"""Verifies an exported graph against Keras, and locates a difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.adapter_file import read_adapter_file
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.graph import unpadding
from keras_tx_onnx.graph.adapter_ports import REMEDY
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.cache_ports import Cache
from keras_tx_onnx.graph.first_call import is_of_cache
from keras_tx_onnx.interfaces.base import Feed, Interface
from keras_tx_onnx.interfaces.model_graph import Exported
from keras_tx_onnx.interfaces.separate_adapters import SeparateAdapter
from keras_tx_onnx.verifying import branches, comparison, evidence, first_difference
from keras_tx_onnx.verifying.cases import Case, cases_for, expected_of
from keras_tx_onnx.verifying.generated_text import compare_generation
from keras_tx_onnx.verifying.model_weights import weights_in_memory


class Verified(NamedTuple):
    """What the comparison of graphs with Keras showed.

    Attributes:
        parity: the result.
        notes: about outputs and branches that the cases do not test.
        weights: weights of the main graph that are in memory and equal those in its data file.
    """

    parity: contract.Parity
    notes: list[str]
    weights: SharedWeights


def verify_graphs(interface: Interface, graphs: Sequence[Exported]) -> Verified:
    """Compares the graphs of an export with Keras, each alone, and then text that they generate together.

    Raises:
        ExportError: if a graph differs from Keras. The message names the first layer that differs.
    """
    results = [verify_graph(each.interface, each.context, each.path) for each in graphs]
    notes = [note for result in results for note in result.notes]
    try:
        parity = _together(interface, graphs, [result.parity for result in results])
        return Verified(parity, notes, results[-1].weights)
    except ExportError as error:
        raise ExportError(f"{error} No folder was written.") from None


def _together(
    interface: Interface,
    graphs: Sequence[Exported],
    parities: list[contract.Parity],
    adapters: Sequence[Feed | None] | None = None,
) -> contract.Parity:
    """The result of all graphs, with that of text that an encoder and a decoder generate together."""
    if len(graphs) == 1:
        return parities[0]
    paths = [each.path for each in graphs]
    parities = [*parities, compare_generation(interface, paths, adapters or [None] * len(paths))]
    names = (*(each.interface.kind.split()[-1] for each in graphs), "both")
    largest = max(parity.max_difference for parity in parities)
    cases = (f"{name}: {case}" for name, parity in zip(names, parities, strict=True) for case in parity.cases)
    return contract.Parity(largest, parities[0].tolerance, tuple(cases))


def verify_graph(interface: Interface, context: GraphContext, path: Path) -> Verified:
    """Compares a graph with Keras on all cases, and raises an ExportError that names the layer that differs.

    Args:
        interface: the interface of the model.
        context: of the lowering that produced the graph.
        path: the graph.
    """
    outputs = [str(value.name) for value in context.graph.outputs][: len(interface.outputs)]
    run_keras = expected_of(interface)
    cases = cases_for(interface, tuple(context.bounds))
    # The body of a Scan always runs, and the chunks of the cases run both branches of a cache.
    branching = any(
        node.op_type == "Loop" or (node.op_type == "If" and not is_of_cache(node))
        for node in context.graph.all_nodes()
    )
    if branching:
        cases += branches.scaled(cases, run_keras)

    weights = weights_in_memory(context.graph, path)

    def compare(path: Path, cases: Sequence[Case]) -> contract.Parity:
        return comparison.compare_cases(path, cases, outputs, interface)[0]

    try:
        parity, weak = comparison.compare_cases(path, cases, outputs, interface, weights=weights)
        notes = evidence.unpassed_distance(interface, cases)
        notes += evidence.compare_weak_outputs(interface, path, cases, weak) if weak else []
        if branching:
            notes += branches.compare_untested(path, cases, run_keras, compare, context.predicates)
        return Verified(parity, notes, weights)
    except ExportError as error:
        remedy = (
            "If tokens are related outside of attention, export with cache=False. "
            if isinstance(context.cache, Cache)
            else ""
        )
        location = _location(interface, context, cases)
        raise ExportError(f"{error} {location} {remedy}No folder was written.") from None


def verify_adapter(
    interface: Interface, graphs: Sequence[Exported], adapter: SeparateAdapter, folder: Path
) -> contract.Parity:
    """Compares the graphs and the files of an adapter with the Keras model that has the adapter.

    Raises:
        ExportError: if they differ.
    """
    adapters = [
        read_adapter_file(folder / each.interface.adapter_path.format(adapter.name)) for each in graphs
    ]
    try:
        with adapter.applied():
            parities = [_compare_adapted(*x) for x in zip(graphs, adapters, strict=True)]
            return _together(interface, graphs, parities, adapters)
    except ExportError as error:
        raise ExportError(f"Adapter {adapter.name!r}: {error} {REMEDY} No folder was written.") from None


def _compare_adapted(graph: Exported, values: Feed) -> contract.Parity:
    """Compares a graph that has an adapter with Keras, whose weights have it too."""
    cases = cases_for(graph.interface, tuple(graph.context.bounds))
    outputs = [str(value.name) for value in graph.context.graph.outputs][: len(graph.interface.outputs)]
    return comparison.compare_cases(graph.path, cases, outputs, graph.interface, values)[0]


def _location(interface: Interface, context: GraphContext, cases: Sequence[Case]) -> str:
    """The first layer that differs, in a sentence."""
    try:
        layer = first_difference.first_difference(interface, cases, context.tiers)
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
