"""The browser that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chromium import Page, browser


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened
