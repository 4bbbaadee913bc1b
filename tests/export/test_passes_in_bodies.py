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

# By pass: x, the nodes of a body that compute y from it, weights, and the operators after the pass.
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
        {"MatMul": 1, "Gelu": 1, "Gather": 1},  # of the one token, which is selected where x is computed
    ),
}

# By operator: the node, with the nodes of a case in its body, and other operators of the body. The body of an
# If reads x from outside; that of a Loop or a Scan computes the next x as well.
BODIES = {
    "If": (
        """result = If (flag) <
            then_branch = then () => (float y) { NODES },
            else_branch = other () => (float z) { z = Neg (x) }
        >""",
        [],
    ),
    "Loop": (
        """last_x, result = Loop (count, flag, outer) <
            body = step (int64 index, bool go, X) => (bool more, float next_x, float y) {
                more = Identity (go)  next_x = Neg (x)  NODES
            }
        >""",
        ["Identity", "Neg"],
    ),
    "Scan": (
        """last_x, result = Scan (outer, steps) <
            num_scan_inputs = 1,
            body = step (X, float step) => (float next_x, float y) { next_x = Mul (x, step)  NODES }
        >""",
        ["Mul"],
    ),
}
NUMBERS = {"count": np.array(3), "steps": np.array([-1, 2, 1], "float32")}


def outer_x(body: str) -> str:
    """The name outside of the body of its first x."""
    return "x" if body == "If" else "outer"


def model_of(
    x: str, nodes: str, weights: dict[str, np.ndarray], body: str = "If", inputs: str = "", before: str = ""
) -> ir.Model:
    """A model with a node that has a body. Its inputs are x, unless `before` computes x from others."""
    text = BODIES[body][0].replace("NODES", nodes).replace("X", x)
    inputs = inputs or x.replace(" x", f" {outer_x(body)}")
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]>
        graph ({inputs}, bool flag) => (float result) {{ {before} {text} }}"""
    )
    bodies = [attribute.g for attribute in proto.graph.node[-1].attribute if attribute.HasField("g")]
    for output in (proto.graph.output[0], *(output for graph in bodies for output in graph.output)):
        output.type.tensor_type.ClearField("shape")
    weights = {**weights, **NUMBERS}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in weights.items())
    model = ir.from_proto(proto)
    passes.infer_shapes(model)
    return model


def run(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """The results for a true and a false flag: of both branches, or of a loop with and without iterations."""
    proto = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return [session.run(None, {**inputs, "flag": np.array(flag)})[0] for flag in (True, False)]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_body(change, body):
    x, nodes, weights, expected = CASES[change]
    model = model_of(x, nodes, weights, body)
    shape = model.graph.inputs[0].shape or ()
    inputs = {outer_x(body): draw(*(size if isinstance(size, int) else 2 for size in shape))}
    before = run(model, **inputs)
    assert change(model) > 0
    passes.remove_unused(model)
    changed, *_ = model.graph.subgraphs()
    others = [*BODIES[body][1], *(["Slice"] if change is select_tokens and body != "If" else [])]
    assert Counter(node.op_type for node in changed) == Counter(expected) + Counter(others)
    for got, result in zip(run(model, **inputs), before, strict=True):
        assert_close(got, result)


@pytest.mark.parametrize("body", BODIES)
def test_bodies_receive_padded_tokens(body):
    sizes = "[batch_size,sequence_length]"
    weights = {"table": draw(9, 8), "kernel": draw(8, 8)}
    inputs = f"int64{sizes} input_ids, int64{sizes} attention_mask"
    before = f"embedded = Gather (table, input_ids)  {outer_x(body)} = MatMul (embedded, kernel)"
    x = "float[batch_size,sequence_length,8] x"
    model = model_of(x, "y = Softmax <axis = 1> (x)", weights, body, inputs, before)
    ids = np.array([[3, 4, 5], [6, 7, 0]])
    padded = {"input_ids": ids, "attention_mask": (ids > 0) * 1}
    full = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    results, (_, negative) = run(model, **full), run(model, **padded)
    assert unpad(model) == 2
    for got, expected in zip(run(model, **full), results, strict=True):
        assert_close(got, expected)
    if body == "If":
        _, got = run(model, **padded)
        assert_close(got[ids > 0], negative[ids > 0])
        assert not got[ids == 0].any()
