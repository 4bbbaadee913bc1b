"""Augmentation of batches of images, with layers of Keras, before the model's normalization."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError, true_or_false, whole_number

Batch = tuple[Any, Any]  # images and labels
Step = Callable[[Any, Any, np.random.Generator], Batch]
PIXELS = (0, 255)
# For every dtype policy and data format of Keras.
OPTIONS: dict[str, Any] = {"dtype": "float32", "data_format": "channels_last"}


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """A random augmentation of a batch of images, and of their labels if it mixes images.

    It is called with images (batch, height, width, channels) of 0..255 and labels, and returns float32 images
    of 0..255 and labels. A third argument, a numpy.random.Generator, determines the result. It works on
    arrays, in `keras_tx.data.image_folder(augment=)` and in `tf.data.Dataset.map`, on every backend of Keras.
    It is not part of the model or the exported folder.

    `crop_and_flip`, `deit_augmentation` and `three_augment` return augmentations; `augmentation` builds one
    from any layers of Keras.

    Args:
        name: name of the function that created it.
        options: the arguments of that function.
        num_classes: number of classes, if labels are returned as class probabilities (batch, num_classes).
        steps: functions of images, labels and a generator, in order.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    num_classes: int | None = None
    steps: tuple[Step, ...] = dataclasses.field(default=(), repr=False, compare=False)
    _lock: Any = dataclasses.field(default_factory=threading.Lock, repr=False, compare=False)

    def __call__(self, images: Any, labels: Any, random: np.random.Generator | None = None) -> Batch:
        if len(images.shape) != 4:
            raise ConfigError(
                f"The images have the shape {tuple(images.shape)}, expected (batch, height, width, "
                "channels). Call the augmentation after Dataset.batch."
            )
        random = np.random.default_rng() if random is None else random
        images = _cast(images)
        if self.num_classes is not None:
            labels = _one_hot(labels, self.num_classes)
        with self._lock:  # layers of Keras keep their random state
            for step in self.steps:
                images, labels = step(images, labels, random)
        return images, labels


def augmentation(*layers: keras.layers.Layer, num_classes: int | None = None) -> Augmentation:
    """Returns an augmentation with layers of Keras.

    Args:
        layers: layers for pixels of 0..255, such as `keras.layers.RandomRotation(0.1)`. Create them with
            `dtype="float32"` if the global dtype policy is different.
        num_classes: number of classes, for layers that mix images, such as `keras.layers.CutMix()`: labels
            are then class probabilities.

    Returns:
        An Augmentation.

    Raises:
        ConfigError: an argument is not a layer, or a layer mixes labels and `num_classes` is missing.

    Example:

    >>> import keras, numpy as np
    >>> layers = keras.layers.RandomFlip("horizontal"), keras.layers.MixUp()
    >>> augment = augmentation(*layers, num_classes=3)
    >>> images, labels = augment(np.zeros((2, 8, 8, 3), "uint8"), np.array([0, 2]))
    >>> images.shape, labels.shape
    ((2, 8, 8, 3), (2, 3))
    """
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ConfigError(f"{layer!r} is not a layer. Pass layers of Keras, such as RandomFlip().")
        if _mixes(layer) and num_classes is None:
            raise ConfigError(
                f"{type(layer).__name__} mixes labels and needs num_classes=, the number of classes."
            )
    options = tuple((type(layer).__name__, _options_of(layer)) for layer in layers)
    return Augmentation("augmentation", options, _count(num_classes), tuple(map(LayerStep, layers)))


def crop_and_flip(padding: int = 4, *, flip: bool = True) -> Augmentation:
    """Returns the augmentation of He et al. (2016) for small images: shifted crops and mirror images.

    Each image is padded with its own edge pixels and cropped at a random place, and half of the images are
    mirrored.

    Args:
        padding: the largest shift in pixels; an eighth of the image is usual.
        flip: whether half of the images are mirrored; False for digits and letters.

    Returns:
        An Augmentation.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> import numpy as np
    >>> images, labels = crop_and_flip(2)(np.zeros((4, 16, 16, 3), "uint8"), np.arange(4))
    >>> images.shape, labels
    ((4, 16, 16, 3), array([0, 1, 2, 3]))
    """
    options = (("padding", whole_number("padding", padding)), ("flip", true_or_false("flip", flip)))
    return Augmentation("crop_and_flip", options, None, (ShiftStep(padding, flip),))


