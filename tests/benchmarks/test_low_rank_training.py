"""The benchmark of LoRA prints a row for each kind of training."""

from __future__ import annotations

from tests.benchmarks import low_rank_training


def test_the_table():
    lines = low_rank_training.measure("pico", 1, 8, 1).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert [row[0] for row in rows] == ["whole", "lora", "enable_lora"]
    assert rows[1][1:4] == rows[2][1:4]  # the same matrices
    assert rows[0][3] == "100.00%" != rows[1][3]
