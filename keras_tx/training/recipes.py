"""Optimizers with the usual settings for fine-tuning and pre-training."""

from __future__ import annotations

import re
from typing import Any

import keras

from keras_tx.errors import ConfigError, whole_number
from keras_tx.optimizers import AdamW, Lamb, Muon
from keras_tx.training.schedules import InverseSquareRoot, WarmupCosine, WarmupLinear, positive

BLOCK = re.compile(r"(encoder_|decoder_)?block_\d+")  # the names of blocks in all families
# Embeddings decay, as in BERT's published code.
WITHOUT_DECAY = ("bias", "gamma", "beta", "scale")
VIT_WITHOUT_DECAY = (*WITHOUT_DECAY, "tokens", "table")  # of DeiT's code: all but matrices


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
        frozen_blocks: number of lowest blocks to freeze, with the layers before them. Blocks of an encoder
            are below those of its decoder.
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
    blocks = [name for name in names if BLOCK.fullmatch(name)]
    if not blocks:
        raise ConfigError(f"Model {model.name!r} has no layer block_0. Pass a model of keras_tx.")
    if not isinstance(layer_decay, int | float) or not 0 < layer_decay <= 1:
        raise ConfigError(f"layer_decay={layer_decay!r} is out of range. Pass a number above 0, up to 1.")
    if type(frozen_blocks) is not int or not 0 <= frozen_blocks <= len(blocks):
        raise ConfigError(f"frozen_blocks={frozen_blocks!r} is out of range. Pass 0 to {len(blocks)}.")
    if frozen_blocks:
        frozen = names[: names.index(blocks[frozen_blocks - 1]) + 1]
        for layer in model.layers:
            if layer.name in frozen:
                layer.trainable = False
    return AdamW(
        WarmupLinear(learning_rate, steps, warmup),
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        without_decay=WITHOUT_DECAY,
        rate_factors=_rate_factors(names, blocks, layer_decay),
        **{"epsilon": 1e-6, **options},
    )


def _rate_factors(names: list[str], blocks: list[str], layer_decay: float) -> dict[str, float]:
    """The factor of the learning rate of each layer up to the last block."""
    if layer_decay == 1:
        return {}
    above, factors = len(blocks) + 1, {}
    for name in names[: names.index(blocks[-1]) + 1]:
        above -= name in blocks
        factors[name] = layer_decay**above
    return factors


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


def bert_recipe(
    steps: int = 1_000_000,
    *,
    learning_rate: float = 1e-4,
    warmup: int | float = 0.01,
    weight_decay: float = 0.01,
    **options: Any,
) -> AdamW:
    """Returns the optimizer of Devlin et al. (2019) for pre-training a BERT.

    The optimizer is AdamW without weight decay of biases and norms, with linear warmup and decay of the
    learning rate, and with clipped gradients. The paper trains with 256 texts of 512 tokens per step and 0.1
    dropout. The warmup is a hundredth of the steps, which is 10,000 of the million steps of the paper.

    Args:
        steps: steps of the whole training: batches per epoch times epochs.
        learning_rate: the largest learning rate.
        warmup: steps of the warmup, or their fraction of all steps.
        weight_decay: the factor of the weight decay.
        options: other options of `AdamW`, such as `use_ema`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> optimizer = bert_recipe(100_000)
    >>> optimizer.beta_2, optimizer.weight_decay
    (0.999, 0.01)
    """
    schedule = WarmupLinear(learning_rate, steps, warmup)
    return AdamW(
        schedule, weight_decay=weight_decay, without_decay=WITHOUT_DECAY, **{"epsilon": 1e-6, **options}
    )


def muon_recipe(
    steps: int,
    *,
    learning_rate: float = 2e-3,
    warmup: int | float = 0.1,
    floor: float = 0.0,
    weight_decay: float = 0.05,
    **options: Any,
) -> Muon:
    """Returns the optimizer for training from scratch in few steps: Muon (Jordan et al., 2024).

    Muon updates the matrices and Adam all other variables, with linear warmup and cosine decay of the
    learning rate. On CIFAR-10 from scratch, a ViT reached 81 % in 6 epochs, and 73 % with AdamW
    (docs/vit.md). Use `finetune_recipe` for a checkpoint that was trained with Adam.

    Args:
        steps: steps of the whole training: batches per epoch times epochs.
        learning_rate: the largest learning rate.
        warmup: steps of the warmup, or their fraction of all steps.
        floor: the last learning rate as a fraction of the largest.
        weight_decay: the factor of the weight decay of the matrices.
        options: other options of `keras_tx.optimizers.Muon`, such as `global_clipnorm` or `use_ema`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> optimizer = muon_recipe(1000)
    >>> optimizer.weight_decay, optimizer.adam_weight_decay
    (0.05, 0.0)
    """
    schedule = WarmupCosine(learning_rate, steps, warmup, floor)
    return Muon(schedule, weight_decay=weight_decay, **options)


