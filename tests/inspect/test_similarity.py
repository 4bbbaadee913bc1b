"""CKA equals the direct formula, and the mini-batch estimator that of Song et al.; layers of Keras models."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect import similarity
from keras_tx.inspect.similarity import MinibatchCKA, layer_similarity, linear_cka
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import FP32, HALF, assert_close

TENSORFLOW = keras.backend.backend() == "tensorflow"


def direct_cka(x: np.ndarray, y: np.ndarray) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with HSIC = tr(K H L H), in float64."""
    x, y = x.astype("float64"), y.astype("float64")
    center = np.eye(len(x)) - 1 / len(x)
    kx, ky = center @ x @ x.T @ center, center @ y @ y.T @ center
    return np.trace(kx @ ky) / np.sqrt(np.trace(kx @ kx) * np.trace(ky @ ky))


def hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Equation 5 of Song et al., "Feature selection via dependence maximization", term by term."""
    x, y = (a.reshape(len(a), -1).astype("float64") for a in (x, y))
    n = len(x)
    kx, ky = x @ x.T, y @ y.T
    np.fill_diagonal(kx, 0)
    np.fill_diagonal(ky, 0)
    one = np.ones(n)
    terms = np.trace(kx @ ky) + (one @ kx @ one) * (one @ ky @ one) / ((n - 1) * (n - 2))
    return (terms - 2 / (n - 2) * (one @ kx @ ky @ one)) / (n * (n - 3))


def minibatch_cka(batches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Equation 2 of Nguyen et al. for batches of one size."""
    xy, xx, yy = (np.mean([hsic(pair[i], pair[j]) for pair in batches]) for i, j in ((0, 1), (0, 0), (1, 1)))
    return float(xy / np.sqrt(xx * yy))


@pytest.mark.parametrize("n, p, q", [(40, 3, 5), (6, 30, 4), (6, 20, 30), (7, 7, 7)])
def test_linear_cka_equals_the_direct_formula(n, p, q):
    x, y = draw(n, p) + 3, draw(n, q, seed=1)
    y[:, 0] += x[:, 0]
    assert linear_cka(x, y) == pytest.approx(direct_cka(x, y), rel=1e-10)
    assert linear_cka(x, y) == pytest.approx(linear_cka(y, x), rel=1e-12)
    assert linear_cka(x, x) == pytest.approx(1, abs=1e-12)


def test_cka_is_invariant_to_rotation_and_isotropic_scale_only():
    x, y = draw(20, 6).astype("float64"), draw(20, 4, seed=1).astype("float64")
    y[:, 0] += x[:, 0]
    rotation = np.linalg.qr(draw(6, 6, seed=2).astype("float64"))[0]
    assert linear_cka(5 * x @ rotation, y) == pytest.approx(linear_cka(x, y), rel=1e-10)
    assert linear_cka(x + 100.0, y) == pytest.approx(linear_cka(x, y), rel=1e-10)
    assert linear_cka(x * [9, 1, 1, 1, 1, 1], y) != pytest.approx(linear_cka(x, y), rel=0.05)

    batch = MinibatchCKA()
    batch.update([x, 5 * x @ rotation, x.reshape(20, 2, 3), x + 1e6], [y])
    values = batch.matrix()[:, 0]
    assert_close(values, np.full(4, values[0]))


@pytest.mark.parametrize(
    "x, y, text",
    [
        (draw(4, 2), draw(5, 2), "x has 4 examples and y has 5"),
        (draw(4), draw(4, 2), r"x has the shape \(4,\)"),
        (draw(4, 2), np.full((4, 2), np.inf), "y .*finite"),
        (draw(4, 2), np.ones((4, 2)), "activations y are the same"),
    ],
)
def test_other_activations_raise(x, y, text):
    with pytest.raises(ConfigError, match=text):
        linear_cka(x, y)


def test_minibatch_cka_equals_the_formula_of_the_paper():
    x, y, z = draw(24, 5), draw(24, 3, 2, seed=1), draw(24, 4, seed=2) + 100
    y[:, 0, 0] += x[:, 0]
    cka = MinibatchCKA()
    for part in np.split(np.arange(24), 3):
        cka.update((a[part] for a in (x, y)), [x[part], z[part]])
    parts = np.split(np.arange(24), 3)
    for i, a in enumerate((x, y)):
        for j, b in enumerate((x, z)):
            expected = minibatch_cka([(a[part], b[part]) for part in parts])
            assert cka.matrix()[i, j] == pytest.approx(expected, abs=1e-6)  # 100 costs the formula digits
    assert cka.matrix()[0, 0] == pytest.approx(1, abs=1e-12)


