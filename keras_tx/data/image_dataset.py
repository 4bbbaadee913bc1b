"""Batches of images and labels: from a folder, a table, or paths and arrays."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.image_cache import MEMORY, CachedReader
from keras_tx.data.image_crop import check_crop
from keras_tx.data.image_list import ImageList, list_folder, list_images, list_table
from keras_tx.data.image_reader import ImageReader, default_workers, report_broken
from keras_tx.data.label_column import label_cells
from keras_tx.data.table_file import TableFile
from keras_tx.errors import ConfigError, ImageError, true_or_false, user_stacklevel, whole_number
from keras_tx.processing import ImageTransform

Augment = Callable[..., tuple[Any, Any]]
AHEAD = 4  # batches that are prepared in advance


class ImageBatches(Batches):
    """Batches of normalized images (batch, height, width, channels) and labels.

    `image_folder`, `image_table` and `image_batches` return them. Files are read when their batch is
    requested. Order, crops and augmentation depend only on the seed, the epoch and the index of the batch.

    Attributes:
        labels: the names of the classes, in order; None if they have none. `fit` checks that the model has
            the same, or sets them if its head has none, so that the exported folder contains them.
        skipped: the reasons why images were left out, by path; empty without `skip_broken=True`.
    """

    def __init__(
        self,
        images: ImageList,
        processing: ImageTransform,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        crop: tuple[float, float] | None,
        augment: Augment | None,
        reduced_decoding: bool,
        cache: str | os.PathLike[str] | None,
        skip_broken: bool,
        workers: int,
        max_queue_size: int,
    ):
        self.skip_broken = skip_broken
        self.processing, self.crop, self.augment = processing, crop, augment
        self.reduced_decoding = reduced_decoding
        self.cached = cache is not None  # which changes crops
        self._passes_random = augment is not None and _accepts_random(augment)
        options: dict[str, Any] = {"crop": crop, "reduced_decoding": reduced_decoding, "workers": workers}
        reader: Any = ImageReader(images, processing, **options)
        if cache is not None:
            reader = CachedReader(reader, cache, skip_broken)
            broken, rest = reader.broken, reader.images
        elif broken := reader.check_headers():
            report_broken(broken, len(images), skip_broken)
            rest = images.without(list(broken))
            reader = ImageReader(rest, processing, **options)
        else:
            rest = images
        self.skipped = {images.images[row]: reason for row, reason in broken.items()}
        self.images, self._reader, self.labels = rest, reader, rest.labels
        super().__init__(
            self._prepare,
            np.ones(len(rest)),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            workers=2,  # these wait for the threads that read images
            max_queue_size=max_queue_size,
        )

    def tf_data(self) -> Any:
        """Returns a tf.data.Dataset of the same batches, prefetched; each pass over it is an epoch."""
        import tensorflow as tf

        shape = (None, self.processing.height, self.processing.width, self.processing.channels)
        data = super().tf_data().map(lambda images, targets: (tf.ensure_shape(images, shape), targets))
        return self.named(data)

    def _prepare(self, rows: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        """The images and labels of a batch; one generator per image, so that threads do not matter."""
        generators = random.spawn(len(rows))
        results = list(self._reader.map(self._read, rows.tolist(), generators))
        rows = np.array([row for row, pixels in zip(rows, results, strict=True) if pixels is not None], int)
        if not len(rows):
            raise ImageError("No image of a batch can be read. Repair the images.")
        pixels = np.stack([pixels for pixels in results if pixels is not None])
        targets = self.images.targets[rows]
        if self.augment is not None:
            more = (random,) if self._passes_random else ()
            pixels, targets = self.augment(pixels, targets, *more)
            pixels, targets = _as_array(pixels), keras.tree.map_structure(_as_array, targets)
            _check_augmented(pixels, (len(rows), self.processing.height, self.processing.width))
        return self.processing.normalize(pixels), targets

    def _read(self, row: int, random: np.random.Generator) -> np.ndarray | None:
        try:
            return self._reader.read(row, random)
        except ImageError as error:
            if not self.skip_broken:
                raise ImageError(f"{error} With skip_broken=True such images are left out.") from error
            path = self.images.images[row]
            if path not in self.skipped:
                self.skipped[path] = str(error)
                warnings.warn(
                    f"An image is left out ({len(self.skipped)} of {len(self.images):,} so far): {error}",
                    stacklevel=user_stacklevel(),
                )
            return None

    def fingerprint(self) -> dict[str, Any]:
        content = {
            "processing": dataclasses.asdict(self.processing),
            "crop": self.crop,
            "augment": None if self.augment is None else _described(self.augment),
            "reduced_decoding": self.reduced_decoding,
            "cached": self.cached,
        }
        return {**super().fingerprint(), **json.loads(json.dumps(content))}

    def contents(self) -> Iterator[np.ndarray]:
        yield np.frombuffer(self.images.digest().encode(), "uint8")  # images are not read


def image_folder(
    path: str | os.PathLike[str],
    processing: ImageTransform,
    *,
    labels: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Returns batches of the images of a folder with one subfolder per class.

    The names of the subfolders are the labels, in alphabetical order. Hidden files are ignored; files that
    do not have the suffix of an image are left out with a warning.

    Images are prepared as in the exported folder, by `processing`.

    Args:
        path: the folder.
        processing: `model.processing`, or an ImageTransform.
        labels: the names of the classes, in order; for a second folder, such as validation data, pass
            `train.labels`.
        options: options of `image_batches`.

    Returns:
        As `image_batches`.

    Raises:
        ConfigError: an argument is out of range, or the folder has another layout.
        ImageError: images cannot be read; the message names them with the reason.

    Example:

    >>> import keras_tx as tx
    >>> processing = tx.ImageTransform(224)
    >>> train, validation = tx.image_folder(
    ...     "photos", processing, validation_split=0.2
    ... )  # doctest: +SKIP
    >>> model = tx.vit("S/16", num_classes=len(train.labels), processing=processing)  # doctest: +SKIP
    >>> model.compile()  # doctest: +SKIP
    >>> model.fit(train, validation_data=validation, epochs=10)  # doctest: +SKIP
    """
    return _batches(list_folder(path, labels), processing, **options)


