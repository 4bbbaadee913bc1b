import builtins
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from keras_tx.errors import ConfigError, FolderError, InputError, KerasTxError, ProviderError
from keras_tx.runtime import Session, session
from keras_tx.runtime.providers import CPU, CUDA

A = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def graph(generic_folder) -> Path:
    return generic_folder.graph


def test_runs(graph: Path):
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
        ({"a": A}, r"The inputs are 'a'; expected a float32 \(n, 3\), b float32 \(n, 3\)"),
        ({}, "The inputs are none; expected a float32"),
        ({"a": A, "b": A, "c": A}, "The inputs are 'a', 'b', 'c'; expected a float32"),
        ({"a": A, "b": A.tolist()}, "'b' is a list, expected a NumPy array b float32"),
        (
            {"a": A, "b": A.astype("float64")},
            r"'b' has dtype float64, expected float32; \.astype\('float32'\)",
        ),
        ({"a": A, "b": A.astype(">f4")}, "'b' has dtype >f4, expected float32"),
        ({"a": A, "b": A[0]}, r"'b' has shape \(3,\), expected b float32 \(n, 3\)"),
        ({"a": A, "b": A[:, :2]}, r"'b' has shape \(2, 2\), expected b float32 \(n, 3\)"),
        ({"a": A, "b": A[:1]}, "n is 1 in 'b' but 2 in 'a', expected the same"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, Any], message: str, graph: Path):
    with Session(graph) as opened, pytest.raises(InputError, match=message):
        opened.run(inputs)


def test_a_closed_session_says_so(graph: Path):
    opened = Session(graph)
    opened.close()
    opened.close()
    with pytest.raises(KerasTxError, match=r"model\.onnx is closed, expected an open one; load it again"):
        opened.run({"a": A, "b": A})


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_threads_are_checked(threads: Any, graph: Path):
    with pytest.raises(ConfigError, match=f"threads is {threads!r}, expected a whole number, 1 or more"):
        Session(graph, threads=threads)


def test_threads_reach_onnxruntime(graph: Path):
    inner = Session(graph, threads=3)._session
    assert inner is not None
    assert inner.get_session_options().intra_op_num_threads == 3


def test_a_graph_that_onnxruntime_refuses(tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x0b")
    with pytest.raises(
        FolderError, match=r"model\.onnx: onnxruntime \d.* cannot load it: .*upgrade onnxruntime"
    ):
        Session(file)


def test_an_unknown_provider(graph: Path):
    with pytest.raises(ProviderError, match="provider is 'gpu'"):
        Session(graph, provider="gpu")


def test_cuda_on_the_cpu_wheel(graph: Path):
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(ProviderError, match="built without CUDA"):
        Session(graph, provider="cuda")


def test_without_onnxruntime(graph: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError("No module named 'onnxruntime'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ProviderError, match=r'No module named.*pip install "keras-tx\[runtime\]"'):
        Session(graph)


class GpuWheel:
    """onnxruntime-gpu as it behaves on a machine where CUDA works, does not load, or fails to start."""

    def __init__(self, cuda: str) -> None:
        self.cuda = cuda
        self.asked: list[list[str]] = []
        self.fallbacks: list[int] = []

    def module(self) -> Any:
        def create(path: Path, options: Any, providers: list[str], enable_fallback: int) -> Any:
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
                get_providers=lambda: running,
                run=real.run,
            )

        return types.SimpleNamespace(
            __version__="1.99",
            cuda_version="12.8",
            SessionOptions=onnxruntime.SessionOptions,
            InferenceSession=create,
            get_available_providers=lambda: [CPU] if self.cuda == "hidden" else [CUDA, CPU],
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
def test_cuda_where_it_works(provider: str, gpu_wheel: GpuWheel, graph: Path):
    assert Session(graph, provider=provider).provider == "cuda"
    assert gpu_wheel.asked == [[CUDA, CPU]]
    assert gpu_wheel.fallbacks == [0]


@pytest.mark.parametrize("gpu_wheel", ["works", "quiet"], indirect=True)
def test_the_cpu_when_it_is_asked_for(gpu_wheel: GpuWheel, graph: Path, capsys: pytest.CaptureFixture[str]):
    assert Session(graph, provider="cpu").provider == "cpu"
    assert gpu_wheel.asked == [[CPU]]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("gpu_wheel", "reason"),
    [("quiet", "libcudnn"), ("hidden", "libcudnn"), ("fails", "no CUDA-capable device")],
    indirect=["gpu_wheel"],
)
def test_nothing_falls_back_in_silence(
    gpu_wheel: GpuWheel, reason: str, graph: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(
        ProviderError, match=f"provider is 'cuda'.*could not start it .*{reason}.*CUDA libraries"
    ):
        Session(graph, provider="cuda")
    with pytest.warns(RuntimeWarning, match=f"Running on the CPU.*{reason}"):
        opened = Session(graph, provider="auto")
    assert opened.provider == "cpu"
    np.testing.assert_array_equal(opened.run({"a": A, "b": A})["sum"], A + A)
    assert capsys.readouterr().out == ""  # what preload_dlls printed is in the message


@pytest.mark.parametrize("gpu_wheel", ["fails"], indirect=True)
def test_a_bad_graph_is_not_blamed_on_cuda(gpu_wheel: GpuWheel, tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x0b")
    with pytest.raises(FolderError, match=r"onnxruntime 1\.99 cannot load it"):
        Session(file, provider="cuda")
    assert gpu_wheel.asked == [[CUDA, CPU], [CPU]]


def test_an_older_gpu_wheel_without_preload(graph: Path, monkeypatch: pytest.MonkeyPatch):
    module = GpuWheel("works").module()
    del module.preload_dlls
    monkeypatch.setattr(session, "_onnxruntime", lambda: module)
    assert Session(graph, provider="cuda").provider == "cuda"
