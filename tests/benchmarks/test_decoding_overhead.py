"""The benchmark of what a token costs beside the model runs; its figures are for quiet machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import decoding_overhead
from tests.runtime.counting_decoder import make


def test_tables_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoding_overhead, "VOCABULARY", 1000)
    table = decoding_overhead.choice(tokens=2, runs=1).splitlines()
    assert len(table) == 2 + len(decoding_overhead.OPTIONS)
    assert all(re.fullmatch(r"\| .+ \| \d+\.\d{3} \| \d+\.\d{3} \|", line) for line in table[2:])
    folder = make(tmp_path / "counter")
    steps = decoding_overhead.steps(str(folder), tokens=8).splitlines()
    assert "CachedDecoder" in steps[0]
    assert [line.split("|")[1].strip() for line in steps[4:]] == ["16"]  # its context is 40
    assert all(float(cell) >= 0 for cell in steps[4].split("|")[2:-1])


def test_prepared_decoder_has_the_vocabulary_of_gpt2():
    for logits in decoding_overhead.kinds_of_logits().values():
        assert logits.shape == (50257,)
        assert logits.dtype == "float32"
