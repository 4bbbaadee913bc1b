"""keras-tx quantize, and --precision of the other commands."""

from __future__ import annotations

import json

import numpy as np
import pytest

import keras_tx
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import open_folder
from keras_tx_onnx import export_onnx
from keras_tx_onnx.quantizing import auto_precision
from tests.drawing import draw, redraw
from tests.exported_folders import CORPUS


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


@pytest.fixture
def poet(tmp_path):
    words = train_byte_bpe(CORPUS, size=280)
    model = redraw(keras_tx.gpt("pico", width=64, num_heads=4, max_length=32, processing=words))
    export_onnx(model, tmp_path / "poet", verify=False)
    return tmp_path / "poet"


@pytest.fixture(autouse=True)
def short_timing(monkeypatch):
    monkeypatch.setattr(auto_precision, "ROUNDS", 1)
    monkeypatch.setattr(auto_precision, "RUNS", 2)


def report_of(folder) -> tuple[dict, dict[str, dict]]:
    report = json.loads((folder / auto_precision.REPORT).read_text())
    return report, {row["precision"]: row for row in report["measured"]}


def test_choice_on_texts(tx, poet, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(CORPUS * 3) + "\n\n", encoding="utf-8")
    ran = tx("quantize", poet, "--precision", "auto", "--data", tmp_path / "texts.txt", "--tolerance", 1)
    assert (ran.code, ran.err) == (0, "")
    report, rows = report_of(poet)
    assert list(rows) == ["fp32", "fp16", "int8", "int8-dynamic", "int4"]
    assert report["metric"] == "-log(perplexity)" and rows["fp32"]["agreement"] == 1
    assert all(0 < row["agreement"] <= 1 and row["megabytes"] > 0 for row in rows.values())
    assert set(open_folder(poet).manifest.precisions) == {"fp32", report["chosen"]}
    head = ran.out.splitlines()[1].split()
    assert head[:3] == ["MB", "ms", "agree"]
    assert f"{rows['int4']['agreement']:.2%}" in ran.out and "windows of 32" in ran.out


def test_rounding_on_texts(tx, poet, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(CORPUS * 3), encoding="utf-8")
    ran = tx("quantize", poet, "--precision", "int4", "--data", tmp_path / "texts.txt")
    assert (ran.code, ran.err) == (0, "")
    recipe = open_folder(poet).manifest.variants["int4"].recipe
    assert "rounded on" in recipe and "tokens in windows of 32" in recipe and recipe in ran.out
    ran = tx("quantize", poet, "--precision", "int8", "--data", tmp_path / "texts.txt")
    assert ran.code == 2 and "calibration has no effect for precision int8" in ran.err


def test_choice_on_a_column_of_a_table(tx, poet, tmp_path):
    (tmp_path / "texts.csv").write_text(
        "text,label\nthe cat sat on the mat,1\nAda lives,0\n", encoding="utf-8"
    )
    data = ("--data", tmp_path / "texts.csv", "--tolerance", 1)
    ran = tx("quantize", poet, "--precision", "auto", *data, "--column", "text")
    assert (ran.code, ran.err) == (0, "")
    ran = tx("quantize", poet, "--precision", "auto", *data)
    assert ran.code == 2 and "--column" in ran.err


def test_choice_on_arrays(tx, flowers, tmp_path):
    pictures = draw(40, 3, 8, 8)
    np.savez(tmp_path / "some.npz", pixel_values=pictures)
    ran = tx("quantize", flowers, "--precision", "auto", "--data", tmp_path / "some.npz", "--tolerance", 1)
    assert (ran.code, ran.err) == (0, "")
    report, rows = report_of(flowers)
    assert report["metric"] == "agreement"
    assert list(rows) == ["fp32", "fp16", "int8", "int8-blocks", "int4"]
    assert all(row["score"] == row["agreement"] for row in rows.values())
    np.savez(tmp_path / "some.npz", pixel_values=pictures, targets=np.zeros(40, "int64"))
    ran = tx("quantize", flowers, "--precision", "auto", "--data", tmp_path / "some.npz", "--tolerance", 1)
    assert report_of(flowers)[0]["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("auto",), "requires --data"),
        (("auto", "int8", "--data", "x.txt"), "Pass auto alone"),
        (("int8", "--column", "text"), "--column requires --data"),
        (("int4", "--data", "x.txt", "--calibration", "x.npz"), "Pass one of them"),
        (("int4", "--data", "missing.txt"), "missing.txt does not exist"),
        (("int8", "--tolerance", "1"), "--tolerance requires --precision auto"),
        (("auto", "--data", "missing.txt"), "missing.txt does not exist"),
    ],
)
def test_options_that_do_not_fit_print_one_line(tx, poet, options, message):
    ran = tx("quantize", poet, "--precision", *options)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert list(open_folder(poet).manifest.precisions) == ["fp32"]


def test_file_without_texts(tx, poet, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    ran = tx("quantize", poet, "--precision", "auto", "--data", tmp_path / "empty.txt")
    assert ran.code == 2 and "has no texts" in ran.err
