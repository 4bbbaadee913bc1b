"""Batches of samples in a seeded order."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_tx.data.content_digest import content_digest
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.processing import TextTransform

Pack = Callable[[np.ndarray, np.random.Generator], tuple[Any, Any]]
OPTIONS = ("workers", "max_queue_size")  # of keras.utils.PyDataset
POOL = 50  # batches whose samples are sorted by length together
PACKED = 16  # samples that are packed together for the digest
PACKED_ALONE = 1000  # samples that are packed if nothing else is known of their content


class Batches(keras.utils.PyDataset):
    """Batches of inputs and labels for `model.fit`, in a different order each epoch.

    Order and random numbers depend only on the seed, the epoch and the index of the batch, not on threads.

    Args:
        pack: a function of the indices of samples and a random generator that returns inputs and labels.
        lengths: the length of each sample. Batches have samples of similar length, so that there is little
            padding.
        batch_size: samples per batch.
        shuffle: whether samples are shuffled; pass False for validation.
        seed: seed of the order and of the random numbers.
        content: a function that returns arrays with the content of all samples, such as token ids and labels;
            `fingerprint` hashes them. By default it hashes up to 1,000 packed samples.
        options: `workers`, the number of threads that prepare the next batches while batches are requested
            in order (1 for none), and `max_queue_size`, the number of batches that they prepare.
    """

    ordered = True  # TransformerModel.fit does not shuffle the batches again
    labels: tuple[str, ...] | None = None  # names of the classes; TransformerModel.fit compares them
    # For pairs; EncoderDecoderModel.check compares them with the model's.
    start_id: int | None = None
    longest: int | None = None  # tokens of the longest source or target

    def __init__(
        self,
        pack: Pack,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int = 32,
        *,
        shuffle: bool = True,
        seed: int = 0,
        content: Callable[[], Iterable[np.ndarray]] | None = None,
        **options: Any,
    ):
        for name in options:
            if name not in OPTIONS:
                of_transform = name in (field.name for field in dataclasses.fields(TextTransform))
                remedy = f"Set it on the transform: dataclasses.replace(transform, {name}={options[name]!r})."
                raise ConfigError(
                    f"{name}={options[name]!r} is not an option of batches. "
                    + (remedy if of_transform else nearest(name, OPTIONS))
                )
        workers = whole_number("workers", options.pop("workers", 1))
        # Threads of Keras return batches of the previous epoch first, after Keras has built the model.
        super().__init__(workers=1, **options)
        self._look_ahead = LookAhead(workers, self.max_queue_size) if workers > 1 else None
        self.pack = pack
        self.lengths = np.asarray(lengths)
        self.batch_size = whole_number("batch_size", batch_size)
        self.shuffle = shuffle
        self.seed = seed
        self.content = content
        self.epoch = 0
        self._first = 0  # batches of this epoch that are skipped
        if not self.lengths.size:
            raise ConfigError("There are no samples.")
        self._order = self._ordered(self.epoch)

    def __len__(self) -> int:
        return len(self._order) - self._first

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"Batch {index} of {len(self)}.")
        order, epoch, first = self._order, self.epoch, self._first + index
        if self._look_ahead is None:
            return self._packed(order, epoch, first)
        return self._look_ahead.result(lambda i: self._packed(order, epoch, i), epoch, first, len(order))

    def on_epoch_end(self) -> None:
        self.seek(self.epoch + 1)

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Sets the epoch and the first batch of the next pass; the pass after it is complete."""
        if epoch != self.epoch:
            self._order = self._ordered(epoch)
        if epoch < 0 or not 0 <= batch < len(self._order):
            raise ConfigError(
                f"epoch={epoch}, batch={batch} is out of range: an epoch has {len(self._order)} batches."
            )
        self.epoch, self._first = epoch, batch

    def fingerprint(self) -> dict[str, Any]:
        """Returns what determines the batches, as JSON: their options, and a hash of the samples.

        The hash is computed by the first call. It changes if a sample, its label or its position changes, or
        an option with which samples are packed, such as the padding.
        """
        order = {"batch_size": self.batch_size, "shuffle": self.shuffle, "seed": self.seed}
        return {**order, "samples": int(self.lengths.size), "digest of the samples": self._digest}

    @functools.cached_property
    def _digest(self) -> str:
        return content_digest(self.contents())

    def contents(self) -> Iterator[np.ndarray]:
        """Yields the arrays that `fingerprint` hashes."""
        yield self.lengths
        count, most = self.lengths.size, PACKED
        if self.content is None:
            most = PACKED_ALONE
        else:
            yield from self.content()
        chosen = np.unique(np.linspace(0, count - 1, min(count, most)).astype("int64"))
        for first in range(0, len(chosen), PACKED):
            packed = self.pack(chosen[first : first + PACKED], np.random.default_rng(0))
            yield from map(np.asarray, keras.tree.flatten(packed))

    def tf_data(self) -> Any:
        """Returns a tf.data.Dataset of the same batches, prefetched; each pass over it is an epoch."""
        import tensorflow as tf

        epochs = itertools.count()

        def epoch() -> Iterator[tuple[Any, Any]]:
            # Counted at the start of a pass, because a pass that ends early may have prefetched more.
            number = next(epochs)
            order = self._ordered(number)
            for index in range(len(order)):
                yield self._packed(order, number, index)

        def spec(array: np.ndarray) -> Any:
            return tf.TensorSpec((None,) * array.ndim, array.dtype)

        signature = keras.tree.map_structure(spec, self[0])
        data = tf.data.Dataset.from_generator(epoch, output_signature=signature)
        counted = data.apply(tf.data.experimental.assert_cardinality(len(self._order)))
        return self.named(counted.prefetch(tf.data.AUTOTUNE))

    def named(self, data: Any) -> Any:
        """Returns a tf.data.Dataset of these batches with their class names, as those of Keras have."""
        if self.labels is not None:
            data.class_names = list(self.labels)
        return data

    def _packed(self, order: list[np.ndarray], epoch: int, index: int) -> tuple[Any, Any]:
        return self.pack(order[index], np.random.default_rng([self.seed, epoch, index]))

    def _ordered(self, epoch: int) -> list[np.ndarray]:
        """The indices of the samples of each batch."""
        count, size = self.lengths.size, self.batch_size
        if not self.shuffle:
            return [np.arange(first, min(first + size, count)) for first in range(0, count, size)]
        random = np.random.default_rng([self.seed, epoch])
        order, batches = random.permutation(count), []
        for first in range(0, count, size * POOL):
            pool = order[first : first + size * POOL]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += [pool[start : start + size] for start in range(0, pool.size, size)]
        return [batches[index] for index in random.permutation(len(batches))]


