"""Quantized weights equal those of onnxruntime's own tools."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from keras_tx_onnx import quantize
from tests.drawing import draw
from tests.quantizing.folders import session

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
