"""Figures as files: PNG, SVG and HTML, written atomically."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.canvas import figure_bytes, new_figure, write_figure


def line(**options):
    figure = new_figure(2, 1, **options)
    figure.add_subplot().plot([1, 3, 2])
    return figure


@pytest.mark.parametrize("form", ["png", "svg"])
def test_equal_figures_have_equal_bytes(form: str):
    assert figure_bytes(line(), form) == figure_bytes(line(), form)


def test_png_has_the_size_of_the_figure(tmp_path: Path):
    write_figure(line(dpi=100), tmp_path / "line.png")
    with Image.open(tmp_path / "line.png") as image:
        assert image.size == (200, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["line.png"]


def test_html_contains_the_svg(tmp_path: Path):
    write_figure(line(), tmp_path / "a <b>.html")
    text = (tmp_path / "a <b>.html").read_text("utf-8")
    assert "data:image/svg+xml;base64," in text
    assert "<title>a &lt;b&gt;</title>" in text


def test_none_writes_nothing():
    figure = line()
    assert write_figure(figure, None) is figure


def test_unknown_suffix_and_missing_folder_raise(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"line\.gif"):
        write_figure(line(), tmp_path / "line.gif")
    with pytest.raises(ConfigError, match="none"):
        write_figure(line(), tmp_path / "none" / "line.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.png"):
        write_figure(line(), tmp_path / "folder.png")


def test_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "line.svg"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(ConfigError, match="No space left"):
        write_figure(line(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_matplotlib_names_the_extra():
    code = (
        "import sys; sys.modules['matplotlib.figure'] = None\n"
        "from keras_tx.inspect.figures.canvas import new_figure\n"
        "try: new_figure(1, 1)\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert 'pip install "keras-tx[inspect]"' in done.stdout, done.stderr
