"""A ViT that tells flowers, butterflies and snails apart, and a report and figures of its attention.

    command   python examples/vit_drawings.py --out drawings
    needs     pip install "keras-tx[cpu,inspect]"
    hardware  two CPU cores that others used, too
    minutes   2
    metric    validation accuracy 0.940, where chance is 0.333

The images are drawn by this script: one flower, butterfly or snail of any color, size and place, in a garden
with leaves and pebbles. OUT has the exported folder, and for each of four larger drawings its report and the
figures of docs/inspect.md. The fourth has two objects, and a figure of the relevance for each.
"""

from __future__ import annotations

import argparse
import colorsys
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

import keras_tx
from keras_tx.inspect import inspect, mass_threshold, write_report
from keras_tx.inspect.figures import draw_maps, draw_overlay, draw_reference_points
from keras_tx_onnx import export_onnx

LABELS = ["butterfly", "flower", "snail"]
SIZE, PATCH = 72, 8  # of the model's input
WIDTH, HEIGHT = 96, 72  # of a drawing for training
LARGE = 6  # times the width and height, of a drawing for the figures
SMOOTH = 2  # pixels per pixel and axis while drawing
COUNT, EPOCHS = 3000, 16
BATCH, LEARNING_RATE = 64, 2e-3
DRAWINGS = {  # seed, and for each object its name, place and size
    "butterfly": (1, [("butterfly", 0.4, 0.5, 0.36)]),
    "flower": (2, [("flower", 0.6, 0.45, 0.36)]),
    "snail": (3, [("snail", 0.5, 0.5, 0.36)]),
    "garden": (4, [("butterfly", 0.25, 0.4, 0.26), ("flower", 0.74, 0.6, 0.26)]),
}

Color = tuple[int, int, int]
Range = tuple[float, float]
EARTH = ((0.15, 0.5), (0.25, 0.6), (0.06, 0.45))  # ranges of saturation, value and hue
LEAVES = ((0.2, 0.6), (0.3, 0.7), (0.08, 0.42))
STONE = ((0.0, 0.35), (0.4, 0.8))
BRIGHT = ((0.5, 0.9), (0.7, 1.0))
DARK = ((0.3, 0.6), (0.08, 0.25))


class Pen:
    """Draws in coordinates around a center, in which the object has the radius 1."""

    def __init__(self, image: Image.Image, x: float, y: float, radius: float, angle: float) -> None:
        self.canvas, self.center, self.radius = ImageDraw.Draw(image), (x, y), radius
        self.turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * radius

    def points(self, points: Any) -> list[tuple[float, float]]:
        return [(x, y) for x, y in np.asarray(points) @ self.turn + self.center]

    def line(self, points: Any, color: Color, width: float) -> None:
        self.canvas.line(self.points(points), color, max(1, round(width * self.radius)), joint="curve")

    def ellipse(
        self, x: float, y: float, length: float, width: float, color: Color, angle: float = 0.0
    ) -> None:
        """An ellipse around (x, y), with half its length along the angle."""
        t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        across, up = length * np.cos(t), width * np.sin(t)
        cos, sin = np.cos(angle), np.sin(angle)
        points = np.stack([x + across * cos - up * sin, y + across * sin + up * cos], axis=1)
        self.canvas.polygon(self.points(points), fill=color)


