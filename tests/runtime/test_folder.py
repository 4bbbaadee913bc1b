import json
import os
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, ProviderError
from keras_tx.runtime import load, open_folder, verify_hashes


def assert_raises(path: Path, message: str) -> None:
    with pytest.raises(FolderError, match=message):
        open_folder(path)


def test_valid_folder(make_image_folder):
    built = make_image_folder(external=True)
    folder = open_folder(str(built.path))
    assert folder.manifest == built.manifest
    assert folder.graph == built.graph
    assert folder.config == {"model_type": "vit"}
    assert folder.transform is not None
    assert folder.transform.size == (4, 6)
    verify_hashes(folder)


def test_folder_without_images(generic_folder):
    folder = open_folder(generic_folder.path)
    assert folder.transform is None
    assert folder.config is None


def test_path_may_be_a_link(generic_folder, tmp_path: Path):
    (tmp_path / "latest").symlink_to(generic_folder.path)
    assert open_folder(tmp_path / "latest").manifest == generic_folder.manifest


def test_unlisted_files_are_not_read(generic_folder):
    (generic_folder.path / contract.PREPROCESSOR).write_text("{")
    (generic_folder.path / "NOTES.md").write_text("mine")
    assert open_folder(generic_folder.path).transform is None


def test_missing_folder_raises(tmp_path: Path):
    assert_raises(tmp_path / "none", "none does not exist")
    (tmp_path / "file").touch()
    assert_raises(tmp_path / "file", "file is a file")
    assert_raises(tmp_path, r"has no keras_tx\.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"keras_tx\.json is not a valid manifest: it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "no format_version"),
        ('{"format_version": 2}', "format_version is 2.* 1"),
        ('{"format_version": 1}', "keras_tx_version is missing"),
    ],
)
def test_invalid_manifest_raises(text: str, message: str, generic_folder):
    (generic_folder.path / contract.MANIFEST).write_text(text)
    assert_raises(generic_folder.path, message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", 7),
        ("precisions", ["onnx/model.onnx"]),
        ("inputs", {}),
        ("inputs", [{"name": "a"}]),
        ("files", []),
        ("files", {"onnx/model.onnx": {"size": "many", "sha256": ""}}),
        ("files", {"onnx/model.onnx": {"size": 1e999, "sha256": ""}}),
        ("files", {"onnx/model.onnx": 3}),
        ("labels", "abc"),
        ("parity", {"max_difference": None}),
        ("export_options", ["unpad"]),
        ("export_options", {"unpad": [True]}),
    ],
)
def test_manifest_with_invalid_field_raises(field: str, value: Any, generic_folder):
    path = generic_folder.path / contract.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert_raises(generic_folder.path, r"keras_tx\.json is not a valid manifest: ")


def test_binary_or_large_manifest_raises(generic_folder, monkeypatch: pytest.MonkeyPatch):
    (generic_folder.path / contract.MANIFEST).write_bytes(b"\xff\xfe")
    assert_raises(generic_folder.path, "is not a valid manifest")
    monkeypatch.setattr("keras_tx.runtime.folder._MAX_JSON", 1)
    assert_raises(generic_folder.path, "has 2 bytes.* 1")


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "onnx/../../secret",
        "onnx/./model.onnx",
        "onnx//model.onnx",
        "onnx/",
        "",
        ".",
        "..",
        "/etc/passwd",
        "C:/secret",
        "C:secret",
        "onnx\\..\\..\\secret",
        "\\\\server\\share",
        "onnx/a\nb",
        "onnx/a\0b",
        "onnx/*/_ORT_MEM_ADDR_/*",
        "onnx/model.onnx:stream",
    ],
)
def test_paths_outside_raise(name: str, generic_folder):
    generic_folder.list_file(name)
    assert_raises(generic_folder.path, re.escape(f"lists {name!r}"))


def test_missing_or_changed_file_raises(make_image_folder):
    built = make_image_folder(external=True)
    data = built.path / contract.MODEL_DATA
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    assert_raises(built.path, r"model\.onnx_data has 47 bytes, expected 48")
    data.unlink()
    assert_raises(built.path, r"model\.onnx_data is missing")
    data.mkdir()
    assert_raises(built.path, r"model\.onnx_data is not a regular file")


def test_changed_graph_raises(make_image_folder):
    built = make_image_folder()
    content = bytearray(built.graph.read_bytes())
    content[-1] ^= 1
    built.graph.write_bytes(content)
    assert_raises(built.path, r"model\.onnx has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}")


def test_verify_hashes_detects_changed_weights(make_image_folder):
    built = make_image_folder(external=True)
    data = built.path / contract.MODEL_DATA
    data.write_bytes(bytes(data.stat().st_size))
    folder = open_folder(built.path)
    with pytest.raises(FolderError, match=r"sha256 of onnx/model\.onnx_data"):
        verify_hashes(folder)


