"""The interactive page of attention: its data, its safety, and its behavior in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.html_elements import ASSETS
from keras_tx.inspect.html_page import (
    AttentionPart,
    attention_fragment,
    attention_page,
    write_attention_page,
)
from tests.chromium import Page, needs_chromium

TOKENS = ["[CLS]", "it", "was", "</script><script>window.broken = 1</script>", "\u2028<!--", "&lt;", "\n"]
SOURCE = ["Io", "la", "<b>sto</b>"]
READY = "document.querySelector('.ktx-attention').dataset.ready === 'true'"


def drawn(layers: int, heads: int, queries: int, keys: int, seed: int = 0) -> list[np.ndarray]:
    """Attention weights of each layer."""
    scores = 2.5 * np.random.default_rng(seed).standard_normal((layers, heads, queries, keys))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return list((weights / weights.sum(axis=-1, keepdims=True)).astype("float32"))


def encoder() -> AttentionPart:
    return AttentionPart(drawn(2, 3, len(TOKENS), len(TOKENS)), TOKENS, name="Encoder")


def cross() -> AttentionPart:
    weights = drawn(1, 2, len(TOKENS), len(SOURCE), seed=1)
    return AttentionPart(weights, TOKENS, SOURCE, [5], "Cross-attention", "target", "source")


class Scripts(HTMLParser):
    """The scripts of a page, and the addresses in its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def test_data_are_the_weights_to_half_a_percent():
    (content, _) = Scripts(attention_page([encoder(), cross()], title="<title>")).scripts
    data = json.loads(content)
    assert data["title"] == "<title>"
    for part, expected in zip(data["parts"], (encoder(), cross()), strict=True):
        assert part["queries"] == TOKENS
        assert part["keys"] == list(expected.key_tokens)
        values = np.frombuffer(zlib.decompress(base64.b64decode(part["data"])), "uint8")
        weights = np.stack(expected.attentions)
        np.testing.assert_allclose((values.reshape(weights.shape) / 255) ** 2, weights, atol=0.004)
        assert part["heads"] == weights.shape[1]
    assert [part["layers"] for part in data["parts"]] == [[0, 1], [5]]


def test_page_has_no_address_and_tokens_are_escaped():
    text = attention_page(encoder(), title="</title><script>")
    page = Scripts(text)
    assert page.addresses == [] and len(page.scripts) == 2
    assert "window.broken" not in page.scripts[1]
    assert not re.search(r"[<>&]", page.scripts[0])
    assert not re.search(r"https?:|@import|url\(", text)
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in text


def test_file_is_written_atomically(tmp_path: Path):
    path = write_attention_page(encoder(), tmp_path / "page.html")
    assert path.read_text("utf-8") == attention_page(encoder())
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="page.png"):
        write_attention_page(encoder(), tmp_path / "page.png")
    with pytest.raises(ConfigError, match="missing"):
        write_attention_page(encoder(), tmp_path / "missing" / "page.html")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attentions": []}, "attentions is empty"),
        ({"queries": ["a", "b"]}, r"attentions\[0\] has the shape \(3, 7, 7\).*\(3, 2, 2\)"),
        ({"keys": ["a", "b"]}, r"\(3, 7, 7\).*\(3, 7, 2\)"),
        ({"layers": [1]}, "layers has 1 numbers for 2 arrays"),
        ({"attentions": [np.full((3, 7, 7), np.nan)] * 2}, r"attentions\[0\] has values from nan"),
        ({"attentions": [*drawn(1, 3, 7, 7), np.full((3, 7, 7), -2.0)]}, r"attentions\[1\] .* -2"),
        ({"attentions": [*drawn(1, 3, 7, 7), *drawn(1, 2, 7, 7)]}, r"attentions\[1\] .*\(2, 7, 7\)"),
    ],
)
def test_wrong_arrays_raise(change: dict[str, Any], message: str):
    fields = {"attentions": drawn(2, 3, 7, 7), "queries": TOKENS, **change}
    with pytest.raises(InputError, match=message):
        AttentionPart(**fields)


def test_too_many_weights_raise():
    weights = np.broadcast_to(np.float32(0.001), (10, 1000, 1000))
    part = AttentionPart([weights] * 5, ["a"] * 1000)
    with pytest.raises(InputError, match=r"50,000,000 weights.*40,000,000"):
        attention_fragment(part)


