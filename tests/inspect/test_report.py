"""Reports: their numbers, and the pages of each kind of model in a browser."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_tx as tx
from keras_tx.errors import ConfigError, FolderError, ImageError, InputError
from keras_tx.inspect import inspect, write_report
from keras_tx.inspect.html_elements import distance_chart
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.chromium import Page, needs_chromium
from tests.drawing import redraw
from tests.exported_folders import CORPUS, ExportedFolders

ROOT = Path(__file__).parents[2]
READY = "[...document.querySelectorAll('.ktx-overlay, .ktx-attention')].every(one => one.dataset.ready)"
TEXT = "the cat sat"
SCRIPT = "<script>window.broken = 1</script>"


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "a <rose>.png"
    y, x = np.mgrid[:200, :310]
    Image.fromarray(np.stack([x * 255 // 310, y * 255 // 200, x % 256], axis=-1).astype("uint8")).save(path)
    return path


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keras_model = redraw(tx.transformer("tiny", processing=train_byte_bpe(CORPUS, size=280)))
    folder = tmp_path_factory.mktemp("folders") / "translator"
    export_onnx(keras_model, folder, verify=False)
    return folder


def visible(path: Path) -> str:
    """The text of a page without scripts, styles and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text("utf-8"), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\N{NO-BREAK SPACE}", " ")


def check_page(page: Page, path: Path, images: int) -> None:
    """Asserts that a page has no errors, shows its images and fits narrow and wide windows."""
    for width, dark in ((1300, False), (390, True)):
        page.open(path, width=width, dark=dark)
        page.wait_for(READY)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        sizes = page.evaluate("[...document.images].map(one => [one.naturalWidth, one.clientWidth])")
        assert len(sizes) == images
        assert all(natural > 0 and shown > 0 for natural, shown in sizes)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
        assert page.evaluate("window.broken") is None
        assert not page.problems


@needs_chromium
def test_image(page: Page, exported_folders: ExportedFolders, photograph: Path, tmp_path: Path):
    folder = exported_folders["vit"].path
    assert write_report(folder, photograph, tmp_path / "report.html") == tmp_path / "report.html"
    text = visible(tmp_path / "report.html")
    assert "vit: image a <rose>.png" in text
    with load(folder) as model:
        for answer in model.classify(photograph, top_k=3):
            assert re.search(rf"{answer['label']} +{answer['score']:.4f}", text)
    grid = inspect(folder).grid(photograph)
    assert f"{grid.rows} x {grid.columns} patches" in text
    check_page(page, tmp_path / "report.html", images=3)
    heads = page.evaluate("document.querySelectorAll('svg.report-chart circle').length")
    assert heads == sum(layer.shape[1] for layer in inspect(folder).attention(photograph))


