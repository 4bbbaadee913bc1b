"""TransformerBlock: self-attention, optional cross-attention and feed-forward, with norms and residuals."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # no public name

from keras_tx.arguments import Count, Epsilon, Positive, Rate, Shape, Size, checked
from keras_tx.errors import ConfigError, nearest
from keras_tx.layers.attention import MultiHeadAttention
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.rematerialization import rematerialize

NORMS = {"layer": keras.layers.LayerNormalization, "rms": keras.layers.RMSNormalization}
NORM_POSITIONS = ("pre", "post")
ATTENTION = (
    "num_heads",
    "key_dim",
    "value_dim",
    "kv_heads",
    "causal",
    "rotary_base",
    "rotary_scaling",
    "rotary_grid",
    "relative_grid",
    "prefix_tokens",
    "scale",
    "qkv_bias",
    "key_bias",
    "qk_norm",
)


@keras.saving.register_keras_serializable("keras_tx")
class TransformerBlock(keras.layers.Layer):
    """One block of an encoder or decoder.

    `norm_position="pre"` is x + f(norm(x)) (ViT, GPT), `"post"` is norm(x + f(x)) (BERT).

    >>> import numpy as np
    >>> x, encoded = np.zeros((2, 5, 16), "float32"), np.zeros((2, 7, 16), "float32")
    >>> tuple(TransformerBlock(num_heads=4, mlp_dim=64)(x).shape)
    (2, 5, 16)
    >>> decoder_block = TransformerBlock(num_heads=4, mlp_dim=64, causal=True, cross_attention=True)
    >>> tuple(decoder_block(x, encoded).shape)
    (2, 5, 16)

    Args:
        num_heads, key_dim, value_dim, kv_heads, causal, rotary_base, rotary_scaling, rotary_grid,
            relative_grid, prefix_tokens, scale, qkv_bias, key_bias, qk_norm: see MultiHeadAttention.
        mlp_dim, activation: see FeedForward.
        norm: "layer" or "rms".
        norm_epsilon: epsilon of all norms, those of query and key included.
        dropout: rate on the output of each half.
        hidden_dropout: rate inside the feed-forward; by default `dropout`, as in ViT. 0 in BERT and GPT.
        attention_dropout: rate on the attention weights.
        drop_path: rate at which a half is skipped for a whole sample (stochastic depth).
        use_bias: whether the dense layers have biases, and norms of kind "layer" theirs.
        layer_scale: initial value of a learned factor for each channel of a half's output, or None.
        cross_attention: whether the block attends over `value` between self-attention and feed-forward, as
            in an encoder-decoder, without causal masks and positions.

    Call arguments:
        inputs: (batch, tokens, width).
        value: (batch, keys, value width), the sequence for cross-attention.
        attention_mask, padding_mask, bias, positions, past: of the self-attention, see MultiHeadAttention.
        value_attention_mask, value_padding_mask: of the cross-attention.
        return_attention_scores: whether the attention weights are returned too.

    Returns:
        The output (batch, tokens, width). With `past`, it is followed by the (key, value) of all tokens;
        with `return_attention_scores`, by the attention weights of the self-attention, then those of the
        cross-attention.
    """

    @checked
    def __init__(
        self,
        num_heads: Size,
        mlp_dim: Size,
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
        activation: str = "gelu",
        norm: str = "layer",
        norm_position: str = "pre",
        norm_epsilon: Epsilon = 1e-6,
        dropout: Rate = 0.0,
        hidden_dropout: Rate | None = None,
        attention_dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
        layer_scale: float | None = None,
        use_bias: bool = True,
        qkv_bias: bool | None = None,
        key_bias: bool | None = None,
        qk_norm: bool | str = False,
        cross_attention: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        for name, value, known in (("norm", norm, NORMS), ("norm_position", norm_position, NORM_POSITIONS)):
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        self.supports_masking = True
        self.remat = False  # of training steps; TransformerModel.compile(remat=True) sets it
        self.norm = norm
        self.norm_position = norm_position
        self.norm_epsilon = norm_epsilon
        self.dropout = dropout
        self.drop_path = drop_path
        self.layer_scale = layer_scale
        shared = {
            "use_bias": use_bias,
            "kernel_initializer": keras.initializers.get(kernel_initializer),
            "dtype": self.dtype_policy,
        }
        attention = {
            "key_dim": key_dim,
            "value_dim": value_dim,
            "kv_heads": kv_heads,
            "scale": scale,
            "dropout": attention_dropout,
            "qkv_bias": qkv_bias,
            "key_bias": key_bias,
            "qk_norm": qk_norm,
            "norm_epsilon": norm_epsilon,
            **shared,
        }
        order = {
            "causal": causal,
            "rotary_base": rotary_base,
            "rotary_scaling": rotary_scaling,
            "rotary_grid": rotary_grid,
            "relative_grid": relative_grid,
            "prefix_tokens": prefix_tokens,
        }
        self.attention = self._self_attention(num_heads, **attention, **order, name="attention")
        self.cross_attention: Any = None
        self.cross_attention_norm: Any = None
        if cross_attention:
            self.cross_attention = MultiHeadAttention(num_heads, **attention, name="cross_attention")
            self.cross_attention_norm = self._norm("cross_attention_norm", use_bias)
        hidden_dropout = dropout if hidden_dropout is None else hidden_dropout
        self.feed_forward = FeedForward(
            mlp_dim, activation, dropout=hidden_dropout, name="feed_forward", **shared
        )
        self.attention_norm = self._norm("attention_norm", use_bias)
        self.feed_forward_norm = self._norm("feed_forward_norm", use_bias)
        self.residual_dropout = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="residual_dropout"
        )
        self.path_dropout = keras.layers.Dropout(
            drop_path, noise_shape=(None, 1, 1), dtype=self.dtype_policy, name="path_dropout"
        )

    def _self_attention(self, num_heads: int, **options: Any) -> MultiHeadAttention:
        return MultiHeadAttention(num_heads, **options)

    def _norm(self, name: str, use_bias: bool) -> keras.layers.Layer:
        options = {"center": use_bias} if self.norm == "layer" else {}
        norm = NORMS[self.norm](epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name, **options)
        norm.supports_masking = True  # norms are per token, but RMSNormalization does not declare it
        return norm

    def build(self, inputs_shape: Shape, value_shape: Shape | None = None) -> None:
        for layer in (self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward):
            layer.build(inputs_shape)
        self.attention_scale = self.cross_attention_scale = self.feed_forward_scale = None
        if self.layer_scale is not None:
            self.attention_scale = self._scale("attention_scale", inputs_shape[-1])
            self.feed_forward_scale = self._scale("feed_forward_scale", inputs_shape[-1])
        if self.cross_attention is not None:
            self.cross_attention_norm.build(inputs_shape)
            self.cross_attention.build(inputs_shape, inputs_shape if value_shape is None else value_shape)
            if self.layer_scale is not None:
                self.cross_attention_scale = self._scale("cross_attention_scale", inputs_shape[-1])

    def _scale(self, name: str, width: int) -> Any:
        return self.add_weight(
            shape=(width,), initializer=keras.initializers.Constant(self.layer_scale), name=name
        )

    def call(
        self,
        inputs: Any,
        value: Any = None,
        attention_mask: Any = None,
        padding_mask: Any = None,
        bias: Any = None,
        positions: Any = None,
        past: tuple[Any, Any] | None = None,
        value_attention_mask: Any = None,
        value_padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        self._check_value(value, value_attention_mask, value_padding_mask)
        masks = {
            "attention_mask": attention_mask,
            "padding_mask": padding_mask,
            "positions": positions,
            "past": past,
            "value_attention_mask": value_attention_mask,
            "value_padding_mask": value_padding_mask,
            "return_attention_scores": return_attention_scores,
            "training": training,
        }
        again = self.remat and training and past is None and not return_attention_scores
        if not again or isinstance(inputs, keras.KerasTensor):
            return self._forward(inputs, value, bias, **masks)
        # Tensors of the second computation carry no Keras mask.
        masks["padding_mask"] = get_keras_mask(inputs) if padding_mask is None else padding_mask
        if value is not None and value_padding_mask is None:
            masks["value_padding_mask"] = get_keras_mask(value)
        tensors = {"value": value, "bias": bias, "positions": masks.pop("positions")}
        tensors = {name: x for name, x in tensors.items() if x is not None}
        return rematerialize(
            lambda x, *others: self._forward(x, **dict(zip(tensors, others, strict=True)), **masks),
            [inputs, *tensors.values()],
            self._draws(),
        )

    def _draws(self) -> list[tuple[keras.layers.Dropout, int]]:
        """The dropout layers that a training step calls, and how often."""
        attentions = [self.attention] + ([] if self.cross_attention is None else [self.cross_attention])
        branches = len(attentions) + 1
        calls = [(self.residual_dropout, branches), (self.path_dropout, branches)]
        calls += [(self.feed_forward.hidden_dropout, 1)]
        calls += [(attention.weights_dropout, 1) for attention in attentions]
        return [(layer, count) for layer, count in calls if layer.rate > 0]

    def _forward(
        self,
        inputs: Any,
        value: Any = None,
        bias: Any = None,
        positions: Any = None,
        *,
        attention_mask: Any,
        padding_mask: Any,
        past: tuple[Any, Any] | None,
        value_attention_mask: Any,
        value_padding_mask: Any,
        return_attention_scores: bool,
        training: bool | None,
    ) -> Any:
        pre = self.norm_position == "pre"
        with_scores = {"return_attention_scores": return_attention_scores, "training": training}
        x = inputs
        attended, *extra = _as_tuple(
            self.attention(
                self.attention_norm(x) if pre else x,
                attention_mask=attention_mask,
                padding_mask=padding_mask,
                bias=bias,
                positions=positions,
                past=past,
                **with_scores,
            )
        )
        x = ops.add(x, self._branch(attended, self.attention_scale, training))
        if not pre:
            x = self.attention_norm(x)
        if self.cross_attention is not None:
            attended, *scores = _as_tuple(
                self.cross_attention(
                    self.cross_attention_norm(x) if pre else x,
                    value,
                    attention_mask=value_attention_mask,
                    padding_mask=value_padding_mask,
                    **with_scores,
                )
            )
            extra += scores
            x = ops.add(x, self._branch(attended, self.cross_attention_scale, training))
            if not pre:
                x = self.cross_attention_norm(x)
        widened = self.feed_forward(self.feed_forward_norm(x) if pre else x, training=training)
        x = ops.add(x, self._branch(widened, self.feed_forward_scale, training))
        if not pre:
            x = self.feed_forward_norm(x)
        return (x, *extra) if extra else x

    def _check_value(self, value: Any, attention_mask: Any, padding_mask: Any) -> None:
        if self.cross_attention is not None and value is None:
            raise ConfigError(
                f"Layer {self.name!r} has cross_attention=True, but was called without value. Pass the "
                "sequence to attend over as value=."
            )
        arguments = {
            "value": value,
            "value_attention_mask": attention_mask,
            "value_padding_mask": padding_mask,
        }
        names = [name for name, x in arguments.items() if x is not None]
        if self.cross_attention is None and names:
            raise ConfigError(
                f"Layer {self.name!r} was called with {names[0]}=, but has no cross-attention. Create it "
                "with cross_attention=True, or remove the argument."
            )

    def _branch(self, x: Any, scale: Any, training: bool | None) -> Any:
        x = self.residual_dropout(x, training=training)
        if scale is not None:
            x = ops.multiply(x, ops.cast(scale, x.dtype))
        return self.path_dropout(x, training=training)

    def compute_output_spec(
        self,
        inputs: Any,
        value: Any = None,
        attention_mask: Any = None,
        padding_mask: Any = None,
        bias: Any = None,
        positions: Any = None,
        past: tuple[Any, Any] | None = None,
        value_attention_mask: Any = None,
        value_padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        self._check_value(value, value_attention_mask, value_padding_mask)
        specs: Any = _as_tuple(
            self.attention.compute_output_spec(
                inputs,
                attention_mask=attention_mask,
                padding_mask=padding_mask,
                bias=bias,
                positions=positions,
                past=past,
                return_attention_scores=return_attention_scores,
            )
        )
        if self.cross_attention is not None:
            _, *scores = _as_tuple(
                self.cross_attention.compute_output_spec(
                    inputs,
                    value,
                    attention_mask=value_attention_mask,
                    padding_mask=value_padding_mask,
                    return_attention_scores=return_attention_scores,
                )
            )
            specs = (*specs, *scores)
        return specs if len(specs) > 1 else specs[0]

    def get_config(self) -> dict[str, Any]:
        attention = self.attention.get_config()
        feed_forward = self.feed_forward.get_config()
        return {
            **super().get_config(),
            **{key: attention[key] for key in ATTENTION},
            "attention_dropout": attention["dropout"],
            "mlp_dim": feed_forward["hidden"],
            "activation": feed_forward["activation"],
            "use_bias": feed_forward["use_bias"],
            "kernel_initializer": feed_forward["kernel_initializer"],
            "norm": self.norm,
            "norm_position": self.norm_position,
            "norm_epsilon": self.norm_epsilon,
            "dropout": self.dropout,
            "hidden_dropout": feed_forward["dropout"],
            "drop_path": self.drop_path,
            "layer_scale": self.layer_scale,
            "cross_attention": self.cross_attention is not None,
        }


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
