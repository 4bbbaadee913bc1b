"""Folders that are changed before they are loaded, or while they are open."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from keras_tx import contract
from keras_tx.errors import FolderError, KerasTxError
from keras_tx.runtime import Session, load, open_folder, verify_hashes

RED = np.full((4, 6, 3), (255, 0, 0), "uint8")


@pytest.mark.parametrize(("opset", "ir_version"), [(99, 11), (23, 99)])
def test_graph_newer_than_runtime_raises(opset: int, ir_version: int, make_image_folder):
    built = make_image_folder()
    model = onnx.load(built.graph)
    model.opset_import[0].version, model.ir_version = opset, ir_version
    built.graph.write_bytes(model.SerializeToString())
    built.seal()
    with pytest.raises(FolderError, match="99.*upgrade onnxruntime"):
        load(built.path, provider="cpu")


def test_swapped_graphs_and_weights_raise(make_image_folder):
    built = make_image_folder(external=True)
    other = built.path / "onnx/model_fp16.onnx"
    other.write_bytes(built.graph.read_bytes().replace(b"graph", b"GRAPH"))
    data = built.path / contract.MODEL_DATA
    beside = built.path / "onnx/model_fp16.onnx_data"
    beside.write_bytes(bytes(reversed(data.read_bytes())))
    built.seal(precisions={"fp32": contract.MODEL, "fp16": "onnx/model_fp16.onnx"})
    swap(data, beside)
    folder = open_folder(built.path)
    with pytest.raises(FolderError, match="sha256 of onnx/model.*onnx_data"):
        verify_hashes(folder)
    swap(data, beside)
    verify_hashes(folder)
    swap(built.graph, other)
    for precision in ("fp32", "fp16"):
        with pytest.raises(FolderError, match="has sha256"):
            load(built.path, provider="cpu", precision=precision)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_manifest_of_another_graph_raises(make_image_folder):
    built = make_image_folder()
    (output,) = built.manifest.outputs
    built.seal(outputs=(contract.TensorSpec("scores", output.dtype, output.shape),))
    with pytest.raises(FolderError, match="outputs scores float32 .*logits"):
        load(built.path, provider="cpu")


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_folder_deleted_while_open(how: str, make_image_folder, tmp_path: Path):
    built = make_image_folder(external=True)
    with load(built.path, provider="cpu") as model:
        expected = model(RED)
        built.path.rename(tmp_path / "old")
        shutil.rmtree(tmp_path / "old")
        if how == "replaced":
            make_image_folder(labels=("a", "b", "c", "d"), external=True)
        assert model(RED) == expected
        if how == "replaced":
            with load(built.path, provider="cpu") as new:
                assert {answer["label"] for answer in new(RED)} == {"a", "b", "c", "d"}


def test_closing_twice(make_image_folder):
    with load(make_image_folder().path, provider="cpu") as model:
        model(RED)
    model.close()
    with pytest.raises(KerasTxError, match="closed"):
        model(RED)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_unchanged_weights_are_memory_mapped(tmp_path: Path):
    weights = np.arange(2**20, dtype="float32")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2**20])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="model.onnx_data")
    with Session(path, "cpu") as session:
        assert os.fspath(tmp_path / "model.onnx_data") in Path("/proc/self/maps").read_text()
        np.testing.assert_array_equal(session.run({"x": np.ones(1, "float32")})["y"], weights + 1)
