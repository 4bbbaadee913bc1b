"""/v1: completions, chat completions and embeddings, as OpenAI's clients send and read them."""

from __future__ import annotations

import asyncio
import base64
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from keras_tx import contract
from keras_tx.errors import InputError
from keras_tx.generation.generator import text_ids
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.tasks.base import RunOptions
from keras_tx.serving.engine.stream import StreamToken, TextStream
from keras_tx.serving.http.call import Call
from keras_tx.serving.http.disconnection import while_connected
from keras_tx.serving.http.event_stream import event_stream
from keras_tx.serving.http.generation import Piece, merged, submit, texts
from keras_tx.serving.http.json_response import json_response
from keras_tx.serving.http.json_schema import Schema, closed_object, read_checked
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ServedModel
from keras_tx.serving.http.request_body import media_type
from keras_tx.serving.http.request_errors import MediaTypeError, UnknownPathError

ADAPTER = ":"  # "poet:haiku" is the adapter "haiku" of the model "poet"
DEFAULT_TOKENS = 16  # of a completion, as OpenAI documents it
MOST_TEXTS = 16  # of a prompt
MOST_LOGPROBS = 20
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TOKEN_ID = "token_id:"  # before the id of a token that has no text of its own
SHORT = 100  # tokens of an answer that is put together on the event loop
LEAST = -9999.0  # a log probability in place of minus infinity, which JSON does not have
FINISH = {"stop": "stop", "length": "length", "context": "length"}
JSON = "application/json"

_COUNT = {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_TEXTS}
_FLAG = {"type": ["boolean", "null"]}
_ZERO = {"type": ["number", "null"], "minimum": 0, "maximum": 0}  # fields that are accepted without an effect
_SAMPLING: dict[str, Schema] = {
    "model": {"type": "string"},
    "n": _COUNT,
    "stream": _FLAG,
    "stream_options": closed_object({"include_usage": _FLAG}, or_null=True),
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16},
            {"type": "null"},
        ]
    },
    "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": ["integer", "null"], "minimum": 1},
    "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
    "presence_penalty": _ZERO,
    "frequency_penalty": _ZERO,
    "logit_bias": {"type": ["object", "null"], "additionalProperties": False},
    "user": {"type": ["string", "null"], "maxLength": 512},
    "structured_outputs": closed_object(  # vLLM's name
        {
            "regex": {"type": "string", "minLength": 1, "maxLength": 10_000},
            "json": {"type": ["object", "string"]},
        },
        or_null=True,
    ),
}
_JSON_SCHEMA = closed_object(
    {
        "name": {"type": "string", "maxLength": 256},
        "description": {"type": ["string", "null"]},
        "schema": {"type": "object"},
        "strict": _FLAG,
    },
    ["schema"],
)


def _most(limits: Limits) -> Schema:
    return {"type": ["integer", "null"], "minimum": 1, "maximum": limits.max_new_tokens}


@functools.cache
def completion_schema(limits: Limits) -> Schema:
    """The schema of a request for completions."""
    text = {"type": "string", "maxLength": limits.max_characters}
    ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0},
        "minItems": 1,
        "maxItems": limits.max_characters,
    }
    lists = [
        {"type": "array", "items": one, "minItems": 1, "maxItems": limits.max_texts} for one in (text, ids)
    ]
    properties = {
        **_SAMPLING,
        "prompt": {"anyOf": [text, ids, *lists]},
        "max_tokens": _most(limits),
        "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": MOST_LOGPROBS},
        "echo": {"type": ["boolean", "null"], "enum": [False, None]},
        "best_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 1},
        "suffix": {"type": ["string", "null"], "maxLength": 0},
    }
    return closed_object(properties, ["model", "prompt"])


@functools.cache
def chat_schema(limits: Limits) -> Schema:
    """The schema of a request for a chat completion."""
    text = {"type": "string", "maxLength": limits.max_characters}
    part = closed_object({"type": {"type": "string", "enum": ["text"]}, "text": text}, ["type", "text"])
    message = closed_object(
        {
            "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
            "content": {"anyOf": [text, {"type": "array", "items": part, "minItems": 1}]},
            "name": {"type": "string", "maxLength": 256},
            "refusal": {"type": "null"},  # of our own messages, which clients send back
        },
        ["role", "content"],
    )
    properties = {
        **_SAMPLING,
        "messages": {"type": "array", "items": message, "minItems": 1, "maxItems": 10_000},
        "max_tokens": _most(limits),
        "max_completion_tokens": _most(limits),
        "logprobs": _FLAG,
        "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": MOST_LOGPROBS},
        "response_format": closed_object(
            {
                "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                "json_schema": _JSON_SCHEMA,
            },
            ["type"],
            or_null=True,
        ),
    }
    return closed_object(properties, ["model", "messages"])


