"""SampleText prints generated text and does not affect the training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError, TextError
from keras_tx.processing import characters
from tests.drawing import as_numpy

LETTERS = characters("abcdef\x07 ", eos_token="<|endoftext|>")


def gpt(run_eagerly: bool = True, **options: Any) -> Any:
    """Eager, which is faster than tracing for a few steps."""
    keras.utils.set_random_seed(0)
    model = keras_tx.gpt("pico", processing=LETTERS, depth=1, dropout=0.2, **options)
    model.compile(run_eagerly=run_eagerly)
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2) -> dict[str, list[float]]:
    keras.utils.set_random_seed(1)  # PyTorch's dropout uses the global seed
    ids = np.random.default_rng(0).integers(0, 6, (12, 9))
    x, y = ids[:, :-1], ids[:, 1:]
    options = {"batch_size": 2, "verbose": 0, "shuffle": False, "epochs": epochs}
    return model.fit(x, y, validation_data=(x, y), callbacks=list(callbacks), **options).history


def test_prints_after_each_epoch_and_does_not_affect_training():
    printed: list[str] = []
    model, plain = gpt(run_eagerly=False), gpt(run_eagerly=False)
    sample = keras_tx.SampleText("a bad ", max_new_tokens=12, samples=2, show=printed.append)
    history = fit(model, sample)
    assert history == fit(plain)
    for mine, theirs in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))
    assert len(printed) == 2
    for epoch, text in enumerate(printed):
        first, *rest = text.lstrip("\n").split("\n")
        losses = f"loss {history['loss'][epoch]:.4f}, val_loss {history['val_loss'][epoch]:.4f}"
        assert first == f"epoch {epoch + 1}, {losses}"
        assert "\n".join(rest).count("a bad ") == 2 and rest[1] == "---"
        assert "\x07" not in text
    generated = keras_tx.generate(
        model, "a bad ", tokenizer=sample._tokenizer, max_new_tokens=12, temperature=0.8, seed=0,
        stop_tokens=sample._stop, samples=2,
    )  # fmt: skip
    expected = "\n---\n".join(f"a bad {one.text}" for one in generated)
    assert printed[-1].endswith("\n" + expected.replace("\x07", "\\x07"))


def test_prints_every_n_steps():
    printed: list[str] = []
    fit(gpt(), keras_tx.SampleText("", every=4, max_new_tokens=3, show=printed.append))
    assert [text.split(",")[:2] for text in printed] == [[f"\nepoch {n}", " step 4"] for n in (1, 2)]


def test_prints_after_the_progress_bar(capsys):
    model = gpt()
    ids = np.zeros((2, 4), int)
    model.fit(ids, ids, epochs=2, verbose=2, callbacks=[keras_tx.SampleText("abc", max_new_tokens=2)])
    printed = [
        line[:7]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("Epoch", "1/1", "epoch"))
    ]
    assert [line.split(" ")[0] for line in printed] == ["Epoch", "1/1", "epoch", "Epoch", "1/1", "epoch"]


def test_invalid_arguments_raise_before_the_first_step():
    for sample, error, message in (
        (keras_tx.SampleText("bad xy"), TextError, "'xy'"),
        (keras_tx.SampleText("a" * 100), InputError, "100 tokens.* 64"),
        (keras_tx.SampleText("a", temperatur=1), ConfigError, "'temperatur'"),
    ):
        model = gpt()
        with pytest.raises(error, match=message):
            fit(model, sample)
        assert int(as_numpy(model.optimizer.iterations)) == 0
    plain = keras_tx.gpt("pico")
    plain.compile()
    with pytest.raises(ConfigError, match="'gpt'.* processing"):
        fit(plain, keras_tx.SampleText("a"))
    with pytest.raises(ConfigError, match="every is 0"):
        keras_tx.SampleText("a", every=0)
