"""The benchmark of input pipelines runs for every task."""

from __future__ import annotations

import pytest

from tests.benchmarks import input_pipeline


@pytest.mark.slow
def test_prints_one_row_per_task(capsys):
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    options = "--variants tiny --steps 3 --rounds 1 --batch-size 2 --length 32"
    input_pipeline.main(options.split())
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0].strip("| ") for row in rows[2:]] == [
        *("masked language", "pairs", "spans", "labels", "labels of words")
    ]
    assert all(len(row) == len(rows[0]) for row in rows if "---" not in row[0])
