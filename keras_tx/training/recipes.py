"""Optimizers with the usual settings for fine-tuning and pre-training."""

from __future__ import annotations

from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.optimizers import AdamW
from keras_tx.training.schedules import WarmupCosine, WarmupLinear

BLOCK = "block_"  # the families name their blocks block_0, block_1 ...
# Embeddings decay, as in the code of the paper.
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

    AdamW without decay of biases and norms, with a linear warmup and decay of the learning rate, and with
    clipped gradients.

    >>> import keras_tx
    >>> model = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.ClassifierHead(2))
    >>> model.compile(finetune_recipe(model, steps=300, layer_decay=0.9, frozen_blocks=1))
    >>> model.optimizer.rate_factors["block_1"]
    0.9

    Args:
        model: a model with blocks that is not compiled.
        steps: of the whole training: the batches per epoch times the epochs.
        learning_rate, warmup: as for `WarmupLinear`.
        weight_decay, global_clipnorm: as for `AdamW`.
        layer_decay: factor on the learning rate from each block to the one below it, and to the embeddings.
            The head has the full rate.
        frozen_blocks: the number of lowest blocks that are frozen, with the layers before them.
        options: of the optimizer: `beta_2`, `epsilon` ...

    Returns:
        The optimizer.

    Raises:
        ConfigError: the model has no blocks, or an argument is out of range.
    """
    names = [layer.name for layer in model.layers if layer.weights]
    blocks = [name for name in names if name.startswith(BLOCK)]
    if not blocks:
        raise ConfigError(f"Model {model.name!r} has no layers named {BLOCK}0, {BLOCK}1 ...")
    if not isinstance(layer_decay, int | float) or not 0 < layer_decay <= 1:
        raise ConfigError(f"layer_decay={layer_decay!r}, expected a factor above 0, up to 1.")
    if type(frozen_blocks) is not int or not 0 <= frozen_blocks <= len(blocks):
        raise ConfigError(f"frozen_blocks={frozen_blocks!r}, expected 0 to {len(blocks)}.")
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
    """The factor on the learning rate of each layer below the head."""
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
    """The optimizer that GPTs are trained from scratch with, after Brown et al. and nanoGPT.

    AdamW that decays matrices and tables, not biases and norms, a rate that rises in a line and falls along
    a cosine, clipped gradients. nanoGPT's for characters is
    `pretrain_recipe(5000, learning_rate=1e-3, warmup=100, beta_2=0.99)`.

    >>> optimizer = pretrain_recipe(1000, learning_rate=1e-3, warmup=100)
    >>> optimizer.beta_1, optimizer.beta_2, optimizer.weight_decay
    (0.9, 0.95, 0.1)

    Args:
        steps: of the whole training: batches of an epoch times epochs.
        learning_rate, warmup, floor: see WarmupCosine.
        beta_2: nearer to 1 the fewer tokens a batch has.
        options: of the optimizer: `beta_1`, `epsilon` ...
    """
    return AdamW(
        WarmupCosine(learning_rate, steps, warmup, floor),
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        without_decay=WITHOUT_DECAY,
        beta_2=beta_2,
        **{"epsilon": 1e-8, **options},
    )
