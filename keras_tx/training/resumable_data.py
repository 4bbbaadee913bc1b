"""Training data whose position can be saved and restored exactly."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.content_digest import content_digest
from keras_tx.errors import ConfigError, whole_number
from keras_tx.models.class_names import names_of_data

RESHUFFLE = "reshuffle_each_iteration"
SEEDED = {  # operations of tf.data, and the indices of the inputs that hold their two seeds
    "ShuffleDatasetV3": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}
SOURCES = ("TensorDataset", "TensorSliceDataset")  # operations of tf.data that read tensors of the graph
SUPPORTED = (
    "a Batches of keras_tx.data, a tuple of arrays (x, y), a keras.utils.PyDataset, a tf.data.Dataset, or a "
    "function of the epoch that returns one"
)


# Branches: one for each kind of data.
def resumable_data(
    data: Any, batch_size: int | None, seed: int | None, steps_per_epoch: int | None, every: int | None
) -> ResumableData:
    """Returns the data with its position.

    Args:
        data: see `fit_resumable`.
        batch_size: batch size for arrays.
        seed: seed of the order of arrays.
        steps_per_epoch: batches per epoch of a tf.data.Dataset.
        every: steps between two saves.

    Raises:
        ConfigError: the data cannot be resumed exactly, or an option does not apply to it.
    """
    arrays = isinstance(data, tuple) and bool(data) and all(map(_is_array, keras.tree.flatten(data)))
    stream, function = _is_tf_data(data), callable(data)
    for name, value, applies, kind in (
        ("batch_size", batch_size, arrays, "arrays"),
        ("seed", seed, arrays, "arrays"),
        ("steps_per_epoch", steps_per_epoch, stream or function, "a tf.data.Dataset"),
    ):
        if value is not None and not applies:
            raise ConfigError(
                f"{name}={value!r} is not supported for a {type(data).__name__}, only for {kind}. Remove it."
            )
    if stream:
        return StreamedData(TFDataStream(data, None, steps_per_epoch, every))
    if function:
        make: Any = data
        return StreamedData(TFDataStream(make(0), make, steps_per_epoch, every))
    if arrays:
        data = ArrayBatches(data, 32 if batch_size is None else batch_size, 0 if seed is None else seed)
    if isinstance(data, keras.utils.PyDataset):
        workers: int = getattr(data, "workers", 1)
        if workers > 1 and keras.backend.backend() != "tensorflow":
            raise ConfigError(
                f"data has workers={workers}, with which Keras on {keras.backend.backend()} does not "
                "continue at the position of an interrupted epoch. Use workers=1, or TensorFlow."
            )
        seekable = callable(getattr(data, "seek", None)) and callable(getattr(data, "fingerprint", None))
        return ResumableData(data if seekable else OrderedDataset(data))
    raise ConfigError(
        f"data is a {type(data).__name__}, expected {SUPPORTED}. The position in other data cannot be saved: "
        "write a PyDataset whose batch i is always the same, with set_epoch(epoch) if its order changes."
    )


class ResumableData:
    """A dataset for `fit` with `seek(epoch, batch)` and `fingerprint()`, such as Batches."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def seek(self, epoch: int, step: int) -> None:
        """Sets the first batch of the next pass."""
        self.dataset.seek(epoch, step)

    def fingerprint(self) -> dict[str, Any]:
        """Returns what determines the batches, as JSON."""
        return self.dataset.fingerprint()

    def steps(self) -> int:
        """Returns the number of batches in the next pass."""
        return self.dataset.num_batches

    def batch(self) -> Any:
        """Returns the first batch of the next pass."""
        return self.dataset[0]

    def advance(self, epoch: int, step: int) -> None:
        """Called when the batches before this position have been trained."""

    def state(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        """Returns the state that is needed in addition to the position."""
        return {}

    def restore(self, epoch: int, step: int, state: dict[str, np.ndarray]) -> None:
        """Restores the result of `state`."""


class ArrayBatches(Batches):
    """Arrays in the seeded order of Batches."""

    def __init__(self, arrays: tuple[Any, ...], batch_size: int, seed: int) -> None:
        arrays = keras.tree.map_structure(_as_array, arrays)
        counts = {len(array) for array in keras.tree.flatten(arrays)}
        if len(counts) > 1 or len(arrays) > 3:
            shapes = [array.shape for array in keras.tree.flatten(arrays)]
            raise ConfigError(
                f"data has arrays of shapes {shapes}, expected (x, y) or (x, y, sample_weight) with equal "
                "numbers of rows."
            )
        if type(seed) is not int or seed < 0:
            raise ConfigError(f"seed is {seed!r}, expected a whole number, 0 or more.")

        def pack(rows: np.ndarray, random: np.random.Generator) -> Any:
            return keras.tree.map_structure(lambda array: array[rows], arrays)

        content = functools.partial(keras.tree.flatten, arrays)
        super().__init__(pack, np.ones(counts.pop()), batch_size, seed=seed, content=content)


class OrderedDataset(keras.utils.PyDataset):
    """A PyDataset whose batch i depends only on i, and on the epoch if it has `set_epoch`."""

    def __init__(self, source: keras.utils.PyDataset) -> None:
        kind = type(source)
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if getattr(kind, name) is not getattr(keras.utils.PyDataset, name)
        ]
        self._set_epoch = getattr(source, "set_epoch", None)
        if hooks and self._set_epoch is None:
            raise ConfigError(
                f"{kind.__name__} defines {hooks[0]}, which cannot be repeated for an interrupted "
                "epoch. Define set_epoch(epoch) instead, which sets the order by a seed and the epoch."
            )
        if source.num_batches is None:
            raise ConfigError(f"{kind.__name__} is infinite. Define its number of batches, __len__.")
        super().__init__(
            workers=source.workers,
            use_multiprocessing=source.use_multiprocessing,
            max_queue_size=source.max_queue_size,
        )
        self.source, self.epoch, self._first = source, 0, 0
        self.labels = names_of_data(source)
        self._digest = self._checked_digest()

    def __len__(self) -> int:
        batches = self.source.num_batches
        assert batches is not None
        return batches - self._first

    def __getitem__(self, index: int) -> Any:
        return self.source[self._first + index]

    def on_epoch_end(self) -> None:
        self.seek(self.epoch + 1)

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Sets the epoch and the first batch of the next pass."""
        if self._set_epoch is not None and epoch != self.epoch:
            self._set_epoch(epoch)
        self.epoch, self._first = epoch, batch

    def fingerprint(self) -> dict[str, Any]:
        """Returns what determines the batches."""
        content = {"batches in an epoch": self.source.num_batches, "digest of three batches": self._digest}
        seed = getattr(self.source, "seed", None)
        return {**content, "seed": seed} if isinstance(seed, int) else content

    def _checked_digest(self) -> str:
        """Returns the digest of the first, a middle and the last batch.

        The first one is read twice, with a batch of another epoch in between.
        """
        digests = []
        for epoch in (0, 1, 0):
            if self._set_epoch is not None:
                self._set_epoch(epoch)
            digests.append(self._digest_of(0))
        if digests[0] != digests[2]:
            raise ConfigError(
                f"Batch 0 of {type(self.source).__name__} differs when it is read twice, and cannot be "
                "resumed. Use np.random.default_rng([seed, epoch, index]) in __getitem__."
            )
        last = len(self) - 1
        return " ".join([digests[0], *map(self._digest_of, sorted({last // 2, last} - {0}))])

    def _digest_of(self, index: int) -> str:
        return content_digest(map(_as_array, keras.tree.flatten(self.source[index])))


class StreamedData(ResumableData):
    """Data of which only the next batch can be read."""

    def seek(self, epoch: int, step: int) -> None:
        self.dataset.seek(epoch, step)

    def advance(self, epoch: int, step: int) -> None:
        self.dataset.forget(epoch, step)

    def state(self, epoch: int, step: int) -> dict[str, np.ndarray]:
        return self.dataset.state(epoch, step)

    def restore(self, epoch: int, step: int, state: dict[str, np.ndarray]) -> None:
        self.dataset.restore(epoch, step, state)


class TFDataStream(keras.utils.PyDataset):
    """Batches of tf.data as a PyDataset. The iterator is saved by tf.train.Checkpoint.

    The batches are those of one dataset, repeated, or of another dataset for each epoch. `fit` reads ahead of
    the training: batches that are read and not yet trained are buffered, and the state of the iterator is
    captured before the batches at which a save is expected.

    A saved iterator does not restore the order of the repetition after the next one of a `shuffle` that
    reshuffles (TensorFlow 2.21), so such a dataset is refused, unless it is the dataset of a single epoch.
    """

    def __init__(
        self, data: Any, function: Callable[[int], Any] | None, steps: int | None, every: int | None
    ) -> None:
        super().__init__()
        if not _is_tf_data(data):
            raise ConfigError(f"data(0) is a {type(data).__name__}, expected a tf.data.Dataset.")
        self.epoch_steps = _steps(data, steps)
        self._every, self._steps_option = every, steps
        self.labels = names_of_data(data)
        self._pipeline, self._digest = _checked_operations(data, reshuffle=function is not None)
        self._repeated, self._function = data.repeat(), function
        self._lock = threading.Lock()
        self._start = 0  # position of the next pass: batches since the beginning of the training
        self._restart(0)

    def _restart(self, position: int) -> None:
        self._iterator = self._opened(position // self.epoch_steps)
        self._next = position  # of the iterator
        self._buffer: dict[int, Any] = {}
        self._captures: dict[int, dict[str, np.ndarray]] = {}

    def _opened(self, epoch: int) -> Any:
        return iter(self._repeated if self._function is None else self._checked_epoch(epoch))

    def _checked_epoch(self, epoch: int) -> Any:
        assert self._function is not None
        data = self._function(epoch)
        _checked_operations(data, reshuffle=True)
        if _steps(data, self._steps_option) != self.epoch_steps:
            raise ConfigError(
                f"data({epoch}) has {_steps(data, None)} batches, and data(0) {self.epoch_steps}. Return "
                "datasets of equal size."
            )
        return data

    def __len__(self) -> int:
        return self.epoch_steps - self._start % self.epoch_steps

    def __getitem__(self, index: int) -> Any:
        position = self._start + index
        with self._lock:
            while self._next <= position:
                step = self._next % self.epoch_steps
                if step == 0 and self._function is not None:
                    self._iterator = self._opened(self._next // self.epoch_steps)
                if step == 0 or (self._every is not None and step % self._every == 0):
                    self._captures[self._next] = self._captured()
                self._buffer[self._next] = keras.tree.map_structure(_as_array, next(self._iterator))
                self._next += 1
            if position not in self._buffer:
                raise IndexError(f"Batch {position} was read before, and is not available any more.")
            return self._buffer[position]

    def on_epoch_end(self) -> None:
        self._start = (self._start // self.epoch_steps + 1) * self.epoch_steps

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Sets the first batch of the next pass."""
        if self._function is not None:
            self._checked_epoch(epoch)  # here, because an error while reading comes from another thread
        self._start = epoch * self.epoch_steps + batch

    def fingerprint(self) -> dict[str, Any]:
        """Returns the comparable part of what determines the batches."""
        operations = {"batches in an epoch": self.epoch_steps, "operations": self._pipeline}
        return {**operations, "digest of the tensors": self._digest}

    def forget(self, epoch: int, batch: int) -> None:
        """Frees the batches before a position."""
        position = epoch * self.epoch_steps + batch
        with self._lock:
            for trained in [p for p in self._buffer if p < position]:
                del self._buffer[trained]
            last = max((p for p in self._captures if p <= position), default=0)
            for older in [p for p in self._captures if p < last]:
                del self._captures[older]

    def state(self, epoch: int, batch: int) -> dict[str, np.ndarray]:
        """Returns the state of the iterator at a position, or an earlier one and the batches to skip."""
        position = epoch * self.epoch_steps + batch
        with self._lock:
            if batch == 0 and self._function is not None:
                self._captured()  # raises if the iterator cannot be saved
                return {"skip": np.array(0)}  # a new iterator
            if self._next == position:
                self._captures[position] = self._captured()
            earlier = max(p for p in self._captures if p <= position)
            return {**self._captures[earlier], "skip": np.array(position - earlier)}

    def restore(self, epoch: int, batch: int, state: dict[str, np.ndarray]) -> None:
        """Restores the result of `state`."""
        import tensorflow as tf

        position, skip = epoch * self.epoch_steps + batch, int(state["skip"])
        with self._lock:
            self._restart(position - skip)
            self._start = position
            if len(state) == 1:
                return
            with tempfile.TemporaryDirectory() as folder:
                for name, content in state.items():
                    if name != "skip":
                        Path(folder, name).write_bytes(content.tobytes())
                try:
                    tf.train.Checkpoint(iterator=self._iterator).read(f"{folder}/iterator").assert_consumed()
                except (tf.errors.OpError, AssertionError) as error:
                    raise ConfigError(
                        f"data is not the tf.data.Dataset of the saved state ({str(error)[:200]}). Restore "
                        "the former pipeline, or remove the state file to start over."
                    ) from error
            self._captures[self._next] = {k: v for k, v in state.items() if k != "skip"}
            for _ in range(skip):
                next(self._iterator)
            self._next = position

    def _captured(self) -> dict[str, np.ndarray]:
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            try:
                tf.train.Checkpoint(iterator=self._iterator).write(f"{folder}/iterator")
            except tf.errors.FailedPreconditionError as error:
                operation = (error.message or "").rpartition("}} ")[2].partition(" is stateful")[0]
                raise ConfigError(
                    f"data contains {operation or 'an operation'}, whose state tf.data does not save. Use "
                    "tf.random.stateless_uniform with a counter instead of random numbers, and a Batches "
                    "instead of Dataset.from_generator."
                ) from error
            return {
                path.name: np.frombuffer(path.read_bytes(), "uint8")
                for path in Path(folder).glob("iterator.*")
            }


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "__array__") and bool(getattr(leaf, "shape", ()))


