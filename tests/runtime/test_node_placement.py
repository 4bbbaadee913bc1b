"""The predicted placement of nodes, and strict=True, which refuses nodes on the CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

import keras_tx
from keras_tx.errors import FolderError, ProviderError
from keras_tx.kernels import BASIC, NEWER_FORMS
from keras_tx.runtime import Session, load, session
from keras_tx.runtime.node_placement import fallen_back, of_folder, predict, read_graph
from keras_tx_onnx import export_onnx
from tests.export.small_bert import redraw

PICO = {"vocabulary_size": 40, "max_length": 32}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("placement")
    vit = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    gpt = redraw(keras_tx.gpt("pico", **PICO, positions="rotary", norm="rms", activation="swiglu"))
    for name, model, options in (
        ("vit", vit, {}),
        ("vit-webgpu", vit, {"target": "webgpu"}),
        ("vit-coreml", vit, {"target": "coreml", "sizes": {"batch_size": 1}}),
        ("gpt", gpt, {}),
        ("gpt-shared", gpt, {"cache": "shared"}),
        ("gpt-cuda", gpt, {"target": "cuda"}),
        ("gpt-webgpu", gpt, {"target": "webgpu"}),
    ):
        export_onnx(model, root / name, verify=False, **options)
    return root


def graph_of(folder: Path) -> Path:
    return folder / "onnx" / "model.onnx"


@pytest.mark.parametrize("name", ["vit", "gpt"])
def test_file_is_read_as_by_onnx(folders, name: str):
    graph, model = read_graph(graph_of(folders / name)), onnx.load(graph_of(folders / name))
    assert graph.opset == model.opset_import[0].version
    nodes = [(x.name, x.op_type, tuple(x.input), tuple(x.output)) for x in model.graph.node]
    assert [(x.name, x.operator, x.inputs, x.outputs) for x in graph.nodes if x.operator != "If"][
        : len(nodes)
    ]
    assert {x.name for x in graph.nodes} >= {name for name, *_ in nodes}
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    assert {x.name: x.type.tensor_type.elem_type for x in values}.items() <= graph.dtypes.items()
    assert {x.name for x in model.graph.initializer} >= graph.constants
    assert not graph.has_fixed_sizes


def test_default_form_falls_back(folders):
    rows = of_folder(folders / "vit", "webgpu")["onnx/model.onnx"]
    assert {version: dict(row.fallback) for version, row in rows.items()}["1.30"] == {"Attention": 1}
    rows = of_folder(folders / "gpt", "cuda")["onnx/model.onnx"]
    assert rows["1.24"].fallback["Attention"] == 2
    assert rows["1.27"].fallback == Counter()


def test_graph_with_a_shared_cache_is_that_of_the_cpu(folders):
    names = set(of_folder(folders / "gpt-shared", "cpu"))
    with load(folders / "gpt-shared", provider="cpu") as model:
        opened = model.session.graph.relative_to(folders / "gpt-shared").as_posix()
    assert names == {"onnx/model.onnx", "onnx/model_shared.onnx"} and opened in names
    assert set(of_folder(folders / "gpt-shared", "cuda")) == {"onnx/model.onnx"}


def test_form_of_a_target_has_kernels(folders):
    for version, row in of_folder(folders / "vit-webgpu", "webgpu")["onnx/model.onnx"].items():
        assert (row.fallback, row.target > 30) == (Counter(), True), version
    for version, row in of_folder(folders / "gpt-cuda", "cuda")["onnx/model.onnx"].items():
        assert row.fallback == Counter(), version
    for row in of_folder(folders / "gpt-webgpu", "webgpu")["onnx/model.onnx"].values():
        assert not set(row.fallback) - {"Cast", "Neg", "Unsqueeze"}  # of int64 masks


def test_fixed_sizes(folders):
    """CoreML computes nothing of a graph with dynamic sizes."""
    rows = of_folder(folders / "vit-coreml", "coreml")["onnx/model.onnx"]
    assert all(row.fallback == Counter() and row.target > 30 for row in rows.values())
    rows = of_folder(folders / "vit", "coreml")["onnx/model.onnx"]
    assert all(row.target == 0 for row in rows.values())


def test_operators_of_transformers_are_in_the_table(folders):
    operators = {node.operator for name in folders.iterdir() for node in read_graph(graph_of(name)).nodes}
    assert operators <= {*BASIC, *NEWER_FORMS}


def test_size_nodes_are_those_that_depend_on_shapes_only(folders):
    graph = read_graph(graph_of(folders / "vit"))
    assert [node.operator for node in graph.size_nodes()] == ["Shape", "Concat"]
    assert predict(graph, "cuda", "1.30").sizes == 2


def test_damaged_graph(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(FolderError, match="not a valid ONNX file"):
        read_graph(tmp_path / "model.onnx")


def assigned(monkeypatch, graph: Path, on_cpu: set[str]) -> None:
    """Makes sessions report that these nodes run on the CPU, and all others on CUDA."""
    nodes = [SimpleNamespace(name=x.name, domain="", op_type=x.operator) for x in read_graph(graph).nodes]
    parts = [
        SimpleNamespace(ep_name=provider, get_nodes=lambda chosen=chosen: chosen)
        for provider, chosen in (
            ("CPUExecutionProvider", [x for x in nodes if x.name in on_cpu]),
            ("CUDAExecutionProvider", [x for x in nodes if x.name not in on_cpu]),
        )
    ]
    inside = Session.__init__

    def on_cuda(self, *args, **options) -> None:
        inside(self, args[0], "cpu")
        self.provider = "cuda"
        self._session = SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)

    monkeypatch.setattr(Session, "__init__", on_cuda)


def test_strict_refuses_nodes_on_the_cpu(folders, monkeypatch):
    graph = graph_of(folders / "vit")
    assigned(monkeypatch, graph, {"class_token/Shape", "block_0/attention/Attention"})
    assert load(folders / "vit", provider="cuda").session.placement()["cpu"] == 2
    with pytest.raises(
        ProviderError, match=r"strict=True, but 1 of \d+ nodes .* 1 Attention; .*target='cuda'"
    ):
        load(folders / "vit", provider="cuda", strict=True)


def test_strict_accepts_sizes_on_the_cpu(folders, monkeypatch):
    graph = graph_of(folders / "vit")
    assigned(monkeypatch, graph, {node.name for node in read_graph(graph).size_nodes()})
    assert load(folders / "vit", provider="cuda", strict=True).session.placement()["cpu"] == 2


def test_strict_on_the_cpu(folders):
    with load(folders / "vit", provider="cpu", strict=True) as model:
        assert set(model.session.placement()) == {"cpu"}


@pytest.mark.filterwarnings("ignore:Running on the CPU:RuntimeWarning")
def test_strict_refuses_a_cuda_that_does_not_start(folders, monkeypatch):
    """Of an onnxruntime for CUDA on a machine without a GPU."""
    with load(folders / "vit", strict=True) as model:
        assert model.provider == "cpu"
    monkeypatch.setattr(session, "_gpu_wheel", lambda onnxruntime: True)
    with load(folders / "vit") as model:
        assert model.provider == "cpu"
    with pytest.raises(ProviderError, match=r"strict=True, but provider='auto' .* could not start CUDA"):
        load(folders / "vit", strict=True)


def test_gather_that_onnxruntime_added(folders):
    """It moves a Transpose behind a Shape, and reorders the sizes."""
    graph = graph_of(folders / "vit")
    assert fallen_back(graph, [("Gather", "Gather"), ("get_item/Gather", "Gather")]) == [
        ("get_item/Gather", "Gather")
    ]
