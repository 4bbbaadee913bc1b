"""Execution targets: the forms of their graphs, fixed sizes, and several graphs over the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.kernels import TARGETS, newest_opset
from keras_tx.runtime import load, open_folder, verify_hashes
from keras_tx.runtime.node_placement import read_graph
from keras_tx.runtime.verification import verify_folder
from keras_tx_onnx import compare, export_onnx
from keras_tx_onnx.graph import model_file
from keras_tx_onnx.tolerances import FLOAT32
from tests.drawing import as_numpy, redraw
from tests.export.small_bert import EXAMPLE, MASK, tiny
from tests.tolerances import assert_close


def vit() -> keras.Model:
    return redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))


def gpt() -> keras.Model:
    return redraw(keras_tx.gpt("pico", vocabulary_size=40, max_length=32))


def operators(folder: Path, name: str = "model.onnx") -> set[str]:
    graph = onnx.load(folder / "onnx" / name, load_external_data=False).graph
    return {node.op_type for node in graph.node}


def run(folder: Path, name: str, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """With nothing of ours."""
    session = onnxruntime.InferenceSession(folder / "onnx" / name, providers=["CPUExecutionProvider"])
    return session.run(None, {node.name: feed[node.name].astype("int64") for node in session.get_inputs()})


@pytest.mark.parametrize("target", [name for name, about in TARGETS.items() if not about.fixed_sizes])
def test_form(target: str, tmp_path):
    """Of an encoder, whose padding is skipped where there are kernels for it."""
    model = tiny(keras_tx.TokenClassifierHead(4))
    report = export_onnx(model, tmp_path / "x", target=target)
    assert report.manifest.opset == newest_opset(target)
    assert report.manifest.targets == {target: None}
    names = operators(tmp_path / "x")
    assert ("Attention" in names) == (target == "cpu")
    assert ("NonZero" in names) == (target != "webgpu")
    (logits,) = run(tmp_path / "x", "model.onnx", EXAMPLE)
    expected = as_numpy(model(EXAMPLE))
    assert_close(logits * MASK[..., None], expected * MASK[..., None], FLOAT32)
    assert f"target     {target}, the graph above" in str(report)


def test_decoder_without_new_operators(tmp_path):
    export_onnx(gpt(), tmp_path / "x", target="webgpu")
    assert not operators(tmp_path / "x") & {"Attention", "RotaryEmbedding", "RMSNormalization"}
    export_onnx(gpt(), tmp_path / "y")
    with load(tmp_path / "x", provider="cpu") as one, load(tmp_path / "y", provider="cpu") as other:
        ids = np.array([[3, 1, 4, 1, 5]])
        assert one.generate(ids, max_new_tokens=12) == other.generate(ids, max_new_tokens=12)


@pytest.mark.parametrize("target", ["coreml", "qnn"])
def test_fixed_sizes(target: str, tmp_path):
    sizes = {"batch_size": 3, "sequence_length": 6}
    model = tiny(keras_tx.TokenClassifierHead(4))
    report = export_onnx(model, tmp_path / "x", target=target, sizes=sizes)
    assert {spec.shape for spec in report.manifest.inputs} == {(3, 6)}
    assert [spec.shape for spec in report.manifest.outputs] == [(3, 6, 4)]
    assert report.manifest.parity is not None
    assert report.manifest.parity.cases[0] == "batch 3, length 6"
    path = tmp_path / "x" / "onnx" / "model.onnx"
    constants = {name for node in read_graph(path).size_nodes() for name in node.outputs}
    values = [value for value in onnx.load(path).graph.value_info if value.name not in constants]
    axes = [axis for value in values for axis in value.type.tensor_type.shape.dim]
    assert axes and all(axis.HasField("dim_value") for axis in axes)
    (logits,) = run(tmp_path / "x", "model.onnx", EXAMPLE)
    assert_close(logits, as_numpy(model(EXAMPLE)), FLOAT32)
    assert [result.passed for result in compare(model, tmp_path / "x")] == [True]
    with load(tmp_path / "x", provider="cpu") as loaded, pytest.raises(InputError, match=r"shape \(2, 6\)"):
        loaded.session.run({name: x[:2].astype("int64") for name, x in EXAMPLE.items()})
    checks = {check.name: check for check in verify_folder(tmp_path / "x", lambda folder: iter(()))}
    assert all(check.passed for check in checks.values())
    assert checks["runs"].detail == "on random inputs: the fixed sizes"


def test_fixed_sizes_of_images_and_of_other_models(tmp_path):
    export_onnx(vit(), tmp_path / "vit", target="coreml", sizes={"batch_size": 2})
    assert open_folder(tmp_path / "vit").manifest.inputs[0].shape == (2, 3, 8, 8)
    pictures = np.zeros((3, 8, 8, 3), "uint8")
    with load(tmp_path / "vit", provider="cpu") as loaded:
        with pytest.raises(InputError, match="fixed batch of 2: .* batch_size=2"):
            loaded(pictures)
        assert len(loaded(np.repeat(pictures, 2, axis=0), batch_size=2)) == 6
    inputs = keras.Input((None, 4), name="series")
    model = redraw(keras.Model(inputs, keras.layers.Conv1D(3, 3, padding="same")(inputs)))
    report = export_onnx(model, tmp_path / "series", sizes={"sequence_length": 9})
    assert report.manifest.inputs[0].shape == ("batch_size", 9, 4)
    assert report.manifest.outputs[0].shape == ("batch_size", 9, 3)
    values = np.random.default_rng(0).normal(size=(2, 9, 4)).astype("float32")
    with load(tmp_path / "series", provider="cpu") as loaded:
        (result,) = loaded.session.run({"series": values}).values()
    assert_close(result, as_numpy(model(values)), FLOAT32)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target": "wasm"}, "target has 'wasm', expected some of cpu, cuda"),
        ({"target": []}, "target is empty"),
        ({"target": 3}, "target=3 is invalid"),
        ({"target": [["cpu"]]}, r"target has \['cpu'\], expected some of cpu"),
        ({"target": "webgpu", "opset": 23}, "opset=23 .* target='webgpu'.* Attention, .*opset=21"),
        ({"target": ["cpu", "cuda"], "opset": 19}, "opset=19 .* target='cuda'.* Pass opset=18"),
        ({"target": "webgpu", "unpad": True}, "unpad=True .* target='webgpu'.* NonZero"),
        ({"target": "qnn", "unpad": True}, "unpad=True .* target='qnn'.* fixed sizes"),
        (
            {"target": "qnn"},
            "target='qnn' requires fixed sizes, but .* axes batch_size, sequence_length.*Pass sizes=",
        ),
        ({"target": "coreml", "sizes": {"batch_size": 1}}, "has the dynamic axes sequence_length"),
        ({"sizes": {"length": 1}}, "sizes has 'length', but .* batch_size, sequence_length"),
        ({"sizes": {"batch_size": 0}}, r"sizes\['batch_size'\] is 0"),
        ({"sizes": {"sequence_length": 999}}, "999.* supports up to 70 tokens"),
        ({"sizes": [1, 2]}, r"sizes=\[1, 2\] is invalid"),
        ({"target": ["cpu", "webgpu"], "precision": ["fp32", "int8"]}, "a folder for each target"),
    ],
)
def test_combinations_that_are_refused(options, message: str, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(tiny(keras_tx.ClassifierHead(3)), tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_cache_has_no_fixed_size(tmp_path):
    sizes = {"batch_size": 1, "sequence_length": 16}
    with pytest.raises(ConfigError, match="target='qnn' .* its cache grows. Pass cache=False"):
        export_onnx(gpt(), tmp_path / "x", target="qnn", sizes=sizes)
    export_onnx(gpt(), tmp_path / "x", target="qnn", sizes=sizes, cache=False)
    with pytest.raises(ConfigError, match="its cache grows"):
        export_onnx(redraw(keras_tx.t5("tiny")), tmp_path / "y", sizes=sizes)


def test_target_without_a_shared_cache_is_named(tmp_path):
    with pytest.raises(ConfigError, match="requires opset=23 .* target='cuda' .* opset=18. Omit cache"):
        export_onnx(gpt(), tmp_path / "x", target=["cpu", "cuda"], cache="shared")
    with pytest.raises(ConfigError, match="requires opset=23 .* opset=18 was passed"):
        export_onnx(gpt(), tmp_path / "x", opset=18, cache="shared")


def test_more_tokens_than_positions(tmp_path):
    """Of a model of no family, whose maximum length only its embeddings tell."""
    keras_hub = pytest.importorskip("keras_hub")
    inputs = keras.Input((None,), dtype="int32", name="ids")
    embed = keras_hub.layers.TokenAndPositionEmbedding(vocabulary_size=5, sequence_length=48, embedding_dim=4)
    model = keras.Model(inputs, embed(inputs))
    with pytest.raises(ConfigError, match=r"sizes=\{'sequence_length': 100\} .* has 48 positions"):
        export_onnx(model, tmp_path / "x", sizes={"sequence_length": 100})
    export_onnx(model, tmp_path / "x", sizes={"sequence_length": 48})


def test_explicit_options_hold(tmp_path):
    model = tiny(keras_tx.ClassifierHead(3))
    report = export_onnx(model, tmp_path / "x", target="cuda", opset=17, unpad=False)
    assert report.manifest.opset == 17
    assert "NonZero" not in operators(tmp_path / "x")


def test_several_targets_in_one_folder(tmp_path):
    model = tiny(keras_tx.ClassifierHead(3))
    report = export_onnx(model, tmp_path / "x", target=["cpu", "webgpu", "openvino"])
    targets = report.manifest.targets
    assert targets["cpu"] is None
    assert targets["webgpu"].file == "onnx/model_webgpu.onnx"
    assert (targets["webgpu"].opset, targets["webgpu"].export_options) == (21, {"unpad": False})
    assert targets["openvino"].parity.max_difference < FLOAT32
    results = [run(tmp_path / "x", name, EXAMPLE)[0] for name in _names(tmp_path / "x")]
    for result in results:
        assert_close(result, as_numpy(model(EXAMPLE)), FLOAT32)
    assert [result.passed for result in compare(model, tmp_path / "x")] == [True] * 3
    verify_hashes(open_folder(tmp_path / "x"))
    assert open_folder(tmp_path / "x").manifest == report.manifest  # also after it was written and read


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "onnx").glob("*.onnx"))


def test_targets_of_one_form_share_a_graph(tmp_path):
    report = export_onnx(vit(), tmp_path / "x", target=["openvino", "coreml"], sizes={"batch_size": 1})
    assert report.manifest.targets == {"openvino": None, "coreml": None}
    assert _names(tmp_path / "x") == ["model.onnx"]


@pytest.mark.parametrize("targets", [["cpu", "webgpu"], ["webgpu", "cpu"]])
def test_graphs_that_treat_padding_otherwise(targets: list[str], tmp_path):
    """Each is verified and compared as it was exported."""
    model = tiny(keras_tx.TokenClassifierHead(4))
    export_onnx(model, tmp_path / "x", target=targets)
    assert [result.passed for result in compare(model, tmp_path / "x")] == [True, True]
    checks = list(verify_folder(tmp_path / "x", lambda folder: iter(())))
    assert all(check.passed for check in checks)
    detail = next(check.detail for check in checks if check.name == "target")
    assert detail.startswith(f"model_{targets[1]}.onnx, on random inputs")


def test_load_chooses_by_provider(tmp_path):
    export_onnx(vit(), tmp_path / "x", target=["webgpu", "cpu"])
    with load(tmp_path / "x", provider="cpu") as model:
        assert model.folder.graph.name == "model_cpu.onnx"
    assert open_folder(tmp_path / "x").graph.name == "model.onnx"  # that of the manifest's other fields
    export_onnx(vit(), tmp_path / "x", target=["cuda", "webgpu"], overwrite=True)
    with load(tmp_path / "x", provider="cpu") as model:
        assert model.folder.graph.name == "model.onnx"


def test_large_weights_are_stored_once(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 50_000)
    monkeypatch.setattr(model_file, "LARGE", 2_000)
    monkeypatch.setattr(model_file, "PAGES", {"alignment": 4096, "align_threshold": 0})
    model = redraw(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(3), vocabulary_size=500))
    report = export_onnx(model, tmp_path / "x", target=["cpu", "webgpu"])
    weights = 4 * model.count_params()
    files = {path.name: path.stat().st_size for path in (tmp_path / "x" / "onnx").iterdir()}
    assert files["model.onnx_data"] > 0.9 * weights
    own = sum(size for name, size in files.items() if name.startswith("model_webgpu"))
    assert own < 0.2 * weights  # that of the last block, whose queries are apart in one of the graphs
    assert "session_options.externalData" in " ".join(report.manifest.notes)
    config = json.loads((tmp_path / "x" / "config.json").read_text("utf-8"))
    assert config["transformers.js_config"]["use_external_data_format"]["model.onnx"] is True
    feed = {name: values % 400 for name, values in EXAMPLE.items()}
    feed["token_type_ids"] = EXAMPLE["token_type_ids"]
    for name in ("model.onnx", "model_webgpu.onnx"):
        assert_close(run(tmp_path / "x", name, feed)[0], as_numpy(model(feed)), FLOAT32)


def test_graph_of_a_target_is_checked(tmp_path):
    export_onnx(vit(), tmp_path / "x", target=["webgpu", "cpu"])
    path = tmp_path / "x" / contract.MANIFEST
    manifest = json.loads(path.read_text("utf-8"))
    manifest["targets"]["cpu"]["file"] = "onnx/../../other.onnx"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(FolderError, match=r"expected a file onnx/\*.onnx"):
        load(tmp_path / "x", provider="cpu")
