"""The README's table of the peers, from results that are made up here."""

from __future__ import annotations

import json

import pytest

from keras_tx.errors import ConfigError
from tests.benchmarks.comparisons import MODELS, OVERHEAD, START
from tests.benchmarks.readme_table import BEGIN, COLUMNS, END, main, table_of

MACHINE = {"cores": 2, "processor": "Intel 8086"}


def outcome(subject: str, cases: dict[str, dict[str, list[float]]], section: str = MODELS) -> dict:
    names = dict.fromkeys(name for found in cases.values() for name in found)
    measured = [
        {"name": name, "seconds": {case: found[name] for case, found in cases.items() if name in found}}
        for name in names
    ]
    return {"section": section, "subject": subject, "cases": list(cases), "measured": measured}


def results() -> dict:
    outcomes = [
        # other races of the same models, with cases of the same names
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


def test_a_row_for_each_contender_with_the_median_of_what_it_ran():
    lines = table_of(results()).splitlines()
    assert lines[0].endswith("medians on 2 cores of Intel 8086, 2026-11-18:")
    assert lines[4:] == [
        "| keras-tx fp32 | 200.0 | 205.1 | 50.0 | 7.0 |",
        "| stock | 250.0 |  |  |  |",
        "| llama.cpp q4_0 |  |  |  | 1000.0 |",
        "",
        "(With random weights, 4-bit files select other tokens than the rest.)",
    ]
    assert lines[2].count("|") == lines[4].count("|") == len(COLUMNS) + 2


def test_it_goes_between_the_markers_and_the_rest_stays(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(results()), encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    main([str(tmp_path / "bench.json"), str(page)])
    text = page.read_text(encoding="utf-8")
    assert text == f"before\n{BEGIN}\n{table_of(results())}\n{END}\nafter\n"


def test_a_page_without_markers_stays_as_it_is(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(results()), encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text("before\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="lacks the markers <!-- peers:begin -->"):
        main([str(tmp_path / "bench.json"), str(page)])
    assert page.read_text(encoding="utf-8") == "before\n"


def test_a_run_that_left_something_out_is_refused_by_name():
    given = results()
    del given["outcomes"][3]
    with pytest.raises(
        ConfigError, match="no 'batch 8, lengths 16-128' of bert-base among .*vit-b16: batch 1"
    ):
        table_of(given)
