"""The typed overrides of the factories are the fields of the config dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from keras_tx.models import overrides
from keras_tx.models.families import Family, families


def written(kind: type) -> dict[str, str]:
    """Names and annotations, as they are written in the source."""
    body = inspect.getsource(kind).split('"""')[2].lstrip().split("\n\n")[0]
    return dict(re.findall(r"^ *(\w+): (.+?)(?: = .+)?$", body, re.MULTILINE))


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_overrides_are_the_fields_of_the_config(family: Family):
    typed = getattr(overrides, f"{family.model_class.__name__}Overrides")
    expected = written(family.config_class)
    assert list(expected) == [field.name for field in dataclasses.fields(family.config_class)]
    assert written(typed) == expected, "\n".join(f"    {name}: {x}" for name, x in expected.items())


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_factories_have_one_signature(family: Family):
    names = list(inspect.signature(family.factory).parameters)
    assert names == "variant num_classes head weights processing name dtype overrides".split()
    parameters = inspect.signature(family.factory).parameters.values()
    defaults = {x.name: x.default for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY}
    assert defaults == {**dict.fromkeys(defaults), "head": "auto"}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_fields_are_documented(family: Family):
    documented = re.findall(r"^        (\w+): ", str(family.config_class.__doc__), re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(family.config_class)]
