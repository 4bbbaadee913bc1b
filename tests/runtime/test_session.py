import builtins
import dataclasses
import subprocess
import sys
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, KerasTxError, ProviderError
from keras_tx.runtime import Session, load, providers, session
from keras_tx.runtime.providers import CPU, CUDA

A = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def graph(generic_folder) -> Path:
    return generic_folder.graph


def test_run(graph: Path):
    with Session(graph, threads=1) as opened:
        assert opened.provider == "cpu"
        assert [spec.name for spec in opened.inputs] == ["a", "b"]
        assert opened.inputs[0].dtype == "float32"
        assert opened.inputs[0].shape == ("n", 3)
        got = opened.run({"a": A, "b": A[:, ::-1]})
        np.testing.assert_array_equal(got["sum"], A + A[:, ::-1])
        np.testing.assert_array_equal(got["product"], A * A[:, ::-1])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": A}, r"inputs are 'a'.* a float32 \(n, 3\), b float32 \(n, 3\)"),
        ({}, "inputs are none.* a float32"),
        ({"a": A, "b": A, "c": A}, "inputs are 'a', 'b', 'c'.* a float32"),
        ({"a": A, "b": A.tolist()}, "'b' is a list.* b float32"),
        ({"a": A, "b": A.astype("float64") / 3}, r"'b' has dtype float64.*\.astype\('float32'\)"),
        ({"a": A, "b": A.astype("float64") * 1e300}, "'b' has dtype float64, expected float32"),
        ({"a": A, "b": A.astype("int64") + 2**24}, "'b' has dtype int64, expected float32"),
        ({"a": A, "b": A.astype("complex64")}, r"'b' has dtype complex64.*\.astype\('float32'\)"),
        ({"a": A, "b": A.astype("str")}, "'b' has dtype <U.*expected float32"),
        ({"a": A, "b": A[0]}, r"'b' has shape \(3,\).* b float32 \(n, 3\)"),
        ({"a": A, "b": A[:, :2]}, r"'b' has shape \(2, 2\).* b float32 \(n, 3\)"),
        ({"a": A, "b": A[:1]}, "n is 1 in 'b' but 2 in 'a'"),
    ],
)
def test_invalid_inputs_raise(inputs: dict[str, Any], message: str, graph: Path):
    with Session(graph) as opened, pytest.raises(InputError, match=message):
        opened.run(inputs)


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "uint8", "int64", "bool"])
def test_exact_values_are_cast(dtype: str, graph: Path):
    other = (A % 2).astype(dtype)
    with Session(graph) as opened:
        np.testing.assert_array_equal(opened.run({"a": A, "b": other})["sum"], A + A % 2)
        if np.dtype(dtype).kind == "f":
            other[0] = np.nan, np.inf, -np.inf
            got = opened.run({"a": A, "b": other})["sum"]
            np.testing.assert_array_equal(got, A + other.astype("float32"))


CASES = [
    ("int64", "uint8", 255, True),
    ("int64", "bool", 1, True),
    ("int64", "uint64", 2**62, True),
    ("int64", "uint64", 2**63 + 1, False),
    ("uint8", "int64", 255, True),
    ("uint8", "int64", 256, False),
    ("uint8", "int64", -1, False),
    ("uint64", "int64", -1, False),
    ("int64", "float32", 3.0, False),
    ("bool", "int64", 1, True),
    ("bool", "int64", 2, False),
    ("float32", "int64", 2**62 + 2**10, False),
]


