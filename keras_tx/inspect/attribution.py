"""Attribution of a decision to the inputs: integrated gradients and occlusion."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError, whole_number
from keras_tx.inspect.decision import complete_inputs, decision_mask, masked_sum, named_output
from keras_tx.inspect.gradients import find_layer, flatten_layers, gradients, intercept_calls, record_calls
from keras_tx.inspect.graph_evaluation import as_float32
from keras_tx.progress_bar import ProgressBar

Predict = Callable[[Any], Any]
INCOMPLETE = 0.1  # share of an error that is warned of
TINY = 0.01  # share of the scores; of a smaller difference, it is the error's scale


@dataclasses.dataclass(frozen=True)
class IntegratedGradients:
    """Integrated gradients of a batch.

    Attributes:
        values: the attribution of each element, in the shape of the inputs or of the layer's output; a list
            if there are several tensors.
        scores: the explained score of each example (batch,).
        baseline_scores: the score of each baseline (batch,).
    """

    values: Any
    scores: np.ndarray
    baseline_scores: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """The sum of the attributions minus the difference of the scores (batch,).

        It is 0 for exact integrals (the axiom of completeness). If it is not small, increase `steps`.
        """
        parts = self.values if isinstance(self.values, list) else [self.values]
        total = np.sum([x.reshape(len(x), -1).sum(axis=1, dtype="float64") for x in parts], axis=0)
        return total - (self.scores.astype("float64") - self.baseline_scores)


def integrated_gradients(
    model: Any,
    inputs: Any,
    target: Any = None,
    *,
    position: Any = None,
    output: str | None = None,
    layer: str | None = None,
    baseline: Any = 0.0,
    steps: int = 50,
    batch_size: int = 4,
    progress: bool = False,
) -> IntegratedGradients:
    """Computes integrated gradients (Sundararajan et al., 2017) of a Keras model.

    The gradient of the score is integrated on the straight line from the baseline to the input, and
    multiplied by their difference. The integral is a Gauss-Legendre sum, as in captum. A UserWarning is
    issued if it is not accurate, so that the attributions do not sum to the difference of the scores.

    Args:
        model: any Keras model; it runs in inference mode.
        inputs: inputs of the model: an array, a list or a dict of arrays.
        target: index of the explained class or token, or one for each example; by default the one with the
            highest score.
        position: of a model with an output for each token, the explained position; by default the last one
            that is not padding.
        output: name of the explained output; by default the only one, or "logits".
        layer: name of a layer, whose output is attributed; by default the float inputs, or the output of the
            token embedding if all inputs are integers.
        baseline: a number, or an array that broadcasts to the attributed tensor; a list for several, with
            None for a tensor that does not change. Llama and T5 normalize token vectors first, so that a
            vector near 0 has a large gradient: pass the embedding of a token as the baseline.
        steps: number of points on the line.
        batch_size: number of points that the model computes at once; a ViT-B/16 needs 0.5 GB for each.
        progress: whether to show a progress bar.

    Returns:
        An IntegratedGradients.

    Raises:
        ConfigError: for an unknown layer, output or target, or inputs that have no gradient.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    >>> integrated_gradients(model, np.array([[1.0, 3.0]], "float32")).values.round(4)
    array([[1., 3.]], dtype=float32)
    """
    import keras

    whole_number("steps", steps)
    whole_number("batch_size", batch_size)
    inputs = keras.tree.map_structure(np.asarray, complete_inputs(model, inputs))
    attributed = _AttributedTensors(model, inputs, layer)
    outputs = as_float32(named_output(model(inputs, training=False), output))
    mask = decision_mask(outputs, target, position, inputs)
    ends = attributed.values()
    starts = _baselines(baseline, ends)
    rows = len(mask)
    alphas, weights = np.polynomial.legendre.leggauss(steps)
    alphas, weights = (alphas + 1) / 2, weights / 2  # from -1..1 to 0..1
    totals = [np.zeros(end.shape) for end in ends]

    pairs = np.array(list(itertools.product(range(rows), range(steps))))
    with ProgressBar(len(pairs), "gradients", shown=progress) as bar:
        for chunk in split_batches(pairs, batch_size):
            row, step = chunk.T
            points = []
            for start, end in zip(starts, ends, strict=True):
                alpha = alphas[step].reshape(-1, *[1] * (end.ndim - 1))
                points.append((start[row] + alpha * (end[row] - start[row])).astype(end.dtype))
            _, computed = gradients(
                lambda *x, row=row: masked_sum(attributed.run(x, row, output), mask[row]), points
            )
            for total, gradient in zip(totals, computed, strict=True):
                share = weights[step].reshape(-1, *[1] * (gradient.ndim - 1))
                np.add.at(total, row, share * gradient)
            bar.advance(len(chunk))
    values = [
        (total * (end - start)).astype("float32")
        for total, start, end in zip(totals, starts, ends, strict=True)
    ]
    baseline_scores = [
        as_float32(attributed.run([start[row] for start in starts], row, output))[mask[row]]
        for row in split_batches(np.arange(rows), batch_size)
    ]
    computed = IntegratedGradients(
        values[0] if len(values) == 1 else values,
        outputs[mask],
        np.concatenate(baseline_scores),
    )
    _check_complete(computed)
    return computed


def _check_complete(computed: IntegratedGradients) -> None:
    """Warns about the example with the largest error, if this error is large."""
    difference = computed.scores - computed.baseline_scores
    least = TINY * (np.abs(computed.scores) + np.abs(computed.baseline_scores) + 1e-6)
    shares = np.abs(computed.error) / np.maximum(np.abs(difference), least)
    row = int(shares.argmax())
    if shares[row] > INCOMPLETE:
        warnings.warn(
            f"The integrated gradients of example {row} sum to {difference[row] + computed.error[row]:.3g}, "
            f"but the scores differ by {difference[row]:.3g}. Increase steps, or pass another baseline.",
            stacklevel=3,
        )


class _AttributedTensors:
    """The tensors between which integrated gradients interpolate, and the model as a function of them."""

    def __init__(self, model: Any, inputs: Any, layer: str | None) -> None:
        import keras

        self.tree = keras.tree
        self.model = model
        self.inputs = inputs
        self.flat = keras.tree.flatten(inputs)
        self.is_float = [x.dtype.kind == "f" for x in self.flat]
        layers: list[Any] = []
        if layer is not None:
            layers = [find_layer(model, layer)]
        elif not any(self.is_float):
            layers = _token_embeddings(model)
        self.points = [(layer, "call") for layer in layers]

    def values(self) -> list[np.ndarray]:
        """The attributed tensors of the inputs."""
        if not self.points:
            return [x for x, is_float in zip(self.flat, self.is_float, strict=True) if is_float]
        recorded = record_calls(lambda: self.model(self.inputs, training=False), self.points)
        return [value for _, value in recorded]

    def run(self, points: Sequence[Any], row: np.ndarray, output: str | None) -> Any:
        """The output of the model for rows of the inputs, with other attributed tensors."""
        from keras import ops

        def rows_of(x: np.ndarray) -> Any:
            return ops.convert_to_tensor(x[row])

        remaining = iter(points)
        if not self.points:
            flat = [
                ops.convert_to_tensor(next(remaining)) if is_float else rows_of(x)
                for x, is_float in zip(self.flat, self.is_float, strict=True)
            ]
            inputs = self.tree.pack_sequence_as(self.inputs, flat)
            return named_output(self.model(inputs, training=False), output)
        rows = self.tree.map_structure(rows_of, self.inputs)
        with intercept_calls(self.points, lambda _, x: ops.cast(next(remaining), x.dtype)):
            return named_output(self.model(rows, training=False), output)


def _token_embeddings(model: Any) -> list[Any]:
    """The first layers that look up vectors of token ids."""
    import keras

    from keras_tx.layers import TokenEmbedding

    layers = [
        layer
        for layer in flatten_layers(model)
        if isinstance(layer, TokenEmbedding | keras.layers.Embedding) and "position" not in layer.name
    ]
    if len(layers) > 1:  # those of token types, for example
        layers = [layer for layer in layers if "token_embedding" in layer.name] or layers
    if len(layers) != 1:
        names = [layer.name for layer in layers]
        remedy = "Pass layer=, the name of the layer whose output is attributed"
        if not layers:
            remedy = "Pass images and other numbers as floats, inputs.astype('float32')"
        raise ConfigError(
            f"The inputs are integers, which have no gradient, and the model has {len(layers)} token "
            f"embeddings {names}. {remedy}."
        )
    return layers


def _baselines(baseline: Any, ends: list[np.ndarray]) -> list[np.ndarray]:
    baselines = baseline if isinstance(baseline, list | tuple) else [baseline] * len(ends)
    if len(baselines) != len(ends):
        raise ConfigError(f"baseline has {len(baselines)} arrays, but {len(ends)} tensors are attributed.")
    starts = []
    for start, end in zip(baselines, ends, strict=True):
        start = end if start is None else np.asarray(start, end.dtype)
        try:
            starts.append(np.broadcast_to(start, end.shape))
        except ValueError:
            raise ConfigError(
                f"baseline has the shape {start.shape}, which does not broadcast to that of the attributed "
                f"tensor, {end.shape}."
            ) from None
    return starts


def occlusion(
    predict: Predict,
    inputs: Any,
    target: Any = None,
    *,
    window: int | tuple[int, ...],
    stride: int | tuple[int, ...] | None = None,
    baseline: Any = 0.0,
    position: Any = None,
    output: str | None = None,
    name: str | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> np.ndarray:
    """Computes the decrease of a score if a window of the input is occluded (Zeiler and Fergus, 2014).

    The attribution of an element is the mean difference over the windows that contain it, as in captum.

    Args:
        predict: a Keras model, or any function of inputs to outputs.
        inputs: an array (batch, tokens), (batch, height, width, channels) or similar, or a dict of arrays.
        target: index of the explained class or token, or one for each example; by default the one with the
            highest score.
        window: size of the window on the axes after the batch, such as (16, 16) for images, whose channels
            are occluded together. An integer is for all axes except the channels.
        stride: distance between windows; by default `window`.
        baseline: the value in the window: a number, or an array that broadcasts to the inputs. For token ids
            the id of the mask or padding token.
        position: of an output for each token, the explained position; by default the last one that is not
            padding.
        output: name of the explained output; by default the only one, or "logits".
        name: of the occluded array, if the inputs are a dict; by default "input_ids".
        batch_size: number of occluded inputs that `predict` computes at once.
        progress: whether to show a progress bar.

    Returns:
        A float32 array (batch, ...) with the axes of the window.

    Raises:
        ConfigError: for a window or stride that does not fit the inputs, or an unknown output or target.

    Example:

    >>> occlusion(lambda x: x @ np.array([[2.0], [0.0], [1.0]]), np.ones((1, 3)), window=1)
    array([[2., 0., 1.]], dtype=float32)
    """
    whole_number("batch_size", batch_size)
    predictor = Predictor(predict, inputs, name, output)
    sizes, steps = _window(window, stride, predictor.array.shape)
    base = predictor.baseline(baseline)
    outputs = predictor.predict(predictor.array)
    mask = decision_mask(outputs, target, position, predictor.inputs)
    scores = outputs[mask].astype("float64")
    total = np.zeros(predictor.array.shape[: 1 + len(sizes)])
    count = np.zeros(total.shape[1:])
    places = list(_windows(total.shape[1:], sizes, steps))
    for place in places:
        count[place] += 1
    pairs = np.array(list(itertools.product(range(len(total)), range(len(places)))))
    with ProgressBar(len(pairs), "windows", shown=progress) as bar:
        for chunk in split_batches(pairs, batch_size):
            row = chunk[:, 0]
            occluded = predictor.array[row]
            for k, (i, j) in enumerate(chunk):
                occluded[k][places[j]] = base[i][places[j]]
            after = predictor.predict(occluded, row)[mask[row]]
            for (i, j), difference in zip(chunk, scores[row] - after, strict=True):
                total[i][places[j]] += difference
            bar.advance(len(chunk))
    return (total / count).astype("float32")


class Predictor:
    """A function of inputs, which predicts rows of them with another array."""

    def __init__(self, predict: Predict, inputs: Any, name: str | None, output: str | None) -> None:
        self.function = predict
        self.output = output
        inputs = complete_inputs(predict, inputs)
        names = [tensor.name for tensor in getattr(predict, "inputs", None) or ()]
        if isinstance(inputs, list | tuple) and len(names) > 1:
            raise ConfigError(
                f"inputs is a list of {len(inputs)}, but the model has the inputs {names}. Pass a dict of "
                "arrays with these names, and name=, the one that changes."
            )
        if not isinstance(inputs, dict):
            if name is not None:
                raise ConfigError(f"name={name!r} is for inputs in a dict, but inputs is an array. Omit it.")
            self.inputs: dict[str | None, np.ndarray] = {None: np.asarray(inputs)}
        else:
            self.inputs = {key: np.asarray(value) for key, value in inputs.items()}
            name = name or (next(iter(inputs)) if len(inputs) == 1 else contract.INPUT_IDS)
            if name not in inputs:
                raise ConfigError(f"name={name!r} is not in the inputs. Pass one of {sorted(inputs)}.")
        self.name = name
        self.array = self.inputs[name]

    def baseline(self, baseline: Any) -> np.ndarray:
        """Returns a baseline as an array like the inputs.

        Raises:
            ConfigError: if its values or shape do not fit.
        """
        values = np.asarray(baseline)
        with np.errstate(invalid="ignore"):
            base = values.astype(self.array.dtype)
        if self.array.dtype.kind in "iu" and not np.array_equal(base, values):
            raise ConfigError(
                f"baseline has values that {self.array.dtype} inputs cannot represent. Pass other values, "
                "or the inputs as floats, inputs.astype('float32')."
            )
        try:
            return np.broadcast_to(base, self.array.shape)
        except ValueError:
            raise ConfigError(
                f"baseline has the shape {base.shape}, which does not broadcast to that of the inputs, "
                f"{self.array.shape}."
            ) from None

    def predict(self, array: np.ndarray, row: Any = slice(None)) -> np.ndarray:
        """The output for rows of the inputs, with this array instead of the named one."""
        inputs: Any = array
        if self.name is not None:
            inputs = {**{key: value[row] for key, value in self.inputs.items()}, self.name: array}
        outputs = named_output(self.function(inputs), self.output)
        outputs = outputs if isinstance(outputs, np.ndarray) else as_float32(outputs)
        if len(outputs) != len(array):
            raise InputError(
                f"predict returned {len(outputs)} rows for {len(array)} inputs, expected as many."
            )
        return outputs


def _window(window: Any, stride: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Window and stride for each axis that they cover."""
    axes = len(shape) - 1
    sizes = (window,) * max(1, axes - 1) if isinstance(window, int) else tuple(window)
    steps = sizes if stride is None else (stride,) * len(sizes) if isinstance(stride, int) else tuple(stride)
    if not 0 < len(sizes) <= axes or len(steps) != len(sizes):
        raise ConfigError(
            f"window={window} and stride={stride} do not fit inputs of shape {shape}. Pass one number for "
            "each axis after the batch, or fewer to occlude the last axes whole."
        )
    for size, step, length in zip(sizes, steps, shape[1:], strict=False):
        whole_number("window", size)
        whole_number("stride", step)
        if size > length or (step > size and size < length):
            raise ConfigError(
                f"window={window} with stride={stride} on inputs of shape {shape}: expected a window of at "
                f"most {length} and a stride of at most the window, so that every element is occluded."
            )
    return sizes, steps


def _windows(
    lengths: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> Iterator[tuple[slice, ...]]:
    counts = [
        math.ceil((length - size) / step) + 1
        for length, size, step in zip(lengths, sizes, steps, strict=True)
    ]
    for index in itertools.product(*map(range, counts)):
        starts = [i * step for i, step in zip(index, steps, strict=True)]
        yield tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def split_batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yields consecutive parts of an array with at most `size` rows."""
    return (rows[start : start + size] for start in range(0, len(rows), size))
