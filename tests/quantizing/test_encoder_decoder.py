"""The files of lower precision of an encoder-decoder: both graphs, and the branches of the cache."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.runtime import TextToTextGenerator, load
from keras_tx.runtime.example_inputs import first_call, next_call
from keras_tx.runtime.session import Session
from keras_tx_onnx import compare, export_onnx, quantize
from keras_tx_onnx.graph.passes import infer_shapes
from keras_tx_onnx.quantizing import auto_precision
from keras_tx_onnx.quantizing.float16 import to_float16

SIZES: dict[str, Any] = {"width": 64, "mlp_dim": 128, "num_heads": 2}
MODELS: dict[str, Any] = {
    "t5": lambda: keras_tx.t5("tiny", head_dim=32, **SIZES),
    "t5-v1.1": lambda: keras_tx.t5("tiny", activation="geglu", tied=False, head_dim=48, **SIZES),
    "marian": lambda: keras_tx.transformer(
        "tiny", positions="sine-cosine-halves", activation="silu", logits_bias=True, **SIZES
    ),
}
PRECISIONS = ("fp16", "int8", "int8-blocks", "int4")
# By precision: the largest difference of an output, and the operator of a product in the first call's branch.
EXPECTED = {
    "fp16": (4e-3, "MatMul"),
    "int8": (0.1, "MatMulInteger"),
    "int8-blocks": (0.1, "MatMulNBits"),
    "int4": (0.7, "MatMulNBits"),
}


class Quantized:
    """A model, its folder, and the report of the export."""

    def __init__(self, name: str, folder: Path):
        keras.utils.set_random_seed(0)  # the tolerances of quantized files hold for most weights, not for all
        self.model = MODELS[name]()
        self.folder = folder
        self.report = export_onnx(self.model, folder, precision=["fp32", *PRECISIONS])
        self.manifest = self.report.manifest

    def paths(self, precision: str) -> tuple[Path, Path]:
        assert self.manifest.encoder is not None
        return (
            self.folder / self.manifest.encoder.precisions[precision],
            self.folder / self.manifest.precisions[precision],
        )

    def logits(self, precision: str) -> np.ndarray:
        """Of a first call, and of two tokens with the cache."""
        ids = np.random.default_rng(0).integers(2, 250, (2, 9))
        encoder, decoder = self.paths(precision)
        with Session(encoder, provider="cpu") as session:
            hidden = session.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})["last_hidden_state"]
        logits = []
        with Session(decoder, provider="cpu") as session:
            feed = first_call(session.inputs, ids[:, :3], np.ones_like(ids), hidden)
            for step in range(3):
                outputs = session.run(feed)
                logits.append(outputs["logits"])
                feed = next_call(feed, outputs, ids[:, 3 + step : 4 + step])
        return np.concatenate(logits, axis=1)


@pytest.fixture(scope="module", params=list(MODELS))
def quantized(request, tmp_path_factory) -> Quantized:
    return Quantized(request.param, tmp_path_factory.mktemp("quantized") / "folder")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_graphs_are_close_to_fp32(quantized, precision):
    limit, _ = EXPECTED[precision]
    expected, logits = quantized.logits("fp32"), quantized.logits(precision)
    assert np.abs(logits - expected).max() <= limit * np.abs(expected).max()
    encoder = quantized.manifest.encoder
    assert 0 < quantized.manifest.variants[precision].noise <= limit
    assert 0 < encoder.variants[precision].noise <= limit
    assert quantized.manifest.variants[precision].agreement > (0.5 if precision == "int4" else 0.9)


def test_files_have_the_names_of_transformers_js(quantized):
    suffixes = {"fp32": "", "fp16": "_fp16", "int8": "_quantized", "int8-blocks": "_int8", "int4": "_q4"}
    for precision, suffix in suffixes.items():
        assert [path.name for path in quantized.paths(precision)] == [
            f"encoder_model{suffix}.onnx",
            f"decoder_model_merged{suffix}.onnx",
        ]
        for path in quantized.paths(precision):
            assert path.relative_to(quantized.folder).as_posix() in quantized.manifest.files


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_in_branches_are_quantized(quantized, precision):
    graph = onnx.load(quantized.paths(precision)[1]).graph
    branches = [
        attribute.g
        for node in graph.node
        if node.op_type == "If"
        for attribute in node.attribute
        if attribute.name == "else_branch"
    ]
    assert len(branches) == 2
    for branch in branches:
        assert Counter(node.op_type for node in branch.node)[EXPECTED[precision][1]] == 2
        assert not [node for node in branch.node if node.op_type == "Cast" and precision == "fp16"]
    assert not [note for note in quantized.manifest.variants[precision].notes if "branches" in note]


def test_cache_and_hidden_states_of_fp16(quantized):
    """The cache has half precision; the value between the graphs has float32 in all files."""
    encoder, decoder = quantized.paths("fp16")
    with Session(encoder, provider="cpu") as session:
        assert {spec.dtype for spec in session.outputs} == {"float32"}
    with Session(decoder, provider="cpu") as session:
        for spec in (*session.inputs, *session.outputs):
            if spec.name.startswith(("past", "present")):
                assert spec.dtype == "float16"
        assert {spec.name: spec.dtype for spec in session.inputs}["encoder_hidden_states"] == "float32"
        attention = [node for node in onnx.load(decoder).graph.node if node.op_type == "Attention"]
    assert attention
    assert not [note for note in quantized.manifest.variants["fp16"].notes if "Attention" in note]


def test_compare_accepts_every_precision(quantized):
    results = compare(quantized.model, quantized.folder)
    assert [result.precision for result in results] == ["fp32", *PRECISIONS]
    assert all(result.passed for result in results)


def test_report_has_a_line_for_the_encoder(quantized):
    text = str(quantized.report)
    assert text.count("encoder: within") == len(PRECISIONS)
    assert "input_ids int64 [batch_size, encoder_sequence_length]" in text


@pytest.fixture
def folder(tmp_path) -> Path:
    export_onnx(MODELS["t5"](), tmp_path / "folder", verify=False)
    return tmp_path / "folder"


def test_calibration_and_keep(folder):
    ids = np.random.default_rng(0).integers(2, 250, (3, 9))
    batches = [{"input_ids": ids, "decoder_input_ids": ids[:, :5]}]
    report = quantize(folder, "int8", calibration=batches, keep=["encoder_block_0", "decoder_block_1"])
    manifest = report.manifest
    assert manifest.variants["int8"].recipe == "static"
    assert {path.split("/")[0] for path in manifest.variants["int8"].kept} == {"decoder_block_1"}
    assert {path.split("/")[0] for path in manifest.encoder.variants["int8"].kept} == {"encoder_block_0"}
    config = json.loads((folder / contract.MANIFEST).read_text())
    assert set(config["encoder"]["precisions"]) == {"fp32", "int8"}


@pytest.mark.parametrize(
    ("precision", "options", "message"),
    [
        ("int8", {"keep": ["block_7"]}, "'block_7'"),
        ("int8", {"calibration": [{"input_ids": [[1]]}]}, "'decoder_input_ids'"),
        ("auto", {"validation": ({"input_ids": [[1]]}, [[1]])}, "'decoder_input_ids'"),
        ("auto", {"validation": ({"input_ids": [[1]], "decoder_input_ids": [[1]]}, None)}, "targets"),
        ("auto", {"validation": ({"input_ids": [[1]], "decoder_input_ids": [[1]]}, [[300]])}, "target 300"),
    ],
    ids=str,
)
def test_unsupported_options_raise(precision, options, message, folder):
    with pytest.raises(ConfigError, match=message):
        quantize(folder, precision, **options)


def test_auto_keeps_the_fastest_precision_of_both_graphs(folder, monkeypatch):
    monkeypatch.setattr(auto_precision, "ROUNDS", 1)
    monkeypatch.setattr(auto_precision, "RUNS", 2)
    random = np.random.default_rng(0)
    ids, mask = random.integers(2, 250, (3, 9)), np.ones((3, 9), "int64")
    mask[0, 6:] = 0
    targets = random.integers(2, 250, (3, 5))
    labels = np.where(targets < 40, contract.NO_LABEL, targets)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets}
    choice = quantize(folder, "auto", validation=(inputs, labels), tolerance=10.0)
    assert isinstance(choice, auto_precision.PrecisionReport)
    rows = {row.precision: row for row in choice.measured}
    assert set(rows) == {"fp32", *PRECISIONS} and all(row.milliseconds > 0 for row in rows.values())
    manifest = choice.manifest
    assert manifest.encoder is not None
    assert set(manifest.precisions) == set(manifest.encoder.precisions) == {"fp32", choice.chosen}
    size = sum((folder / path).stat().st_size for path in (contract.ENCODER_MODEL, contract.DECODER_MODEL))
    assert rows["fp32"].megabytes == pytest.approx(size / 1e6)
    with load(folder, provider="cpu", precision="fp32") as model:
        assert isinstance(model, TextToTextGenerator)
        total, count = 0.0, 0
        for row, (source, real) in enumerate(zip(ids, mask, strict=True)):
            past = model.model.encode(source[None, real > 0], np.ones((1, real.sum()), "int64"))
            logits, _ = model.model.run(targets[row : row + 1], targets, targets, past, True)
            scaled = logits[0] - np.log(np.exp(logits[0]).sum(-1, keepdims=True))
            for place, label in enumerate(labels[row]):
                if label != contract.NO_LABEL:
                    total, count = total + scaled[place, label], count + 1
    assert rows["fp32"].score == pytest.approx(total / count, abs=1e-5)


def test_auto_names_layers_of_both_graphs(folder, monkeypatch):
    """No loss is accepted, so that layers of each precision are measured in fp32."""
    monkeypatch.setattr(auto_precision, "candidates", lambda task: ["int4"])
    monkeypatch.setattr(auto_precision, "NAMED_LAYERS", 12)
    ids = np.random.default_rng(0).integers(2, 250, (2, 6))
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    scores = iter([1.0, 0.0, 0.5])

    def score(outputs, targets):
        return next(scores)

    choice = quantize(folder, "auto", validation=inputs, metric=score)
    assert isinstance(choice, auto_precision.PrecisionReport) and choice.chosen == "fp32"
    (row,) = choice.measured[1:]
    assert row.score_without_them == 0.5
    assert {name.split("_")[0] for name, _ in row.blamed} >= {"encoder", "decoder"}


def test_only_the_wanted_files_are_left(tmp_path):
    report = export_onnx(MODELS["t5"](), tmp_path / "folder", verify=False, precision="int8")
    names = sorted(path.name for path in (tmp_path / "folder" / "onnx").iterdir())
    assert names == ["decoder_model_merged_quantized.onnx", "encoder_model_quantized.onnx"]
    assert list(report.manifest.encoder.precisions) == ["int8"]


def test_large_numbers_in_a_branch_stay_in_float32(folder):
    """The whole If stays in float32, and the cache has half precision nevertheless."""
    path = folder / contract.DECODER_MODEL
    model = ir.load(path)
    infer_shapes(model)
    branch = next(node for node in model.graph if node.op_type == "If").attributes["else_branch"].as_graph()
    product = next(node for node in branch if node.op_type == "MatMul")
    to_float16(model.graph, [str(product.outputs[0].name)])
    assert product.outputs[0].dtype == ir.DataType.FLOAT
    ir.save(model, path)
    with Session(path, provider="cpu") as session:
        caches = [x for x in (*session.inputs, *session.outputs) if x.name.startswith(("past", "present"))]
        assert {spec.dtype for spec in caches} == {"float16"}
        hidden = np.ones((2, 5, SIZES["width"]), "float32")
        feed = first_call(session.inputs, np.ones((2, 3), "int64"), np.ones((2, 5), "int64"), hidden)
        outputs = session.run(feed)
        later = session.run(next_call(feed, outputs, np.ones((2, 1), "int64")))
    assert np.isfinite(later["logits"]).all()
