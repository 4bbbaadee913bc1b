"""/v2, the Open Inference Protocol: arrays to arrays, as JSON or as binary data."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import keras_tx
from keras_tx.contract import TensorSpec
from keras_tx.errors import InputError
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.tasks.arrays import GenericModel
from keras_tx.serving.http.disconnection import while_connected
from keras_tx.serving.http.json_response import encode
from keras_tx.serving.http.json_schema import Schema, closed_object, read_checked
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ServedModel
from keras_tx.serving.http.request_errors import MalformedRequestError, UnknownPathError
from keras_tx.serving.http.tensors import array_of, check_json

SHORT = 2000  # bytes or numbers that are converted in less time than a thread needs to start
VERSION = "1"  # of every model: an export replaces the previous one
PLATFORM = "onnxruntime_onnx"
HEADER_LENGTH = "inference-header-content-length"
DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_FLAG = {"type": "boolean"}
_SIZE = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}


def server_metadata() -> dict[str, Any]:
    return {"name": "keras-tx", "version": keras_tx.__version__, "extensions": ["binary_tensor_data"]}


def model_metadata(served: ServedModel) -> dict[str, Any]:
    """Inputs and outputs of the manifest; dynamic axes are -1."""
    folder = served.model.folder
    return {
        "name": served.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in folder.inputs],
        "outputs": [_tensor(spec) for spec in folder.outputs],
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = [-1 if isinstance(axis, str) else axis for axis in spec.shape]
    return {"name": spec.name, "datatype": _NAMES[spec.dtype], "shape": shape}


def check_version(version: str | None) -> None:
    """Raises an UnknownPathError for a version that does not exist."""
    if version not in (None, VERSION):
        raise UnknownPathError(
            f"Version {version!r:.40} does not exist. The version of every model is {VERSION}."
        )


def request_schema(served: ServedModel) -> Schema:
    """The schema of the JSON part of a request."""
    if "infer" not in served.schemas:
        served.schemas["infer"] = _request_schema(served)
    return served.schemas["infer"]


def _request_schema(served: ServedModel) -> Schema:
    inputs = {spec.name: spec for spec in served.model.folder.inputs}
    outputs = [spec.name for spec in served.model.folder.outputs]
    tensor = closed_object(
        {
            "name": {"type": "string", "enum": list(inputs)},
            "shape": {"type": "array", "items": _SIZE, "maxItems": 16},
            "datatype": {"type": "string", "enum": list(DATATYPES)},
            "parameters": closed_object({"binary_data_size": _SIZE}),
            "data": {"type": "array"},
        },
        ["name", "shape", "datatype"],
    )
    output = closed_object(
        {
            "name": {"type": "string", "enum": outputs},
            "parameters": closed_object({"binary_data": _FLAG}),
        },
        ["name"],
    )
    return closed_object(
        {
            "id": {"type": "string", "maxLength": 256},
            "inputs": {"type": "array", "items": tensor, "minItems": len(inputs), "maxItems": len(inputs)},
            "outputs": {"type": "array", "items": output, "maxItems": len(outputs)},
            "parameters": closed_object({"binary_data_output": _FLAG}),
        },
        ["inputs"],
    )


def request_content(served: ServedModel, limits: Limits) -> dict[str, Schema] | None:
    """The schema of the JSON part by media type; None for a model that /v2 does not run."""
    return None if served.generates else {"application/json": request_schema(served)}


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The outputs of a request by name, and whether each is sent as binary data."""

    outputs: dict[str, bool]
    id: str | None


async def infer(request: Request, content: bytes, served: ServedModel) -> Response:
    """Runs the graph on the arrays of a request."""
    if served.generates:
        other = f"/models/{served.name}"
        raise InputError(
            f"{served.name} generates texts with a cache between its runs, which /v2 does not have. Use "
            f"POST {other}{' or /v1/completions' if served.task.inputs == 'prompt' else ''}."
        )
    header, binary = _split(request.headers.get(HEADER_LENGTH), content)
    body = await read_checked(header, request_schema(served))
    if len(header) <= SHORT:
        arrays = _arrays(body["inputs"], binary, served)
    else:
        arrays = await asyncio.to_thread(_arrays, body["inputs"], binary, served)
    wanted = _wanted(body, served)
    model = served.model
    graph = model if isinstance(model, GenericModel) else GenericModel(model.folder, model.session)
    outputs = await while_connected(request, call_async(graph.run, arrays))
    check_json(outputs, [name for name, is_binary in wanted.outputs.items() if not is_binary])
    if sum(outputs[name].size for name in wanted.outputs) <= SHORT:
        return _response(served, outputs, wanted)
    return await asyncio.to_thread(_response, served, outputs, wanted)


