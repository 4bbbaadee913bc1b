import pytest

from keras_tx.errors import ProviderError
from keras_tx.runtime.providers import CPU, CUDA, OTHERS, TENSORRT, choose, settle


@pytest.mark.parametrize(
    ("provider", "available", "expected"),
    [
        ("cpu", [CUDA, CPU], [CPU]),
        ("cpu", [CPU], [CPU]),
        ("auto", ["AzureExecutionProvider", CPU], [CPU]),
        ("auto", ["TensorrtExecutionProvider", CUDA, CPU], [CUDA, CPU]),
        ("cuda", [CUDA, CPU], [CUDA, CPU]),
    ],
)
def test_choice(provider: str, available: list[str], expected: list[str]):
    assert choose(provider, available, gpu_wheel=CUDA in available) == expected


@pytest.mark.parametrize(
    ("provider", "end"),
    [
        ("gpu", "'cpu'"),
        ("tensorflow", "'tensorrt'"),
        ("CUDA", "'cuda'"),
        ("xyz", "'auto', 'cpu', 'cuda', 'tensorrt', 'openvino', 'coreml', 'directml'"),
        (None, ""),
    ],
)
def test_unknown_provider_raises(provider, end: str):
    with pytest.raises(ProviderError, match=f"provider is {provider!r}.*{end}"):
        choose(provider, [CPU], gpu_wheel=False)


def test_cuda_without_cuda_wheel_raises():
    remedy = r'pip uninstall onnxruntime && pip install "keras-tx\[runtime-gpu\]"'
    with pytest.raises(ProviderError, match=f"provider is 'cuda'.*{remedy}"):
        choose("cuda", [CPU], gpu_wheel=False)


def test_cuda_that_cannot_be_loaded():
    with pytest.raises(ProviderError, match=r"provider is 'cuda'.*\(no libcublas\)"):
        choose("cuda", [CPU], gpu_wheel=True, reason="no libcublas")
    with pytest.warns(RuntimeWarning, match=r"CPU.*\(no libcublas\)"):
        assert choose("auto", [CPU], gpu_wheel=True, reason="no libcublas") == [CPU]


def test_settle():
    assert settle("cuda", [CUDA, CPU]) == "cuda"
    assert settle("auto", [CUDA, CPU]) == "cuda"
    with pytest.raises(ProviderError, match="provider is 'cuda'"):
        settle("cuda", [CPU])
    with pytest.warns(RuntimeWarning, match='provider="cpu"'):
        assert settle("auto", [CPU]) == "cpu"


@pytest.mark.parametrize(
    ("provider", "full_name", "source"), [(name, *rest) for name, rest in OTHERS.items()]
)
def test_other_providers(provider: str, full_name: str, source: str):
    assert choose(provider, [full_name, CPU], gpu_wheel=False) == [full_name, CPU]
    assert settle(provider, [full_name, CPU]) == provider
    with pytest.raises(ProviderError, match=f"provider is '{provider}'.* cpu"):
        choose(provider, [CPU], gpu_wheel=False)
    with pytest.raises(ProviderError, match=rf"provider is '{provider}'.*\(no libnvinfer\)"):
        settle(provider, [CPU], "no libnvinfer")


def test_tensorrt_falls_back_to_cuda():
    assert choose("tensorrt", [TENSORRT, CUDA, CPU], gpu_wheel=True) == [TENSORRT, CUDA, CPU]


def test_two_wheels():
    wheels = ("onnxruntime", "onnxruntime-gpu")
    message = "onnxruntime and onnxruntime-gpu .*pip uninstall -y onnx"
    for provider in ("cuda", "openvino"):
        with pytest.raises(ProviderError, match=f"provider is '{provider}'.*{message}"):
            choose(provider, [CUDA, CPU], gpu_wheel=True, wheels=wheels)
    with pytest.warns(RuntimeWarning, match=message):
        assert choose("auto", [CPU], gpu_wheel=False, wheels=wheels) == [CPU]
    assert choose("cpu", [CPU], gpu_wheel=False, wheels=wheels) == [CPU]
    assert choose("auto", [CPU], gpu_wheel=False, wheels=wheels[:1]) == [CPU]


def test_auto_is_cuda_or_cpu():
    assert choose("auto", [full_name for full_name, _ in OTHERS.values()] + [CPU], gpu_wheel=False) == [CPU]
