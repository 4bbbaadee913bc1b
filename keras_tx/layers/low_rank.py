"""Dense, EinsumDense and Embedding with a low-rank adapter (LoRA, DoRA): W + scale * A B.

The matrices are those of Keras's `enable_lora`, which also computes the products of int8 and int4 layers.
For a float kernel, Keras adds A B to the kernel in each step, so the gradient has the size of the kernel.
Here the input is multiplied by A and then by B, which is much cheaper.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx.arguments import Positive, Rate, Shape, Size, check_fields
from keras_tx.errors import ConfigError

# U(-1 / sqrt(inputs), 1 / sqrt(inputs)), the initial A of PEFT.
INITIAL_A = {"scale": 1 / 3, "mode": "fan_in", "distribution": "uniform"}
QUANTIZATIONS = (None, "int8", "int4")  # that have a trainable adapter


@dataclasses.dataclass(frozen=True)
class LowRank:
    """The options of the adapter of one layer.

    Args:
        rank: number of columns of A and rows of B.
        alpha: the product A B is multiplied by alpha / rank.
        dropout: rate of dropout on the input of A.
        rank_stabilized: whether the factor is alpha / sqrt(rank) instead.
        dora: whether the sum is normalized and multiplied by a learned magnitude per output (DoRA).
    """

    rank: Size
    alpha: Positive
    dropout: Rate = 0.0
    rank_stabilized: bool = False
    dora: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


class _LowRankLayer:
    """The parts that the three layers share; a mixin before the Keras class."""

    adapter: LowRank | None
    matrix = "kernel"  # the weight to which the adapter belongs
    magnitude: Any
    adapter_dropout: Any

    def __init__(self, *args: Any, adapter: dict[str, Any] | None = None, **kwargs: Any):
        for name in ("lora_rank", "lora_alpha"):
            kwargs.pop(name, None)
        super().__init__(*args, **kwargs)
        self.adapter = None if adapter is None else LowRank(**adapter)

    def build(self, input_shape: Shape | None = None) -> None:
        super().build(input_shape)  # type: ignore[misc]
        if self.adapter is not None:
            self.create_adapter(self.adapter)

    def create_adapter(self, adapter: LowRank) -> None:
        """Adds the variables of an adapter, whose initial product is zero, and freezes the others."""
        self.adapter = adapter
        layer: Any = self
        # Keras multiplies by lora_alpha / lora_rank.
        layer.enable_lora(
            adapter.rank,
            lora_alpha=adapter.scale * adapter.rank,
            a_initializer=keras.initializers.VarianceScaling(**INITIAL_A),
        )
        for variable in layer._trainable_variables:
            if "lora_" not in variable.name:
                variable.trainable = False
        layer._tracker.unlock()
        self.magnitude = self._create_magnitude() if adapter.dora else None
        self.adapter_dropout = None
        if adapter.dropout:
            self.adapter_dropout = keras.layers.Dropout(adapter.dropout, dtype=layer.dtype_policy)
        layer._tracker.lock()

    def _create_magnitude(self) -> Any:
        layer: Any = self
        norms = ops.convert_to_numpy(column_norms(ops.cast(layer._kernel, "float32")))
        return layer.add_weight(
            name="lora_magnitude",
            shape=norms.shape,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(norms, dtype),
            dtype="float32",
        )

    @property
    def _names(self) -> tuple[str, str]:
        return f"lora_{self.matrix}_a", f"lora_{self.matrix}_b"

    @property
    def adapter_variables(self) -> dict[str, Any]:
        """The trained variables: "a", "b" and, of DoRA, "magnitude"."""
        a, b = (getattr(self, name) for name in self._names)
        return {"a": a, "b": b} | ({} if self.magnitude is None else {"magnitude": self.magnitude})

    def dropped(self, inputs: Any, training: bool | None) -> Any:
        """The input of A."""
        return inputs if self.adapter_dropout is None else self.adapter_dropout(inputs, training=training)

    def low_rank(self, inputs: Any) -> Any:
        """The scaled product of the input and the two matrices."""
        assert self.adapter is not None
        a, b = (getattr(self, name) for name in self._names)
        product = ops.matmul(self._times_a(inputs, a), b)
        return ops.multiply(product, ops.cast(self.adapter.scale, product.dtype))

    def _times_a(self, inputs: Any, a: Any) -> Any:
        return ops.matmul(inputs, a)

    @contextmanager
    def _as_plain(self) -> Iterator[None]:
        layer: Any = self
        layer.lora_enabled = False
        try:
            yield
        finally:
            layer.lora_enabled = True

    def save_own_variables(self, store: Any) -> None:
        # Keras saves the merged kernel, and training that resumes from it would lose the base.
        with self._as_plain():
            super().save_own_variables(store)  # type: ignore[misc]
        for name, variable in self.adapter_variables.items():
            store[f"lora_{name}"] = variable

    def load_own_variables(self, store: Any) -> None:
        names = {name: f"lora_{name}" for name in self.adapter_variables if f"lora_{name}" in store}
        initial = {name: np.array(ops.convert_to_numpy(x)) for name, x in self.adapter_variables.items()}
        super().load_own_variables(store)  # type: ignore[misc]  # sets both matrices to zero
        for name, variable in self.adapter_variables.items():
            if name in names:
                variable.assign(store[names[name]])
            elif name == "a":
                variable.assign(initial[name])
        if not names and self.magnitude is not None:
            self.magnitude.assign(column_norms(ops.cast(self._kernel, "float32")))  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()  # type: ignore[misc]
        for name in ("lora_rank", "lora_alpha"):
            config.pop(name, None)
        return {**config, "adapter": None if self.adapter is None else dataclasses.asdict(self.adapter)}


@keras.saving.register_keras_serializable("keras_tx")
class LowRankDense(_LowRankLayer, keras.layers.Dense):
    """A Dense layer with an adapter."""

    @property
    def kernel(self) -> Any:
        """The kernel with the adapter."""
        kernel = super().kernel
        if getattr(self, "magnitude", None) is None or not self.lora_enabled:
            return kernel
        return ops.multiply(kernel, ops.cast(self._factors(), kernel.dtype))

    def _factors(self) -> Any:
        """The magnitude of each output divided by the norm of its weights; the norm has no gradient."""
        return ops.divide(self.magnitude, ops.stop_gradient(column_norms(super().kernel)))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = ops.matmul(inputs, self._kernel)
        dropped = self.dropped(inputs, training)
        low = self.low_rank(dropped)
        if self.magnitude is None:
            x = ops.add(x, low)
        else:
            factors = ops.cast(self._factors(), x.dtype)
            if self.adapter_dropout is None:
                x = ops.multiply(ops.add(x, low), factors)
            else:  # as in PEFT: dropout also on the base where its factor differs from 1
                base = ops.multiply(ops.matmul(dropped, self._kernel), factors - 1)
                x = ops.add(x, ops.add(base, ops.multiply(low, factors)))
        if self.bias is not None:
            x = ops.add(x, self.bias)
        return x if self.activation is None else self.activation(x)


@keras.saving.register_keras_serializable("keras_tx")
class LowRankEinsumDense(_LowRankLayer, keras.layers.EinsumDense):
    """An EinsumDense layer with an adapter. A has all axes of the kernel except the last, B the last one."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.factored:
            x = ops.add(
                ops.einsum(self.equation, inputs, self._kernel), self.low_rank(self.dropped(inputs, training))
            )
        else:
            x = ops.einsum(self.equation, inputs, self.kernel)
        if self.bias is not None:
            x = ops.add(x, self.bias)
        return x if self.activation is None else self.activation(x)

    @property
    def factored(self) -> bool:
        return _is_factored(self.equation)

    def _times_a(self, inputs: Any, a: Any) -> Any:
        return ops.einsum(self.equation, inputs, a)


