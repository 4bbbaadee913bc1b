"""Interrupted training goes on as if nothing had happened: batches, weights, dropout, losses, epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import TokenWriter
from keras_tx.training import fit_resumable, pretrain_recipe, resuming
from keras_tx.training.packing import token_blocks
from tests.drawing import as_numpy

EPOCHS, STEPS = 3, 6


class Interruption(Exception):
    pass


class Watch(keras.callbacks.Callback):
    """Counts the steps, and raises behind one of them; it comes first, so that this step is not saved."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.steps, self.stop = 0, stop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == self.stop:
            raise Interruption


def write(path: Path, count: int = 8 * 4 * STEPS + 11) -> Path:
    ids = np.random.default_rng(0).integers(0, 30, count)
    with TokenWriter(path, vocabulary=32, end_of_text=31) as writer:
        writer.add(ids, text_bytes=ids.size)
        writer.end_document()
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("corpus") / "train.tokens")


def made(corpus: Path, batch_size: int = 4, depth: int = 1) -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    rates = {"dropout": 0.2, "attention_dropout": 0.2}
    model = keras_tx.gpt("pico", vocabulary=32, width=16, depth=depth, **rates)
    model.compile(pretrain_recipe(EPOCHS * STEPS, learning_rate=3e-3, warmup=3))
    return model, token_blocks(corpus, 8, batch_size, seed=5)


def fitted(corpus: Path, state: Path, stop: int | None = None, **options: Any) -> tuple[Any, dict, int]:
    """The model, the history, and how many steps were made in this go."""
    model, blocks = made(corpus)
    assert len(blocks) == STEPS
    watch = Watch(stop)
    unseen = token_blocks(corpus, 8, 4, shuffle=False)
    options = {"epochs": EPOCHS, "verbose": 0, "validation_data": unseen, "callbacks": [watch], **options}
    try:
        history = fit_resumable(model, blocks, state, **options).history
    except Interruption:
        history = {}
    return model, history, watch.steps


def assert_same(one: Any, other: Any) -> None:
    """Bit by bit, the states of optimizer and dropout included."""
    for mine, theirs in zip(
        (*one.variables, *one.optimizer.variables),
        (*other.variables, *other.optimizer.variables),
        strict=True,
    ):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs), err_msg=mine.path)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory) -> tuple[Any, dict]:
    model, history, steps = fitted(corpus, tmp_path_factory.mktemp("whole") / "run.state")
    assert steps == EPOCHS * STEPS
    return model, history


@pytest.mark.parametrize(("stops", "saved"), [([3, 7], [2, 8]), ([12], [10])])
def test_it_goes_on_at_the_exact_step(corpus, tmp_path, whole, stops: list[int], saved: list[int]):
    """Interrupted in the middle of the first and of the second epoch; behind the last step of the second."""
    state, done = tmp_path / "run.state", 0
    for stop, until in zip(stops, saved, strict=True):
        _, _, steps = fitted(corpus, state, stop, every=2)
        assert done + (steps - 1) // 2 * 2 == until
        done = until
    model, history, steps = fitted(corpus, state, every=2)
    assert steps == EPOCHS * STEPS - done
    assert_same(model, whole[0])
    assert history == whole[1]
    model, history, steps = fitted(corpus, state)  # nothing is left to do
    assert steps == 0
    assert_same(model, whole[0])
    assert history == whole[1]
    assert [path.name for path in tmp_path.iterdir()] == ["run.state"]


def test_an_interruption_while_the_state_is_written_leaves_the_one_before(corpus, tmp_path, monkeypatch):
    state = tmp_path / "run.state"
    model, blocks = made(corpus)
    keeper = resuming._Keeper(model, blocks, state, None)
    keeper._save(model)
    before = state.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resuming.np, "savez", half)
    with pytest.raises(OSError, match="No space left"):
        keeper._save(model)
    assert state.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.state"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 5}, "with batches: batch_size 4, now it is 5"),
        ({"depth": 2}, r"with variable 21 of the model \['gamma', \[16\]\], now it is"),
        ({"longer": True}, "with batches: samples 24, now it is"),
    ],
)
def test_another_training_is_refused(corpus, tmp_path, change, says):
    state = tmp_path / "run.state"
    model, blocks = made(corpus)
    resuming._Keeper(model, blocks, state, None)._save(model)
    if change.pop("longer", False):
        corpus = write(tmp_path / "other.tokens", 500)
    model, blocks = made(corpus, **change)
    before = [as_numpy(v).copy() for v in model.variables]
    with pytest.raises(ConfigError, match=says):
        fit_resumable(model, blocks, state, epochs=2)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(as_numpy(variable), value)


def test_a_damaged_state_is_named(corpus, tmp_path):
    model, blocks = made(corpus)
    state = tmp_path / "run.state"
    resuming._Keeper(model, blocks, state, None)._save(model)
    whole = state.read_bytes()
    for content in (b"", b"nothing", whole[:-300], whole[:2000] + b"0" + whole[2001:]):
        state.write_bytes(content)
        with pytest.raises(ConfigError, match="run.state is no state of a training, or damaged"):
            fit_resumable(model, blocks, state, epochs=2)


def test_what_cannot_be_resumed_is_refused(corpus, tmp_path):
    model, blocks = made(corpus)
    for options, says in (
        ({"steps_per_epoch": 3}, "takes no steps_per_epoch"),
        ({"epochs": 0}, "epochs is 0"),
        ({"every": 0}, "every is 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            fit_resumable(model, blocks, tmp_path / "a", **{"epochs": 1, **options})
    with pytest.raises(ConfigError, match="batches is a ndarray, whose position"):
        fit_resumable(model, np.zeros((2, 3)), tmp_path / "a", epochs=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not a folder"):
        fit_resumable(model, blocks, tmp_path / "b" / "a", epochs=1)
    with pytest.raises(ConfigError, match="'gpt' is not compiled"):
        fit_resumable(keras_tx.gpt("pico"), blocks, tmp_path / "a", epochs=1)
    assert not list(tmp_path.iterdir())


def test_a_stop_by_a_callback_ends_it(corpus, tmp_path):
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    model, blocks = made(corpus)
    history = fit_resumable(model, blocks, tmp_path / "a", epochs=5, verbose=0, callbacks=[Enough()])
    assert history.epoch == [0]
    assert model.history is history
