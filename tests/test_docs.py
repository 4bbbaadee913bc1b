"""The snippets of the documentation run and fit their column, and its links exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import keras
import pytest

from keras_tx.models import families

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
PAGES = sorted(DOCS.glob("*.md"))
COLUMN = 100  # characters of code
PUBLIC = """
    keras_tx keras_tx.errors keras_tx.heads keras_tx.inspect keras_tx.layers keras_tx.losses keras_tx.metrics
    keras_tx.data keras_tx.models keras_tx.processing keras_tx.runtime keras_tx.generation keras_tx.training
    keras_tx.weights keras_tx_onnx
""".split()


@pytest.mark.thorough
@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path, monkeypatch):
    """In order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(families, "_RECORDS", dict(families._RECORDS))
    namespace: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        keras.utils.clear_session()
        exec(compile(snippet, page.name, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_code_fits_its_column(page: Path):
    """On a window of 1,300 pixels; docs/ruff.toml keeps Python blocks shorter."""
    fenced = False
    wide = []
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if (fenced or line.startswith("    ")) and len(line) > COLUMN:
            wide.append(line)
    assert wide == []


def test_examples_of_docstrings_fit_their_column():
    """The pages of the reference show them."""
    wide = [
        f"{path.name}: {line}"
        for folder in (ROOT / "keras_tx", ROOT / "export")
        for path in folder.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line.strip()) > COLUMN and line.strip().startswith((">>> ", "... "))
    ]
    assert wide == []


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_links_exist(page: Path):
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str):
    """A page of the reference has `::: module` or `::: module.name`."""
    shown = set()
    for page in (DOCS / "reference").glob("*.md"):
        shown |= set(re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    module = importlib.import_module(package)
    missing = []
    for name in getattr(module, "__all__", None) or [n for n in vars(module) if n.endswith("Error")]:
        home = getattr(module, name).__module__
        if not {home, f"{home}.{name}"} & shown:
            missing.append(f"{home}.{name}")
    assert missing == []


def test_every_page_is_in_the_navigation():
    config = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[ \[]{re.escape(page)}\b", config)] == []


def test_table_of_families_is_filled():
    text = (DOCS / "families.md").read_text(encoding="utf-8")
    table = text[text.index("<!-- measured:begin -->") : text.index("<!-- measured:end -->")]
    for family in ("BERT", "GPT-2", "ViT", "Llama", "T5", "Whisper", "CLIP"):
        assert f"| {family} |" in table
