"""What the config dataclasses of the families check."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from keras_tx.errors import ConfigError, nearest, whole_number


def make_config(config_class: type, fields: dict[str, Any]) -> Any:
    """A config from keywords, with the nearest names where one is unknown."""
    known = [field.name for field in dataclasses.fields(config_class)]
    for name in fields:
        if name not in known:
            raise ConfigError(f"{config_class.__name__} has no field {name!r}. {nearest(name, known)}")
    return config_class(**fields)


def check_sizes(config: Any, *names: str, least: int = 1) -> None:
    """Fields that count something become integers, or a ConfigError that names them."""
    for name in names:
        value = getattr(config, name)
        if least == 1:
            number = whole_number(name, value)
        else:
            try:
                number = -1 if isinstance(value, bool) else operator.index(value)
            except TypeError:
                number = -1
            if number < least:
                raise ConfigError(f"{name} is {value!r}, expected a whole number, {least} or more.")
        object.__setattr__(config, name, number)


def check_rates(config: Any, *names: str) -> None:
    for name in names:
        rate = getattr(config, name)
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ConfigError(f"{name}={rate!r}: expected a rate from 0 up to, not including, 1.")
