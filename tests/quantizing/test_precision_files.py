"""The files of each precision, their entries in the folder, and what cannot be quantized."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ConfigError, ExportError, FolderError
from keras_tx.runtime import load, open_folder, verify_hashes
from keras_tx_onnx import export_onnx, quantize
from keras_tx_onnx.quantizing import graph_quantizer, int8, precision_files, weight_blocks
from keras_tx_onnx.quantizing.weight_blocks import rounded_blocks
from tests.drawing import draw, redraw
from tests.quantizing.folders import bert, exported, gpt, session, vit

KIND = {"gpt": contract.TEXT_GENERATION}
FILES = ["model.onnx", "model_fp16.onnx", "model_quantized.onnx", "model_int8.onnx", "model_q4.onnx"]
# For random weights and 2 layers; the noise grows with depth.
NOISE = {"fp16": 5e-3, "int8": 0.1, "int8-blocks": 0.1, "int8-dynamic": 0.1, "int4": 0.8}
MODELS = {"vit": vit, "bert": bert, "gpt": gpt}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("precisions")
    return {name: exported(make(), parent / name, precision=all_of(name)) for name, make in MODELS.items()}


def all_of(name: str) -> tuple[str, ...]:
    """The precisions of a folder, in the order of FILES."""
    return contract.precisions_of(KIND.get(name))


@pytest.mark.parametrize("name", MODELS)
def test_files_of_all_precisions(folders, name):
    folder = open_folder(folders[name])
    verify_hashes(folder)
    assert folder.manifest.precisions == {
        precision: f"onnx/{file}" for precision, file in zip(all_of(name), FILES, strict=True)
    }
    assert sorted(path.name for path in (folders[name] / "onnx").iterdir()) == sorted(FILES)
    for precision, variant in folder.manifest.variants.items():
        assert 0 < variant.noise < NOISE[precision], precision
        assert variant.agreement is not None and variant.agreement > 0.5
    sizes = [folder.manifest.files[f"onnx/{file}"].size for file in FILES]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[4]


def nodes(folder: Path, file: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(folder / "onnx" / file).graph.node)


def test_attention_is_not_quantized_and_ranges_use_standard_operators(folders):
    for name, products in (("vit", 10), ("bert", 10), ("gpt", 9)):
        for file in FILES[2:]:
            counts = nodes(folders[name], file)
            assert counts["Attention"] == 2
            assert counts["MatMulInteger"] + counts["MatMulNBits"] == products, (name, file)
            with_offsets = 8 if (name, file) == ("gpt", "model_q4.onnx") else 0
            assert counts["MatMul"] + counts["Gemm"] == with_offsets
        in_blocks, dynamic = "model_int8.onnx", "model_quantized.onnx"
        if name == "gpt":
            in_blocks, dynamic = dynamic, in_blocks
        assert nodes(folders[name], in_blocks)["MatMulNBits"] == products
        model = onnx.load(folders[name] / "onnx" / dynamic)
        assert [entry.domain for entry in model.opset_import] == [""]


@pytest.mark.parametrize("name", ["bert", "gpt"])
@pytest.mark.parametrize("file", FILES[2:])
def test_tied_table_is_stored_once(folders, name, file):
    model = onnx.load(folders[name] / "onnx" / file)
    tables = [t for t in model.graph.initializer if t.name.startswith("token_embedding/table")]
    kinds = {t.name.rpartition("_")[2]: onnx.numpy_helper.to_array(t) for t in tables}
    assert len(kinds) == 2 and "scale" in kinds
    (stored,) = (array for kind, array in kinds.items() if kind != "scale")
    assert stored.nbytes == 300 * 64 // (2 if (name, file) == ("bert", "model_q4.onnx") else 1)
    variants = open_folder(folders[name]).manifest.variants
    assert any("stored once" in note for note in variants["int8"].notes)


def test_every_value_keeps_its_shape(folders):
    for name in MODELS:
        for file in FILES:
            graph = onnx.load(folders[name] / "onnx" / file).graph
            known = {info.name for info in graph.value_info if info.type.tensor_type.HasField("shape")}
            known |= {output.name for output in graph.output}
            assert known >= {output for node in graph.node for output in node.output if output}


@pytest.mark.parametrize("index", range(len(FILES)))
def test_runtime_loads_each_precision(folders, index):
    with load(folders["vit"], provider="cpu", precision=all_of("vit")[index]) as model:
        assert model.folder.graph.name == FILES[index]
        assert len(model(np.zeros((8, 8, 3), "uint8"), top_k=3)) == 3
    with load(folders["gpt"], provider="cpu", precision=all_of("gpt")[index]) as poet:
        assert poet.folder.graph.name == FILES[index]
        assert len(poet.generate([5, 6, 7], max_new_tokens=8).ids) == 8


@pytest.mark.parametrize(
    ("name", "other", "reason"),
    [
        ("gpt", "int8-blocks", "a decoder: its 'int8' already has weights in blocks"),
        ("vit", "int8-dynamic", "this model: its 'int8' already has one range"),
    ],
)
def test_name_of_the_other_kind_raises(folders, tmp_path, name, other, reason):
    """Before anything is written: int8 already has this method."""
    message = f"precision='{other}' is not supported for {reason}.*Pass 'int8'"
    with pytest.raises(ConfigError, match=message):
        load(folders[name], precision=other)
    with pytest.raises(ConfigError, match=message):
        quantize(folders[name], other)
    with pytest.raises(ConfigError, match=message):
        export_onnx(MODELS[name](), tmp_path / "out", precision=["fp32", other])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def old(folders, tmp_path) -> Path:
    """A decoder's folder as older versions wrote it: int8 was dynamic, and int8-blocks another file."""
    folder = shutil.copytree(folders["gpt"], tmp_path / "old")
    content = json.loads((folder / contract.MANIFEST).read_text())
    graphs = [folder / "onnx" / file for file in ("model_quantized.onnx", "model_int8.onnx")]
    swapped = [path.read_bytes() for path in reversed(graphs)]
    for path, graph in zip(graphs, swapped, strict=True):
        path.write_bytes(graph)
        content["files"][f"onnx/{path.name}"] = dataclasses.asdict(contract.describe_file(path))
    for entries in (content["precisions"], content["variants"]):
        entries["int8-blocks"], entries["int8"] = entries["int8"], entries.pop("int8-dynamic")
    content["precisions"] |= {"int8": "onnx/model_quantized.onnx", "int8-blocks": "onnx/model_int8.onnx"}
    (folder / contract.MANIFEST).write_text(json.dumps(content))
    return folder


