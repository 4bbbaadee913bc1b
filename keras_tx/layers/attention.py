"""MultiHeadAttention: softmax(Q K^T / sqrt(d)) V, with the options that ViT, BERT and GPT need."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # no public name; JAX tracers carry no `_keras_mask`

from keras_tx.errors import ConfigError
from keras_tx.layers.caching import open_cache
from keras_tx.layers.rotary import check_scaling, rotate
from keras_tx.layers.shape import Shape


@keras.saving.register_keras_serializable("keras_tx")
class MultiHeadAttention(keras.layers.Layer):
    """Attention of `query` over itself, or over `context` where one is given.

    Query, key and value stay separate weights, as checkpoints and LoRA have them; the exporter packs
    them. The softmax is computed in float32 under every dtype policy. A query that may see no
    key at all gives zeros, never NaN.

    >>> import numpy as np
    >>> tuple(MultiHeadAttention(num_heads=8, causal=True)(np.zeros((2, 9, 512), "float32")).shape)
    (2, 9, 512)

    Args:
        num_heads: number of query heads.
        head_dim: width of a head; by default the input's width divided by `num_heads`.
        kv_heads: number of key and value heads, each shared by `num_heads / kv_heads` query heads.
        causal: whether a token sees only itself and those before it.
        rotary_base: base of rotary positions (10,000 in Llama); None for no rotation.
        rotary_scaling: how they are stretched beyond the trained length: {"rope_type": "linear",
            "factor": 4.0}, or "llama3" with the four numbers of Llama 3.1.
        dropout: rate of dropout on the attention weights.
        use_bias: whether the dense layers have biases.
        qkv_bias: whether query, key and value have them, where that differs from `use_bias`.

    Call arguments:
        query: (batch, queries, width).
        context: (batch, keys, width); `query` itself when absent.
        padding_mask: (batch, keys), true or nonzero where a key is real. With `past`, it covers the
            past too. Without it, a Keras mask attached to the keys is used.
        bias: added to the scores; broadcasts to (batch, heads, queries, keys). RelativePositionBias
            makes one.
        positions: integers (batch, queries) or (1, queries) for the rotation; by default 0, 1, 2 ...
            after the past.
        past: (key, value) of earlier tokens, each (batch, kv_heads, past, head_dim). The output is then
            followed by the (key, value) to pass on.
        return_weights: whether the attention weights (batch, heads, queries, keys) follow the output.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        causal: bool = False,
        rotary_base: float | None = None,
        rotary_scaling: Any = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.causal = causal
        self.rotary_base = rotary_base
        self.rotary_scaling = check_scaling(rotary_scaling)
        self.dropout = dropout
        self.use_bias = use_bias
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.weights_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="weights_dropout")
        if head_dim is not None and head_dim < 1:
            raise ConfigError(f"Layer {self.name!r}: head_dim={head_dim} must be positive, or None.")
        if num_heads < 1 or self.kv_heads < 1 or num_heads % self.kv_heads:
            raise ConfigError(
                f"Layer {self.name!r}: num_heads={num_heads} is not divisible by kv_heads={self.kv_heads}; "
                "each key head must serve the same number of query heads."
            )
        if rotary_base is not None and head_dim is not None and head_dim % 2:
            raise ConfigError(
                f"Layer {self.name!r}: rotary positions turn pairs, so head_dim={head_dim} must be even."
            )

        if rotary_base is None and rotary_scaling is not None:
            raise ConfigError(
                f"Layer {self.name!r} has no rotary_base, so rotary_scaling would change nothing. Leave it "
                "out."
            )

    def build(self, query_shape: Shape, context_shape: Shape | None = None) -> None:
        width = query_shape[-1]
        context_shape = query_shape if context_shape is None else context_shape
        if self.head_dim is None and width % self.num_heads:
            raise ConfigError(
                f"Layer {self.name!r}: a width of {width} is not divisible by num_heads={self.num_heads}. "
                "Change one of them, or give head_dim."
            )
        self.size = self.head_dim or width // self.num_heads  # width of a head
        if self.rotary_base is not None and self.size % 2:
            raise ConfigError(
                f"Layer {self.name!r}: rotary positions turn pairs, so the head width "
                f"{width} / {self.num_heads} = {self.size} must be even."
            )
        self.query = self._project(self.num_heads * self.size, "query", query_shape, self.qkv_bias)
        self.key = self._project(self.kv_heads * self.size, "key", context_shape, self.qkv_bias)
        self.value = self._project(self.kv_heads * self.size, "value", context_shape, self.qkv_bias)
        attended_shape = (*query_shape[:-1], self.num_heads * self.size)
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

    def call(
        self,
        query: Any,
        context: Any = None,
        padding_mask: Any = None,
        bias: Any = None,
        positions: Any = None,
        past: tuple[Any, Any] | None = None,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> Any:
        keys = query if context is None else context
        if context is not None and (self.causal or self.rotary_base is not None or past is not None):
            raise ConfigError(
                f"Layer {self.name!r}: `context` is for cross-attention, which has no causal order, rotary "
                "positions or past. Leave it out, or make a layer without causal and rotary_base."
            )
        if positions is not None and self.rotary_base is None:
            raise ConfigError(
                f"Layer {self.name!r} has no rotary_base, so `positions` would change nothing. Leave them "
                "out."
            )
        cache = open_cache() if self.causal and past is None else None
        if cache is not None:
            padding_mask = cache.mask
        elif padding_mask is None:
            padding_mask = get_keras_mask(keys)

        q = self._heads(self.query(query), self.num_heads)  # (b, heads, s, d)
        k = self._heads(self.key(keys), self.kv_heads)
        v = self._heads(self.value(keys), self.kv_heads)
        if cache is not None:
            past = cache.past_of(self, k)
        if self.rotary_base is not None:
            if positions is None:
                start = 0 if past is None else ops.shape(past[0])[2]
                positions = ops.expand_dims(ops.arange(ops.shape(q)[2]) + start, 0)
            q = rotate(q, positions, self.rotary_base, self.rotary_scaling)
            k = rotate(k, positions, self.rotary_base, self.rotary_scaling)
        if past is not None:
            k = ops.concatenate([ops.cast(past[0], k.dtype), k], axis=2)
            v = ops.concatenate([ops.cast(past[1], v.dtype), v], axis=2)

        weights = self._weights(q, k, self._allowed(q, k, padding_mask), bias)
        attended = ops.matmul(self.weights_dropout(weights, training=training), self._shared(v))
        attended = ops.transpose(attended, (0, 2, 1, 3))  # (b, s, heads, d)
        attended = ops.reshape(
            attended, (ops.shape(attended)[0], ops.shape(attended)[1], self.num_heads * self.size)
        )
        extra: list[Any] = []
        if cache is not None:
            cache.presents[self.path] = (k, v)
        elif past is not None:
            extra.append((k, v))
        if return_weights:
            extra.append(weights)
        output = self.output_projection(attended)
        return (output, *extra) if extra else output

    def _heads(self, x: Any, heads: int) -> Any:
        x = ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], heads, self.size))
        return ops.transpose(x, (0, 2, 1, 3))  # (b, s, heads, d) -> (b, heads, s, d)

    def _shared(self, x: Any) -> Any:
        """Key and value heads repeated, so that each query head has one."""
        repeats = self.num_heads // self.kv_heads
        return x if repeats == 1 else ops.repeat(x, repeats, axis=1)

    def _allowed(self, q: Any, k: Any, padding_mask: Any) -> Any:
        """Boolean, broadcasting to (b, heads, queries, keys); None where everything is allowed."""
        allowed = None
        if self.causal:
            queries, keys = ops.shape(q)[2], ops.shape(k)[2]
            last = ops.expand_dims(ops.arange(queries) + (keys - queries), -1)  # the last key each may see
            allowed = ops.less_equal(ops.expand_dims(ops.arange(keys), 0), last)
        if padding_mask is not None:
            covered, keys = padding_mask.shape[-1], k.shape[2]
            if covered != keys and None not in (covered, keys):
                raise ConfigError(
                    f"Layer {self.name!r}: padding_mask covers {covered} keys, but there are {keys}, "
                    "the past included."
                )
            real = ops.cast(padding_mask, "bool")[:, None, None, :]
            allowed = real if allowed is None else ops.logical_and(allowed, real)
        return allowed

    def _weights(self, q: Any, k: Any, allowed: Any, bias: Any) -> Any:
        q = ops.multiply(q, ops.cast(self.size**-0.5, q.dtype))
        scores = ops.matmul(q, ops.transpose(self._shared(k), (0, 1, 3, 2)))
        scores = ops.cast(scores, "float32")
        if bias is not None:
            scores = ops.add(scores, ops.cast(bias, "float32"))
        if allowed is None:
            return ops.cast(self._softmax(scores), self.compute_dtype)
        weights = self._softmax(ops.where(allowed, scores, -1e30))
        # A row without any allowed key is uniform here; it shall be zero, as in ONNX's Attention.
        return ops.cast(ops.where(allowed, weights, 0.0), self.compute_dtype)

    def _softmax(self, scores: Any) -> Any:
        # Over a single key, the first token of a generation, it is 1, and Keras would warn.
        return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "kv_heads": self.kv_heads,
            "causal": self.causal,
            "rotary_base": self.rotary_base,
            "rotary_scaling": self.rotary_scaling,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "qkv_bias": self.qkv_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
