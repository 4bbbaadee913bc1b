"""keras-tx verify: valid folders, and a test for each kind of damage."""

from __future__ import annotations

import dataclasses
import json
import os

import onnx
import pytest

from keras_tx import contract
from keras_tx.contract import Manifest, Parity, TensorSpec
from tests.runtime import counting_encoder_decoder
from tests.runtime.counting_decoder import byte_tokenizer

MARKS = {"ok", "FAILED", "-"}


def status(out: str) -> dict[str, str]:
    """The mark of each check."""
    return {line[8:24].strip(): line[:8].strip() for line in out.splitlines() if line[:8].strip() in MARKS}


@pytest.mark.parametrize("name", ["flowers", "features", "generic"])
def test_valid_folder(tx, exports, name):
    ran = tx("verify", exports / name)
    assert (ran.code, ran.err) == (0, "")
    assert set(status(ran.out).values()) == {"ok"}, ran.out
    assert len(status(ran.out)) == 10
    assert ran.out.endswith(f"{exports / name} is valid.\n")
    assert "tolerance 1e-04" in ran.out


@pytest.mark.parametrize(
    "name", ["reviews", "mask", "pretrained", "answers", "tags", "sentences", "ids", "poet"]
)
def test_text_models(tx, tmp_path, name):
    """The graph runs on every kind of mask, and the output does not mention images."""
    import keras_tx
    from keras_tx_onnx import export_onnx
    from tests.export.small_bert import HEADS, tiny
    from tests.wordpiece import wordpiece

    heads = {"reviews": "classifier", "mask": "masked", "answers": "span", "tags": "tags"}
    heads["pretrained"] = "pretraining"
    if name == "poet":
        words = keras_tx.processing.train_byte_bpe(["the cat sat on the mat"] * 5, size=280)
        model = keras_tx.gpt("pico", max_length=70, processing=words)
    else:
        tokenizer = None if name == "ids" else keras_tx.TextTransform.of(wordpiece())
        model = tiny(HEADS[heads.get(name, "sentence")], processing=tokenizer)
    export_onnx(model, tmp_path / name, precision=["fp32", "fp16"])
    ran = tx("verify", tmp_path / name)
    assert (ran.code, ran.err) == (0, "")
    assert set(status(ran.out).values()) == {"ok"}, ran.out
    assert "image" not in ran.out
    assert "6 texts of 16 tokens with every kind of padding mask; a text of 1 token; a text of 70" in ran.out
    assert ("answers a text of" in ran.out) == (name != "ids")


def test_encoder_decoder(tx, tmp_path, reseal):
    pytest.importorskip("tokenizers")
    folder = counting_encoder_decoder.make(tmp_path / "translator", tokenizer=byte_tokenizer())
    ran = tx("verify", folder)
    assert (ran.code, ran.err) == (0, "")
    marks = status(ran.out)
    assert marks["encoder"] == marks["runs"] == marks["task"] == "ok"
    assert "TextToTextGenerator, answers a text of" in ran.out
    assert "encoder_model.onnx, on random inputs: 6 texts" in ran.out
    proto = onnx.load(folder / contract.ENCODER_MODEL)
    proto.graph.output[0].name = proto.graph.node[-1].output[0] = "hidden"
    onnx.save(proto, folder / contract.ENCODER_MODEL)
    reseal(folder)
    ran = tx("verify", folder)
    assert ran.code == 1 and status(ran.out)["encoder"] == "FAILED"


def test_failure_on_long_texts(tx, tmp_path, reseal):
    from keras_tx_onnx import export_onnx
    from tests.export.small_bert import HEADS, tiny
    from tests.wordpiece import wordpiece

    export_onnx(tiny(HEADS["classifier"]), tmp_path / "x", tokenizer=wordpiece())
    path = tmp_path / "x" / contract.MODEL
    proto = onnx.load(path)
    (table,) = (tensor for tensor in proto.graph.initializer if tensor.name == "positions/table")
    shorter = onnx.numpy_helper.to_array(table)[:60]
    table.CopyFrom(onnx.numpy_helper.from_array(shorter, table.name))
    onnx.save(proto, path)
    reseal(tmp_path / "x")
    ran = tx("verify", tmp_path / "x")
    assert ran.code == 1 and status(ran.out)["runs"] == "FAILED"
    assert "input_ids [1, 70]" in ran.out


