"""Writes measured tables into a page, between its markers."""

from __future__ import annotations

import os
from pathlib import Path

from keras_tx.errors import ConfigError

MARKERS = "<!-- measured:begin -->", "<!-- measured:end -->"


def write_table(page: Path, text: str, markers: tuple[str, str] = MARKERS) -> None:
    """Replaces the text between the markers; the rest of the page is unchanged."""
    begin, end = markers
    old = page.read_text("utf-8")
    if begin not in old or end not in old:
        raise ConfigError(f"{page} has no markers. Add {begin} and {end}.")
    write_file(page, f"{old[: old.index(begin) + len(begin)]}\n{text}\n{old[old.index(end) :]}")


def write_file(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
