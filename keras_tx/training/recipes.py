"""The usual ways to train, as one call each."""

from __future__ import annotations

from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.optimizers import AdamW
from keras_tx.training.schedules import WarmupCosine, WarmupLinear

BLOCK = "block_"  # the families name their blocks block_0, block_1 ...
# As the paper's code and those after it have it: tables of embeddings do decay.
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
    """The optimizer that pretrained transformers are fine-tuned with; it also freezes the lower blocks.

    AdamW without decay on biases and norms, a rate that rises and falls in lines, clipped gradients.

    >>> import keras_tx
    >>> model = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.ClassifierHead(2))
    >>> model.compile(finetune_recipe(model, steps=300, layer_decay=0.9, frozen_blocks=1))
    >>> model.optimizer.rate_factors["block_1"]
    0.9

    Args:
        model: with blocks, not compiled yet.
        steps: of the whole training: batches of an epoch times epochs.
        learning_rate, warmup: see WarmupLinear.
        layer_decay: factor on the rate from each block to the one below it, and to the embeddings. The head
            has the whole rate.
        frozen_blocks: so many of the lowest blocks are not trained, nor what comes before them.
        options: of the optimizer: `beta_2`, `epsilon` ...
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
    factors = {}
    if layer_decay < 1:
        factors = {name: layer_decay ** (len(blocks) + 1) for name in before}
        factors |= {name: layer_decay ** (len(blocks) - index) for index, name in enumerate(blocks)}
    return AdamW(
        WarmupLinear(learning_rate, steps, warmup),
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        without_decay=WITHOUT_DECAY,
        rate_factors=factors,
        **{"epsilon": 1e-6, **options},
    )


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
