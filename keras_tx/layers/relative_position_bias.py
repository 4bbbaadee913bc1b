"""RelativePositionBias: a learned bias for each head and each distance between two tokens."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.arguments import Shape, Size, checked
from keras_tx.errors import ConfigError
from keras_tx.layers.key_value_cache import open_cache


@keras.saving.register_keras_serializable("keras_tx")
class RelativePositionBias(keras.layers.Layer):
    """Computes the bias (1, heads, queries, keys) that T5 adds to its attention scores.

    The first half of the buckets hold one distance each; the others grow logarithmically up to
    `max_distance`. The attention layers of a model may share one bias.

    >>> import numpy as np
    >>> x = np.zeros((2, 9, 32), "float32")
    >>> tuple(RelativePositionBias(num_heads=4)(x).shape)
    (1, 4, 9, 9)

    Args:
        num_heads: number of attention heads.
        buckets: number of learned values per head.
        max_distance: distances from this one on share one value.
        bidirectional: whether keys after the query have separate buckets (encoders), or share one
            (decoders). While a decoder generates with a cache of keys and values, the keys include the cached
            ones, and the queries are the last tokens.
    """

    @checked
    def __init__(
        self,
        num_heads: Size,
        buckets: Size = 32,
        max_distance: Size = 128,
        bidirectional: bool = True,
        initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        least = 4 if bidirectional else 2
        if buckets < least or buckets % 2 or max_distance <= buckets // least:
            raise ConfigError(
                f"RelativePositionBias(buckets={buckets}, max_distance={max_distance}): buckets must be even "
                f"and at least {least}, and max_distance greater than buckets / {least}."
            )
        self.num_heads = num_heads
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)

    def build(self, query_shape: Shape, value_shape: Shape | None = None) -> None:
        self.table = self.add_weight(
            shape=(self.buckets, self.num_heads), initializer=self.initializer.clone(), name="table"
        )

    def call(self, query: Any, value: Any = None) -> Any:
        queries = ops.shape(query)[1]
        keys = queries if value is None else ops.shape(value)[1]
        start = 0
        cache = None if self.bidirectional or value is not None else open_cache()
        if cache is not None:
            keys = ops.shape(cache.mask)[1]
            start = keys - queries
        distance = (
            ops.arange(keys)[None, :] - ops.arange(queries)[:, None] - start
        )  # positive: the key is later
        bias = ops.take(self.table, self._bucket(distance), axis=0)  # (queries, keys, heads)
        return ops.expand_dims(ops.transpose(bias, (2, 0, 1)), 0)

    def _bucket(self, distance: Any) -> Any:
        thresholds = ops.convert_to_tensor(self.thresholds(), dtype="int32")
        distance = ops.cast(distance, "int32")
        back = ops.abs(distance) if self.bidirectional else ops.maximum(-distance, 0)
        bucket = ops.sum(ops.cast(ops.expand_dims(back, -1) >= thresholds, "int32"), axis=-1)
        if self.bidirectional:
            bucket = bucket + ops.cast(distance > 0, "int32") * (self.buckets // 2)
        return bucket

    def thresholds(self) -> np.ndarray:
        """The smallest distance of each bucket but the first, in one direction.

        Comparisons of integers are equal on every backend and in ONNX; rounded logarithms are not.
        """
        count = self.buckets // 2 if self.bidirectional else self.buckets
        exact = count // 2
        distances = np.arange(1, self.max_distance + 1)
        steps = np.log(np.maximum(distances, exact).astype("float32") / exact) / math.log(
            self.max_distance / exact
        )
        logarithmic = np.minimum(exact + (steps * (count - exact)).astype("int64"), count - 1)
        buckets = np.where(distances < exact, distances, logarithmic)
        return np.array([distances[buckets >= b][0] for b in range(1, count)], "int32")

    def compute_mask(self, *args: Any, **kwargs: Any) -> None:
        return None  # the bias has no axis of tokens

    def compute_output_shape(self, query_shape: Shape, value_shape: Shape | None = None) -> Shape:
        keys = query_shape[1] if value_shape is None else value_shape[1]
        return (1, self.num_heads, query_shape[1], keys)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "buckets": self.buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "initializer": keras.initializers.serialize(self.initializer),
        }
