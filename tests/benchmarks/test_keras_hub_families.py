"""Families of keras-hub export without tf2onnx and equal Keras, one file for every batch and length."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import keras_hub_decoders
from tests.benchmarks import keras_hub_families as families
from tests.benchmarks.keras_hub_families import FAMILIES, TOLERANCE, chosen, measured
from tests.benchmarks.page_tables import MARKERS

# keras-hub's own: T5's attention warns of its embedding's mask, and then cannot be traced to be built.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(?s).*was passed an input with a mask attached"),
    pytest.mark.filterwarnings("ignore:(?s).*looks like it has unbuilt state"),
]
QUICK = ("bert", "gpt2", "llama", "vit")


def test_every_folder_of_keras_hub_has_a_row():
    import keras_hub

    models = Path(keras_hub.__file__).parent / "src/models"
    folders = {path.name for path in models.iterdir() if path.is_dir() and not path.name.startswith("_")}
    measured_folders = {families.folder_of(family) for family in FAMILIES}
    assert measured_folders == folders
    text = Path(__file__).parents[2].joinpath("docs/families.md").read_text(encoding="utf-8")
    assert [family.name for family in FAMILIES if f"| {family.name} |" not in text] == []


@pytest.mark.parametrize("key", QUICK)
def test_family_equals_keras(key: str):
    (family,) = chosen(key)
    row = measured(family)
    assert row.works and row.problem is None
    assert row.difference is not None and row.difference <= TOLERANCE
    assert row.nodes_of_a_block is not None and row.nodes_of_a_block <= 16


@pytest.mark.slow
@pytest.mark.parametrize("key", [family.key for family in FAMILIES if family.key not in QUICK])
def test_every_other_family_equals_keras(key: str):
    (family,) = chosen(key)
    row = measured(family)
    assert row.works, row


def test_row_whose_output_does_not_vary_is_rejected():
    import keras

    def constant(depth: int) -> keras.Model:
        x = keras.Input((4,), name="x")
        return keras.Model(x, [keras.layers.Dense(3, name="varying")(x), 0.0 * x])

    row = measured(families.Family("constant", "Constant", constant, blocks=False))
    assert row.difference == pytest.approx(0, abs=TOLERANCE)
    assert not row.works and row.problem is not None
    assert "hardly varies" in row.problem and "varying" not in row.problem


def test_codebooks_are_redrawn_at_the_scale_of_their_inputs():
    (family,) = chosen("rqvae")
    model = families.redrawn(family.make(2))
    codebooks = [weight for weight in model.weights if weight.name == "embeddings"]
    assert len(codebooks) == 3
    assert all(0.7 < np.std(weight.numpy()) < 1.3 for weight in codebooks)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["bert", "gpt2", "t5", "llama", "gemma3", "qwen3", "deberta_v3", "clip"])
def test_below_opset_23_too(key: str):
    (family,) = chosen(key)
    assert measured(family, opset=17).works


def test_table_is_written_between_the_markers(tmp_path, monkeypatch, capsys):
    page = tmp_path / "families.md"
    both = [f"{begin}\nold\n{end}\n" for begin, end in (MARKERS, keras_hub_decoders.MARKERS)]
    page.write_text(f"before\n{both[0]}between\n{both[1]}after\n", encoding="utf-8")
    row = families.Row(chosen("bert")[0], ("registered",), 48, 15, 4e-7)
    failed = families.Row(chosen("sam")[0], problem="ExportError: it | says why")
    monkeypatch.setattr(families, "tried", lambda family, show: row if family.key == "bert" else failed)
    families.main(["--families", "bert,sam", "--markdown", str(page)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| BERT | registered | 48 | 15 | 4.0e-07 |  |" in text
    assert "it \\| says why" in text
    assert "| family | cache |" in text[text.index("between") :]
    assert re.search(r"1 of 2 families", capsys.readouterr().out)


def test_unknown_family_exits():
    with pytest.raises(SystemExit, match="families: nothing"):
        chosen("bert,nothing")


WITHOUT_CACHE = (
    "qwen3_5",
    "qwen3_5_moe",
    "gpt_oss",
    "rwkv7",
    "pali_gemma",
    "blip2",
    "gemma3n",
    "gemma4",
)


def rows_of_page() -> dict[str, str]:
    """The rows of the table of language models, by family."""
    page = Path(__file__).parents[2].joinpath("docs/families.md").read_text(encoding="utf-8")
    begin, end = keras_hub_decoders.MARKERS
    lines = page[page.index(begin) : page.index(end)].splitlines()
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}


def test_the_page_says_which_families_have_a_cache():
    rows = rows_of_page()
    for family in FAMILIES:
        if family.name in rows:
            assert ("| yes |" in rows[family.name]) == (family.key not in WITHOUT_CACHE), family.key
    assert {family.key for family in FAMILIES if family.name in rows} >= {"gpt2", "smollm3", *WITHOUT_CACHE}


@pytest.mark.parametrize("key", ["gpt2", "gpt_oss"])
def test_decoder_has_a_cache(key: str):
    (result,) = keras_hub_decoders.decoders(chosen(key))
    assert (result.problem is None) == (key not in WITHOUT_CACHE), result


@pytest.mark.slow
@pytest.mark.parametrize("key", [family.key for family in FAMILIES if family.name in rows_of_page()])
def test_every_decoder_has_a_cache(key: str):
    (result,) = keras_hub_decoders.decoders(chosen(key))
    assert (result.problem is None) == (key not in WITHOUT_CACHE), result