def image_table(
    path: str | os.PathLike[str],
    processing: ImageTransform,
    *,
    image: str,
    label: str,
    labels: Sequence[str] | None = None,
    separator: str | None = None,
    regression: bool | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    quotes: bool = True,
    **options: Any,
) -> Any:
    """Returns batches of the images of a CSV, TSV or JSON Lines file.

    Labels are read as by `text_table`: names of classes, several names per row for a MultiLabelHead, or
    numbers for a RegressionHead.

    Args:
        path: path of a file whose name ends in .csv, .tsv, .jsonl or .ndjson. Paths of images are relative to
            its folder.
        processing: as for `image_folder`.
        image: the column of the paths.
        label: the column of the labels.
        labels, separator, regression, columns, encoding, quotes: as for `text_table`.
        options: options of `image_batches`. `skip_broken=True` also leaves out rows without a path or a
            label.

    Returns:
        As `image_batches`.

    Raises:
        ConfigError: an argument is out of range.
        TextError: the file cannot be read, does not have a column, or has broken rows; the message contains
            their lines.
        ImageError: images cannot be read; the message names them with the reason.
    """
    cells = label_cells(label, labels, separator, regression)
    assert cells is not None
    skip_broken = true_or_false("skip_broken", options.get("skip_broken", False))
    file = TableFile(Path(path), columns, encoding, quotes)
    return _batches(list_table(file, image, cells, skip_broken=skip_broken), processing, **options)


