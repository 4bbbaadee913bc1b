"""Linear centered kernel alignment (CKA) of layers: the direct formula, and the mini-batch estimator."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.inspect.decision import PADDING_MASK
from keras_tx.inspect.graph_evaluation import layer_calls
from keras_tx.progress_bar import ProgressBar

FEATURES = 2**15  # columns of a chunk of activations that is converted to float64
GROUP = 2**28  # bytes of activations that one run of a model returns


def linear_cka(x: Any, y: Any) -> float:
    """Computes the linear CKA of two activation matrices, as in Kornblith et al. (2019).

    With centered columns it is ||Y'X||^2 / (||X'X|| ||Y'Y||) in Frobenius norms, computed in float64 from the
    features or from the Gram matrices, whichever are smaller. It is 1 for equal matrices, and does not change
    with a rotation or an isotropic scaling of the features.

    Args:
        x: activations (examples, ...); the axes after the first are flattened.
        y: activations of the same examples, (examples, ...).

    Returns:
        The similarity, from 0 to 1.

    Raises:
        ConfigError: if the numbers of examples differ, a value is not finite, or activations are the same for
            all examples.

    Example:

    >>> x = np.random.default_rng(0).standard_normal((10, 3))
    >>> round(linear_cka(x, 2 * x[:, ::-1]), 6)
    1.0
    """
    x, y = _centered(x, "x"), _centered(y, "y")
    if len(x) != len(y):
        raise ConfigError(
            f"x has {len(x)} examples and y has {len(y)}. Pass activations of the same examples."
        )
    if len(x) < max(x.shape[1], y.shape[1]):
        x, y = x @ x.T, y @ y.T
        product = np.vdot(x, y)
        scale = np.linalg.norm(x) * np.linalg.norm(y)
    else:
        product = np.linalg.norm(y.T @ x) ** 2
        scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(product / scale)


def _centered(activations: Any, name: str) -> np.ndarray:
    activations = np.asarray(activations, "float64")
    if activations.ndim < 2 or not activations.size or not np.isfinite(activations).all():
        raise ConfigError(
            f"{name} has the shape {activations.shape}, expected finite activations (examples, features)."
        )
    activations = activations.reshape(len(activations), -1)
    if (activations == activations[0]).all():
        raise ConfigError(f"The activations {name} are the same for all examples, so CKA is not defined.")
    return activations - activations.mean(axis=0)


class MinibatchCKA:
    """Accumulates the linear CKA of pairs of layers over batches, as in Nguyen et al. (2021).

    Each batch adds the unbiased estimates of the Hilbert-Schmidt independence criterion (HSIC) of Song et al.
    The expected values do not depend on the batch size. The memory does not depend on the number of batches.
    Batches are weighted by their numbers of examples.

    Attributes:
        batches: number of batches that were added.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> cka = MinibatchCKA()
    >>> for _ in range(8):
    ...     x = rng.standard_normal((16, 5))
    ...     cka.update([x, 2 * x], [x, rng.standard_normal((16, 5))])
    >>> cka.matrix()[:, 0].round(6)
    array([1., 1.])
    """

    def __init__(self) -> None:
        self.batches = 0
        self._products = self._squares_a = self._squares_b = np.zeros(0)

    def update(self, a: Iterable[Any], b: Iterable[Any] | None = None) -> None:
        """Adds a batch.

        Args:
            a: activations of one batch, an array (examples, ...) per layer. Iterators are read one by one.
            b: activations of the same examples in the layers to compare with; None for those of `a`.

        Raises:
            ConfigError: if the batch has less than four examples, the numbers of examples or of layers
                differ, or a value is not finite.
        """
        grams_a = _grams(a, "a")
        grams_b = grams_a if b is None else _grams(b, "b")
        if grams_a.shape[1] != grams_b.shape[1]:
            raise ConfigError(
                f"a has {math.isqrt(grams_a.shape[1])} examples and b has {math.isqrt(grams_b.shape[1])}. "
                "Pass activations of the same examples."
            )
        examples = math.isqrt(grams_a.shape[1])
        weight = examples / (examples * (examples - 3))  # of the examples, times the factor of HSIC
        products = weight * grams_a @ grams_b.T
        squares_a, squares_b = (weight * (grams**2).sum(axis=1) for grams in (grams_a, grams_b))
        if self.batches and self._products.shape != products.shape:
            raise ConfigError(
                f"The batch has {' and '.join(map(str, products.shape))} layers, but those before it have "
                f"{' and '.join(map(str, self._products.shape))}."
            )
        first = self.batches == 0
        self._products = products if first else self._products + products
        self._squares_a = squares_a if first else self._squares_a + squares_a
        self._squares_b = squares_b if first else self._squares_b + squares_b
        self.batches += 1

    def matrix(self) -> np.ndarray:
        """Returns the CKA of each layer of `a` with each layer of `b`, (layers of a, layers of b).

        Values are at most 1; estimates of dissimilar layers can be below 0, mostly for few examples. The
        value is NaN for a layer whose activations are the same for all examples of every batch.

        Raises:
            ConfigError: before the first batch.
        """
        if not self.batches:
            raise ConfigError("No batch has been added. Call update first.")
        scale = np.sqrt(np.outer(self._squares_a, self._squares_b))
        return np.divide(self._products, scale, out=np.full_like(scale, math.nan), where=scale > 0)


def _grams(activations: Iterable[Any], name: str) -> np.ndarray:
    """U-centered Gram matrices (layers, examples * examples), whose scalar product is n * (n - 3) * HSIC."""
    grams = []
    for layer, x in enumerate(activations):
        x = np.asarray(x)
        if x.ndim < 2 or len(x) < 4:
            raise ConfigError(
                f"{name}[{layer}] has the shape {x.shape}, expected activations (examples, features) with at "
                "least four examples. Use batches of another size."
            )
        gram = _gram(x.reshape(len(x), -1))
        if not np.isfinite(gram).all():
            raise ConfigError(f"{name}[{layer}] has activations that are not finite.")
        if grams and len(grams[0]) != len(gram):
            raise ConfigError(f"{name}[{layer}] has {len(x)} examples, but {name}[0] has {len(grams[0])}.")
        grams.append(_u_centered(gram))
    if not grams:
        raise ConfigError(f"{name} is empty, expected the activations of at least one layer.")
    return np.stack([gram.ravel() for gram in grams])


def _gram(x: np.ndarray) -> np.ndarray:
    """Scalar products of the examples in float64, for a chunk of features at a time.

    The mean is subtracted: HSIC does not depend on it, and large means would cost digits.
    """
    gram = np.zeros((len(x), len(x)))
    for start in range(0, x.shape[1], FEATURES):
        chunk = x[:, start : start + FEATURES].astype("float64")
        chunk -= chunk.mean(axis=0)
        gram += chunk @ chunk.T
    return gram


def _u_centered(gram: np.ndarray) -> np.ndarray:
    """The U-centered matrix of Szekely and Rizzo: the diagonal is 0, and so is the sum of each row."""
    examples = len(gram)
    np.fill_diagonal(gram, 0)
    means = gram.sum(axis=0) / (examples - 2)
    gram -= means + means[:, None] - means.sum() / (examples - 1)
    np.fill_diagonal(gram, 0)
    return gram


@dataclasses.dataclass(frozen=True)
class LayerSimilarity:
    """CKA of the layers of two models.

    Attributes:
        matrix: similarity of each layer of the first model with each of the second, (layers, layers).
        layers_a: names of the layers of the first model, the rows of the matrix.
        layers_b: names of the layers of the second model, its columns.
    """

    matrix: np.ndarray
    layers_a: tuple[str, ...]
    layers_b: tuple[str, ...]


def layer_similarity(
    model_a: Any,
    model_b: Any,
    dataset: Any,
    *,
    layers_a: Sequence[str] | None = None,
    layers_b: Sequence[str] | None = None,
    processing_a: Callable[[Any], Any] | None = None,
    processing_b: Callable[[Any], Any] | None = None,
    batch_size: int = 32,
    progress: bool = True,
) -> LayerSimilarity:
    """Computes the linear CKA between the layers of two models, or of one model, over a dataset.

    Activations are flattened, with all tokens and positions, as in Nguyen et al. (2021). Those of padding, by
    the attention mask of the inputs, are 0, so that the length of the padding has no effect. Batches are
    accumulated with `MinibatchCKA`. Activations of many layers are computed in several runs of the model, so
    that they need little memory at a time.

    Args:
        model_a: a functional Keras model, of keras-tx, keras.applications or your own.
        model_b: the other model; None or the same model for the layers of one model.
        dataset: an array of inputs, a dict of arrays, or an iterable of batches: a tf.data.Dataset, a
            PyDataset, a list. Of a batch (inputs, labels), the inputs are used.
        layers_a: names of layers of the first model; by default the blocks of a keras-tx model, and all
            layers of another one that are called once.
        layers_b: names of layers of the second model; for one model, by default `layers_a`.
        processing_a: converts a batch to inputs of the first model, such as
            `keras.applications.resnet50.preprocess_input` or `model.processing`.
        processing_b: converts a batch to inputs of the second model; for one model, by default
            `processing_a`.
        batch_size: number of examples of a batch, where `dataset` is an array or a dict of arrays.
        progress: whether a progress bar is shown.

    Returns:
        A LayerSimilarity: the matrix and the names of the layers.

    Raises:
        ConfigError: for a layer that does not exist, a model that is not functional, and a batch of less than
            four examples.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.vit("Mu/2", image_size=8, depth=3)
    >>> images = np.random.default_rng(0).uniform(-1, 1, (16, 8, 8, 3))
    >>> layer_similarity(model, None, images, batch_size=8, progress=False).layers_a
    ('block_0', 'block_1', 'block_2')
    """
    same = model_b is None or model_b is model_a
    if same:
        layers_b = layers_a if layers_b is None else layers_b
        processing_b = processing_a if processing_b is None else processing_b
    first = LayerOutputs(model_a, layers_a)
    shared = same and layers_b == layers_a and processing_b is processing_a
    second = first if shared else LayerOutputs(model_a if same else model_b, layers_b)
    cka = MinibatchCKA()
    batches, count = _batches(dataset, whole_number("batch_size", batch_size))
    with ProgressBar(count, "batches", shown=progress) as bar:
        for batch in batches:
            inputs = batch if processing_a is None else processing_a(batch)
            if shared:
                cka.update(first(inputs))
            else:
                cka.update(first(inputs), second(batch if processing_b is None else processing_b(batch)))
            bar.advance()
    if cka.batches == 0:
        raise ConfigError("dataset is empty, expected at least one batch.")
    return LayerSimilarity(cka.matrix(), first.names, second.names)


class LayerOutputs:
    """Computes the outputs of layers of a functional Keras model, a group of layers at a time.

    Args:
        model: a functional Keras model.
        layers: names of layers; None for the default of `layer_similarity`.
    """

    def __init__(self, model: Any, layers: Sequence[str] | None):
        if not isinstance(getattr(model, "inputs", None), list):
            raise ConfigError(
                f"model={model!r:.80} is not a functional Keras model, so its layers have no outputs. Create "
                "it with keras.Model(inputs, outputs)."
            )
        copy, calls = layer_calls(model)
        self._input = copy.input
        outputs: dict[str, list[Any]] = {}  # of each call of each layer
        for call in calls:
            outputs.setdefault(call.layer.name, []).append(call.outputs)
        self.names = tuple(_default_layers(model, outputs) if layers is None else layers)
        if not self.names:
            raise ConfigError(f"No layers of model {model.name!r} are selected. Pass names of its layers.")
        self._tensors = [_only_output(model.name, name, outputs) for name in self.names]
        self._runs: list[Any] = []

    def __call__(self, inputs: Any) -> Iterator[np.ndarray]:
        """Yields the output of each layer for a batch of inputs, (examples, ...)."""
        import keras

        inputs = keras.tree.map_structure(np.asarray, inputs)
        if not self._runs:
            shapes = [np.shape(x) for x in keras.tree.flatten(inputs)]
            groups = _groups(self._tensors, shapes[0][0], max(size for shape in shapes for size in shape[1:]))
            self._runs = [_compiled(keras.Model(self._input, group)) for group in groups]
        names = iter(self.names)
        for run in self._runs:
            for output in keras.tree.flatten(run(inputs)):
                yield _without_padding(keras.ops.convert_to_numpy(output), inputs, next(names))


def _without_padding(output: np.ndarray, inputs: Any, layer: str) -> np.ndarray:
    """The output of a layer with 0 at padding, by the mask among the inputs of a text model."""
    names = (contract.ATTENTION_MASK, PADDING_MASK)
    if layer.startswith("decoder"):  # of an encoder-decoder
        names = (contract.DECODER_ATTENTION_MASK, *names)
    masks = [inputs[name] for name in names if name in inputs] if isinstance(inputs, dict) else []
    if not masks or output.ndim < 3 or output.shape[:2] != masks[0].shape:
        return output
    return np.where(masks[0].reshape(*masks[0].shape, *[1] * (output.ndim - 2)) != 0, output, 0)


def _compiled(model: Any) -> Callable[[Any], Any]:
    """The outputs of a model for a batch, as a function that frees what is not an output.

    TensorFlow warns about several calls of `predict_on_batch`, which it counts as retracing of one function.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return model.predict_on_batch
    import tensorflow as tf

    return tf.function(functools.partial(model, training=False), reduce_retracing=True)


