"""A resumed training equals an uninterrupted one: batches, weights, dropout, losses, epochs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import Batches, causal_lm_batches
from keras_tx.errors import ConfigError
from keras_tx.processing import TokenWriter
from keras_tx.training import fit_resumable, pretrain_recipe, resuming
from keras_tx.training.resumable_data import ResumableData
from tests.drawing import as_numpy, draw

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
    with TokenWriter(path, vocabulary_size=32, end_of_text=31) as writer:
        writer.add(ids, text_bytes=ids.size)
        writer.end_document()
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("corpus") / "train.tokens")


def made(corpus: Path, batch_size: int = 4, depth: int = 1, run_eagerly: bool = True) -> tuple[Any, Any]:
    """A model and its data. Eager steps are faster than tracing a few."""
    keras.utils.set_random_seed(3)
    rates = {"dropout": 0.2, "attention_dropout": 0.2}
    model = keras_tx.gpt("pico", vocabulary_size=32, width=16, depth=depth, **rates)
    model.compile(pretrain_recipe(EPOCHS * STEPS, learning_rate=3e-3, warmup=3), run_eagerly=run_eagerly)
    return model, causal_lm_batches(corpus, 8, batch_size, seed=5)


def fitted(
    corpus: Path, state: Path, stop: int | None = None, run_eagerly: bool = True, **options: Any
) -> tuple[Any, dict, int]:
    """The model, the history, and how many steps were made in this go."""
    model, blocks = made(corpus, run_eagerly=run_eagerly)
    assert len(blocks) == STEPS
    watch = Watch(stop)
    unseen = causal_lm_batches(corpus, 8, 4, shuffle=False)
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


@pytest.mark.thorough
@pytest.mark.parametrize(("stops", "saved"), [([3, 7], [2, 8]), ([12], [10])])
def test_compiled_training_resumes_at_the_exact_step(
    corpus, tmp_path, tmp_path_factory, stops: list[int], saved: list[int]
):
    """Interrupted in the middle of the first and of the second epoch; behind the last step of the second."""
    compiled: dict[str, Any] = {"run_eagerly": False}
    whole = fitted(corpus, tmp_path_factory.mktemp("whole") / "run.state", **compiled)
    state, done = tmp_path / "run.state", 0
    for stop, until in zip(stops, saved, strict=True):
        _, _, steps = fitted(corpus, state, stop, every=2, **compiled)
        assert done + (steps - 1) // 2 * 2 == until
        done = until
    model, history, steps = fitted(corpus, state, every=2, **compiled)
    assert steps == EPOCHS * STEPS - done
    assert_same(model, whole[0])
    assert history == whole[1]
    model, history, steps = fitted(corpus, state, **compiled)  # nothing is left to do
    assert steps == 0
    assert_same(model, whole[0])
    assert history == whole[1]
    assert [path.name for path in tmp_path.iterdir()] == ["run.state"]


def test_an_interruption_while_the_state_is_written_leaves_the_one_before(corpus, tmp_path, monkeypatch):
    state = tmp_path / "run.state"
    model, blocks = made(corpus)
    keeper = resuming._Keeper(model, ResumableData(blocks), state, None)
    keeper.save(model)
    before = state.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resuming.np, "savez", half)
    with pytest.raises(ConfigError, match="run.state could not be written: No space left.*It keeps the prev"):
        keeper.save(model)
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
    resuming._Keeper(model, ResumableData(blocks), state, None)
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
    resuming._Keeper(model, ResumableData(blocks), state, None)
    whole = state.read_bytes()
    for content in (b"", b"nothing", whole[:-300], whole[:2000] + b"0" + whole[2001:]):
        state.write_bytes(content)
        with pytest.raises(ConfigError, match="run.state is not a training state"):
            fit_resumable(model, blocks, state, epochs=2)


def test_unsupported_data_and_callbacks_raise(corpus, tmp_path):
    model, blocks = made(corpus)
    for options, says in (
        ({"initial_epoch": 3}, "initial_epoch= is not supported"),
        ({"epochs": 0}, "epochs is 0"),
        ({"every": 0}, "every is 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            fit_resumable(model, blocks, tmp_path / "a", **{"epochs": 1, **options})
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ConfigError, match="is not built"):
        fit_resumable(unbuilt, blocks, tmp_path / "a", epochs=1)
    with pytest.raises(ConfigError, match="is not a folder"):
        fit_resumable(model, blocks, tmp_path / "b" / "a", epochs=1)
    with pytest.raises(ConfigError, match="'gpt' is not compiled"):
        fit_resumable(keras_tx.gpt("pico"), blocks, tmp_path / "a", epochs=1)
    assert not list(tmp_path.iterdir())


def test_stop_by_a_callback(corpus, tmp_path):
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    model, blocks = made(corpus)
    history = fit_resumable(model, blocks, tmp_path / "a", epochs=5, verbose=0, callbacks=[Enough()])
    assert history.epoch == [0]
    assert model.history is history


def test_arrays_as_batches(tmp_path):
    x, y = draw(10, 4), draw(10, 1)
    batches = Batches(lambda rows, random: (x[rows], y[rows]), np.ones(len(x)), batch_size=4)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = fit_resumable(model, batches, tmp_path / "a", epochs=2, every=1, verbose=0)
    assert len(history.history["loss"]) == 2


HOOKS = [
    f"on_{kind}_{when}"
    for kind in ("train", "epoch", "train_batch", "test", "test_batch")
    for when in ("begin", "end")
]


class Kill(keras.callbacks.Callback):
    """Counts all hooks, in the order in which they are called, and raises at one of them."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.called: list[str] = []
        self.at = at

    def count(self, hook: str) -> None:
        self.called.append(hook)
        if len(self.called) - 1 == self.at:
            raise Interruption


