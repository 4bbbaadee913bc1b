"""The first batch of every source is checked before training, and no batch is read twice."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_tx
from keras_tx.errors import ConfigError, ImageError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.wordpiece import VOCABULARY, wordpiece

# Of sources without a length, Keras learns by running out of data.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")
BATCH, BATCHES = 4, 3


class Numbered(keras.utils.PyDataset):
    def __init__(self, x: np.ndarray, y: np.ndarray):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return math.ceil(len(self.y) / BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(BATCH * index, BATCH * (index + 1))
        return self.x[part], self.y[part]


def generated(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    data = Numbered(x, y)
    yield from (data[index] for index in range(len(data)))


def tf_data(x: np.ndarray, y: np.ndarray) -> Any:
    tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def tf_data_once(x: np.ndarray, y: np.ndarray) -> Any:
    """Of a generator that is consumed by one pass."""
    tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    batches = generated(x, y)
    spec = [tf.TensorSpec((None, *array.shape[1:]), array.dtype) for array in (x, y)]
    return tf.data.Dataset.from_generator(lambda: batches, output_signature=tuple(spec))


def loader(x: np.ndarray, y: np.ndarray) -> Any:
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[torch]"')
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(data, batch_size=BATCH)


SOURCES: dict[str, Callable[..., Any]] = {
    "tf.data": tf_data,
    "tf.data, once": tf_data_once,
    "PyDataset": Numbered,
    "generator": generated,
    "torch": loader,
}


def vit(run_eagerly: bool = False, **options: Any) -> Any:
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, **options)
    model.compile(run_eagerly=run_eagerly)
    return model


def pixels(count: int = BATCH * BATCHES) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), "uint8")


LABELS = np.arange(BATCH * BATCHES) % 3
WRONG = {
    "0 to 255": (
        lambda x: x.astype("float32"),
        r"values from 0 to 255, but model.processing returns -1 to 1",
    ),
    "uint8": (lambda x: x, r"values from 0 to 255, but model.processing returns -1 to 1"),
    "0 to 1": (lambda x: (x / 255).astype("float32"), r"values from 0 to 1, but model.processing"),
    "standardized": (lambda x: ((x - 127) / 40).astype("float32"), r"but model.processing returns"),
    "channels first": (lambda x: vit().processing(x).transpose(0, 3, 1, 2), r"shape \(\d+, 3, 8, 8\)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_unprocessed_images_raise(wrong: str):
    model, (change, message) = vit(), WRONG[wrong]
    images = change(pixels())
    for call in (
        lambda: model.fit(images, LABELS, verbose=0),
        lambda: model.fit(model.processing(pixels()), LABELS, validation_data=(images, LABELS), verbose=0),
        lambda: model.evaluate(images, LABELS, verbose=0),
        lambda: model.predict(images, verbose=0),
    ):
        with pytest.raises(ConfigError, match=rf"{message}.*model.processing\(x\)"):
            call()
    assert model.optimizer.iterations == 0


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES)
def test_the_first_batch_of_a_source(source: str):
    make, model = SOURCES[source], vit()
    raw, right = pixels().astype("float32"), model.processing(pixels())
    line = r"data.map\(lambda x, y: \(model.processing\(x\), y\)\)"
    for call in (
        lambda: model.fit(make(raw, LABELS), shuffle=False, verbose=0),
        lambda: model.fit(right, LABELS, validation_data=make(raw, LABELS), verbose=0),
        lambda: model.evaluate(make(raw, LABELS), verbose=0),
        lambda: model.predict(make(raw, LABELS), verbose=0),
    ):
        model.compile()
        with pytest.raises(ConfigError, match=f"values from 0 to 255.*{line}"):
            call()
    with pytest.raises(ConfigError, match="Label 7 in row 1"):
        model.fit(make(right, np.where(np.arange(BATCH * BATCHES) == 1, 7, LABELS)), shuffle=False, verbose=0)


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES)
def test_every_batch_is_trained_on(source: str):
    make, model = SOURCES[source], vit()
    right = model.processing(pixels())
    expected = model.evaluate(right, LABELS, verbose=0, return_dict=True)
    if source != "tf.data, once":  # Keras itself reads such a dataset twice on JAX and PyTorch
        assert model.evaluate(make(right, LABELS), verbose=0, return_dict=True) == pytest.approx(expected)
    predicted = model.predict(make(right, LABELS), verbose=0)
    np.testing.assert_allclose(predicted, model.predict(right, verbose=0), atol=1e-6)
    steps: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    model.fit(make(right, LABELS), shuffle=False, verbose=0, callbacks=[count])
    assert steps == list(range(BATCHES))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's iterators")
def test_an_error_holds_no_iterator():
    """TensorFlow waits up to a minute when an iterator is deleted late, at the exit of the process too."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    def iterators() -> int:
        return sum(isinstance(x, OwnedIterator) for x in gc.get_objects())

    model = vit(run_eagerly=True)
    gc.collect()
    gc.disable()
    try:
        before = iterators()
        with pytest.raises(ConfigError, match="values from 0 to 255") as caught:
            model.fit(tf_data(pixels().astype("float32"), LABELS), shuffle=False, verbose=0)
        assert caught.value is not None and iterators() == before
    finally:
        gc.enable()


