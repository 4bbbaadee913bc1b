"""Images per second of `image_folder` and torchvision's DataLoader, from JPEG files of 2,000 x 1,500.

    pip install --no-deps "torchvision==0.28.*"
    python -m tests.benchmarks.image_loading [--images 120] [--rounds 5] [--workers 2]

The goal is 1.2 times torchvision's DataLoader with two workers. A training image is decoded, cropped at
random to 8 to 100 % of its area, resized to 224, mirrored or not, and normalized; batches have 32
images. The contenders read the same files, interleaved; the first epoch of each is not counted. Images
are drawn, with the sizes of photographs (about 0.8 MB).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import keras_tx as tx
from keras_tx.data.image_list import list_folder
from keras_tx.data.image_reader import ImageReader

SIDE, BATCH = 224, 32
CROP = (0.08, 1.0)
TRAINING, SERVING = "random crops, mirror images", "whole images"
TORCHVISION = "torchvision, DataLoader"
Epoch = Callable[[], Iterable[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare image_folder with torchvision's DataLoader.")
    parser.add_argument("--images", type=int, default=120, help="files to draw (default: 120)")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each contender (default: 5)")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        draw_photographs(Path(name), options.images, (2000, 1500))
        rates = {
            kind: measure(contenders(Path(name), kind, options.workers), options.images, options.rounds)
            for kind in (TRAINING, SERVING)
        }
        print(table(rates, options.workers))
        print(f"Reduced decoding differs by {differences(Path(name))}.")


def draw_photographs(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Draws JPEG files of three classes: smooth colors, discs and noise."""
    random = np.random.default_rng(0)
    width, height = size
    for index in range(count):
        colors = Image.fromarray(random.integers(0, 256, (9, 12, 3), "uint8"))
        image = colors.resize(size, Image.Resampling.BICUBIC)
        drawing = ImageDraw.Draw(image)
        for _ in range(60):
            x, y, radius = (int(random.integers(bound)) for bound in (width, height, height // 8))
            color = tuple(random.integers(0, 256, 3).tolist())
            drawing.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
        noisy = np.asarray(image) + random.normal(0, 6, (height, width, 1))
        path = folder / f"class{index % 3}" / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype("uint8")).save(path, quality=90)


def contenders(folder: Path, kind: str, workers: int) -> dict[str, Epoch]:
    """Functions that yield the batches of an epoch."""
    chosen = {
        "keras-tx, threads": batches(folder, kind, workers, reduced=False),
        "keras-tx, processes": in_processes(folder, kind, workers),
        "keras-tx, threads, reduced_decoding": batches(folder, kind, workers, reduced=True),
    }
    try:
        return {TORCHVISION: of_torchvision(folder, kind, workers), **chosen}
    except ImportError:
        return chosen


def batches(folder: Path, kind: str, workers: int, *, reduced: bool) -> Epoch:
    training: dict[str, Any] = {"crop": CROP, "augment": flip} if kind == TRAINING else {}
    data = tx.image_folder(
        folder,
        tx.ImageTransform(SIDE),
        batch_size=BATCH,
        workers=workers,
        reduced_decoding=reduced,
        shuffle=kind == TRAINING,
        **training,
    )

    def epoch() -> Iterable[Any]:
        for index in range(len(data)):
            yield data[index]
        data.on_epoch_end()

    return epoch


def flip(images: Any, labels: Any, random: np.random.Generator) -> tuple[Any, Any]:
    mirrored = random.random(len(images)) < 0.5
    images[mirrored] = images[mirrored][:, :, ::-1]
    return images, labels


class ReaderDataset:
    """The images of an ImageReader for PyTorch's DataLoader, whose workers are processes."""

    def __init__(self, folder: Path, kind: str):
        crop = CROP if kind == TRAINING else None
        options: dict[str, Any] = {"crop": crop, "reduced_decoding": False, "workers": 1}
        self.processing = tx.ImageTransform(SIDE)
        self.reader = ImageReader(list_folder(folder, None), self.processing, **options)

    def __len__(self) -> int:
        return len(self.reader.images)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        random = np.random.default_rng(row)
        pixels = self.reader.read(row, random)
        if self.reader.crop is not None and random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return self.processing.normalize(pixels), int(self.reader.images.targets[row])


def in_processes(folder: Path, kind: str, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    data: Any = ReaderDataset(folder, kind)
    loader = DataLoader(data, BATCH, shuffle=kind == TRAINING, num_workers=workers, persistent_workers=True)
    return lambda: loader


def of_torchvision(folder: Path, kind: str, workers: int) -> Epoch:
    import torch
    from torch.utils.data import DataLoader

    # The wheels of the package registry need CUDA, and without it do not register these two operations.
    operations = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            operations.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import datasets, transforms  # type: ignore[import-not-found]

    crop = [transforms.RandomResizedCrop(SIDE, CROP), transforms.RandomHorizontalFlip()]
    whole = [transforms.Resize((SIDE, SIDE))]
    normalize = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    data = datasets.ImageFolder(
        str(folder), transforms.Compose([*(crop if kind == TRAINING else whole), *normalize])
    )
    loader = DataLoader(data, BATCH, shuffle=kind == TRAINING, num_workers=workers, persistent_workers=True)

    def epoch() -> Iterable[Any]:
        yield from loader
        assert operations is not None  # its operations are removed with it

    return epoch


def measure(epochs: dict[str, Epoch], images: int, rounds: int) -> dict[str, list[float]]:
    """Images per second of each contender in each round, interleaved."""
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(rounds + 1):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            count = sum(len(labels) for _, labels in epoch())
            rates[name].append(count / (time.perf_counter() - start))
            assert count == images, f"{name} returned {count} of {images} images"
    return {name: values[1:] for name, values in rates.items()}


def differences(folder: Path) -> str:
    """How much the pixels of reduced decoding differ from those of the exported folder, of 255."""
    transform = tx.ImageTransform(SIDE, mean=0, std=1, rescale=1)
    exact, reduced = (
        tx.image_folder(folder, transform, shuffle=False, reduced_decoding=flag)[0][0]
        for flag in (False, True)
    )
    difference = np.abs(exact - reduced)
    high = np.quantile(difference, 0.99)
    largest = difference.max()
    return f"{difference.mean():.2f} of 255 on average, {high:g} at the 99th percentile, at most {largest:g}"


def table(rates: dict[str, dict[str, list[float]]], workers: int) -> str:
    """A Markdown table of the medians."""
    where = f"{os.cpu_count()} cores, {platform.machine()}, {datetime.date.today()}"
    lines = [f"Images per second with {workers} workers, {where}:", ""]
    lines += ["| images | contender | images per second | of torchvision |", "| --- | --- | --- | --- |"]
    for kind, of_kind in rates.items():
        medians = {name: statistics.median(values) for name, values in of_kind.items()}
        for name, median in medians.items():
            ratio = f"{median / medians[TORCHVISION]:.2f}" if TORCHVISION in medians else "not installed"
            lines.append(f"| {kind} | {name} | {median:.0f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
