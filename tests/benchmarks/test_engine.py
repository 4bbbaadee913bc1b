"""The benchmark of TextEngine; its figures are for quiet machines."""

from __future__ import annotations

from pathlib import Path

import keras_tx
from keras_tx.generation import decoding_loop, sampling
from keras_tx_onnx import export_onnx
from tests.benchmarks import engine


def test_measure(tmp_path: Path):
    export_onnx(keras_tx.gpt("pico"), tmp_path / "poet", cache="shared", verify=False)
    measured = engine.measure(str(tmp_path / "poet"), tokens=6, rounds=1)
    assert list(measured["rates"]) == ["stream", "1 streams", "8 streams", "32 streams"]
    assert len(measured["first"]) == 64
    text = engine.describe(measured)
    assert text.count("\n| ") == 2 * 2 + 4 + 3
    assert "After a shared prefix of 46 tokens" in text
    assert decoding_loop.choose_token is sampling.choose_token
