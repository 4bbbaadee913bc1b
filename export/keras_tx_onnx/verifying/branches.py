"""Tests which branches of a graph the cases reach, and compares the other branches with Keras.

Equal outputs prove nothing about a branch that no case reaches. A graph with branches or loops is therefore
also compared on inputs of other magnitudes. Then the results of each branch are perturbed. If all outputs
stay the same, the branch is untested, and both sides compute it with forced predicates.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.errors import RunError
from keras_tx.runtime.session import Session
from keras_tx_onnx.graph.builder import Predicate
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.reading.keras_patches import forced_predicates
from keras_tx_onnx.verifying.cases import Case, RunKeras

SCALED = 3  # cases whose inputs are multiplied
FACTORS = (0.0, 0.01, 100.0, 1000.0)
ITERATIONS = 10_000  # limit of a loop without one, in a perturbed graph


@dataclasses.dataclass(frozen=True)
class Branch:
    """A graph inside a node: the name of the node and of its attribute."""

    node: str
    attribute: str


def scaled(cases: Sequence[Case], run: RunKeras) -> list[Case]:
    """The first cases with multiplied floating-point inputs, if Keras's outputs are finite.

    Args:
        cases: the cases to multiply.
        run: computes Keras's outputs for a list of inputs.
    """
    more = []
    for case in cases[:SCALED]:
        floating = [x for x in case.inputs if x.dtype.kind == "f"]
        if not floating or len(floating) != sum(x.dtype.kind == "f" for x in case.feed.values()):
            continue
        for factor in FACTORS:
            feed = {name: _times(x, factor) for name, x in case.feed.items()}
            inputs = [_times(x, factor) for x in case.inputs]
            name = f"{case.name}, times {factor:g}"
            expected = case.compared(run(inputs))
            multiplied = case._replace(name=name, feed=feed, inputs=inputs, expected=expected)
            if multiplied.is_finite:
                more.append(multiplied)
    return more


def _times(x: np.ndarray, factor: float) -> np.ndarray:
    return (x * factor).astype(x.dtype) if x.dtype.kind == "f" else x


def compare_untested(
    path: Path,
    cases: Sequence[Case],
    run: RunKeras,
    compare: Callable[[Path, list[Case]], object],
    predicates: Mapping[str, Predicate],
) -> list[str]:
    """Compares the branches that no case reaches, with forced predicates.

    Args:
        path: the graph.
        cases: the cases that are compared already.
        run: computes Keras's outputs for a list of inputs.
        compare: runs a graph on cases and raises an ExportError if it differs from Keras.
        predicates: the origin of each If node, by its name.

    Returns:
        A note for each of these branches.
    """
    branches = {branch: _description(branch, predicates) for branch in untested(path, cases)}
    branches = {branch: text for branch, text in branches.items() if text}
    if not branches:
        return []
    tested: set[Branch] = set()
    with tempfile.TemporaryDirectory() as folder:
        for changed, forced in _forced(path, cases, run, predicates, Path(folder)):
            compare(changed, forced)
            tested |= set(branches) - set(untested(changed, forced, list(branches)))
    return [
        f"No case of the verification reaches {text}; it was compared with Keras by forcing its predicate."
        if branch in tested
        else f"No case of the verification reaches {text}, so it was NOT compared with Keras. Compare the "
        "outputs on your own data that reaches it."
        for branch, text in branches.items()
    ]


def _description(branch: Branch, predicates: Mapping[str, Predicate]) -> str:
    known = predicates.get(branch.node)
    if known is not None:
        name = known.then if branch.attribute == "then_branch" else known.other
        return f"the branch of {known.operation!r} {name}" if name else ""
    if branch.attribute == "body":
        return f"the body of the loop {branch.node.rpartition('/')[0]!r}"
    return f"the {branch.attribute.removesuffix('_branch')} branch of {branch.node!r}"


def _forced(
    path: Path, cases: Sequence[Case], run: RunKeras, predicates: Mapping[str, Predicate], folder: Path
) -> Iterator[tuple[Path, list[Case]]]:
    """Graphs in which every predicate of ops.cond is a constant, and cases with Keras's outputs for it.

    Graphs with loops are left out, because a loop might never end.
    """
    if any(node.op_type == "Loop" for node in ir.load(path).graph.all_nodes()):
        return
    conds = {name for name, predicate in predicates.items() if predicate.is_cond}
    for value in (True, False):
        with forced_predicates(value):
            forced = [
                case._replace(
                    name=f"{case.name}, every predicate {str(value).lower()}",
                    expected=case.compared(run(case.inputs)),
                )
                for case in cases
            ]
        model = ir.load(path)
        constant = GraphEditor(model.graph).initializer("forced_predicate", np.asarray(value))
        for node in model.graph.all_nodes():
            if node.name in conds:
                node.replace_input_with(0, constant)
        changed = folder / f"forced_{value}.onnx"
        ir.save(model, changed, external_data=f"{changed.name}_data")
        yield changed, [case for case in forced if case.is_finite]


def untested(path: Path, cases: Sequence[Case], among: Sequence[Branch] | None = None) -> list[Branch]:
    """The branches whose results do not change the outputs of any case."""
    outputs = _outputs(path, cases)
    branches = _branches(ir.load(path).graph) if among is None else among
    unreached = []
    with tempfile.TemporaryDirectory() as folder:
        for branch in branches:
            model = ir.load(path)
            _perturb(model.graph, branch)
            perturbed = Path(folder, "perturbed.onnx")
            ir.save(model, perturbed, external_data="perturbed.onnx_data")
            if _are_equal(outputs, _outputs(perturbed, cases)):
                unreached.append(branch)
    return unreached


def _outputs(path: Path, cases: Sequence[Case]) -> list[Mapping[str, np.ndarray] | None]:
    """The outputs for each case; None if the graph cannot run."""
    outputs: list[Mapping[str, np.ndarray] | None] = []
    with Session(path, provider="cpu") as session:
        for case in cases:
            try:
                outputs.append(case.run(session, case.feed))
            except RunError:
                outputs.append(None)
    return outputs


def _are_equal(one: list[Any], other: list[Any]) -> bool:
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif not all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a):
            return False
    return True


def _branches(graph: ir.Graph) -> list[Branch]:
    return [
        Branch(str(node.name), name)
        for node in graph.all_nodes()
        if node.op_type in ("If", "Loop")
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    ]


def _perturb(graph: ir.Graph, branch: Branch) -> None:
    """Changes the results of a branch, or sets the iterations of a loop to 0."""
    editor = GraphEditor(graph)
    for node in graph.all_nodes():
        if node.op_type == "Loop" and node.inputs[0] is None:
            node.replace_input_with(0, editor.constant(ITERATIONS))
    node = next(node for node in graph.all_nodes() if node.name == branch.node)
    if node.op_type == "Loop":
        node.replace_input_with(0, editor.constant(0))
        return
    inner = node.attributes[branch.attribute].as_graph()
    numbers = {
        ir.DataType.FLOAT: ("Mul", editor.constant(np.nan)),
        ir.DataType.INT64: ("Add", editor.constant(1)),
    }
    for index, output in enumerate(inner.outputs):
        assert output.dtype is not None
        op_type, *number = numbers.get(output.dtype, ("Not",))
        result = (output.dtype, None)
        inner.outputs[index] = editor.add(op_type, [output, *number], [result], graph=inner, name="perturbed")
