"""DisentangledAttention: the attention of DeBERTa, between contents and relative positions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.arguments import Rate, Shape, Size, checked
from keras_tx.errors import ConfigError
from keras_tx.layers.attention import MultiHeadAttention
from keras_tx.layers.relative_position_embedding import by_key

FEWEST_BUCKETS = 4


@keras.saving.register_keras_serializable("keras_tx")
class DisentangledAttention(MultiHeadAttention):
    """Self-attention between contents and relative positions, as in DeBERTa (He et al., version 2 and 3).

    Two terms are added to the score of query i and key j: that of the query with the position i - j as a
    key, and that of the key with the position i - j as a query. Positions are embeddings, which all layers
    share. With `buckets`, each distance up to `buckets / 2` has its own embedding, and larger ones share
    embeddings on a logarithmic scale. No tensor has the size (tokens, tokens, width).

    >>> import numpy as np
    >>> x, positions = np.zeros((2, 5, 16), "float32"), np.zeros((16, 16), "float32")
    >>> tuple(DisentangledAttention(4, max_distance=32, buckets=8)(x, positions=positions).shape)
    (2, 5, 16)

    Args:
        num_heads: number of heads.
        max_distance: the distance from which on all keys have the same position.
        buckets: half of the number of positions, even; None for `max_distance`.
        content_to_position: whether the first term is added.
        position_to_content: whether the second term is added.
        shared_projections: whether the dense layers of query and key also project the positions; otherwise
            there are others for them.
        position_dropout: rate of dropout on the embeddings of the positions.
        **kwargs: options of MultiHeadAttention, except those of decoders and of other positions. The
            default of `scale` is 1 / sqrt(terms * width of a head), for two or three terms.

    Call arguments:
        query: (batch, tokens, width).
        positions: (2 * buckets, width), embeddings of the positions; RelativeEmbeddings returns them.
        attention_mask, padding_mask, bias, return_attention_scores: as for MultiHeadAttention.
    """

    @checked
    def __init__(
        self,
        num_heads: Size,
        max_distance: Size = 512,
        buckets: Size | None = None,
        content_to_position: bool = True,
        position_to_content: bool = True,
        shared_projections: bool = True,
        position_dropout: Rate = 0.0,
        **kwargs: Any,
    ):
        super().__init__(num_heads, **kwargs)
        self._check_options()
        check_buckets(buckets, max_distance)
        if not content_to_position and not position_to_content:
            raise ConfigError(
                f"Layer {self.name!r} has content_to_position=False and position_to_content=False, so "
                "positions have no effect. Set one of them, or use MultiHeadAttention."
            )
        self.max_distance = max_distance
        self.buckets = buckets
        self.content_to_position = content_to_position
        self.position_to_content = position_to_content
        self.shared_projections = shared_projections
        self.position_dropout = position_dropout
        self.positions_dropout = keras.layers.Dropout(
            position_dropout, dtype=self.dtype_policy, name="positions_dropout"
        )

    def _check_options(self) -> None:
        unsupported = {
            "causal": self.causal,
            "kv_heads": self.kv_heads != self.num_heads,
            "rotary_base": self.rotary_base is not None,
            "relative_grid": self.relative_grid is not None,
            "qk_norm": bool(self.qk_norm),
        }
        for name in (name for name, is_set in unsupported.items() if is_set):
            raise ConfigError(
                f"Layer {self.name!r} has {name}={getattr(self, name)!r}, which a DisentangledAttention does "
                "not support. Remove it, or use MultiHeadAttention."
            )

    @property
    def position_count(self) -> int:
        """The number of embeddings of positions."""
        return 2 * (self.buckets or self.max_distance)

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self.position_key: Any = self.key
        self.position_query: Any = self.query
        if self.shared_projections:
            return
        units, shape = self.num_heads * self.size, (self.position_count, query_shape[-1])
        if self.content_to_position:
            self.position_key = self._project(units, "position_key", shape, self.key_bias)
        if self.position_to_content:
            self.position_query = self._project(units, "position_query", shape, self.qkv_bias)

    def position_layers(self) -> dict[str, keras.layers.Dense]:
        """The dense layers of positions by their role; queries attend to "key", and "query" to keys."""
        layers = {"key": self.position_key} if self.content_to_position else {}
        return {**layers, "query": self.position_query} if self.position_to_content else layers

    def _factor(self) -> float:
        terms = 1 + self.content_to_position + self.position_to_content
        return (terms * self.size) ** -0.5 if self.scale is None else self.scale

    def _check_call(
        self,
        query: Any,
        value: Any,
        key: Any,
        attention_mask: Any,
        padding_mask: Any,
        bias: Any,
        positions: Any,
        past: tuple[Any, Any] | None,
        cache: Any = None,
    ) -> None:
        others = {"value": value, "key": key, "past": past}
        for name in (name for name, x in others.items() if x is not None):
            raise ConfigError(
                f"Layer {self.name!r} is for self-attention without a past, but was called with {name}=. "
                "Remove it, or use MultiHeadAttention."
            )
        expected = (self.position_count, query.shape[-1])
        shape = None if positions is None else tuple(positions.shape)
        if shape != expected:
            raise ConfigError(
                f"Layer {self.name!r}: positions has the shape {shape}, expected (2 * buckets, width) = "
                f"{expected}."
            )
        super()._check_call(query, None, None, attention_mask, padding_mask, bias, None, None)

    def _with_position_scores(self, q: Any, k: Any, bias: Any, positions: Any, training: Any) -> Any:
        positions = self.positions_dropout(positions, training=training)
        n = ops.shape(q)[2]
        # The offsets query - key in a row of scores, from n - 1 down to 1 - n.
        offsets = ops.subtract(n - 1, ops.arange(2 * n - 1, dtype="int32"))
        reach = self.max_distance
        places = ops.take(self.places(), ops.add(ops.clip(offsets, -reach, reach), reach))
        scores = None
        if self.content_to_position:
            scores = by_key(ops.matmul(q, self._of_places(self.position_key(positions), places)))
        if self.position_to_content:  # rows are keys here, whose offsets to queries count upward
            places = ops.flip(places)
            of_keys = by_key(ops.matmul(k, self._of_places(self.position_query(positions), places)))
            of_keys = ops.transpose(of_keys, (0, 1, 3, 2))
            scores = of_keys if scores is None else ops.add(scores, of_keys)
        scores = ops.multiply(ops.cast(scores, "float32"), self._factor())
        if bias is None:
            return scores
        bias = ops.cast(bias, "float32")
        return ops.add(scores, ops.expand_dims(bias, 1) if len(bias.shape) == 3 else bias)

    def _of_places(self, projected: Any, places: Any) -> Any:
        """(positions, width) -> (heads, size, places)."""
        rows = ops.take(projected, places, axis=0)
        rows = ops.reshape(rows, (ops.shape(rows)[0], self.num_heads, self.size))
        return ops.transpose(rows, (1, 2, 0))

    def places(self) -> np.ndarray:
        """The row of `positions` for each offset query - key from -max_distance to max_distance."""
        offsets = np.arange(-self.max_distance, self.max_distance + 1)
        half = self.position_count // 2
        buckets = offsets if self.buckets is None else log_buckets(offsets, self.buckets, self.max_distance)
        return np.clip(buckets + half, 0, 2 * half - 1).astype("int32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in POSITION_OPTIONS}}


POSITION_OPTIONS = (
    "max_distance",
    "buckets",
    "content_to_position",
    "position_to_content",
    "shared_projections",
    "position_dropout",
)


def check_buckets(buckets: int | None, max_distance: int) -> None:
    """Raises a ConfigError for buckets without a logarithmic scale."""
    if buckets is None:
        return
    if buckets % 2 or buckets < FEWEST_BUCKETS:
        raise ConfigError(f"buckets is {buckets}, expected an even number, {FEWEST_BUCKETS} or more.")
    if max_distance < buckets // 2 + 2:
        raise ConfigError(
            f"max_distance is {max_distance}, expected {buckets // 2 + 2} or more for buckets={buckets}."
        )


def log_buckets(offsets: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each offset: itself up to `buckets / 2`, then on a logarithmic scale."""
    half = buckets // 2
    distances = np.maximum(np.abs(offsets), half).astype("float32")
    scale = np.log(np.float32((max_distance - 1) / half))
    far = np.ceil(np.log(distances / np.float32(half)) / scale * np.float32(half - 1)) + half
    return np.where(np.abs(offsets) <= half, offsets, far * np.sign(offsets)).astype("int64")