def deit_augmentation(
    num_classes: int,
    *,
    padding: int = 0,
    flip: bool = True,
    operations: int = 2,
    strength: float = 0.3,
    erasing: float = 0.25,
    mixup: float = 0.8,
    cutmix: float = 1.0,
) -> Augmentation:
    """Returns the augmentation of DeiT (Touvron et al., 2021, table 9).

    Mirror images, RandAugment, RandomErasing, and MixUp for one half of a batch and CutMix for the other.

    Args:
        num_classes: number of classes.
        padding: the largest shift of crops in pixels; 0 if the images are random crops.
        flip: whether half of the images are mirrored.
        operations: number of operations of RandAugment; 0 for none.
        strength: strength of RandAugment, from 0 to 1. In Keras, 0.3 corresponds roughly to magnitude 9 of
            the paper; with 0.9, many images become white.
        erasing: fraction of the images in which RandomErasing replaces a rectangle; 0 for none.
        mixup: alpha of MixUp; 0 for none.
        cutmix: alpha of CutMix; 0 for none.

    Returns:
        An Augmentation. Labels are class probabilities.

    Example:

    >>> import numpy as np
    >>> augment = deit_augmentation(3, operations=0)
    >>> images, labels = augment(np.zeros((4, 16, 16, 3), "uint8"), np.array([0, 1, 2, 0]))
    >>> labels.shape, float(labels.sum().round(3))
    ((4, 3), 4.0)
    """
    options = {"padding": padding, "flip": flip, "operations": operations, "strength": strength}
    options |= {"erasing": erasing, "mixup": mixup, "cutmix": cutmix}
    steps: list[Step] = [ShiftStep(padding, flip)] if padding or flip else []
    layers = keras.layers
    if operations:
        steps.append(LayerStep(layers.RandAugment(PIXELS, operations, strength, **OPTIONS)))
    if erasing:
        steps.append(LayerStep(layers.RandomErasing((erasing, erasing), **OPTIONS)))
    steps += _mixing_steps(mixup, cutmix)
    return Augmentation("deit_augmentation", tuple(options.items()), _count(num_classes), tuple(steps))


def three_augment(
    num_classes: int | None = None,
    *,
    padding: int = 4,
    flip: bool = True,
    jitter: float = 0.3,
    mixup: float = 0.0,
    cutmix: float = 1.0,
) -> Augmentation:
    """Returns 3-Augment of DeiT III (Touvron et al., 2022, section 3).

    A third of each batch becomes gray, a third is solarized, and a third is blurred; then the colors change.
    With `num_classes`, CutMix follows, as in the paper. On ImageNet-1k, the paper has MixUp for a half of the
    images too (`mixup=0.8`).

    Args:
        num_classes: number of classes, for MixUp and CutMix; None for neither.
        padding: the largest shift of crops in pixels; 0 for none.
        flip: whether half of the images are mirrored.
        jitter: strength of the change of brightness, contrast and saturation; 0 for none.
        mixup: alpha of MixUp; 0 for none.
        cutmix: alpha of CutMix; 0 for none.

    Returns:
        An Augmentation. With `num_classes`, labels are class probabilities.

    Example:

    >>> import numpy as np
    >>> images, labels = three_augment()(np.zeros((6, 16, 16, 3), "uint8"), np.arange(6))
    >>> images.shape, labels.shape
    ((6, 16, 16, 3), (6,))
    """
    options = {"padding": padding, "flip": flip, "jitter": jitter, "mixup": mixup, "cutmix": cutmix}
    layers = keras.layers
    steps: list[Step] = [ShiftStep(padding, flip)] if padding or flip else []
    thirds = (
        layers.RandomGrayscale(1.0, **OPTIONS),
        layers.Solarization(threshold_factor=(0.5, 0.5), value_range=PIXELS, **OPTIONS),
        layers.RandomGaussianBlur(factor=1.0, kernel_size=3, sigma=1.0, value_range=PIXELS, **OPTIONS),
    )
    steps.append(PartsStep([LayerStep(layer) for layer in thirds]))
    if jitter:
        change: dict[str, Any] = {
            "brightness_factor": jitter,
            "contrast_factor": jitter,
            "saturation_factor": (0.5 - jitter / 2, 0.5 + jitter / 2),
        }
        steps.append(LayerStep(layers.RandomColorJitter(PIXELS, **change, **OPTIONS)))
    if num_classes is not None:
        steps += _mixing_steps(mixup, cutmix)
    return Augmentation("three_augment", tuple(options.items()), _count(num_classes), tuple(steps))


def _mixing_steps(mixup: float, cutmix: float) -> list[Step]:
    """MixUp and CutMix, each for an equal part of the batch."""
    layers = keras.layers
    mixing = [layers.MixUp(mixup, **OPTIONS)] if mixup else []
    mixing += [layers.CutMix((cutmix, cutmix), **OPTIONS)] if cutmix else []
    return [PartsStep([LayerStep(layer) for layer in mixing])] if mixing else []


