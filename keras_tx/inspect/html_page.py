"""An interactive HTML page of attention: all layers and heads, and what each token attends to.

The page is a single file with its own JavaScript and makes no network requests.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.atomic_write import check_file_target, write_file
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.html_elements import html_document, interactive_figure, packed

if TYPE_CHECKING:
    from keras_tx.inspect.inspector import Inspector, Layers

MAX_WEIGHTS = 40_000_000  # 12 layers and heads of 512 tokens; a byte of the page each, before compression
STYLE = """\
html { color-scheme: light dark; }
body { margin: 0; background: white; }
@media (prefers-color-scheme: dark) { body { background: #14171b; } }
"""
NAMES = {  # of a part, its queries and its keys
    None: ("Attention", "from", "to"),
    "encoder": ("Encoder", "source", "source"),
    "decoder": ("Decoder", "target", "target"),
    "cross": ("Cross-attention", "target", "source"),
}


@dataclasses.dataclass(frozen=True)
class AttentionPart:
    """The attention of one text in a page: that of a BERT or GPT, or a part of an encoder-decoder.

    Args:
        attentions: an array (heads, queries, keys) per layer.
        queries: the tokens that attend.
        keys: the tokens that are attended to; by default the queries.
        layers: the number of each layer, as the page shows it; by default 0, 1 ...
        name: of the part: "Encoder", "Decoder", "Cross-attention".
        query_name: heading of the queries.
        key_name: heading of the keys.

    Raises:
        InputError: if the shapes do not agree, or a weight is not in 0..1.
    """

    attentions: Sequence[np.ndarray]
    queries: Sequence[str]
    keys: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    name: str = "Attention"
    query_name: str = "from"
    key_name: str = "to"

    def __post_init__(self) -> None:
        if not self.attentions:
            raise InputError("attentions is empty. Pass an array (heads, queries, keys) per layer.")
        if self.layers is not None and len(self.layers) != len(self.attentions):
            raise InputError(f"layers has {len(self.layers)} numbers for {len(self.attentions)} arrays.")
        shape = (len(self.attentions[0]), len(self.queries), len(self.key_tokens))
        for index, weights in enumerate(self.attentions):
            if weights.shape != shape:
                raise InputError(
                    f"attentions[{index}] has the shape {weights.shape}, expected (heads, queries, keys) = "
                    f"{shape}."
                )
            if not (weights.min() >= 0 and weights.max() <= 1 + 1e-3):  # also for NaN
                raise InputError(
                    f"attentions[{index}] has values from {weights.min():g} to {weights.max():g}, expected "
                    "attention weights in 0..1."
                )

    @property
    def key_tokens(self) -> Sequence[str]:
        """The tokens that are attended to."""
        return self.queries if self.keys is None else self.keys

    @property
    def num_weights(self) -> int:
        """The number of weights of all layers."""
        return sum(weights.size for weights in self.attentions)

    def to_json(self) -> dict[str, Any]:
        """Returns the data of the page's script."""
        # A byte holds the root of a weight: the error is below 0.004, and small weights stay visible.
        roots = [np.sqrt(np.clip(weights, 0, 1)) for weights in self.attentions]
        data = np.stack([np.rint(255 * root).astype("uint8") for root in roots])
        return {
            "name": self.name,
            "query_name": self.query_name,
            "key_name": self.key_name,
            "queries": list(self.queries),
            "keys": list(self.key_tokens),
            "same": self.keys is None,
            "layers": list(range(len(self.attentions)) if self.layers is None else self.layers),
            "heads": len(self.attentions[0]),
            "data": packed(data),
        }


def attention_parts(
    inspector: Inspector, inputs: Any, *, targets: Any = None, layers: Layers = None
) -> list[AttentionPart]:
    """Returns the attention of one text: one part, or those of an encoder-decoder. Padding is omitted.

    Args:
        inspector: of a text model.
        inputs: a text, or a dict of tensors with one row.
        targets: of an encoder-decoder: the target.
        layers: indices or names of layers; by default all.

    Raises:
        ConfigError: if a layer does not exist.
        InputError: if there are several texts, the model is not for texts, or the attention is too large.
    """
    rows = {}  # tokens and their mask, of each part
    for part in inspector.parts or (None,):
        tokens, mask = inspector.tokens_and_mask(inputs, targets=targets, part=part)
        if len(tokens) != 1:
            raise InputError(f"A page shows one text, got {len(tokens)}. Write a page for each.")
        rows[part] = [token for token, used in zip(tokens[0], mask[0], strict=True) if used], mask[0]
    results = []
    for part, (queries, query_mask) in rows.items():
        keys, key_mask = rows["encoder"] if part == "cross" else (queries, query_mask)
        indices = inspector.layer_indices(layers, part)
        attentions = []
        for weights in inspector.attention_layers(inputs, targets=targets, layers=indices, part=part):
            attentions.append(weights[0][:, query_mask][:, :, key_mask])
            _check_size(len(indices) * attentions[0].size)
        name, query_name, key_name = NAMES[part]
        results.append(
            AttentionPart(
                attentions, queries, keys if part == "cross" else None, indices, name, query_name, key_name
            )
        )
    return results


def _check_size(count: int) -> None:
    if count > MAX_WEIGHTS:
        raise InputError(
            f"The attention has {count:,} weights, expected at most {MAX_WEIGHTS:,} in a page. Pass a "
            "shorter text, or fewer layers."
        )


def attention_fragment(parts: AttentionPart | Sequence[AttentionPart], *, title: str = "") -> str:
    """Returns the figure as an HTML element, with its style and script, for a page that has other content.

    Args:
        parts: the attention of a text, or the parts of an encoder-decoder.
        title: heading of the figure.

    Raises:
        InputError: if the parts together have more than 40 million weights.
    """
    parts = [parts] if isinstance(parts, AttentionPart) else list(parts)
    _check_size(sum(part.num_weights for part in parts))
    data = {"title": title, "parts": [part.to_json() for part in parts]}
    return interactive_figure("html_page", "ktx-attention", title or "Attention", data)


def attention_page(parts: AttentionPart | Sequence[AttentionPart], *, title: str = "Attention") -> str:
    """Returns a whole page with one figure; see `attention_fragment`."""
    return html_document(title, STYLE, attention_fragment(parts, title=title))


def write_attention_page(
    parts: AttentionPart | Sequence[AttentionPart], path: str | os.PathLike[str], *, title: str = "Attention"
) -> Path:
    """Writes a page with one figure, atomically.

    Args:
        parts: the attention of a text, or the parts of an encoder-decoder.
        path: of the file; it ends in .html.
        title: of the page.

    Returns:
        The path.

    Raises:
        ConfigError: if the path is not that of an HTML file that can be written.
        InputError: if the parts together have more than 40 million weights.

    Example:

    >>> import numpy as np
    >>> causal = np.tril(np.ones((2, 3, 3))) / np.array([1, 2, 3])[:, None]  # two heads, three tokens
    >>> part = AttentionPart([causal], ["Once", " upon", " a"])
    >>> write_attention_page(part, "attention.html").name  # doctest: +SKIP
    'attention.html'
    """
    path = Path(path)
    check_page_path(path)
    write_file(path, attention_page(parts, title=title).encode("utf-8"), ConfigError)
    return path


def check_page_path(path: str | os.PathLike[str]) -> None:
    """Raises a ConfigError if a page cannot be written to `path`."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"path is {os.fspath(path)!r}, expected a name that ends in .html.")
    check_file_target(Path(path), "path", ConfigError)
