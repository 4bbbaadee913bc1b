"""The position in each kind of data is restored exactly, or the data is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.training import fit_resumable
from keras_tx.training.resumable_data import resumable_data
from tests.drawing import as_numpy, draw
from tests.training.dropout_network import OrderedRows, dropout_network

tf = pytest.importorskip("tensorflow")
X, Y = draw(22, 4), draw(22, 1)
STEPS = 6  # of 4 rows


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.steps = step, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps > self.step:
            raise Stop


class Ordered(OrderedRows):
    def __init__(self, **options: Any) -> None:
        super().__init__(X, Y, **options)


class Threads(Ordered):
    def __init__(self) -> None:
        super().__init__(workers=2)


def pipeline(epoch: int = 0, *, reshuffle: bool = True) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    data = data.shuffle(10, seed=5 + epoch, reshuffle_each_iteration=reshuffle)
    noise = tf.data.Dataset.zip(data, tf.data.Dataset.counter())

    def add_noise(pair: Any, count: Any) -> Any:
        return pair[0] + tf.random.stateless_normal((4,), (7, count), dtype=X.dtype), pair[1]

    return noise.map(add_noise, num_parallel_calls=2).batch(4).prefetch(2)


def same_order() -> Any:
    return pipeline(reshuffle=False)


def network(**options: Any) -> keras.Model:
    model = dropout_network()
    options = {"optimizer": keras.optimizers.Adam(0.01), "weighted_metrics": ["mae"], **options}
    model.compile(loss="mse", **options)
    return model


SOURCES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "arrays": (lambda: (X, Y), {"batch_size": 4, "seed": 1}),
    "arrays with weights": (lambda: (X, Y, np.arange(22) / 22), {"batch_size": 4}),
    "PyDataset": (Ordered, {}),
    "PyDataset with threads": (Threads, {}),
    "tf.data of an epoch": (lambda: pipeline, {}),
    "tf.data": (same_order, {}),
    "tf.data, infinite": (lambda: same_order().repeat(), {"steps_per_epoch": 5}),
    "tf.data, unknown size": (lambda: same_order().filter(lambda x, y: y[0, 0] < 9), {"steps_per_epoch": 5}),
}


def trained(
    model: Any, data: Any, path: Any, stop: int | None = None, **options: Any
) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    callbacks = [] if stop is None else [StopAt(stop)]
    history = fit_resumable(
        model, data, path, epochs=3, every=2, verbose=0, callbacks=callbacks, **options
    ).history
    return [as_numpy(v).copy() for v in (*model.variables, *model.optimizer.variables)], history


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("tf.data of an epoch", "PyDataset") else pytest.param(n, marks=pytest.mark.thorough)
        for n in SOURCES
    ],
)
def test_an_interrupted_training_equals_a_whole_one(tmp_path, name):
    """Interrupted at an even step, which is saved, at an odd one, and in the second epoch."""
    make, options = SOURCES[name]
    if "threads" in name and keras.backend.backend() != "tensorflow":
        with pytest.raises(ConfigError, match="data has workers=2"):
            trained(network(), make(), tmp_path / "whole")
        return
    expected, history = trained(network(), make(), tmp_path / "whole", **options)
    model, data = network(), make()
    with pytest.raises(Stop):
        trained(model, data, tmp_path / "state", 3, **options)
    for stop in (2, 6):
        with pytest.raises(Stop):
            trained(network(), make(), tmp_path / "state", stop, **options)
    weights, resumed = trained(network(), make(), tmp_path / "state", **options)
    assert resumed == history
    for mine, theirs in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "data",
    [pipeline, same_order, lambda: same_order().repeat()],
    ids=["of an epoch", "repeated", "infinite"],
)
def test_a_pipeline_is_restored_at_each_position(data):
    """In two epochs, from the state of the iterator at the position, and from an earlier one."""
    steps = 5 if data is not pipeline and data not in (same_order,) else None

    def stream(every: int) -> Any:
        source = data if data is pipeline else data()
        return resumable_data(source, None, None, steps, every)

    def following(one: Any, epoch: int, step: int) -> list[np.ndarray]:
        batches = []
        for later in range(epoch, 2):
            one.seek(later, step if later == epoch else 0)
            batches += [one.dataset[index][0] for index in range(one.steps())]
            one.advance(later + 1, 0)
        return batches

    expected = following(stream(1), 0, 0)
    for every in (1, 4):
        saved, length = stream(every), stream(every).steps()
        for position in range(2 * length - 1):
            epoch, step = divmod(position, length)
            saved.seek(epoch, step)
            saved.dataset[0]  # fit reads ahead
            state = saved.state(epoch, step)
            restored = stream(every)
            restored.restore(epoch, step, state)
            for mine, theirs in zip(following(restored, epoch, step), expected[position:], strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"every={every}, position {position}")
            saved.advance(epoch, step)


def test_a_stop_by_a_callback_between_two_saves_of_a_pipeline(tmp_path):
    """Batches are skipped from the last captured state of the iterator."""

    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = int(self.model.optimizer.iterations) == 9

    expected, _ = trained(network(), pipeline, tmp_path / "whole")
    options: dict[str, Any] = {"epochs": 3, "every": 4, "verbose": 0}
    model = network()
    fit_resumable(model, pipeline, tmp_path / "state", callbacks=[Enough()], **options)
    assert int(model.optimizer.iterations) == 9
    model = network()
    fit_resumable(model, pipeline, tmp_path / "state", **options)
    for mine, theirs in zip((*model.variables, *model.optimizer.variables), expected, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), theirs)


def test_each_batch_is_trained_once_an_epoch(tmp_path):
    """The rows that the model sees are those of the arrays, each once."""
    seen: list[np.ndarray] = []

    class Recorded(Ordered):
        def __getitem__(self, index: int) -> Any:
            seen.append(self.order[4 * index : 4 * index + 4])
            return super().__getitem__(index)

    fit_resumable(network(), Recorded(), tmp_path / "a", epochs=1, verbose=0)
    order = np.random.default_rng([3, 0]).permutation(len(X))
    np.testing.assert_array_equal(np.concatenate(seen[-STEPS:]), order)


STATES = {
    "EMA": lambda: {"optimizer": keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)},
    "gradient accumulation": lambda: {"optimizer": keras.optimizers.Adam(0.1, gradient_accumulation_steps=4)},
    "loss scaling": lambda: {
        "optimizer": keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.1), initial_scale=2.0**8, dynamic_growth_steps=3
        )
    },
    "steps_per_execution": lambda: {"steps_per_execution": 2},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", STATES)
def test_states_of_the_optimizer_are_restored(tmp_path, name):
    expected, history = trained(network(**STATES[name]()), (X, Y), tmp_path / "whole", batch_size=4)
    with pytest.raises(Stop):
        trained(network(**STATES[name]()), (X, Y), tmp_path / "state", 4, batch_size=4)
    weights, resumed = trained(network(**STATES[name]()), (X, Y), tmp_path / "state", batch_size=4)
    assert resumed == history
    for mine, theirs in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Reshuffled(Ordered):
    set_epoch = None  # type: ignore[assignment]

    def __init__(self) -> None:
        keras.utils.PyDataset.__init__(self)

    def on_epoch_end(self) -> None: ...


class Noisy(Ordered):
    def __getitem__(self, index: int) -> Any:
        return X[:4] + np.random.default_rng().normal(size=(4, 4)), Y[:4]


def unseeded() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9).batch(4)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "an array": (lambda: X, {}, "data is a ndarray, expected .*Batches.*PyDataset"),
    "a generator": (lambda: iter([(X, Y)]), {}, "data is a list_iterator"),
    "lengths": (lambda: (X, Y[:3]), {}, r"arrays of shapes \[\(22, 4\), \(3, 1\)\]"),
    "batch_size of a pipeline": (same_order, {"batch_size": 4}, "batch_size=4 is not supported .*arrays"),
    "steps of arrays": (lambda: (X, Y), {"steps_per_epoch": 4}, "steps_per_epoch=4 is not supported"),
    "seed": (lambda: (X, Y), {"seed": -1}, "seed is -1"),
    "on_epoch_end": (Reshuffled, {}, "Reshuffled defines on_epoch_end, .*set_epoch"),
    "random batches": (Noisy, {}, "Batch 0 of Noisy differs"),
    "a shuffle without seed": (unseeded, {}, "shuffle without a seed"),
    "an infinite pipeline": (lambda: pipeline().repeat(), {}, "infinite. Pass steps_per_epoch="),
    "another order in each repetition": (pipeline, {}, "another order in each repetition.*lambda epoch"),
    "sizes": (lambda: lambda epoch: pipeline().take(4 + epoch), {}, "data.1. has 5 batches, and data.0. 4"),
    "a function": (lambda: lambda epoch: X, {}, "data.0. is a ndarray, expected a tf.data.Dataset"),
    "random numbers": (
        lambda: same_order().map(lambda x, y: (x + tf.random.uniform((), dtype=x.dtype), y)),
        {},
        "data contains RandomUniform",
    ),
    "Python code": (
        lambda: tf.data.Dataset.from_generator(lambda: [(X, Y)], output_types=("float32", "float32")),
        {"steps_per_epoch": 1},
        "data contains .*(PyFunc|without Python)",
    ),
    "another order": (
        lambda: same_order().map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False),
        {},
        "ParallelMapDatasetV2 with deterministic=False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_cannot_be_resumed_is_refused(tmp_path, name):
    make, options, says = REFUSED[name]
    model = network()
    with pytest.raises(ConfigError, match=says):
        if name.startswith("a shuffle"):
            tf.compat.v1.set_random_seed(None)
        fit_resumable(model, make(), tmp_path / "a", epochs=2, verbose=0, **options)
    assert name == "sizes" or not list(tmp_path.iterdir())


def test_other_data_than_that_of_the_state_is_refused(tmp_path):
    fit_resumable(network(), (X, Y), tmp_path / "a", epochs=1, verbose=0)
    with pytest.raises(ConfigError, match="with other data: batches: digest of the samples"):
        fit_resumable(network(), (X + 1, Y), tmp_path / "a", epochs=2, verbose=0)
    fit_resumable(network(), same_order(), tmp_path / "b", epochs=1, verbose=0)
    with pytest.raises(ConfigError, match="with batches: operations"):
        other = pipeline(1, reshuffle=False)
        fit_resumable(network(), other, tmp_path / "b", epochs=2, verbose=0)


class Numbered(keras.utils.PyDataset):
    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index : index + 1], self.rows[index : index + 1, :1]


def of_files(rows: np.ndarray, folder: str = "a") -> Any:
    files = tf.data.Dataset.from_tensor_slices([f"{folder}/{int(row[0])}.txt" for row in rows])
    return files.map(lambda name: (tf.ones(4), tf.strings.length(name))).batch(4)


@pytest.mark.parametrize(
    ("name", "make", "count"),
    [
        ("arrays", lambda rows: (rows, rows[:, :1]), 2000),
        ("PyDataset", Numbered, 20),
        ("tensors", lambda rows: tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4), 2000),
        ("texts", of_files, 20),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_other_row_is_noticed(name, make, count):
    """The last row; files may be in another folder."""

    def fingerprint(data: Any) -> dict[str, Any]:
        return resumable_data(data, None, None, None, None).fingerprint()

    rows = np.arange(4.0 * count).reshape(count, 4)
    before = fingerprint(make(rows))
    assert fingerprint(make(rows.copy())) == before
    if name == "texts":
        assert fingerprint(of_files(rows, "elsewhere/b")) == before
    rows = rows.copy()
    rows[-1, 0] += 1
    assert fingerprint(make(rows)) != before
