"""The notebooks of examples/lab: stored with outputs, and executed at a small size.

To add a notebook, add its row to NOTEBOOKS and to examples/lab/README.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.notebook import NotebookRun, cells_of, code_cells_of, code_of, execute, ink, is_parameters
from tests.test_examples import FAST, different_kinds

LAB = Path(__file__).parents[1] / "examples" / "lab"
MOST_BYTES = 600_000  # of a notebook with its outputs


@dataclasses.dataclass(frozen=True)
class Notebook:
    """The tests of one notebook."""

    sizes: str  # replaces the cell of sizes, so that the notebook runs in 20 seconds of processor time
    check: Callable[[NotebookRun], None]  # holds at any size
    reached: Callable[[NotebookRun], None]  # holds at the stored size


def check_tokens(run: NotebookRun) -> None:
    names = run.names
    assert ("image", (224, 224, 3), (1, 196, 768)) in [(row[0], row[1], row[3]) for row in names["summary"]]
    assert names["errors"][768] < 1e-5 < names["errors"][48] < names["errors"][3]
    equivariant = {name for name, value in names["by_layer"].items() if value < 1e-5}
    assert equivariant == {"FeedForward", "DeepSets", "MultiHeadAttention", "TransformerBlock"}
    assert max(names["by_model"]["none"]) < 1e-5
    assert min(names["by_model"]["learned"]) > 1e-2
    assert list(names["reached"].values()) == [2, 4, 7, 13]


def reached_tokens(run: NotebookRun) -> None:
    results = run.names["results"]
    assert min(results["attention"]["test"], results["attention"]["more"]) > 0.9
    assert max(results["fully connected"]["test"], results["DeepSets"]["test"]) < 0.5


def check_attention(run: NotebookRun) -> None:
    names = run.names
    steps = run.cell("divided by sqrt(3)").text
    assert [row.split()[-2:] for row in steps.splitlines()[1:4]] == [
        ["102", "99"],
        ["58.9", "57.2"],
        ["0.85", "0.15"],
    ]
    masks = run.cell("def truncate").text.splitlines()
    assert "0.378 0.622 0.000 0.000  0.38 0.62 0.00 0.00  0.37 0.62 0.00 0.00" in masks[-3]
    assert "0.258 0.316 0.426 0.000  0.26 0.32 0.43 0.00  0.25 0.31 0.42 0.00" in masks[-2]
    by_hand = run.cell("by a query").text.splitlines()
    assert [line.split()[3:] for line in by_hand[1:3]] == 2 * [["0.3333", "0.0000", "0.3333", "0.3333"]]
    assert run.cell("reverses an order").text.count("reverses an order") == 2
    entropies = [names["measured"][d, False][1] for d in names["head_widths"]]
    assert entropies == sorted(entropies, reverse=True)


def reached_attention(run: NotebookRun) -> None:
    names = run.names
    for (shared, width), accuracy in names["accuracy"].items():
        if shared == "Q = K" or (shared, width) == ("K = V", 2):
            assert accuracy < 0.6
        elif (shared, width) != ("K = V", 4):
            assert accuracy > 0.98
    for (readout, heads), accuracies in names["by_heads"].items():
        assert (min(accuracies) > 0.98) == ((readout, heads) != ("linear", 1))
    assert min(names["bird_accuracy"].values()) > 0.7
    assert all(weight > 2 * area for weight, area in names["shares"].values())


def check_positions(run: NotebookRun) -> None:
    names = run.names
    by_word = {name: values.max() for name, values in names["differences"].items()}
    assert by_word.pop("no positions") < 1e-5
    assert min(by_word.values()) > 0.1
    assert names["differences"]["no positions, causal mask"][:2].max() < 1e-5
    assert names["invariance"]["image"].max() < 1e-5
    assert names["invariance"]["coordinates"].max() > 1e-3
    assert "parity" in run.cell("export_onnx").text


def reached_positions(run: NotebookRun) -> None:
    names = run.names
    accuracy = {name: np.mean(runs) for name, runs in names["accuracy"].items()}
    assert accuracy["none"] < 0.75
    for name in ("1-D learned", "2-D learned", "sine and cosine, 2-D", "Fourier, 2-D"):
        assert accuracy[name] > 0.92
    assert 0.75 < accuracy["offsets, 1-D (D.4)"] < accuracy["offsets, 2-D (D.4)"] < 0.92
    left, right, error = names["results"]["image"]
    assert left == right > 0.9
    assert error > 2
    left, right, error = names["results"]["coordinates"]
    assert left > 0.8
    assert left - right > 0.1
    assert error < 1.5


def check_masks(run: NotebookRun) -> None:
    names = run.names
    triangle = np.tri(names["source_ids"].shape[1], dtype=bool)
    influence = names["influence"]
    assert influence["BERT"].all()
    assert (influence["GPT"] == triangle).all()
    assert influence["source to encoder"].all()
    assert (influence["target to decoder"] == np.tri(names["target_ids"].shape[1], dtype=bool)).all()
    assert influence["source to decoder"].all()
    assert names["padding_errors"]["padding mask"] < 1e-5 < 1e-3 < names["padding_errors"]["no padding mask"]
    assert max(names["mask_errors"].values()) < 1e-5
    assert sum(names["neighbors"].values()) == 0
    assert names["N"] == pytest.approx(names["QUOTED"]["parameters"], rel=1e-3)
    assert names["by_rule"] == pytest.approx(names["QUOTED"]["FLOPs"], rel=2e-3)
    assert names["by_rule"] / names["PETAFLOP_DAY"] == pytest.approx(
        names["QUOTED"]["petaflop/s-days"], rel=2e-3
    )
    assert 1.02 < names["by_cost"] / names["by_rule"] < 1.04
    years, _, dollars = names["bills"]["V100, as quoted"]
    assert years == pytest.approx(names["QUOTED"]["V100-years"], rel=5e-3)
    assert dollars == pytest.approx(names["QUOTED"]["dollars"], rel=0.02)
    assert names["bills"]["A100, as published"][1] == pytest.approx(34, rel=0.02)
    assert np.array(list(names["ratios"].values())) == pytest.approx(1, rel=0.01)


def reached_masks(run: NotebookRun) -> None:
    names = run.names
    both, left = names["both_sides"], names["left_side"]
    assert both["the animal"] > 0.95
    assert left["the animal"] < 0.3
    assert min(both["its place"], left["its place"]) > 0.95
    assert max(both["food"], left["food"]) < 0.4
    starts = [text for (prompt, _), text in names["continuations"].items() if prompt == "Once upon a"]
    assert all(text.split()[:3] == ["time", "there", "was"] for text in starts)
    assert names["order_rank"] < 20
    assert names["log_probabilities"][0] > names["backwards"] + 3
    assert names["translation_accuracy"] > 0.95
    (loss, whole, begun), (other_loss, other_whole, other_begun) = names["leak"][False], names["leak"][True]
    assert loss < 0.05 < other_loss
    assert whole > 0.99
    assert begun < other_begun - 0.2
    assert abs(other_whole - other_begun) < 0.01
    seconds, memory = names["growth"]["all queries"]
    assert seconds > 2
    assert 3.5 < memory < 4.5
    assert names["growth"]["512 queries at a time"][1] < 3


def check_vit(run: NotebookRun) -> None:
    names = run.names
    shapes = {step: shape for step, shape, _ in names["steps"]}
    assert shapes["patches, projected"] == (1, 36, 64)
    assert shapes["positions added"] == shapes["block 2"] == (1, 37, 64)
    assert shapes["logits"] == (10,)
    differences = dict(names["differences"])
    assert differences.pop("without the token, with the border") > 0.1
    assert max(differences.values()) < 1e-4
    assert len(names["off"]) == 22
    assert max(map(abs, names["off"])) < 0.03
    pixels = {layer: int((field > 0).sum()) for layer, field in names["fields"].items()}
    assert pixels["ViT", "patch_embedding"] == 4 * 4
    assert pixels["CNN", "conv_1"] == 3 * 3
    assert pixels["CNN", "conv_2"] == 5 * 5
    assert pixels["ViT", "block_0"] == 24 * 24


def reached_vit(run: NotebookRun) -> None:
    names = run.names
    counts, vit, cnn = names["COUNTS"], names["accuracy"]["ViT"], names["accuracy"]["CNN"]
    assert vit[counts[0]] < 0.6
    assert vit[counts[-1]] > vit[counts[0]] + 0.2
    assert cnn[counts[0]] > vit[counts[0]] + 0.2
    assert cnn[counts[-1]] > 0.97
    assert names["on_shape"]["after training"] > names["on_shape"]["before training"] + 0.1


def check_in_context(run: NotebookRun) -> None:
    names = run.names
    assert names["agreement"] == 1
    assert [names["ideal"](k) for k in (0, 1)] == pytest.approx([1 / 12, 1 / 4 + 3 / 44])


def reached_in_context(run: NotebookRun) -> None:
    by_count = run.names["by_count"]
    assert by_count[-1] > 0.9
    assert max(abs(by_count[k] - run.names["ideal"](k)) for k in range(12)) < 0.06
    assert run.names["curves_without"]["answers"][-1] < 0.4
    assert run.names["on_labels"].max() > 0.9


NOTEBOOKS: dict[str, Notebook] = {
    "1_tokens.ipynb": Notebook("STEPS = 20\nITEMS = 6", check_tokens, reached_tokens),
    "2_attention.ipynb": Notebook(
        "STEPS = 10\nWIDTHS = (2, 16)\nPICTURES = 160\nBIRD_EPOCHS = 2", check_attention, reached_attention
    ),
    "3_positions.ipynb": Notebook(
        "EPOCHS = 1\nSEEDS = 1\nDEPTH = 1\nSHIFT_EPOCHS = 1\n"
        "TRAINED = ('none', '1-D learned', 'offsets, 2-D (D.4)')",
        check_positions,
        reached_positions,
    ),
    "4_encoder_decoder.ipynb": Notebook(
        "STEPS = 10\nTEXTS = 200\nLENGTHS = (256, 512, 1024)", check_masks, reached_masks
    ),
    "5_vit.ipynb": Notebook("STEPS = 4\nCOUNTS = (64,)\nTESTS = 200\nSEEDS = 1", check_vit, reached_vit),
    "6_in_context.ipynb": Notebook("STEPS = 32\nPROMPTS = 20", check_in_context, reached_in_context),
}
PATHS = sorted(LAB.glob("*.ipynb"))
by_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)


def check(run: NotebookRun, path: Path) -> None:
    """What holds for every notebook."""
    figures = [figure for cell in run.cells for figure in cell.figures]
    assert figures
    for figure in figures:
        assert min(figure.shape[:2]) > 100
        assert 0.01 < ink(figure) < 0.99
    assert different_kinds(run, path) == {}
    NOTEBOOKS[path.name].check(run)


def printed(path: Path) -> str:
    """The text that the stored outputs contain."""
    outputs = [output for cell in code_cells_of(path) for output in cell["outputs"]]
    return "".join("".join(output.get("text", [])) for output in outputs)


def text_of(path: Path) -> str:
    """The markdown cells, without the addresses of links."""
    cells = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown"]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(cells))


@pytest.mark.thorough
@by_notebook
def test_notebook_runs_at_a_small_size(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(execute(path, NOTEBOOKS[path.name].sizes), path)


@pytest.mark.slow
@by_notebook
def test_notebook_reaches_its_stored_result(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = execute(path)
    check(run, path)
    NOTEBOOKS[path.name].reached(run)


@by_notebook
def test_notebook_is_stored_with_outputs(path):
    """python -m tests.notebook examples/lab/NAME.ipynb runs a notebook and stores its outputs."""
    cells = code_cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size < MOST_BYTES
    assert not re.search(r"Warning|━|Traceback|/tmp/|/home/|/opt/", printed(path))


@by_notebook
def test_first_cells_install_on_colab_and_set_the_sizes(path):
    install, sizes, *_ = code_of(path)
    assert install.startswith(code_of(FAST)[0])
    assert is_parameters(sizes)


@by_notebook
def test_each_decimal_number_of_the_text_is_printed_or_an_input(path):
    known = printed(path) + "\n".join(code_of(path))
    missing = [number for number in re.findall(r"\d+\.\d+", text_of(path)) if number not in known]
    assert missing == []


def test_each_notebook_has_a_row_here_and_in_the_readme():
    readme = (LAB / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*\]\((.*\.ipynb)\) \|", readme, re.MULTILINE) == sorted(NOTEBOOKS)
    assert [path.name for path in PATHS] == sorted(NOTEBOOKS)
