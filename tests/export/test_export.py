"""export_onnx: the folder, the report, and no files after a failure."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx import atomic_write, contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime import load
from keras_tx.runtime.folder import open_folder, verify_hashes
from keras_tx_onnx import export, export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import nodes_of, outputs_of
from tests.tolerances import assert_close


@pytest.fixture(scope="module")
def model():
    return redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=2))


def test_nodes_of_a_vit(model, tmp_path):
    report = export_onnx(model, tmp_path / "out")
    depth = model.config.depth
    assert report.nodes["LayerNormalization"] == 2 * depth + 1
    assert report.nodes["Attention"] == depth
    assert report.nodes["Gelu"] == depth
    assert report.nodes["Conv"] == 1
    assert nodes_of(tmp_path / "out") == report.nodes
    # NCHW comes in and the convolution wants it: no transposition but that of the patches
    assert report.nodes["Transpose"] == 1


def test_model_export_writes_the_folder(model, tmp_path, capsys):
    options = {"labels": ["a", "b", "c"], "opset_version": 20, "precision": "fp16"}
    report = model.export(tmp_path / "out", format="onnx", verbose=True, **options)
    assert capsys.readouterr().out == f"{report}\n"
    manifest = open_folder(tmp_path / "out").manifest
    assert (manifest.labels, manifest.opset, list(manifest.precisions)) == (("a", "b", "c"), 20, ["fp16"])


def test_other_formats_of_model_export_are_unchanged(model, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model.export(tmp_path / "saved", verbose=False)
    images = draw(2, 8, 8, 3)
    saved = tensorflow.saved_model.load(tmp_path / "saved")
    assert_close(saved.serve(images).numpy(), *outputs_of(model, images))
    with pytest.raises(ValueError, match="Unrecognized format=onyx"):
        model.export(tmp_path / "other", format="onyx")


def test_folder_follows_the_contract(model, tmp_path):
    export_onnx(model, tmp_path / "out", labels=["daisy", "rose", "tulip"])
    files = {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert files == {"config.json", "preprocessor_config.json", "keras_tx.json", "onnx/model.onnx"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "vit"
    assert config["id2label"] == {"0": "daisy", "1": "rose", "2": "tulip"}
    assert config["label2id"] == {"daisy": 0, "rose": 1, "tulip": 2}
    proto = onnx.load(tmp_path / "out" / "onnx" / "model.onnx")
    assert (proto.opset_import[0].version, proto.ir_version) == (23, 11)
    (pixels,), (logits,) = proto.graph.input, proto.graph.output
    assert (pixels.name, logits.name) == ("pixel_values", "logits")
    dims = [dim.dim_param or dim.dim_value for dim in pixels.type.tensor_type.shape.dim]
    assert dims == ["batch_size", 3, 8, 8]
    assert [dim.dim_param or dim.dim_value for dim in logits.type.tensor_type.shape.dim] == ["batch_size", 3]
    folder = open_folder(tmp_path / "out")
    verify_hashes(folder)
    assert folder.manifest.labels == ("daisy", "rose", "tulip")
    assert folder.manifest.parity.max_difference <= folder.manifest.parity.tolerance
    assert set(folder.manifest.tiers.values()) == {"registered", "opened"}
    assert folder.manifest.tiers["block_0"] == "opened"
    assert folder.manifest.tiers["block_0/attention"] == "registered"


def test_transformers_reads_the_configs(model, tmp_path):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    export_onnx(model, tmp_path / "out", labels=["daisy", "rose", "tulip"])
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert type(config).__name__ == "ViTConfig"
    assert (config.hidden_size, config.num_hidden_layers, config.patch_size, config.id2label[1]) == (
        32,
        2,
        2,
        "rose",
    )


def test_every_axis_has_a_name_or_a_size(model, tmp_path):
    export_onnx(model, tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / "onnx" / "model.onnx").graph
    for info in graph.value_info:
        assert info.type.tensor_type.HasField("shape"), info.name
    shapes = {info.name: info.type.tensor_type.shape.dim for info in graph.value_info}
    assert [d.dim_param or d.dim_value for d in shapes["block_0/attention/Attention"]] == [
        "batch_size",
        17,
        32,
    ]


@pytest.mark.parametrize("opset", sorted(contract.IR_VERSIONS))
def test_every_opset(model, opset: int, tmp_path):
    report = export_onnx(model, tmp_path / "out", opset=opset)
    proto = onnx.load(tmp_path / "out" / "onnx" / "model.onnx")
    assert (proto.opset_import[0].version, proto.ir_version) == (opset, contract.IR_VERSIONS[opset])
    assert bool(report.nodes["Attention"]) == (opset >= 23)
    assert bool(report.nodes["Gelu"]) == (opset >= 20)


def test_raw_pixels_adds_the_transform_to_the_graph(model, tmp_path):
    transform = keras_tx.ImageTransform(8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    export_onnx(model, tmp_path / "raw", raw_pixels=True, image=transform)
    config = json.loads((tmp_path / "raw" / "preprocessor_config.json").read_text())
    assert (config["do_rescale"], config["do_normalize"]) == (False, False)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), "uint8")
    with load(tmp_path / "raw", provider="cpu") as runtime:
        assert [spec.dtype for spec in runtime.session.inputs] == ["uint8"]
        got = runtime.session.run({"pixels": pixels})["logits"]
    (expected,) = outputs_of(model, transform(pixels))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_large_weights_have_a_data_file(tmp_path):
    model = redraw(
        keras_tx.vit("Mu/2", image_size=8, num_classes=3, depth=4, width=512, num_heads=8, mlp_dim=3328)
    )
    report = export_onnx(model, tmp_path / "out")
    data = tmp_path / "out" / contract.MODEL_DATA
    weights = 4 * model.count_params()
    assert contract.EXTERNAL_DATA_FROM < weights <= data.stat().st_size <= 1.05 * weights
    assert (tmp_path / "out" / contract.MODEL).stat().st_size < 100_000
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["transformers.js_config"] == {"use_external_data_format": {"model.onnx": True}}
    for tensor in onnx.load(tmp_path / "out" / contract.MODEL, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries and int(entries["length"]) >= 2**20:
            assert int(entries["offset"]) % 16384 == 0, tensor.name
    assert contract.MODEL_DATA in report.manifest.files


def test_report_lists_the_cache_in_one_entry(tmp_path):
    report = str(export_onnx(keras_tx.gpt("pico", depth=3), tmp_path / "x", verify=False))
    for name in ("past_key_values.0-2.key", "past_key_values.0-2.value", "present.0-2.key", "logits"):
        assert report.count(f"{name} float32 [batch_size,") == 1
    assert "past_key_values.1" not in report


def test_text_of_the_report(model, tmp_path):
    text = str(export_onnx(model, tmp_path / "out"))
    for part in (
        "opset 23",
        "pixel_values float32 [batch_size, 3, 8, 8]",
        "5 LayerNormalization",
        "tolerance 1e-04",
        "opened",
    ):
        assert part in text
    assert "NOT VERIFIED" in str(export_onnx(model, tmp_path / "other", verify=False))
    assert open_folder(tmp_path / "other").manifest.parity is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("deit", {"distillation": True, "head": keras_tx.DistilledClassifierHead(3)}),
        ("dinov2", {"layer_scale": 0.1, "pooling": "token+average", "num_classes": 3}),
        ("dinov2_with_registers", {"layer_scale": 0.1, "registers": 2}),
    ],
    ids=str,
)
def test_vit_variants_have_their_model_type(kind: str, options: dict, tmp_path):
    report = export_onnx(keras_tx.vit("Mu/2", image_size=8, **options), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == kind
    assert not report.manifest.notes


@pytest.mark.parametrize(
    "options",
    [
        {"registers": 2},
        {"pooling": "average"},
        {"positions": "sine-cosine"},
        {"positions": "relative"},
        {"qk_norm": True},
    ],
    ids=str,
)
def test_unsupported_configs_have_no_model_type(options: dict, tmp_path):
    report = export_onnx(keras_tx.vit("Mu/2", image_size=8, num_classes=3, **options), tmp_path / "out")
    assert "model_type" not in json.loads((tmp_path / "out" / "config.json").read_text())
    name = next(iter(options))
    assert any("no model_type" in note and name in note for note in report.manifest.notes)
    with load(tmp_path / "out", provider="cpu") as runtime:
        assert len(runtime(np.zeros((8, 8, 3), "uint8"))) == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"opset": 16}, ConfigError, "opset=16.*17 to 26"),
        ({"opset": 27}, ConfigError, "opset=27"),
        ({"labels": ["a", "b"]}, ConfigError, "2 names.* 3 classes"),
        ({"labels": ["a", "b", "a"]}, ConfigError, "labels.*'a'"),
        ({"labels": {0: "a", 1: "b", 2: "c"}}, ConfigError, "labels={0: "),
        ({"labels": ["a", "b", None]}, ConfigError, "labels=.*None"),
        ({"image": "x"}, ConfigError, "image='x'.*ImageTransform"),
        ({"opset": 23.0}, ConfigError, "opset=23.0"),
        ({"raw_pixels": 1}, ConfigError, "raw_pixels=1"),
        ({"unpad": False}, ConfigError, "unpad=False.*'vit'.*image, labels, raw_pixels"),
        (
            {"image": keras_tx.ImageTransform(16)},
            ConfigError,
            r"image.*\(16, 16, 3\).*\(8, 8, 3\)",
        ),
    ],
    ids=str,
)
def test_invalid_arguments_raise(model, options: dict, error: type, message: str, tmp_path):
    with pytest.raises(error, match=message):
        export_onnx(model, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_labels_require_a_head_and_a_family(tmp_path):
    import keras

    headless = keras_tx.vit("Mu/2", image_size=8)
    with pytest.raises(ConfigError, match="labels.*'vit'"):
        export_onnx(headless, tmp_path / "out", labels=["a"])
    generic = keras.Model(headless.input, headless.output)
    with pytest.raises(ConfigError, match="GetItem.*labels"):
        export_onnx(generic, tmp_path / "out", labels=["a"])


def test_existing_folder_requires_overwrite(model, tmp_path):
    out = tmp_path / "out"
    export_onnx(model, out)
    before = (out / contract.MANIFEST).read_bytes()
    with pytest.raises(ExportError, match="exists.*overwrite=True"):
        export_onnx(model, out)
    assert (out / contract.MANIFEST).read_bytes() == before
    export_onnx(model, out, opset=20, overwrite=True)
    assert open_folder(out).manifest.opset == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_other_folders_are_never_overwritten(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(ExportError, match="thesis is not an export"):
        export_onnx(model, tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "precious"
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="is not a folder"):
        export_onnx(model, tmp_path / "file", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    with pytest.raises(ExportError, match="is not a folder"):
        export_onnx(model, tmp_path / "link", overwrite=True)


def test_user_files_in_a_previous_export_are_kept(model, tmp_path):
    export_onnx(model, tmp_path / "out")
    (tmp_path / "out" / "NOTES.md").write_text("precious")
    with pytest.raises(ExportError, match="'NOTES.md'"):
        export_onnx(model, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "NOTES.md").read_text() == "precious"


def test_model_must_be_a_keras_model(tmp_path):
    with pytest.raises(ConfigError, match="model is a str"):
        export_onnx("model.keras", tmp_path / "out")


def test_long_file_name_raises(model, tmp_path):
    with pytest.raises(ExportError, match="File name too long"):
        export_onnx(model, tmp_path / ("x" * 250))
    assert not list(tmp_path.iterdir())


def test_unwritable_folders_raise(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="file is not a folder"):
        export_onnx(model, tmp_path / "file" / "below" / "out")
    with pytest.raises(ExportError, match="'model.onnx'.*folder.*'model'"):
        export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(atomic_write.os, "access", lambda path, mode: False)
    with pytest.raises(ExportError, match="no permission to write"):
        export_onnx(model, tmp_path / "out")


def test_missing_parents_are_created_and_removed_on_failure(model, tmp_path, monkeypatch):
    export_onnx(model, tmp_path / "a" / "b" / "out")
    assert open_folder(tmp_path / "a" / "b" / "out").manifest.opset == 23

    def fails(*args, **kwargs):
        assert (tmp_path / "a" / "c" / "d").is_dir()
        raise ExportError("it rains")

    monkeypatch.setattr(export, "check_graph", fails)
    with pytest.raises(ExportError, match="it rains"):
        export_onnx(model, tmp_path / "a" / "c" / "d" / "out")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    "step", ["write_graph", "check_graph", "_write_files", "verify_graphs", "_write_manifest"]
)
def test_full_disk_leaves_no_files(model, step: str, existing: bool, tmp_path, monkeypatch):
    out = tmp_path / "out"
    if existing:
        export_onnx(model, out)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, step, full)
    with pytest.raises(ExportError, match="out.*No space left on device"):
        export_onnx(model, out, opset=20, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if existing else [])
    if existing:
        assert open_folder(out).manifest.opset == 23


@pytest.mark.parametrize("swap", [True, False], ids=["swap", "two renames"])
def test_failed_replacement_keeps_the_old_folder(model, tmp_path, monkeypatch, swap):
    out = tmp_path / "out"
    export_onnx(model, out)
    rename = atomic_write.Path.rename

    def fails(self, target):
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(atomic_write, "_exchange", fails if swap else lambda one, other: False)
    monkeypatch.setattr(atomic_write.Path, "rename", fails)
    with pytest.raises(ExportError, match="Input/output error"):
        export_onnx(model, out, opset=20, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert open_folder(out).manifest.opset == 23


def test_interruption_leaves_no_files(model, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "_write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_export_leaves_no_folder_at_the_final_path(tmp_path):
    script = (
        "import os, signal, sys, keras_tx\n"
        "from keras_tx import atomic_write\n"
        "from keras_tx_onnx import export_onnx\n"
        "atomic_write._replace = lambda new, folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export_onnx(keras_tx.vit('Mu/2', image_size=8, num_classes=3), sys.argv[1])\n"
    )
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert next(path.name for path in tmp_path.iterdir()).endswith(".partial")


def test_sequential_model_accepts_any_batch_size(tmp_path):
    import keras

    model = keras.Sequential([keras.layers.Dense(3, activation="relu", name="a"), keras.layers.Dense(2)])
    model(np.zeros((4, 5), "float32"))
    redraw(model)
    nodes = [len(layer._inbound_nodes) for layer in model.layers]
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.inputs[0].shape == ("batch_size", 5)
    assert report.manifest.parity.cases == ("batch 1", "batch 3")
    assert set(report.manifest.tiers) == {layer.name for layer in model.layers}
    assert nodes == [len(layer._inbound_nodes) for layer in model.layers]


def names_of(folder):
    with load(folder) as opened:
        return [spec.name for spec in opened.session.inputs], [spec.name for spec in opened.session.outputs]


def test_unnamed_inputs_are_numbered(tmp_path):
    import keras
    from keras import layers, ops

    def make():
        x, y, z = keras.Input((3,)), keras.Input((3,), name="weights"), keras.Input((2,))
        return keras.Model([x, y, z], ops.add(layers.Dense(2, name="dense")(x * y), z))

    built = layers.Dense(2, name="answer")
    sequential = keras.Sequential([built])
    sequential(np.zeros((2, 3)))
    models = {"several": make(), "again": make(), "sequential": sequential}
    for name, made in list(models.items()):
        made.save(tmp_path / f"{name}.keras")
        models[f"{name}_loaded"] = keras.models.load_model(tmp_path / f"{name}.keras")
    for name, made in models.items():
        export_onnx(made, tmp_path / name, verify=False)
        expected = (
            (["input"], ["answer"]) if "sequential" in name else (["input", "weights", "input_3"], ["add"])
        )
        assert names_of(tmp_path / name) == expected


def test_unnamed_inputs_are_named_by_dict_keys(tmp_path):
    import keras

    x, y = keras.Input((3,)), keras.Input((3,), name="named")
    with pytest.warns(UserWarning, match="keys in the dict must match"):
        model = keras.Model({"b": x, "a": y}, keras.layers.Add(name="sum")([x, y]))
    export_onnx(model, tmp_path / "out")
    assert names_of(tmp_path / "out") == (["named", "b"], ["sum"])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int32", "int64"),
        ("uint8", "int64"),
        ("float16", "float32"),
        ("float64", "float32"),
        ("bool", "bool"),
    ],
)
def test_floats_are_float32_and_integers_int64(dtype, expected, tmp_path):
    import keras

    x = keras.Input((3,), dtype=dtype, name="x")
    model = keras.Model(x, keras.ops.cast(x, "float32") * 2)
    export_onnx(model, tmp_path / "out")
    with load(tmp_path / "out") as opened:
        assert opened.session.inputs[0].dtype == expected
        array = np.array([[1, 0, 1]], dtype)
        (got,) = opened({"x": array}).values()
        np.testing.assert_array_equal(got, [[2, 0, 2]])