def test_minibatches_are_unbiased():
    """The average over all batches of four is the estimate from all six examples, a U-statistic."""
    x, y = draw(6, 3), draw(6, 2, seed=1)
    y[:, 0] += x[:, 0]
    batches, whole = MinibatchCKA(), MinibatchCKA()
    for part in itertools.combinations(range(6), 4):
        batches.update([x[list(part)]], [y[list(part)]])
    whole.update([x], [y])
    assert batches.matrix()[0, 0] == pytest.approx(whole.matrix()[0, 0], rel=1e-10)


def test_batches_count_by_their_examples(monkeypatch):
    monkeypatch.setattr(similarity, "FEATURES", 2)  # several chunks
    x, y = draw(14, 5), draw(14, 3, seed=1)
    cka = MinibatchCKA()
    parts = [np.arange(10), np.arange(10, 14)]
    for part in parts:
        cka.update([x[part]], [y[part]])
    xy, xx, yy = (
        sum(len(part) * hsic(a[part], b[part]) for part in parts) for a, b in ((x, y), (x, x), (y, y))
    )
    assert cka.matrix()[0, 0] == pytest.approx(xy / np.sqrt(xx * yy), rel=1e-10)


def test_memory_does_not_depend_on_the_number_of_batches():
    def peak(batches: int) -> int:
        cka = MinibatchCKA()
        tracemalloc.start()
        for seed in range(batches):
            cka.update(draw(16, 2000, seed=seed + layer) for layer in range(3))  # 128 kB each
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)
    assert peak(20) < 1.2 * peak(2)


def test_constant_layer_is_nan():
    cka = MinibatchCKA()
    cka.update([draw(5, 2), np.ones((5, 2))])
    assert np.isnan(cka.matrix()).tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(
    "a, b, text",
    [
        ([draw(3, 2)], None, r"a\[0\] has the shape \(3, 2\).*at least four"),
        ([draw(4, 2), draw(5, 2)], None, r"a\[1\] has 5 examples, but a\[0\] has 4"),
        ([draw(4, 2)], [draw(5, 2)], "a has 4 examples and b has 5"),
        ([draw(4, 2)], [np.full((4, 2), np.nan)], r"b\[0\].*not finite"),
        ([], None, "a is empty"),
        ([draw(4, 2)] * 3, None, "3 and 3 layers.*1 and 1"),
    ],
)
def test_other_batches_raise(a, b, text):
    cka = MinibatchCKA()
    cka.update([draw(4, 2)])
    with pytest.raises(ConfigError, match=text):
        cka.update(a, b)
    assert cka.matrix().shape == (1, 1)


def test_matrix_before_the_first_batch_raises():
    with pytest.raises(ConfigError, match="No batch"):
        MinibatchCKA().matrix()


# Keras models


@pytest.fixture(scope="module")
def vit() -> Any:
    return redraw(keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3))


@pytest.fixture(scope="module")
def cnn() -> keras.Model:
    """A residual CNN with a shared layer and an operation that is not a layer."""
    images = keras.Input((8, 8, 3), name="images")
    shared = keras.layers.Conv2D(4, 3, padding="same", data_format="channels_last", name="shared")
    x = keras.layers.Conv2D(4, 3, padding="same", data_format="channels_last", name="first")(images)
    x = keras.layers.ReLU(name="activation")(shared(keras.ops.add(x, shared(x))))
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="average")(x)
    return redraw(keras.Model(images, keras.layers.Dense(2, name="classes")(x), name="cnn"))


IMAGES = draw(12, 8, 8, 3, seed=5)


def test_layers_of_two_models_equal_the_formula(vit, cnn):
    result = layer_similarity(vit, cnn, IMAGES, batch_size=4, progress=False)
    assert result.layers_a == ("block_0", "block_1", "block_2")
    assert result.layers_b == ("first", "activation", "average", "classes")
    states = as_numpy(vit.with_outputs(hidden_states=True)(IMAGES))["hidden_states"]
    average = as_numpy(keras.Model(cnn.input, cnn.get_layer("average").output)(IMAGES))
    for layer in (0, 1):  # the last hidden state is after the norm
        batches = [(states[layer + 1][i : i + 4], average[i : i + 4]) for i in (0, 4, 8)]
        assert result.matrix[layer, 2] == pytest.approx(minibatch_cka(batches), abs=1e-4)


def test_layers_of_one_model_are_symmetric(vit):
    whole = layer_similarity(vit, None, IMAGES, batch_size=12, progress=False)
    assert_close(np.diag(whole.matrix), np.ones(3))
    assert_close(whole.matrix, whole.matrix.T)
    some = layer_similarity(
        vit,
        vit,
        IMAGES,
        layers_a=["block_2", "patch_embedding"],
        layers_b=["block_1"],
        batch_size=12,
        progress=False,
    )
    assert some.matrix[0, 0] == pytest.approx(whole.matrix[2, 1], abs=1e-5)
    assert some.matrix.shape == (2, 1)


def test_a_run_for_each_layer_gives_the_same_matrix(vit, monkeypatch, caplog):
    names = [
        layer.name for layer in vit.layers if "images" not in layer.name and "get_item" not in layer.name
    ]
    options = {"layers_a": names, "batch_size": 12, "progress": False}
    expected = layer_similarity(vit, None, IMAGES, **options).matrix
    monkeypatch.setattr(similarity, "GROUP", 1)
    assert_close(layer_similarity(vit, None, IMAGES, **options).matrix, expected)
    assert len(names) >= 7  # TensorFlow warns about a function that is traced five times
    assert not caplog.records


def test_half_precision(vit):
    half = keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3, dtype="mixed_bfloat16")
    half.set_weights(vit.get_weights())
    actual = layer_similarity(half, vit, IMAGES, batch_size=6, progress=False).matrix
    assert_close(
        actual,
        layer_similarity(vit, vit, IMAGES, batch_size=6, progress=False).matrix,
        HALF["mixed_bfloat16"],
    )


def test_processing_prepares_the_inputs_of_each_model(vit, cnn):
    scaled = layer_similarity(
        vit,
        cnn,
        255 * IMAGES,
        processing_a=lambda x: x / 255,
        processing_b=lambda x: x / 255,
        batch_size=6,
        progress=False,
    )
    plain = layer_similarity(vit, cnn, IMAGES, batch_size=6, progress=False)
    assert_close(scaled.matrix, plain.matrix, 10 * FP32)


def test_one_model_with_two_kinds_of_inputs(vit):
    options = {"processing_a": lambda x: x / 255, "batch_size": 6, "progress": False}
    plain = layer_similarity(vit, None, IMAGES, batch_size=6, progress=False).matrix
    assert_close(layer_similarity(vit, vit, 255 * IMAGES, **options).matrix, plain, 10 * FP32)
    columns = layer_similarity(vit, vit, 255 * IMAGES, layers_b=["block_1"], **options).matrix
    assert_close(columns, plain[:, 1:2], 10 * FP32)
    mirrored = layer_similarity(
        vit, vit, 255 * IMAGES, layers_a=["block_0"], processing_b=lambda x: x[:, ::-1] / 255, **options
    )
    assert mirrored.layers_b == ("block_0",)
    assert mirrored.matrix < 0.99


def test_labels_and_names_of_inputs():
    """Batches of a PyDataset, and a dict of arrays for a model with several inputs."""
    model = redraw(keras_tx.bert("tiny", vocabulary_size=30))
    ids = np.random.default_rng(0).integers(4, 30, (9, 6))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            part = slice(4) if index == 0 else slice(4, 9)
            return {name: x[part] for name, x in inputs.items()}, np.zeros(4)

    def pairs():
        for index in range(2):
            yield Batches()[index]

    whole = layer_similarity(model, None, inputs, batch_size=5, progress=False)
    assert whole.layers_a == ("block_0", "block_1")
    for batches in (Batches(), pairs(), list(pairs())):
        assert_close(layer_similarity(model, None, batches, progress=False).matrix, whole.matrix)


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_padding_has_no_effect(name):
    """The same texts, padded to several lengths."""
    build = {
        "bert": lambda: keras_tx.bert("tiny", vocabulary_size=30),
        "transformer": lambda: keras_tx.transformer("tiny", vocabulary_size=30),
    }
    model = redraw(build[name]())
    ids = np.random.default_rng(0).integers(4, 30, (8, 6))
    mask = (np.arange(6) < np.array([6, 2, 4, 3, 5, 6, 1, 2])[:, None]).astype("int64")
    results = []
    for more in (0, 3):
        padded, real = (np.pad(x, [(0, 0), (0, more)]) for x in (ids, mask))
        text = {"input_ids": padded, "attention_mask": real}
        if name == "bert":
            text["token_type_ids"] = np.zeros_like(padded)
        else:
            text |= {"decoder_input_ids": padded[:, ::-1], "decoder_attention_mask": real[:, ::-1]}
            text = {key: np.ascontiguousarray(value) for key, value in text.items()}
            if more:  # the target keeps its length
                text |= {key: text[key][:, more:] for key in text if "decoder" in key}
        results.append(layer_similarity(model, None, text, progress=False))
    assert len(results[0].layers_a) == (2 if name == "bert" else 4)
    assert_close(results[1].matrix, results[0].matrix, 10 * FP32)


def test_progress_bar(vit, capsys):
    layer_similarity(vit, None, IMAGES, batch_size=4)
    assert "3 of 3 batches" in capsys.readouterr().err


