"""Small exported folders that are written without the exporter."""

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from keras_tx import contract
from keras_tx.contract import FileRecord, Manifest, TensorSpec
from keras_tx.processing import ImageTransform

# These tests build models with Keras, which is not installed for serving.
collect_ignore = (
    []
    if importlib.util.find_spec("keras")
    else [
        "test_against_transformers.py",
        "test_damaged_json.py",
        "test_padding_side.py",
        "test_shared_cache.py",
        "test_text_tasks.py",
    ]
)
WEIGHTS = np.array([[2.0, 0.0, -1.0, 0.5], [0.0, 3.0, 1.0, -0.5], [-2.0, 1.0, 0.0, 4.0]], "float32")
TRANSFORM = ImageTransform((4, 6))
_ELEMENTS = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int64": TensorProto.INT64}


@dataclasses.dataclass
class Built:
    """A folder whose files and manifest tests change."""

    path: Path
    manifest: Manifest

    @property
    def graph(self) -> Path:
        return self.path / contract.MODEL

    def seal(self, **changes: Any) -> None:
        files = {
            file.relative_to(self.path).as_posix(): contract.describe_file(file)
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and file.name != contract.MANIFEST
        }
        self.manifest = dataclasses.replace(self.manifest, **{"files": files, **changes})
        self.manifest.save(self.path)

    def list_file(self, name: str, size: int = 1) -> None:
        """Adds a name to the manifest, whether or not the file exists."""
        files = {**self.manifest.files, name: FileRecord(size, "0" * 64)}
        self.manifest = dataclasses.replace(self.manifest, files=files)
        self.manifest.save(self.path)

    def write_json(self, name: str, content: Any) -> None:
        (self.path / name).write_text(json.dumps(content))
        self.seal()


def image_nodes(raw_pixels: bool, output: str) -> list[onnx.NodeProto]:
    """The mean of each channel, times WEIGHTS."""
    source = contract.PIXELS if raw_pixels else contract.PIXEL_VALUES
    nodes = []
    if raw_pixels:
        nodes.append(helper.make_node("Cast", [source], ["cast"], to=TensorProto.FLOAT))
        source = "cast"
    nodes.append(helper.make_node("ReduceMean", [source, "axes"], ["mean"], keepdims=0))
    nodes.append(helper.make_node("MatMul", ["mean", "weights"], [output]))
    return nodes


def save_graph(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    initializers: dict[str, np.ndarray],
    external: bool = False,
) -> None:
    def infos(specs: tuple[TensorSpec, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(s.name, _ELEMENTS[s.dtype], s.shape) for s in specs]

    tensors = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "graph", infos(inputs), infos(outputs), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model,
        path,
        save_as_external_data=external,
        location=Path(contract.MODEL_DATA).name,
        size_threshold=60,  # keeps the axes, which shape inference needs
    )


Make = Callable[..., Built]


@pytest.fixture
def make_image_folder(tmp_path: Path) -> Make:
    def make(
        *,
        task: str | None = contract.IMAGE_CLASSIFICATION,
        output: str = contract.LOGITS,
        labels: tuple[str, ...] | None = ("rose", "tulip", "daisy", "iris"),
        transform: ImageTransform = TRANSFORM,
        raw_pixels: bool = False,
        external: bool = False,
        config: Mapping[str, str] | None = None,
        weights: np.ndarray = WEIGHTS,
        name: str = "flowers",
    ) -> Built:
        path = tmp_path / name
        height, width, channels = TRANSFORM.height, TRANSFORM.width, TRANSFORM.channels
        batch = contract.BATCH_AXIS
        if raw_pixels:
            inputs = (TensorSpec(contract.PIXELS, "uint8", (batch, height, width, channels)),)
        else:
            inputs = (TensorSpec(contract.PIXEL_VALUES, "float32", (batch, channels, height, width)),)
        outputs = (TensorSpec(output, "float32", (batch, weights.shape[1])),)
        axes = np.array([1, 2] if raw_pixels else [2, 3])
        constants = {"axes": axes, "weights": weights}
        save_graph(
            path / contract.MODEL, image_nodes(raw_pixels, output), inputs, outputs, constants, external
        )
        (path / contract.PREPROCESSOR).write_text(json.dumps(transform.to_preprocessor_config(raw_pixels)))
        (path / contract.CONFIG).write_text(json.dumps({"model_type": "vit", **(config or {})}))
        built = Built(path, _manifest(task, inputs, outputs, labels))
        built.seal()
        return built

    return make


@pytest.fixture
def generic_folder(tmp_path: Path) -> Built:
    path = tmp_path / "generic"
    a = TensorSpec("a", "float32", ("n", 3))
    b = TensorSpec("b", "float32", ("n", 3))
    outputs = (TensorSpec("sum", "float32", ("n", 3)), TensorSpec("product", "float32", ("n", 3)))
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["a", "b"], ["product"])]
    save_graph(path / contract.MODEL, nodes, (a, b), outputs, {})
    built = Built(path, _manifest(None, (a, b), outputs, None))
    built.seal()
    return built


def _manifest(
    task: str | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    labels: tuple[str, ...] | None,
) -> Manifest:
    return Manifest(
        keras_tx_version="0",
        task=task,
        opset=23,
        precisions={"fp32": contract.MODEL},
        inputs=inputs,
        outputs=outputs,
        tiers={},
        files={},
        labels=labels,
    )
