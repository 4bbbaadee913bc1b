"""Batches: samples in a seeded order, packed when they are asked for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.processing import TextTransform

Pack = Callable[[np.ndarray, np.random.Generator], tuple[Any, Any]]
OPTIONS = ("workers", "use_multiprocessing", "max_queue_size")  # of keras.utils.PyDataset
POOL = 50  # batches among which samples of a like length are looked for


class Batches(keras.utils.PyDataset):
    """What `model.fit` takes: batches of inputs and labels, in another order each epoch.

    Order and draws depend on the seed, the epoch and the number of the batch alone: neither on threads nor
    on what was read before. `tf_data()` gives the same batches as a tf.data.Dataset.

    Args:
        pack: inputs and labels of the samples with these numbers; what it draws, it draws from the generator.
        lengths: of each sample. Batches are filled with samples of a like length, so that there is little
            padding.
        shuffle: whether samples are reordered. If not, they come as given, for validation.
        options: those of keras.utils.PyDataset: `workers`, `max_queue_size` ...
    """

    def __init__(
        self,
        pack: Pack,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int = 32,
        *,
        shuffle: bool = True,
        seed: int = 0,
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
        super().__init__(**options)
        self.pack = pack
        self.lengths = np.asarray(lengths)
        self.batch_size = whole_number("batch_size", batch_size)
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._first = 0  # batches of this epoch that are not given any more
        if not self.lengths.size:
            raise ConfigError("There is no sample to make batches of.")
        self._order = self._ordered(self.epoch)

    def __len__(self) -> int:
        return len(self._order) - self._first

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"Batch {index} of {len(self)}.")
        return self._packed(self._order, self.epoch, self._first + index)

    def on_epoch_end(self) -> None:
        self.seek(self.epoch + 1)

    def seek(self, epoch: int, batch: int = 0) -> None:
        """The next pass is over this epoch, from this batch on; the one after it is whole again."""
        if epoch != self.epoch:
            self._order = self._ordered(epoch)
        if epoch < 0 or not 0 <= batch < len(self._order):
            raise ConfigError(
                f"There is no batch {batch} in epoch {epoch}: an epoch has {len(self._order)} batches."
            )
        self.epoch, self._first = epoch, batch

    def fingerprint(self) -> dict[str, Any]:
        """What has to be the same for the same batches to come."""
        order = {"batch_size": self.batch_size, "shuffle": self.shuffle, "seed": self.seed}
        return {**order, "samples": int(self.lengths.size)}

    def tf_data(self) -> Any:
        """A tf.data.Dataset of the same batches, made ahead of the step; each pass over it is an epoch."""
        import tensorflow as tf

        epochs = itertools.count()

        def epoch() -> Iterator[tuple[Any, Any]]:
            # Counted when a pass begins: whether one that was left early ran on ahead is a matter of timing.
            number = next(epochs)
            order = self._ordered(number)
            for index in range(len(order)):
                yield self._packed(order, number, index)

        def spec(array: np.ndarray) -> Any:
            return tf.TensorSpec((None,) * array.ndim, array.dtype)

        signature = keras.tree.map_structure(spec, self[0])
        data = tf.data.Dataset.from_generator(epoch, output_signature=signature)
        counted = data.apply(tf.data.experimental.assert_cardinality(len(self._order)))
        return counted.prefetch(tf.data.AUTOTUNE)

    def _packed(self, order: list[np.ndarray], epoch: int, index: int) -> tuple[Any, Any]:
        return self.pack(order[index], np.random.default_rng([self.seed, epoch, index]))

    def _ordered(self, epoch: int) -> list[np.ndarray]:
        """The numbers of the samples of each batch."""
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
