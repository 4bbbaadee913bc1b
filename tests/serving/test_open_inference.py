"""/v2 against tritonclient, onnxruntime and the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest

from keras_tx.runtime import open_folder
from keras_tx.serving.http import open_inference
from keras_tx.serving.http import tensors as tensors_of_json
from tests.serving.running_server import RunningServer, running
from tests.tolerances import assert_close

triton = pytest.importorskip(
    "tritonclient.http", reason="tritonclient is missing: pip install 'tritonclient[http]'"
)
IDS = np.array([[3, 4, 5, 6], [3, 4, 0, 0]])
TEXT = {
    "input_ids": IDS,
    "attention_mask": (IDS > 0).astype("int64"),
    "token_type_ids": np.zeros_like(IDS),
}


@pytest.fixture(scope="module")
def server(exported_folders) -> Iterator[RunningServer]:
    names = {"flowers": "vit", "reviews": "bert, classifier", "span": "bert, span", "poet": "gpt"}
    with running({name: exported_folders[export].path for name, export in names.items()}) as one:
        yield one


@pytest.fixture
def client(server) -> Iterator[Any]:
    client = triton.InferenceServerClient(server.address)
    yield client
    client.close()


def by_onnxruntime(server: RunningServer, name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    graph = open_folder(server.application.models.folders[name]).graph
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, arrays), strict=True))


def tensors(arrays: dict[str, np.ndarray], binary: bool) -> list[Any]:
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    return inputs


def test_health(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("flowers") and client.is_model_ready("flowers", "1")
    assert not client.is_model_ready("nothing") and not client.is_model_ready("flowers", "2")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]


def test_metadata_is_that_of_the_manifest(server, client):
    for name in ("flowers", "reviews", "span", "poet"):
        manifest = open_folder(server.application.models.folders[name]).manifest
        metadata = client.get_model_metadata(name)
        assert metadata["name"] == name and metadata["versions"] == ["1"]
        for kind in ("inputs", "outputs"):
            specs = getattr(manifest, kind)
            assert [one["name"] for one in metadata[kind]] == [spec.name for spec in specs]
            for one, spec in zip(metadata[kind], specs, strict=True):
                assert one["shape"] == [-1 if isinstance(axis, str) else axis for axis in spec.shape]
                assert triton_dtype(one["datatype"]) == spec.dtype


def triton_dtype(name: str) -> str:
    from tritonclient.utils import triton_to_np_dtype

    return np.dtype(triton_to_np_dtype(name)).name


@pytest.mark.parametrize("binary_output", [False, True])
@pytest.mark.parametrize("binary_input", [False, True])
@pytest.mark.parametrize("name", ["flowers", "reviews", "span"])
def test_infer(server, client, name, binary_input, binary_output):
    pixels = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
    arrays = {"pixel_values": pixels} if name == "flowers" else TEXT
    expected = by_onnxruntime(server, name, arrays)
    outputs = [triton.InferRequestedOutput(one, binary_data=binary_output) for one in expected]
    result = client.infer(name, tensors(arrays, binary_input), outputs=outputs, request_id="seven")
    for one, array in expected.items():
        assert_close(result.as_numpy(one), array)
    assert result.get_response()["id"] == "seven"
    everything = client.infer(name, tensors(arrays, binary_input))  # no outputs: all of them, in binary
    assert_close(everything.as_numpy(next(iter(expected))), next(iter(expected.values())))


def test_json_of_many_numbers_is_refused(server, monkeypatch):
    """Binary data is sent without this limit."""
    body = {"inputs": [one._get_tensor() for one in tensors(TEXT, False)]}
    path = "/v2/models/reviews/infer"
    count = sum(np.prod(one["shape"]) for one in server.post(path, body).json["outputs"])
    monkeypatch.setattr(tensors_of_json, "MOST_NUMBERS", count)
    assert server.post(path, body).status == 200
    monkeypatch.setattr(tensors_of_json, "MOST_NUMBERS", count - 1)
    refused = server.post(path, body)
    assert refused.status == 422 and f"{count} numbers" in refused.message
    assert "binary_data_output" in refused.message
    assert server.post(path, body | {"parameters": {"binary_data_output": True}}).status == 200
    monkeypatch.setattr(tensors_of_json, "MOST_NUMBERS", count)
    expected = server.post(path, body).json
    monkeypatch.setattr(open_inference, "SHORT", 0)  # in threads
    assert server.post(path, body).json == expected


def test_concurrent_requests(server, client):
    pixels = np.random.default_rng(0).normal(size=(8, 1, 3, 8, 8)).astype("float32")
    pool = triton.InferenceServerClient(server.address, concurrency=4)
    waiting = [pool.async_infer("flowers", tensors({"pixel_values": one}, True)) for one in pixels]
    for one, request in zip(pixels, waiting, strict=True):
        expected = by_onnxruntime(server, "flowers", {"pixel_values": one})["logits"]
        assert_close(request.get_result().as_numpy("logits"), expected)
    pool.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": []}, "0 items"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}, "'x'"),
        ({"inputs": [{"shape": [1, 3, 8, 8], "datatype": "FP32", "data": [1]}]}, "name"),
        ({"datatype": "INT64"}, "INT64"),
        ({"datatype": "BYTES"}, "BYTES"),
        ({"shape": [2, 3, 8, 8]}, "shape"),
        ({"shape": [1, 3, 64]}, "pixel_values"),
        ({"shape": [-1, 3, 8, 8]}, "-1"),
        ({"data": [0.5] * 191}, "shape"),
        ({"shape": [0, 1e30], "data": []}, "shape[1]"),
        ({"shape": [0, 2**62, 2**62], "data": []}, "shape"),
        ({"data": ["a"] * 192}, "numbers"),
        ({"data": [None] * 192}, "numbers"),
        ({"parameters": {"binary_data_size": 4}}, "either"),
        ({"parameters": {"shared_memory_region": "x"}}, "shared_memory_region"),
        ({"outputs": [{"name": "logit"}]}, "logit"),
        ({"outputs": [{"name": "logits", "parameters": {"classification": 3}}]}, "classification"),
        ({"parameters_of_request": {"sequence_id": 3}}, "sequence_id"),
    ],
)
def test_wrong_requests(server, change, message):
    tensor = {"name": "pixel_values", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0.5] * 192}
    body: dict[str, Any] = {"inputs": [tensor]}
    if "inputs" in change or "outputs" in change:
        body |= change
    elif "parameters_of_request" in change:
        body["parameters"] = change["parameters_of_request"]
    else:
        tensor |= change
    answer = server.post("/v2/models/flowers/infer", body)
    assert answer.status == 422 and message in answer.message, answer.body


@pytest.mark.parametrize("length", ["-1", "x", "999999"])
def test_wrong_header_length(server, length):
    answer = server.post("/v2/models/flowers/infer", {"inputs": []}, inference_header_content_length=length)
    assert answer.status == 400 and length in answer.message


def test_wrong_binary_data(server):
    for size, content in ((768, b"\0" * 764), (764, b"\0" * 764), (768, b"\0" * 772)):
        tensor = {"name": "pixel_values", "shape": [1, 3, 8, 8], "datatype": "FP32"}
        header = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
        headers = {"inference_header_content_length": str(len(header))}
        answer = server.post("/v2/models/flowers/infer", header + content, **headers)
        assert answer.status == 422 and "bytes" in answer.message, answer.body


def test_empty_binary_data_of_an_impossible_shape(server):
    tensor = {"name": "pixel_values", "shape": [0, 2**62, 2**62], "datatype": "FP32"}
    header = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 0}}]}).encode()
    headers = {"inference_header_content_length": str(len(header))}
    answer = server.post("/v2/models/flowers/infer", header, **headers)
    assert answer.status == 422 and "shape" in answer.message, answer.body


def test_output_that_occurs_twice(server):
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.tolist()}
        for name, array in TEXT.items()
    ]
    name = server.application.models.get("span").model.folder.outputs[0].name
    answer = server.post("/v2/models/span/infer", {"inputs": inputs, "outputs": [{"name": name}] * 2})
    assert answer.status == 422 and answer.message == f"Output {name!r} occurs twice. Send it once."


def test_ids_out_of_range_are_refused(client):
    arrays = {**TEXT, "input_ids": np.full_like(IDS, 10**6)}
    with pytest.raises(triton.InferenceServerException, match="input_ids"):
        client.infer("reviews", tensors(arrays, True))


def test_generators_are_refused(server, client):
    with pytest.raises(triton.InferenceServerException, match="/models/poet or /v1/completions"):
        client.infer("poet", tensors({"input_ids": IDS}, True))
