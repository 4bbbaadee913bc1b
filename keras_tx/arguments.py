"""Checks numbers and booleans against their annotations: fields of configs and arguments of constructors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import operator
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np

from keras_tx.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Range:
    """A constraint on a number for `Annotated` types: its description and its predicate."""

    text: str
    contains: Callable[[Any], bool]


Size = Annotated[int, Range("a whole number, 1 or more", lambda n: n >= 1)]
Classes = Annotated[int, Range("2 or more classes; a binary classifier has 2", lambda n: n >= 2)]
Count = Annotated[int, Range("a whole number, 0 or more", lambda n: n >= 0)]
Rate = Annotated[float, Range("a rate from 0 up to, not including, 1", lambda x: 0 <= x < 1)]
Epsilon = Annotated[float, Range("a number above 0 and below 1", lambda x: 0 < x < 1)]
Positive = Annotated[float, Range("a finite number above 0", lambda x: x > 0)]

Shape = tuple[Any, ...]  # of a tensor: an integer per axis, None for dynamic axes

Init = TypeVar("Init", bound=Callable[..., None])
TEXTS = {bool: "True or False", int: "a whole number", float: "a finite number", types.NoneType: "None"}


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass against their annotations; call it in `__post_init__`.

    Booleans, numbers and tuples of them are checked and converted to plain Python values. Fields of other
    types are not checked.

    Raises:
        ConfigError: the value of a field is not of its type, or out of range.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     width: Size
    ...     def __post_init__(self): check_fields(self)
    >>> Config(width=0)
    Traceback (most recent call last):
    keras_tx.errors.ConfigError: width is 0, expected a whole number, 1 or more.
    """
    cls = type(instance)
    for field in dataclasses.fields(instance):
        value = _checked(field.name, getattr(instance, field.name), _hints(cls)[field.name])
        object.__setattr__(instance, field.name, value)


def checked(init: Init) -> Init:
    """Decorates the `__init__` of a layer so that its arguments are checked against their annotations."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # Python's message contains the class
            raise
        for name, value in bound.arguments.items():
            if name in _hints(init):
                bound.arguments[name] = _checked(name, value, _hints(init)[name], f"{type(self).__name__}: ")
        init(*bound.args, **bound.kwargs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]  # Keras reads it from the wrapper
    return typing.cast(Init, wrapper)


@functools.cache
def _hints(source: Any) -> dict[str, Any]:
    return typing.get_type_hints(source, include_extras=True)


def _checked(name: str, value: Any, hint: Any, owner: str = "") -> Any:
    options = _options(hint)
    if options is None:
        return value
    for option in options:
        try:
            return _converted(value, option)
        except (TypeError, ValueError, OverflowError):
            continue
    expected = ", or ".join(map(_text, options))
    raise ConfigError(f"{owner}{name} is {reprlib.repr(value)}, expected {expected}.")


def _options(hint: Any) -> list[Any] | None:
    """Returns the types of a union; None if one is not a number, a boolean, None or a tuple of these."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    inner = [typing.get_args(part)[0] if _kind(part) is tuple else part for part in parts]
    return list(parts) if all(_kind(part) in TEXTS for part in inner) else None


def _kind(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    return typing.get_args(hint)[0] if origin is Annotated else origin or hint


def _converted(value: Any, hint: Any) -> Any:
    """Converts a value to a type; raises a TypeError, ValueError or OverflowError if that fails."""
    kind = _kind(hint)
    if kind is types.NoneType:
        if value is not None:
            raise TypeError
        return None
    if kind is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, list | tuple) or not value:
            raise TypeError
        inner = (inner[0],) * len(value) if inner[-1] is ... else inner
        return tuple(_converted(x, of) for x, of in zip(value, inner, strict=True))
    is_bool = isinstance(value, bool | np.bool_)
    if is_bool is not (kind is bool):
        raise TypeError
    if kind is float and not isinstance(value, numbers.Real):
        raise TypeError
    value = {bool: bool, int: operator.index, float: float}[kind](value)
    ranges = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
    if not math.isfinite(value) or not all(part.contains(value) for part in ranges):
        raise ValueError
    return value


def _text(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        return hint.__metadata__[0].text
    if _kind(hint) is tuple:
        inner = typing.get_args(hint)
        size = "one or more" if inner[-1] is ... else len(inner)
        return f"a tuple of {size}, each {_text(inner[0])}"
    return TEXTS[hint]
