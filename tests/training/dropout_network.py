"""A network with dropout, and rows in another order in each epoch, to compare resumed trainings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

BATCH = 4


def dropout_network() -> keras.Model:
    """Returns a network of 4 inputs and 1 output, not compiled."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(8, activation="tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class OrderedRows(keras.utils.PyDataset):
    """Batches of rows; the order depends on the seed and the epoch."""

    seed = 3

    def __init__(self, x: np.ndarray, y: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self.x, self.y = x, y
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.order = np.random.default_rng([self.seed, epoch]).permutation(len(self.x))

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index: int) -> Any:
        rows = self.order[BATCH * index : BATCH * (index + 1)]
        return self.x[rows], self.y[rows]
