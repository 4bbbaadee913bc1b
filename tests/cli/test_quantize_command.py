"""keras-tx quantize, and --precision of the other commands."""

from __future__ import annotations

import json

import numpy as np
import pytest

import keras_tx
from keras_tx.runtime import open_folder
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw


@pytest.fixture
def flowers(tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=100, width=64, num_heads=4, mlp_dim=128))
    model.save(tmp_path / "flowers.keras")
    export_onnx(model, tmp_path / "flowers", verify=False)
    return tmp_path / "flowers"


def test_files_beside_the_first(tx, flowers, picture):
    ran = tx("quantize", flowers, "--precision", "int8", "int4", "--keep", "logits")
    assert (ran.code, ran.err) == (0, "")
    assert "int8" in ran.out and "In fp32 because of keep: logits." in ran.out
    assert list(open_folder(flowers).manifest.precisions) == ["fp32", "int8", "int4"]
    ran = tx("run", flowers, picture, "--precision", "int8", "--json", "--provider", "cpu")
    assert ran.code == 0 and len(json.loads(ran.out)["predictions"]) == 5
    ran = tx("verify", flowers)
    assert ran.code == 0, ran.out
    assert "ok      int8            model_quantized.onnx, dynamic, within" in ran.out
    assert "ok      int4            model_q4.onnx" in ran.out


def test_verify_finds_a_damaged_file_of_lower_precision(tx, flowers, reseal):
    tx("quantize", flowers, "--precision", "int8")
    graph = flowers / "onnx/model_quantized.onnx"
    graph.write_bytes(graph.read_bytes()[:-100])
    reseal(flowers)
    ran = tx("verify", flowers)
    assert ran.code == 1
    assert "FAILED  int8" in ran.out


def test_ranges_from_a_file(tx, flowers, tmp_path):
    np.savez(tmp_path / "some.npz", pixel_values=draw(40, 3, 8, 8))
    ran = tx("quantize", flowers, "--precision", "int8", "--calibration", tmp_path / "some.npz")
    assert (ran.code, ran.err) == (0, "")
    assert open_folder(flowers).manifest.variants["int8"].recipe == "static"


def test_export_writes_them_at_once(tx, flowers, tmp_path):
    ran = tx(
        "export", tmp_path / "flowers.keras", tmp_path / "out", "--precision", "fp32", "int8", "--no-verify"
    )
    assert ran.code == 0, ran.err
    assert list(open_folder(tmp_path / "out").manifest.precisions) == ["fp32", "int8"]


def test_invalid_calibration_files_print_one_line(tx, flowers, tmp_path):
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "uneven.npz", a=np.zeros(2), b=np.zeros(3))
    for name, expected in (
        ("none.npz", "none.npz"),
        ("text.npz", "text.npz"),
        ("uneven.npz", "a 2, b 3 rows"),
    ):
        ran = tx("quantize", flowers, "--precision", "int8", "--calibration", tmp_path / name)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert expected in ran.err


def test_missing_precision(tx, flowers, picture):
    ran = tx("run", flowers, picture, "--precision", "int4")
    assert ran.code == 2
    assert f"keras-tx quantize {flowers} --precision int4" in ran.err
