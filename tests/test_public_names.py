"""The lazy public names: all there, all documented, and cheap until used."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys

import pytest

import keras_tx

MODULES = """
    losses optimizers training.recipes training.schedules training.text_samples
    metrics.classification metrics.entities metrics.ranking metrics.spans metrics.tokens
    processing.token_file processing.vocabularies
    models.bert.model models.gpt.model models.vit.model models.costs models.saved_models
    models.text_model models.transformer_model models.checkpoint_saving models.checkpoint_loading
""".split()


@pytest.mark.parametrize("name", keras_tx.__all__)
def test_every_name_is_there_and_documented(name: str):
    value = getattr(keras_tx, name)
    assert value is getattr(keras_tx, name)
    assert inspect.getdoc(value)
    assert name in dir(keras_tx)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'vitt'"):
        _ = keras_tx.vitt


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str):
    results = doctest.testmod(importlib.import_module(f"keras_tx.{module}"))
    assert results.failed == 0
    assert results.attempted


@pytest.mark.parametrize("module", ["callback", "export"])
def test_the_exporters_docstring_examples_run(module: str):
    results = doctest.testmod(importlib.import_module(f"keras_tx_onnx.{module}"))
    assert (results.failed, results.attempted > 0) == (0, True)


def test_a_fresh_process_loads_a_saved_model(tmp_path):
    keras_tx.vit("Mu/2", image_size=8, num_classes=3).save(tmp_path / "model.keras")
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import keras_tx\n"
        f"print(type(keras_tx.load_model({str(tmp_path / 'model.keras')!r})).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ViT"