def _split(length: str | None, content: bytes) -> tuple[bytes, memoryview]:
    """The JSON part and the binary part of a body."""
    if length is None:
        return content, memoryview(b"")
    if not length.isdecimal() or int(length) > len(content):
        raise MalformedRequestError(
            f"{HEADER_LENGTH} is {length!r:.40}, expected a number up to {len(content)}, the body's size."
        )
    return content[: int(length)], memoryview(content)[int(length) :]


def _arrays(inputs: list[dict[str, Any]], binary: memoryview, served: ServedModel) -> dict[str, np.ndarray]:
    specs = {spec.name: spec for spec in served.model.folder.inputs}
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for one in inputs:
        name, spec = one["name"], specs[one["name"]]
        if name in arrays:
            raise InputError(f"Input {name!r} occurs twice.")
        if DATATYPES[one["datatype"]] != spec.dtype:
            raise InputError(
                f"Input {name!r} has the datatype {one['datatype']}, expected {_NAMES[spec.dtype]}."
            )
        size = one.get("parameters", {}).get("binary_data_size")
        if (size is None) == ("data" not in one):
            raise InputError(f"Input {name!r}: send either data or binary_data_size.")
        if size is None:
            arrays[name] = _from_json(one, spec)
        else:
            arrays[name] = _from_binary(one, spec, binary[start : start + size])
            start += size
    if start != len(binary):
        raise InputError(f"The body has {len(binary)} bytes after its JSON part, but its inputs {start}.")
    return arrays


def _from_json(one: Mapping[str, Any], spec: TensorSpec) -> np.ndarray:
    """The array of `data`, which may be flat or nested."""
    array = array_of(one["data"], spec)
    if array.size != math.prod(one["shape"]) or (array.ndim != 1 and list(array.shape) != one["shape"]):
        raise InputError(
            f"Input {spec.name!r} has data of shape {list(array.shape)}, but the shape {one['shape']}."
        )
    return _reshaped(array, one)


def _reshaped(array: np.ndarray, one: Mapping[str, Any]) -> np.ndarray:
    try:
        return array.reshape(one["shape"])
    except ValueError as error:  # an empty array that would be too large without its axis of 0
        raise InputError(f"Input {one['name']!r} has the shape {one['shape']}: {error}.") from error


def _from_binary(one: Mapping[str, Any], spec: TensorSpec, content: memoryview) -> np.ndarray:
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    expected = math.prod(one["shape"]) * dtype.itemsize
    if len(content) != expected or one["parameters"]["binary_data_size"] != expected:
        raise InputError(
            f"Input {spec.name!r} has {len(content)} bytes of binary data and binary_data_size "
            f"{one['parameters']['binary_data_size']}, but its shape {one['shape']} needs {expected}."
        )
    array = _reshaped(np.frombuffer(content, dtype), one)
    if spec.dtype == "bool" and (array.view("uint8") > 1).any():
        raise InputError(f"Input {spec.name!r} has bytes other than 0 and 1, expected a boolean in each.")
    return array.astype(spec.dtype, copy=False)


def _wanted(body: Mapping[str, Any], served: ServedModel) -> _Wanted:
    binary = body.get("parameters", {}).get("binary_data_output", False)
    names = [spec.name for spec in served.model.folder.outputs]
    outputs: dict[str, bool] = {}
    requested: list[dict[str, Any]] = body.get("outputs") or [{"name": name} for name in names]
    for one in requested:
        if one["name"] in outputs:
            raise InputError(f"Output {one['name']!r} occurs twice. Send it once.")
        outputs[one["name"]] = one.get("parameters", {}).get("binary_data", binary)
    return _Wanted(outputs, body.get("id"))


def _response(served: ServedModel, outputs: Mapping[str, np.ndarray], wanted: _Wanted) -> Response:
    described: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for name, is_binary in wanted.outputs.items():
        array = outputs[name]
        one: dict[str, Any] = {"name": name, "datatype": _NAMES[str(array.dtype)], "shape": list(array.shape)}
        if is_binary:
            content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            one["parameters"] = {"binary_data_size": len(content)}
            binary.append(content)
        else:
            one["data"] = array.reshape(-1)
        described.append(one)
    body = {"model_name": served.name, "model_version": VERSION, "outputs": described}
    if wanted.id is not None:
        body["id"] = wanted.id
    header = encode(body)
    if not binary:
        return Response(header, media_type="application/json")
    return Response(
        b"".join([header, *binary]),
        media_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(header))},
    )
