"""An exported BERT skips padding, and padding does not affect real tokens."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import keras_tx
from keras_tx.errors import ExportError
from keras_tx.heads.base import Head, project
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph import unpadding
from keras_tx_onnx.graph.passes import read_sizes_from_ids
from tests.covering import covering
from tests.drawing import as_numpy, draw
from tests.export.small_bert import DISTILBERT, EXAMPLE, HEADS, ROBERTA, TINY, run, tiny
from tests.tolerances import assert_close


@pytest.mark.parametrize("opset", [17, 23])
def test_dense_layers_and_norms_skip_padding(opset: int, tmp_path):
    model = tiny(keras_tx.MaskedLMHead(), segments=2)
    export_onnx(model, tmp_path / "x", opset=opset)
    graph = onnx.load(tmp_path / "x/onnx/model.onnx").graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    weights = {tensor.name for tensor in graph.initializer}
    products = [n for n in graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in weights]
    norms = [n for n in graph.node if n.op_type == "LayerNormalization"]
    assert len(products) == 2 * 4 + 2 and len(norms) == 2 * 2 + 2
    assert {ranks[node.output[0]] for node in (*products, *norms)} == {2}


@pytest.mark.parametrize("options", [{}, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize("head", ["none", "masked", "tags", "span", "sentence"])
def test_rows_without_tokens(head: str, options: dict, tmp_path):
    model = tiny(HEADS[head], **options)
    export_onnx(model, tmp_path / "x", verify=False)
    export_onnx(model, tmp_path / "y", unpad=False, verify=False)
    empty = {name: value * np.array([[1], [0], [1]]) for name, value in EXAMPLE.items()}
    outputs, padded, full = (
        run(tmp_path / "x", empty),
        run(tmp_path / "y", empty),
        run(tmp_path / "x", EXAMPLE),
    )
    for name, value in outputs.items():
        assert np.isfinite(value).all() and np.isfinite(padded[name]).all()
        assert_close(value[[0, 2]], full[name][[0, 2]])
    for value in run(tmp_path / "x", {name: value * 0 for name, value in EXAMPLE.items()}).values():
        assert np.isfinite(value).all()
        assert value.ndim < 3 or not value.any()


MASKS = {
    "right": [1, 1, 1, 0, 0, 0],
    "left": [0, 0, 0, 1, 1, 1],
    "holes": [0, 1, 0, 1, 1, 0],
    "one token": [0, 0, 0, 1, 0, 0],
    "none": [0, 0, 0, 0, 0, 0],
    "all": [1, 1, 1, 1, 1, 1],
}


@pytest.mark.thorough
@covering(
    head=list(HEADS),
    options={"bert": {}, "roberta": ROBERTA, "distilbert": DISTILBERT},
    opset=[17, 23],
)
def test_every_kind_of_mask(head: str, options: dict, opset: int, tmp_path):
    """Outputs equal Keras's, and are 0 at masked tokens, the first one included."""
    model = tiny(HEADS[head], **options)
    export_onnx(model, tmp_path / "x", opset=opset, verify=False)
    mask = np.array(list(MASKS.values()))
    random = np.random.default_rng(0)
    inputs = {"attention_mask": mask, "input_ids": random.integers(2, TINY["vocabulary_size"], mask.shape)}
    inputs["token_type_ids"] = random.integers(0, 2, mask.shape)
    outputs = run(tmp_path / "x", inputs)
    expected = model({name: inputs[name] for name in model.input})
    expected = expected if isinstance(expected, dict) else {model.output_names[0]: expected}
    for name, tensor in expected.items():
        value = as_numpy(tensor)
        value = np.where(mask[..., None] == 1, value, 0) if value.ndim == 3 else value
        for row in range(len(MASKS)):
            assert_close(outputs[name][row], value[row])


