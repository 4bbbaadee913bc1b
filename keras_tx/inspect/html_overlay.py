"""An interactive HTML figure: the patches of a photograph to which the class token, or a patch, attends."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from keras_tx.inspect.attention import PatchGrid, patch_maps, pooled_map
from keras_tx.inspect.figures.canvas import SEQUENTIAL, paint
from keras_tx.inspect.figures.images import COLOR, photograph_details, read_photograph
from keras_tx.inspect.html_elements import interactive_figure, packed

LONGEST = 900  # pixels of a photograph's longer side in a page
MAX_WEIGHTS = 6_000_000  # a byte of the page each; of more, a page has only those of the class token
MIDDLE = 96  # added to the details, so that they fit into 8 bits


def query_maps(weights: np.ndarray, grid: PatchGrid, *, complete: bool = True) -> np.ndarray:
    """Returns the maps of a layer that a figure shows, (heads, queries, patches).

    The first query is the class token, or without one the mean of the patches.

    Args:
        weights: attention weights of a layer, (heads, tokens, tokens).
        grid: the rows and columns of patches, and the number of tokens before them.
        complete: whether all patches are queries too.

    Raises:
        ConfigError: if the shape is not that of the grid.
    """
    maps = patch_maps(weights, grid)
    queries = pooled_map(weights, grid)[:, None]
    if complete:
        queries = np.concatenate([queries, maps[:, grid.prefix :]], axis=1)
    return queries.reshape(*queries.shape[:2], -1).astype("float32")


def overlay_fragment(image: Any, layers: Sequence[np.ndarray], grid: PatchGrid) -> str:
    """Returns a figure as an HTML element, with its style and script, for a page that has other content.

    A layer, a head and a patch are chosen by clicks. A table shows all layers and heads.

    Args:
        image: the photograph, as for `figures.overlay_map`.
        layers: the result of `query_maps` for each layer.
        grid: the rows and columns of patches, and the number of tokens before them.

    Raises:
        ImageError: if the image cannot be read.
    """
    photograph = embedded_photograph(image)
    details = np.clip(np.rint(photograph_details(photograph) + MIDDLE), 0, 255).astype("uint8")
    maps = np.stack(layers)
    largest = maps.max(axis=-1)
    shares = maps / np.maximum(largest, np.finfo("float32").tiny)[..., None]
    data = {
        "rows": grid.rows,
        "columns": grid.columns,
        "covered": grid.covered,
        "layers": maps.shape[0],
        "heads": maps.shape[1],
        "queries": maps.shape[2],
        "has_class_token": grid.has_class_token,
        "others": _others(grid),
        "color": COLOR,
        "middle": MIDDLE,
        "palette": np.rint(paint(np.arange(256), (0, 255), SEQUENTIAL)).astype(int).tolist(),
        "bytes": packed(np.rint(255 * shares).astype("uint8")),
        "largest": packed(largest.astype("<f4")),
        "sums": packed(maps.sum(axis=-1).astype("<f4")),
        "photograph": jpeg(photograph),
        "details": jpeg(details),
    }
    height, width = photograph.shape[:2]
    fallback = f'<img src="{data["photograph"]}" width="{width}" height="{height}" alt="the image">'
    return interactive_figure("html_overlay", "ktx-overlay", "Attention over the image", data, fallback)


def _others(grid: PatchGrid) -> str:
    """The tokens before the patches."""
    if grid.prefix == 1:
        return "class token" if grid.has_class_token else "register"
    return f"{grid.prefix} {'tokens before them' if grid.has_class_token else 'registers'}"


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
