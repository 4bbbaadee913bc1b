"""Which branches of a graph the examples of a comparison reach, and the comparison of the others.

Equal outputs prove nothing for a branch that no example reaches. So a graph with branches or loops is also
compared on examples of other magnitudes. Then the results of each branch are changed: if the outputs stay the
same for all examples, the branch was not tested, and both sides compute it with the predicate forced.
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
from keras_tx_onnx.reading.keras_patches import forced_predicates
from keras_tx_onnx.verifying.cases import Case, RunKeras

MULTIPLIED = 3  # cases
FACTORS = (0.0, 0.01, 100.0, 1000.0)
LIMIT = 10_000  # iterations of a loop without a limit, in a changed graph


@dataclasses.dataclass(frozen=True)
class Branch:
    """A graph inside a node: the node's name and the name of its attribute."""

    node: str
    attribute: str


def has_control_flow(path: Path) -> bool:
    """Whether a graph has a branch or a loop; the steps of a Scan are computed for every input."""
    return any(node.op_type in ("If", "Loop") for node in ir.load(path).graph.all_nodes())


def scaled(cases: Sequence[Case], run: RunKeras) -> list[Case]:
    """The first cases with their floating-point inputs multiplied, if Keras's outputs are finite.

    Args:
        cases: the cases to multiply.
        run: computes Keras's outputs for a list of inputs.
    """
    more = []
    for case in cases[:MULTIPLIED]:
        floating = [x for x in case.inputs if x.dtype.kind == "f"]
        if not floating or len(floating) != sum(x.dtype.kind == "f" for x in case.feed.values()):
            continue
        for factor in FACTORS:
            feed = {name: _times(x, factor) for name, x in case.feed.items()}
            inputs = [_times(x, factor) for x in case.inputs]
            expected = run(inputs)
            if all(np.isfinite(y).all() for y in expected):
                name = f"{case.name}, times {factor:g}"
                more.append(case._replace(name=name, feed=feed, inputs=inputs, expected=expected))
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
    """Compares the branches that no case reaches, with their predicates forced, and returns notes.

    Args:
        path: the graph.
        cases: what was compared already.
        run: computes Keras's outputs for a list of inputs.
        compare: runs a graph on cases and raises where it differs from Keras.
        predicates: the origin of each If node, by its name.
    """
    left = untested(path, cases)
    left = [branch for branch in left if branch.attribute != "else_branch" or _described(branch, predicates)]
    if not left:
        return []
    tested = []
    with tempfile.TemporaryDirectory() as folder:
        for changed, forced in _forced(path, cases, run, predicates, Path(folder)):
            compare(changed, forced)
            tested += [branch for branch in left if branch not in untested(changed, forced, left)]
    notes = []
    for branch in left:
        described = _described(branch, predicates)
        if branch in tested:
            notes.append(
                f"No example of the comparison reaches {described}; it was compared with Keras by forcing "
                "its predicate."
            )
        else:
            notes.append(
                f"No example of the comparison reaches {described}, so it was NOT compared with Keras. "
                "Compare the outputs on your own data that reaches it."
            )
    return notes


def _described(branch: Branch, predicates: Mapping[str, Predicate]) -> str:
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

    A loop might then never end, so graphs with loops are left out.
    """
    if any(node.op_type == "Loop" for node in ir.load(path).graph.all_nodes()):
        return
    conds = {name for name, predicate in predicates.items() if predicate.is_cond}
    for value in (True, False):
        with forced_predicates(value):
            computed = [(case, run(case.inputs)) for case in cases]
        forced = [
            case._replace(name=f"{case.name}, every predicate {str(value).lower()}", expected=expected)
            for case, expected in computed
            if all(np.isfinite(y).all() for y in expected)
        ]
        model = ir.load(path)
        constant = _constant(model.graph, "forced/predicate", np.asarray(value))
        for node in model.graph.all_nodes():
            if node.name in conds:
                node.replace_input_with(0, constant)
        changed = folder / f"forced_{value}.onnx"
        ir.save(model, changed, external_data=f"{changed.name}_data")
        yield changed, forced


def untested(path: Path, cases: Sequence[Case], among: Sequence[Branch] | None = None) -> list[Branch]:
    """The branches without which the outputs for all cases stay the same."""
    usual = _outputs(path, cases)
    branches = _branches(ir.load(path).graph) if among is None else among
    left = []
    with tempfile.TemporaryDirectory() as folder:
        for branch in branches:
            model = ir.load(path)
            _spoil(model.graph, branch)
            spoilt = Path(folder, "spoilt.onnx")
            ir.save(model, spoilt, external_data="spoilt.onnx_data")
            if _same(usual, _outputs(spoilt, cases)):
                left.append(branch)
    return left


def _outputs(path: Path, cases: Sequence[Case]) -> list[Mapping[str, np.ndarray] | None]:
    """The outputs for each case, None where the graph cannot run."""
    outputs: list[Mapping[str, np.ndarray] | None] = []
    with Session(path, provider="cpu") as session:
        for case in cases:
            try:
                outputs.append(case.run(session, case.feed))
            except RunError:
                outputs.append(None)
    return outputs


def _same(one: list[Any], other: list[Any]) -> bool:
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


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _spoil(graph: ir.Graph, branch: Branch) -> None:
    """Changes the results of a branch, or sets the iterations of a loop to 0."""
    limit = _constant(graph, "spoilt/limit", np.asarray(LIMIT))
    for node in graph.all_nodes():
        if node.op_type == "Loop" and node.inputs[0] is None:
            node.replace_input_with(0, limit)
    node = next(node for node in graph.all_nodes() if node.name == branch.node)
    if node.op_type == "Loop":
        node.replace_input_with(0, _constant(graph, "spoilt/none", np.asarray(0)))
        return
    inner = node.attributes[branch.attribute].as_graph()
    numbers = {
        ir.DataType.FLOAT: ("Mul", _constant(graph, "spoilt/nan", np.asarray(np.nan, "float32"))),
        ir.DataType.INT64: ("Add", _constant(graph, "spoilt/one", np.asarray(1))),
    }
    for index, output in enumerate(inner.outputs):
        assert output.dtype is not None
        if output.dtype == ir.DataType.BOOL:
            changed = ir.node("Not", inputs=[output], name=f"spoilt/{index}")
        else:
            op_type, number = numbers[output.dtype]
            changed = ir.node(op_type, inputs=[output, number], name=f"spoilt/{index}")
        inner.append(changed)
        value = changed.outputs[0]
        value.name, value.type = f"spoilt/{index}", ir.TensorType(output.dtype)
        inner.outputs[index] = value