@pytest.mark.parametrize(
    "name", [contract.MODEL, contract.MODEL_DATA, contract.PREPROCESSOR, contract.MANIFEST]
)
def test_symbolic_link_raises(name: str, make_image_folder, tmp_path: Path):
    built = make_image_folder(external=True)
    (built.path / name).rename(tmp_path / "elsewhere")
    (built.path / name).symlink_to(tmp_path / "elsewhere")
    assert_raises(built.path, re.escape(name) + r" is a symbolic link.*cp -rL")


def test_linked_directory_raises(generic_folder, tmp_path: Path):
    (generic_folder.path / "onnx").rename(tmp_path / "elsewhere")
    (generic_folder.path / "onnx").symlink_to(tmp_path / "elsewhere")
    assert_raises(generic_folder.path, "onnx is a symbolic link")


def test_dangling_manifest_raises(generic_folder):
    (generic_folder.path / contract.MANIFEST).unlink()
    (generic_folder.path / contract.MANIFEST).symlink_to("nowhere")
    assert_raises(generic_folder.path, r"keras_tx\.json is a symbolic link")


@pytest.mark.parametrize("name", [contract.MODEL, contract.MODEL_DATA, contract.MANIFEST])
def test_hard_link_raises(name: str, make_image_folder, tmp_path: Path):
    built = make_image_folder(external=True)
    os.link(built.path / name, tmp_path / "secret")
    assert_raises(built.path, re.escape(name) + " is a hard link")


def test_pipe_raises(generic_folder):
    os.mkfifo(generic_folder.path / "onnx/pipe")
    generic_folder.list_file("onnx/pipe", 0)
    assert_raises(generic_folder.path, "pipe is not a regular file")


def test_file_used_as_directory_raises(generic_folder):
    generic_folder.list_file("onnx/model.onnx/inner")
    assert_raises(generic_folder.path, "inner cannot be read: Not a directory")


@pytest.mark.parametrize(
    ("precisions", "message"),
    [
        ({}, "precisions is empty"),
        ({"fp32": "onnx/none.onnx"}, "precisions has 'onnx/none.onnx' as fp32"),
        ({"fp32": "config.json"}, "precisions has 'config.json' as fp32"),
        ({"fp16": "../model.onnx"}, r"precisions has '\.\./model\.onnx' as fp16"),
    ],
)
def test_graph_must_be_a_listed_onnx_file(precisions: dict[str, str], message: str, make_image_folder):
    built = make_image_folder()
    built.seal(precisions=precisions)
    assert_raises(built.path, message)


def test_only_precision_is_the_default(make_image_folder):
    built = make_image_folder()
    built.graph.rename(built.path / "onnx/model_fp16.onnx")
    built.seal(precisions={"fp16": "onnx/model_fp16.onnx"})
    assert open_folder(built.path).graph.name == "model_fp16.onnx"


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "/etc/passwd",
        "..\\secret",
        "",
        ".",
        "sub/../model.onnx_data",
        "unlisted",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_graph_with_data_outside_raises(location: str, make_image_folder):
    built = make_image_folder(external=True)
    model = onnx.load(built.graph, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    built.graph.write_bytes(model.SerializeToString())
    built.seal()
    assert_raises(
        built.path,
        re.escape(f"model.onnx refers to {location!r}"),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds a list, expected an object"),
        (
            '{"do_center_crop": true}',
            r"preprocessor_config\.json: do_center_crop is True",
        ),
        ('{"size": {"shortest_edge": 1}}', r"preprocessor_config\.json: size is {'shortest_edge': 1}"),
    ],
)
def test_invalid_preprocessor_config_raises(content: str, message: str, make_image_folder):
    built = make_image_folder()
    (built.path / contract.PREPROCESSOR).write_text(content)
    built.seal()
    assert_raises(built.path, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"id2label": {"0": "rose"}},
            r"id2label is {'0': 'rose'}.* {'0': 'rose', '1'",
        ),
        ({"id2label": {str(i): "x" * 99 for i in range(9)}}, r"id2label is .{117}\.\.\., "),
        ({"image_size": 6}, r"image_size is 6.* \(4, 6\)"),
        ({"image_size": [6, 4]}, r"image_size is \[6, 4\]"),
        ({"num_channels": 1}, "num_channels is 1.* 3"),
    ],
)
def test_contradicting_config_raises(config: dict[str, Any], message: str, make_image_folder):
    built = make_image_folder()
    built.write_json(contract.CONFIG, config)
    assert_raises(built.path, message)


def test_consistent_config(make_image_folder):
    built = make_image_folder()
    labels = {str(i): label for i, label in enumerate(built.manifest.labels)}
    built.write_json(contract.CONFIG, {"id2label": labels, "image_size": [4, 6], "num_channels": 3})
    assert open_folder(built.path).config is not None


@pytest.mark.parametrize("folder", [None, 5, b"flowers", ["flowers"]])
def test_invalid_path_raises(folder):
    with pytest.raises(FolderError, match="folder is"):
        load(folder)


def test_invalid_precision_or_provider_raises(make_image_folder):
    path = make_image_folder().path
    with pytest.raises(ConfigError, match=r"precision is \['fp32'\]"):
        load(path, precision=["fp32"])  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=r"provider is \['cpu'\]"):
        load(path, provider=["cpu"])  # type: ignore[arg-type]
