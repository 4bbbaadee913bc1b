"""The snippets of the documentation run, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import pytest

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_snippets_run(page: Path, tmp_path, monkeypatch):
    """In order, in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        keras.utils.clear_session()
        exec(compile(snippet, page.name, "exec"), namespace)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_the_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_table_of_families_is_there():
    text = (DOCS / "families.md").read_text(encoding="utf-8")
    table = text[text.index("<!-- measured:begin -->") : text.index("<!-- measured:end -->")]
    for family in ("BERT", "GPT-2", "ViT", "Llama", "T5", "Whisper", "CLIP"):
        assert f"| {family} |" in table
