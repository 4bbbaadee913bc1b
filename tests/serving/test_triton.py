"""Model repositories: config.pbtxt by Triton's own schema, against onnxruntime and the folder."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.contract import Manifest
from keras_tx.errors import ConfigError, FolderError
from keras_tx.runtime import load
from keras_tx.serving import triton
from keras_tx.serving.triton import TritonOptions, write_model
from keras_tx_onnx import export_onnx, quantize
from tests.drawing import redraw
from tests.tolerances import FP32, difference

text_format = pytest.importorskip("google.protobuf.text_format")


def _schema() -> Any:
    """Triton's own schema, from the files of tritonclient: its package imports grpc, which is not needed."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.skip("tritonclient is missing: pip install 'tritonclient[http]'", allow_module_level=True)
    (directory,) = package.submodule_search_locations or ()
    spec = importlib.util.spec_from_file_location(
        "model_config_pb2", Path(directory) / "grpc" / "model_config_pb2.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():  # protobuf may be newer than what generated the schema
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


schema = _schema()

DTYPES = {
    schema.TYPE_FP32: "tensor(float)",
    schema.TYPE_FP16: "tensor(float16)",
    schema.TYPE_INT64: "tensor(int64)",
    schema.TYPE_UINT8: "tensor(uint8)",
    schema.TYPE_BOOL: "tensor(bool)",
}


def config_of(model: Path) -> Any:
    """config.pbtxt as Triton parses it: an unknown field or a wrong type raises."""
    return text_format.Parse((model / "config.pbtxt").read_text("utf-8"), schema.ModelConfig())


def session_of(model: Path) -> onnxruntime.InferenceSession:
    graph = model / "1" / config_of(model).default_model_filename
    return onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])


def full_shape(tensor: Any, batched: bool) -> list[int]:
    """The shape that Triton's backend expects of the graph, -1 for dynamic axes."""
    own = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return [*([-1] if batched else []), *own]


def check(model: Path) -> Any:
    """Asserts that names, types and shapes are the graph's; Triton refuses to load the model otherwise."""
    config, session = config_of(model), session_of(model)
    assert config.name == model.name and config.backend == "onnxruntime"
    for tensors, nodes in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        actual = {node.name: node for node in nodes}
        assert [tensor.name for tensor in tensors] == [node.name for node in nodes if node.name in actual]
        for tensor in tensors:
            node = actual[tensor.name]
            assert DTYPES[tensor.data_type] == node.type
            shape = [axis if isinstance(axis, int) else -1 for axis in node.shape]
            assert full_shape(tensor, config.max_batch_size > 0) == shape
            assert tensor.dims
    return config