def test_unknown_sizes(tx, tmp_path):
    """Several sizes are tried; if none is accepted, the check neither passes nor fails."""
    import keras

    from keras_tx_onnx import export_onnx

    x = keras.Input((None, 4))
    for window, mark in ((40, "ok"), (300, "-")):
        model = keras.Model(x, keras.layers.Conv1D(3, window)(x))
        export_onnx(model, tmp_path / mark, verify=False)
        ran = tx("verify", tmp_path / mark)
        assert (ran.code, status(ran.out)["runs"]) == (0, mark)
    assert "not run: none of 9 sizes is accepted" in ran.out


def test_missing_folder(tx, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, expected in (
        ("none", "does not exist"),
        ("file", "is a file"),
        ("empty", "has no keras_tx.json"),
    ):
        ran = tx("verify", tmp_path / name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert expected in ran.err


def failed(tx, folder, check: str) -> str:
    ran = tx("verify", folder)
    assert (ran.code, ran.err) == (1, "")
    assert [name for name, mark in status(ran.out).items() if mark == "FAILED"] == [check], ran.out
    assert "FAILED: do not use it" in ran.out
    return next(line for line in ran.out.splitlines() if line.startswith("FAILED"))


def test_changed_file(tx, copied):
    folder = copied("flowers")
    config = folder / contract.CONFIG
    config.write_bytes(config.read_bytes()[:-1] + b" ")
    assert contract.CONFIG in failed(tx, folder, "hashes")


def test_truncated_file(tx, copied):
    folder = copied("flowers")
    os.truncate(folder / contract.MODEL, 100)
    assert "has 100 bytes" in failed(tx, folder, "folder")


def test_symbolic_link(tx, copied, tmp_path):
    folder = copied("flowers")
    (folder / contract.CONFIG).rename(tmp_path / "elsewhere.json")
    (folder / contract.CONFIG).symlink_to(tmp_path / "elsewhere.json")
    assert "symbolic link" in failed(tx, folder, "folder")


@pytest.mark.parametrize("name", [contract.MODEL, contract.CONFIG])
def test_hard_link(tx, copied, tmp_path, name):
    folder = copied("flowers")
    os.link(folder / name, tmp_path / "elsewhere")
    assert "hard link" in failed(tx, folder, "folder")


def test_missing_file(tx, copied):
    folder = copied("flowers")
    (folder / contract.PREPROCESSOR).unlink()
    assert f"{contract.PREPROCESSOR} is missing" in failed(tx, folder, "folder")


def test_weights_of_another_model(tx, copied, tmp_path, monkeypatch):
    import keras_tx
    from keras_tx_onnx import export_onnx

    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 1000)
    for name in ("flowers", "trees"):
        export_onnx(keras_tx.vit("Mu/2", image_size=8, num_classes=3), tmp_path / name, verify=False)
    ours, theirs = (tmp_path / name / contract.MODEL_DATA for name in ("flowers", "trees"))
    assert ours.stat().st_size == theirs.stat().st_size
    os.replace(theirs, ours)
    assert contract.MODEL_DATA in failed(tx, tmp_path / "flowers", "hashes")


def test_opset_newer_than_runtime(tx, copied, reseal):
    """The manifest and the graph agree, but onnxruntime does not support the opset."""
    folder = copied("flowers")
    model = onnx.load(folder / contract.MODEL)
    newest = max(contract.IR_VERSIONS)
    model.opset_import[0].version, model.ir_version = newest + 50, contract.IR_VERSIONS[newest]
    onnx.save(model, folder / contract.MODEL)
    reseal(folder, opset=newest + 50)
    ran = tx("verify", folder)
    assert ran.code == 1
    marks = status(ran.out)
    assert (marks["opset"], marks["onnxruntime"]) == ("FAILED", "FAILED")


def test_contradicting_labels(tx, copied, reseal):
    folder = copied("flowers")
    config = json.loads((folder / contract.CONFIG).read_text())
    config["id2label"]["0"] = "weed"
    (folder / contract.CONFIG).write_text(json.dumps(config))
    reseal(folder)
    assert "id2label" in failed(tx, folder, "folder")


def test_invalid_manifest(tx, copied):
    folder = copied("flowers")
    (folder / contract.MANIFEST).write_text("{")
    assert "valid manifest" in failed(tx, folder, "folder")


@pytest.mark.parametrize("opset", [22, 99])
def test_opset_of_another_graph(tx, copied, reseal, opset):
    folder = copied("flowers")
    reseal(folder, opset=opset)
    assert f"manifest has {opset}" in failed(tx, folder, "opset")


def test_shape_of_another_graph(tx, copied, reseal):
    folder = copied("generic")
    manifest = Manifest.from_json((folder / contract.MANIFEST).read_text())
    first, second = manifest.inputs
    reseal(folder, inputs=(first, dataclasses.replace(second, shape=("batch_size", 4))))
    assert "the graph has" in failed(tx, folder, "tensors")


def test_name_of_another_graph(tx, copied, reseal):
    folder = copied("flowers")
    reseal(folder, outputs=(TensorSpec("scores", "float32", ("batch_size", 3)),))
    ran = tx("verify", folder)
    assert ran.code == 1
    assert {name for name, mark in status(ran.out).items() if mark == "FAILED"} == {"tensors", "task"}


def test_invalid_graph(tx, copied, reseal):
    folder = copied("flowers")
    model = onnx.load(folder / contract.MODEL)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, folder / contract.MODEL)
    reseal(folder)
    ran = tx("verify", folder)
    assert ran.code == 1
    marks = status(ran.out)
    assert (marks["ONNX checker"], marks["onnxruntime"]) == ("FAILED", "FAILED")


