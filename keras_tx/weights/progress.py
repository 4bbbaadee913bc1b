"""A progress bar for what takes long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

FROM = 2**30  # bytes; below it nobody waits


def counted(items: Any, what: str, nbytes: int) -> Iterator[Any]:
    """The items, with a bar on the terminal or in the notebook where there is a lot to read."""
    items = list(items)
    if nbytes < FROM:
        yield from items
        return
    print(f"Reading the {what}, {nbytes / 2**30:.1f} GB")
    bar = keras.utils.Progbar(len(items))
    for done, item in enumerate(items, 1):
        yield item
        bar.update(done)