@pytest.mark.parametrize(("input_dtype", "dtype", "number", "exact"), CASES, ids=str)
def test_casts_are_exact_or_raise(input_dtype: str, dtype: str, number: Any, exact: bool, tmp_path: Path):
    kind = getattr(onnx.TensorProto, input_dtype.upper().replace("FLOAT32", "FLOAT"))
    x, y = (onnx.helper.make_tensor_value_info(name, kind, ["n"]) for name in "xy")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    opset = [onnx.helper.make_opsetid("", 17)]
    made = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=opset)
    made.ir_version = 8
    onnx.save(made, tmp_path / "identity.onnx")
    array = np.array([number], dtype)
    with Session(tmp_path / "identity.onnx") as opened:
        if exact:
            got = opened.run({"x": array})["y"]
            assert str(got.dtype) == input_dtype and int(got[0]) == int(array[0])
        else:
            with pytest.raises(InputError, match=f"'x' has dtype {dtype}, expected {input_dtype}"):
                opened.run({"x": array})


def test_closed_session_raises(graph: Path):
    opened = Session(graph)
    opened.close()
    opened.close()
    with pytest.raises(KerasTxError, match=r"model\.onnx is closed"):
        opened.run({"a": A, "b": A})


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_invalid_threads_raise(threads: Any, graph: Path):
    with pytest.raises(ConfigError, match=f"threads is {threads!r}"):
        Session(graph, threads=threads)


def test_too_many_threads_raise(graph: Path):
    with pytest.raises(ConfigError, match="threads is 1000000"):
        Session(graph, threads=10**6)


def test_threads_reach_onnxruntime(graph: Path):
    inner = Session(graph, threads=3)._session
    assert inner is not None
    assert inner.get_session_options().intra_op_num_threads == 3


