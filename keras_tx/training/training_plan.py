"""Memory, communication and floating-point operations of a training on several devices, from the config."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number
from keras_tx.layers import TransformerBlock
from keras_tx.models.costs import cost
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.training.distribution import weight_layouts, weightless_model

PRECISIONS = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}  # bytes of an activation
VARIABLE = 4  # bytes: variables, gradients and the optimizer have float32 in every policy
ADAMW = 2  # values of the optimizer for each weight


@dataclasses.dataclass(frozen=True)
class Layout:
    """Bytes per device of one layout.

    Args:
        data: number of parts of a batch.
        tensor: number of parts of the weights.
        remat: whether the blocks are recomputed in the backward pass instead of stored.
        weights: bytes of the weights.
        gradients: bytes of their gradients.
        optimizer: bytes of the state of AdamW.
        activations: estimated bytes of the activations that the backward pass reads.
        communication: bytes that a device sends in one step.
    """

    data: int
    tensor: int
    remat: bool
    weights: int
    gradients: int
    optimizer: int
    activations: int
    communication: int

    @property
    def total(self) -> int:
        """Bytes on each device."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The layouts of a training, and its operations.

    Args:
        params: the number of parameters.
        example_flops: floating-point operations of a training step for one example, without `remat`.
        layouts: the possible divisions of the devices, each without and with `remat`.
        impossible: the reason why the model or the batch cannot be divided, for each other division.
    """

    params: int
    example_flops: int
    layouts: tuple[Layout, ...]
    impossible: tuple[str, ...]

    def best(self, memory: int) -> Layout | None:
        """Returns the layout with the fewest parts of the weights whose total is at most `memory`, or None.

        Layouts without `remat` come first.
        """
        fitting = [layout for layout in self.layouts if layout.total <= memory]
        return min(fitting, key=lambda layout: (layout.remat, layout.tensor), default=None)


def training_plan(
    model: Any,
    devices: int,
    *,
    batch_size: int | None = None,
    tokens: int | None = None,
    precision: str = "mixed_bfloat16",
) -> TrainingPlan:
    """Computes memory, communication and operations of a training with AdamW for each layout of the devices.

    The layouts are those of `model_parallel`. Weights, gradients and optimizer are counted from the shapes of
    the variables. Activations are estimated as by Korthikanti et al. (2022), "Reducing Activation
    Recomputation in Large Transformer Models", and include stored attention scores; fused attention does
    not store them. Communication is that of a ring: gradients once per step, and the outputs of each
    attention and feed-forward layer in both passes.

    Args:
        model: a config or a model of keras_tx. The model of a config is not allocated.
        devices: number of devices.
        batch_size: examples per step on all devices; by default one per device.
        tokens: length of a text; by default `max_length` of the config.
        precision: the dtype policy: float32, mixed_bfloat16 or mixed_float16.

    Returns:
        A TrainingPlan.

    Raises:
        ConfigError: an argument is out of range, or no layout divides the model and the batch.

    Example:

    >>> import keras_tx
    >>> plan = training_plan(keras_tx.GPTConfig.variant("124M"), devices=4, tokens=1024)
    >>> [(layout.data, layout.tensor) for layout in plan.layouts if not layout.remat]
    [(4, 1), (2, 2), (1, 4)]
    >>> f"{plan.layouts[0].weights / 1e9:.2f} GB of weights, {plan.example_flops / 1e12:.2f} TFLOPs"
    '0.50 GB of weights, 0.87 TFLOPs'
    """
    devices = whole_number("devices", devices)
    batch_size = devices if batch_size is None else whole_number("batch_size", batch_size)
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision!r} is unknown. Pass one of {', '.join(PRECISIONS)}.")
    model = weightless_model(model)
    tokens = tokens or getattr(model.config, "max_length", None)
    total = cost(model, tokens=tokens)
    layouts: list[Layout] = []
    impossible = []
    for tensor in (parts for parts in range(1, devices + 1) if devices % parts == 0):
        data = devices // tensor
        try:
            divided = weight_layouts(model, tensor)
        except ConfigError as error:
            impossible.append(str(error))
            continue
        if batch_size % data:
            impossible.append(f"batch_size={batch_size} is not divisible by {data} devices.")
            continue
        sizes = _Sizes(model, batch_size // data, tokens, data, tensor, PRECISIONS[precision])
        layouts += [sizes.layout(divided, remat) for remat in (False, True)]
    if not layouts:
        raise ConfigError(f"devices={devices} has no layout: {' '.join(impossible)}")
    return TrainingPlan(total.params, 3 * total.flops, tuple(layouts), tuple(impossible))


@dataclasses.dataclass(frozen=True)
class _Sizes:
    model: TransformerModel
    examples: int  # per device
    tokens: int | None
    data: int
    tensor: int
    value: int  # bytes of an activation

    def layout(self, divided: dict[str, Any], remat: bool) -> Layout:
        weights = gradients = 0
        for variable in self.model.variables:
            size = VARIABLE * math.prod(variable.shape) // (self.tensor if variable.path in divided else 1)
            weights += size
            gradients += size if variable.trainable else 0
        blocks = [layer for layer in self.model.layers if isinstance(layer, TransformerBlock)]
        stored = [self._stored(block) for block in blocks]
        outputs = [self._output(block) for block in blocks]
        activations = sum(outputs) + max(stored, default=0) if remat else sum(stored)
        passes = 3 if remat else 2  # forward, backward, and forward again
        sums = sum(passes * (2 if b.cross_attention is None else 3) * self._output(b) for b in blocks)
        return Layout(
            data=self.data,
            tensor=self.tensor,
            remat=remat,
            weights=weights,
            gradients=gradients,
            optimizer=ADAMW * gradients,
            activations=round(activations) + self._logits(),
            communication=_ring(gradients, self.data) + _ring(sums, self.tensor),
        )

    def _length(self, block: TransformerBlock) -> int:
        first = block.input[0] if isinstance(block.input, list) else block.input
        return first.shape[1] or self.tokens or 1

    def _output(self, block: TransformerBlock) -> int:
        """Bytes of one tensor (examples, length, width)."""
        return self.value * self.examples * self._length(block) * block.feed_forward.down.kernel.shape[1]

    def _stored(self, block: TransformerBlock) -> float:
        """Bytes that the backward pass reads: 34 + 5 * heads * length / width bytes per value in 16 bits."""
        width = block.feed_forward.down.kernel.shape[1]
        kernels = 2 if block.feed_forward.gate is None else 3
        units = kernels * block.feed_forward.down.kernel.shape[0] / width
        attention = 4 + 2.5 * block.attention.num_heads * self._length(block) / width
        layers = 1 if block.cross_attention is None else 2
        return self._output(block) * (5 + (layers * attention + units) / self.tensor)

    def _logits(self) -> int:
        """Bytes of the logits and of their gradient, in float32."""
        head = self.model.head
        if head is None or contract.LOGITS not in getattr(head, "token_outputs", ()):
            return 0
        config = self.model.config
        parts = self.tensor if config.vocabulary_size % self.tensor == 0 else 1
        return 2 * VARIABLE * self.examples * (self.tokens or 1) * config.vocabulary_size // parts


def _ring(size: float, parts: int) -> int:
    """Bytes that a device sends to sum a tensor of this size over all parts."""
    return round(2 * size * (parts - 1) / parts)
