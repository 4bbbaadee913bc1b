"""`keras_tx.runtime.benchmark` and `keras-tx bench`: options, measurements, and the recommendation."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.cli import main
from keras_tx.errors import InputError, KerasTxError
from keras_tx.processing import train_wordpiece
from keras_tx.runtime import benchmark
from keras_tx.runtime.benchmark import Measurement, plan, recommend
from keras_tx_onnx import export_onnx
from tests.runtime import counting_encoder_decoder

TEXTS = ["Never again.", "It was a film.", "A very good film."]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind; the image and text folders have two precisions."""
    parent = tmp_path_factory.mktemp("folders")
    keras.utils.set_random_seed(0)
    vit = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    export_onnx(vit, parent / "image", precision=["fp32", "int8"], verify=False)
    words = train_wordpiece(TEXTS, size=60)
    bert = keras_tx.bert("tiny", depth=1, max_length=24, head=keras_tx.ClassifierHead(2), processing=words)
    export_onnx(bert, parent / "text", precision=["fp32", "int8"], verify=False)
    export_onnx(keras_tx.gpt("pico"), parent / "generation", verify=False)
    counting_encoder_decoder.make(parent / "text-to-text")
    a, b = keras.Input((None, 3), name="a"), keras.Input((None, 3), name="b")
    export_onnx(keras.Model([a, b], keras.layers.Dense(2)(a + b)), parent / "generic", verify=False)
    fixed = keras.Input(batch_shape=(2, 3))
    export_onnx(keras.Model(fixed, keras.layers.Dense(2)(fixed)), parent / "fixed", verify=False)
    return parent


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_image_folder_with_two_precisions(folders: Path, bench: Command, tmp_path: Path):
    results = tmp_path / "results.json"
    options = ["--threads", 1, "--batch-size", 2, 1, "--seconds", 0.1, "--json", results]
    code, out, _ = bench(folders / "image", *options)
    assert code == 0
    assert "on cpu" in out and "images/s" in out and "precision='" in out
    content = json.loads(results.read_text())
    rows = content["measurements"]
    assert [(row["precision"], row["threads"], row["batch_size"]) for row in rows] == [
        ("fp32", 1, 1),
        ("fp32", 1, 2),
        ("int8", 1, 1),
        ("int8", 1, 2),
    ]
    for row in rows:
        assert 0 < row["median"] <= row["p90"] and len(row["latencies"][0]) >= benchmark.LEAST
        assert row["throughput"] == pytest.approx(row["batch_size"] / row["median"])
        assert row["memory"] is None or row["memory"] > 1e7
    assert content["recommendation"]["precision"] in ("fp32", "int8")
    assert content["unit"] == "images/s" and content["plan"]["batch_sizes"] == [1, 2]


@pytest.mark.parametrize(
    ("name", "options", "heading"),
    [
        ("text", ["--length", 10, "--precision", "fp32"], "sequence_length=10"),
        ("generation", ["--length", 8, "--new-tokens", 4], "sequence_length=8, new_tokens=4"),
        (
            "text-to-text",
            ["--length", 20, "--new-tokens", 19],
            "encoder_sequence_length=20, new_tokens=19",
        ),
        ("generic", ["--batch-size", 3], "on cpu"),
        ("fixed", [], "on cpu"),
    ],
)
def test_other_kinds_of_folders(name: str, options: list[Any], heading: str, folders: Path, bench: Command):
    batch = [] if "--batch-size" in options or name == "fixed" else ["--batch-size", 2]
    code, out, _ = bench(folders / name, "--threads", 1, "--seconds", 0.1, *batch, *options)
    assert code == 0 and heading in out
    assert ("prefill" in out) == (name in ("generation", "text-to-text"))


def test_default_length_is_what_the_model_accepts(folders: Path):
    assert plan(folders / "text").sizes[contract.SEQUENCE_AXIS] == 24
    generation = plan(folders / "generation", new_tokens=10)
    context = json.loads((folders / "generation" / "config.json").read_text())["n_positions"]
    assert generation.sizes[contract.SEQUENCE_AXIS] == min(128, context - 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("image", {"precisions": ["int4"]}, "precision is 'int4'"),
        ("image", {"threads": [0]}, "threads is 0"),
        ("image", {"threads": [5000]}, "threads=5000"),
        ("image", {"batch_sizes": [0]}, "batch_size is 0"),
        ("image", {"length": 4}, "length=4"),
        ("image", {"new_tokens": 4}, "new_tokens=4"),
        ("image", {"seconds": 0}, "seconds=0"),
        ("image", {"provider": "cpus"}, "'cpus'"),
        ("image", {"sizes": {"width": 4}}, "'width'"),
        ("text", {"length": 25}, "length=25"),
        ("text", {"sizes": {"sequence_length": 25}}, "length=25"),
        ("generation", {"new_tokens": 100_000}, "new_tokens=100000"),
        ("text-to-text", {"new_tokens": 20}, "new_tokens=20"),
        ("text-to-text", {"length": 21, "new_tokens": 4}, "length=21"),
        ("fixed", {"batch_sizes": [3]}, "batch_size=3"),
    ],
)
def test_options_that_do_not_fit_raise(name: str, options: dict[str, Any], message: str, folders: Path):
    with pytest.raises(KerasTxError, match=message):
        plan(folders / name, **options)