def _default_layers(model: Any, outputs: dict[str, list[Any]]) -> list[str]:
    from keras_tx.layers import TransformerBlock

    layers = [layer for layer in model.layers if layer.name in outputs]
    blocks = [layer.name for layer in layers if isinstance(layer, TransformerBlock)]
    return blocks or [layer.name for layer in layers if _problem(outputs[layer.name]) is None]


def _only_output(model: str, name: str, outputs: dict[str, list[Any]]) -> Any:
    if name not in outputs:
        raise ConfigError(f"Model {model!r} has no layer {name!r}. {nearest(str(name), outputs)}")
    problem = _problem(outputs[name])
    if problem:
        raise ConfigError(f"Layer {name!r} of model {model!r} {problem}. Choose another layer.")
    return outputs[name][0][0]


def _problem(outputs: list[Any]) -> str | None:
    """Why the calls of a layer do not have one array of activations; None if they have."""
    if len(outputs) > 1:
        return f"is called {len(outputs)} times"
    (tensors,) = outputs
    if len(tensors) != 1:
        return f"has {len(tensors)} outputs"
    if "float" not in tensors[0].dtype or len(tensors[0].shape) < 2:
        return f"has an output of shape {tensors[0].shape} and dtype {tensors[0].dtype}"
    return None


