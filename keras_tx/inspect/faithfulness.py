"""Deletion and insertion: whether the elements that an explanation ranks first change the score most."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.inspect.attribution import Predict, Predictor, split_batches
from keras_tx.inspect.decision import decision_mask
from keras_tx.progress_bar import ProgressBar


@dataclasses.dataclass(frozen=True)
class FaithfulnessCurve:
    """Scores while elements of the input are deleted or inserted.

    Attributes:
        shares: the share of changed elements (steps + 1,), from 0 to 1.
        scores: the score of each example (batch, steps + 1).
    """

    shares: np.ndarray
    scores: np.ndarray

    @property
    def area(self) -> np.ndarray:
        """The area under the curve of each example (batch,)."""
        return np.trapezoid(self.scores, self.shares, axis=1)


class Faithfulness:
    """Deletion and insertion scores of explanations of the same decisions (RISE; Petsiuk et al., 2018).

    Args:
        predict: a Keras model, or any function of inputs to outputs. Areas are comparable between models if
            the outputs are probabilities.
        inputs: an array, or a dict of arrays.
        target: index of the explained class, or one for each example; by default the one with the highest
            score.
        mask: booleans in the shape of the attributions, false for elements that remain, such as padding.
        steps: number of changes from the inputs to the baseline.
        position: of an output for each token, the explained position; by default the last one that is not
            padding.
        output: name of the explained output; by default the only one, or "logits".
        name: of the changed array, if the inputs are a dict; by default "input_ids".
        batch_size: number of inputs that `predict` computes at once.
        progress: whether to show a progress bar.

    Raises:
        ConfigError: for an unknown output or target.

    Example:

    >>> weights = np.array([[0.25], [0.5], [0.25]])
    >>> faithfulness = Faithfulness(lambda x: x @ weights, np.ones((1, 3)), steps=3)
    >>> curve = faithfulness.deletion(weights.T)
    >>> curve.scores, curve.area.round(4)
    (array([[1.  , 0.5 , 0.25, 0.  ]]), array([0.4167]))
    """

    def __init__(
        self,
        predict: Predict,
        inputs: Any,
        target: Any = None,
        *,
        mask: Any = None,
        steps: int = 20,
        position: Any = None,
        output: str | None = None,
        name: str | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> None:
        self.steps = whole_number("steps", steps)
        self.batch_size = whole_number("batch_size", batch_size)
        self.progress = progress
        self.mask = None if mask is None else np.asarray(mask, bool)
        self._predictor = Predictor(predict, inputs, name, output)
        outputs = self._predictor.predict(self._predictor.array)
        self._decision = decision_mask(outputs, target, position, self._predictor.inputs)

    def deletion(self, attribution: Any, baseline: Any = 0.0) -> FaithfulnessCurve:
        """Computes the score while the elements with the highest attribution are deleted first.

        A better explanation has a smaller area.

        Args:
            attribution: array with the first axes of the inputs, such as (batch, height, width) or (batch,
                tokens). A map of patches (batch, rows, columns) is enlarged to the image.
            baseline: the value of deleted elements: a number, or an array that broadcasts to the inputs. For
                token ids that of the mask or padding token.

        Returns:
            A FaithfulnessCurve. Its first score is that of the inputs, its last that of the baseline.

        Raises:
            ConfigError: if the attribution does not fit the inputs.
        """
        return self._curve(attribution, baseline, inserted=False)

    def insertion(self, attribution: Any, baseline: Any = 0.0) -> FaithfulnessCurve:
        """Computes the score while the elements with the highest attribution are inserted first.

        A better explanation has a larger area.

        Args:
            attribution: as for `deletion`.
            baseline: the value of elements that are not yet inserted; in RISE, `blur(images)`.

        Returns:
            A FaithfulnessCurve. Its first score is that of the baseline, its last that of the inputs.

        Raises:
            ConfigError: if the attribution does not fit the inputs.
        """
        return self._curve(attribution, baseline, inserted=True)

    def _curve(self, attribution: Any, baseline: Any, inserted: bool) -> FaithfulnessCurve:
        array = self._predictor.array
        _check_covered(getattr(self._predictor.function, "config", None), np.shape(attribution))
        ranks, sizes = _ranks(_enlarged(np.asarray(attribution), array.shape), self.mask)
        base = self._predictor.baseline(baseline)
        shares = np.arange(self.steps + 1) / self.steps
        scores = np.zeros((len(array), self.steps + 1))
        pairs = np.array(list(itertools.product(range(len(array)), range(self.steps + 1))))
        with ProgressBar(len(pairs), "inputs", shown=self.progress) as bar:
            for chunk in split_batches(pairs, self.batch_size):
                row, step = chunk.T
                count = np.rint(shares[step] * sizes[row])
                changed = ranks[row] < count.reshape(-1, *[1] * (ranks.ndim - 1))
                is_input = changed == inserted
                if self.mask is not None:
                    is_input |= ~self.mask[row]
                is_input = is_input.reshape(*is_input.shape, *[1] * (array.ndim - is_input.ndim))
                predicted = self._predictor.predict(np.where(is_input, array[row], base[row]), row)
                scores[row, step] = predicted[self._decision[row]]
                bar.advance(len(chunk))
        return FaithfulnessCurve(shares, scores)


def _check_covered(config: Any, shape: tuple[int, ...]) -> None:
    """Raises a ConfigError for a map of patches that do not cover the images of a model."""
    if not getattr(config, "drop_remainder", False) or shape[1:] != config.grid:
        return
    if tuple(np.multiply(config.grid, config.patch)) != config.size:
        raise ConfigError(
            f"attribution has the shape {shape}, a value for each patch, but the patches do not cover the "
            f"images of {config.size}. Pass maps of enlarge_map(map, {config.size}, smooth=False, "
            "covered=grid.covered)."
        )


def _enlarged(attribution: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The attribution with the first axes of the inputs: a map of patches is repeated for each pixel."""
    expected = shape[: attribution.ndim]
    if attribution.ndim < 2 or attribution.ndim > len(shape) or attribution.shape[0] != shape[0]:
        expected = ()
    factors = [
        whole // part if whole % part == 0 else 0
        for whole, part in zip(expected, attribution.shape, strict=False)
    ]
    if not factors or 0 in factors:
        raise ConfigError(
            f"attribution has the shape {attribution.shape}, which does not fit inputs of shape {shape}. "
            "Expected the first axes of the inputs, or axes that divide them."
        )
    for axis, factor in enumerate(factors):
        attribution = np.repeat(attribution, factor, axis=axis)
    return attribution


