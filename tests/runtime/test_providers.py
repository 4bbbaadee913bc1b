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
        ("gpu", "Did you mean 'cpu'"),
        ("tensorflow", "Did you mean 'tensorrt'"),
        ("CUDA", "Did you mean 'cuda'"),
        ("xyz", "Known: 'auto', 'cpu', 'cuda', 'tensorrt', 'openvino', 'coreml', 'directml'"),
        (None, ""),
    ],
)
def test_an_unknown_provider_is_refused_with_the_nearest(provider, end: str):
    with pytest.raises(
        ProviderError, match=rf"provider is {provider!r}, expected one of 'auto', 'cpu', 'cuda', .*\. {end}"
    ):
        choose(provider, [CPU], gpu_wheel=False)


def test_cuda_without_a_cuda_wheel_says_what_to_install():
    remedy = r'pip uninstall onnxruntime && pip install "keras-tx\[runtime-gpu\]"'
    with pytest.raises(ProviderError, match=f"built without CUDA.*{remedy}"):
        choose("cuda", [CPU], gpu_wheel=False)


def test_a_wheel_that_hides_the_cuda_that_it_could_not_load():
    with pytest.raises(ProviderError, match=r"could not start it \(no libcublas\): the CUDA libraries"):
        choose("cuda", [CPU], gpu_wheel=True, reason="no libcublas")
    with pytest.warns(RuntimeWarning, match=r"Running on the CPU.*\(no libcublas\).*silences this"):
        assert choose("auto", [CPU], gpu_wheel=True, reason="no libcublas") == [CPU]


def test_what_it_came_to():
    assert settle("cuda", [CUDA, CPU]) == "cuda"
    assert settle("auto", [CUDA, CPU]) == "cuda"
    with pytest.raises(
        ProviderError, match=r"provider is 'cuda'.*could not start it: the CUDA libraries, cuDNN"
    ):
        settle("cuda", [CPU])
    with pytest.warns(RuntimeWarning, match=r'Running on the CPU.*provider="cpu" silences this'):
        assert settle("auto", [CPU]) == "cpu"


@pytest.mark.parametrize(("provider", "theirs", "source"), [(name, *rest) for name, rest in OTHERS.items()])
def test_another_provider_is_taken_where_it_is_there_and_nothing_else(
    provider: str, theirs: str, source: str
):
    assert choose(provider, [theirs, CPU], gpu_wheel=False) == [theirs, CPU]
    assert settle(provider, [theirs, CPU]) == provider
    with pytest.raises(ProviderError, match=rf"'{provider}', but this onnxruntime has only cpu\. It comes"):
        choose(provider, [CPU], gpu_wheel=False)
    with pytest.raises(ProviderError, match=rf"'{provider}'.*could not start it \(no libnvinfer\)"):
        settle(provider, [CPU], "no libnvinfer")


def test_what_tensorrt_cannot_do_cuda_does():
    assert choose("tensorrt", [TENSORRT, CUDA, CPU], gpu_wheel=True) == [TENSORRT, CUDA, CPU]


def test_two_wheels_at_once_are_named():
    wheels = ("onnxruntime", "onnxruntime-gpu")
    message = r"onnxruntime and onnxruntime-gpu are installed together: they overwrite.*pip uninstall -y onnx"
    for provider in ("cuda", "openvino"):
        with pytest.raises(ProviderError, match=rf"provider is '{provider}'\. {message}"):
            choose(provider, [CUDA, CPU], gpu_wheel=True, wheels=wheels)
    with pytest.warns(RuntimeWarning, match=message):
        assert choose("auto", [CPU], gpu_wheel=False, wheels=wheels) == [CPU]
    assert choose("cpu", [CPU], gpu_wheel=False, wheels=wheels) == [CPU]
    assert choose("auto", [CPU], gpu_wheel=False, wheels=wheels[:1]) == [CPU]


def test_auto_takes_cuda_or_the_cpu_and_nothing_untested():
    assert choose("auto", [theirs for theirs, _ in OTHERS.values()] + [CPU], gpu_wheel=False) == [CPU]
