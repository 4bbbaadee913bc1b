"""The two graphs of an encoder-decoder: names, nodes, and equality with Keras in calls of every size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.encoder_decoder_model import EncoderDecoderModel
from keras_tx.runtime import load, shared_weights
from keras_tx.runtime.example_inputs import first_call, next_call
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.text2text_generation import TextToTextGenerator
from keras_tx_onnx import ExportCallback, compare, export_onnx
from keras_tx_onnx.graph import cache_ports, model_file
from keras_tx_onnx.interfaces import encoder_decoder
from keras_tx_onnx.lowerings import keras_tx as keras_tx_layers
from keras_tx_onnx.report import Report
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

ROWS = ([7, 5, 1], [7, 7, 7])  # tokens of each source; the first batch is padded
TARGET = 12
MODELS: dict[str, Any] = {
    "t5": lambda: keras_tx.t5("tiny"),
    "t5-v1.1": lambda: keras_tx.t5("tiny", activation="geglu", tied=False, head_dim=8, decoder_depth=3),
    "vaswani": lambda: keras_tx.transformer("tiny"),
    "marian": lambda: keras_tx.transformer(
        "tiny", positions="sine-cosine-halves", activation="silu", logits_bias=True, pad_id=255
    ),
    "bart": lambda: keras_tx.transformer(
        "tiny", positions="learned", scale_embedding=False, embedding_norm=True, logits_bias=True
    ),
}
CASES = [*((name, 23) for name in MODELS), ("t5", 17), ("marian", 17)]


class Exported:
    """A model, its folder, and the report of the export."""

    def __init__(self, name: str, opset: int, folder: Path):
        self.model: EncoderDecoderModel = redraw(MODELS[name]())
        self.name, self.opset, self.folder = name, opset, folder
        self.report: Report = export_onnx(self.model, folder, opset=opset)

    def graph(self, name: str) -> onnx.GraphProto:
        return onnx.load(self.folder / name).graph


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-opset{case[1]}")
def exported(request, tmp_path_factory) -> Exported:
    return Exported(*request.param, tmp_path_factory.mktemp("exported") / "folder")


def sources(model: Any, rows: list[int]) -> dict[str, np.ndarray]:
    mask = (np.arange(max(rows)) < np.reshape(rows, (-1, 1))).astype("int64")
    ids = np.random.default_rng(3).integers(0, model.config.vocabulary_size, mask.shape)
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_chunks_and_steps_equal_keras(exported, rows):
    model = exported.model
    source = sources(model, rows)
    target = np.random.default_rng(4).integers(0, model.config.vocabulary_size, (len(rows), TARGET))
    expected = as_numpy(model({**source, "decoder_input_ids": target}, training=False))
    with Session(exported.folder / contract.ENCODER_MODEL, provider="cpu") as session:
        hidden = session.run(source)["last_hidden_state"]
    with Session(exported.folder / contract.DECODER_MODEL, provider="cpu") as session:
        feed = first_call(session.inputs, target, source["attention_mask"], hidden)
        for chunks in ([TARGET], [7, 5], [3, 1, 4, 1, 1, 2], [1] * TARGET):
            logits = encoder_decoder.run_in_chunks(chunks, session, feed)["logits"]
            assert_close(logits, expected, 3e-5)


def test_cached_branch_does_not_read_the_encoder(exported):
    """Keys and values of the source come from the cache alone, and the presents of the source are empty."""
    source = sources(exported.model, [6, 4])
    random = np.random.default_rng(0)
    hidden = random.standard_normal((2, 6, exported.model.config.width), "float32")
    with Session(exported.folder / contract.DECODER_MODEL, provider="cpu") as session:
        ids = np.array([[0], [0]])
        feed = first_call(session.inputs, ids, source["attention_mask"], hidden)
        first = session.run(feed)
        feed = next_call(feed, first, ids)
        second = session.run(feed)
        other = session.run({**feed, "encoder_hidden_states": hidden + 1})
    np.testing.assert_array_equal(second["logits"], other["logits"])
    _, heads, size = exported.model.cache_shape
    assert first["present.0.encoder.key"].shape == (2, heads, 6, size)
    assert second["present.0.encoder.value"].shape == (2, heads, 0, size)
    assert second["present.0.decoder.key"].shape == (2, heads, 2, size)


def test_names_and_shapes_follow_the_contract(exported):
    manifest, model = exported.report.manifest, exported.model
    depth, heads, size = model.cache_shape
    declared = "head_size" if heads * size != model.config.width else size
    past = {"decoder": "past_sequence_length", "encoder": "past_encoder_sequence_length"}
    present = {"decoder": "total_sequence_length", "encoder": "present_encoder_sequence_length"}
    kinds = [(i, part, kind) for i in range(depth) for part in past for kind in ("key", "value")]
    source, target = ("batch_size", "encoder_sequence_length"), ("batch_size", "decoder_sequence_length")
    assert [(t.name, t.dtype, t.shape) for t in manifest.inputs] == [
        ("encoder_attention_mask", "int64", source),
        ("input_ids", "int64", target),
        ("encoder_hidden_states", "float32", (*source, model.config.width)),
        *(
            (f"past_key_values.{i}.{part}.{kind}", "float32", ("batch_size", heads, past[part], declared))
            for i, part, kind in kinds
        ),
        ("use_cache_branch", "bool", (1,)),
    ]
    assert [(t.name, t.shape) for t in manifest.outputs] == [
        ("logits", (*target, model.config.vocabulary_size)),
        *(
            (f"present.{i}.{part}.{kind}", ("batch_size", heads, present[part], size))
            for i, part, kind in kinds
        ),
    ]
    encoder = manifest.encoder
    assert encoder is not None
    assert {(t.name, t.shape) for t in encoder.inputs} == {("input_ids", source), ("attention_mask", source)}
    assert [(t.name, t.shape) for t in encoder.outputs] == [
        ("last_hidden_state", (*source, model.config.width))
    ]
    assert (manifest.precisions, encoder.precisions) == (
        {"fp32": contract.DECODER_MODEL},
        {"fp32": contract.ENCODER_MODEL},
    )
    assert set(manifest.files) >= {contract.DECODER_MODEL, contract.ENCODER_MODEL}
    assert manifest.task == "text2text-generation"
    assert manifest.tiers["decoder_block_0/cross_attention"] == "registered"
    assert manifest.tiers["encoder_block_0/attention"] == "registered"


def test_one_attention_node_for_each_attention(exported):
    if exported.opset < 23:
        pytest.skip("no Attention operator")
    config, depth = exported.model.config, exported.model.cache_shape[0]
    encoder, decoder = exported.graph(contract.ENCODER_MODEL), exported.graph(contract.DECODER_MODEL)
    assert _count(encoder, "Attention") == config.depth
    assert _count(decoder, "Attention") == depth
    branches = [node for node in decoder.node if node.op_type == "If"]
    assert len(branches) == depth
    for node in branches:
        graphs = {attribute.name: attribute.g for attribute in node.attribute}
        assert sorted(x.op_type for x in graphs["then_branch"].node) == ["Attention", "Slice", "Slice"]
        assert _count(graphs["else_branch"], "MatMul") == 2
        assert _count(graphs["else_branch"], "Attention") == 1
    for graph in (encoder, decoder):
        assert _count(graph, "Softmax") == 0
        assert {node.domain for node in graph.node} == {""}


def _count(graph: onnx.GraphProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in graph.node)


def test_bias_is_computed_once_for_the_needed_rows(exported):
    """The only bias of the decoder has a row for each token of the call, and all layers share it."""
    if not exported.name.startswith("t5") or exported.opset < 23:
        pytest.skip("no relative positions as the mask of Attention")
    proto = onnx.load(exported.folder / contract.DECODER_MODEL)
    masks = {node.input[3] for node in proto.graph.node if node.op_type == "Attention"}
    assert len(masks) == 1
    (mask,) = masks
    proto.graph.output.append(onnx.helper.make_tensor_value_info(mask, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {}
    for spec in session.get_inputs():
        sizes = {"past_sequence_length": 5, "past_encoder_sequence_length": 4, "encoder_sequence_length": 4}
        size = exported.model.cache_shape[2]
        shape = [n if isinstance(n, int) else {**sizes, "head_size": size}.get(n, 1) for n in spec.shape]
        kind = {"tensor(int64)": "int64", "tensor(bool)": "bool"}.get(spec.type, "float32")
        feed[spec.name] = np.ones(shape, kind)
    (bias,) = session.run([mask], feed)
    assert bias.shape == (1, exported.model.config.num_heads, 1, 6)


def test_verification_covers_sizes_masks_chunks_and_generation(exported):
    parity = exported.report.manifest.parity
    assert parity is not None and parity.max_difference < 2e-5
    cases = " ".join(parity.cases)
    for text in (
        "encoder: batch 6",
        "every mask",
        "in chunks",
        "length 1",
        "both: 8 tokens, batch 5, greedy",
    ):
        assert text in cases


def test_generation_config(exported):
    config = json.loads((exported.folder / contract.GENERATION_CONFIG).read_text())
    assert config["decoder_start_token_id"] == exported.model.start_id
    assert config["pad_token_id"] == exported.model.config.pad_id
    assert config["max_length"] == exported.model.config.max_length


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": False}, "cache=False"),
        ({"cache": "shared"}, "cache='shared'"),
        ({"labels": ["a"]}, r"labels=\['a'\].*cache, task, tokenizer"),
        ({"task": "summary"}, "task='summary'"),
        ({"task": "translation"}, "task='translation' requires a tokenizer"),
    ],
    ids=str,
)
def test_unsupported_options_raise(options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(keras_tx.t5("tiny"), tmp_path / "folder", **options)
    assert not (tmp_path / "folder").exists()


def test_model_without_head_raises(tmp_path):
    model = keras_tx.t5("tiny", head=None)
    with pytest.raises(ConfigError, match=r"head=None.*model\.encoder"):
        export_onnx(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    report = export_onnx(model.encoder(), tmp_path / "encoder", verify=False)
    assert [(t.name, t.shape[-1]) for t in report.manifest.outputs] == [("last_hidden_state", 32)]


@pytest.mark.parametrize(
    ("depth", "heads", "size", "message"), [(2, 4, 16, r"\(2, 4, 16\)"), (3, 2, 16, r"\(3, 2, 16\)")]
)
def test_layers_that_disagree_with_the_config_raise(depth, heads, size, message, tmp_path, monkeypatch):
    monkeypatch.setattr(EncoderDecoderModel, "cache_shape", (depth, heads, size))
    with pytest.raises(ExportError, match=message):
        export_onnx(keras_tx.t5("tiny"), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_swapped_cache_fails_verification(tmp_path, monkeypatch):
    """Keys and values of the source are swapped in the cached branch, which a first call does not show."""
    attend = cache_ports.Seq2SeqCache.attend_to_source

    def swapped(self, cx, shape, project, attend_):
        result = attend(self, cx, shape, project, attend_)
        self._presents[-2:] = self._presents[:-3:-1]
        return result

    monkeypatch.setattr(cache_ports.Seq2SeqCache, "attend_to_source", swapped)
    with pytest.raises(ExportError, match="in chunks"):
        export_onnx(redraw(keras_tx.t5("tiny")), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(("part", "layer"), [("encoder", "encoder_block_0"), ("decoder", "decoder_block_0")])
def test_error_names_the_first_layer_that_differs(part, layer, tmp_path, monkeypatch):
    attend = keras_tx_layers.attend

    def changed(cx, *args, **options):
        wrong = (cx.cache is not None) == (part == "decoder")
        return attend(cx, *args, **(options | ({"scale": 0.5} if wrong else {})))

    monkeypatch.setattr(keras_tx_layers, "attend", changed)
    with pytest.raises(ExportError, match=f"first layer that differs is {layer!r}"):
        export_onnx(redraw(keras_tx.t5("tiny")), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_task_of_the_folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2}, unk_token="<pad>")
    tokenizer = tokenizers.Tokenizer(words)
    model = keras_tx.t5("tiny", vocabulary_size=3)
    report = export_onnx(model, tmp_path / "folder", tokenizer=tokenizer, task="translation", verify=False)
    assert report.manifest.task == "translation"
    assert compare(model, tmp_path / "folder")[0].passed


def test_graphs_share_large_weights_in_a_data_file(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 100_000)
    monkeypatch.setattr(model_file, "LARGE", 10_000)
    monkeypatch.setattr(model_file, "PAGES", {"alignment": 4096, "align_threshold": 0})
    model = redraw(keras_tx.t5("tiny"))
    report = export_onnx(model, tmp_path / "folder")
    table = 4 * model.config.vocabulary_size * model.config.width
    weights = 4 * model.count_params()
    data = sum(path.stat().st_size for path in (tmp_path / "folder" / "onnx").glob("*_data"))
    encoder = onnx.load(tmp_path / "folder" / contract.ENCODER_MODEL, load_external_data=False).graph
    places = {
        weight.name: {entry.key: entry.value for entry in weight.external_data}.get("location")
        for weight in encoder.initializer
    }
    assert places["token_embedding/table"] == "decoder_model_merged.onnx_data"
    assert set(places.values()) <= {None, "decoder_model_merged.onnx_data", "encoder_model.onnx_data"}
    inline = sum(len(weight.raw_data) for weight in encoder.initializer)
    assert data + inline < weights + table / 2  # the table is stored once
    assert "web page" in " ".join(report.manifest.notes)
    monkeypatch.setattr(shared_weights, "LEAST", 10_000)
    with load(tmp_path / "folder") as loaded:
        assert isinstance(loaded, TextToTextGenerator) and loaded.session.weights is not None
        assert loaded.encoder_session.weights is not None
        table, same = (x.weights.arrays["token_embedding/table"] for x in loaded.sessions)
        assert table is same
        assert compare(model, tmp_path / "folder")[0].passed
        assert len(loaded.generate([2, 3], max_new_tokens=2, min_new_tokens=2).ids) == 2


def test_callback_tries_both_graphs(tmp_path):
    model = keras_tx.t5("tiny")
    model.compile("adamw")
    ids = np.ones((2, 4), "int32")
    callback = ExportCallback(tmp_path / "folder", monitor="loss", verify=False)
    model.fit({"input_ids": ids, "decoder_input_ids": ids}, ids, epochs=1, verbose=0, callbacks=[callback])
    assert callback.report is not None and callback.report.manifest.encoder is not None


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_computes_in_float32(policy, tmp_path):
    report = export_onnx(redraw(keras_tx.t5("tiny", dtype=policy)), tmp_path / "folder")
    assert report.manifest.parity and report.manifest.parity.max_difference < 2e-5