def test_weights_with_nan(tx, copied, reseal):
    folder = copied("flowers")
    model = onnx.load(folder / contract.MODEL)
    weights = next(t for t in model.graph.initializer if "logits" in t.name and len(t.dims) == 2)
    values = onnx.numpy_helper.to_array(weights).copy()
    values[:] = float("nan")
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    onnx.save(model, folder / contract.MODEL)
    reseal(folder)
    assert "logits is not finite" in failed(tx, folder, "runs")


def test_parity_above_tolerance(tx, copied, reseal):
    folder = copied("flowers")
    reseal(folder, parity=Parity(0.5, 1e-4, ("batch 1",)))
    assert "within 5.0e-01" in failed(tx, folder, "parity")


def test_unlisted_files_and_missing_parity(tx, copied, reseal):
    folder = copied("flowers")
    reseal(folder, parity=None)
    (folder / "README.md").write_text("mine")
    ran = tx("verify", folder)
    assert ran.code == 0
    assert {name for name, mark in status(ran.out).items() if mark == "-"} == {"other files", "parity"}
    assert "README.md" in ran.out
    assert "NOT compared" in ran.out


def test_against(tx, tmp_path):
    import keras_tx
    from keras_tx_onnx import export_onnx

    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    export_onnx(model, tmp_path / "flowers")
    model.save(tmp_path / "flowers.keras")
    ran = tx("verify", tmp_path / "flowers", "--against", tmp_path / "flowers.keras")
    assert ran.code == 0 and status(ran.out)["against Keras"] == "ok", ran.out + ran.err
    assert "fp32 within" in ran.out and "of flowers.keras (allowed 1.0e-04)" in ran.out
    model.get_layer("norm").gamma.assign(model.get_layer("norm").gamma * 2)
    model.save(tmp_path / "other.keras")
    ran = tx("verify", tmp_path / "flowers", "--against", tmp_path / "other.keras")
    assert ran.code == 1 and status(ran.out)["against Keras"] == "FAILED"
    ran = tx("verify", tmp_path / "flowers", "--against", tmp_path / "none.keras")
    assert (ran.code, ran.out) == (2, "") and "none.keras" in ran.err