@functools.cache
def embedding_schema(limits: Limits) -> Schema:
    """The schema of a request for embeddings."""
    text = {"type": "string", "maxLength": limits.max_characters}
    many = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.max_texts}
    properties = {
        "model": {"type": "string"},
        "input": {"anyOf": [text, many]},
        "encoding_format": {"type": ["string", "null"], "enum": ["float", "base64", None]},
        "user": _SAMPLING["user"],
    }
    return closed_object(properties, ["model", "input"])


def describe_models(call: Call) -> list[dict[str, Any]]:
    """The loaded models, and each adapter as a model of its own."""
    names = [
        (served.name + suffix, served)
        for served in call.models.loaded
        for suffix in ("", *(ADAPTER + adapter for adapter in served.model.adapters))
    ]
    return [
        {"id": name, "object": "model", "created": int(served.loaded), "owned_by": "keras-tx"}
        for name, served in names
    ]


async def models(call: Call) -> Response:
    return JSONResponse({"object": "list", "data": describe_models(call)})


async def model(call: Call) -> Response:
    name = call.request.path_params["name"]
    for one in describe_models(call):
        if one["id"] == name:
            return JSONResponse(one)
    call.models.get(name)  # raises the error of a model that is unknown or being loaded
    raise UnknownPathError(f"Model {name!r:.60} does not exist.")


async def completions(call: Call) -> Response:
    """Continues prompts."""
    body = await _read(call, completion_schema(call.limits))
    served, adapter = _model_of(call, body)
    _check_generates(served, "/v1/completions")
    prompts = _prompts(body["prompt"])
    options = _options(
        body, adapter, body.get("max_tokens") or min(DEFAULT_TOKENS, call.limits.max_new_tokens)
    )
    options["logprobs"] = body.get("logprobs")
    count = body.get("n") or 1
    _check_number(len(prompts) * count, call.limits)
    streams = await submit(call, served, prompts, count, options)
    answer = _Completion(served, body, len(streams), f"cmpl-{call.id}")
    return await _respond(call, served, streams, count, answer, body)


async def chat_completions(call: Call) -> Response:
    """Answers the last message of a conversation."""
    body = await _read(call, chat_schema(call.limits))
    served, adapter = _model_of(call, body)
    _check_generates(served, "/v1/chat/completions")
    if served.chat_template is None:
        raise InputError(
            f"{served.name} has no chat_template in {contract.TOKENIZER_CONFIG}. Use /v1/completions, or "
            "export with the tokenizer of a chat model."
        )
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        raise InputError("max_tokens and max_completion_tokens are the same. Send one of them.")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise InputError("top_logprobs requires logprobs=true.")
    ids = await asyncio.to_thread(_chat_ids, served, body["messages"], call.limits)
    most = body.get("max_completion_tokens") or body.get("max_tokens") or call.limits.max_new_tokens
    options = _options(body, adapter, most)
    options["logprobs"] = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    options |= _response_format(body, options)
    count = body.get("n") or 1
    _check_number(count, call.limits)
    streams = await submit(call, served, [ids], count, options)
    answer = _ChatCompletion(served, body, len(streams), f"chatcmpl-{call.id}")
    return await _respond(call, served, streams, count, answer, body)


def embeds(served: ServedModel) -> bool:
    """Whether a model embeds texts."""
    return served.task.name == contract.FEATURE_EXTRACTION and served.task.inputs == "text"


async def embeddings(call: Call) -> Response:
    """Embeds texts."""
    body = await _read(call, embedding_schema(call.limits))
    served, adapter = _model_of(call, body)
    if not embeds(served):
        raise InputError(
            f"{served.name} has the task {served.task.name!r}, but /v1/embeddings needs embeddings."
        )
    inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]
    work = _embed(served, inputs, adapter, body.get("encoding_format") == "base64")
    vectors, tokens = await while_connected(call.request, work)
    data = [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    call.application.metrics.tokens.labels(served.name, "prompt").inc(tokens)
    return await json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})