# Linear RGB as protanopes, deuteranopes and tritanopes see it: Machado et al., 2009, severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colors: list[str]) -> np.ndarray:
    values = np.array([[int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)] for color in colors])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.clip(rgb, 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize(("theme", "back"), [("LIGHT", "#ffffff"), ("DARK", "#14171b")])
def test_colors_of_heads_differ_for_the_color_blind(theme: str, back: str):
    script = ASSETS.joinpath("html_page.js").read_text("utf-8")
    colors = re.findall("#[0-9a-f]{6}", re.search(rf"const {theme} = \[(.*?)\]", script, re.S)[1])  # type: ignore[index]
    rgb = linear(colors)
    assert len(colors) == 12
    for vision, matrix in VISION.items():
        seen = lab(rgb @ np.transpose(matrix))
        distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 1000 * np.eye(12)
        assert distances.min() > 15, vision  # a difference of 2.3 is just visible
    light = rgb @ TO_XYZ[1] + 0.05
    paper = float(linear([back])[0] @ TO_XYZ[1]) + 0.05
    assert (np.maximum(light, paper) / np.minimum(light, paper)).min() > 2.7


def hover(page: Page, side: str, index: int) -> None:
    token = f"document.querySelector('li[data-side={side}][data-index=\"{index}\"] .token')"
    page.evaluate(f"{token}.scrollIntoView({{block: 'center'}})")
    box = page.evaluate(f"{token}.getBoundingClientRect().toJSON()")
    page.hover(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key)


def rows(page: Page) -> list[list[str]]:
    """The table of the selected token."""
    script = (
        "[...document.querySelectorAll('.readout tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    return page.evaluate(script)


def opened(page: Page, path: Path, **options: Any) -> None:
    page.open(path, **options)
    page.wait_for(READY)


def check_rows(made: list[list[str]], weights: np.ndarray, tokens: list[str], heads: list[int]) -> None:
    """Asserts that a table has the largest means of weights (heads, tokens), and the largest head of each."""
    means, shown = weights.mean(axis=0), ["\u21b5" if token == "\n" else token for token in tokens]
    assert made
    for name, mean, head in made:
        index = shown.index(name)
        assert abs(int(mean.removesuffix(" %").removeprefix("<")) - 100 * means[index]) < 1
        number, value = head.split(": ")
        best = weights[:, index].max()
        assert abs(weights[heads.index(int(number)), index] - best) < 0.01
        assert abs(int(value.removesuffix(" %").removeprefix("<")) - 100 * best) < 1
    assert made[0][0] == shown[int(means.argmax())]


@needs_chromium
@pytest.mark.thorough
def test_page_in_a_browser(page: Page, tmp_path: Path):
    parts = [encoder(), cross()]
    path = write_attention_page(parts, tmp_path / "page.html", title="A <b>title</b>")
    opened(page, path)
    assert page.evaluate("document.querySelector('h2').textContent") == "A <b>title</b>"
    names = page.evaluate("[...document.querySelectorAll('.queries .token')].map(x => x.textContent)")
    assert names == [*TOKENS[:-1], "\u21b5"]
    assert page.evaluate("window.broken === undefined")
    hover(page, "query", 1)
    check_rows(rows(page), parts[0].attentions[0][:, 1], TOKENS, [0, 1, 2])
    assert "it" in page.evaluate("document.querySelector('.readout h3').textContent")
    hover(page, "key", 2)
    check_rows(rows(page), parts[0].attentions[0][:, :, 2], TOKENS, [0, 1, 2])

    # a head is switched off, another layer, one head of a small map
    page.evaluate("document.querySelector('.heads input[data-head=\"1\"]').click()")
    page.evaluate("document.querySelectorAll('.layers input')[1].click()")
    hover(page, "query", 3)
    check_rows(rows(page), parts[0].attentions[1][[0, 2], 3], TOKENS, [0, 2])
    page.evaluate('document.querySelector(\'.maps button[data-layer="0"][data-head="2"]\').click()')
    check_rows(rows(page), parts[0].attentions[0][[2], 3], TOKENS, [2])
    page.evaluate("document.querySelectorAll('.heads button')[1].click()")
    assert rows(page) == []

    # by keyboard: the second token below the first, pinned while the mouse moves, and released
    page.evaluate("document.querySelectorAll('.heads button')[0].click()")
    page.evaluate("document.querySelector('.queries li').focus()")
    press(page, "ArrowDown")
    press(page, "Enter")
    hover(page, "query", 5)
    check_rows(rows(page), parts[0].attentions[0][:, 1], TOKENS, [0, 1, 2])
    press(page, "Escape")
    hover(page, "query", 0)
    check_rows(rows(page), parts[0].attentions[0][:, 0], TOKENS, [0, 1, 2])

    # cross-attention, as running text
    page.evaluate("document.querySelectorAll('.parts input')[1].click()")
    page.evaluate("document.querySelectorAll('.views input')[1].click()")
    hover(page, "query", 2)
    check_rows(rows(page), parts[1].attentions[0][:, 2], SOURCE, [0, 1])
    color = "document.querySelector('li[data-side=key] .token').style.background"
    assert page.evaluate(color).startswith("rgba")
    assert page.problems == []


@needs_chromium
@pytest.mark.thorough
def test_two_figures_in_one_page(page: Page, tmp_path: Path):
    """Each has its own controls; colors are those of the theme."""
    path = tmp_path / "report.html"
    body = "".join(attention_fragment(encoder(), title=name) for name in ("one", "two"))
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", "utf-8")
    chosen = "[...document.querySelectorAll('.layers input:checked')].map(x => x.dataset.value).join()"
    chip = "document.querySelector('.heads input + span').style.background"
    opened(page, path)
    light = page.evaluate(chip)
    page.evaluate("document.querySelectorAll('.layers input')[1].click()")
    assert page.evaluate(chosen) == "1,0"
    assert page.problems == []
    opened(page, path, dark=True)
    assert page.evaluate(chip) != light
    assert page.problems == []
