"""Augmentation of batches: what each step changes, seeds, tf.data, labels, and errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data.augmentation import augmentation, crop_and_flip, deit_augmentation, three_augment
from keras_tx.errors import ConfigError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3)).astype("uint8")
LABELS = np.array([0, 2, 1, 0, 1, 2])
KINDS = {
    "crop_and_flip": lambda: crop_and_flip(2),
    "deit": lambda: deit_augmentation(3, padding=2, operations=0),
    "three": lambda: three_augment(3, padding=2),
    "three without cutmix": lambda: three_augment(padding=2),
    "layers": lambda: augmentation(
        keras.layers.RandomFlip(), keras.layers.RandomErasing(), keras.layers.MixUp(), num_classes=3
    ),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),  # JAX, of Keras's MixUp
    pytest.mark.filterwarnings("ignore:Tensor.T is deprecated"),  # PyTorch, of Keras's RandAugment
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_determines_the_result(kind: str):
    augment = KINDS[kind]()
    images, labels = augment(IMAGES, LABELS, np.random.default_rng(1))
    again = KINDS[kind]()(IMAGES, LABELS, np.random.default_rng(1))
    others, _ = augment(IMAGES, LABELS, np.random.default_rng(2))
    assert images.shape == IMAGES.shape and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 255
    np.testing.assert_array_equal(images, again[0])
    np.testing.assert_array_equal(labels, again[1])
    assert not np.array_equal(images, others) and not np.array_equal(images, IMAGES)


@pytest.mark.thorough
def test_rand_augment_is_in_range():
    images, labels = deit_augmentation(3)(IMAGES, LABELS, np.random.default_rng(1))
    assert images.min() >= 0 and images.max() <= 255
    np.testing.assert_allclose(labels.sum(-1), 1, rtol=1e-5)


def test_labels_are_mixed_as_the_images():
    """The images of a class have one value, so that the value of a pixel is the label that it comes from."""
    images = np.broadcast_to((LABELS * 100)[:, None, None, None], IMAGES.shape).astype("uint8")
    mix_up = augmentation(keras.layers.MixUp(0.8), num_classes=3)
    mixed, shares = mix_up(images, LABELS, np.random.default_rng(3))
    assert ((shares > 0).sum(-1) > 1).any()
    np.testing.assert_allclose(mixed.mean((1, 2, 3)), shares @ [0, 100, 200], rtol=1e-3, atol=0.1)
    cut_mix = augmentation(keras.layers.CutMix(1.0), num_classes=3)
    mixed, shares = cut_mix(images, np.eye(3)[LABELS], np.random.default_rng(3))
    assert np.isin(mixed, (0, 100, 200)).all()
    # Keras cuts whole pixels, and counts fractions of them.
    np.testing.assert_allclose(mixed.mean((1, 2, 3)), shares @ [0, 100, 200], atol=200 / 16)


def test_crops_are_shifted_and_mirrored():
    ramp = np.tile(np.arange(16, dtype="uint8")[None, :, None], (200, 1, 1)).reshape(200, 1, 16, 1)
    images, _ = crop_and_flip(3)(ramp, np.arange(200), np.random.default_rng(0))
    middle = images[:, 0, 5:11, 0]
    steps = np.diff(middle, axis=1)
    mirrored = steps[:, 0] < 0
    assert 70 < mirrored.sum() < 130 and (np.abs(steps) == 1).all()
    shifts = middle[~mirrored, 0] - 5
    assert set(shifts) == set(range(-3, 4))
    straight, _ = crop_and_flip(3, flip=False)(ramp, np.arange(200), np.random.default_rng(0))
    assert (np.diff(straight[:, 0, 5:11, 0], axis=1) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tf_data(kind: str):
    tf = pytest.importorskip("tensorflow")
    augment = KINDS[kind]()
    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4).map(augment)
    batches = [(images.numpy(), labels.numpy()) for images, labels in dataset]
    assert [len(images) for images, _ in batches] == [4, 2]
    for images, labels in batches:
        assert images.dtype == np.float32 and images.min() >= 0 and images.max() <= 255
        assert labels.shape[1:] == ((3,) if augment.num_classes else ())


def test_training_with_mixed_labels_and_validation_with_ids():
    head = keras_tx.ClassifierHead(3, label_smoothing=0.1)
    model = keras_tx.vit("Mu/2", image_size=16, patch_size=4, head=head, stem="convolutions")
    images, labels = three_augment(3)(IMAGES, LABELS)
    model.compile(run_eagerly=True)
    held_out = model.processing(IMAGES), LABELS
    model.fit(
        model.processing(images.astype("uint8")), labels, batch_size=3, validation_data=held_out, verbose=0
    )
    assert 0 <= model.history.history["val_accuracy"][0] <= 1


def test_options_identify_an_augmentation():
    assert repr(crop_and_flip(2)) == repr(crop_and_flip(2)) != repr(crop_and_flip(3))
    layers = (keras.layers.RandomRotation(0.1), keras.layers.RandomRotation(0.2))
    assert repr(augmentation(layers[0])) != repr(augmentation(layers[1]))
    assert "name=random" not in repr(augmentation(layers[0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: augmentation(keras.layers.MixUp()), "MixUp.*num_classes="),
        (lambda: augmentation("flip"), "'flip' is not a layer"),
        (lambda: crop_and_flip(-1), "padding is -1"),
        (lambda: crop_and_flip()(IMAGES[0], 0), r"shape \(16, 16, 3\), expected \(batch"),
        (lambda: deit_augmentation(2)(IMAGES, LABELS), r"Label 2 is out of range: num_classes=2 \(0 to 1\)"),
    ],
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
