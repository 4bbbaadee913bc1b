"""The snippets of the documentation run, and its links lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import keras
import pytest

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
PAGES = sorted(DOCS.glob("*.md"))
PUBLIC = """
    keras_tx keras_tx.errors keras_tx.heads keras_tx.layers keras_tx.losses keras_tx.metrics keras_tx.models
    keras_tx.processing keras_tx.runtime keras_tx.generation keras_tx.training keras_tx.training.packing
    keras_tx.weights keras_tx_onnx
""".split()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_snippets_run(page: Path, tmp_path, monkeypatch):
    """In order, in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        keras.utils.clear_session()
        exec(compile(snippet, page.name, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_the_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str):
    """Where a page has `::: home.of.it`, a module with all that it defines, or the name alone."""
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


def test_every_page_is_in_the_sites_navigation():
    config = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[ \[]{re.escape(page)}\b", config)] == []


def test_the_table_of_families_is_there():
    text = (DOCS / "families.md").read_text(encoding="utf-8")
    table = text[text.index("<!-- measured:begin -->") : text.index("<!-- measured:end -->")]
    for family in ("BERT", "GPT-2", "ViT", "Llama", "T5", "Whisper", "CLIP"):
        assert f"| {family} |" in table