def test_names_of_older_decoders(old):
    manifest = open_folder(old).manifest
    assert tuple(manifest.precisions) == all_of("gpt")
    assert manifest.variants["int8-dynamic"].recipe == "dynamic" != manifest.variants["int8"].recipe
    for precision, operator in (("int8", "MatMulNBits"), ("int8-dynamic", "MatMulInteger")):
        with load(old, provider="cpu", precision=precision) as poet:
            assert nodes(old, poet.folder.graph.name)[operator] == 9
            assert poet.folder.manifest.depends_on_batch(precision) == (precision == "int8-dynamic")


def test_quantizing_an_older_decoder_replaces_both_files(old):
    """Its int8-dynamic is in the file of int8."""
    before = (old / contract.MANIFEST).read_bytes()
    for names in ("int8", "int4"):
        with pytest.raises(
            ConfigError, match=r"older version.* int8, int8-dynamic.*precision=\['int8', 'int8-dynamic'"
        ):
            quantize(old, names)
    assert (old / contract.MANIFEST).read_bytes() == before
    quantize(old, ["int8", "int8-dynamic"])
    folder = open_folder(old)
    verify_hashes(folder)
    assert folder.manifest.precisions == {
        precision: f"onnx/{file}" for precision, file in zip(all_of("gpt"), FILES, strict=True)
    }
    assert nodes(old, "model_quantized.onnx")["MatMulNBits"] == 9
    assert nodes(old, "model_int8.onnx")["MatMulInteger"] == 9