@keras.saving.register_keras_serializable("keras_tx")
class LowRankEmbedding(_LowRankLayer, keras.layers.Embedding):
    """An Embedding with an adapter."""

    matrix = "embeddings"

    def call(self, inputs: Any) -> Any:
        if inputs.dtype not in ("int32", "int64"):
            inputs = ops.cast(inputs, "int32")
        vectors = ops.cast(ops.take(self._embeddings, inputs, axis=0), self.compute_dtype)
        return ops.add(vectors, ops.cast(self.low_rank(inputs), self.compute_dtype))

    def _times_a(self, inputs: Any, a: Any) -> Any:
        return ops.take(a, inputs, axis=0)


LOW_RANK: dict[type, Any] = {
    keras.layers.Dense: LowRankDense,
    keras.layers.EinsumDense: LowRankEinsumDense,
    keras.layers.Embedding: LowRankEmbedding,
}
PLAIN: dict[type, Any] = {adapted: plain for plain, adapted in LOW_RANK.items()}


def column_norms(kernel: Any) -> Any:
    """The norm of the weights of each output."""
    return ops.sqrt(ops.sum(ops.square(ops.cast(kernel, "float32")), axis=0))


def _is_factored(equation: str) -> bool:
    """Whether the last axis of the output is the last one of the kernel, and not an axis of the input."""
    inputs, kernel, outputs = equation.replace("->", ",").replace(" ", "").split(",")
    return outputs[-1:] == kernel[-1:] and kernel[-1:] not in inputs