def _ranks(attribution: np.ndarray, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each element from the highest attribution, and the number of ranked elements per row."""
    flat = attribution.reshape(len(attribution), -1)
    if not np.isfinite(flat).all():
        raise ConfigError("attribution has values that are not finite.")
    flat = -flat.astype("float64")
    sizes = np.full(len(flat), flat.shape[1])
    if mask is not None:
        mask = np.asarray(mask, bool)
        if mask.shape != attribution.shape:
            raise ConfigError(f"mask has the shape {mask.shape}, expected {attribution.shape}.")
        flat = np.where(mask.reshape(flat.shape), flat, np.inf)
        sizes = mask.reshape(flat.shape).sum(axis=1)
    ranks = np.empty(flat.shape, "int64")
    order = flat.argsort(axis=1, kind="stable")
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(flat.shape[1]), flat.shape), axis=1)
    return ranks.reshape(attribution.shape), sizes


def blur(images: Any, sigma: float = 5.0) -> np.ndarray:
    """Blurs images with a Gaussian kernel, as the baseline of `insertion`.

    Args:
        images: array (batch, height, width, channels).
        sigma: standard deviation of the kernel in pixels; 5 in RISE. The kernel is truncated at three
            standard deviations, and the image is padded by reflection.

    Returns:
        A float32 array of the same shape.

    Raises:
        ConfigError: for another shape or a sigma that is not positive.

    Example:

    >>> bool(np.allclose(blur(np.ones((1, 8, 8, 3))), 1))
    True
    """
    images = np.asarray(images, "float64")
    if images.ndim != 4 or sigma <= 0:
        raise ConfigError(
            f"images has the shape {images.shape} and sigma is {sigma}, expected (batch, height, width, "
            "channels) and a positive number."
        )
    reach = int(np.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (1, 2):
        margin = [(reach, reach) if i == axis else (0, 0) for i in range(4)]
        padded = np.pad(images, margin, mode="symmetric")
        size = images.shape[axis]
        images = sum(
            weight * np.take(padded, range(start, start + size), axis=axis)
            for start, weight in enumerate(kernel)
        )
    return images.astype("float32")
