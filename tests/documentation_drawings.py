"""Makes pictures of docs/pictures from the import rules, the benchmark page and the stored notebooks:

python -m tests.documentation_drawings
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from tests.notebook import code_cells_of
from tests.packaging.test_import_rules import EXPORTER_RULES, PACKAGES, RULES

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "pictures"

MODULES = {"losses", "optimizers"}  # rooms of one module; the other single modules are not drawn
WIDTH = 760
ENTRY = "commands"  # stands for cli, commands, demo and doctor, which import everything lazily

STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #59636e; }
.strong { font-weight: 600; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.ours { fill: #3949ab; }
.peer { fill: #b6bfca; }
.line { stroke: #8c959f; fill: none; }
.head { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  .box { fill: #262c36; stroke: #6e7681; }
  .ours { fill: #8c9eff; }
  .peer { fill: #565f6b; }
  .line { stroke: #6e7681; }
  .head { fill: #6e7681; }
}
</style>"""
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker>'
)


def rooms() -> dict[str, set[str]]:
    """Which rooms each room imports, without implied arrows and without single modules."""
    folders = {
        path.name for folder in PACKAGES.values() for path in [folder, *folder.iterdir()] if path.is_dir()
    }
    drawn = set(RULES) & (folders | MODULES)
    return reduced({room: (RULES[room][0] & drawn) - {room} for room in drawn} | {ENTRY: drawn})


def exporter_rooms() -> dict[str, set[str]]:
    return reduced({**EXPORTER_RULES, "export": set(EXPORTER_RULES)})


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from others."""
    reached = {room: reachable(room, edges) for room in edges}
    return {
        room: targets - set().union(*(reached[target] for target in targets))
        for room, targets in edges.items()
    }


def reachable(room: str, edges: dict[str, set[str]]) -> set[str]:
    return set().union(*({target} | reachable(target, edges) for target in edges[room]))


def chains(edges: dict[str, set[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of rooms, and each arrow as a chain of names with a waypoint in every row that it crosses."""
    level = dict.fromkeys(edges, 0)
    for _ in edges:  # the longest path to a room without arrows
        level |= {room: 1 + max((level[target] for target in edges[room]), default=-1) for room in edges}
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for room in sorted(edges):
        rows[level[room]].append(room)
    lines = []
    for room in sorted(edges):
        for target in sorted(edges[room]):
            between = range(level[room] - 1, level[target], -1)
            waypoints = [f"{room}>{target}:{number}" for number in between]
            for number, waypoint in zip(between, waypoints, strict=True):
                rows[number].append(waypoint)
            lines.append([room, *waypoints, target])
    return rows[::-1], lines


def places(rows: list[list[str]], lines: list[list[str]]) -> dict[str, tuple[int, int]]:
    """Center of each room and waypoint. Each row is ordered by the mean position of its neighbors."""
    near: dict[str, list[str]] = {}
    for line in lines:
        for first, second in itertools.pairwise(line):
            near.setdefault(first, []).append(second)
            near.setdefault(second, []).append(first)
    place: dict[str, tuple[int, int]] = {}

    def mean(name: str) -> tuple[float, str]:
        return sum(place[other][0] for other in near[name]) / len(near[name]), name

    for sweep in range(12):
        for y, row in enumerate(rows):
            if sweep:
                row.sort(key=mean)
            gap = (WIDTH - sum(2 * half(name) for name in row)) / len(row)
            x = gap / 2
            for name in row:
                place[name] = (round(x + half(name)), 24 + 84 * y)
                x += 2 * half(name) + gap
    return place