def deit_recipe(
    steps: int,
    *,
    batch_size: int,
    learning_rate: float = 5e-4,
    warmup: int | float = 5 / 300,
    weight_decay: float = 0.05,
    **options: Any,
) -> AdamW:
    """Returns the optimizer of DeiT (Touvron et al., 2021, table 9) for a ViT from scratch.

    The optimizer is AdamW without weight decay of biases and norms. The paper also uses
    `keras_tx.data.deit_augmentation`, `drop_path=0.1` and a label smoothing of 0.1.

    Args:
        steps: steps of the whole training: batches per epoch times epochs.
        batch_size: images per step; the learning rate is multiplied by batch_size / 512.
        learning_rate: the largest learning rate for a batch size of 512.
        warmup: steps of the warmup, or their fraction of all steps.
        weight_decay: the factor of the weight decay.
        options: other options of `AdamW`, such as `beta_2`; gradients are not clipped, as in the paper.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> optimizer = deit_recipe(1000, batch_size=1024)
    >>> optimizer.weight_decay, optimizer.global_clipnorm
    (0.05, None)
    """
    scaled = positive("learning_rate", learning_rate) * whole_number("batch_size", batch_size) / 512
    schedule = WarmupCosine(scaled, steps, warmup, floor=1e-5 / max(scaled, 1e-5))
    without_decay = VIT_WITHOUT_DECAY
    options = {"global_clipnorm": None, "epsilon": 1e-8, **options}
    return AdamW(schedule, weight_decay=weight_decay, without_decay=without_decay, **options)


def deit3_recipe(
    steps: int,
    *,
    learning_rate: float = 3e-3,
    warmup: int | float = 5 / 800,
    weight_decay: float = 0.05,
    **options: Any,
) -> Lamb:
    """Returns the optimizer of DeiT III (Touvron et al., 2022) for a ViT from scratch.

    The optimizer is LAMB without weight decay of biases and norms, for batches of 2,048 images, with linear
    warmup and cosine decay of the learning rate, and with clipped gradients. The authors train B/16 on
    ImageNet for 800 epochs, with these options:

        model = keras_tx.vit("B/16", num_classes=1000, drop_path=0.2, layer_scale=1e-4)
        augment = keras_tx.data.three_augment(1000, padding=0, mixup=0.8)  # random crops
        model.compile(deit3_recipe(steps), loss="binary_crossentropy", metrics=["accuracy"])

    Args:
        steps: steps of the whole training: batches per epoch times epochs.
        learning_rate: the largest learning rate.
        warmup: steps of the warmup, or their fraction of all steps.
        weight_decay: the factor of the weight decay.
        options: other options of `Lamb`, such as `global_clipnorm`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> optimizer = deit3_recipe(1000)
    >>> optimizer.weight_decay, optimizer.global_clipnorm
    (0.05, 1.0)
    """
    floor = min(1.0, 1e-5 / positive("learning_rate", learning_rate))
    schedule = WarmupCosine(learning_rate, steps, warmup, floor)
    return Lamb(schedule, weight_decay=weight_decay, without_decay=VIT_WITHOUT_DECAY, **options)


def transformer_recipe(
    model: Any,
    *,
    learning_rate: float | None = None,
    warmup: int = 4000,
    beta_2: float = 0.98,
    **options: Any,
) -> keras.optimizers.Adam:
    """Returns the optimizer of Vaswani et al. (2017) for training an encoder-decoder from scratch.

    The optimizer is Adam, with linear warmup of the learning rate, then decay with the inverse square root of
    the step. The paper also has dropout and label smoothing of 0.1, which are options of the model:
    `keras_tx.transformer("base", dropout=0.1, head=keras_tx.Seq2SeqLMHead(label_smoothing=0.1))`.

    Args:
        model: a model whose config has a `width`.
        learning_rate: the largest learning rate; by default (width * warmup) ** -0.5, as in the paper.
        warmup: steps of the warmup.
        beta_2: decay rate of the second moment.
        options: other options of `keras.optimizers.Adam`, such as `global_clipnorm`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> import keras_tx
    >>> optimizer = transformer_recipe(keras_tx.transformer("tiny"), warmup=400)
    >>> optimizer.beta_1, optimizer.beta_2, optimizer.epsilon
    (0.9, 0.98, 1e-09)
    """
    width, warmup = model.config.width, whole_number("warmup", warmup)
    peak = (width * warmup) ** -0.5 if learning_rate is None else positive("learning_rate", learning_rate)
    schedule = InverseSquareRoot(peak, warmup)
    return keras.optimizers.Adam(schedule, beta_2=beta_2, **{"epsilon": 1e-9, **options})


def t5_recipe(
    learning_rate: float | None = None, *, warmup: int = 10_000, **options: Any
) -> keras.optimizers.Adafactor:
    """Returns the optimizer of Raffel et al. (2020) for T5: Adafactor, whose steps scale with the weights.

    For pre-training the learning rate is `max(step, warmup) ** -0.5`. For fine-tuning pass
    `learning_rate=1e-3`, the constant rate of the paper.

    Args:
        learning_rate: a constant learning rate; None for the schedule.
        warmup: steps with the first learning rate of the schedule.
        options: other options of `keras.optimizers.Adafactor`, such as `clip_threshold`.

    Returns:
        The optimizer.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> round(float(t5_recipe().learning_rate), 6), round(float(t5_recipe(1e-3).learning_rate), 6)
    (0.01, 0.001)
    """
    rate = (
        InverseSquareRoot(whole_number("warmup", warmup) ** -0.5, warmup, constant=True)
        if learning_rate is None
        else positive("learning_rate", learning_rate)
    )
    # Its own decay with the step would replace that of the schedule.
    return keras.optimizers.Adafactor(rate, **{"relative_step": False, **options})
