"""The part of JSON Schema that describes requests: the same schema checks a body and documents it."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tx.errors import InputError, nearest
from keras_tx.serving.http.request_errors import MalformedRequestError

Schema = Mapping[str, Any]
SHORT = 20_000  # bytes that are checked in less time than a thread needs to start
LONGEST_KEY = 60  # characters of an unknown key that is compared with the known ones
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "string": (lambda x: isinstance(x, str), "a string"),
    "boolean": (lambda x: isinstance(x, bool), "true or false"),
    "integer": (lambda x: isinstance(x, int) and not isinstance(x, bool), "a whole number"),
    "number": (lambda x: isinstance(x, int | float) and not isinstance(x, bool), "a number"),
    "array": (lambda x: isinstance(x, list), "a list"),
    "object": (lambda x: isinstance(x, dict), "an object"),
    "null": (lambda x: x is None, "null"),
}


def closed_object(
    properties: Mapping[str, Schema], required: Sequence[str] | None = None, *, or_null: bool = False
) -> Schema:
    """The schema of an object without other fields than `properties`."""
    schema: dict[str, Any] = {"type": ["object", "null"] if or_null else "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return schema | {"additionalProperties": False}


def read_json(content: bytes) -> Any:
    """Parses JSON; raises a MalformedRequestError also for NaN, which is not JSON."""
    options: dict[str, Any] = {} if len(content) <= SHORT else {"parse_float": _float, "parse_int": _int}
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant, **options)
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"The body is not JSON ({error}). Send an object.") from error


async def read_checked(content: bytes, schema: Schema) -> Any:
    """A body of JSON that fits a schema; a long one is read and checked in a thread."""
    if len(content) <= SHORT:
        return check(read_json(content), schema)
    return await asyncio.to_thread(lambda: check(read_json(content), schema))


# Functions in Python: before each number, other threads can run. The json package's own ones prevent it.


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def check(value: Any, schema: Schema, name: str = "") -> Any:
    """Returns a value, in which whole numbers are integers (3 for 3.0).

    >>> check({"top_k": 3.0}, {"type": "object", "properties": {"top_k": {"type": "integer"}}})
    {'top_k': 3}

    Raises:
        InputError: that names the part of `value` that does not fit.
    """
    if "anyOf" in schema:
        return _check_any(value, schema["anyOf"], name)
    if isinstance(value, float) and value.is_integer() and "integer" in _kinds_of(schema):
        value = int(value)
    kinds = _kinds_of(schema)
    if kinds and not _has_kind(value, kinds):
        raise _wrong(name, value, " or ".join(_KINDS[kind][1] for kind in kinds))
    if "enum" in schema and not any(type(value) is type(x) and value == x for x in schema["enum"]):
        raise _wrong(name, value, f"one of {', '.join(map(json.dumps, schema['enum']))}")
    for kind, check_kind in _CHECKS.items():
        if _has_kind(value, (kind,)):
            check_kind(value, schema, name)
    return value


def _check_any(value: Any, options: Sequence[Schema], name: str) -> Any:
    errors = []
    for option in options:
        try:
            return check(value, option, name)
        except InputError as error:
            errors.append((option, error))
    for fits in (_begins_as, lambda value, option: _has_kind(value, _kinds_of(option))):
        for option, error in errors:  # the option of the same type has the more precise message
            if fits(value, option):
                raise error
    expected = dict.fromkeys(_KINDS[kind][1] for option in options for kind in _kinds_of(option))
    raise _wrong(name, value, " or ".join(expected))


def _begins_as(value: Any, option: Schema) -> bool:
    """Whether a value is a list whose first item has the type of a schema's items."""
    items = option.get("items")
    return (
        isinstance(value, list)
        and bool(value)
        and items is not None
        and _has_kind(value[0], _kinds_of(items))
    )


def _kinds_of(schema: Schema) -> tuple[str, ...]:
    kinds = schema.get("type", ())
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def _has_kind(value: Any, kinds: Sequence[str]) -> bool:
    return any(_KINDS[kind][0](value) for kind in kinds)


def _check_string(value: str, schema: Schema, name: str) -> None:
    longest, shortest = schema.get("maxLength"), schema.get("minLength", 0)
    if longest is not None and len(value) > longest:
        raise InputError(f"{_named(name)} has {len(value)} characters, expected at most {longest}.")
    if len(value) < shortest:
        raise InputError(f"{_named(name)} has {len(value)} characters, expected at least {shortest}.")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise _wrong(name, value, schema.get("description", f"a text that matches {schema['pattern']}"))
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{_named(name)} has {value[error.start]!r} at character {error.start}, a lone surrogate. "
                "Send valid Unicode."
            ) from None


def _check_object(value: dict[str, Any], schema: Schema, name: str) -> None:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for key, item in value.items():
        place = f"{name}.{key}" if name else key
        if key in properties:
            value[key] = check(item, properties[key], place)
        elif rest is False:
            raise InputError(
                f"{_named(name)} has no field {key!r:.60}. {nearest(key[:LONGEST_KEY], properties)}"
            )
        elif isinstance(rest, Mapping):
            value[key] = check(item, rest, place)
    for key in schema.get("required", ()):
        if key not in value:
            raise InputError(f"{_named(name)} lacks {key!r}, which is required.")


def _check_list(value: list[Any], schema: Schema, name: str) -> None:
    fewest, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < fewest:
        raise InputError(f"{_named(name)} has {len(value)} items, expected at least {fewest}.")
    if most is not None and len(value) > most:
        raise InputError(
            f"{_named(name)} has {len(value)} items, expected at most {most}. Send several requests."
        )
    if "items" in schema:
        for index, item in enumerate(value):
            value[index] = check(item, schema["items"], f"{name}[{index}]")


def _check_number(value: float, schema: Schema, name: str) -> None:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if not -math.inf < value < math.inf:  # 1e999
        raise InputError(f"{_named(name)} is out of range, expected a number of 64 bits.")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = (
            f"{low} or more" if high is None else f"{low} to {high}" if low is not None else f"at most {high}"
        )
        raise InputError(f"{_named(name)} is {value!r:.40}, expected {bounds}.")
    if above is not None and value <= above:
        raise InputError(f"{_named(name)} is {value!r:.40}, expected a number above {above}.")


def _named(name: str) -> str:
    return name or "The body"


def _wrong(name: str, value: Any, expected: str) -> InputError:
    return InputError(f"{_named(name)} is {value!r:.80}, expected {expected}.")


_CHECKS: dict[str, Callable[[Any, Schema, str], None]] = {
    "string": _check_string,
    "object": _check_object,
    "array": _check_list,
    "number": _check_number,
}
