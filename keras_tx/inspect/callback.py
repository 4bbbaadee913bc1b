"""InspectionCallback: figures of chosen inputs, drawn before training and at the ends of epochs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from PIL import Image

from keras_tx.atomic_write import write_file
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.inspect.attention import pooled_map
from keras_tx.inspect.figures.canvas import figure_bytes, require_matplotlib
from keras_tx.inspect.figures.curves import draw_attention_distance
from keras_tx.inspect.figures.images import draw_layers, draw_maps, draw_overlay
from keras_tx.inspect.figures.texts import draw_token_attention
from keras_tx.inspect.inspector import Inspector, inspect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Inspector, Any], "Figure"]


def draw_heads(inspector: Inspector, image: Any) -> Figure:
    """Draws the attention of the class token in the last layer."""
    (maps,) = inspector.class_token_maps(image)
    return draw_maps(image, maps[0], covered=inspector.grid(image).covered)


def draw_all_layers(inspector: Inspector, image: Any) -> Figure:
    """Draws the attention of the class token in all layers."""
    maps = inspector.class_token_maps(image, layers=None)
    return draw_layers(image, np.stack([layer[0] for layer in maps]))


def draw_rollout(inspector: Inspector, image: Any) -> Figure:
    """Draws attention rollout over the image: of the class token, or of the mean of the patches."""
    grid = inspector.grid(image)
    (weights,) = inspector.rollout(image)
    return draw_overlay(image, pooled_map(weights, grid), covered=grid.covered)


def draw_distances(inspector: Inspector, image: Any) -> Figure:
    """Draws the mean attention distance of each head, in pixels of the model's input."""
    return draw_attention_distance(inspector.attention_distances(image))


def draw_tokens(inspector: Inspector, text: Any) -> Figure:
    """Draws the attention of the last layer, a map per head."""
    (weights,) = inspector.attention(text, layers=-1)
    (tokens,), (mask,) = inspector.tokens_and_mask(text)
    shown = [token for token, is_shown in zip(tokens, mask, strict=True) if is_shown]
    return draw_token_attention(weights[0][:, mask][:, :, mask], shown)


# Name: the kind of inputs, and the function.
FIGURES: dict[str, tuple[str, Draw]] = {
    "heads": ("image", draw_heads),
    "layers": ("image", draw_all_layers),
    "rollout": ("image", draw_rollout),
    "distance": ("image", draw_distances),
    "tokens": ("text", draw_tokens),
}


class InspectionCallback(keras.callbacks.Callback):
    """Draws figures of chosen inputs before training and at the ends of epochs, into files and TensorBoard.

    A figure is one of these names, or a function `draw(inspector, input)` that returns a matplotlib figure:

    | name | inputs | figure |
    | --- | --- | --- |
    | "heads" | images | attention of the class token in the last layer, a map per head |
    | "layers" | images | attention of the class token in all layers, a small map per head |
    | "rollout" | images | attention rollout with residual connections, over the image |
    | "distance" | images | mean attention distance of each head, in pixels |
    | "tokens" | texts | attention of the last layer, a map per head |

    Files are `FOLDER/epoch_0001/NAME_0.png`: the number of epochs, 0 before training, the name of the figure
    or function, and the index of the input. Existing files are replaced.

    Args:
        inputs: an image or text, or a list of them, as for `Inspector.attention`.
        figures: names and functions.
        folder: folder of the PNG files; it is created.
        every: number of epochs between figures.
        tensorboard: log folder of TensorBoard, to which the figures are written as images; None writes none.

    Raises:
        ConfigError: if an argument is not valid. Before the first batch, if a figure does not fit the model.
        ModuleNotFoundError: if matplotlib is not installed.

    Example:

    >>> from keras_tx.inspect import InspectionCallback
    >>> callback = InspectionCallback(["rose.jpg"], figures=["heads"], folder="figures", every=5)
    >>> model.fit(images, labels, epochs=20, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(
        self,
        inputs: Any,
        figures: Sequence[str | Draw] = ("heads",),
        folder: str | os.PathLike[str] = "figures",
        *,
        every: int = 1,
        tensorboard: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        require_matplotlib()
        self.inputs = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not self.inputs:
            raise ConfigError("inputs is empty. Pass an image or a text, or a list of them.")
        self.figures = _drawings(figures)
        self.every = whole_number("every", every)
        self.folder = _folder("folder", folder)
        self.tensorboard = None if tensorboard is None else _folder("tensorboard", tensorboard)
        self._inspector: Inspector | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._inspector = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._inspector is None:  # the first epoch of this call of fit
            self._inspector = inspect(self.model)
            self._check_names(self._inspector)
            self._draw(self._inspector, epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self.every == 0:
            assert self._inspector is not None
            self._draw(self._inspector, epoch + 1)

    def _check_names(self, inspector: Inspector) -> None:
        for name in self.figures:
            kind, _ = FIGURES.get(name, (inspector.kind, None))
            if kind != inspector.kind:
                fitting = [repr(one) for one, (its, _) in FIGURES.items() if its == inspector.kind]
                raise ConfigError(
                    f"figures has {name!r}, which is for {kind}s, but model {inspector.name!r} accepts "
                    f"{inspector.kind}s. Pass {', '.join(fitting) or 'a function'}."
                )

    def _draw(self, inspector: Inspector, epochs: int) -> None:
        _ = self.model  # with JAX, this copies the state of the training loop into the variables
        drawn = [
            (name, index, draw(inspector, one))
            for name, draw in self.figures.items()
            for index, one in enumerate(self.inputs)
        ]
        folder = self.folder / f"epoch_{epochs:04}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, index, figure in drawn:
            png = figure_bytes(figure, "png")
            write_file(folder / f"{name}_{index}.png", png, ConfigError)
            if self.tensorboard is not None:
                write_summary(self.tensorboard, f"{name}/{index}", png, epochs)


def write_summary(folder: Path, tag: str, png: bytes, step: int) -> None:
    """Writes an image to an event file of TensorBoard, as tf.summary.image does, which needs TensorBoard."""
    import tensorflow as tf

    with Image.open(io.BytesIO(png)) as image:
        width, height = image.size
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "images"})
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        tf.summary.write(tag, tf.constant([str(width), str(height), png]), step, metadata)
    writer.close()


def _drawings(figures: Sequence[Any]) -> dict[str, Draw]:
    """The functions by name."""
    if isinstance(figures, str) or not isinstance(figures, Sequence) or not figures:
        raise ConfigError(f"figures is {figures!r}, expected a list of names and functions.")
    drawings: dict[str, Any] = {}
    for one in figures:
        if isinstance(one, str) and one not in FIGURES:
            raise ConfigError(f"figures has {one!r}, which is unknown. {nearest(one, FIGURES)}")
        if not isinstance(one, str) and not callable(one):
            raise ConfigError(f"figures has {one!r}, expected names and functions.")
        name = one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__)
        if not name.isidentifier() or name in drawings:
            raise ConfigError(f"figures has the name {name!r} twice, or it is not a valid name of a file.")
        drawings[name] = FIGURES[name][1] if isinstance(one, str) else one
    return drawings


def _folder(name: str, value: str | os.PathLike[str]) -> Path:
    """The path of a folder that can be created, or exists."""
    path = Path(value)
    existing = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{name} is {str(path)!r}, but {existing} is not a folder that can be written.")
    return path
