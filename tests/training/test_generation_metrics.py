"""GenerationMetrics logs the metrics of generated texts and does not affect the training."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import metrics
from keras_tx.data import sequence_to_sequence_batches
from keras_tx.errors import ConfigError, InputError, TextError
from keras_tx.processing import characters
from tests.drawing import as_numpy

LETTERS = characters("abcdef ", eos_token="<|endoftext|>")
SOURCES, TARGETS = ["a", "bad ", "fed"] * 3, ["bc", "dead", ["abc", "ddd"]] * 3


def gpt(run_eagerly: bool = True, **options: Any) -> Any:
    """Eager, which is faster than tracing for a few steps."""
    keras.utils.set_random_seed(0)
    model = keras_tx.gpt("pico", processing=LETTERS, depth=1, dropout=0.2, **options)
    model.compile(run_eagerly=run_eagerly)
    return model


def fit(model: Any, *callbacks: Any, **options: Any) -> dict[str, list[float]]:
    keras.utils.set_random_seed(1)  # PyTorch's dropout uses the global seed
    ids = np.random.default_rng(0).integers(0, 6, (12, 9))
    settings = {"batch_size": 2, "verbose": 0, "shuffle": False, "epochs": 2, **options}
    return model.fit(ids[:, :-1], ids[:, 1:], callbacks=list(callbacks), **settings).history


def test_logs_the_metrics_of_generated_texts_and_does_not_affect_training():
    pytest.importorskip("sacrebleu", reason='pip install "keras-tx[metrics]"')
    model, plain, texts = gpt(run_eagerly=False), gpt(run_eagerly=False), []
    callback = keras_tx.GenerationMetrics(SOURCES, TARGETS, batch_size=4, max_new_tokens=4)
    after_epoch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: texts.append(callback.texts)
    )
    history = fit(model, callback, after_epoch)
    expected = fit(plain)
    for name, values in expected.items():
        assert history[name] == values
    for mine, theirs in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))
    assert set(history) == {*expected, "val_exact_match", "val_bleu", "val_chrf"}
    for epoch in (0, 1):
        assert history["val_bleu"][epoch] == metrics.bleu(texts[epoch], TARGETS)
        assert history["val_chrf"][epoch] == metrics.chrf(texts[epoch], TARGETS)
        assert history["val_exact_match"][epoch] == metrics.exact_match(texts[epoch], TARGETS)
    generated = keras_tx.generate(model, SOURCES, max_new_tokens=4)
    assert texts[1] == [one.text for one in generated]


def test_exact_match_of_a_trained_model_does_not_need_sacrebleu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"keras-tx\[metrics\]"):
        keras_tx.GenerationMetrics(SOURCES, TARGETS)
    model = gpt()
    model.compile(keras_tx.AdamW(1e-2))
    ids = np.tile(LETTERS.pieces(["abcabcabc"])[0].ids, (64, 1))
    callback = keras_tx.GenerationMetrics(
        ["ab", "c"], ["cab", "bca"], metrics=["exact_match"], max_new_tokens=3
    )
    stop = keras.callbacks.EarlyStopping("val_exact_match", mode="max", baseline=0.4, patience=3)
    options = {"batch_size": 8, "epochs": 10, "verbose": 0}
    history = model.fit(ids[:, :-1], ids[:, 1:], callbacks=[callback, stop], **options).history
    assert history["val_exact_match"][-1] == 0.5


def test_metrics_of_an_encoder_decoder():
    pytest.importorskip("sacrebleu", reason='pip install "keras-tx[metrics]"')
    sources, targets = ["ab", "fed", "cab"], ["ba", "def", "bac"]
    letters = characters("abcdef", pad_token="p", eos_token="<|endoftext|>")
    keras.utils.set_random_seed(0)
    model = keras_tx.transformer("tiny", processing=letters, depth=1, dropout=0.0)
    model.compile(keras_tx.transformer_recipe(model, learning_rate=1e-2, warmup=10))
    batches = sequence_to_sequence_batches(sources * 40, targets * 40, model.processing, batch_size=12)
    callback = keras_tx.GenerationMetrics(sources, targets, max_new_tokens=5, num_beams=2)
    history = model.fit(batches, epochs=6, verbose=0, shuffle=False, callbacks=[callback]).history
    assert callback.texts == targets
    assert history["val_exact_match"][-1] == 1
    assert history["val_chrf"][-1] == pytest.approx(100)


def test_progress_bar_is_shown_unless_verbose_is_0(capsys: pytest.CaptureFixture[str]):
    for verbose in (0, 2):
        callback = keras_tx.GenerationMetrics(["a"], ["b"], metrics=["exact_match"], max_new_tokens=1)
        fit(gpt(), callback, epochs=1, verbose=verbose)
        captured = capsys.readouterr()
        assert ("1 of 1 texts" in captured.err) == ("val_exact_match: 0" in captured.out) == (verbose == 2)


def test_invalid_arguments_raise_before_the_first_step():
    for arguments, error, message in (
        ({"sources": ["a a", "a" * 100], "targets": ["a", "b"]}, InputError, "100 tokens.* 64"),
        ({"temperatur": 1}, ConfigError, "'temperatur'"),
        ({"sources": ["ax"]}, TextError, "'x'"),
    ):
        model = gpt()
        with pytest.raises(error, match=message):
            options = {"sources": ["a"], "targets": ["b"], "metrics": ["exact_match"], **arguments}
            fit(model, keras_tx.GenerationMetrics(**options))
        assert int(as_numpy(model.optimizer.iterations)) == 0
    for arguments, error, message in (
        ({"metrics": ["blue"]}, ConfigError, "'blue'.*'bleu'"),
        ({"sources": ["a", "b"]}, TextError, "2 predictions and 1 references"),
        ({"samples": 2}, ConfigError, "samples=2"),
        ({"batch_size": 0}, ConfigError, "batch_size is 0"),
    ):
        with pytest.raises(error, match=message):
            keras_tx.GenerationMetrics(**{"sources": ["a"], "targets": ["b"], **arguments})
    plain = keras_tx.gpt("pico")
    plain.compile()
    with pytest.raises(ConfigError, match="'gpt'.* processing"):
        fit(plain, keras_tx.GenerationMetrics(["a"], ["b"], metrics=["exact_match"]))