def test_fp32_is_the_default(folders):
    assert open_folder(folders["vit"]).precision == "fp32"


def test_missing_precision_raises(exported_folders, tmp_path):
    folder = exported_folders.copy("wide vit", tmp_path / "out")
    with pytest.raises(
        ConfigError, match=r"'int4', but .*out has fp32\. .*keras-tx quantize .*--precision int4"
    ):
        load(folder, precision="int4")
    with pytest.raises(ConfigError, match="'int3'"):
        load(folder, precision="int3")


def test_export_without_fp32(tmp_path):
    folder = exported(gpt(), tmp_path / "out", precision="int8")
    opened = open_folder(folder)
    assert list(opened.manifest.precisions) == ["int8"]
    assert [path.name for path in (folder / "onnx").iterdir()] == ["model_quantized.onnx"]
    genai = json.loads((folder / contract.GENAI_CONFIG).read_text())
    assert genai["model"]["decoder"]["filename"] == "onnx/model_quantized.onnx"
    with load(folder, provider="cpu") as poet:
        assert poet.folder.precision == "int8"
    with pytest.raises(ExportError, match=r"has int8.*precision=\['fp32', 'int4'\]"):
        quantize(folder, "int4")


def test_fp16_weights_and_cache(folders):
    inputs = {spec.name: spec.type for spec in session(folders["gpt"], "model_fp16.onnx").get_inputs()}
    assert inputs["past_key_values.0.key"] == "tensor(float16)"
    outputs = {spec.name: spec.type for spec in session(folders["gpt"], "model_fp16.onnx").get_outputs()}
    assert (outputs["logits"], outputs["present.1.value"]) == ("tensor(float)", "tensor(float16)")
    variant = open_folder(folders["gpt"]).manifest.variants["fp16"]
    assert {spec.dtype for spec in variant.inputs or ()} == {"int64", "float16"}
    for name in MODELS:
        model = onnx.load(folders[name] / "onnx/model_fp16.onnx")
        large = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
        assert not large


def test_fp16_keeps_softmax_in_float32(tmp_path):
    """At opset 17 the mask and the softmax of attention stay in float32, and an empty row is finite."""
    folder = exported(bert(), tmp_path / "out", precision=["fp32", "fp16"], opset=17, unpad=False)
    inputs = {
        "input_ids": np.arange(12).reshape(2, 6),
        "attention_mask": np.array([[1, 1, 1, 1, 0, 0], [0] * 6]),
        "token_type_ids": np.zeros((2, 6), "int64"),
    }
    (expected,) = session(folder).run(None, inputs)
    (got,) = session(folder, "model_fp16.onnx").run(None, inputs)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, atol=5e-3 * np.abs(expected).max())
    (note,) = open_folder(folder).manifest.variants["fp16"].notes
    assert "2 Softmax" in note


def recurrent(activation: str):
    inputs = keras.Input((None, 16), name="x")
    hidden = keras.layers.GRU(16, activation=activation, return_sequences=True)(
        keras.layers.Dense(16)(inputs)
    )
    return redraw(keras.Model(inputs, keras.layers.Dense(16)(hidden)))


def test_fp16_keeps_bodies_in_float32(tmp_path):
    folder = exported(recurrent("silu"), tmp_path / "out", precision=["fp32", "fp16"])
    assert nodes(folder, "model_fp16.onnx")["Scan"] == 1
    x = draw(2, 5, 16)
    (expected,), (got,) = (session(folder, name).run(None, {"x": x}) for name in FILES[:2])
    np.testing.assert_allclose(got, expected, atol=5e-3)