def _as_array(leaf: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(leaf) if keras.ops.is_tensor(leaf) else np.asarray(leaf)


def _is_tf_data(data: Any) -> bool:
    if not any(kind.__module__.startswith("tensorflow.") for kind in type(data).__mro__):
        return False
    import tensorflow as tf

    return isinstance(data, tf.data.Dataset)


def _steps(data: Any, steps: int | None) -> int:
    if steps is not None:
        return whole_number("steps_per_epoch", steps)
    cardinality = int(data.cardinality())
    if cardinality < 0:
        kind = "infinite" if cardinality == -1 else "unknown"
        raise ConfigError(f"The number of batches of data is {kind}. Pass steps_per_epoch=.")
    return cardinality


def _checked_operations(data: Any, reshuffle: bool) -> tuple[list[Any], str]:
    """The operations of a pipeline with their seeds, and a digest of the tensors that it reads.

    Raises for operations that cannot be repeated.
    """
    import tensorflow as tf

    if not all(type(spec) is tf.TensorSpec for spec in keras.tree.flatten(data.element_spec)):
        raise ConfigError(f"data has elements {data.element_spec}, expected dense tensors only.")
    if data.options().deterministic is False:
        raise ConfigError("data has the option deterministic=False, so its order differs. Remove the option.")
    variant = tf.data.experimental.to_variant(data)
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1).numpy()
    graph = tf.compat.v1.GraphDef.FromString(serialized)
    operations: list[Any] = []
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        constants = {node.name: node.attr["value"].tensor.int64_val for node in nodes if node.op == "Const"}
        for node in nodes:
            seeds = [list(constants.get(node.input[i].split(":")[0], "?")) for i in SEEDED.get(node.op, ())]
            _check_operation(node, seeds, reshuffle)
            if "Dataset" in node.op:
                operations.append([node.op, *seeds])
    sources = [node for node in graph.node if node.op in SOURCES]
    return operations, content_digest(x for node in sources for x in _constants(graph.node, node))


