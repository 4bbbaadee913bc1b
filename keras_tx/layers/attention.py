"""MultiHeadAttention: softmax(Q K^T / sqrt(d)) V."""

from __future__ import annotations

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_keras_mask  # no public name; JAX tracers carry no `_keras_mask`

from keras_tx.arguments import Count, Epsilon, Positive, Rate, Shape, Size, checked
from keras_tx.errors import ConfigError
from keras_tx.layers.dot_product_attention import (
    LOWEST,
    attend,
    causal_mask,
    softmax,
    weights_are_written_out,
)
from keras_tx.layers.key_value_cache import KeyValueCache, open_cache
from keras_tx.layers.relative_position_embedding import RelativePositionEmbedding
from keras_tx.layers.rotary import check_scaling, grid_angles, rotate, turn

RMS = "rms"  # of qk_norm


@keras.saving.register_keras_serializable("keras_tx")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention, called like `keras.layers.MultiHeadAttention`.

    Query, key and value have separate weights, as in checkpoints and for LoRA; the exporter packs them. The
    softmax is computed in float32 under every dtype policy. If all keys of a query are masked, its attention
    weights are zero, not NaN. The fused operation of the backend is used unless weights are returned or there
    is a bias, relative positions or active dropout of the weights: `scaled_dot_product_attention` of PyTorch,
    and `keras.ops.dot_product_attention` of JAX on an accelerator. Otherwise the scores are materialized,
    from 2,048 tokens on for 512 queries at a time.

    >>> import numpy as np
    >>> tuple(MultiHeadAttention(num_heads=8, causal=True)(np.zeros((2, 9, 512), "float32")).shape)
    (2, 9, 512)

    Args:
        num_heads: number of query heads.
        key_dim: width of a query and key head; by default the query's width divided by `num_heads`.
        value_dim: width of a value head; by default that of `key_dim`.
        kv_heads: number of key and value heads, each shared by `num_heads / kv_heads` query heads.
        causal: whether the query at position i attends to the keys up to position i only.
        rotary_base: base of rotary positions (10,000 in Llama); None for no rotation.
        rotary_scaling: how positions are scaled beyond the trained length: {"rope_type": "linear",
            "factor": 4.0}, or "llama3" with the four numbers of Llama 3.1.
        rotary_grid: (rows, columns) of a grid of patches, for rotary positions in two axes: half of the
            channels rotate with the row, the others with the column, scaled to -1..1, as in DINOv3. For
            self-attention without a past; `rotary_base` is 100 there. None for positions in one axis.
        relative_grid: number of tokens of a sequence, or (rows, columns) of a grid, for relative positions:
            each query is also multiplied by a learned embedding of its offset to each key, per axis of the
            grid and shared by the heads, and the result is added to the scores before they are scaled
            (Shaw et al.; appendix D.4 of the ViT paper). For self-attention without a past. None for none.
        prefix_tokens: tokens before either grid (class token, registers), which have no positions.
        scale: factor of the scores; by default 1 / sqrt(width of a head). 1.0 in T5.
        dropout: rate of dropout on the attention weights.
        use_bias: whether the dense layers have biases.
        qkv_bias: whether query, key and value have biases; by default `use_bias`.
        key_bias: whether the key has a bias; by default `qkv_bias`.
        qk_norm: whether each head of query and key is normalized before rotation and scaling, with one
            scale for all heads: True for a layer norm, with a bias if `use_bias` is true, as in timm; "rms"
            for an RMS norm, as in Qwen3.
        norm_epsilon: epsilon of these two norms.

    Call arguments:
        query: (batch, queries, width).
        value: (batch, keys, value width); `query` by default.
        key: (batch, keys, key width); `value` by default.
        attention_mask: booleans or integers, true where a query may attend to a key: (queries, keys),
            (batch, queries, keys) or four axes that broadcast to (batch, heads, queries, keys). With
            `past`, keys include the past. A key is masked if any of the masks excludes it.
        padding_mask: (batch, keys), true or nonzero where a key is real. With `past`, it covers the
            past too. By default the Keras masks of key and value.
        bias: added to the scores, with the shapes of `attention_mask`; RelativePositionBias computes one. A
            key whose bias is -inf is masked.
        positions: integers (batch, queries) or (1, queries) for the rotation; by default 0, 1, 2 ...
            after the past. Keys of another sequence always have positions 0, 1, 2 ...
        past: (key, value) of earlier tokens, each (batch, kv_heads, past, head width).
        return_attention_scores: whether the attention weights are returned too.

    Returns:
        The output (batch, queries, width). With `past`, it is followed by the (key, value) of all tokens,
        the past of the next call; with `return_attention_scores`, by the attention weights (batch, heads,
        queries, keys).
    """

    @checked
    def __init__(
        self,
        num_heads: Size,
        key_dim: Size | None = None,
        value_dim: Size | None = None,
        kv_heads: Size | None = None,
        causal: bool = False,
        rotary_base: Positive | None = None,
        rotary_scaling: Any = None,
        rotary_grid: tuple[Size, Size] | None = None,
        relative_grid: Size | tuple[Size, ...] | None = None,
        prefix_tokens: Count = 0,
        scale: Positive | None = None,
        dropout: Rate = 0.0,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        key_bias: bool | None = None,
        qk_norm: bool | str = False,
        norm_epsilon: Epsilon = 1e-6,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.causal = causal
        self.rotary_base = rotary_base
        self.rotary_scaling = check_scaling(rotary_scaling)
        self.rotary_grid = rotary_grid
        self.relative_grid = relative_grid
        self.prefix_tokens = prefix_tokens
        self.scale = scale
        self.dropout = dropout
        self.use_bias = use_bias
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.key_bias = self.qkv_bias if key_bias is None else key_bias
        self.qk_norm = _kind_of_norm(qk_norm)
        self.norm_epsilon = norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.weights_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="weights_dropout")
        if num_heads % self.kv_heads:
            raise ConfigError(
                f"Layer {self.name!r}: num_heads={num_heads} is not divisible by kv_heads={self.kv_heads}."
            )
        self._check_rotary()
        self.relative = self._relative_positions()

    def _check_rotary(self) -> None:
        for name in ("rotary_scaling", "rotary_grid"):
            if self.rotary_base is None and getattr(self, name) is not None:
                raise ConfigError(
                    f"Layer {self.name!r} has no rotary_base, so {name}= has no effect. Remove it."
                )
        if self.rotary_grid is not None and self.rotary_scaling is not None:
            raise ConfigError(
                f"Layer {self.name!r} has rotary_grid={self.rotary_grid} and "
                f"rotary_scaling={self.rotary_scaling}. Remove one of them."
            )
        if self.rotary_base is not None and self.key_dim is not None:
            self._check_pairs(f"key_dim={self.key_dim}", self.key_dim)

    def _check_pairs(self, description: str, size: int) -> None:
        """Raises a ConfigError if the channels of a head cannot be rotated in pairs."""
        if size % 2:
            raise ConfigError(
                f"Layer {self.name!r}: {description} is odd, but rotary positions rotate pairs of channels."
            )
        if self.rotary_grid is not None and size % 4:
            raise ConfigError(
                f"Layer {self.name!r}: {description} is not divisible by 4, but rotary_grid rotates pairs of "
                "channels for each of two axes."
            )

    def _relative_positions(self) -> RelativePositionEmbedding | None:
        if self.relative_grid is None:
            if self.prefix_tokens and self.rotary_grid is None:
                raise ConfigError(
                    f"Layer {self.name!r} has no relative_grid and no rotary_grid, so "
                    f"prefix_tokens={self.prefix_tokens} has no effect. Remove it."
                )
            return None
        if self.rotary_base is not None:
            raise ConfigError(
                f"Layer {self.name!r} has relative_grid={self.relative_grid} and "
                f"rotary_base={self.rotary_base}. Remove one of them."
            )
        return RelativePositionEmbedding(
            self.relative_grid,
            self.prefix_tokens,
            self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="relative",
        )

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> None:
        width = query_shape[-1]
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        if self.key_dim is None and width % self.num_heads:
            raise ConfigError(
                f"Layer {self.name!r}: the width {width} is not divisible by num_heads={self.num_heads}. "
                "Change one of them, or pass key_dim=."
            )
        self.size = self.key_dim or width // self.num_heads  # width of a query and key head
        self.value_size = self.value_dim or self.size
        if self.rotary_base is not None:
            self._check_pairs(f"the head width {width} / {self.num_heads} = {self.size}", self.size)
        self.query = self._project(self.num_heads * self.size, "query", query_shape, self.qkv_bias)
        self.key = self._project(self.kv_heads * self.size, "key", key_shape, self.key_bias)
        self.value = self._project(self.kv_heads * self.value_size, "value", value_shape, self.qkv_bias)
        self.query_norm: Any = None
        self.key_norm: Any = None
        if self.qk_norm:
            self.query_norm, self.key_norm = self._head_norm("query_norm"), self._head_norm("key_norm")
        if self.relative is not None:
            self.relative.build((None, self.num_heads, None, self.size))
        attended_shape = (*query_shape[:-1], self.num_heads * self.value_size)
        self.output_projection = self._project(width, "output", attended_shape, self.use_bias)

    def _project(self, units: int, name: str, input_shape: Shape, use_bias: bool) -> keras.layers.Dense:
        dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(input_shape)
        return dense

    def _head_norm(self, name: str) -> keras.layers.Layer:
        options = {"epsilon": self.norm_epsilon, "dtype": self.dtype_policy, "name": name}
        if self.qk_norm == RMS:
            norm = keras.layers.RMSNormalization(**options)
        else:
            norm = keras.layers.LayerNormalization(center=self.use_bias, **options)
        norm.build((None, None, None, self.size))
        return norm

    def call(
        self,
        query: Any,
        value: Any = None,
        key: Any = None,
        attention_mask: Any = None,
        padding_mask: Any = None,
        bias: Any = None,
        positions: Any = None,
        past: tuple[Any, Any] | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        cache = self._cache(past, value=value, key=key, attention_mask=attention_mask)
        if cache is not None:
            padding_mask = (
                None  # it covers the tokens of this call only; that of the cache covers the past too
            )
        self._check_call(query, value, key, attention_mask, padding_mask, bias, positions, past, cache)
        is_self = value is None and key is None
        value = query if value is None else value
        key = value if key is None else key
        if cache is not None:
            padding_mask = cache.mask
        elif padding_mask is None:
            padding_mask = _mask_of(key, value)

        q, k, v = self._projected(query, key, value)  # (b, heads, s, d)
        if cache is not None:
            past = cache.past_of(self, k, v)
        start = 0 if past is None else ops.shape(past[0])[2]
        if self.rotary_base is not None:
            q, k = self._rotated(q, k, positions, start, is_self)
        if past is not None:
            k = ops.concatenate([ops.cast(past[0], k.dtype), k], axis=2)
            v = ops.concatenate([ops.cast(past[1], v.dtype), v], axis=2)

        masks = self._masks(attention_mask, padding_mask, bias)
        bias = self._with_position_scores(q, k, bias, positions, training)
        attended, weights = self._attended(q, k, v, start, masks, bias, return_attention_scores, training)
        attended = ops.transpose(attended, (0, 2, 1, 3))  # (b, s, heads, d)
        attended = ops.reshape(
            attended, (ops.shape(attended)[0], ops.shape(attended)[1], self.num_heads * self.value_size)
        )
        extra: list[Any] = []
        if cache is not None:
            cache.presents[self.path] = (k, v)
        elif past is not None:
            extra.append((k, v))
        if return_attention_scores:
            extra.append(weights)
        output = self.output_projection(attended)
        return (output, *extra) if extra else output

    def _with_position_scores(self, q: Any, k: Any, bias: Any, positions: Any, training: Any) -> Any:
        """The bias, to which a subclass may add scores of queries, keys and positions."""
        return bias

    def _cache(self, past: Any, **others: Any) -> KeyValueCache | None:
        """The open cache; None without one, and where the layer does not use it."""
        cache = open_cache() if self.causal and past is None else None
        names = [name for name, x in others.items() if x is not None]
        if cache is not None and names:
            raise ConfigError(
                f"Layer {self.name!r} decodes with a cache, which supports only self-attention with a "
                f"padding mask. Remove {names[0]}=."
            )
        return cache

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
        cache: KeyValueCache | None = None,
    ) -> None:
        """Checks that the arguments fit together, as far as their shapes are known."""
        keys = self._check_sequences(query, value, key)
        others = [name for name, x in (("value", value), ("key", key)) if x is not None]
        if positions is not None and (self.rotary_base is None or self.rotary_grid is not None):
            reason = "no rotary_base" if self.rotary_grid is None else f"rotary_grid={self.rotary_grid}"
            raise ConfigError(f"Layer {self.name!r} has {reason}, so positions= has no effect. Remove it.")
        for name, argument in (("past", past), ("positions", positions)):
            if others and argument is not None:
                raise ConfigError(
                    f"Layer {self.name!r}: {name}= is for self-attention, but the layer was also called with "
                    f"{' and '.join(others)}. Remove one of them."
                )
        if self.relative is not None or self.rotary_grid is not None:
            self._check_grid(query, {"value": value, "key": key, "past": past, "a cache": cache})
        if past is not None:
            keys = _sum(keys, past[0].shape[2])
        elif cache is not None:
            keys = cache.mask.shape[1]
        self._check_masks(query.shape, keys, attention_mask, padding_mask, bias)

    def _check_grid(self, query: Any, others: dict[str, Any]) -> None:
        name = "rotary_grid" if self.relative is None else "relative_grid"
        grid = f"{name}={getattr(self, name)}"
        names = [name for name, x in others.items() if x is not None]
        if names:
            raise ConfigError(
                f"Layer {self.name!r} has {grid}, which is for self-attention without a past, but was called "
                f"with {names[0]}. Use rotary_base= or RelativePositionBias."
            )
        if self.relative is not None:
            self.relative.check_tokens(self.name, query.shape[1])
            return
        tokens = self.prefix_tokens + math.prod(self.rotary_grid or ())
        if not _may_be_equal(query.shape[1], tokens):
            raise ConfigError(
                f"Layer {self.name!r} has prefix_tokens={self.prefix_tokens} and {grid}, which are {tokens} "
                f"tokens, but was called with {query.shape[1]}."
            )

    def _check_sequences(self, query: Any, value: Any, key: Any) -> int | None:
        """The number of keys, None where it is unknown."""
        tensors = {"query": query, "value": value, "key": key}
        shapes = {name: tuple(x.shape) for name, x in tensors.items() if x is not None}
        for name, shape in shapes.items():
            if len(shape) != 3:
                raise ConfigError(
                    f"Layer {self.name!r}: {name} has the shape {shape}, expected (batch, tokens, width)."
                )
        values = shapes.get("value", shapes["query"])[1]
        keys = shapes["key"][1] if "key" in shapes else values
        if not _may_be_equal(values, keys):
            raise ConfigError(
                f"Layer {self.name!r}: value has {values} tokens, but key has {keys}. They must have the "
                "same number."
            )
        return keys

    def _check_masks(
        self, query_shape: Shape, keys: int | None, attention_mask: Any, padding_mask: Any, bias: Any
    ) -> None:
        if padding_mask is not None and not _may_be_equal(padding_mask.shape[-1], keys):
            raise ConfigError(
                f"Layer {self.name!r}: padding_mask covers {padding_mask.shape[-1]} keys, expected {keys}, "
                "including the past."
            )
        if attention_mask is not None:
            kind = keras.backend.standardize_dtype(attention_mask.dtype)
            if kind != "bool" and "int" not in kind:
                raise ConfigError(
                    f"Layer {self.name!r}: attention_mask is {kind}, expected booleans or integers. Pass "
                    "numbers that are added to the scores as bias=."
                )
        full = (query_shape[0], self.num_heads, query_shape[1], keys)
        for name, argument in (("attention_mask", attention_mask), ("bias", bias)):
            if argument is not None and not _broadcasts(tuple(argument.shape), full):
                raise ConfigError(
                    f"Layer {self.name!r}: {name} has the shape {tuple(argument.shape)}, which does not "
                    f"broadcast to (batch, heads, queries, keys) = {full}. Pass (queries, keys), (batch, "
                    "queries, keys) or four axes; pass a mask (batch, keys) as padding_mask=."
                )

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        q = self._heads(self.query(query), self.num_heads, self.size)
        k = self._heads(self.key(key), self.kv_heads, self.size)
        v = self._heads(self.value(value), self.kv_heads, self.value_size)
        return (q, k, v) if self.query_norm is None else (self.query_norm(q), self.key_norm(k), v)

    def _heads(self, x: Any, heads: int, size: int) -> Any:
        x = ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], heads, size))
        return ops.transpose(x, (0, 2, 1, 3))  # (b, s, heads, d) -> (b, heads, s, d)

    def _rotated(self, q: Any, k: Any, positions: Any, start: Any, is_self: bool) -> tuple[Any, Any]:
        if self.rotary_grid is not None:
            return turn(q, self.angles()), turn(k, self.angles())

        def default_positions(x: Any) -> Any:
            return ops.expand_dims(ops.arange(ops.shape(x)[2]) + start, 0)

        query_positions = default_positions(q) if positions is None else positions
        key_positions = query_positions if is_self else default_positions(k)
        assert self.rotary_base is not None
        options = (self.rotary_base, self.rotary_scaling)
        return rotate(q, query_positions, *options), rotate(k, key_positions, *options)

    def angles(self) -> np.ndarray:
        """The angles (tokens, size / 2) of `rotary_grid`."""
        assert self.rotary_grid is not None and self.rotary_base is not None
        return grid_angles(self.rotary_grid, self.size, self.rotary_base, self.prefix_tokens)

    def _shared(self, x: Any) -> Any:
        """Key and value heads repeated, so that each query head has one."""
        repeats = self.num_heads // self.kv_heads
        return x if repeats == 1 else ops.repeat(x, repeats, axis=1)

    def _masks(self, attention_mask: Any, padding_mask: Any, bias: Any) -> list[Any]:
        """Booleans that broadcast to (b, heads, queries, keys), without the causal mask."""
        masks = []
        if padding_mask is not None:
            masks.append(ops.cast(padding_mask, "bool")[:, None, None, :])
        if attention_mask is not None:
            masks.append(_per_head(ops.cast(attention_mask, "bool")))
        if bias is not None:
            masks.append(ops.not_equal(_per_head(bias), -math.inf))
        return masks

    def _with_causal(self, masks: list[Any], q: Any, k: Any, start: Any) -> Any:
        """All masks combined; None where no key is masked."""
        if self.causal:
            masks = [causal_mask(ops.shape(q)[2], ops.shape(k)[2], start), *masks]
        return functools.reduce(ops.logical_and, masks) if masks else None

    def _attended(
        self,
        q: Any,
        k: Any,
        v: Any,
        start: Any,
        masks: list[Any],
        bias: Any,
        with_weights: bool,
        training: bool | None,
    ) -> tuple[Any, Any]:
        """(b, heads, queries, size), and the weights, or None where they are not computed as a tensor."""
        with_weights = with_weights or weights_are_written_out()
        if with_weights or bias is not None or self.relative is not None or (self.dropout and training):
            weights = self._weights(q, k, self._with_causal(masks, q, k, start), bias)
            return ops.matmul(self.weights_dropout(weights, training=training), self._shared(v)), weights
        allowed = functools.reduce(ops.logical_and, masks) if masks else None
        start = start if self.causal else None
        k, v = self._shared(k), self._shared(v)
        return attend(q, k, v, factor=self._factor(), start=start, allowed=allowed), None

    def _factor(self) -> float:
        return self.size**-0.5 if self.scale is None else self.scale

    def _weights(self, q: Any, k: Any, allowed: Any, bias: Any) -> Any:
        factor = self._factor()
        if factor != 1.0:
            q = ops.multiply(q, ops.cast(factor, q.dtype))
        scores = ops.matmul(q, ops.transpose(self._shared(k), (0, 1, 3, 2)))
        scores = ops.cast(scores, "float32")
        if self.relative is not None:
            scores = ops.add(scores, ops.cast(self.relative(q), "float32"))
        if bias is not None:
            scores = ops.add(scores, _per_head(ops.cast(bias, "float32")))
        if allowed is None:
            return ops.cast(softmax(scores), self.compute_dtype)
        weights = softmax(ops.where(allowed, scores, LOWEST))
        # A row without any allowed key is uniform here, but zero in ONNX's Attention.
        return ops.cast(ops.where(allowed, weights, 0.0), self.compute_dtype)

    def compute_output_spec(
        self,
        query: Any,
        value: Any = None,
        key: Any = None,
        attention_mask: Any = None,
        padding_mask: Any = None,
        bias: Any = None,
        positions: Any = None,
        past: tuple[Any, Any] | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        self._check_call(query, value, key, attention_mask, padding_mask, bias, positions, past)
        other = next((x for x in (key, value) if x is not None), query)
        (batch, queries, _), keys = query.shape, other.shape[1]
        size = self.key_dim or query.shape[-1] // self.num_heads
        specs: list[Any] = [self._spec(*query.shape)]
        if past is not None:
            keys = _sum(keys, past[0].shape[2])
            widths = (size, self.value_dim or size)
            specs.append(tuple(self._spec(batch, self.kv_heads, keys, width) for width in widths))
        if return_attention_scores:
            specs.append(self._spec(batch, self.num_heads, queries, keys))
        return tuple(specs) if len(specs) > 1 else specs[0]

    def _spec(self, *shape: int | None) -> keras.KerasTensor:
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "kv_heads": self.kv_heads,
            "causal": self.causal,
            "rotary_base": self.rotary_base,
            "rotary_scaling": self.rotary_scaling,
            "rotary_grid": self.rotary_grid,
            "relative_grid": self.relative_grid,
            "prefix_tokens": self.prefix_tokens,
            "scale": self.scale,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "qkv_bias": self.qkv_bias,
            "key_bias": self.key_bias,
            "qk_norm": self.qk_norm,
            "norm_epsilon": self.norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _kind_of_norm(qk_norm: Any) -> bool | str:
    if isinstance(qk_norm, bool | np.bool_):
        return bool(qk_norm)
    if not isinstance(qk_norm, str) or qk_norm != RMS:
        raise ConfigError(f"qk_norm is {qk_norm!r}, expected True or False, or {RMS!r}.")
    return qk_norm


def _may_be_equal(size: int | None, other: int | None) -> bool:
    return size == other or None in (size, other)


def _sum(size: int | None, other: int | None) -> int | None:
    return None if size is None or other is None else size + other


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Whether two, three or four axes broadcast to (batch, heads, queries, keys)."""
    expected = {2: full[2:], 3: (full[0], *full[2:]), 4: full}.get(len(shape))
    return expected is not None and all(
        size == 1 or _may_be_equal(size, other) for size, other in zip(shape, expected, strict=True)
    )


def _per_head(x: Any) -> Any:
    """(queries, keys), (batch, queries, keys) or four axes -> broadcasts to (b, heads, queries, keys)."""
    return ops.expand_dims(x, 1) if len(x.shape) == 3 else x


def _mask_of(key: Any, value: Any) -> Any:
    """The Keras masks of keys and values combined: a key is masked if either masks it."""
    masks = [get_keras_mask(x) for x in ((key,) if key is value else (key, value))]
    masks = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, masks) if masks else None
