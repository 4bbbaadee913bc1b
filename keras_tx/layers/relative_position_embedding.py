"""RelativePositionEmbedding: scores between queries and learned embeddings of the offset to each key."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Count, Shape, Size, checked
from keras_tx.errors import ConfigError


def by_key(by_offset: Any) -> Any:
    """(..., n, 2 n - 1) -> (..., n, n): row i has the entries from n - 1 - i on, one for each j - i."""
    n = ops.shape(by_offset)[-2]
    # Rows that are one longer than their stride shift so.
    lead = (ops.shape(by_offset)[0], *by_offset.shape[1:-2])
    padded = ops.pad(by_offset, [(0, 0)] * (len(by_offset.shape) - 1) + [(0, 1)])
    flat = ops.reshape(padded, (*lead, 2 * n * n))[..., : n * (2 * n - 1)]
    return ops.reshape(flat, (*lead, n, 2 * n - 1))[..., n - 1 :]


@keras.saving.register_keras_serializable("keras_tx")
class RelativePositionEmbedding(keras.layers.Layer):
    """Computes q_i (r_row + r_column) for each query i and key j, where r are embeddings of the offset j - i.

    `MultiHeadAttention(relative_grid=)` adds it to its scores. A grid has one table for the offset in rows
    and one for that in columns; a sequence has one table. All heads share them. The tokens before the grid
    have no offset to others: their rows and columns are 0.

    Args:
        grid: number of tokens of a sequence, or (rows, columns) of a grid.
        prefix_tokens: tokens before the grid.
        initializer: of the embeddings.

    Call arguments:
        query: (batch, heads, tokens, size).
    """

    @checked
    def __init__(
        self,
        grid: Size | tuple[Size, ...],
        prefix_tokens: Count = 0,
        initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid: tuple[int, ...] = (grid,) if isinstance(grid, int) else grid
        self.prefix_tokens = prefix_tokens
        self.initializer = keras.initializers.get(initializer)
        if len(self.grid) not in (1, 2):
            raise ConfigError(f"relative_grid={grid!r}, expected a length or (rows, columns).")

    def build(self, query_shape: Shape) -> None:
        names = ("offsets",) if len(self.grid) == 1 else ("row_offsets", "column_offsets")
        # Row i of a table is the embedding of the offset i - (length - 1).
        self.tables = [
            self.add_weight(
                shape=(2 * length - 1, query_shape[-1]), initializer=self.initializer.clone(), name=name
            )
            for name, length in zip(names, self.grid, strict=True)
        ]

    def check_tokens(self, name: str, tokens: int | None) -> None:
        """Raises a ConfigError if the layer `name` is called with another number of tokens."""
        length = self.prefix_tokens + math.prod(self.grid)
        if tokens is None or tokens == length or (len(self.grid) == 1 and tokens < length):
            return
        raise ConfigError(
            f"Layer {name!r} has relative positions for {self.prefix_tokens} + "
            f"{' x '.join(map(str, self.grid))} = {length} tokens, but the input has {tokens}."
        )

    def call(self, query: Any) -> Any:
        before = self.prefix_tokens
        query = query[:, :, before:]
        if len(self.grid) == 1:
            scores = self._scores(query, self.tables[0])
        else:
            heads, size = query.shape[1], query.shape[3]
            (rows, columns), tokens = self.grid, math.prod(self.grid)
            query = ops.reshape(query, (ops.shape(query)[0], heads, rows, columns, size))
            of_columns = self._scores(query, self.tables[1])  # (b, heads, rows, columns, key columns)
            of_rows = self._scores(ops.transpose(query, (0, 1, 3, 2, 4)), self.tables[0])
            of_rows = ops.transpose(of_rows, (0, 1, 3, 2, 4))  # (b, heads, rows, columns, key rows)
            scores = ops.add(ops.expand_dims(of_rows, -1), ops.expand_dims(of_columns, -2))
            scores = ops.reshape(scores, (-1, heads, tokens, tokens))
        return ops.pad(scores, ((0, 0), (0, 0), (before, 0), (before, 0))) if before else scores

    def _scores(self, query: Any, table: Any) -> Any:
        """(..., n, size) -> (..., n, n): the scores of each query along one axis of the grid."""
        n, length = ops.shape(query)[-2], (table.shape[0] + 1) // 2
        if query.shape[-2] != length:  # a shorter sequence, or one of unknown length
            table = table[length - n : length + n - 1]
        return by_key(ops.matmul(query, ops.transpose(table)))

    def compute_output_shape(self, query_shape: Shape) -> Shape:
        return (*query_shape[:3], query_shape[2])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid": self.grid,
            "prefix_tokens": self.prefix_tokens,
            "initializer": keras.initializers.serialize(self.initializer),
        }
