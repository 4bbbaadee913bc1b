"""keras-tx doctor FOLDER --target, and keras-tx export --target."""

from __future__ import annotations

import json

from keras_tx.runtime import open_folder


def test_placement_by_version(tx, exports, tmp_path):
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", "--no-verify")
    assert ran.code == 0
    ran = tx("doctor", tmp_path / "out", "--target", "webgpu")
    assert (ran.code, ran.err) == (1, "")
    assert "onnx/model.onnx on webgpu" in ran.out
    assert "onnxruntime 1.30" in ran.out or "to 1.30" in ran.out
    assert "1 Attention" in ran.out and "tested with a software adapter in Chromium" in ran.out
    ran = tx("doctor", tmp_path / "out", "--target", "cuda")
    assert (ran.code, ran.err) == (0, "")  # the newest version has a kernel
    assert "onnxruntime 1.24 " in ran.out and "none on the CPU" in ran.out
    assert "compared with documentation, not run" in ran.out


def test_export_for_a_target(tx, exports, tmp_path):
    options = ["--no-verify", "--target", "webgpu", "cpu"]
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", *options)
    assert (ran.code, ran.err) == (0, "")
    assert list(open_folder(tmp_path / "out").manifest.targets) == ["webgpu", "cpu"]
    ran = tx("doctor", tmp_path / "out", "--target", "webgpu", "--json")
    assert ran.code == 0
    rows = json.loads(ran.out)["onnx/model.onnx"]
    assert all(row["fallback"] == {} and row["target"] > 30 for row in rows.values())
    ran = tx("doctor", tmp_path / "out", "--target", "cpu")
    assert ran.code == 0 and "onnx/model_cpu.onnx on cpu" in ran.out


def test_every_precision(tx, exports, tmp_path):
    options = ["--no-verify", "--target", "webgpu", "--precision", "fp32", "fp16", "int8"]
    assert tx("export", exports / "flowers.keras", tmp_path / "out", *options).code == 0
    ran = tx("doctor", tmp_path / "out", "--target", "webgpu", "--json")
    assert ran.code == 1
    newest = {name: next(reversed(rows.values())) for name, rows in json.loads(ran.out).items()}
    assert newest["onnx/model.onnx"]["fallback"] == newest["onnx/model_fp16.onnx"]["fallback"] == {}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= newest["onnx/model_quantized.onnx"][
        "fallback"
    ].keys()


def test_sizes(tx, exports, tmp_path):
    options = ["--no-verify", "--target", "qnn"]
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", *options)
    assert ran.code == 2 and "requires fixed sizes, but model" in ran.err
    ran = tx("export", exports / "flowers.keras", tmp_path / "out", *options, "--size", "batch_size=4")
    assert (ran.code, ran.err) == (0, "")
    assert open_folder(tmp_path / "out").manifest.inputs[0].shape[0] == 4
    ran = tx("export", exports / "flowers.keras", tmp_path / "x", *options, "--size", "batch_size=one")
    assert ran.code == 2 and "expected AXIS=N" in ran.err


def test_folder_and_target_belong_together(tx, exports):
    for arguments in (["--target", "cuda"], [exports]):
        ran = tx("doctor", *arguments)
        assert ran.code == 2 and "FOLDER and --target belong together" in ran.err


def test_deep_is_not_for_a_folder(tx, exports):
    ran = tx("doctor", exports, "--target", "cuda", "--deep")
    assert ran.code == 2 and "Omit --deep, or FOLDER" in ran.err