def _groups(tensors: list[Any], batch: int, longest: int) -> list[list[Any]]:
    """Consecutive tensors that together need at most GROUP bytes; `longest` replaces dynamic sizes."""
    groups: list[list[Any]] = [[]]
    size = 0
    for tensor in tensors:
        bytes_of = 4 * batch * math.prod(longest if side is None else side for side in tensor.shape[1:])
        if groups[-1] and size + bytes_of > GROUP:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += bytes_of
    return groups


def _batches(dataset: Any, batch_size: int) -> tuple[Iterable[Any], int | None]:
    """The batches without labels, and their number if it is known."""
    import keras

    if isinstance(dataset, np.ndarray | dict):
        return _slices(dataset, batch_size)
    if isinstance(dataset, str | bytes) or not (
        hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    ):
        raise ConfigError(f"dataset={dataset!r:.80}, expected an array, a dict of arrays, or batches.")
    if hasattr(dataset, "cardinality") and int(dataset.cardinality()) == -1:
        raise ConfigError("dataset is infinite. Limit it with dataset.take(batches).")
    try:
        count = len(dataset)
    except TypeError:  # a generator, or a dataset of unknown size
        count = None
    batches = (
        (dataset[index] for index in range(count))
        if isinstance(dataset, keras.utils.PyDataset) and count is not None
        else dataset
    )
    return (keras.utils.unpack_x_y_sample_weight(batch)[0] for batch in batches), count


def _slices(arrays: Any, batch_size: int) -> tuple[Iterable[Any], int]:
    """Batches of nearly equal sizes, each of at least four examples."""
    import keras

    lengths = {len(x) for x in keras.tree.flatten(arrays)}
    if len(lengths) != 1 or min(lengths) < 4 or batch_size < 4:
        raise ConfigError(
            f"dataset has {' and '.join(map(str, sorted(lengths)))} examples with batch_size={batch_size}, "
            "expected arrays of one length, and batches of at least four examples."
        )
    length = lengths.pop()
    count = max(min(math.ceil(length / batch_size), length // 4), 1)
    edges = np.linspace(0, length, count + 1).round().astype(int)
    slices = (
        keras.tree.map_structure(lambda x, part=slice(start, stop): x[part], arrays)
        for start, stop in itertools.pairwise(edges)
    )
    return slices, count
