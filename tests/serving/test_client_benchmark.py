"""`keras-tx bench --clients`: options, measurements, and the recommendation."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.cli import main
from keras_tx.errors import ConfigError, RunError
from keras_tx.runtime import load
from keras_tx.serving import client_benchmark
from keras_tx.serving.client_benchmark import ClientMeasurement, plan, recommend
from keras_tx.serving.http.model_set import ModelOptions, ServedModel
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.export.small_bert import HEADS, tiny
from tests.exported_folders import ExportedFolders
from tests.quantizing.folders import vit

FAST = ["--seconds", "0.1", "--threads", "1"]


@pytest.mark.parametrize(
    ("name", "options", "batches"),
    [
        ("bert, classifier", ["--length", "20"], [1, 32]),
        ("vit", ["--batch-size", "4"], [4]),
        ("gpt", ["--length", "8", "--new-tokens", "4"], [4, 16]),
        ("translation", ["--length", "8", "--new-tokens", "4", "--batch-size", "2"], [2]),
    ],
)
def test_settings_are_measured(
    name: str,
    options: list[str],
    batches: list[int],
    exported_folders: ExportedFolders,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    results = tmp_path / "results.json"
    folder = exported_folders[name].path
    assert main(["bench", str(folder), "--clients", "3", "1", *FAST, *options, "--json", str(results)]) == 0
    content = json.loads(results.read_text())
    rows = content["measurements"]
    assert [(row["batch_size"], row["clients"]) for row in rows] == [(n, m) for n in batches for m in (1, 3)]
    for row in rows:
        assert 0 < row["p50"] <= row["p95"] <= row["p99"]
        assert len(row["latencies"]) >= row["clients"] * client_benchmark.LEAST
        assert len(row["first_tokens"]) == (len(row["latencies"]) if name == "gpt" else 0)
        assert row["throughput"] > 0 and (row["memory"] is None or row["memory"] > 1e7)
    printed = capsys.readouterr().out
    assert "for 3 clients" in printed and "p99" in printed
    generates = name in ("gpt", "translation")
    assert ("first token" in printed, content["unit"] == "tokens/s") == (name == "gpt", generates)
    assert ("TextEngine(load(" if name == "gpt" else "MicroBatcher(load(") in printed
    assert f"keras-tx serve {folder} --precision" in printed
    assert f"--max-{'streams' if name == 'gpt' else 'batch'} " in printed


def test_streams_of_a_decoder_run_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in the server; a folder without a shared cache runs them one by one, which the note says."""
    from keras_tx.runtime.shared_cache import SharedCache

    shapes: list[tuple[int, ...]] = []
    run = SharedCache.run

    def watched(cache: SharedCache, ids: np.ndarray, *arguments: Any) -> np.ndarray:
        shapes.append(ids.shape)
        return run(cache, ids, *arguments)

    monkeypatch.setattr(SharedCache, "run", watched)
    order = {"sizes": {contract.SEQUENCE_AXIS: 8}, "new_tokens": 16, "seconds": 0.0}
    for name, cache in (("shared", "shared"), ("plain", True)):
        export_onnx(keras_tx.gpt("pico"), tmp_path / name, cache=cache, verify=False)
        with load(tmp_path / name, provider="cpu", threads=1) as model:
            case = client_benchmark._streams(model, 4, 4, order)
        assert len(case["first_tokens"]) == len(case["latencies"]) >= 4 * client_benchmark.LEAST
        assert ("cache='shared'" in case["note"]) == (name == "plain")
        assert bool(shapes) == (name == "shared")
        if shapes:
            assert max(rows for rows, _ in shapes) > 1
        shapes.clear()


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (vit, []),
        (lambda: redraw(keras_tx.t5("tiny", depth=1, width=64, num_heads=2)), ["--length", "4"]),
    ],
    ids=["vit", "t5"],
)
def test_requests_run_alone_where_the_server_has_no_batches(
    build: Callable[[], Any],
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """In int8 with ranges of the whole batch, beside fp32 with batches."""
    folder, results = tmp_path / "folder", tmp_path / "results.json"
    export_onnx(build(), folder, precision=["fp32", "int8"], verify=False)
    arguments = ["bench", str(folder), "--clients", "2", "--batch-size", "4", *FAST, *options]
    assert main([*arguments, "--json", str(results)]) == 0
    assert "int8: each request runs alone. Precision 'int8' rounds" in capsys.readouterr().out
    content = json.loads(results.read_text())
    sizes = {"fp32": 4, "int8": 1}
    for row in content["measurements"]:
        assert row["batch_size"] == sizes[row["precision"]] and row["throughput"] > 0
        with load(folder, provider="cpu", precision=row["precision"]) as model:
            served = ServedModel("one", model, ModelOptions(), lambda size: None)
            assert (served._batcher is None) == bool(row["note"]) and row["note"] in served.batching
            if served._batcher is not None:
                served._batcher.close()
    assert main([*arguments, "--precision", "int8"]) == 0
    printed = capsys.readouterr().out
    command = f"keras-tx serve {folder} --precision int8 --threads 1\n"
    assert command in printed and "MicroBatcher" not in printed and "--max-batch" not in printed


def test_arrays_run_alone(exported_folders: ExportedFolders, tmp_path: Path):
    """Also those of texts without a tokenizer."""
    assert plan(exported_folders["bert, classifier"].path, [2]).alone == {}
    export_onnx(tiny(HEADS["classifier"]), tmp_path / "ids", verify=False)
    alone = plan(tmp_path / "ids", [2]).alone
    with load(tmp_path / "ids", provider="cpu") as model:
        served = ServedModel("ids", model, ModelOptions(), lambda size: None)
    assert served._batcher is None and alone["fp32"] in served.batching


def test_each_client_waits_for_its_answer():
    running, most, lock = 0, 0, threading.Lock()

    def request(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    latencies, seconds = client_benchmark.measure_clients(request, 3, 0.0)
    assert len(latencies) == 3 * client_benchmark.LEAST and most == 3
    assert min(latencies) >= 0.01 and seconds >= client_benchmark.LEAST * 0.01


def test_latencies_do_not_include_the_making_of_requests(monkeypatch: pytest.MonkeyPatch):
    """By a clock on which only that takes time."""
    now = 0.0

    def content_of(number: int) -> str:
        nonlocal now
        now += 1000.0
        return str(number)

    def request(content: str) -> None:
        nonlocal now
        contents.append(content)
        now += 1.0

    contents: list[str] = []
    monkeypatch.setattr(client_benchmark.time, "perf_counter", lambda: now)
    latencies, _ = client_benchmark.measure_clients(request, 1, 0.0, content_of)
    assert latencies == [1.0] * client_benchmark.LEAST and contents == ["0", "0", "1", "2", "3"]


def test_an_error_of_one_client_ends_the_benchmark():
    """The other clients wait for it before they begin."""
    requests = []

    def request(number: int) -> None:
        requests.append(number)
        if number == 2:
            raise RunError("no memory")

    with pytest.raises(RunError, match="no memory"):
        client_benchmark.measure_clients(request, 3, 0.0)
    assert sorted(requests) == [0, 0, 1, 2]


def test_batches_are_padded_to_the_longest_text(exported_folders: ExportedFolders):
    with load(exported_folders["bert, classifier"].path) as model:
        order = {"sizes": {contract.SEQUENCE_AXIS: 20}}
        rows = client_benchmark._rows(model, order)
        lengths = {len(row[contract.INPUT_IDS]) for row in rows}
        assert min(lengths) >= 3 and max(lengths) == 20 and len(lengths) > 5
        answer = client_benchmark._batched(model.session, 20)
        together, alone = answer(rows), [answer([row])[0] for row in rows]
    assert np.abs(np.stack(together) - np.stack(alone)).max() < contract.FLOAT32 * np.abs(alone).max()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit", {"clients": []}, "clients is empty"),
        ("vit", {"clients": [0]}, "clients is 0"),
        ("vit", {"clients": [5000]}, "clients=5000"),
        ("vit", {"clients": [2], "length": 4}, "length=4"),
        ("gpt", {"clients": [2], "batch_sizes": [0]}, "batch_size is 0"),
    ],
)
def test_options_that_do_not_fit_raise(
    name: str, options: dict[str, Any], message: str, exported_folders: ExportedFolders
):
    with pytest.raises(ConfigError, match=message):
        plan(exported_folders[name].path, **options)


