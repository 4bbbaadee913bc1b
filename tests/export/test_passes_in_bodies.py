"""Passes treat the bodies of If, Loop and Scan as they treat the graph, and the outputs stay the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from keras_tx_onnx.graph import passes
from keras_tx_onnx.graph.token_selection import select_tokens
from keras_tx_onnx.graph.unpadding import unpad
from tests.drawing import draw
from tests.tolerances import assert_close

# By pass: the input, the then branch, weights, and the operators of that branch after the pass.
IMAGE, TOKENS = "float[n,6,6,3] x", "float[n,5,8] x"
CASES = {
    passes.cancel_transposes: (
        IMAGE,
        """first = Transpose <perm = [0, 3, 1, 2]> (x)
        last = Transpose <perm = [0, 2, 3, 1]> (first)  y = Relu (last)""",
        {},
        {"Relu": 1},
    ),
    passes.share_equal_nodes: (
        IMAGE,
        "a = Relu (x)  b = Relu (x)  y = Add (a, b)",
        {},
        {"Relu": 1, "Add": 1},
    ),
    passes.remove_unused: (IMAGE, "a = Exp (x)  b = Sin (a)  y = Relu (x)", {}, {"Relu": 1}),
    passes.to_channels_first: (
        IMAGE,
        """first = Transpose <perm = [0, 3, 1, 2]> (x)  a = Conv (first, kernel)
        last = Transpose <perm = [0, 2, 3, 1]> (a)  b = Relu (last)  c = Mul (b, scale)
        again = Transpose <perm = [0, 3, 1, 2]> (c)  d = Conv (again, kernel)
        y = Transpose <perm = [0, 2, 3, 1]> (d)""",
        {"kernel": draw(3, 3, 1, 1), "scale": draw(3)},
        {"Transpose": 2, "Conv": 2, "Relu": 1, "Mul": 1},
    ),
    passes.reshape_instead: (
        "float[n,3] x",
        "wide = Reshape (x, sizes)  first = Transpose <perm = [0, 3, 1, 2]> (wide)  y = Relu (first)",
        {"sizes": np.array([-1, 1, 1, 3])},
        {"Reshape": 1, "Relu": 1},
    ),
    select_tokens: (
        TOKENS,
        "a = MatMul (x, kernel)  b = Gelu (a)  y = Gather <axis = 1> (b, place)",
        {"kernel": draw(8, 8), "place": np.array(2)},
        {"MatMul": 1, "Gelu": 1, "Gather": 1},  # of the one token, which is selected outside
    ),
}


def model_of(inputs: str, nodes: str, then: str, weights: dict[str, np.ndarray]) -> ir.Model:
    """A model with an If behind `nodes`; the other branch is -x."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]>
        graph ({inputs}, bool flag) => (float result) {{
            {nodes}
            result = If (flag) <
                then_branch = then () => (float y) {{ {then} }},
                else_branch = other () => (float z) {{ z = Neg (x) }}
            >
        }}"""
    )
    branches = [attribute.g for attribute in proto.graph.node[-1].attribute]
    for graph in (proto.graph, *branches):
        graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in weights.items())
    model = ir.from_proto(proto)
    passes.infer_shapes(model)
    return model


def run(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """The results of both branches."""
    proto = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return [session.run(None, {**inputs, "flag": np.array(flag)})[0] for flag in (True, False)]


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_then_branch(change):
    inputs, then, weights, expected = CASES[change]
    model = model_of(inputs, "", then, weights)
    x = draw(*(size if isinstance(size, int) else 2 for size in model.graph.inputs[0].shape))
    before = run(model, x=x)
    assert change(model) > 0
    passes.remove_unused(model)
    then_branch, _ = model.graph.subgraphs()
    assert Counter(node.op_type for node in then_branch) == expected
    for got, expected in zip(run(model, x=x), before, strict=True):
        assert_close(got, expected)


def test_branches_receive_padded_tokens():
    sizes = "[batch_size,sequence_length]"
    weights = {"table": draw(9, 8), "kernel": draw(8, 8)}
    inputs = f"int64{sizes} input_ids, int64{sizes} attention_mask"
    nodes = "embedded = Gather (table, input_ids)  x = MatMul (embedded, kernel)"
    model = model_of(inputs, nodes, "y = Softmax <axis = 1> (x)", weights)
    ids = np.array([[3, 4, 5], [6, 7, 0]])
    padded = {"input_ids": ids, "attention_mask": (ids > 0) * 1}
    full = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    before, (_, negative) = run(model, **full), run(model, **padded)
    assert unpad(model) == 2
    for got, expected in zip(run(model, **full), before, strict=True):
        assert_close(got, expected)
    _, got = run(model, **padded)
    assert_close(got[ids > 0], negative[ids > 0])
    assert not got[ids == 0].any()
