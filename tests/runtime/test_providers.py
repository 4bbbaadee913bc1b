import pytest

from keras_tx.errors import ProviderError
from keras_tx.runtime.providers import CPU, CUDA, choose, settle


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
        ("tensorrt", "Known: 'auto', 'cpu', 'cuda'"),
        ("CUDA", "Did you mean 'cuda'"),
        (None, "Known"),
    ],
)
def test_an_unknown_provider_is_refused_with_the_nearest(provider, end: str):
    with pytest.raises(
        ProviderError, match=rf"provider is {provider!r}, expected one of 'auto', 'cpu', 'cuda'\. {end}"
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
