"""Graphs that are edited in memory equal what the onnx package reads and checks."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from keras_tx.errors import FolderError
from keras_tx.inspect.graph_outputs import ELEMENTS, GraphOutputs

FLOAT = TensorProto.FLOAT


def attention(name: str, source: str, output: str) -> onnx.NodeProto:
    return helper.make_node(
        "Attention", [source, source, source], [output], name, q_num_heads=2, kv_num_heads=2, domain=""
    )


def model_of(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info("x", FLOAT, ["batch", 3, 4]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [helper.make_tensor("unused", FLOAT, [2], [1.0, 2.0]), helper.make_tensor("one", FLOAT, [], [1.0])],
    )
    opset = helper.make_opsetid("", 23)
    return helper.make_model(graph, opset_imports=[opset], ir_version=11, producer_name="tests")


def branches(*, second: bool) -> onnx.NodeProto:
    """An If whose branches have an Attention, the other one of twice its input."""
    then = helper.make_graph(
        [attention("block/attention/Attention", "x", "then")],
        "then",
        [],
        [helper.make_tensor_value_info("then", FLOAT, None)],
    )
    twice = helper.make_node("Add", ["x", "x"], ["twice"])
    nodes = [twice, attention("block/attention/Attention_1", "twice", "else")]
    if second:
        nodes.append(attention("block/attention/Attention_2", "else", "more"))
    other = helper.make_graph(nodes, "else", [], [helper.make_tensor_value_info("else", FLOAT, None)])
    return helper.make_node("If", ["flag"], ["y"], "block/attention/If", then_branch=then, else_branch=other)


def expected_weights(x: np.ndarray) -> np.ndarray:
    heads = x.reshape(-1, 3, 2, 2).transpose(0, 2, 1, 3)
    scores = np.exp(heads @ heads.swapaxes(-1, -2) / np.sqrt(2))
    return scores / scores.sum(-1, keepdims=True)


def test_only_what_the_outputs_need_remains():
    double = helper.make_node("Add", ["x", "x"], ["double"], "double")
    plus = helper.make_node("Add", ["double", "one"], ["plus"], "plus")
    nodes = (double, attention("block/attention/Attention", "double", "y"), plus)
    content = model_of(*nodes).SerializeToString()
    outputs = GraphOutputs(content)
    (one,) = outputs.attention
    assert (one.path, one.layer, one.is_cross) == ("block/attention", "block", False)
    model = onnx.load_from_string(outputs.write([one], ["double"]))
    assert [node.name for node in model.graph.node] == ["double", "block/attention/Attention"]
    assert [value.name for value in model.graph.output] == [one.weights, "double"]
    assert not model.graph.initializer and model.producer_name == "tests"
    node = model.graph.node[1]
    assert list(node.output) == ["y", "", "", one.weights]
    values = {attribute.name: attribute.i for attribute in node.attribute}
    assert values == {"q_num_heads": 2, "kv_num_heads": 2, "qk_matmul_output_mode": 3}
    again = GraphOutputs(model.SerializeToString()).attention[0]
    assert again.node.with_weights("w").attributes == one.node.with_weights("w").attributes
    plain = onnx.load_from_string(outputs.write(values=["plus"]))
    assert [node.name for node in plain.graph.node] == ["double", "plus"]
    assert [x.name for x in plain.graph.initializer] == ["one"]


@pytest.mark.parametrize("flag", [True, False])
def test_branches_return_their_weights(flag):
    outputs = GraphOutputs(model_of(branches(second=False)).SerializeToString())
    session = onnxruntime.InferenceSession(outputs.write(outputs.attention))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    (weights,) = session.run(None, {"x": x, "flag": np.array(flag)})
    np.testing.assert_allclose(weights, expected_weights(x if flag else 2 * x), atol=1e-6)


def test_attention_that_cannot_be_read_raises():
    with pytest.raises(FolderError, match="2 Attention nodes, expected 1"):
        GraphOutputs(model_of(branches(second=True)).SerializeToString())
    body = helper.make_graph([attention("inner/Attention", "x", "z")], "body", [], [])
    loop = helper.make_node("Loop", ["", "flag", "x"], ["y"], "outer/Loop", body=body)
    with pytest.raises(FolderError, match="'outer' has its Attention inside a Loop"):
        GraphOutputs(model_of(loop).SerializeToString())


def test_a_layer_named_selected_keeps_its_slice():
    slice_ = helper.make_node("Slice", ["x", "x", "x"], ["part"], "selected/Slice")
    content = model_of(slice_, attention("block/attention/Attention", "part", "y")).SerializeToString()
    assert GraphOutputs(content, ["selected", "block"]).graph.nodes[0].op_type == "Slice"
    assert GraphOutputs(content, ["block"]).graph.nodes[0].op_type == "Identity"


def test_numbers_of_element_types_are_those_of_onnx():
    for dtype, number in ELEMENTS.items():
        assert helper.tensor_dtype_to_np_dtype(number) == np.dtype(dtype)