def test_an_iterable_torch_dataset_is_read_once():
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[torch]"')
    model = vit()
    right, read = model.processing(pixels()), []

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            read.append("pass")
            return iter(zip(right, LABELS, strict=True))

    data = torch.utils.data.DataLoader(Stream(), batch_size=BATCH)
    plain = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    plain.compile("sgd", "mse")
    plain.predict(data, verbose=0)
    of_keras, read[:] = len(read), []
    model.predict(data, verbose=0)
    assert len(read) == of_keras


def test_augmented_images_pass():
    model = vit(run_eagerly=True)  # faster than tracing for a few steps
    images = model.processing(pixels())
    noisy = images + np.random.default_rng(1).normal(0, 0.2, images.shape).astype("float32")
    model.fit(noisy, LABELS, verbose=0)
    bright = model.processing(np.full((4, 8, 8, 3), 200, "uint8"))  # all in 0..1
    model.fit(bright, LABELS[:4], verbose=0)
    unit = keras_tx.ImageTransform(8, mean=0.0, std=1.0)
    vit(run_eagerly=True, processing=unit).fit(unit(pixels()), LABELS, verbose=0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend reads the folder as well")
def test_image_dataset_from_directory(tmp_path: Path):
    """The line of the error, on image_dataset_from_directory: the exported folder sees the same numbers."""
    random = np.random.default_rng(0)
    for name, colour in (("dark", 60), ("light", 200)):
        (tmp_path / name).mkdir()
        for index in range(4):
            shade = np.clip(random.normal(colour, 30, (8, 8, 3)), 0, 255).astype("uint8")
            Image.fromarray(shade).save(tmp_path / name / f"{index}.png")
    data = keras.utils.image_dataset_from_directory(
        tmp_path, image_size=(8, 8), batch_size=8, shuffle=False, verbose=False
    )
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=2)
    model.compile(run_eagerly=True)
    with pytest.raises(ConfigError, match="model.processing returns -1 to 1"):
        model.fit(data, shuffle=False, verbose=0)
    mapped = data.map(lambda x, y: (model.processing(x), y))
    model.fit(mapped, epochs=3, shuffle=False, verbose=0)
    here = keras.ops.softmax(model.predict(mapped, verbose=0))
    export_onnx(model, tmp_path / "out", labels=["dark", "light"])
    paths = [*sorted((tmp_path / "dark").iterdir()), *sorted((tmp_path / "light").iterdir())]
    with load(tmp_path / "out", provider="cpu") as runtime:
        answers = runtime(paths)
    scores = [[entry["score"] for entry in sorted(x, key=lambda x: x["label"])] for x in answers]
    np.testing.assert_allclose(scores, np.asarray(here), atol=1e-5)


def test_tensors_that_are_already_in_0_to_1_are_refused():
    tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    transform = keras_tx.ImageTransform(8)
    np.testing.assert_array_equal(transform(tf.constant(pixels())), transform(pixels()))
    half = transform(tf.constant(pixels().astype("float32") / 2))
    assert float(tf.reduce_max(tf.abs(half - transform(pixels().astype("float64") / 510)))) < 1e-6
    for wrong in (pixels() / 255.0, pixels() - 300.0):
        with pytest.raises((ImageError, tf.errors.OpError), match="expected uint8 or float in 0..255"):
            transform(tf.constant(wrong))


def test_raw_data_is_named():
    model = vit()
    for raw in (["a.jpg"], np.array(["a.jpg"]), [Path("a.jpg")], [Image.new("RGB", (8, 8))]):
        with pytest.raises(ConfigError, match=r"x is raw data, .*model.fit\(model.processing\(x\), y\)"):
            model.fit(raw, np.array([0]), verbose=0)
    texts = ["the cat", "a dog"]
    for processing in (None, keras_tx.TextTransform.of(wordpiece())):
        bert = keras_tx.bert(
            "tiny",
            head=keras_tx.ClassifierHead(2),
            vocabulary_size=len(VOCABULARY),
            depth=1,
            processing=processing,
        )
        bert.compile()
        for raw in (texts, np.array(texts), {"input_ids": np.array(texts)}):
            with pytest.raises(ConfigError, match=r"raw data, .*'the cat'.*model.processing\(x\)"):
                bert.fit(raw, np.array([0, 1]), verbose=0)


def test_ids_of_a_dataset():
    bert = keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2), vocabulary_size=20, depth=1)
    bert.compile(run_eagerly=True)
    ids = np.full((BATCH * BATCHES, 5), 25)
    for make in SOURCES.values():
        with pytest.raises(ConfigError, match="input_ids has 25 in row 0, .*'bert' .*0 to 19"):
            bert.fit(make(ids, LABELS % 2), shuffle=False, verbose=0)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_the_shape_of_labels_in_tf_data_is_checked_before_keras_traces_the_loss(loss: str):
    tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    images, numbers = np.zeros((4, 8, 8, 3), "float32"), np.array([0, 1, 2, 0])
    one_hot = np.eye(3, dtype="float32")[numbers]
    right, wrong = (numbers, one_hot) if loss.startswith("sparse") else (one_hot, numbers)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    model.compile("sgd", loss)
    with pytest.raises(ConfigError, match=r"labels have the shape \((1, 3|1,)\)"):
        model.fit(tf.data.Dataset.from_tensor_slices((images, wrong)).batch(2), shuffle=False, verbose=0)
    model.fit(tf.data.Dataset.from_tensor_slices((images, right)).batch(2), shuffle=False, verbose=0)
