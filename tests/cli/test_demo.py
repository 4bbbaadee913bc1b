"""The demo reaches the accuracy that the README states."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from keras_tx import demo
from keras_tx.demo import DemoResult
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime import load


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> DemoResult:
    return demo.run(tmp_path_factory.mktemp("demo") / "digits", verbose=0)


@pytest.mark.thorough
def test_accuracy_and_agreement_with_keras(result):
    assert result.keras_accuracy >= 0.97
    assert result.onnx_accuracy >= 0.97
    assert result.agreement == 1
    assert len(result.predictions) == 360


@pytest.mark.thorough
def test_folder_has_labels_and_a_model_type(result):
    assert not result.report.manifest.notes  # a real model_type, so that other clients open it too
    with load(result.folder) as model:
        assert model.labels == demo.LABELS
        assert model.folder.config["model_type"] == "vit"


@pytest.mark.thorough
def test_picture_is_a_test_digit(result):
    assert result.picture == result.folder.with_name("digits.png")
    np.testing.assert_array_equal(
        np.asarray(Image.open(result.picture)), result.digits.test_images[0, ..., 0]
    )


@pytest.mark.thorough
def test_summary_has_the_accuracy(result):
    text = str(result)
    assert f"{result.onnx_accuracy:.1%} in onnxruntime" in text
    assert "100.0% of the 360 test images" in text
    assert result.confusions.total() == (result.predictions != result.digits.test_labels).sum()


@pytest.mark.thorough
def test_command_prints_digits_and_next_steps(tx, monkeypatch, tmp_path, result):
    received = {}

    def run(folder, **options):
        received.update(options, folder=folder)
        options["say"]("Training.")
        return result

    monkeypatch.setattr(demo, "run", run)
    ran = tx("demo", "--folder", tmp_path / "new", "--seed", 7)
    assert (ran.code, ran.err) == (0, "")
    assert (received["folder"], received["epochs"], received["seed"]) == (
        tmp_path / "new",
        demo.EPOCHS,
        7,
    )
    assert "█" in ran.out
    assert "onnxruntime within" in ran.out
    assert f"  keras-tx run {result.folder} {result.picture}\n" in ran.out
    assert tx("run", result.folder, result.picture).code == 0
    assert tx("verify", result.folder).code == 0


def test_help_names_the_default_folder(capsys, tx):
    with pytest.raises(SystemExit):
        tx("demo", "--help")
    assert f"(default: {demo.EPOCHS})" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["digits", "digits.png"])
def test_existing_files_are_not_overwritten(tx, tmp_path, name):
    (tmp_path / name).mkdir()
    ran = tx("demo", "--folder", tmp_path / "digits")
    assert ran.err.startswith(f"keras-tx: error: {tmp_path / name} exists. Add --overwrite to replace it")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    with pytest.raises(ExportError, match="exists"):
        demo.run(tmp_path / "digits")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 0}, "epochs.*0"),
        ({"epochs": "ten"}, "epochs.*'ten'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_bad_arguments(tmp_path, options, expected):
    with pytest.raises(ConfigError, match=expected):
        demo.run(tmp_path / "digits", **options)


def test_folder_below_a_file_raises(tx, tmp_path):
    (tmp_path / "file").touch()
    ran = tx("demo", "--folder", tmp_path / "file" / "digits")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "file is not a folder" in ran.err


def test_split_is_stratified_and_shifts_are_small():
    digits = demo.load_digits(3)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_images.max() == 255
    counts = np.bincount(digits.test_labels)
    assert counts.sum() == 360
    assert counts.min() >= 34
    images, labels = demo.with_variations(digits.train_images[:50], digits.train_labels[:50], 0)
    assert images.shape == (50 * (1 + demo.COPIES), 8, 8, 1)
    np.testing.assert_array_equal(images[:50], digits.train_images[:50])
    assert labels[50] == labels[0]
    different = np.abs(images[50:100].astype(int) - images[:50]).mean()
    assert 5 < different < 40