def test_fixed_batch_size_raises(tmp_path: Path):
    fixed = keras.Input(batch_shape=(2, 3))
    export_onnx(keras.Model(fixed, keras.layers.Dense(2)(fixed)), tmp_path / "fixed", verify=False)
    with pytest.raises(ConfigError, match="batch size of 2"):
        plan(tmp_path / "fixed", [4])


def test_arrays_are_measured(tmp_path: Path):
    inputs = keras.Input((None, 3), name="a")
    export_onnx(keras.Model(inputs, keras.layers.Dense(2)(inputs)), tmp_path / "generic", verify=False)
    checked = plan(tmp_path / "generic", [2], threads=[1], batch_sizes=[4], seconds=0.1)
    (measured,) = client_benchmark.run(checked)
    assert measured.problem == "" and measured.throughput > 0


def row(precision: str, threads: int, batch_size: int, rate: float, latency: float) -> ClientMeasurement:
    return ClientMeasurement(
        precision, threads, batch_size, 16, latencies=[latency] * 3, rates=[rate, rate, rate]
    )


def test_recommendation():
    manifest = contract.Manifest("0", None, 23, {}, (), (), {}, {}, variants={})
    rows = [row("fp32", 1, 1, 100, 0.02), row("fp32", 1, 32, 160, 0.012), row("fp32", 2, 32, 155, 0.01)]
    choice = recommend(rows, manifest)
    assert choice is not None and choice.setting == ("fp32", 2, 32, 16)  # within 5 %, and lower p95
    assert any("1.55x" in reason and "20 ms" in reason for reason in choice.reasons)
    few = ClientMeasurement("fp32", 4, 1, 1, latencies=[0.001], rates=[1000.0])
    assert recommend([*rows, few], manifest) == choice  # for the most clients
    rows[2].problem = "killed"
    choice = recommend(rows, manifest)
    assert choice is not None and choice.setting == ("fp32", 1, 32, 16)
    assert recommend(rows[2:], manifest) is None
