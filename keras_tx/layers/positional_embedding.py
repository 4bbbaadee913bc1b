"""PositionalEmbedding: learned and fixed positions of a sequence or a grid of tokens."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.arguments import Count, Shape, Size, checked
from keras_tx.errors import ConfigError, nearest
from keras_tx.layers.key_value_cache import open_cache
from keras_tx.layers.position_tables import fourier_features, resize_grid, sine_cosine

KINDS = ("none", "learned", "learned-2d", "sine-cosine", "sine-cosine-halves", "fourier")
SINE_COSINE = ("sine-cosine", "sine-cosine-halves")


@keras.saving.register_keras_serializable("keras_tx")
class PositionalEmbedding(keras.layers.Layer):
    """Adds a position to each token of (batch, prefix_tokens + tokens, width).

    Kinds:
        "none": no positions.
        "learned": a table with one row per token (ViT, BERT, GPT).
        "learned-2d": a table for the rows of the grid and one for its columns, half of the width each.
        "sine-cosine": the fixed table of "Attention Is All You Need"; for a grid, the same share of the width
            for each axis.
        "sine-cosine-halves": the same for a sequence, with all sines before all cosines, as in Tensor2Tensor
            and Marian.
        "fourier": sines and cosines of the coordinates at `bands` frequencies, projected to the width by
            a learned matrix.

    >>> import numpy as np
    >>> tuple(PositionalEmbedding((14, 14), prefix_tokens=1)(np.zeros((2, 197, 768), "float32")).shape)
    (2, 197, 768)

    Args:
        grid: number of tokens of a sequence, (rows, columns) of an image, (time, rows, columns) of a video.
        kind: one of the kinds above.
        prefix_tokens: tokens before the grid (class token, registers). The learned kinds have a row for each
            of them; the fixed kinds add nothing to them.
        bands: number of frequencies of "fourier".
        initializer: of the learned weights.

    Call arguments:
        inputs: (batch, tokens, width).
        positions: integers (batch, tokens) or (1, tokens), the row of the table for each token; by default
            0, 1, 2 ..., after the tokens of an open cache of keys and values.
    """

    @checked
    def __init__(
        self,
        grid: Size | tuple[Size, ...],
        kind: str = "learned",
        prefix_tokens: Count = 0,
        bands: Size = 16,
        initializer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.grid: tuple[int, ...] = (grid,) if isinstance(grid, int) else grid
        self.kind = kind
        self.prefix_tokens = prefix_tokens
        self.bands = bands
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))
        if kind not in KINDS:
            raise ConfigError(f"kind={kind!r} is unknown. {nearest(str(kind), KINDS)}")
        if len(self.grid) not in (1, 2, 3):
            raise ConfigError(
                f"grid={grid!r} has {len(self.grid)} axes, expected a length, (rows, columns) or (time, "
                "rows, columns)."
            )
        if kind == "learned-2d" and len(self.grid) != 2:
            raise ConfigError(f"kind='learned-2d' with grid={grid!r}, expected grid=(rows, columns).")
        if kind == "sine-cosine-halves" and len(self.grid) != 1:
            raise ConfigError(f"kind='sine-cosine-halves' with grid={grid!r}, expected a length.")

    @property
    def length(self) -> int:
        """Number of tokens with a position, the prefix included."""
        return self.prefix_tokens + math.prod(self.grid)

    def build(self, input_shape: Shape) -> None:
        self._check(input_shape)
        width = input_shape[-1]
        axes = len(self.grid)
        self.prefix = None
        divisor = {"sine-cosine": 2 * axes, "sine-cosine-halves": 2, "learned-2d": 2}.get(self.kind, 1)
        if width % divisor:
            raise ConfigError(
                f"Layer {self.name!r}: the width {width} is not divisible by {divisor}, as "
                f"kind={self.kind!r} with {axes} axes requires."
            )
        if self.kind == "learned":
            self.table = self._weight("table", (self.length, width))
        elif self.kind == "learned-2d":
            if self.prefix_tokens:
                self.prefix = self._weight("prefix", (self.prefix_tokens, width))
            self.rows = self._weight("rows", (self.grid[0], width // 2))
            self.columns = self._weight("columns", (self.grid[1], width // 2))
        elif self.kind in SINE_COSINE:
            self.fixed = sine_cosine(self.grid, width, halves=self.kind == "sine-cosine-halves")
        elif self.kind == "fourier":
            self.fixed = fourier_features(self.grid, self.bands)
            self.kernel = self._weight("kernel", (self.fixed.shape[-1], width))

    def _weight(self, name: str, shape: tuple[int, ...]) -> Any:
        return self.add_weight(shape=shape, initializer=self.initializer.clone(), name=name)

    def _check(self, input_shape: Shape) -> None:
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ConfigError(
                f"Layer {self.name!r}: the input has the shape {tuple(input_shape)}, expected (batch, "
                "tokens, width)."
            )
        tokens = input_shape[1]
        if tokens is not None and (tokens > self.length or (len(self.grid) > 1 and tokens != self.length)):
            raise ConfigError(
                f"Layer {self.name!r} has positions for {self.prefix_tokens} + "
                f"{' x '.join(map(str, self.grid))} = {self.length} tokens, but the input has {tokens}."
            )

    def positions(self, dtype: str | None = None) -> Any:
        """Returns the table (length, width), prefix rows first; that of the fixed kinds in `dtype`."""
        dtype = dtype or self.compute_dtype
        if self.kind == "learned":
            return self.table
        prefix = self.prefix
        if self.kind == "learned-2d":
            rows, columns = self.grid
            half = self.rows.shape[-1]
            grid = ops.concatenate(
                [
                    ops.broadcast_to(ops.expand_dims(self.rows, 1), (rows, columns, half)),
                    ops.broadcast_to(ops.expand_dims(self.columns, 0), (rows, columns, half)),
                ],
                axis=-1,
            )
            grid = ops.reshape(grid, (rows * columns, 2 * half))
        elif self.kind in SINE_COSINE:
            grid = ops.convert_to_tensor(self.fixed, dtype=dtype)
        else:
            grid = ops.matmul(ops.convert_to_tensor(self.fixed, dtype=dtype), self.kernel)
        if not self.prefix_tokens:
            return grid
        if prefix is None:
            prefix = ops.zeros((self.prefix_tokens, grid.shape[-1]), dtype=dtype)
        return ops.concatenate([prefix, grid], axis=0)

    def call(self, inputs: Any, positions: Any = None) -> Any:
        self._check_positions(positions)
        self._check(inputs.shape)
        if self.kind == "none":
            return inputs
        table = self.positions()
        cache = open_cache()
        if positions is None and cache is not None:
            positions = cache.positions(inputs.shape[1])
        if positions is not None:
            return ops.add(inputs, ops.take(table, positions, axis=0))
        if inputs.shape[1] != self.length:  # shorter, or of unknown length
            table = table[: ops.shape(inputs)[1]]
        return ops.add(inputs, ops.expand_dims(table, 0))

    def _check_positions(self, positions: Any) -> None:
        if positions is None:
            return
        if self.kind == "none":
            raise ConfigError(f"Layer {self.name!r} has kind='none', so positions= has no effect. Remove it.")
        kind = keras.backend.standardize_dtype(positions.dtype)
        if "int" not in kind:
            raise ConfigError(f"Layer {self.name!r}: positions= is {kind}, expected integers. Cast it.")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        self._check(input_shape)
        return input_shape

    def compute_output_spec(self, inputs: Any, positions: Any = None) -> keras.KerasTensor:
        self._check_positions(positions)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def resize_from(self, other: PositionalEmbedding, kind: str = "plain") -> None:
        """Assigns the learned positions of a layer with another grid, resized bicubically.

        Prefix rows are copied.

        >>> import numpy as np
        >>> small, large = (PositionalEmbedding((n, n), prefix_tokens=1) for n in (14, 24))
        >>> _ = small(np.zeros((1, 197, 8), "float32")), large(np.zeros((1, 577, 8), "float32"))
        >>> large.resize_from(small)

        Args:
            other: a built layer of the same kind, with as many prefix tokens and axes.
            kind: "plain", "antialiased" or "aligned", as published checkpoints were resized.

        Raises:
            ConfigError: the layers do not fit together, or one of them is not built.
        """
        here, there = ((x.kind, x.prefix_tokens, len(x.grid)) for x in (self, other))
        if here != there:
            raise ConfigError(
                f"Layer {self.name!r} has kind={self.kind!r}, prefix_tokens={self.prefix_tokens} and "
                f"grid={self.grid}, but layer {other.name!r} has kind={other.kind!r}, "
                f"prefix_tokens={other.prefix_tokens} and grid={other.grid}."
            )
        for layer in (self, other):
            if not layer.built:
                raise ConfigError(f"Layer {layer.name!r} is not built. Call it once.")
        for weight, source in zip(self.weights, other.weights, strict=True):
            weight.assign(self._resized(weight, ops.convert_to_numpy(source), other.grid, kind))

    def _resized(self, weight: Any, value: np.ndarray, old_grid: tuple[int, ...], kind: str) -> np.ndarray:
        if self.kind == "learned":
            prefix, grid = value[: self.prefix_tokens], value[self.prefix_tokens :]
            return np.concatenate([prefix, resize_grid(grid, old_grid, self.grid, kind)])
        if self.kind == "learned-2d" and weight is not self.prefix:
            return resize_grid(value, (value.shape[0],), (weight.shape[0],), kind)
        return value

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid": self.grid,
            "kind": self.kind,
            "prefix_tokens": self.prefix_tokens,
            "bands": self.bands,
            "initializer": keras.initializers.serialize(self.initializer),
        }