def test_fp16_with_recurrent_nodes_raises(tmp_path):
    with pytest.raises(ExportError, match=r"fp16 .*\(GRU\)"):
        export_onnx(recurrent("tanh"), tmp_path / "out", precision="fp16")


def test_fp16_keeps_large_numbers_in_float32(tmp_path):
    inputs = keras.Input((8,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(4, use_bias=False)(keras.layers.Rescaling(3e4)(inputs)))
    folder = exported(model, tmp_path / "out", precision=["fp32", "fp16"])
    (note,) = open_folder(folder).manifest.variants["fp16"].notes
    assert note == "In float32: 1 Add, 1 MatMul, 1 Mul."


def test_keep(exported_folders, tmp_path):
    folder = exported_folders.copy("wide vit", tmp_path / "out")
    done = quantize(folder, "int8", keep=["block_0/feed_forward", "logits"])
    layers = ("block_0/feed_forward/up", "block_0/feed_forward/down", "logits")
    assert done.manifest.variants["int8"].kept == layers
    counts = nodes(folder, "model_quantized.onnx")
    assert (counts["MatMul"], counts["MatMulInteger"]) == (3, 7)
    assert "In fp32 because of keep: block_0/feed_forward/up" in str(done)
    again = quantize(folder, "int8")
    assert again.manifest.variants["int8"].kept == ()
    assert nodes(folder, "model_quantized.onnx")["MatMulInteger"] == 10


def test_int8_layer_with_outliers_has_blocks(tmp_path, monkeypatch):
    """As in trained decoders, one channel is a thousand times as large as others that matter as much."""
    model = vit()
    scale = np.ones(128, "float32")
    scale[5] = 1e3
    up, down = model.get_layer("block_0").feed_forward.up, model.get_layer("block_0").feed_forward.down
    up.kernel.assign(np.asarray(up.kernel) * scale)
    down.kernel.assign(20 * np.asarray(down.kernel) / scale[:, None])
    folder = exported(model, tmp_path / "out")
    done = quantize(folder, "int8")
    (note,) = done.manifest.variants["int8"].notes
    assert note.startswith("In 8-bit blocks") and note.endswith("result: block_0/feed_forward/down.")
    counts = nodes(folder, "model_quantized.onnx")
    assert (counts["MatMulNBits"], counts["MatMulInteger"]) == (1, 9)
    pictures = {"pixel_values": draw(4, 3, 8, 8)}
    quantize(folder, "int8", calibration=pictures)
    counts = nodes(folder, "model_quantized.onnx")
    assert (counts["MatMulNBits"], counts["QuantizeLinear"]) == (1, 9)
    with monkeypatch.context() as patched:
        patched.setattr(graph_quantizer, "LARGEST_ERROR_OF_A_RANGE", 1.0)
        without = quantize(folder, "int8").manifest.variants["int8"]
    assert without.notes == () and without.noise > 3 * done.manifest.variants["int8"].noise

    def wrong(*arguments):
        steps, scales = rounded_blocks(*arguments)
        return steps, scales * 2

    monkeypatch.setattr(weight_blocks, "rounded_blocks", wrong)
    with pytest.raises(ExportError, match="'block_0/feed_forward/down' .*int8"):
        quantize(folder, "int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int9"}, "'int9'"),
        ({"precision": []}, "precision is empty"),
        ({"precision": "fp32"}, "precision has 'fp32'"),
        ({"precision": "int8", "keep": "logits"}, "keep='logits'"),
        (
            {"precision": "int8", "keep": ["block_0/atention"]},
            "'block_0/atention'.*'block_0/attention",
        ),
        ({"precision": "fp16", "keep": ["logits"]}, "keep .*precision fp16"),
        ({"precision": "int4", "calibration": draw(1, 3, 8, 8)}, "calibration .*precision int4"),
        ({"precision": "int8", "calibration": "flowers"}, "calibration is a str"),
        ({"precision": "int8", "calibration": []}, "calibration is empty"),
        (
            {"precision": "int8", "calibration": draw(0, 3, 8, 8)},
            r"calibration .*'pixel_values'.*\(0, 3, 8, 8\)",
        ),
        ({"precision": "int8", "calibration": {"images": draw(1, 3, 8, 8)}}, "calibration .*'pixel_values'"),
    ],
)
def test_invalid_arguments_raise(folders, tmp_path, options, message):
    folder = shutil.copytree(folders["vit"], tmp_path / "out")
    before = (folder / contract.MANIFEST).read_bytes()
    with pytest.raises(ConfigError, match=message):
        quantize(folder, **options)
    assert (folder / contract.MANIFEST).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_model_without_large_weights_raises(tmp_path):
    small = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, width=16, num_heads=2, mlp_dim=16))
    with pytest.raises(ExportError, match="4096 .*int8"):
        export_onnx(small, tmp_path / "out", precision="int8")
    assert not list(tmp_path.iterdir())


