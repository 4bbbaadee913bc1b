"""The graph editor: names, positions, replacements and constants, also in bodies."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from keras_tx_onnx.graph.editor import GraphEditor

FLOAT = ir.DataType.FLOAT
TEXT = """<ir_version: 10, opset_import: ["": 23]>
graph (float[n] x, bool flag) => (float[n] y) {
    a = Relu (x)
    b = If (flag) <then_branch = then () => (float[n] c) { c = Neg (a) },
                   else_branch = other () => (float[n] d) { d = Abs (a) }>
    y = Exp (b)
}"""


@pytest.fixture
def editor() -> GraphEditor:
    return GraphEditor(ir.from_proto(onnx.parser.parse_model(TEXT)).graph)


def types(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph]


@pytest.mark.parametrize("name", ["x", "a", "c", "d"])
def test_names_are_unique_in_all_bodies(editor, name):
    assert editor.unique(name) == f"{name}_1"
    assert editor.unique(name) == f"{name}_2"
    assert editor.unique("new/") == "new/" and editor.unique("new/") == "new_1/"


def test_equal_constants_are_stored_once(editor):
    one = editor.constant([1, 2])
    assert editor.constant(np.array([1, 2], "int32")) is one and one.dtype == ir.DataType.INT64
    assert editor.constant([1, 2], "int32") is not one
    assert len(editor.graph.initializers) == 2


def test_positions(editor):
    graph = editor.graph
    then, other = graph.subgraphs()
    x, a = graph.inputs[0], graph[0].outputs[0]
    editor.add("Sin", [x], [(FLOAT, ["n"])], after=x)
    editor.add("Cos", [a], [(FLOAT, ["n"])], after=a)
    editor.add("Tan", [a], [(FLOAT, ["n"])], before=graph[-1])
    editor.add("Sign", [a], [(FLOAT, ["n"])])
    assert types(graph) == ["Sin", "Relu", "Cos", "If", "Tan", "Exp", "Sign"]
    editor.add("Sin", [a], [(FLOAT, ["n"])], after=a, graph=then)
    editor.add("Cos", [a], [(FLOAT, ["n"])], before=other[0])
    assert types(then) == ["Sin", "Neg"] and types(other) == ["Cos", "Abs"]


def test_replacements_keep_names_and_outputs(editor):
    (then, _), last = editor.graph.subgraphs(), editor.graph[-1]
    for node in (then[0], last):
        name = node.outputs[0].name
        new = editor.add("Softplus", node.inputs, [(FLOAT, ["n"])], before=node)
        editor.replace(node, new)
        assert new.name == name and new.is_graph_output()
    assert types(then) == ["Softplus"] and types(editor.graph) == ["Relu", "If", "Softplus"]


def test_only_unused_weights_are_removed(editor):
    used, unused = editor.initializer("w", np.ones(1)), editor.initializer("w", np.ones(1))
    editor.add("Add", [used, used], [(FLOAT, [1])])
    editor.remove_unused([used, unused])
    assert list(editor.graph.initializers) == ["w"]
