"""Empty matplotlib figures, and figures as files. No other module of keras_tx.inspect imports matplotlib."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_tx.atomic_write import check_file_target, write_file
from keras_tx.errors import ConfigError, install_remedy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FigurePath = str | os.PathLike[str] | None  # of a file to write

SEQUENTIAL = "viridis"  # its lightness rises steadily, so it stays readable in gray and for the color-blind
DIVERGING = "RdBu_r"
SUFFIXES = (".html", ".png", ".svg")

HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ margin: 0; background: white; }} img {{ display: block; max-width: 100%; }}</style>
<img src="data:image/svg+xml;base64,{content}" alt="{title}">
</html>
"""


def new_figure(width: float, height: float, *, dpi: float = 150) -> Figure:
    """Returns an empty figure of this size in inches, whose axes do not overlap.

    It is not registered with pyplot, so it needs no display and is freed like other objects.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed; the message has the command that installs it.
    """
    with _needs_matplotlib():
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def require_matplotlib() -> None:
    """Raises a ModuleNotFoundError with the command that installs matplotlib, if it is missing."""
    with _needs_matplotlib():
        import matplotlib  # noqa: F401


def paint(values: np.ndarray, limits: tuple[float, float], colors: str) -> np.ndarray:
    """Returns the colors of values, float (..., 3) in 0..255.

    Args:
        values: array of any shape.
        limits: values of the first and the last color.
        colors: name of a color map of matplotlib.
    """
    with _needs_matplotlib():
        from matplotlib import colormaps
    low, high = limits
    shares = np.clip((values - low) / ((high - low) or 1.0), 0, 1)
    return colormaps[colors](shares)[..., :3] * 255


@contextlib.contextmanager
def _needs_matplotlib() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"Figures need {error.name}, which is not installed. {install_remedy(error)}"
        raise ModuleNotFoundError(message, name=error.name) from error


def check_figure_path(path: FigurePath) -> None:
    """Raises a ConfigError if `write_figure` cannot write this path; None is accepted."""
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"path is {os.fspath(path)!r}, expected a name that ends in {', '.join(SUFFIXES)}.")
    check_file_target(Path(path), "path", ConfigError)


def write_figure(figure: Figure, path: FigurePath) -> Figure:
    """Writes a figure as PNG, SVG or HTML by the suffix of `path`, atomically; None writes nothing.

    Returns:
        The figure.

    Raises:
        ConfigError: if the suffix is another one, or the file cannot be written.
    """
    if path is not None:
        check_figure_path(path)
        write_file(Path(path), _content(figure, Path(path)), ConfigError)
    return figure


def figure_bytes(figure: Figure, form: str) -> bytes:
    """Returns the content of a PNG or SVG file; `form` is "png" or "svg". Equal figures have equal bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "keras-tx"}):  # the same ids in every run
        figure.savefig(buffer, format=form, dpi=figure.dpi, metadata=metadata)
    return buffer.getvalue()


def _content(figure: Figure, path: Path) -> bytes:
    suffix = path.suffix.lower()
    if suffix != ".html":
        return figure_bytes(figure, suffix[1:])
    image = base64.b64encode(figure_bytes(figure, "svg")).decode("ascii")
    return HTML.format(title=html.escape(path.stem), content=image).encode("utf-8")