def test_model_quantized_by_keras_raises(tmp_path):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.layers[0].quantize("int8")
    with pytest.raises(ConfigError, match=r"precision=\['int4'\]"):
        export_onnx(model, tmp_path / "out", precision="int4")
    folder = exported(model, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"'int4', but .*out has int8\. Keras quantized .* omit precision"):
        load(folder, precision="int4")
    with pytest.raises(ExportError, match="has int8, .*Keras quantized the model: .* the float model"):
        quantize(folder, "int4")


def test_damaged_folder_raises(exported_folders, tmp_path):
    folder = exported_folders.copy("wide vit", tmp_path / "out")
    config = folder / contract.CONFIG
    config.write_bytes(config.read_bytes()[:-1] + b" ")
    with pytest.raises(FolderError, match="config.json"):
        quantize(folder, "int8")


def test_other_files_stay(exported_folders, tmp_path):
    folder = exported_folders.copy("wide vit", tmp_path / "out")
    (folder / "NOTES.md").write_text("precious")
    quantize(folder, "int8")
    assert (folder / "NOTES.md").read_text() == "precious"
    assert "NOTES.md" not in open_folder(folder).manifest.files


def test_failure_leaves_folder_unchanged(exported_folders, tmp_path, monkeypatch):
    folder = exported_folders.copy("wide vit", tmp_path / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graph_quantizer, "write_graph", full)
    with pytest.raises(ExportError, match="No space left on device"):
        quantize(folder, ["int8"])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("fault", ["scale", "axis", "zero"])
def test_wrong_scale_raises_with_layer(exported_folders, tmp_path, monkeypatch, fault):
    right = int8.rounded_columns

    def wrong(kernel):
        rounded, scale = right(kernel)
        if fault == "scale":
            return rounded, scale * 1.05
        return (rounded, np.roll(scale, 1)) if fault == "axis" else (rounded + np.int8(1), scale)

    folder = exported_folders.copy("wide vit", tmp_path / "out")
    monkeypatch.setattr(int8, "rounded_columns", wrong)
    with pytest.raises(ExportError, match=r"'block_0/attention/qkv' .*keep=\['block_0"):
        quantize(folder, "int8")


def test_large_files_have_data_files(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 100_000)
    folder = exported(vit(), tmp_path / "out", precision=["fp32", "int8"])
    quantize(folder, "fp16")
    config = json.loads((folder / contract.CONFIG).read_text())
    beside = {name for name in ("model.onnx", "model_fp16.onnx") if (folder / f"onnx/{name}_data").exists()}
    assert beside == {"model.onnx", "model_fp16.onnx"}
    assert config["transformers.js_config"]["use_external_data_format"] == dict.fromkeys(sorted(beside), True)
    verify_hashes(open_folder(folder, "fp16"))