def add_adapter(layer: Any, adapter: LowRank) -> None:
    """Turns a built layer into the class with an adapter, in place.

    Raises:
        ConfigError: the layer cannot have this adapter; it is unchanged.
    """
    check_adaptable(layer, adapter)
    layer.__class__ = LOW_RANK[type(layer)]
    try:
        layer.create_adapter(adapter)
    except Exception:
        layer.__class__ = PLAIN[type(layer)]
        raise


def check_adaptable(layer: Any, adapter: LowRank) -> None:
    """Raises a ConfigError for a layer that cannot have this adapter."""
    subject = f"layer {layer.path!r}"
    name = f"L{subject[1:]}"
    if type(layer) not in LOW_RANK:
        raise ConfigError(
            f"{name} is a {type(layer).__name__}, expected Dense, EinsumDense or Embedding. Pass other "
            "targets."
        )
    if getattr(layer, "lora_enabled", False):
        raise ConfigError(f"{name} has the adapter of Keras's enable_lora. Use keras_tx.lora on a new model.")
    mode = layer.quantization_mode
    if mode not in QUANTIZATIONS:
        raise ConfigError(
            f"{name} is quantized to {mode}, which cannot be trained with an adapter. Quantize it to int8 or "
            "int4, or not at all."
        )
    _check_options(layer, adapter, subject)
    for constraint in ("kernel_constraint", "embeddings_constraint"):
        if getattr(layer, constraint, None) is not None:
            raise ConfigError(
                f"{name} has {constraint}={getattr(layer, constraint)}, which an adapter would not satisfy. "
                "Pass other targets."
            )


def _check_options(layer: Any, adapter: LowRank, subject: str) -> None:
    """Raises a ConfigError for options that the kind of layer does not support."""
    mode = layer.quantization_mode
    for option in ("dora", "dropout"):
        if mode is not None and getattr(adapter, option):
            raise ConfigError(
                f"{option}={getattr(adapter, option)} is not supported by {subject}, which is quantized "
                f"to {mode}. Omit {option}."
            )
    if adapter.dora and not isinstance(layer, keras.layers.Dense):
        raise ConfigError(
            f"dora=True is supported by Dense layers, but {subject} is a {type(layer).__name__}. Pass "
            "dora=False or other targets."
        )
    is_einsum = isinstance(layer, keras.layers.EinsumDense)
    is_factored = _is_factored(layer.equation) if is_einsum else isinstance(layer, keras.layers.Dense)
    if adapter.dropout and not is_factored:
        what = f"equation={layer.equation!r}" if is_einsum else "ids as its input"
        raise ConfigError(
            f"dropout={adapter.dropout} is not supported by {subject}, which has {what}. Pass dropout=0 or "
            "other targets."
        )
    if mode is not None and is_einsum and not is_factored:
        raise ConfigError(
            f"L{subject[1:]} is quantized to {mode} and has equation={layer.equation!r}, whose product Keras "
            "cannot adapt. Pass other targets."
        )
