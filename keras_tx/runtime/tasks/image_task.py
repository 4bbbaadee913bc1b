"""ImageTask, the base class of image tasks: pictures are transformed and run in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.processing import ImageTransform
from keras_tx.processing.image import Images
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe
from keras_tx.runtime.tasks.base import LoadedModel, check_outputs


class ImageTask(LoadedModel):
    """A graph with one image input, `pixel_values` or `pixels`, and the folder's image transform."""

    def __init__(self, folder: Folder, session: Session, outputs: tuple[str, ...]) -> None:
        """The output of the task is the first of `outputs` that the graph has."""
        super().__init__(folder, session)
        self.transform = _transform_of(folder, session)
        present = {spec.name for spec in session.outputs}
        self._output = next((name for name in outputs if name in present), outputs[0])
        check_outputs(folder, session, [self._output])

    @property
    def token_counter(self) -> Callable[[Any], int] | None:
        patch = (self.folder.config or {}).get("patch_size")
        if not isinstance(patch, int):
            return None
        count = (self.transform.height // patch) * (self.transform.width // patch)
        return lambda image: count

    def run_images(self, images: Images, batch_size: int) -> Iterator[np.ndarray]:
        """Yields the output for each image; the graph computes `batch_size` images together."""
        for outputs in self.run_outputs(images, batch_size):
            yield from outputs[self._output]

    def run_outputs(self, images: Images, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields all outputs for each batch of images."""
        name = self.session.inputs[0].name
        raw = name == contract.PIXELS
        for batch in self.transform.batches(images, batch_size, raw_pixels=raw):
            # (batch, height, width, channels) -> (batch, channels, height, width)
            pixels = batch if raw else np.ascontiguousarray(batch.transpose(0, 3, 1, 2))
            yield self.session.run({name: pixels})


def _transform_of(folder: Folder, session: Session) -> ImageTransform:
    transform = folder.transform
    if transform is None:
        raise FolderError(
            f"{folder.path / contract.MANIFEST}: files has no {contract.PREPROCESSOR}, which the task "
            f"{folder.manifest.task!r} needs. Export again."
        )
    height, width, channels = transform.height, transform.width, transform.channels
    expected = {
        contract.PIXEL_VALUES: ("float32", (channels, height, width)),
        contract.PIXELS: ("uint8", (height, width, channels)),
    }
    specs = session.inputs
    if len(specs) != 1 or specs[0].name not in expected:
        raise FolderError(
            f"{folder.path}: the graph has the inputs {', '.join(map(describe, specs)) or '(none)'}, "
            f"expected {' or '.join(expected)}. Export again."
        )
    dtype, shape = expected[specs[0].name]
    fits = len(specs[0].shape) == 4 and all(
        isinstance(axis, str) or axis == length
        for axis, length in zip(specs[0].shape[1:], shape, strict=True)
    )
    if specs[0].dtype != dtype or not fits:
        raise FolderError(
            f"{folder.path}: the graph has the input {describe(specs[0])}, but {contract.PREPROCESSOR} "
            f"produces {dtype} (batch, {', '.join(map(str, shape))}). Export again."
        )
    return transform