def counting(hook: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.count(hook)


for hook in HOOKS:
    setattr(Kill, hook, counting(hook))


@pytest.mark.thorough
@pytest.mark.parametrize("every", [1, None])
def test_a_kill_at_any_hook_loses_nothing(corpus, tmp_path, monkeypatch, every):
    """Each call of each hook, before the state is saved and behind it, in two epochs of three steps."""
    model, _ = made(corpus, run_eagerly=False)  # traced once for all runs
    blocks, unseen = (causal_lm_batches(corpus, 8, 8, seed=5, shuffle=shuffle) for shuffle in (True, False))
    begun = tmp_path / "begun"
    resuming._Keeper(model, ResumableData(blocks), begun, None)
    save = resuming._Keeper.save

    def run(state: Path, kill: Kill) -> dict:
        def saved_and_counted(keeper: Any, model: Any) -> None:
            save(keeper, model)
            kill.count("save")

        monkeypatch.setattr(resuming._Keeper, "save", saved_and_counted)
        options = {"epochs": 2, "every": every, "validation_data": unseen, "verbose": 0}
        return fit_resumable(model, blocks, state, callbacks=[kill], **options).history

    def result() -> list[np.ndarray]:
        return [as_numpy(v).copy() for v in (*model.variables, *model.optimizer.variables)]

    kill = Kill()
    expected_history = run(Path(shutil.copy(begun, tmp_path / "whole")), kill)
    expected = result()
    assert set(kill.called) == {*HOOKS, "save"}
    for at, hook in enumerate(kill.called):
        state = Path(shutil.copy(begun, tmp_path / f"{at}"))
        with pytest.raises(Interruption):
            run(state, Kill(at))
        assert run(state, Kill()) == expected_history, (at, hook)
        for mine, theirs in zip(result(), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{hook}, call {at}")


def test_a_run_without_any_step_resumes_from_its_beginning(corpus, tmp_path, whole):
    """The same objects again, as in a notebook: they have made steps that no state has."""
    model, blocks = made(corpus)
    options = {
        "epochs": EPOCHS,
        "verbose": 0,
        "validation_data": causal_lm_batches(corpus, 8, 4, shuffle=False),
    }
    with pytest.raises(Interruption):
        fit_resumable(model, blocks, tmp_path / "a", callbacks=[Watch(3)], **options)
    assert fit_resumable(model, blocks, tmp_path / "a", **options).history == whole[1]
    assert_same(model, whole[0])


def test_a_stop_in_the_middle_of_an_epoch_resumes_there(corpus, tmp_path, whole):
    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = int(self.model.optimizer.iterations) == 8

    state = tmp_path / "run.state"
    model, history, _ = fitted(corpus, state, callbacks=[Enough()])
    assert int(model.optimizer.iterations) == 8
    assert [len(values) for values in history.values()] == [1] * len(history)
    model, history, steps = fitted(corpus, state)
    assert steps == EPOCHS * STEPS - 8
    assert history == whole[1]
    assert_same(model, whole[0])


class Noise(keras.layers.Layer):
    """Draws random numbers in training and in inference, as the sampling of a variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)


def test_random_numbers_of_inference_are_those_of_a_run_without_interruption(tmp_path):
    x = np.random.default_rng(0).normal(size=(4 * STEPS, 4)).astype("float32")
    options: dict[str, Any] = {"batch_size": 4, "epochs": 2, "every": 2, "verbose": 0}

    def noisy() -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(1)(Noise()(inputs)))
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    expected = noisy()
    history = fit_resumable(expected, (x, x[:, :1]), tmp_path / "whole", **options).history
    with pytest.raises(Interruption):
        fit_resumable(noisy(), (x, x[:, :1]), tmp_path / "a", callbacks=[Watch(5)], **options)
    model = noisy()
    assert fit_resumable(model, (x, x[:, :1]), tmp_path / "a", **options).history == history
    assert_same(model, expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
        lambda: keras_tx.ScheduleFreeAdamW(0.01, warmup_steps=3),
    ],
    ids=["EMA", "schedule-free"],
)
def test_averaged_weights_are_those_of_a_run_without_interruption(corpus, tmp_path, optimizer):
    def averaged() -> tuple[Any, Any]:
        model, blocks = made(corpus)
        model.compile(optimizer(), run_eagerly=True)
        return model, blocks

    expected, blocks = averaged()
    fit_resumable(expected, blocks, tmp_path / "whole", epochs=EPOCHS, verbose=0)
    model, blocks = averaged()
    options = {"epochs": EPOCHS, "every": 2, "verbose": 0}
    with pytest.raises(Interruption):
        fit_resumable(model, blocks, tmp_path / "a", callbacks=[Watch(5)], **options)
    for _ in range(2):  # the second time nothing is left to do
        model, blocks = averaged()
        fit_resumable(model, blocks, tmp_path / "a", **options)
        assert_same(model, expected)


def test_weights_that_are_not_finite_are_not_saved(corpus, tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            table = self.model.get_layer("token_embedding").weights[0]
            table.assign(table * float("nan"))

    model, blocks = made(corpus)
    with pytest.raises(ConfigError, match="token_embedding/.* holds nan"):
        fit_resumable(model, blocks, tmp_path / "a", epochs=2, every=2, verbose=0, callbacks=[Spoil()])
    model, blocks = made(corpus)
    history = fit_resumable(model, blocks, tmp_path / "a", epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_gradients_that_are_not_finite_are_not_saved(corpus, tmp_path):
    """Accumulated gradients reach the weights only after the save."""

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                for gradient in self.model.optimizer._accumulated_gradients:
                    gradient.assign(gradient * float("inf"))

    model, blocks = made(corpus)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=100), run_eagerly=True)
    options = {"epochs": 1, "every": 1, "verbose": 0}
    with pytest.raises(ConfigError, match="After step 3 of epoch 1.*gradient_accumulator"):
        fit_resumable(model, blocks, tmp_path / "a", callbacks=[Spoil()], **options)
    model, blocks = made(corpus)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=100), run_eagerly=True)
    fit_resumable(model, blocks, tmp_path / "a", **options)
    assert all(np.isfinite(as_numpy(x)).all() for x in model.optimizer.variables)


def test_partial_files_of_killed_processes_are_removed(corpus, tmp_path):
    (tmp_path / ".run.state.12345.partial").write_bytes(b"PK")
    (tmp_path / ".other.state.12345.partial").write_bytes(b"PK")
    model, blocks = made(corpus)
    resuming._Keeper(model, ResumableData(blocks), tmp_path / "run.state", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.state.12345.partial", "run.state"]


def test_a_full_disk_leaves_the_state_before(corpus, tmp_path):
    """A file system of 1 MB if one can be mounted, or else a limit of the size of files."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = (
        sys.platform == "linux"
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
        ).returncode
        == 0
    )
    state = folder / "run.state"
    try:
        model, blocks = made(corpus)
        fit_resumable(model, blocks, state, epochs=1, verbose=0)
        before = state.read_bytes()
        if mounted:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            (folder / "other").write_bytes(bytes(max(free - 20_000, 0)))
        else:
            resource = pytest.importorskip("resource")
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
        try:
            with pytest.raises(
                ConfigError, match=r"run.state could not be written: .*Free 0.\d MB in .*small"
            ):
                fit_resumable(model, blocks, state, epochs=2, verbose=0)
        finally:
            if not mounted:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert state.read_bytes() == before
        (folder / "other").unlink(missing_ok=True)
        history = fit_resumable(model, blocks, state, epochs=2, verbose=0)
        assert history.epoch == [0, 1]
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
