"""Pages and their elements: interactive figures, sections, tables of answers, a heat map and a chart."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.inspect.figures.canvas import SEQUENTIAL, paint

ASSETS = Path(__file__).parent
# No request to a network; images are inside the page.
POLICY = "default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def html_document(title: str, style: str, body: str) -> str:
    """Returns a page without network requests.

    Args:
        title: text of the title.
        style: CSS, whose last line has an end.
        body: HTML.
    """
    return DOCUMENT.format(policy=POLICY, title=html.escape(title), style=style, body=body)


def interactive_figure(name: str, css_class: str, label: str, data: Any, fallback: str = "") -> str:
    """Returns an element with the style, the data and the script of a figure.

    Args:
        name: of the CSS and JavaScript files.
        css_class: of the element.
        label: text that describes the figure to screen readers.
        data: for the script, as JSON.
        fallback: HTML that is shown without JavaScript.
    """
    style, script = (ASSETS.joinpath(f"{name}.{suffix}").read_text("utf-8") for suffix in ("css", "js"))
    text = json.dumps(data)
    for character in "<>&":  # no text can end the element or start another
        text = text.replace(character, f"\\u{ord(character):04x}")
    return "\n".join(
        (
            f'<section class="{css_class}" aria-label="{html.escape(label)}">',
            f"<style>\n{style}</style>",
            f"<noscript>{fallback}This figure needs JavaScript.</noscript>",
            f'<script type="application/json">{text}</script>',
            f"<script>\n{script}</script>",
            "</section>",
        )
    )


def packed(array: np.ndarray) -> str:
    """Returns the bytes of an array for `interactive_figure`, compressed, in base64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page: a heading, a paragraph about what is shown, and HTML."""

    heading: str
    about: str
    content: str

    def __str__(self) -> str:
        about = f'<p class="report-faint">{html.escape(self.about)}</p>' if self.about else ""
        return f"<section>\n<h2>{html.escape(self.heading)}</h2>\n{about}\n{self.content}\n</section>"


def text_html(name: str, text: str) -> str:
    return f'<p class="report-text"><b>{html.escape(name.replace("_", " "))}</b>{html.escape(text)}</p>'


def tokens_html(tokens: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(token)}</li>" for token in tokens)
    return f'<ol class="report-tokens">{items}</ol>'


def answers_html(answers: Mapping[str, Any]) -> str:
    """Tables of scores, texts, and other values by name."""
    parts = []
    for name, value in answers.items():
        if name == "embedding":
            parts.append(text_html(name, _embedding_text(np.asarray(value))))
            continue
        tables = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        for table in tables:
            if isinstance(table, list) and table and isinstance(table[0], dict):
                parts.append(_table(table))
            elif isinstance(table, str):
                parts.append(text_html(name, table))
            elif name != "shape":
                parts.append(text_html(name, "none" if table == [] else str(table)))
    return "\n".join(parts)


def _embedding_text(embedding: np.ndarray) -> str:
    if embedding.ndim == 1:
        return f"a vector of {len(embedding)} numbers with the norm {np.linalg.norm(embedding):.4g}"
    return f"{len(embedding)} tokens, each a vector of {embedding.shape[-1]} numbers"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of answers; probabilities also have a bar."""
    names = [name for name in rows[0] if name != "log_probability"]
    shares = [name for name in names if name in ("score", "probability")]
    heads = "".join(
        f'<th scope="col"{_number_class(rows[0][name])}>{html.escape(name.replace("_", " "))}</th>'
        for name in names
    )
    lines = []
    for row in rows:
        cells = "".join(f"<td{_number_class(row[name])}>{_cell(row[name])}</td>" for name in names)
        bars = "".join(
            f'<td class="bar"><i style="width: {100 * max(0.0, min(1.0, float(row[name]))):.1f}%"></i></td>'
            for name in shares
        )
        lines.append(f"<tr>{cells}{bars}</tr>")
    bar_heads = "<th></th>" * len(shares)
    head = f"<tr>{heads}{bar_heads}</tr>"
    return f'<div class="report-scroll"><table class="report-answers">{head}{"".join(lines)}</table></div>'


def _number_class(value: Any) -> str:
    return ' class="number"' if isinstance(value, int | float) else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 5e-5 else f"{value:.1e}"
    return html.escape("" if value is None else str(value)).replace("\n", "↵").replace(" ", "&nbsp;")


def heat_map(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """A table of weights whose cells have the colors of the values, and the values in percent."""
    colors = np.rint(paint(weights, (0.0, float(weights.max())), SEQUENTIAL)).astype(int)
    heads = "".join(f'<th scope="col"><span>{html.escape(token)}</span></th>' for token in columns)
    lines = []
    for token, row, painted in zip(rows, weights, colors, strict=True):
        cells = "".join(
            f'<td style="background: rgb({r},{g},{b}); color: {"black" if g > 120 else "white"}">'
            f"{100 * value:.0f}</td>"
            for value, (r, g, b) in zip(row, painted, strict=True)
        )
        lines.append(f'<tr><th scope="row">{html.escape(token)}</th>{cells}</tr>')
    return (
        f'<div class="report-scroll"><table class="report-heat"><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _ticks(top: float) -> list[float]:
    """At most six round numbers from 0 to `top`."""
    scale = 10.0 ** math.floor(math.log10(top))
    step = next(size * scale for size in (0.1, 0.2, 0.5, 1.0, 2.0) if top / (size * scale) <= 5.5)
    return [float(f"{i * step:.10g}") for i in range(int(top / step) + 1)]


def distance_chart(distances: np.ndarray, top: float) -> str:
    """An SVG with a point per head and a line per layer for the mean.

    Args:
        distances: attention distances in pixels, (layers, heads).
        top: the largest value of the axis.
    """
    left, right, bottom, roof = 62, 748, 262, 14

    def y(value: float) -> str:
        return f"{bottom - (bottom - roof) * value / top:.1f}"

    lines = []
    for tick in _ticks(top):
        lines.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>')
        lines.append(f'<text x="{left - 8}" y="{y(tick)}" dy="4" text-anchor="end">{tick:g}</text>')
    step = (right - left) / len(distances)
    for layer, heads in enumerate(distances):
        x = left + (layer + 0.5) * step
        lines.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{layer}</text>')
        known = [(head, value) for head, value in enumerate(heads) if not math.isnan(value)]
        for head, value in known:
            at = x + (head - (len(heads) - 1) / 2) * min(9.0, 0.7 * step / len(heads))
            name = f"layer {layer}, head {head}: {value:.1f} pixels"
            lines.append(f'<circle cx="{at:.1f}" cy="{y(value)}" r="4.5"><title>{name}</title></circle>')
        if known:
            mean, reach = y(sum(value for _, value in known) / len(known)), min(26.0, 0.4 * step)
            ends = f'x1="{x - reach:.1f}" x2="{x + reach:.1f}" y1="{mean}" y2="{mean}"'
            lines.append(f'<line class="mean" {ends}/>')
    lines.append(
        f'<text x="{(left + right) / 2}" y="302" text-anchor="middle">'
        "layer (points: heads; line: their mean)</text>"
        '<text transform="translate(14 138) rotate(-90)" text-anchor="middle">pixels of the input</text>'
    )
    return (
        '<div class="report-scroll"><svg class="report-chart" viewBox="0 0 760 306" role="img" '
        f'aria-label="Attention distance of each head">{"".join(lines)}</svg></div>'
    )
