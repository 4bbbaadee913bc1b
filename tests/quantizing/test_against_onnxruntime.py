"""Quantized weights equal those of onnxruntime's own tools."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from keras_tx_onnx import quantize
from tests.drawing import draw
from tests.quantizing.folders import bert, exported, loaded, session

PIXELS = {"pixel_values": draw(3, 3, 8, 8)}


@pytest.fixture(scope="module")
def folder(exported_folders, tmp_path_factory) -> Path:
    folder = exported_folders.copy("wide vit", tmp_path_factory.mktemp("vit") / "folder")
    quantize(folder, ["int8", "int8-blocks", "int4"])
    return folder


def weights(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_dynamic_int8(folder, tmp_path, monkeypatch):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    monkeypatch.setattr(logging, "warning", lambda *_: None)  # that the model was not preprocessed
    theirs = tmp_path / "onnx" / "theirs.onnx"
    theirs.parent.mkdir()
    quantize_dynamic(
        folder / "onnx/model.onnx",
        theirs,
        per_channel=True,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul"],
    )
    ours, others = weights(folder / "onnx/model_quantized.onnx"), weights(theirs)
    kernels = [name.removesuffix("_quantized") for name in others if name.endswith("_quantized")]
    assert len(kernels) == 10  # four of the first block, five of the last, and the head
    for name in kernels:
        np.testing.assert_array_equal(ours[f"{name}_int8"], others[f"{name}_quantized"])
        np.testing.assert_array_equal(ours[f"{name}_scale"], others[f"{name}_scale"])
    (expected,) = session(tmp_path, "theirs.onnx").run(None, PIXELS)
    (got,) = session(folder, "model_quantized.onnx").run(None, PIXELS)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("name", "bits"), [("model_q4.onnx", 4), ("model_int8.onnx", 8)])
def test_blocks(folder, tmp_path, name, bits):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(folder / "onnx/model.onnx")
    quantizer = MatMulNBitsQuantizer(model, bits=bits, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    (tmp_path / "onnx").mkdir()
    quantizer.model.save_model_to_file(str(tmp_path / "onnx/theirs.onnx"))
    ours, others = weights(folder / "onnx" / name), weights(tmp_path / "onnx/theirs.onnx")
    kernels = [name.removesuffix(f"_Q{bits}") for name in others if name.endswith(f"_Q{bits}")]
    assert len(kernels) == 10
    for kernel in kernels:
        np.testing.assert_array_equal(ours[f"{kernel}_q{bits}"], others[f"{kernel}_Q{bits}"])
        np.testing.assert_array_equal(ours[f"{kernel}_scale"].ravel(), others[f"{kernel}_scales"].ravel())
    (expected,) = session(tmp_path, "theirs.onnx").run(None, PIXELS)
    (got,) = session(folder, name).run(None, PIXELS)
    np.testing.assert_array_equal(got, expected)


def test_partial_blocks():
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits

    from keras_tx_onnx.quantizing.weight_blocks import rounded_blocks

    kernel = draw(100, 24)
    kernel[:, 3] = 0
    padded = np.pad(kernel, ((0, 28), (0, 0)))
    steps, scales = np.zeros((24, 4, 16), "uint8"), np.zeros((24, 4), "float32")
    quantize_matmul_4bits(steps, padded, scales, np.zeros((24, 2), "uint8"), 32, 24, 100, True)
    ours, ours_scales = rounded_blocks(kernel.T, 4, 32)
    np.testing.assert_array_equal(ours_scales, scales)
    np.testing.assert_array_equal(ours.reshape(24, -1)[:, :50], steps.reshape(24, -1)[:, :50])
    assert (ours.reshape(24, -1)[:, 50:] == 0x88).all()  # zero, which the kernel never reads


@pytest.mark.parametrize("width", [64, 72])  # 72: the last block is padded
@pytest.mark.parametrize(("name", "bits"), [("model_q4.onnx", 4), ("model_int8.onnx", 8)])
def test_lookups(tmp_path, name, bits, width):
    """Lookups in blocks equal GatherBlockQuantized, which is not in each client's onnxruntime."""
    precisions = ["fp32", "int8-blocks", "int4"]
    folder = exported(bert(width=width), tmp_path / "bert", precision=precisions, unpad=False)
    lookups = [x for x in loaded(folder, "model.onnx").graph.node if x.op_type == "Gather"]
    (lookup,) = [x for x in lookups if x.input[0] == "token_embedding/table"]
    stored = weights(folder / "onnx" / name)
    steps, scale = stored[f"token_embedding/table_q{bits}"], stored["token_embedding/table_scale"]
    ids = np.array([[0, 299, 5], [7, 7, 131]])
    expected = gathered(steps.reshape(len(steps), -1), scale, ids, bits)[..., :width]
    model = loaded(folder, name)
    assert "GatherBlockQuantized" not in {node.op_type for node in model.graph.node}
    model.graph.output.add().name = lookup.output[0]
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    runner = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = runner.run([lookup.output[0]], feed)
    np.testing.assert_array_equal(actual, expected)


def gathered(steps: np.ndarray, scale: np.ndarray, ids: np.ndarray, bits: int) -> np.ndarray:
    options = {"gather_axis": 0, "quantize_axis": 1, "bits": bits, "block_size": 32}
    node = onnx.helper.make_node(
        "GatherBlockQuantized", ["steps", "ids", "scale"], ["y"], domain="com.microsoft", **options
    )
    values = [numpy_helper.from_array(steps, "steps"), numpy_helper.from_array(scale, "scale")]
    ports = [
        onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ids.shape),
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
    ]
    graph = onnx.helper.make_graph([node], "lookup", ports[:1], ports[1:], values)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})[0]