@pytest.mark.parametrize("head", ["none", "tags", "sentence", "classifier"])
def test_nan_stays_in_its_row(head: str, tmp_path):
    """A NaN in one text of a batch does not change the outputs of the others."""
    model = tiny(HEADS[head])
    export_onnx(model, tmp_path / "x", verify=False)
    proto = onnx.load(tmp_path / "x/onnx/model.onnx")
    (stored,) = (tensor for tensor in proto.graph.initializer if tensor.name == "token_embedding/table")
    table = onnx.numpy_helper.to_array(stored).copy()
    table[7] = np.nan
    stored.CopyFrom(onnx.numpy_helper.from_array(table, stored.name))
    onnx.save(proto, tmp_path / "x/onnx/model.onnx")
    ids = np.array([[7, 2, 3, 4], [1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 0], [4, 7, 1, 0], [0, 0, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0) * 1, "token_type_ids": ids * 0}
    together = run(tmp_path / "x", inputs)
    for name, outputs in together.items():
        assert np.isnan(outputs[[0, 4]]).any() and np.isfinite(outputs[[1, 2, 3, 5]]).all()
        for row, real in ((1, 2), (3, 3)):
            alone = run(tmp_path / "x", {key: x[[row], :real] for key, x in inputs.items()})[name][0]
            assert_close(outputs[row, :real] if alone.ndim == 2 else outputs[row], alone)


@keras.saving.register_keras_serializable("tests")
@dataclasses.dataclass(frozen=True)
class LargestHead(Head):
    """Reads every token, masked or not."""

    def __call__(self, features):
        return project(keras.ops.max(features.tokens, axis=1), 2, "logits")


def test_head_that_reads_masked_tokens_raises(tmp_path):
    model = tiny(LargestHead())
    with pytest.raises(ExportError, match="unpad=False"):
        export_onnx(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert export_onnx(model, tmp_path / "x", unpad=False).manifest.parity is not None


@pytest.mark.parametrize("masked", [True, False])
def test_attention_without_mask_receives_zeros(masked: bool):
    from onnx import helper

    size = ("batch_size", "sequence_length")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], "embeddings/Gather"),
        helper.make_node("Cast", ["attention_mask"], ["real"], "mask/Cast", to=onnx.TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["real", "keys"], ["of_keys"], "mask/keys"),
        helper.make_node("Unsqueeze", ["real", "queries"], ["of_queries"], "mask/queries"),
        helper.make_node("And", ["of_keys", "of_queries"], ["mask"], "mask/And"),
        helper.make_node(
            "Attention", ["x"] * 3 + ["mask"] * masked, ["y"], "attention", q_num_heads=2, kv_num_heads=2
        ),
    ]
    stored = {"table": draw(9, 8), "keys": np.array([1, 2]), "queries": np.array([1, 3])}
    graph = helper.make_graph(
        nodes if masked else [nodes[0], nodes[-1]],
        "graph",
        [helper.make_tensor_value_info(name, 7, size) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("y", 1, (*size, 8))],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    read_sizes_from_ids(model)
    assert unpadding.unpad(model) == 1
    (attention,) = [node for node in model.graph if node.op_type == "Attention"]
    expected = "Gather" if masked else "Reshape"
    assert {x.producer().op_type for x in attention.inputs[:3]} == {expected}
    ids = np.array([[3, 4, 5], [6, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0) * 1}
    changed = ir.to_proto(model).SerializeToString()
    (got,) = onnxruntime.InferenceSession(changed, providers=["CPUExecutionProvider"]).run(None, inputs)
    table = stored["table"].copy()
    table[0] = 0
    q = k = table[ids].reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / 2)
    if masked:
        scores = scores * (ids > 0)[:, None, None]
    mixed = (scores / scores.sum(-1, keepdims=True) @ k).transpose(0, 2, 1, 3).reshape(2, 3, 8)
    assert_close(got[ids > 0], mixed[ids > 0])


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["tags", "masked"])
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method:UserWarning")
def test_layers_quantized_by_keras_skip_padding(opset: int, head: str, tmp_path):
    model = tiny(HEADS[head])
    model.quantize("int8")
    report = export_onnx(model, tmp_path / "x", opset=opset)
    assert report.manifest.precisions.keys() == {"int8"}
    graph = onnx.load(tmp_path / "x/onnx/model.onnx").graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert products and {ranks[node.output[0]] for node in products} == {2}
