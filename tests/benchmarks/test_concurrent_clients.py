"""Single requests of many clients are measured in three ways, and their answers are compared."""

from __future__ import annotations

import numpy as np
import pytest

import keras_tx
from keras_tx_onnx import export_onnx
from tests.benchmarks import concurrent_clients
from tests.drawing import redraw

SIZES = {"width": 64, "depth": 2, "num_heads": 4, "mlp_dim": 64, "vocabulary_size": 99, "max_length": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "bert"
    export_onnx(redraw(keras_tx.bert("tiny", **SIZES)), path, verify=False, precision=["fp32", "int8"])
    return path


def test_three_ways_take_turns_and_the_answers_are_the_same(folder, capsys):
    concurrent_clients.main(
        [str(folder), "--clients", "4", "--lengths", "2", "20", "--requests", "2", "--rounds", "2"]
    )
    printed = capsys.readouterr().out
    assert "4 clients, texts of 2 to 20 tokens, fp32" in printed
    assert all(f"| {way} |" in printed for way in ("at once", "queue", "batched"))
    assert "The answers are the same" in printed and "rest of the batch" not in printed


def test_measured_rates_and_batches(folder):
    measured = concurrent_clients.measure(
        folder, precision="int8", clients=3, lengths=(2, 20), requests=2, rounds=2
    )
    assert {way: len(rates) for way, rates in measured["rates"].items()} == {
        "at once": 2,
        "queue": 2,
        "batched": 2,
    }
    assert (
        measured["companions"] and measured["difference"] <= measured["allowed"] and measured["cosine"] > 0.99
    )
    assert 1 <= measured["batch"] <= 3
    low, middle, high = measured["ratio"]
    assert 0 < low <= middle <= high


def test_mixed_up_answers_are_reported(folder, monkeypatch: pytest.MonkeyPatch, capsys):
    made = concurrent_clients._answerer

    def confused(model):
        answer = made(model)
        return lambda texts: [np.roll(one, len(texts) - 1) for one in answer(texts)]

    monkeypatch.setattr(concurrent_clients, "_answerer", confused)
    concurrent_clients.main([str(folder), "--clients", "3", "--lengths", "2", "20", "--rounds", "1"])
    assert "The answers are NOT the same" in capsys.readouterr().out