def _constants(nodes: Any, node: Any) -> Iterator[np.ndarray]:
    """The constant inputs of an operation; of paths of files, their names."""
    import tensorflow as tf

    inputs = {name.split(":")[0] for name in node.input}
    for other in nodes:
        if other.op == "Const" and other.name in inputs:
            tensor = other.attr["value"].tensor
            values = tf.io.parse_tensor(tensor.SerializeToString(), tf.as_dtype(tensor.dtype)).numpy()
            if values.dtype.hasobject:
                values = np.array([text.rpartition(b"/")[2] for text in np.ravel(values)], object)
            yield values


def _check_operation(node: Any, seeds: list[Any], reshuffle: bool) -> None:
    if node.attr["deterministic"].s == b"false":
        raise ConfigError(f"data contains {node.op} with deterministic=False. Remove the option.")
    shuffle = node.op.startswith("ShuffleDataset")
    if seeds and all(seed in ([], [0]) for seed in seeds):
        name = "shuffle" if shuffle else "Dataset.random"
        raise ConfigError(f"data contains {name} without a seed. Pass seed= to it.")
    if shuffle and not reshuffle and node.attr[RESHUFFLE].b:
        raise ConfigError(
            "data contains a shuffle with another order in each repetition, which tf.data does not restore. "
            "Pass a function of the epoch, such as lambda epoch: files.shuffle(1000, seed=epoch).batch(32), "
            "or reshuffle_each_iteration=False."
        )