def test_large_attention_is_computed_by_layers(
    exported_folders: ExportedFolders, photograph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The page has the weights of the class token only, and the other values are the same."""
    write_report(exported_folders["vit"].path, photograph, tmp_path / "all.html")
    monkeypatch.setattr("keras_tx.inspect.inspector.MAX_BYTES", 100)
    monkeypatch.setattr("keras_tx.inspect.report.MAX_WEIGHTS", 100)
    write_report(exported_folders["vit"].path, photograph, tmp_path / "few.html")
    whole, few = ((tmp_path / name).read_text("utf-8") for name in ("all.html", "few.html"))
    assert '"queries": 17,' in whole and '"queries": 1,' in few
    assert whole.partition("</noscript>")[0] == few.partition("</noscript>")[0]
    assert whole.partition("Attention rollout</h2>")[2] == few.partition("Attention rollout</h2>")[2]


@needs_chromium
def test_text(page: Page, exported_folders: ExportedFolders, tmp_path: Path):
    folder = exported_folders["bert, classifier"].path
    write_report(folder, f"the cat {SCRIPT}", tmp_path / "report.html", pair="on the mat")
    text = visible(tmp_path / "report.html")
    with load(folder) as model:
        for answer in model.classify(f"the cat {SCRIPT}", pairs="on the mat", top_k=2):
            assert re.search(rf"{answer['label']} +{answer['score']:.4f}", text)
        tensors = model.transform([f"the cat {SCRIPT}"], ["on the mat"])
    tokens = inspect(folder).tokens(tensors)[0]
    assert f"The model reads {len(tokens)} tokens." in text
    check_page(page, tmp_path / "report.html", images=0)
    assert (
        page.evaluate("[...document.querySelectorAll('.report-tokens li')].map(x => x.textContent)") == tokens
    )


@needs_chromium
def test_prompt(page: Page, exported_folders: ExportedFolders, tmp_path: Path):
    folder = exported_folders["gpt"].path
    write_report(folder, TEXT, tmp_path / "report.html")
    with load(folder) as model:
        expected = model.next(TEXT, top_k=10)
    check_page(page, tmp_path / "report.html", images=0)
    rows = page.evaluate(
        "[...document.querySelectorAll('tr')].map(row => [...row.cells].map(x => x.innerText))"
    )
    shown = [row for row in rows if row and row[0].isdigit()][:10]
    assert [int(row[0]) for row in shown] == [token.id for token in expected]
    assert [float(row[2]) for row in shown] == [round(token.probability, 4) for token in expected]
    parts = [row[1] for row, token in zip(shown, expected, strict=True) if "\ufffd" in (token.text or "")]
    assert parts and all(text.startswith("<0x") for text in parts)


@needs_chromium
def test_encoder_decoder(page: Page, translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("keras_tx.inspect.report.HEAT_TOKENS", 64)
    write_report(translator, TEXT, tmp_path / "report.html")
    with load(translator) as model:
        generated = model.generate(TEXT)
    assert generated.text in visible(tmp_path / "report.html")
    check_page(page, tmp_path / "report.html", images=0)
    cells = page.evaluate(
        "[...document.querySelectorAll('.report-heat tbody tr')].map("
        "row => [...row.querySelectorAll('td')].map(cell => Number(cell.textContent)))"
    )
    layers = inspect(translator).attention(TEXT, targets=np.array([generated.ids[:-1]]), part="cross")
    expected = 100 * np.mean([layer[0].mean(axis=0) for layer in layers], axis=0)
    assert len(cells) == len(generated.ids)
    np.testing.assert_allclose(cells, expected, atol=0.51)
    monkeypatch.setattr("keras_tx.inspect.report.HEAT_TOKENS", len(generated.ids) - 1)
    write_report(translator, TEXT, tmp_path / "report.html")
    assert "report-heat" not in (tmp_path / "report.html").read_text("utf-8").partition("</style>")[2]


@pytest.mark.parametrize(
    ("name", "input", "options", "expected"),
    [
        ("bert, masked", "the [MASK] sat", {}, "token"),
        ("bert, tags", TEXT, {}, "Answer"),
        ("bert, span", TEXT, {"question": "who sat"}, "no answer"),
        ("bert, sentence", TEXT, {}, "a vector of"),
        ("bert, regression", TEXT, {}, "Answer"),
    ],
)
def test_answers(
    exported_folders: ExportedFolders, tmp_path: Path, name: str, input: str, options: Any, expected: str
):
    write_report(exported_folders[name].path, input, tmp_path / "report.html", **options)
    assert expected in visible(tmp_path / "report.html")


def test_all_tokens_of_an_image(photograph: Path, tmp_path: Path):
    """A model with pooling="none" returns a vector for each token."""
    export_onnx(tx.vit("Mu/2", image_size=8, pooling="none"), tmp_path / "folder", verify=False)
    write_report(tmp_path / "folder", photograph, tmp_path / "report.html")
    assert "17 tokens, each a vector of 32 numbers" in visible(tmp_path / "report.html")


def test_errors_write_no_file(exported_folders: ExportedFolders, photograph: Path, tmp_path: Path):
    path = tmp_path / "report.html"
    vit, span = exported_folders["vit"].path, exported_folders["bert, span"].path
    for folder, input, options, error, message in (
        (vit, "a text", {}, InputError, "'a text'.*accepts images"),
        (vit, b"not an image", {}, ImageError, "not an image"),
        (vit, photograph, {"pair": "b"}, InputError, "does not support pair"),
        (span, str(photograph), {"question": "who"}, InputError, "accepts texts"),
        (span, TEXT, {}, InputError, "question"),
        (tmp_path / "none", TEXT, {}, FolderError, "none"),
    ):
        with pytest.raises(error, match=message):
            write_report(folder, input, path, **options)
    for wrong in ("report.txt", "none/report.html"):
        with pytest.raises(ConfigError, match=wrong):
            write_report(tmp_path / "none", TEXT, tmp_path / wrong)
    assert not list(tmp_path.iterdir())


def test_command_without_keras(
    exported_folders: ExportedFolders, photograph: Path, tmp_path: Path, without_training_packages
):
    out = tmp_path / "a.html"
    arguments = ["inspect", str(exported_folders["vit"].path), str(photograph), "--out", str(out)]
    code = f"from keras_tx.cli import main\nsys.exit(main({arguments!r}))"
    command = without_training_packages(code)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.is_file()


@pytest.mark.parametrize("top", [0.9, 5.66, 67.9, 158.4, 999.0])
def test_ticks_of_the_chart_are_in_its_range(top: float):
    chart = distance_chart(np.array([[top / 2, np.nan], [np.nan, np.nan]]), top)
    ticks = [float(value) for value in re.findall(r'text-anchor="end">([^<]*)<', chart)]
    assert 3 <= len(ticks) <= 6 and ticks[0] == 0 and top / 2 < ticks[-1] <= top
    assert chart.count("<circle") == 1 and chart.count('class="mean"') == 1