def test_sizes_outside_a_bound_raise(folders: Path, tmp_path: Path):
    folder = Path(shutil.copytree(folders / "generic", tmp_path / "bounded"))
    written = contract.Manifest.from_json((folder / contract.MANIFEST).read_text())
    axis = next(axis for axis in written.inputs[0].shape[1:] if isinstance(axis, str))
    dataclasses.replace(written, bounds=(f"{axis} <= 10",)).save(folder)
    assert plan(folder, sizes={axis: 10}).sizes == {axis: 10}
    with pytest.raises(InputError, match=f"{axis}=11"):
        plan(folder, sizes={axis: 11})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "width"], "--size width"),
        (["--size", "width=big"], "--size width=big"),
        (["--threads", "none"], "'none'"),
        (["--precision", "int3"], "int3"),
        (["--json", "missing/results.json"], "missing"),
        (["--json", "taken.json"], "taken.json exists"),
        (["--json", "copy/results.json"], "inside the exported folder"),
    ],
)
def test_wrong_command_lines_raise(
    options: list[str],
    message: str,
    folders: Path,
    bench: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "run", lambda *_: pytest.fail("it ran"))
    (tmp_path / "taken.json").touch()
    (tmp_path / "copy").symlink_to(folders / "image")
    code, _, err = bench(folders / "image", *options)
    assert code == 2 and message in err


def test_setting_that_does_not_run_is_listed(folders: Path, bench: Command, monkeypatch: pytest.MonkeyPatch):
    measure = benchmark._measure

    def failing(chosen: Any, settings: list[Measurement]) -> bool:
        if settings[0].precision == "int8":
            settings[0].problem = settings[1].problem = "the process was killed"
            return False
        return measure(chosen, settings)

    monkeypatch.setattr(benchmark, "_measure", failing)
    code, out, _ = bench(folders / "image", "--threads", 1, "--seconds", 0.1)
    assert code == 1 and "int8, threads=1: the process was killed" in out


def test_error_of_the_process_is_the_problem(folders: Path):
    chosen = plan(folders / "generic", sizes={}, threads=[1], batch_sizes=[1], seconds=0.1)
    row = Measurement("fp32", 1, 1)
    broken = Path(folders / "nowhere")
    assert not benchmark._measure(dataclasses.replace(chosen, folder=broken), [row])
    assert "nowhere" in row.problem


def manifest(**variants: tuple[float, float | None]) -> contract.Manifest:
    made = {
        name.replace("_", "-"): contract.Variant("recipe", noise, agreement)
        for name, (noise, agreement) in variants.items()
    }
    return contract.Manifest("0", None, 23, {}, (), (), {}, {}, variants=made)


def row(precision: str, threads: int, batch_size: int, seconds: float, problem: str = "") -> Measurement:
    return Measurement(precision, threads, batch_size, latencies=[[seconds] * 3], problem=problem)


def test_fastest_precision_that_agrees_is_recommended():
    rows = [row("fp32", 1, 1, 0.04), row("int8", 1, 1, 0.02), row("int4", 1, 1, 0.01)]
    choice = recommend(rows, manifest(int8=(0.01, 0.99), int4=(0.3, 0.8)))
    assert choice is not None and choice.precision == "int8"
    assert any("int8: 2.0x" in reason and "99.0%" in reason for reason in choice.reasons)
    assert any("int4 is 2.0x faster" in reason and "80.0%" in reason for reason in choice.reasons)
    without_labels = recommend(rows, manifest(int8=(0.2, None), int4=(0.05, None)))
    assert without_labels is not None and without_labels.precision == "int4"


def test_fewer_threads_and_smaller_batches_win_where_they_are_as_fast():
    rows = [
        row("fp32", 1, 1, 0.0102),
        row("fp32", 1, 8, 0.08),
        row("fp32", 2, 1, 0.01),
        row("fp32", 2, 8, 0.08),
    ]
    choice = recommend(rows, manifest())
    assert choice is not None and (choice.threads, choice.batch_size) == (1, 1)
    rows[3] = row("fp32", 2, 8, 0.04)
    choice = recommend(rows, manifest())
    assert choice is not None and (choice.threads, choice.batch_size) == (2, 8)
    assert any("threads=2: 2.0x" in reason for reason in choice.reasons)
    assert any("batch size 8: 2.0x" in reason and "10 ms" in reason for reason in choice.reasons)


def test_settings_with_a_problem_are_not_recommended():
    rows = [row("fp32", 1, 1, 0.04), row("int8", 1, 1, 0.0, problem="killed")]
    choice = recommend(rows, manifest(int8=(0.01, 0.99)))
    assert choice is not None and choice.precision == "fp32"
    assert recommend(rows[1:], manifest()) is None


def test_median_is_of_rounds_and_p90_of_runs():
    one = Measurement("fp32", 1, 4, latencies=[[1.0] * 9, [2.0, 2.0, 9.0], [3.0]])
    assert one.median == 2.0 and one.throughput == 2.0
    assert one.p90 == pytest.approx(np.percentile([1.0] * 9 + [2.0, 2.0, 9.0, 3.0], 90))