class LookAhead:
    """Prepares the next batches in threads, while batches are requested in order.

    Args:
        threads: number of threads.
        batches: number of batches that are prepared in advance.
    """

    def __init__(self, threads: int, batches: int):
        self._count, self._batches = threads, batches
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._next: tuple[int, int] | None = None  # epoch and index after those of the last batch
        self.futures: dict[tuple[int, int], Future[Any]] = {}

    def result(self, pack: Callable[[int], Any], epoch: int, index: int, count: int) -> Any:
        """Returns `pack(index)`, and starts to prepare the next batches.

        Args:
            pack: function that prepares a batch of the epoch.
            epoch: epoch of the batch.
            index: index of the batch.
            count: number of batches in the epoch.
        """
        with self._lock:
            sequential = index == 0 or self._next == (epoch, index)
            self._next = (epoch, index + 1)
            ready = self.futures.pop((epoch, index), None)
            last = min(index + self._batches + 1, count) if sequential else index
            following = [(epoch, i) for i in range(index + 1, last)]
            for key in self.futures.keys() - set(following):
                self.futures.pop(key).cancel()
            for key in following:
                if key not in self.futures:
                    self._threads = self._threads or ThreadPoolExecutor(self._count, "keras_tx batches")
                    self.futures[key] = self._threads.submit(pack, key[1])
        return pack(index) if ready is None else ready.result()