class ShiftStep:
    """Shifts each image by up to `padding` pixels, and mirrors half of the images."""

    def __init__(self, padding: int, flip: bool):
        self.padding, self.flip = padding, flip

    def __call__(self, images: Any, labels: Any, random: np.random.Generator) -> Batch:
        if not _is_symbolic(images):
            return self.changed(images, random), labels
        import tensorflow as tf

        changed = tf.numpy_function(
            lambda array: self.changed(array, np.random.default_rng()), [images], tf.float32
        )
        changed.set_shape(images.shape)
        return changed, labels

    def changed(self, images: np.ndarray, random: np.random.Generator) -> np.ndarray:
        count, height, width = images.shape[:3]
        if self.padding:
            pad, rows = self.padding, np.arange(count)[:, None, None]
            y, x = random.integers(-pad, pad + 1, (2, count))
            y = np.clip(y[:, None] + np.arange(height), 0, height - 1)  # (count, height)
            x = np.clip(x[:, None] + np.arange(width), 0, width - 1)
            images = images[rows, y[:, :, None], x[:, None, :]]
        if self.flip:
            mirrored = random.random(count) < 0.5
            images = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        return images


class LayerStep:
    """Calls an augmentation layer of Keras, and limits its result to 0..255."""

    def __init__(self, layer: keras.layers.Layer):
        self.layer = layer
        self.generators = [
            value
            for part in layer._flatten_layers()
            for value in vars(part).values()
            if isinstance(value, keras.random.SeedGenerator)
        ]

    def __call__(self, images: Any, labels: Any, random: np.random.Generator) -> Batch:
        symbolic = _is_symbolic(images)
        if not symbolic:
            for generator in self.generators:
                generator.state.assign(random.integers(0, 2**31, 2))
        if _mixes(self.layer):
            results: Any = self.layer({"images": images, "labels": labels}, training=True)
            images, labels = results["images"], results["labels"]
        else:
            images = self.layer(images, training=True)
        if symbolic:
            import tensorflow as tf

            return tf.clip_by_value(images, *PIXELS), labels
        labels = keras.ops.convert_to_numpy(labels) if keras.ops.is_tensor(labels) else labels
        return np.clip(keras.ops.convert_to_numpy(images), *PIXELS), labels


class PartsStep:
    """Applies each of several steps to an equal part of the batch, whose order is random."""

    def __init__(self, steps: Sequence[Step]):
        self.steps = steps

    def __call__(self, images: Any, labels: Any, random: np.random.Generator) -> Batch:
        if _is_symbolic(images):
            import tensorflow as tf

            size, join = tf.shape(images)[0], tf.concat
        else:
            size, join = len(images), np.concatenate
        count = len(self.steps)
        parts = []
        for index, step in enumerate(self.steps):
            part = slice(size * index // count, size * (index + 1) // count)
            if not _is_symbolic(images) and part.start == part.stop:
                continue
            parts.append(step(images[part], labels[part], random))
        return join([x for x, _ in parts], 0), join([y for _, y in parts], 0)


def _mixes(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.MixUp | keras.layers.CutMix)


def _count(num_classes: int | None) -> int | None:
    return None if num_classes is None else whole_number("num_classes", num_classes)


def _options_of(layer: keras.layers.Layer) -> str:
    config = layer.get_config()
    return repr({key: config[key] for key in sorted(config) if key not in ("name", "dtype", "trainable")})


def _is_symbolic(x: Any) -> bool:
    """Whether this is a tensor of a tf.data pipeline."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and tf.is_tensor(x) and tf.is_symbolic_tensor(x)


def _cast(images: Any) -> Any:
    if _is_symbolic(images):
        import tensorflow as tf

        return tf.cast(images, tf.float32)
    return np.asarray(keras.ops.convert_to_numpy(images), "float32")


def _one_hot(labels: Any, num_classes: int) -> Any:
    """Returns labels as class probabilities, float32."""
    if _is_symbolic(labels):
        import tensorflow as tf

        if labels.shape.rank == 2 and labels.shape[-1] == num_classes:
            return tf.cast(labels, tf.float32)
        return tf.one_hot(tf.cast(tf.reshape(labels, (-1,)), tf.int32), num_classes)
    labels = np.asarray(keras.ops.convert_to_numpy(labels))
    if labels.ndim == 2 and labels.shape[-1] == num_classes:
        return labels.astype("float32")
    labels = labels.reshape(-1)
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        wrong = labels.max() if labels.max() >= num_classes else labels.min()
        raise ConfigError(
            f"Label {wrong} is out of range: num_classes={num_classes} (0 to {num_classes - 1})."
        )
    return np.eye(num_classes, dtype="float32")[labels.astype(int)]
