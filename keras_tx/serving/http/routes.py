"""The paths of the server, and the operations of each."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from keras_tx.serving.http import open_inference, openai
from keras_tx.serving.http.call import Call, Operation, Operations
from keras_tx.serving.http.json_response import json_response
from keras_tx.serving.http.metrics import CONTENT_TYPE
from keras_tx.serving.http.openapi import describe
from keras_tx.serving.http.page import asset
from keras_tx.serving.http.request_errors import UnavailableError, UnknownPathError
from keras_tx.serving.http.tasks import answer_task, describe_model, request_content

JSON = "application/json"
HTML = {"text/html": {"type": "string"}}
CSS = {"text/css": {"type": "string"}}
SCRIPT = {"text/javascript": {"type": "string"}}
TEXT = {"text/plain": {"type": "string"}}
ANSWERS = {JSON: {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}}


def all_paths() -> dict[str, Operations]:
    """The operations of each path, by method."""
    metadata = Operation(_v2_model, "inputs and outputs of a model")
    ready = Operation(_v2_model_ready, "whether a model is ready", public=True)
    infer = Operation(_v2_infer, "arrays to arrays", computes=True, body=open_inference.request_content)
    events = {"application/json": {"type": "object"}, "text/event-stream": {}}
    return {
        "/v1/models": {"GET": Operation(openai.models, "the models and their adapters")},
        "/v1/models/{name}": {"GET": Operation(openai.model, "a model")},
        "/v1/completions": {
            "POST": Operation(
                openai.completions,
                "continues prompts",
                computes=True,
                body=lambda served, limits: {JSON: openai.completion_schema(limits)},
                serves=lambda served: served.engine is not None,
                returns=events,
            )
        },
        "/v1/chat/completions": {
            "POST": Operation(
                openai.chat_completions,
                "answers the last message of a chat",
                computes=True,
                body=lambda served, limits: {JSON: openai.chat_schema(limits)},
                serves=lambda served: served.chat_template is not None,
                returns=events,
            )
        },
        "/v1/embeddings": {
            "POST": Operation(
                openai.embeddings,
                "embeds texts",
                computes=True,
                body=lambda served, limits: {JSON: openai.embedding_schema(limits)},
                serves=openai.embeds,
            )
        },
        "/models": {"GET": Operation(_models, "the models of this server")},
        "/models/{name}": {
            "GET": Operation(_model, "a model, and what it accepts"),
            "POST": Operation(
                _task, "the answers of a model", computes=True, body=request_content, returns=ANSWERS
            ),
        },
        "/metrics": {"GET": Operation(_metrics, "metrics for Prometheus", returns=TEXT)},
        "/v2": {"GET": Operation(_v2_server, "the server")},
        "/v2/health/live": {"GET": Operation(_live, "whether the server runs", public=True)},
        "/v2/health/ready": {"GET": Operation(_ready, "whether the models are ready", public=True)},
        "/v2/models/{name}": {"GET": metadata},
        "/v2/models/{name}/ready": {"GET": ready},
        "/v2/models/{name}/infer": {"POST": infer},
        "/v2/models/{name}/versions/{version}": {"GET": metadata},
        "/v2/models/{name}/versions/{version}/ready": {"GET": ready},
        "/v2/models/{name}/versions/{version}/infer": {"POST": infer},
        "/": {"GET": Operation(_page, "a page to try the models", public=True, returns=HTML)},
        "/page.css": {"GET": Operation(_style, "the style of the pages", public=True, returns=CSS)},
        "/page.js": {"GET": Operation(_script, "the program of the page", public=True, returns=SCRIPT)},
        "/docs": {"GET": Operation(_docs, "this description, to read", public=True, returns=HTML)},
        "/docs.js": {"GET": Operation(_docs_script, "the program of /docs", public=True, returns=SCRIPT)},
        "/openapi.json": {"GET": Operation(_openapi, "this description")},
    }


async def _page(call: Call) -> Response:
    return asset("page.html")


async def _style(call: Call) -> Response:
    return asset("page.css")


async def _script(call: Call) -> Response:
    return asset("page.js")


async def _docs(call: Call) -> Response:
    return asset("docs.html")


async def _docs_script(call: Call) -> Response:
    return asset("docs.js")


async def _openapi(call: Call) -> Response:
    return JSONResponse(describe(call.application))


async def _models(call: Call) -> Response:
    described = [describe_model(served, call.limits) for served in call.models.loaded]
    return JSONResponse({"models": described})


async def _model(call: Call) -> Response:
    return JSONResponse(describe_model(call.use(_name(call)), call.limits))


async def _task(call: Call) -> Response:
    return await json_response(await answer_task(call, call.use(_name(call))))


async def _metrics(call: Call) -> Response:
    return Response(call.application.metrics.text(), media_type=CONTENT_TYPE)


async def _live(call: Call) -> Response:
    _check_engines(call)
    return JSONResponse({"live": True})


async def _ready(call: Call) -> Response:
    if call.application.draining or not call.models.ready:
        reason = "The server stops." if call.application.draining else "Models are being loaded."
        raise UnavailableError(f"{reason} Repeat the request later.")
    _check_engines(call)
    return JSONResponse({"ready": True})


def _check_engines(call: Call) -> None:
    for served in call.models.loaded:
        served.check_engine()


async def _v2_server(call: Call) -> Response:
    return JSONResponse(open_inference.server_metadata())


async def _v2_model(call: Call) -> Response:
    _check_version(call)
    return JSONResponse(open_inference.model_metadata(call.use(_name(call))))


async def _v2_model_ready(call: Call) -> Response:
    _check_version(call)
    name = _name(call)
    if name not in call.models.folders:  # without the known names, for which other paths require a key
        raise UnknownPathError(f"This server has no model {name!r:.60}.")
    call.use(name).check_engine()
    return JSONResponse({"ready": True})


async def _v2_infer(call: Call) -> Response:
    _check_version(call)
    return await open_inference.infer(call.request, call.content, call.use(_name(call)))


def _name(call: Call) -> Any:
    return call.request.path_params["name"]


def _check_version(call: Call) -> None:
    open_inference.check_version(call.request.path_params.get("version"))
