"""The outputs of a sample depend on the rest of its batch in dynamic int8 only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from keras_tx.processing import train_wordpiece
from keras_tx.runtime import open_folder
from keras_tx_onnx import quantize
from tests.drawing import draw
from tests.exported_folders import CORPUS
from tests.quantizing.folders import bert, exported, session

SAMPLE = draw(1, 3, 8, 8)
LOUD = 20 * draw(7, 3, 8, 8, seed=3)  # the rest of the batch, which widens the range


@pytest.fixture(scope="module")
def folder(exported_folders, tmp_path_factory) -> Path:
    folder = exported_folders.copy("wide vit", tmp_path_factory.mktemp("batch") / "folder")
    quantize(folder, ["fp16", "int8", "int8-blocks", "int4"])
    return folder


@pytest.fixture(scope="module")
def static(exported_folders, folder, tmp_path_factory) -> Path:
    again = exported_folders.copy("wide vit", tmp_path_factory.mktemp("static") / "folder")
    quantize(again, "int8", calibration=np.concatenate([SAMPLE, LOUD]))
    return again


def change_by_batch(folder: Path, name: str) -> float:
    """The difference between a sample alone and in a batch, relative to the scale of its output."""
    run = session(folder, name)
    (alone,) = run.run(None, {"pixel_values": SAMPLE})
    (together,) = run.run(None, {"pixel_values": np.concatenate([SAMPLE, LOUD])})
    return float(np.abs(alone[0] - together[0]).max() / np.abs(alone).max())


def test_dynamic_int8_depends_on_the_batch(folder):
    assert 1e-3 < change_by_batch(folder, "model_quantized.onnx") < 0.5


@pytest.mark.parametrize("name", ["model.onnx", "model_int8.onnx", "model_q4.onnx"])
def test_blocks_do_not_depend_on_the_batch(folder, name):
    assert change_by_batch(folder, name) < 1e-5


def test_fixed_ranges_do_not_depend_on_the_batch(static):
    assert change_by_batch(static, "model_quantized.onnx") < 1e-5
    model = onnx.load(static / "onnx/model_quantized.onnx")
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "MatMul"} < kinds
    assert not kinds & {"DynamicQuantizeLinear", "MatMulInteger"}
    assert [entry.domain for entry in model.opset_import] == [""]
    variant = open_folder(static).manifest.variants["int8"]
    assert variant.recipe == "static" and variant.noise < 0.1


def test_ranges_cover_all_batches(exported_folders, tmp_path):
    """Calibration on a small sample clips large ones; calibration on both does not."""
    folder = exported_folders.copy("wide vit", tmp_path / "folder")
    (expected,) = session(folder).run(None, {"pixel_values": LOUD})
    lost = []
    for calibration in ([0 * SAMPLE], [{"pixel_values": SAMPLE}, {"pixel_values": LOUD}]):
        quantize(folder, "int8", calibration=calibration)
        (got,) = session(folder, "model_quantized.onnx").run(None, {"pixel_values": LOUD})
        lost.append(float(np.abs(got - expected).max() / np.abs(expected).max()))
    assert lost[1] < 0.1 and lost[0] > 2 * lost[1], lost


def test_calibration_from_tf_data_with_channels_last(exported_folders, tmp_path):
    tf = pytest.importorskip("tensorflow")
    folder = exported_folders.copy("wide vit", tmp_path / "folder")
    pictures = draw(6, 8, 8, 3)  # as model.processing gives them
    quantize(folder, "int8", calibration=pictures)
    first = (folder / "onnx/model_quantized.onnx").read_bytes()
    quantize(folder, "int8", calibration=tf.data.Dataset.from_tensor_slices((pictures, np.zeros(6))).batch(2))
    assert (folder / "onnx/model_quantized.onnx").read_bytes() == first


def test_ranges_of_texts(tmp_path):
    """The texts, and the ids that the tokenizer of the folder computes from them."""
    words = train_wordpiece(CORPUS, size=60)
    folder = exported(bert(vocabulary_size=words.vocabulary_size, processing=words), tmp_path / "folder")
    report = quantize(folder, "int8", calibration=CORPUS)
    assert open_folder(folder).manifest.variants["int8"].recipe == f"static, ranges of {len(CORPUS)} texts"
    assert not open_folder(folder).manifest.depends_on_batch("int8")
    assert f"ranges of {len(CORPUS)} texts" in str(report)
    of_texts = (folder / "onnx/model_quantized.onnx").read_bytes()
    quantize(folder, "int8", calibration=words(sorted(CORPUS, key=len)))
    assert (folder / "onnx/model_quantized.onnx").read_bytes() == of_texts


def test_unpadded_texts_with_fixed_ranges(tmp_path):
    """Their products have two axes, and onnxruntime would dequantize the weights in each run."""
    folder = exported(bert(), tmp_path / "folder")
    ids = np.random.default_rng(0).integers(0, 300, (4, 16))
    mask = (np.arange(16) < np.array([[16], [9], [3], [12]])).astype("int64")
    done = quantize(folder, "int8", calibration={"input_ids": ids, "attention_mask": mask})
    assert done.manifest.variants["int8"].noise < 0.1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (whole,) = session(folder, "model_quantized.onnx").run(None, inputs)
    one = {name: x[1:2, :9] for name, x in inputs.items()}
    (alone,) = session(folder, "model_quantized.onnx").run(None, one)
    np.testing.assert_allclose(whole[1:2, :9], alone, atol=1e-5 * np.abs(alone).max())