def image_batches(
    images: Any,
    labels: Any,
    processing: ImageTransform,
    *,
    classes: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Returns batches of images and labels, from a list of paths or from an array.

    Args:
        images: paths, or a uint8 array (count, height, width, channels).
        labels: one label per image: the name or number of its class, or numbers for other heads.
        processing: as for `image_folder`.
        classes: the names of the classes, in order.
        batch_size: images per batch.
        validation_split: the share of the images of each class that is held out; see Returns. A class with
            a single image is not.
        crop: smallest and largest area of random crops, as fractions of the image, such as (0.08, 1.0) of
            DeiT, with aspect ratios of 3/4 to 4/3. None uses whole images.
        augment: a function of images (batch, height, width, channels), uint8 pixels before normalization, and
            labels, which returns both with values of 0..255. With a third parameter, it receives a
            seeded numpy.random.Generator, so that training can be resumed exactly.
        reduced_decoding: whether JPEG files are decoded at 1/2, 1/4 or 1/8 of their size if at least twice
            the size of the result is left. This is faster, and most pixels differ by at most 1 of 255 from
            those of the exported folder. The held-out part is always decoded exactly.
        cache: "memory" or True keeps prepared uint8 images in memory (at most 4 GiB). A path keeps them in a
            folder that is memory-mapped, and rewritten if the images or options change; the held-out
            part has a second folder, `<path>.validation`. With `crop`, whole images of twice the height and
            width are cached, and crops of less than a quarter of the image are enlarged.
        skip_broken: whether images that cannot be read are left out with a warning, and listed in `skipped`.
            By default, they raise an error.
        shuffle: whether images are shuffled in each epoch; pass False for validation.
        seed: seed of order, crops, augmentation and split.
        workers: number of threads that read images; by default one per core.
        max_queue_size: batches that are prepared in advance.

    Returns:
        ImageBatches; with `validation_split`, a pair of them for training and validation. Validation images
        are not shuffled, cropped or augmented. The split depends on the seed and the names of the images, so
        it hardly changes when images are added, and images with the same path are in the same part.

    Raises:
        ConfigError: an argument is out of range, or the images have another layout.
        ImageError: images cannot be read; the message names them with the reason.
    """
    return _batches(list_images(images, labels, classes), processing, **options)


def _batches(
    images: ImageList,
    processing: ImageTransform,
    *,
    batch_size: int = 32,
    validation_split: float | None = None,
    crop: tuple[float, float] | None = None,
    augment: Augment | None = None,
    reduced_decoding: bool = False,
    cache: bool | str | os.PathLike[str] | None = None,
    skip_broken: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    max_queue_size: int = AHEAD,
) -> Any:
    if not isinstance(processing, ImageTransform):
        raise ConfigError(
            f"processing is a {type(processing).__name__}, expected an ImageTransform. Pass model.processing."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed is {seed!r}, expected a whole number, 0 or more.")
    if augment is not None and not callable(augment):
        raise ConfigError(f"augment is {augment!r}, expected a function of images and labels.")
    path = _cache_path(cache)
    common: dict[str, Any] = {
        "seed": seed,
        "skip_broken": true_or_false("skip_broken", skip_broken),
        "workers": default_workers() if workers is None else whole_number("workers", workers),
        "max_queue_size": whole_number("max_queue_size", max_queue_size),
    }
    training: dict[str, Any] = {
        "shuffle": true_or_false("shuffle", shuffle),
        "crop": None if crop is None else check_crop(crop),
        "augment": augment,
        "reduced_decoding": true_or_false("reduced_decoding", reduced_decoding),
        "cache": path,
    }
    batch_size = whole_number("batch_size", batch_size)
    if validation_split is None:
        return ImageBatches(images, processing, batch_size, **training, **common)
    train, held_out = images.split(validation_split, seed)
    exact: dict[str, Any] = {
        "shuffle": False,
        "crop": None,
        "augment": None,
        "reduced_decoding": False,
        "cache": f"{path}.validation" if path not in (None, MEMORY) else path,
    }
    return (
        ImageBatches(train, processing, batch_size, **training, **common),
        ImageBatches(held_out, processing, batch_size, **exact, **common),
    )


def _cache_path(cache: Any) -> str | None:
    if cache is None or cache is False:
        return None
    if cache is True:
        return MEMORY
    if not isinstance(cache, str | os.PathLike) or not os.fspath(cache):
        raise ConfigError(f"cache is {cache!r}, expected 'memory' or the path of a folder.")
    return os.fspath(cache)


def _accepts_random(augment: Augment) -> bool:
    """Whether a function has a third parameter."""
    try:
        parameters = inspect.signature(augment).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 2 or any(x.kind == x.VAR_POSITIONAL for x in parameters)


def _described(augment: Any) -> str:
    if dataclasses.is_dataclass(augment):
        return repr(augment)
    return getattr(augment, "__qualname__", type(augment).__qualname__)


def _as_array(value: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else np.asarray(value)


def _check_augmented(pixels: np.ndarray, shape: tuple[int, ...]) -> None:
    if pixels.shape[:3] != shape or pixels.dtype.kind not in "uf":
        raise ConfigError(
            f"augment returned images {pixels.shape} of {pixels.dtype}, expected {(*shape, 'channels')} with "
            "values of 0..255. Return the images and the labels."
        )
    if pixels.dtype == np.uint8:
        return
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -0.5 and high <= 255.5):
        raise ConfigError(
            f"augment returned values from {low:g} to {high:g}, expected 0..255. Clip them; they are "
            "normalized afterwards."
        )