def test_small_file_from_large_one_has_no_data_file(tmp_path, monkeypatch):
    """fp32 has a data file; int8 needs none, and does not refer to that of fp32."""
    weights = vit().count_params() * 4
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", weights // 2)
    both = exported(vit(), tmp_path / "both", precision=["fp32", "int8"])
    assert (both / contract.MODEL_DATA).exists()
    model = onnx.load(both / "onnx/model_quantized.onnx", load_external_data=False)
    assert not [tensor.name for tensor in model.graph.initializer if tensor.external_data]
    alone = exported(vit(), tmp_path / "alone", precision="int8")
    with load(alone, provider="cpu") as classify:
        assert len(classify(np.zeros((8, 8, 3), "uint8"), top_k=3)) == 3


def test_report_lists_files(tmp_path):
    text = str(export_onnx(vit(), tmp_path / "out", precision=["fp32", "int8", "int4"], verify=False))
    assert "dynamic: within" in text and "4 bits in blocks of 32: within" in text
    assert "largest output in" in text


def test_note_if_most_weights_stay_in_float32(tmp_path):
    """Convolutions are not quantized."""
    x = keras.Input((8, 8, 3))
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(256, 5, name="wide")(x))
    model = redraw(keras.Model(x, keras.layers.Dense(16, name="answer")(y)))
    report = export_onnx(model, tmp_path / "out", precision=["fp32", "int8"])
    (note,) = (
        note for note in report.manifest.variants["int8"].notes if "of the weights are quantized" in note
    )
    weights = 5 * 5 * 3 * 256 + 256 + 256 * 16 + 16
    assert float(note.split("%")[0]) == pytest.approx(100 * 256 * 16 / weights, abs=1)
    assert "Conv" in note
    assert note in str(report)
    sizes = [(tmp_path / "out" / name).stat().st_size for name in report.manifest.precisions.values()]
    assert sizes[1] > 0.8 * sizes[0]


def test_interpolation_stays_in_float32(tmp_path):
    x = keras.Input((80, 80, 3))
    resized = keras.layers.Resizing(64, 64, interpolation="bicubic", name="small")(x)
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.Dense(64, name="colors")(resized))
    model = redraw(keras.Model(x, keras.layers.Dense(64, name="constant")(y)))
    folder = exported(model, tmp_path / "out", precision=["fp32", "int8", "int4"])
    assert nodes(folder, "model_quantized.onnx")["MatMulInteger"] == 1
    assert nodes(folder, "model_q4.onnx")["MatMulNBits"] == 1


class Branch(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(64, 64), name="kernel")

    def call(self, x):
        return keras.ops.cond(keras.ops.sum(x) > 0, lambda: x @ self.kernel, lambda: 2 * x)


def test_note_on_layers_in_branches(tmp_path):
    x = keras.Input((64,), name="x")
    model = redraw(keras.Model(x, Branch(name="branch")(keras.layers.Dense(64)(x))))
    folder = exported(model, tmp_path / "out", precision=["fp32", "int8"])
    assert any("branch" in note for note in open_folder(folder).manifest.variants["int8"].notes)
    assert nodes(folder, "model_quantized.onnx")["MatMulInteger"] == 1


@pytest.mark.parametrize("automatic", [False, True])
def test_newer_export_is_not_replaced(tmp_path, monkeypatch, automatic):
    folder, newer = (exported(vit(depth=1), tmp_path / name) for name in ("folder", "newer"))
    finish = precision_files.PrecisionWriter.finish

    def replaced_before(self, *arguments):
        with atomic_directory(folder, ExportError) as aside:
            shutil.copytree(newer, aside, dirs_exist_ok=True)
        return finish(self, *arguments)

    monkeypatch.setattr(precision_files.PrecisionWriter, "finish", replaced_before)
    pixels = draw(4, 3, 8, 8)
    options = {"validation": (pixels, np.arange(4))} if automatic else {}
    with pytest.raises(FolderError, match="folder.*changed or replaced"):
        quantize(folder, "auto" if automatic else "fp16", **options)
    manifests = [(path / contract.MANIFEST).read_bytes() for path in (folder, newer)]
    assert manifests[0] == manifests[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "newer"]