def test_invalid_graph_raises(tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x0b")
    with pytest.raises(
        FolderError, match=r"model\.onnx: onnxruntime \d.* cannot load it: .*upgrade onnxruntime"
    ):
        Session(file)


def test_unknown_provider_raises(graph: Path):
    with pytest.raises(ProviderError, match="provider is 'gpu'"):
        Session(graph, provider="gpu")


def test_cuda_on_cpu_wheel_raises(graph: Path):
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(ProviderError, match="provider is 'cuda'"):
        Session(graph, provider="cuda")


def test_missing_onnxruntime_raises(graph: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError("No module named 'onnxruntime'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ProviderError, match=r'No module named.*pip install "keras-tx\[runtime\]"'):
        Session(graph)


class GpuWheel:
    """A fake onnxruntime-gpu whose CUDA works, does not load, or does not start."""

    def __init__(self, cuda: str) -> None:
        self.cuda = cuda
        self.file: str | None = None
        self.asked: list[list[str]] = []
        self.fallbacks: list[int] = []
        self.bound: list[str] = []

    def watched(self, real: Any) -> Any:
        def bind_cpu_input(name: str, array: np.ndarray) -> None:
            self.bound.append(name)
            real.bind_cpu_input(name, array)

        def bind_output(name: str, device: str) -> None:
            self.bound.append(f"{name} to {device}")
            real.bind_output(name, device)

        return types.SimpleNamespace(
            real=real,
            bind_cpu_input=bind_cpu_input,
            bind_output=bind_output,
            copy_outputs_to_cpu=real.copy_outputs_to_cpu,
        )

    def module(self) -> Any:
        def create(
            path: Path,
            options: Any,
            providers: list[str],
            enable_fallback: int,
            disabled_optimizers: Sequence[str],
        ) -> Any:
            assert bool(disabled_optimizers) == (providers == [CPU])  # they are faster on a device
            self.asked.append(providers)
            self.fallbacks.append(enable_fallback)
            if CUDA in providers and self.cuda == "fails":
                raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")
            real = onnxruntime.InferenceSession(path, options, providers=[CPU])
            running = providers if self.cuda == "works" else [CPU]
            return types.SimpleNamespace(
                get_inputs=real.get_inputs,
                get_outputs=real.get_outputs,
                get_overridable_initializers=real.get_overridable_initializers,
                get_modelmeta=real.get_modelmeta,
                get_providers=lambda: running,
                run=real.run if running == [CPU] else None,  # on a device, only bound runs work
                io_binding=lambda: self.watched(real.io_binding()),
                run_with_iobinding=lambda binding, options: real.run_with_iobinding(binding.real, options),
            )

        return types.SimpleNamespace(
            __version__="1.99",
            cuda_version="12.8",
            SessionOptions=onnxruntime.SessionOptions,
            InferenceSession=create,
            get_available_providers=lambda: [CPU] if self.cuda == "hidden" else [CUDA, CPU],
            __file__=self.file,
            preload_dlls=lambda: None if self.cuda == "works" else print("Failed to load libcudnn.so.9"),
        )


@pytest.fixture
def gpu_wheel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuWheel:
    wheel = GpuWheel(request.param)
    module = wheel.module()
    monkeypatch.setattr(session, "_onnxruntime", lambda: module)
    return wheel


@pytest.mark.parametrize("gpu_wheel", ["works"], indirect=True)
@pytest.mark.parametrize("provider", ["cuda", "auto"])
def test_cuda(provider: str, gpu_wheel: GpuWheel, graph: Path):
    assert Session(graph, provider=provider).provider == "cuda"
    assert gpu_wheel.asked == [[CUDA, CPU]]
    assert gpu_wheel.fallbacks == [0]


@pytest.mark.parametrize("gpu_wheel", ["works", "quiet"], indirect=True)
def test_cpu(gpu_wheel: GpuWheel, graph: Path, capsys: pytest.CaptureFixture[str]):
    assert Session(graph, provider="cpu").provider == "cpu"
    assert gpu_wheel.asked == [[CPU]]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("gpu_wheel", "reason"),
    [("quiet", "libcudnn"), ("hidden", "libcudnn"), ("fails", "no CUDA-capable device")],
    indirect=["gpu_wheel"],
)
def test_fallback_raises_or_warns(
    gpu_wheel: GpuWheel, reason: str, graph: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(ProviderError, match=f"provider is 'cuda'.*{reason}"):
        Session(graph, provider="cuda")
    with pytest.warns(RuntimeWarning, match=f"CPU.*{reason}"):
        opened = Session(graph, provider="auto")
    assert opened.provider == "cpu"
    np.testing.assert_array_equal(opened.run({"a": A, "b": A})["sum"], A + A)
    assert capsys.readouterr().out == ""  # the output of preload_dlls is in the message


@pytest.mark.parametrize("gpu_wheel", ["fails"], indirect=True)
def test_invalid_graph_on_cuda_raises_folder_error(gpu_wheel: GpuWheel, tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x0b")
    with pytest.raises(FolderError, match=r"onnxruntime 1\.99 cannot load it"):
        Session(file, provider="cuda")
    assert gpu_wheel.asked == [[CUDA, CPU], [CPU]]


def test_gpu_wheel_without_preload_dlls(graph: Path, monkeypatch: pytest.MonkeyPatch):
    module = GpuWheel("works").module()
    del module.preload_dlls
    monkeypatch.setattr(session, "_onnxruntime", lambda: module)
    assert Session(graph, provider="cuda").provider == "cuda"


@pytest.mark.parametrize("gpu_wheel", ["works"], indirect=True)
def test_device_binds_inputs_and_outputs(gpu_wheel: GpuWheel, graph: Path):
    opened = Session(graph, provider="cuda")
    got = opened.run({"a": A, "b": A})
    np.testing.assert_array_equal(got["product"], A * A)
    assert gpu_wheel.bound == ["a", "b", "sum to cpu", "product to cpu"]
    with pytest.raises(InputError, match="'b' is a list"):
        opened.run({"a": A, "b": A.tolist()})


def test_bound_outputs_equal_run_and_are_copies(graph: Path, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    with Session(graph, provider="cpu") as opened:
        asked = [
            {name: random.normal(size=(size, 3)).astype("float32") for name in "ab"}
            for size in (4, 4, 9, 1, 0)
        ]
        asked.append({"a": asked[2]["a"][::-2], "b": asked[2]["b"].T.copy().T[::2]})  # not contiguous
        expected = [opened.run(feed) for feed in asked]
        monkeypatch.setitem(providers.DEVICES, "cpu", "cpu")
        with ThreadPoolExecutor(3) as threads:
            got = list(threads.map(opened.run, asked * 5))
    for index, outputs in enumerate(got):  # after all runs, with a closed session
        for name, value in outputs.items():
            np.testing.assert_array_equal(value, expected[index % len(asked)][name])
    got[0]["sum"][:] = 7
    np.testing.assert_array_equal(got[len(asked)]["sum"], expected[0]["sum"])


def test_other_provider(graph: Path, monkeypatch: pytest.MonkeyPatch):
    wheel = GpuWheel("works")
    module = wheel.module()
    module.get_available_providers = lambda: ["DmlExecutionProvider", CPU]
    module.cuda_version = ""
    monkeypatch.setattr(session, "_onnxruntime", lambda: module)
    made = module.InferenceSession

    def create(path: Path, options: Any, providers: list[str], **more: Any) -> Any:
        real = made(path, options, providers, **more)
        real.get_providers = lambda: running
        return real

    module.InferenceSession = create
    running = ["DmlExecutionProvider", CPU]
    opened = Session(graph, provider="directml")
    assert (opened.provider, opened.device) == ("directml", "dml")
    running = [CPU]
    with pytest.raises(ProviderError, match="provider is 'directml'"):
        Session(graph, provider="directml")


@pytest.mark.parametrize("gpu_wheel", ["works"], indirect=True)
def test_two_wheels(gpu_wheel: GpuWheel, graph: Path, tmp_path: Path):
    for name in ("onnxruntime-1.31.1", "onnxruntime_gpu-1.31.1", "onnxruntime_genai-0.18"):
        (tmp_path / f"{name}.dist-info").mkdir()
    gpu_wheel.file = str(tmp_path / "onnxruntime" / "__init__.py")
    module = gpu_wheel.module()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_onnxruntime", lambda: module)
        with pytest.raises(ProviderError, match="onnxruntime and onnxruntime-gpu"):
            Session(graph, provider="cuda")
        with pytest.warns(RuntimeWarning, match="onnxruntime and onnxruntime-gpu"):
            assert Session(graph, provider="auto").provider == "cuda"
        assert Session(graph, provider="cpu").provider == "cpu"


@pytest.fixture
def two_precisions(make_image_folder) -> Path:
    """A folder with fp32 and fp16 graphs."""
    built = make_image_folder()
    half = built.path / "onnx/model_fp16.onnx"
    half.write_bytes(built.graph.read_bytes())
    built.seal(precisions={"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx"})
    return built.path


@pytest.mark.parametrize("gpu_wheel", ["works"], indirect=True)
def test_fp16_is_the_default_on_gpu(gpu_wheel: GpuWheel, two_precisions: Path):
    for provider in ("cuda", "auto"):
        with load(two_precisions, provider=provider) as model:
            assert (model.precision, model.session.graph.name) == ("fp16", "model_fp16.onnx")
            assert "on cuda in fp16, 4 labels" in repr(model)
    with load(two_precisions, provider="cuda", precision="fp32") as model:
        assert (model.precision, model.session.graph.name) == ("fp32", "model.onnx")
        assert "on cuda, 4 labels" in repr(model)
    with load(two_precisions, provider="cpu") as model:
        assert model.precision == "fp32"


@pytest.mark.parametrize("gpu_wheel", ["quiet", "hidden", "fails"], indirect=True)
def test_fp16_is_not_the_default_on_cpu(gpu_wheel: GpuWheel, two_precisions: Path):
    with pytest.warns(RuntimeWarning, match="CPU") as warned, load(two_precisions) as model:
        assert (model.provider, model.precision, model.session.graph.name) == ("cpu", "fp32", "model.onnx")
    assert len(warned) == 1
    with pytest.warns(RuntimeWarning), load(two_precisions, precision="fp16") as model:
        assert (model.provider, model.precision) == ("cpu", "fp16")


@pytest.mark.parametrize("gpu_wheel", ["hidden"], indirect=True)
def test_fp16_graph_that_cpu_cannot_load(gpu_wheel: GpuWheel, two_precisions: Path):
    half = onnx.load(two_precisions / "onnx/model_fp16.onnx")
    half.graph.node[0].op_type = "NoSuchNode"
    onnx.save(half, two_precisions / "onnx/model_fp16.onnx")
    manifest = contract.Manifest.from_json((two_precisions / contract.MANIFEST).read_text())
    files = {
        **manifest.files,
        "onnx/model_fp16.onnx": contract.describe_file(two_precisions / "onnx/model_fp16.onnx"),
    }
    dataclasses.replace(manifest, files=files).save(two_precisions)
    with pytest.warns(RuntimeWarning) as warned:
        model = load(two_precisions)
    started, instead = (str(warning.message) for warning in warned)
    assert "Running on the CPU" in started
    assert "NoSuchNode" in instead and "fp32" in instead
    assert (model.provider, model.precision) == ("cpu", "fp32")
    with pytest.warns(RuntimeWarning), pytest.raises(FolderError, match="NoSuchNode"):
        load(two_precisions, precision="fp16")


@pytest.mark.parametrize("gpu_wheel", ["works"], indirect=True)
def test_gpu_runs_fp32_without_fp16(gpu_wheel: GpuWheel, make_image_folder):
    with load(make_image_folder().path, provider="cuda") as model:
        assert (model.provider, model.precision) == ("cuda", "fp32")


HEAP = """
import sys
from keras_tx.runtime import Session, session
from tests.memory import resident

with Session(sys.argv[1], "cpu", 1):
    before = resident()
    session._trim_heap()
    print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_memory_of_the_parsed_file_is_returned(tmp_path: Path):
    """Without trimming, 31 MB of this file stay in the heap."""
    kernel = np.random.default_rng(0).integers(-127, 127, (512, 1024)).astype("int8")
    products = range(60)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["x", f"kernel_{i}"], [f"y_{i}"]) for i in products],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["n", 512])],
        [onnx.helper.make_tensor_value_info(f"y_{i}", onnx.TensorProto.INT32, ["n", 1024]) for i in products],
        [onnx.numpy_helper.from_array(kernel, f"kernel_{i}") for i in products],
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets), tmp_path / "model.onnx")
    command = [sys.executable, "-c", HEAP, str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(done.stdout) < 5e6


def test_add_and_norm_are_not_fused(tmp_path: Path, monkeypatch):
    """onnxruntime's fusion is slower on the CPU."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4, 8])
    scale = onnx.numpy_helper.from_array(np.ones(8, "float32"), "scale")
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["r"], "relu"),
        onnx.helper.make_node("Add", ["x", "r"], ["sum"], "sum"),
        onnx.helper.make_node("LayerNormalization", ["sum", "scale", "scale"], ["y"], "norm"),
    ]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4, 8])
    graph = onnx.helper.make_graph(nodes, "norm", [x], [y], [scale])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "norm.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    create, optimized = onnxruntime.InferenceSession, tmp_path / "optimized.onnx"

    def saved(model: Any, options: Any, **more: Any) -> Any:
        options.optimized_model_filepath = str(optimized)
        return create(model, options, **more)

    def operators() -> list[str]:
        return [node.op_type for node in onnx.load(optimized).graph.node]

    saved(str(path), onnxruntime.SessionOptions(), providers=[CPU])
    assert operators() == ["Relu", "SkipLayerNormalization"]
    monkeypatch.setattr(onnxruntime, "InferenceSession", saved)
    Session(path, "cpu").close()
    assert operators() == ["Relu", "Add", "LayerNormalization"]
