"""An interactive HTML figure: the patches of a photograph to which the class token, or a patch, attends."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_tx.errors import InputError
from keras_tx.inspect.figures.canvas import SEQUENTIAL, paint
from keras_tx.inspect.figures.images import COLOR, photograph_relief, read_photograph
from keras_tx.inspect.html_elements import html_json
from keras_tx.inspect.patch_grid import PatchGrid

LONGEST = 900  # pixels of a photograph's longer side in a page
MAX_WEIGHTS = 6_000_000  # a byte of the page each; above it, only the class token can be chosen
MIDDLE = 96  # added to the relief, so that it fits into 8 bits
ASSETS = Path(__file__).parent


def overlay_fragment(image: Any, attentions: Sequence[np.ndarray], grid: PatchGrid) -> str:
    """Returns a figure as an HTML element, with its style and script, for a page that has other content.

    A layer, a head and a patch are chosen by clicks. A table shows all layers and heads.

    Args:
        image: the photograph, as for `figures.overlay_map`.
        attentions: an array (heads, tokens, tokens) per layer.
        grid: the rows and columns of patches, and the number of tokens before them.

    Raises:
        InputError: if the shapes do not agree.
        ImageError: if the image cannot be read.
    """
    photograph = embedded_photograph(image)
    relief = np.clip(np.rint(photograph_relief(photograph) + MIDDLE), 0, 255).astype("uint8")
    maps, first = _maps(attentions, grid)
    largest = maps.max(axis=-1)
    shares = maps / np.maximum(largest, np.finfo("float32").tiny)[..., None]
    data = {
        "rows": grid.rows,
        "columns": grid.columns,
        "covered": grid.covered,
        "layers": maps.shape[0],
        "heads": maps.shape[1],
        "queries": maps.shape[2],
        "first": first,
        "prefix": grid.prefix,
        "color": COLOR,
        "middle": MIDDLE,
        "palette": np.rint(paint(np.arange(256), (0, 255), SEQUENTIAL)).astype(int).tolist(),
        "bytes": _packed(np.rint(255 * shares).astype("uint8")),
        "largest": _packed(largest.astype("<f4")),
        "sums": _packed(maps.sum(axis=-1).astype("<f4")),
        "photograph": jpeg(photograph),
        "relief": jpeg(relief),
    }
    style, script = (ASSETS.joinpath(f"html_overlay.{kind}").read_text("utf-8") for kind in ("css", "js"))
    height, width = photograph.shape[:2]
    return "\n".join(
        (
            '<section class="ktx-overlay" aria-label="Attention over the image">',
            f"<style>\n{style}</style>",
            f'<noscript><img src="{data["photograph"]}" width="{width}" height="{height}" alt="the image">'
            "<p>This figure needs JavaScript.</p></noscript>",
            f'<script type="application/json">{html_json(data)}</script>',
            f"<script>\n{script}</script>",
            "</section>",
        )
    )


def embedded_photograph(image: Any) -> np.ndarray:
    """Returns an image as uint8 (height, width, 3), reduced to the size that a page shows."""
    photograph = Image.fromarray(np.ascontiguousarray(read_photograph(image)))
    photograph.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    smallest = LONGEST // 3 / max(photograph.size)
    if smallest > 1:  # an image of few pixels
        size = (round(photograph.width * smallest), round(photograph.height * smallest))
        photograph = photograph.resize(size, Image.Resampling.NEAREST)
    return np.asarray(photograph)


def jpeg(image: np.ndarray) -> str:
    """Returns an image as the address of a JPEG file inside a page."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _maps(attentions: Sequence[np.ndarray], grid: PatchGrid) -> tuple[np.ndarray, str]:
    """The maps (layers, heads, queries, patches) and the name of the first query; the others are patches."""
    patches = grid.rows * grid.columns
    tokens = grid.prefix + patches
    if not attentions:
        raise InputError("attentions is empty. Pass an array (heads, tokens, tokens) per layer.")
    for index, weights in enumerate(attentions):
        if weights.shape != (len(attentions[0]), tokens, tokens):
            raise InputError(
                f"attentions[{index}] has the shape {weights.shape}, expected "
                f"{(len(attentions[0]), tokens, tokens)} for {grid}."
            )
    first = "the class token" if grid.prefix else "all patches, on average,"
    rows = [weights[:, :1] if grid.prefix else weights.mean(axis=1, keepdims=True) for weights in attentions]
    if len(attentions) * attentions[0].size <= MAX_WEIGHTS:
        rows = [
            np.concatenate([row, weights[:, grid.prefix :]], axis=1)
            for row, weights in zip(rows, attentions, strict=True)
        ]
    return np.stack([row[:, :, grid.prefix :] for row in rows]).astype("float32"), first


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
