"""POST /models/NAME: inputs of a task to what `load(folder)` returns for them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from keras_tx import contract
from keras_tx.errors import ImageError, InputError
from keras_tx.generation import Generation
from keras_tx.generation.generator import SAMPLING, BaseGenerator, is_one
from keras_tx.generation.sampling import Sampling
from keras_tx.processing.image_file import open_image
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.tasks.base import Answer, LoadedModel, RunOptions
from keras_tx.runtime.tasks.text2text_generation import TextToTextGenerator
from keras_tx.serving.engine.cache_rows import bytes_per_token
from keras_tx.serving.http.call import Call
from keras_tx.serving.http.disconnection import while_connected
from keras_tx.serving.http.generation import submit, texts
from keras_tx.serving.http.json_schema import Schema, check, closed_object, read_checked
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ServedModel
from keras_tx.serving.http.request_body import media_type, read_form
from keras_tx.serving.http.request_errors import MediaTypeError, TooLargeError
from keras_tx.serving.http.tensors import array_of, check_json

JSON = "application/json"
FORM = "multipart/form-data"
BYTES = "application/octet-stream"
IMAGE = "image"  # the field of a form, and the beginning of the media types of images
_ID = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _ID, "minItems": 1, "maxItems": 10_000}
_WHOLE = {"type": "integer", "minimum": 1}
# Options of `generate` that a client may send.
GENERATION: dict[str, Schema] = {
    "do_sample": {"type": "boolean"},
    "temperature": {"type": "number", "minimum": 0},
    "top_k": _WHOLE,
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100},
    "seed": {"type": "integer", "minimum": 0},
    "num_beams": {"type": "integer", "minimum": 1, "maximum": 32},
    "length_penalty": {"type": "number", "minimum": -10, "maximum": 10},
    "renormalize_logits": {"type": "boolean"},
    "early_stopping": {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["never"]}]},
    "no_repeat_ngram_size": {"type": "integer", "minimum": 0},
    "min_new_tokens": {"type": "integer", "minimum": 0},
    "stop_tokens": {**_IDS, "minItems": 0},
    "bad_words_ids": {"type": "array", "items": _IDS, "maxItems": 10_000},
    "suppress_tokens": {**_IDS, "minItems": 0},
    "begin_suppress_tokens": {**_IDS, "minItems": 0},
    "allowed_ids": _IDS,
    "forced_bos_token_id": _ID,
    "forced_eos_token_id": {"anyOf": [_ID, {**_IDS, "minItems": 0}]},
    "regex": {"type": "string", "minLength": 1, "maxLength": 10_000},
    "json_schema": {"type": ["object", "string"]},
    "deadline": {"type": "number", "exclusiveMinimum": 0},
    "at_context": {"type": "string", "enum": ["stop", "slide"]},
}


# The number of new tokens of a request without max_new_tokens, as in `generate`.
NEW_TOKENS: int = inspect.signature(BaseGenerator.generate).parameters["max_new_tokens"].default
# Options that the engine does not have.
ALONE = {"num_beams", "length_penalty", "early_stopping", "renormalize_logits", "at_context"}


def input_field(served: ServedModel) -> str:
    """The field with the inputs of a task: "image", "text", "prompt" or "inputs"."""
    return "inputs" if served.task.inputs == "arrays" else served.task.inputs


def request_schema(served: ServedModel, limits: Limits) -> Schema:
    """The schema of the body of POST /models/NAME; that of an image model describes the fields of a form."""
    if "task" not in served.schemas:
        served.schemas["task"] = _request_schema(served, limits)
    return served.schemas["task"]


def _request_schema(served: ServedModel, limits: Limits) -> Schema:
    task, model, name = served.task, served.model, input_field(served)
    properties: dict[str, Schema] = {}
    if name == "inputs":
        names = [spec.name for spec in model.session.inputs]
        arrays = {one: {"description": "nested lists of numbers"} for one in names}
        properties[name] = closed_object(arrays, names)
    elif name != IMAGE:
        one = _text_schema(served, limits)
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": limits.max_texts}
        ids = {**_IDS, "maxItems": limits.max_characters}
        properties[name] = {"anyOf": [one, many] if name == "text" else [one, many, ids]}
    text = {"type": "string", "maxLength": limits.max_characters}
    known: dict[str, Schema] = {
        "pair": text,
        "question": text,
        "choices": {"type": "array", "items": text, "minItems": 1, "maxItems": limits.max_texts},
    }
    properties |= {key: known[key] for key in (*task.options, *task.required) if key in known}
    if "top_k" in inspect.signature(type(model).__call__).parameters:
        properties["top_k"] = _WHOLE
    if served.generates:
        strings = {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16}
        properties |= GENERATION
        one_or_several = {"anyOf": [{"type": "string", "minLength": 1}, strings]}
        properties |= {"stop": one_or_several, "stop_strings": one_or_several}
        properties["max_new_tokens"] = {**_WHOLE, "maximum": limits.max_new_tokens}
    if model.adapters:
        properties["adapter"] = {"type": "string", "enum": list(model.adapters)}
    required = [*([] if name == IMAGE else [name]), *task.required]
    return closed_object(properties, required)


def request_content(served: ServedModel, limits: Limits) -> dict[str, Schema]:
    """The schema of the body by media type. An image is sent in a form, or as the body itself."""
    schema = request_schema(served, limits)
    if served.task.inputs != IMAGE:
        return {JSON: schema}
    image = {"type": "string", "format": "binary"}
    form = {**schema, "properties": {IMAGE: image, **schema["properties"]}, "required": [IMAGE]}
    return {FORM: form, BYTES: image}


def _text_schema(served: ServedModel, limits: Limits) -> Schema:
    schema: dict[str, Any] = {"type": "string", "maxLength": limits.max_characters}
    mask = getattr(getattr(served.model, "transform", None), "mask_token", None)
    if served.task.inputs == "text" and served.generates:
        schema |= {"pattern": r"\S", "description": "a text that is not empty"}
    elif mask is not None and served.task.name == "fill-mask" and "pair" not in served.task.options:
        schema |= {"pattern": re.escape(mask), "description": f"a text with {mask}"}
    return schema


async def answer_task(call: Call, served: ServedModel) -> Any:
    """The answer to one input, or the list of answers to several."""
    request, limits = call.request, call.limits
    content = call.content
    schema = request_schema(served, limits)
    if served.task.inputs == IMAGE:
        images, fields = await _images(request, content, schema, limits)
        return await while_connected(request, _answer_images(call, served, images, fields))
    if media_type(request) != JSON:
        raise MediaTypeError(f"Content-Type is {media_type(request)!r:.60}, expected {JSON}.")
    _refuse_query(request)
    body = await read_checked(content, schema)
    return await while_connected(request, _answer_fields(call, served, body))


async def _answer_images(
    call: Call, served: ServedModel, images: list[bytes], fields: Mapping[str, Any]
) -> Any:
    transform = served.model.folder.transform
    assert transform is not None  # the task refuses a folder without
    await call_async(_check_images, images, transform, call.limits.max_pixels)
    values: list[Any] = list(images)
    # Boxes are in the pixels of the picture, and Keras resizes to floats: then the task resizes.
    if transform.keras_resize is None and served.task.name != contract.OBJECT_DETECTION:
        values = await call_async(lambda: list(transform.resize(images if len(images) > 1 else images[0])))
    answers = await _answers(call, served, values, fields)
    return answers if len(images) > 1 else answers[0]


async def _answer_fields(call: Call, served: ServedModel, body: dict[str, Any]) -> Any:
    value = body.pop(input_field(served))
    if served.task.inputs == "arrays":
        return await _run_arrays(served, value, body)
    single = is_one(value)
    answers = await _answers(call, served, [value] if single else value, body)
    return answers[0] if single else answers


async def _answers(
    call: Call, served: ServedModel, values: list[Any], fields: Mapping[str, Any]
) -> list[Answer]:
    fields = dict(fields)
    adapter = fields.pop("adapter", None)
    if served.generates:
        fields = {"max_new_tokens": min(_new_tokens(served.model), call.limits.max_new_tokens), **fields}
    if served.task.inputs == "prompt":
        results = await _generate(call, served, values, fields, adapter)
        return [{"generated_text": x.text, "ids": list(x.ids), "finish": x.finish} for x in results]
    own = {key: fields.pop(key) for key in ("pair", "question") if key in fields}
    if "choices" in fields:
        own["choices"] = tuple(fields.pop("choices"))
        _check_pairs(len(values), len(own["choices"]), call.limits)
    if not served.generates and "top_k" in fields:
        own["top_k"] = fields.pop("top_k")
    if served.generates:
        fields["batch_size"] = _batch_size(served, fields)
    return await served.answers(values, RunOptions(**own, generation=fields), adapter)


def _new_tokens(model: LoadedModel) -> int:
    """The number of new tokens where a request has none: that of the task, or of `generate`."""
    longest = model.of_task()[2] if isinstance(model, TextToTextGenerator) else None
    return NEW_TOKENS if longest is None else longest


def _searches(model: Any, fields: Mapping[str, Any]) -> bool:
    """Whether a model searches with beams by its own defaults, which the engine does not."""
    sampling = Sampling(**{name: fields[name] for name in SAMPLING if name in fields})
    return model.defaults.get("num_beams", 1) != 1 and not sampling.samples


def _batch_size(served: ServedModel, fields: Mapping[str, Any]) -> int:
    """The number of inputs of a batch whose beams are at most `most_rows`, or a single input."""
    model: Any = served.model
    defaults = model.of_task()[1] if isinstance(model, TextToTextGenerator) else model.defaults
    num_beams = fields.get("num_beams", defaults.get("num_beams", 1))
    rows = served.most_rows
    if served.engine is not None and served.engine.cache_memory is not None:
        memory = served.engine.cache_memory
        rows = min(rows, _rows_in(memory, served.model, num_beams, fields["max_new_tokens"]))
    return max(1, rows // num_beams)


def _rows_in(memory: int, model: Any, num_beams: int, new_tokens: int) -> int:
    """The number of rows whose keys and values fit in the memory, however long they become.

    Raises:
        InputError: if the new tokens of the beams of one text do not fit.
    """
    per_token = bytes_per_token(model.decoder)
    needed = num_beams * min(new_tokens, model.context) * per_token
    if needed > memory:
        raise InputError(
            f"num_beams={num_beams} and max_new_tokens={new_tokens} need {needed} bytes, but cache_memory is "
            f"{memory}. Pass fewer beams or a smaller max_new_tokens."
        )
    return memory // (model.context * per_token)


def _check_pairs(inputs: int, choices: int, limits: Limits) -> None:
    if inputs * choices > limits.max_texts:
        raise InputError(
            f"text and choices have {inputs * choices} pairs, expected at most {limits.max_texts}. Send "
            "several requests."
        )


async def _generate(
    call: Call, served: ServedModel, prompts: list[Any], fields: dict[str, Any], adapter: str | None
) -> list[Generation]:
    """Texts of the engine; beam search and texts beyond the context run on their own."""
    if served.engine is None or not ALONE.isdisjoint(fields) or _searches(served.model, fields):
        generator: Any = served.adapted(adapter)
        size = _batch_size(served, fields)
        return await call_async(generator.generate, prompts, batch_size=size, **fields)
    streams = await submit(call, served, prompts, 1, {**fields, "adapter": adapter})
    await texts(call, served, streams)
    return [stream.result() for stream in streams]


async def _run_arrays(served: ServedModel, inputs: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    specs = {spec.name: spec for spec in served.model.session.inputs}

    def run() -> dict[str, Any]:
        arrays = {name: array_of(value, specs[name]) for name, value in inputs.items()}
        outputs = served.model(arrays, **fields)
        check_json(outputs, outputs)
        return outputs

    return await call_async(run)


async def _images(
    request: Request, content: bytes, schema: Schema, limits: Limits
) -> tuple[list[bytes], dict[str, Any]]:
    """The image files of a body, and its other fields."""
    kind = media_type(request)
    if kind == FORM:
        _refuse_query(request)
        strings, files = await read_form(request, content, limits.max_texts)
        for name in files:
            if name != IMAGE:
                raise InputError(f"The form has a file in the field {name!r:.60}, expected {IMAGE!r}.")
        if not files:
            raise InputError(f"The form has no file in the field {IMAGE!r}. Send one or several.")
        return files[IMAGE], _typed(strings, schema)
    if kind == BYTES or kind.startswith("image/"):
        return [content], _typed(dict(request.query_params), schema)
    raise MediaTypeError(
        f"Content-Type is {kind!r:.60}, expected {FORM} with the field {IMAGE!r}, or the bytes of an image "
        f"as image/png, image/jpeg ... or {BYTES}."
    )


def _refuse_query(request: Request) -> None:
    """Raises an InputError for parameters in the address, which would be ignored."""
    for name in request.query_params:
        raise InputError(f"The address has the parameter {name!r:.60}. Send it in the body.")


def _typed(strings: Mapping[str, str], schema: Schema) -> dict[str, Any]:
    """Fields of a form or of an address in the types of a schema."""
    fields: dict[str, Any] = {}
    for name, text in strings.items():
        kind = schema["properties"].get(name, {}).get("type")
        is_number = kind == "integer" and re.fullmatch(r"[+-]?[0-9]{1,18}", text)
        fields[name] = int(text) if is_number else text
    fields = check(fields, schema)
    return fields


def _check_images(images: list[bytes], transform: Any, max_pixels: int) -> None:
    """Raises an error for images that are not decoded, because the header declares too many pixels."""
    several = len(images) > 1
    for index, image in enumerate(images):
        name = f"images[{index}]" if several else "the image"
        with open_image(image, name) as opened:
            pixels = opened.width * opened.height
        if pixels > max_pixels:
            raise TooLargeError(
                f"{name} has {pixels} pixels, expected at most {max_pixels}. Resize it before."
            )
    if transform.channels not in (1, 3):
        raise ImageError(
            f"The model has {transform.channels} channels, but images have 1 or 3. Use /v2 with arrays."
        )


def describe_model(served: ServedModel, limits: Limits) -> dict[str, Any]:
    """What a client needs to know to use a model."""
    model = served.model
    return {
        "name": served.name,
        "task": served.task.name,
        "input": input_field(served),
        "provider": model.provider,
        "precision": model.precision,
        "labels": None if model.labels is None else list(model.labels),
        "adapters": list(model.adapters),
        "chat": served.chat_template is not None,
        "batching": served.batching,
        "request": request_schema(served, limits),
    }
