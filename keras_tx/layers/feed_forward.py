"""FeedForward: the two dense layers of a transformer block, or three if gated."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Rate, Shape, Size, checked
from keras_tx.errors import ConfigError, nearest

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "swiglu", "geglu", "geglu_exact")
GATED = ("swiglu", "geglu", "geglu_exact")


@keras.saving.register_keras_serializable("keras_tx")
class FeedForward(keras.layers.Layer):
    """Projects each token to `hidden` channels, applies the activation, and projects it back.

    >>> import numpy as np
    >>> tuple(FeedForward(hidden=64, activation="swiglu")(np.zeros((2, 5, 16), "float32")).shape)
    (2, 5, 16)

    Args:
        hidden: number of hidden channels.
        activation: "gelu" (ViT, BERT), its approximation "gelu_tanh" (GPT-2), "quick_gelu", which is
            x * sigmoid(1.702 x) (CLIP), "relu", "silu" (Marian), or gated: "swiglu", which is
            down(silu(gate(x)) * up(x)) (Llama), "geglu" with "gelu_tanh" in place of silu (T5 v1.1), and
            "geglu_exact" with "gelu" (ModernBERT).
        dropout: rate on the hidden channels.
        use_bias: whether the dense layers have biases.
        kernel_initializer: of the dense layers.
    """

    @checked
    def __init__(
        self,
        hidden: Size,
        activation: str = "gelu",
        dropout: Rate = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation={activation!r} is unknown. {nearest(str(activation), ACTIVATIONS)}"
            )
        self.hidden = hidden
        self.activation = activation
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.up = self._dense(hidden, "up")
        self.gate = self._dense(hidden, "gate") if activation in GATED else None
        self.hidden_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="hidden_dropout")

    def _dense(self, units: int, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        self.up.build(input_shape)
        if self.gate is not None:
            self.gate.build(input_shape)
        self.down = self._dense(width, "down")
        self.down.build((*input_shape[:-1], self.hidden))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.gate is not None:
            gate = self.gate(inputs)
            if self.activation == "swiglu":
                gate = ops.silu(gate)
            else:
                gate = ops.gelu(gate, approximate=self.activation == "geglu")
            hidden = ops.multiply(gate, self.up(inputs))
        elif self.activation in ("relu", "silu"):
            hidden = getattr(ops, self.activation)(self.up(inputs))
        elif self.activation == "quick_gelu":
            hidden = self.up(inputs)
            hidden = ops.multiply(hidden, ops.sigmoid(ops.multiply(hidden, 1.702)))
        else:
            hidden = ops.gelu(self.up(inputs), approximate=self.activation == "gelu_tanh")
        return self.down(self.hidden_dropout(hidden, training=training))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden": self.hidden,
            "activation": self.activation,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