def rooms_drawing(edges: dict[str, set[str]], title: str, note: str) -> str:
    rows, lines = chains(edges)
    place = places(rows, lines)
    parts = []
    for line in lines:
        path = f"M{place[line[0]][0]} {place[line[0]][1] + 15}"
        for first, second in itertools.pairwise(line):
            (x1, y1), (x2, y2) = place[first], place[second]
            high, low = y1 + 15, y2 - 15
            path += f"C{x1} {high + 26} {x2} {low - 26} {x2} {low}" + f"V{y2 + 15}" * (second != line[-1])
        parts.append(f'<path class="line" marker-end="url(#arrow)" d="{path}"/>')
    for room in sorted(edges):
        x, y = place[room]
        wide = 2 * half(room)
        parts.append(
            f'<rect class="box" x="{x - wide // 2}" y="{y - 15}" width="{wide}" height="30" rx="5"/>'
        )
        parts.append(label("room", x, y + 5, room))
    bottom = 84 * len(rows) - 6
    parts.append(label("small", WIDTH // 2, bottom, note))
    return svg(WIDTH, bottom + 16, title, parts)


def half(name: str) -> int:
    """Half the width of a room's box, or of the space for a line."""
    return 8 if ">" in name else round(4.2 * len(name)) + 14


PIPELINE = (  # boxes of the pipeline: lines of text, and what stands on the arrow to the next box
    (("images", "texts"), ""),
    (("Keras model", "tx.vit  tx.bert", "tx.gpt, your own"), "fit"),
    (("folder", "ONNX graph", "labels, tokenizer"), "export_onnx"),
    (("onnxruntime", "no Keras,", "no TensorFlow"), "load"),
    (("labels", "vectors", "text"), ""),
)
PIPELINE_NOTE = (
    "export_onnx compares onnxruntime with Keras; the folder is written only if they agree.",
    "Optimum, transformers.js, OpenVINO and onnxruntime-genai open the same folder.",
)


def pipeline_drawing() -> str:
    parts, x, height = [], 1, 76
    for place, (lines, arrow) in enumerate(PIPELINE):
        wide = 128 if len(lines[-1]) > 8 else 74
        if place:
            gap = 96 if arrow else 34
            parts.append(f'<path class="line" marker-end="url(#arrow)" d="M{x + 4} 50H{x + gap - 4}"/>')
            parts.append(label("small", x + gap // 2, 42, arrow))
            x += gap
        parts.append(f'<rect class="box" x="{x}" y="12" width="{wide}" height="{height}" rx="5"/>')
        for row, line in enumerate(lines):
            kind = "strong" if row == 0 or wide < 100 else "small"
            y = 55 - 10 * (len(lines) - 1) + 20 * row
            parts.append(label(kind, x + wide // 2, y, line))
        x += wide
    for row, line in enumerate(PIPELINE_NOTE):
        parts.append(label("small", x // 2, 112 + 18 * row, line))
    return svg(x + 1, 140, "The pipeline: data, Keras model, ONNX folder, onnxruntime, answers", parts)


def latency_drawing() -> str:
    """Bars for the models section of the benchmark page."""
    page = (DOCS / "benchmark.md").read_text(encoding="utf-8")
    charts = (
        ("models: vit-b16", "batch 1", "ViT-B/16, one image"),
        ("models: bert-base", "batch 8, lengths 16-128", "BERT-base, 8 texts of 16 to 128 tokens"),
        ("models: gpt2-124m", "decode at 16", "GPT-2 124M, one token"),
    )
    parts, y = [], 18
    for section, column, title in charts:
        rows = latencies(page, section, column)
        longest = max(rows.values())
        parts.append(label("strong", 0, y, title, "start"))
        for name, milliseconds in sorted(rows.items(), key=lambda row: row[1]):
            y += 23
            length = max(round(430 * milliseconds / longest), 1)
            kind = "ours" if name.startswith("keras-tx") else "peer"
            parts.append(label("small", 160, y, name, "end"))
            parts.append(f'<rect class="{kind}" x="170" y="{y - 12}" width="{length}" height="15"/>')
            parts.append(label("small", 178 + length, y, f"{milliseconds:g} ms", "start"))
        y += 38
    return svg(700, y - 24, "Latency of keras-tx and its peers in milliseconds", parts)


def latencies(page: str, section: str, column: str) -> dict[str, float]:
    table = page.partition(f"### {section}\n\n")[2].partition("\n\n")[0].splitlines()
    place = cells(table[0]).index(column)
    rows = {cells(line)[0]: re.match(r"[\d.]+", cells(line)[place]) for line in table[2:]}
    return {name: float(number[0]) for name, number in rows.items() if number}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def label(kind: str, x: int, y: int, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">'
    return "\n".join([head, STYLE, f"<defs>{ARROW}</defs>", *parts, "</svg>"]) + "\n"


def notebook_figure(notebook: str, part: str) -> bytes:
    """The stored figure of the cell whose source contains `part`."""
    (cell,) = (
        cell for cell in code_cells_of(DOCS.parent / "examples" / notebook) if part in "".join(cell["source"])
    )
    (figure,) = (output for output in cell["outputs"] if output["output_type"] == "display_data")
    return base64.b64decode(figure["data"]["image/png"])


DRAWINGS: dict[str, Callable[[], bytes]] = {
    "pipeline.svg": lambda: pipeline_drawing().encode(),
    "rooms.svg": lambda: rooms_drawing(
        rooms(),
        "The rooms of keras-tx and their imports",
        "Single modules such as errors and contract, which many rooms import, are left out.",
    ).encode(),
    "exporter_rooms.svg": lambda: rooms_drawing(
        exporter_rooms(),
        "The rooms of keras_tx_onnx and their imports",
        "The walk in reading calls lowerings and conversion, which walk again inside a layer.",
    ).encode(),
    "latency.svg": lambda: latency_drawing().encode(),
    "vit_digits.png": lambda: notebook_figure("vit_digits.ipynb", "show(test_images"),
    "bert_five_tasks.png": lambda: notebook_figure("bert_five_tasks.ipynb", "by chance  without"),
    "bert_reviews.png": lambda: notebook_figure("bert_reviews.ipynb", "curve.losses"),
    "gpt_text.png": lambda: notebook_figure("gpt_text.ipynb", "poet.score"),
    "transformer_translation.png": lambda: notebook_figure("transformer_translation.ipynb", "with_outputs"),
    "any_keras_model.png": lambda: notebook_figure("any_keras_model.ipynb", "imshow"),
}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_bytes(draw())
