"""Optimizers with the usual settings for fine-tuning and pre-training."""

from __future__ import annotations

from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.optimizers import AdamW
from keras_tx.training.schedules import WarmupCosine, WarmupLinear

BLOCK = "block_"  # all families have layers block_0, block_1 ...
# Embeddings decay, as in BERT's published code.
WITHOUT_DECAY = ("bias", "gamma", "beta", "scale")


def finetune_recipe(
    model: Any,
    steps: int,
    *,
    learning_rate: float = 5e-5,
    warmup: int | float = 0.1,
    weight_decay: float = 0.01,
    layer_decay: float = 1.0,
    frozen_blocks: int = 0,
    global_clipnorm: float | None = 1.0,
    **options: Any,
) -> AdamW:
    """Returns the usual optimizer for fine-tuning, and freezes the lowest blocks of the model.

    The optimizer is AdamW without weight decay of biases and norms, with linear warmup and decay of the
    learning rate, and with clipped gradients.

    Args:
        model: a model with blocks, before `compile`.
        steps: steps of the whole training: batches per epoch times epochs.
        learning_rate: the largest learning rate.
        warmup: steps of the warmup, or their fraction of all steps.
        weight_decay: the factor of the weight decay.
        layer_decay: factor of the learning rate of each block relative to the next, and of the embeddings
            relative to the first block. The head has the full learning rate.
        frozen_blocks: number of lowest blocks to freeze, with the layers before them.
        global_clipnorm: the largest global norm of the gradients; None for no limit.
        options: other options of `AdamW`, such as `beta_2` or `epsilon`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: the model has no blocks, or an argument is out of range.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.ClassifierHead(2))
    >>> model.compile(finetune_recipe(model, steps=300, layer_decay=0.9, frozen_blocks=1))
    >>> model.optimizer.rate_factors["block_1"]
    0.9
    """
    names = [layer.name for layer in model.layers if layer.weights]
    blocks = [name for name in names if name.startswith(BLOCK)]
    if not blocks:
        raise ConfigError(f"Model {model.name!r} has no layer {BLOCK}0. Pass a model of keras_tx.")
    if not isinstance(layer_decay, int | float) or not 0 < layer_decay <= 1:
        raise ConfigError(f"layer_decay={layer_decay!r} is out of range. Pass a number above 0, up to 1.")
    if type(frozen_blocks) is not int or not 0 <= frozen_blocks <= len(blocks):
        raise ConfigError(f"frozen_blocks={frozen_blocks!r} is out of range. Pass 0 to {len(blocks)}.")
    before = names[: names.index(blocks[0])]
    if frozen_blocks:
        frozen = {*before, *blocks[:frozen_blocks]}
        for layer in model.layers:
            if layer.name in frozen:
                layer.trainable = False
    return AdamW(
        WarmupLinear(learning_rate, steps, warmup),
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        without_decay=WITHOUT_DECAY,
        rate_factors=_rate_factors(before, blocks, layer_decay),
        **{"epsilon": 1e-6, **options},
    )


def _rate_factors(before: list[str], blocks: list[str], layer_decay: float) -> dict[str, float]:
    """The factor of the learning rate of each layer below the head."""
    if layer_decay == 1:
        return {}
    factors = {name: layer_decay ** (len(blocks) + 1) for name in before}
    return factors | {name: layer_decay ** (len(blocks) - index) for index, name in enumerate(blocks)}


def pretrain_recipe(
    steps: int,
    *,
    learning_rate: float = 6e-4,
    warmup: int | float = 0.02,
    floor: float = 0.1,
    weight_decay: float = 0.1,
    beta_2: float = 0.95,
    global_clipnorm: float | None = 1.0,
    **options: Any,
) -> AdamW:
    """Returns the usual optimizer for pre-training a GPT, as in Brown et al. (2020) and nanoGPT.

    The optimizer is AdamW without weight decay of biases and norms, with linear warmup and cosine decay of
    the learning rate, and with clipped gradients. nanoGPT's character model uses
    `pretrain_recipe(5000, learning_rate=1e-3, warmup=100, beta_2=0.99)`.

    Args:
        steps: steps of the whole training: batches per epoch times epochs.
        learning_rate: the largest learning rate.
        warmup: steps of the warmup, or their fraction of all steps.
        floor: the last learning rate as a fraction of the largest.
        weight_decay: the factor of the weight decay.
        beta_2: decay rate of the second moment; closer to 1 for batches with few tokens.
        global_clipnorm: the largest global norm of the gradients; None for no limit.
        options: other options of `AdamW`, such as `beta_1` or `epsilon`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> optimizer = pretrain_recipe(1000, learning_rate=1e-3, warmup=100)
    >>> optimizer.beta_1, optimizer.beta_2, optimizer.weight_decay
    (0.9, 0.95, 0.1)
    """
    return AdamW(
        WarmupCosine(learning_rate, steps, warmup, floor),
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        without_decay=WITHOUT_DECAY,
        beta_2=beta_2,
        **{"epsilon": 1e-8, **options},
    )
