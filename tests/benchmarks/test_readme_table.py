"""The README's table, from made-up results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_tx.errors import ConfigError
from tests.benchmarks.cases import MARIAN, SENTENCES, T5_BASE, T5_SMALL
from tests.benchmarks.comparisons import MODELS, OVERHEAD, START
from tests.benchmarks.report import (
    README_COLUMNS,
    README_MARKERS,
    SEQ2SEQ_COLUMNS,
    SEQ2SEQ_MARKERS,
    Report,
    main,
    readme_table,
    seq2seq_table,
)

BEGIN, END = README_MARKERS
MACHINE = {"cores": 2, "processor": "Intel 8086", "rates": {}}


def outcome(model: str, cases: dict[str, dict[str, list[float]]], section: str = MODELS) -> dict:
    names = dict.fromkeys(name for one in cases.values() for name in one)
    rows = [
        {"name": name, "seconds": {case: one[name] for case, one in cases.items() if name in one}}
        for name in names
    ]
    return {"section": section, "model": model, "cases": list(cases), "results": rows}


def results() -> dict:
    outcomes = [
        # other comparisons of the same models, with cases of the same names
        outcome("vit-b16", {"batch 1": {"keras-tx fp32": [2.0]}}, START),
        outcome("gpt2-124m", {"decode at 16": {"keras-tx fp32": [0.0001]}}, OVERHEAD),
        outcome("vit-b16", {"batch 1": {"stock": [0.25], "keras-tx fp32": [0.3, 0.1, 0.2]}}),
        outcome("bert-base", {"batch 8, lengths 16-128": {"keras-tx fp32": [0.2051], "stock": []}}),
        outcome(
            "gpt2-124m",
            {
                "prefill of 128": {"keras-tx fp32": [0.05]},
                "decode at 16": {"keras-tx fp32": [0.007], "llama.cpp q4_0": [1]},
            },
        ),
    ]
    return {"date": "2026-11-18", "machine": MACHINE, "outcomes": outcomes}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(results()), encoding="utf-8")
    return path


def test_one_row_per_contender(path: Path):
    lines = readme_table(Report.read(path)).splitlines()
    assert lines[0].endswith("medians on 2 cores of Intel 8086, 2026-11-18:")
    assert lines[4:] == [
        "| keras-tx fp32 | 200.0 | 205.1 | 50.0 | 7.0 |",
        "| stock | 250.0 |  |  |  |",
        "| llama.cpp q4_0 |  |  |  | 1,000 |",
        "",
        "(With random weights, 4-bit files select other tokens than the rest.)",
    ]
    assert lines[2].count("|") == lines[4].count("|") == len(README_COLUMNS) + 2


def test_table_replaces_text_between_markers(path: Path):
    page = path.with_name("README.md")
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    main([str(path), str(page)])
    table = readme_table(Report.read(path))
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n{table}\n{END}\nafter\n"


def test_missing_case_raises(path: Path):
    report = Report.read(path)
    del report.outcomes[3]
    with pytest.raises(ConfigError, match="'batch 8, lengths 16-128' of bert-base.*vit-b16: batch 1"):
        readme_table(report)


def seq2seq_results() -> dict:
    cases = {
        model: {case: {"ctranslate2 fp32": [0.5], "keras-tx fp32": [2.0, 0.25, 0.2]}}
        for model, case in SEQ2SEQ_COLUMNS.values()
    }
    cases[T5_BASE] = {
        case: {"keras-tx int8": [0.125]} for model, case in SEQ2SEQ_COLUMNS.values() if model == T5_BASE
    }
    outcomes = [outcome(model, one) for model, one in cases.items()]
    memory = outcome(T5_BASE, {"first": {"keras-tx int8": [1.0]}}, START)
    memory["results"][0]["figures"] = {"peak": [410e6, 400e6, 1e9]}
    machine = {"section": "machine", "model": "rate-fp32", "cases": [], "results": []}
    return {"date": "2026-11-19", "machine": MACHINE, "outcomes": [machine, *outcomes, memory]}


def test_encoder_decoders_have_their_own_tables(tmp_path: Path):
    path, readme, page = (tmp_path / name for name in ("bench.json", "README.md", "benchmark.md"))
    path.write_text(json.dumps(seq2seq_results()), encoding="utf-8")
    own, other = ("\n".join(markers) for markers in (SEQ2SEQ_MARKERS, README_MARKERS))
    readme.write_text(f"{other}\n{own}\nafter\n", encoding="utf-8")
    page.write_text(f"{own}\n", encoding="utf-8")
    for one in (readme, page):
        main([str(path), str(one)])
    report = Report.read(path)
    table = seq2seq_table(report)
    assert table.splitlines()[-3:] == [
        "| keras-tx fp32 | 250.0 |  |  | 250.0 |  |",
        "| keras-tx int8 |  | 125.0 | 125.0 |  | 410.0 |",
        "| ctranslate2 fp32 | 500.0 |  |  | 500.0 |  |",
    ]
    begin, end = SEQ2SEQ_MARKERS
    assert readme.read_text("utf-8") == f"{other}\n{begin}\n{table}\n{end}\nafter\n"
    written = page.read_text("utf-8")
    assert (
        f"#### models: {MARIAN}" in written and SENTENCES in written and f"#### models: {T5_SMALL}" in written
    )


def test_pages_have_the_markers():
    root = Path(__file__).parents[2]
    for name in ("README.md", "docs/benchmark.md"):
        text = (root / name).read_text("utf-8")
        assert all(text.count(marker) == 1 for marker in SEQ2SEQ_MARKERS)
