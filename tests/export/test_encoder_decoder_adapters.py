"""Adapters beside an encoder-decoder: values for both graphs, selected together in each call."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError, FolderError
from keras_tx.runtime import load, open_folder, shared_weights
from keras_tx.runtime.example_inputs import first_call
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph import adapter_ports, model_file
from keras_tx_onnx.tolerances import FLOAT32
from tests.drawing import as_numpy, redraw
from tests.export.test_adapters import trained
from tests.models.test_adapters import MODELS
from tests.runtime.counting_decoder import byte_tokenizer
from tests.tolerances import assert_close

SOURCES = [[5, 9, 20, 11], [7], [1, 2, 3]]
TARGET = [1, 2, 3]
OPTIONS = {"max_new_tokens": 6, "stop_tokens": []}


def ids_of(results: Any) -> list[tuple[int, ...]]:
    return [result.ids for result in results]


def log_probabilities(model: Any) -> np.ndarray:
    """Of TARGET after the first source, in Keras."""
    ids = np.array([[model.start_id, *TARGET]])
    logits = as_numpy(model({"input_ids": np.array(SOURCES[:1]), "decoder_input_ids": ids}))[0, :-1]
    return (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))[range(len(TARGET)), TARGET]


def scores(model: Any, **options: Any) -> np.ndarray:
    return np.array(model.score(SOURCES[0], TARGET, **options).log_probabilities)


@pytest.mark.parametrize("kind", ["t5", "transformer"])
def test_each_adapter_equals_keras(kind, tmp_path):
    base = redraw(MODELS[kind]())
    models = {
        "both": trained(base, tmp_path, "both", 1, targets="dense"),
        "encoder": trained(base, tmp_path, "encoder", 2, targets=["encoder_block_0"]),
        "cross": trained(base, tmp_path, "cross", 3, targets=["cross_attention"]),
    }
    report = export_onnx(base, tmp_path / "out", adapters=[tmp_path / name for name in models])
    assert open_folder(tmp_path / "out").manifest == report.manifest
    for name in models:
        parity = report.manifest.adapters[name].parity
        assert 0 < parity.max_difference < FLOAT32
        assert {case.split(":")[0] for case in parity.cases} == {"encoder", "decoder", "both"}
    everything = {None: base, **models}
    expected = {name: ids_of(keras_tx.generate(x, SOURCES, **OPTIONS)) for name, x in everything.items()}
    assert kind != "t5" or len(set(map(tuple, expected.values()))) == 4
    with load(tmp_path / "out") as model:
        alone = scores(model)
        for name in (*everything, "both"):
            assert ids_of(model.generate(SOURCES, adapter=name, **OPTIONS)) == expected[name], name
            assert_close(scores(model, adapter=name), log_probabilities(everything[name]), FLOAT32)
            assert name is None or np.abs(scores(model, adapter=name) - alone).max() > 1e-2
        streams = {name: model.stream(SOURCES[0], adapter=name, **OPTIONS) for name in everything}
        interleaved = dict.fromkeys(streams, ())
        for _ in range(OPTIONS["max_new_tokens"]):
            for name, stream in streams.items():
                interleaved[name] += (next(stream),)
        assert interleaved == {name: x[0] for name, x in expected.items()}
        adapted = model.with_adapter("both")
        assert model.next(SOURCES[0], adapter="both")[0] == adapted.next(SOURCES[0])[0]
        assert all(one._base is other for one, other in zip(adapted.sessions, model.sessions, strict=True))


def test_onnxruntime_loads_both_files(tmp_path):
    base = redraw(MODELS["t5"]())
    model = trained(base, tmp_path, "mine", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"], verify=False)
    ids = np.array(SOURCES[:1])

    def run(graph: str, adapter: str, feed: dict[str, np.ndarray]) -> np.ndarray:
        session = onnxruntime.InferenceSession(tmp_path / "out" / graph, providers=["CPUExecutionProvider"])
        file, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        file.Load(str(tmp_path / "out" / adapter.format("mine")))
        options.add_active_adapter(file)
        return session.run(None, feed, options)[0]

    source = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    hidden = run(contract.ENCODER_MODEL, contract.ENCODER_ADAPTERS, source)
    manifest = open_folder(tmp_path / "out").manifest
    feed = first_call(manifest.inputs, ids, source["attention_mask"], hidden)
    logits = run(contract.DECODER_MODEL, contract.ADAPTERS, feed)
    assert_close(logits, as_numpy(model({"input_ids": ids, "decoder_input_ids": ids})), FLOAT32)


@pytest.mark.parametrize(("task", "method"), [("translation", "translate"), ("summarization", "summarize")])
def test_tasks_have_adapters(task, method, tmp_path):
    transform = keras_tx.TextTransform.of(byte_tokenizer())
    base = redraw(keras_tx.t5("tiny", depth=1, vocabulary_size=31, processing=transform, stop_ids=[30]))
    trained(base, tmp_path, "mine", 1)
    export_onnx(base, tmp_path / "out", task=task, adapters=[tmp_path / "mine"], verify=False)
    texts = ["abc", "d e"]
    with load(tmp_path / "out") as model:
        adapted = [x.text for x in model.generate(texts, adapter="mine", max_new_tokens=6)]
        assert getattr(model, method)(texts, adapter="mine", max_new_tokens=6) == adapted
        assert model(texts, adapter="mine", max_new_tokens=6) == adapted
        assert getattr(model.with_adapter("mine"), method)(texts, max_new_tokens=6) == adapted
        assert model(texts, max_new_tokens=6) != adapted


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-blocks", "int4"])
def test_lower_precisions(precision, tmp_path):
    base = redraw(keras_tx.transformer("tiny", depth=1, width=64, num_heads=2, vocabulary_size=70))
    trained(base, tmp_path, "mine", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"], precision=["fp32", precision])
    with load(tmp_path / "out", precision=precision) as quantized, load(tmp_path / "out") as exact:
        manifest = exact.folder.manifest
        noise = sum(x.variants[precision].noise for x in (manifest, manifest.encoder))
        adapted = scores(quantized, adapter="mine")
        assert_close(adapted, scores(exact, adapter="mine"), noise + 0.05)
        assert np.abs(adapted - scores(quantized)).max() > 0.1


def test_weights_of_a_shared_data_file_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 10_000)
    monkeypatch.setattr(model_file, "LARGE", 1000)
    monkeypatch.setattr(model_file, "PAGES", {"alignment": 4096, "align_threshold": 0})
    monkeypatch.setattr(shared_weights, "LEAST", 1000)
    base = redraw(MODELS["t5"]())
    model = trained(base, tmp_path, "mine", 1, train_also=["token_embedding"])
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"])
    with load(tmp_path / "out") as loaded:
        table, same = (x.weights.arrays["token_embedding/table"] for x in loaded.sessions)
        assert table is same
        for name, one in ((None, base), ("mine", model), (None, base)):
            expected = ids_of(keras_tx.generate(one, SOURCES, **OPTIONS))
            assert ids_of(loaded.generate(SOURCES, adapter=name, **OPTIONS)) == expected
            assert_close(scores(loaded, adapter=name), log_probabilities(one), FLOAT32)


def test_unknown_and_damaged_adapters_raise(tmp_path):
    base = redraw(MODELS["t5"]())
    trained(base, tmp_path, "mine", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"], verify=False)
    file = tmp_path / "out" / contract.ENCODER_ADAPTERS.format("mine")
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    with load(tmp_path / "out") as model:
        with pytest.raises(ConfigError, match=r"'yours'.*has the adapters mine"):
            model.generate(SOURCES, adapter="yours")
        with pytest.raises(FolderError, match="encoder/mine"):
            model.generate(SOURCES, adapter="mine")
    path = tmp_path / "out" / contract.MANIFEST
    manifest = json.loads(path.read_text())
    manifest["encoder"]["adapters"] = {}
    path.write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match=r"encoder\.adapters"):
        load(tmp_path / "out")


def test_an_adapter_that_a_graph_computes_wrongly_raises(tmp_path, monkeypatch):
    base = redraw(MODELS["t5"]())
    trained(base, tmp_path, "mine", 1, targets=["decoder_block_0"])
    packed = adapter_ports._packed
    monkeypatch.setattr(adapter_ports, "_packed", lambda *x: tuple(y * 1.1 for y in packed(*x)))
    with pytest.raises(ExportError, match="Adapter 'mine'"):
        export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"])
    assert not (tmp_path / "out").exists()
