"""The OpenAPI description of a server, written from its routes and its loaded models."""

from __future__ import annotations

import http
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras_tx
from keras_tx.serving.http.call import Operation, Operations
from keras_tx.serving.http.json_schema import Schema
from keras_tx.serving.http.model_set import ServedModel
from keras_tx.serving.http.open_inference import VERSION
from keras_tx.serving.http.request_errors import STATUS, RequestError

if TYPE_CHECKING:
    from keras_tx.serving.http.application import Application

_PARAMETER = re.compile(r"\{(\w+)\}")
_ALWAYS = {401, 403, 404, 405, 500, 503}  # statuses of every operation
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": "null"},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
V2_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def describe(application: Application) -> dict[str, Any]:
    """The description as JSON. A path of a model that accepts a body is described for each loaded model."""
    paths: dict[str, dict[str, Any]] = {}
    for path, operations in application.paths.items():
        for place, served in _places(application, path, operations):
            for method, operation in operations.items():
                if operation.serves is not None and not any(map(operation.serves, application.models.loaded)):
                    continue
                described = _operation(application, path, place, operation, served)
                described["operationId"] = re.sub(r"\W+", "_", f"{method.lower()}{place}").strip("_")
                paths.setdefault(place, {})[method.lower()] = described
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "keras-tx serve",
            "version": keras_tx.__version__,
            "description": "Exported folders over HTTP. An error has the status of its class.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": ERROR, "InferenceError": V2_ERROR}},
    }
    if application.keys:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return description


def _places(
    application: Application, path: str, operations: Operations
) -> Iterator[tuple[str, ServedModel | None]]:
    """The path as it is; that of an operation with a body, with the name of each model that accepts one."""
    bodies = [operation.body for operation in operations.values() if operation.body is not None]
    if "{name}" not in path or not bodies:
        yield path, None
        return
    for served in application.models.loaded:
        if all(body(served, application.limits) for body in bodies):
            yield path.replace("{name}", served.name), served


def _operation(
    application: Application,
    path: str,
    place: str,
    operation: Operation,
    served: ServedModel | None,
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "tags": [path.split("/")[1] or "page"],
        "responses": _responses(path, operation),
    }
    parameters = [_parameter(application, name) for name in _PARAMETER.findall(place)]
    content = None if operation.body is None else operation.body(served, application.limits)
    if content is not None:
        described["requestBody"] = {
            "required": True,
            "content": {
                kind: {"schema": _with_models(schema, operation, application)}
                for kind, schema in content.items()
            },
        }
    if parameters:
        described["parameters"] = parameters
    if application.keys and not operation.public:
        described["security"] = [{"key": []}]
    return described


def _with_models(schema: Schema, operation: Operation, application: Application) -> Schema:
    """The schema with the names of the models that the operation serves."""
    if operation.serves is None:
        return schema
    names = [one.name for one in application.models.loaded if operation.serves(one)]
    return {**schema, "properties": {**schema["properties"], "model": {"type": "string", "enum": names}}}


def _parameter(application: Application, name: str) -> dict[str, Any]:
    values = [VERSION] if name == "version" else list(application.models.folders)
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": values}}


def _responses(path: str, operation: Operation) -> dict[str, Any]:
    success = {kind: {"schema": schema} for kind, schema in operation.returns.items()}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": success}}
    schema = {"$ref": f"#/components/schemas/{'InferenceError' if path.startswith('/v2') else 'Error'}"}
    for status in sorted(_statuses()):
        if operation.computes or status in _ALWAYS:
            responses[str(status)] = {
                "description": http.HTTPStatus(status).phrase,
                "content": {"application/json": {"schema": schema}},
            }
    return responses


def _statuses() -> set[int]:
    """All statuses of errors."""
    own = {kind.status for kind in (RequestError, *RequestError.__subclasses__())}
    return own | {status for status, _ in STATUS.values()}