def generic(path: Path, model: keras.Model) -> Path:
    export_onnx(redraw(model), path, verify=False)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Exports by name; tests do not change them."""
    place = tmp_path_factory.mktemp("exports")
    export_onnx(
        redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3)), place / "vit", labels=["a", "b é", '"c']
    )
    vit = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    export_onnx(vit, place / "pixels", raw_pixels=True, verify=False)
    bert = redraw(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2)))
    export_onnx(bert, place / "bert", verify=False)
    quantize(place / "bert", ["fp16", "int8", "int8-blocks"])
    inputs = [keras.Input((4,), name="a"), keras.Input((), name="b")]
    sums = keras.ops.sum(inputs[0], axis=1) + inputs[1]
    generic(place / "scalars", keras.Model(inputs, keras.layers.Activation("linear", name="s")(sums)))
    fixed = keras.Input(batch_shape=(2, 3), name="x")
    generic(place / "fixed", keras.Model(fixed, keras.layers.Dense(4, name="y")(fixed)))
    export_onnx(redraw(keras_tx.gpt("pico")), place / "logits", cache=False, verify=False)
    export_onnx(redraw(keras_tx.gpt("pico")), place / "poet", verify=False)
    export_onnx(redraw(keras_tx.t5("tiny")), place / "t5", verify=False)
    return place


@pytest.mark.parametrize("name", ["vit", "pixels", "bert", "scalars", "fixed", "logits"])
def test_config_describes_the_graph(folders, name, tmp_path):
    model = write_model(folders / name, tmp_path / "models")
    assert model == tmp_path / "models" / name
    config = check(model)
    batched = name != "fixed"
    assert config.max_batch_size == (32 if batched else 0)
    assert config.HasField("dynamic_batching") is batched
    (group,) = config.instance_group
    assert (group.count, group.kind) == (1, schema.ModelInstanceGroup.KIND_CPU)
    assert not config.parameters
    assert {path.name for path in (model / "1").iterdir()} == {"model.onnx"}
    check(write_model(folders / name, tmp_path / "others", options=TritonOptions(max_batch=1)))


def test_outputs_equal_the_folder(folders, tmp_path):
    pixels = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")
    for precision in (None, "fp32"):
        model = write_model(folders / "vit", tmp_path / str(precision), precision=precision)
        with load(folders / "vit", provider="cpu") as vit:
            expected = vit.session.run({"pixel_values": pixels})["logits"]
        (actual,) = session_of(model).run(["logits"], {"pixel_values": pixels})
        assert difference(actual, expected) < FP32
    (output,) = config_of(model).output
    assert output.label_filename == "labels.txt"
    assert (model / "labels.txt").read_text("utf-8").splitlines() == ["a", "b é", '"c']
    assert not (write_model(folders / "scalars", tmp_path / "models") / "labels.txt").exists()


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-blocks"])
def test_only_the_requested_precision_is_copied(folders, precision, tmp_path):
    options = TritonOptions(max_batch=1)
    model = write_model(folders / "bert", tmp_path, precision=precision, options=options)
    check(model)
    name = Path(contract.PRECISIONS[precision]).name
    assert [path.name for path in (model / "1").iterdir()] == [name]


def test_batches_of_dynamic_int8_warn(folders, tmp_path):
    with pytest.warns(UserWarning, match="max_batch"):
        write_model(folders / "bert", tmp_path, precision="int8")


def test_external_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 1000)
    vit = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    export_onnx(vit, tmp_path / "vit", verify=False)
    model = write_model(tmp_path / "vit", tmp_path / "models")
    assert {path.name for path in (model / "1").iterdir()} == {"model.onnx", "model.onnx_data"}
    check(model)


def test_options(folders, tmp_path):
    options = TritonOptions(8, 2.5, 3, "cpu", 2)
    config = check(write_model(folders / "bert", tmp_path, name="reviews-1.0", options=options))
    assert config.name == "reviews-1.0"
    assert config.max_batch_size == 8
    assert config.dynamic_batching.max_queue_delay_microseconds == 2500
    assert config.instance_group[0].count == 3
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    config = check(write_model(folders / "bert", tmp_path, name="gpu", options=TritonOptions(device="gpu")))
    assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_GPU


@pytest.mark.parametrize("name", ["poet", "t5"])
def test_text_generation_is_refused(folders, name, tmp_path):
    with pytest.raises(ConfigError, match="keeps nothing between calls.*keras-tx serve"):
        write_model(folders / name, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_bounds_and_adapters_that_triton_ignores_warn(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "bert", tmp_path / "bert"))
    manifest = Manifest.from_json((folder / contract.MANIFEST).read_text("utf-8"))
    dataclasses.replace(manifest, bounds=("sequence_length <= 200",)).save(folder)
    with pytest.warns(UserWarning, match="sequence_length <= 200"):
        write_model(folder, tmp_path / "models")


def test_a_model_is_never_half_written(folders, tmp_path, monkeypatch):
    repository = tmp_path / "models"
    first = write_model(folders / "vit", repository, name="m")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    copied = shutil.copyfile

    def interrupted(source: Any, target: Any) -> None:
        copied(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", interrupted)
    for name, overwrite in (("m", True), ("other", False)):
        with pytest.raises(KeyboardInterrupt):
            write_model(folders / "bert", repository, name=name, overwrite=overwrite)
    monkeypatch.undo()
    assert [path.name for path in repository.iterdir()] == ["m"]
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: Path(target).write_bytes(b"other"))
    with pytest.raises(FolderError, match="damaged, or was replaced"):
        write_model(folders / "bert", repository, name="other")
    assert [path.name for path in repository.iterdir()] == ["m"]


def test_only_own_models_are_overwritten(folders, tmp_path):
    write_model(folders / "vit", tmp_path, name="m")
    with pytest.raises(FolderError, match="overwrite=True"):
        write_model(folders / "bert", tmp_path, name="m")
    model = write_model(folders / "scalars", tmp_path, name="m", overwrite=True)
    assert {tensor.name for tensor in check(model).input} == {"a", "b"}
    assert not (model / "labels.txt").exists()
    (model / "1" / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match="notes.txt"):
        write_model(folders / "vit", tmp_path, name="m", overwrite=True)
    (model / "1" / "notes.txt").unlink()
    (model / "config.pbtxt").write_text('name: "m"')
    with pytest.raises(FolderError, match=r"no config.pbtxt of keras-tx"):
        write_model(folders / "vit", tmp_path, name="m", overwrite=True)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "a/b"}, "name is 'a/b'"),
    ({"name": ".."}, r"name is '\.\.'"),
    ({"precision": "int4"}, "precision is 'int4'"),
    ({"options": {"max_batch": 0}}, "max_batch is 0"),
    ({"options": {"max_wait_ms": -1}}, "max_wait_ms is -1"),
    ({"options": {"instances": 1.5}}, r"instances is 1\.5"),
    ({"options": {"device": "tpu"}}, "device='tpu'"),
    ({"options": {"device": "gpu", "threads": 2}}, "threads=2 requires device='cpu'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[row[1] for row in BAD])
def test_invalid_arguments_raise_before_anything_is_written(folders, arguments, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        if "options" in arguments:
            arguments = {"options": TritonOptions(**arguments["options"])}
        write_model(folders / "vit", tmp_path / "models", **arguments)
    assert not (tmp_path / "models").exists()


def test_types_that_triton_does_not_have_raise(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(triton, "TYPES", {})
    with pytest.raises(ConfigError, match="pixel_values is float32"):
        write_model(folders / "vit", tmp_path / "models")


def test_command(folders, tmp_path, capsys):
    from keras_tx.cli import main

    flags = ["--max-batch", "4", "--max-wait-ms", "1", "--threads", "1", "--instances", "2"]
    arguments = ["triton", str(folders / "vit"), str(tmp_path / "models"), "--name", "v2"]
    assert main([*arguments, *flags]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'models' / 'v2'}\n"
    assert check(tmp_path / "models" / "v2").max_batch_size == 4
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert (
        main(["triton", str(folders / "vit"), str(tmp_path / "models"), "--name", "v2", "--overwrite"]) == 0
    )