async def _embed(
    served: ServedModel, inputs: list[str], adapter: str | None, as_base64: bool
) -> tuple[list[Any], int]:
    """The vectors of texts, and the number of their tokens."""
    rows = await call_async(served.model.transform.encode, inputs)  # type: ignore[attr-defined]
    answers = await served.answers(inputs, RunOptions(), adapter)
    vectors = [answer["embedding"] for answer in answers]
    if as_base64:
        vectors = [base64.b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
    return vectors, sum(map(len, rows))


async def _read(call: Call, schema: Schema) -> dict[str, Any]:
    if media_type(call.request) != JSON:
        raise MediaTypeError(f"Content-Type is {media_type(call.request)!r:.60}, expected {JSON}.")
    return await read_checked(call.content, schema)


def _model_of(call: Call, body: Mapping[str, Any]) -> tuple[ServedModel, str | None]:
    """The model of a request, and the adapter in its name."""
    name, separator, adapter = body["model"].partition(ADAPTER)
    served = call.use(name)
    if separator and adapter not in served.model.adapters:
        raise UnknownPathError(f"Model {name!r} has no adapter {adapter!r:.60}.")
    return served, adapter if separator else None


def _check_generates(served: ServedModel, path: str) -> None:
    if served.engine is None:
        raise InputError(
            f"{served.name} has the task {served.task.name!r}, but {path} needs a decoder. Use POST "
            f"/models/{served.name}."
        )
    if served.model.folder.tokenizer is None:
        raise InputError(
            f"{served.name} has no {contract.TOKENIZER}, which {path} needs. Send ids as prompt to POST "
            f"/models/{served.name}, or export with tokenizer=."
        )


def _check_number(count: int, limits: Limits) -> None:
    if count > limits.max_texts:
        raise InputError(f"prompt and n ask for {count} texts, expected at most {limits.max_texts}.")


def _prompts(prompt: Any) -> list[Any]:
    """The prompts of a request: texts or lists of ids."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt


def _chat_ids(served: ServedModel, messages: Sequence[Mapping[str, Any]], limits: Limits) -> list[int]:
    assert served.chat_template is not None
    text = served.chat_template.render([_message(one) for one in messages])
    if len(text) > limits.max_characters:
        raise InputError(
            f"messages have {len(text)} characters in the template of the model, expected at most "
            f"{limits.max_characters}. Send fewer or shorter messages."
        )
    tokenizer: Any = served.model.tokenizer  # type: ignore[attr-defined]
    return text_ids(tokenizer, text, add_special_tokens=False)  # the template has all special tokens


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is one text."""
    content = message["content"]
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    fields = {name: value for name, value in message.items() if name != "refusal"}
    return {**fields, "content": content}


def _options(body: Mapping[str, Any], adapter: str | None, most: int) -> dict[str, Any]:
    """Options of TextEngine.submit. A temperature that is not sent is 1, as OpenAI documents it."""
    names = ("top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop")
    options = {name: body[name] for name in names if body.get(name) is not None}
    temperature = body.get("temperature")
    options["temperature"] = 1.0 if temperature is None else temperature
    if options.get("top_p") == 1:
        del options["top_p"]  # clients send it as a default
    constrained = body.get("structured_outputs") or {}
    options |= {"json_schema" if name == "json" else name: value for name, value in constrained.items()}
    return {**options, "adapter": adapter, "max_new_tokens": most}


def _response_format(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of response_format as an option of TextEngine.submit."""
    wanted: dict[str, Any] = body.get("response_format") or {"type": "text"}
    if ("json_schema" in wanted) != (wanted["type"] == "json_schema"):
        raise InputError(
            f"response_format has the type {wanted['type']!r}, "
            f"{'but a' if 'json_schema' in wanted else 'without'} json_schema. Send both or none."
        )
    if wanted["type"] == "text":
        return {}
    if {"regex", "json_schema"} & options.keys():
        raise InputError("response_format and structured_outputs are both sent. Send one of them.")
    return {"json_schema": wanted.get("json_schema", {"schema": {"type": "object"}})["schema"]}


class _Texts:
    """The objects of an answer: pieces of texts become choices."""

    kind = streamed_kind = ""

    def __init__(self, served: ServedModel, body: Mapping[str, Any], count: int, identity: str) -> None:
        self._tokenizer: Any = served.model.tokenizer  # type: ignore[attr-defined]
        self._common = {
            "id": identity,
            "created": int(time.time()),
            "model": body["model"],
            "system_fingerprint": served.fingerprint,
        }
        self._lengths = [0] * count  # of the texts so far, in characters

    def object_of(self, choices: list[Any], streamed: bool, **fields: Any) -> dict[str, Any]:
        kind = self.streamed_kind if streamed else self.kind
        return {"object": kind, **self._common, "choices": choices, **fields}

    def choices(self, texts: Sequence[Sequence[Piece]]) -> list[dict[str, Any]]:
        """Complete texts."""
        return [self.choice(index, pieces) for index, pieces in enumerate(texts)]

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """A complete text."""
        raise NotImplementedError

    def part(self, piece: Piece) -> dict[str, Any]:
        """A part of a text in a stream."""
        raise NotImplementedError

    def first_parts(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return []

    def spelling(self, number: int) -> str:
        """The text of a token, or its id if it is a part of a character."""
        text: str = self._tokenizer.decode([number], skip_special_tokens=False)
        return text if text and REPLACEMENT not in text else f"{TOKEN_ID}{number}"


class _Completion(_Texts):
    kind = streamed_kind = "text_completion"

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        return self._choice(index, text, pieces, pieces[-1].finish)

    def part(self, piece: Piece) -> dict[str, Any]:
        return self._choice(piece.index, piece.text, [piece], piece.finish)

    def _choice(self, index: int, text: str, pieces: Sequence[Piece], finish: str | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, pieces),
            "finish_reason": None if finish is None else FINISH.get(finish, finish),
        }

    def _logprobs(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        tokens: list[StreamToken] = []
        offsets: list[int] = []
        for piece in pieces:
            if piece.token is not None and piece.token.logprob is not None:
                tokens.append(piece.token)
                offsets.append(self._lengths[index])
            self._lengths[index] += len(piece.text)
        if not tokens:
            return None
        return {
            "tokens": [self.spelling(token.id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._by_spelling(token.top_logprobs or ()) for token in tokens],
            "text_offset": offsets,
        }

    def _by_spelling(self, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Log probabilities by token; a token that is spelled as a likelier one has its id as its name."""
        values: dict[str, float] = {}
        for number, value in likeliest:
            name = self.spelling(number)
            values[f"{TOKEN_ID}{number}" if name in values else name] = _finite(value)
        return values


class _ChatCompletion(_Texts):
    kind, streamed_kind = "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        finish = pieces[-1].finish or ""
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(pieces),
            "finish_reason": FINISH.get(finish, finish),
        }

    def part(self, piece: Piece) -> dict[str, Any]:
        finish = piece.finish
        return {
            "index": piece.index,
            "delta": {"content": piece.text} if piece.text or piece.token is not None else {},
            "logprobs": self._logprobs([piece]),
            "finish_reason": None if finish is None else FINISH.get(finish, finish),
        }

    def first_parts(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(len(self._lengths))
        ]

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        tokens = [piece.token for piece in pieces if piece.token is not None]
        content = [
            {
                **self._logprob(token.id, token.logprob),
                "top_logprobs": [self._logprob(number, value) for number, value in token.top_logprobs or ()],
            }
            for token in tokens
            if token.logprob is not None
        ]
        return {"content": content, "refusal": None} if content else None

    def _logprob(self, number: int, value: float | None) -> dict[str, Any]:
        token = self.spelling(number)
        content = None if token == f"{TOKEN_ID}{number}" else list(token.encode())
        return {"token": token, "logprob": _finite(value), "bytes": content}


def _finite(value: float | None) -> float:
    return LEAST if value is None or value < LEAST else value


async def _respond(
    call: Call,
    served: ServedModel,
    streams: list[TextStream],
    count: int,
    answer: _Texts,
    body: Mapping[str, Any],
) -> Response:
    if body.get("stream"):
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        parts = _parts(call, served, streams, count, answer, with_usage)
        return event_stream(call, parts, lambda error: {"error": call.describe_error(error)})
    if body.get("stream_options") is not None:
        raise InputError("stream_options requires stream=true.")
    collected = await while_connected(call.request, texts(call, served, streams))
    if sum(map(len, collected)) <= SHORT:
        choices = answer.choices(collected)
    else:
        choices = await asyncio.to_thread(answer.choices, collected)
    return await json_response(answer.object_of(choices, False, usage=_usage(streams, count)))


async def _parts(
    call: Call,
    served: ServedModel,
    streams: list[TextStream],
    count: int,
    answer: _Texts,
    with_usage: bool,
) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream; with usage, the last one has it."""
    fields: dict[str, Any] = {"usage": None} if with_usage else {}
    for part in answer.first_parts():
        yield answer.object_of([part], True, **fields)
    async for piece in merged(call, served, streams):
        yield answer.object_of([answer.part(piece)], True, **fields)
    if with_usage:
        yield answer.object_of([], True, usage=_usage(streams, count))


def _usage(streams: Sequence[TextStream], count: int) -> dict[str, Any]:
    """Numbers of tokens; those of a prompt count once for all of its texts."""
    prompt = sum(stream.prompt_tokens for stream in streams[::count])
    generated = sum(len(stream.ids) for stream in streams)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(stream.cached_tokens for stream in streams[::count])},
    }