@pytest.mark.parametrize(
    "count, batch_size, sizes", [(9, 4, [4, 5]), (5, 4, [5]), (12, 5, [4, 4, 4]), (8, 99, [8])]
)
def test_arrays_are_cut_into_batches_of_similar_sizes(count, batch_size, sizes):
    batches, total = similarity._slices(np.arange(count), batch_size)
    parts = list(batches)
    assert [len(part) for part in parts] == sizes
    assert total == len(sizes)
    assert np.concatenate(parts).tolist() == list(range(count))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"layers_a": ["block_9"]}, "'vit' has no layer 'block_9'.*'block_0'"),
        ({"layers_a": []}, "No layers of model 'vit'"),
        ({"layers_b": ["shared"]}, "'shared' of model 'cnn' is called 2 times"),
        ({"dataset": "images"}, "dataset='images'"),
        ({"dataset": 3}, "dataset=3"),
        ({"dataset": IMAGES[:3]}, "3 examples with batch_size=32"),
        ({"dataset": []}, "dataset is empty"),
        ({"batch_size": 3}, "12 examples with batch_size=3"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_errors_contain_argument_and_value(vit, cnn, options, text):
    options = {"dataset": IMAGES, "progress": False, **options}
    with pytest.raises(ConfigError, match=text):
        layer_similarity(vit, cnn, **options)


@pytest.mark.thorough
def test_a_cnn_of_keras_applications(vit):
    """With its own processing; the layers' values are those of a model with these outputs."""
    preprocess = keras.applications.resnet50.preprocess_input
    resnet = redraw(keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=5))
    names = ("conv2_block3_out", "conv5_block3_out")
    photographs = np.random.default_rng(0).uniform(0, 255, (8, 32, 32, 3)).astype("float32")
    result = layer_similarity(
        resnet,
        vit,
        photographs,
        layers_a=names,
        processing_a=lambda batch: preprocess(batch.copy()),
        processing_b=lambda batch: vit.processing(batch.astype("uint8")),
        batch_size=8,
        progress=False,
    )
    assert result.layers_a == names and result.layers_b == ("block_0", "block_1", "block_2")
    outputs = keras.Model(resnet.input, [resnet.get_layer(name).output for name in names])
    activations = as_numpy(outputs(preprocess(photographs.copy()), training=False))
    states = vit.with_outputs(hidden_states=True)(vit.processing(photographs.astype("uint8")))
    state = as_numpy(states)["hidden_states"][1]
    for row, array in enumerate(activations):
        assert result.matrix[row, 0] == pytest.approx(minibatch_cka([(array, state)]), abs=1e-4)


def test_sequential_and_nested_models(cnn):
    images = keras.Input((8, 8, 3))
    nested = keras.Model(images, keras.layers.Dense(3, name="head")(cnn(images)))
    flat = keras.layers.Flatten(data_format="channels_last", name="flat")
    sequential = keras.Sequential([keras.Input((8, 8, 3)), flat, keras.layers.Dense(2, name="dense")])
    result = layer_similarity(redraw(nested), redraw(sequential), IMAGES, progress=False)
    assert (result.layers_a, result.layers_b) == (("cnn", "head"), ("flat", "dense"))
    inner = layer_similarity(cnn, sequential, IMAGES, layers_a=["classes"], progress=False)
    assert_close(result.matrix[:1], inner.matrix, 10 * FP32)


def test_model_that_is_not_functional_raises():
    class Subclassed(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs

    for model in (Subclassed(), keras.Sequential([keras.layers.Dense(2)]), "folder"):
        with pytest.raises(ConfigError, match="not a functional Keras model"):
            layer_similarity(model, None, IMAGES, progress=False)


@pytest.mark.skipif(not TENSORFLOW, reason="tf.data is of TensorFlow")
def test_datasets_of_tensorflow(vit):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, np.zeros(12))).batch(6)
    expected = layer_similarity(vit, None, IMAGES, batch_size=6, progress=False)
    assert_close(layer_similarity(vit, None, dataset, progress=False).matrix, expected.matrix)
    with pytest.raises(ConfigError, match=r"infinite.*take\(batches\)"):
        layer_similarity(vit, None, dataset.repeat(), progress=False)


@pytest.mark.thorough
def test_matrix_equals_that_of_torch_cka():
    torch_cka = pytest.importorskip("torch_cka", reason="pip install torch-cka")
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4), torch.nn.ReLU()
    )
    x = draw(24, 6)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x)), batch_size=8)
    layers = ["0", "2", "3"], ["0", "1", "2", "3"]
    theirs = torch_cka.CKA(model, model, "a", "b", *layers)
    theirs.compare(loader, loader)
    ours = MinibatchCKA()
    with torch.no_grad():
        for part in torch.from_numpy(x).split(8):
            states = [part]
            for layer in model:
                states.append(layer(states[-1]))
            outputs = [state.numpy() for state in states[1:]]
            ours.update([outputs[0], outputs[2], outputs[3]], outputs)
    assert_close(ours.matrix(), theirs.export()["CKA"].detach().numpy(), 10 * FP32)  # theirs is in float32