class Garden:
    """Draws images of one object in a garden. Their colors do not depend on the object."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def images(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Images (count, HEIGHT, WIDTH, 3), uint8, and their labels."""
        labels = self.random.integers(len(LABELS), size=count)
        images = []
        for label in labels:
            radius = self.random.uniform(0.2, 0.45)
            x, y = self.random.uniform(0.2, 0.8, 2)
            images.append(np.asarray(self.image(WIDTH, HEIGHT, [(LABELS[label], x, y, radius)])))
        return np.stack(images), labels

    def image(
        self, width: int, height: int, objects: Sequence[tuple[str, float, float, float]]
    ) -> Image.Image:
        """A garden with objects: name, center and radius, as shares of the width, height and height."""
        large = (width * SMOOTH, height * SMOOTH)
        image = self._ground(large)
        for _ in range(self.random.integers(6, 14)):
            place = self.random.random(2) * large
            radius = self.random.uniform(0.05, 0.2) * large[1]
            draw = self.leaf if self.random.random() < 0.65 else self.pebble
            draw(Pen(image, *place, radius, self.random.uniform(0, 2 * np.pi)))
        for name, x, y, radius in objects:
            angle = self.random.uniform(-0.6, 0.6)
            getattr(self, name)(Pen(image, x * large[0], y * large[1], radius * large[1], angle))
        return image.resize((width, height), Image.Resampling.BOX)

    def color(self, saturation: Range, value: Range, hue: Range = (0, 1)) -> Color:
        parts = (self.random.uniform(*span) for span in (hue, saturation, value))
        red, green, blue = colorsys.hsv_to_rgb(*parts)
        return round(red * 255), round(green * 255), round(blue * 255)

    def _ground(self, size: tuple[int, int]) -> Image.Image:
        """Soil and grass: two colors, mixed by smooth noise of several scales."""
        noise = np.zeros((size[1], size[0]), "float32")
        for scale in (3, 8, 24, 64):
            cells = self.random.standard_normal((scale * 3 // 4 + 1, scale + 1)).astype("float32")
            noise += np.asarray(Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)) / scale**0.5
        share = 1 / (1 + np.exp(-2 * noise))[:, :, None]
        first, second = (np.array(self.color(*EARTH), "float32") for _ in range(2))
        return Image.fromarray((first * share + second * (1 - share)).astype("uint8"))

    def leaf(self, pen: Pen) -> None:
        color = self.color(*LEAVES)
        t = np.linspace(-1, 1, 24)
        edge = 0.42 * (1 - t**2)
        outline = np.concatenate([np.stack([t, edge], axis=1), np.stack([t, -edge], axis=1)[::-1]])
        pen.canvas.polygon(pen.points(outline), fill=color)
        vein = darker(color, 0.7)
        pen.line([(-1.3, 0), (0.9, 0)], vein, 0.06)
        for x in (-0.5, -0.1, 0.3):
            pen.line([(x + 0.25, 0.25), (x, 0), (x + 0.25, -0.25)], vein, 0.04)

    def pebble(self, pen: Pen) -> None:
        color = self.color(*STONE)
        pen.ellipse(0, 0, 0.7, 0.5, darker(color, 0.6))
        pen.ellipse(-0.04, -0.06, 0.62, 0.42, color)

    def flower(self, pen: Pen) -> None:
        color, count = self.color(*BRIGHT), int(self.random.integers(6, 11))
        for share, radius in ((0.75, 0.62), (1.0, 0.42)):
            for angle in 2 * np.pi * (np.arange(count) + share) / count:
                x, y = radius * np.cos(angle), radius * np.sin(angle)
                length, width = 0.38 * radius / 0.62, 2.0 / count * radius / 0.62
                pen.ellipse(x, y, length, width, darker(color, 0.65 * share), angle)
                pen.ellipse(x, y, length * 0.9, width * 0.82, darker(color, share), angle)
        middle = self.color(*BRIGHT)
        pen.ellipse(0, 0, 0.26, 0.26, darker(middle, 0.6))
        for radius, dots in ((0.18, 10), (0.08, 5)):
            for angle in 2 * np.pi * np.arange(dots) / dots:
                pen.ellipse(radius * np.cos(angle), radius * np.sin(angle), 0.045, 0.045, middle)

    def butterfly(self, pen: Pen) -> None:
        color, spots, body = self.color(*BRIGHT), self.color(*BRIGHT), self.color(*DARK)
        for side in (-1, 1):
            for x, y, length, width, angle in ((0.52, 0.34, 0.42, 0.3, 0.9), (0.58, -0.3, 0.6, 0.36, -0.6)):
                pen.ellipse(side * x, y, length, width, darker(color, 0.4), side * angle)
                pen.ellipse(side * x, y, length * 0.84, width * 0.8, color, side * angle)
                pen.ellipse(side * x * 1.12, y * 1.2, length * 0.34, width * 0.4, spots, side * angle)
            pen.line([(0, -0.4), (side * 0.1, -0.7), (side * 0.3, -0.95)], body, 0.05)
            pen.ellipse(side * 0.3, -0.95, 0.05, 0.05, body)
        pen.ellipse(0, 0.05, 0.5, 0.1, body, np.pi / 2)
        pen.ellipse(0, -0.45, 0.13, 0.13, body)

    def snail(self, pen: Pen) -> None:
        color, shell = self.color(*BRIGHT), self.color(*BRIGHT)
        side = self.random.choice((-1, 1))
        pen.ellipse(side * 0.1, 0.6, 1.0, 0.18, color)
        pen.ellipse(side * 0.85, 0.3, 0.18, 0.4, color)
        for x, y in ((0.75, -0.45), (1.05, -0.4)):
            pen.line([(side * 0.88, 0.1), (side * x, y)], color, 0.07)
            pen.ellipse(side * x, y, 0.08, 0.08, darker(color, 0.4))
        pen.ellipse(-side * 0.12, -0.02, 0.68, 0.64, darker(shell, 0.5))
        pen.ellipse(-side * 0.12, -0.02, 0.62, 0.58, shell)
        angle = np.linspace(0, 5.5 * np.pi, 90)
        radius = 0.6 * angle / angle[-1]
        x, y = side * (radius * np.cos(angle) - 0.12), radius * np.sin(angle) - 0.02
        spiral = np.stack([x, y], axis=1)
        pen.line(spiral, darker(shell, 0.5), 0.07)


def darker(color: Color, share: float) -> Color:
    red, green, blue = (round(value * share) for value in color)
    return red, green, blue


def train(garden: Garden, count: int, epochs: int) -> Any:
    model = keras_tx.vit(
        "Mu/2",
        image_size=SIZE,
        patch_size=PATCH,
        num_classes=len(LABELS),
        width=64,
        depth=3,
        num_heads=4,
        mlp_dim=128,
    )
    images, labels = garden.images(count)
    images, held_out = np.split(model.processing(images), [count * 9 // 10])
    labels, held_out_labels = np.split(labels, [count * 9 // 10])
    images, labels = np.concatenate([images, images[:, :, ::-1]]), np.tile(labels, 2)  # and mirror images
    steps = -(-len(images) // BATCH) * epochs
    warmup = steps // 6
    rate = keras.optimizers.schedules.CosineDecay(
        LEARNING_RATE / 20, steps - warmup, warmup_target=LEARNING_RATE, warmup_steps=warmup
    )
    model.compile(optimizer=keras.optimizers.AdamW(rate))
    validation = held_out, held_out_labels
    model.fit(images, labels, validation_data=validation, epochs=epochs, batch_size=BATCH, verbose=2)
    return model


def draw_figures(folder: Path, name: str, image: Image.Image, out: Path) -> None:
    """The report of an image, and figures of its attention, from the exported folder."""
    image.save(out / f"{name}.png")
    write_report(folder, out / f"{name}.png", out / f"{name}.html")
    inspector = inspect(folder)
    grid = inspector.grid(image)
    (maps,) = inspector.class_token_maps(image)
    draw_maps(image, maps[0], masks=mass_threshold(maps[0]), columns=4, path=out / f"{name}_heads.png")
    points = [(grid.rows // 2, grid.columns // 2), (1, 1)]
    (to_points,) = inspector.reference_point_maps(image, points, layers=0)
    draw_reference_points(image, points, to_points[0].mean(axis=0), path=out / f"{name}_points.png")
    rollout = inspector.rollout(image)[0, 0, grid.prefix :].reshape(grid.rows, grid.columns)
    draw_overlay(image, rollout, path=out / f"{name}_rollout.png")


def draw_relevance(model: Any, image: Image.Image, labels: Sequence[str], path: Path) -> None:
    """The patches that are relevant for each of the labels; gradients need the Keras model."""
    inspector = inspect(model)
    maps = [inspector.relevance(image, target=LABELS.index(label))[0] for label in labels]
    draw_maps(image, maps, titles=[f"relevance for {label}" for label in labels], path=path)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, exports and draws; returns the validation accuracy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("drawings"))
    parser.add_argument("--count", type=int, default=COUNT, help=f"number of images (default: {COUNT})")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args(argv)
    started = time.perf_counter()

    keras.utils.set_random_seed(0)
    model = train(Garden(0), arguments.count, arguments.epochs)
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    print(export_onnx(model, out / "folder", labels=LABELS, overwrite=True))
    for name, (seed, objects) in DRAWINGS.items():
        image = Garden(seed).image(WIDTH * LARGE, HEIGHT * LARGE, objects)
        draw_figures(out / "folder", name, image, out)
        if len(objects) > 1:
            draw_relevance(model, image, [label for label, *_ in objects], out / f"{name}_relevance.png")
    print(f"{out}: {', '.join(f'{name}.html' for name in DRAWINGS)} are the reports.")
    accuracy = float(model.history.history["val_accuracy"][-1])
    minutes = (time.perf_counter() - started) / 60
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {keras.backend.backend()}"
    print(f"python {' '.join(sys.argv)}: {minutes:.1f} minutes on {machine}")
    print(f"validation accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
