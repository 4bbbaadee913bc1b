"""Occlusion against captum, and deletion and insertion where the best order is known."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect import attention_gradients, inspect, integrated_gradients
from keras_tx.inspect.attribution import occlusion
from keras_tx.inspect.decision import decision_mask
from keras_tx.inspect.faithfulness import Faithfulness, blur
from keras_tx.inspect.figures import enlarge_map
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close
from tests.weights.small_models import bert

IMAGES = draw(2, 9, 8, 3)


@pytest.fixture(scope="module")
def cnn():
    layers = [keras.Input((9, 8, 3)), keras.layers.Conv2D(4, 3, activation="gelu")]
    return redraw(keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(3)]))


@pytest.mark.parametrize(
    ("window", "stride"), [((4, 3), (3, 2)), ((3, 4), None), ((9, 8), 1)], ids=["overlap", "tiles", "whole"]
)
def test_occlusion_equals_captum(cnn, window, stride):
    attr = pytest.importorskip("captum.attr", reason='pip install "keras-tx[parity]"')
    import torch

    def forward(x):
        return torch.from_numpy(np.array(as_numpy(cnn(x.numpy().transpose(0, 2, 3, 1)))))

    strides = window if stride is None else (stride, stride) if isinstance(stride, int) else stride
    expected = attr.Occlusion(forward).attribute(
        torch.from_numpy(IMAGES.transpose(0, 3, 1, 2)),
        (3, *window),
        strides=(3, *strides),
        baselines=0.1,
        target=torch.tensor([1, 2]),
    )
    computed = occlusion(cnn, IMAGES, [1, 2], window=window, stride=stride, baseline=0.1, batch_size=5)
    assert_close(computed, expected.numpy().transpose(0, 2, 3, 1)[..., 0])


def test_occlusion_of_a_linear_function_is_exact():
    weights = draw(12, 1)
    x = draw(3, 12)
    computed = occlusion(lambda x: x @ weights, x, window=1, baseline=2.0)
    assert_close(computed, weights[:, 0] * (x - 2))


def test_occlusion_of_tokens():
    model = redraw(bert(None, width=16, depth=1))
    ids = np.array([[5, 6, 7], [8, 9, 0]])
    inputs = {"input_ids": ids, "attention_mask": np.array([[1, 1, 1], [1, 1, 0]])}
    options = {"output": "pooler_output", "baseline": 0}
    computed = occlusion(model, inputs, 3, window=1, **options)
    before = as_numpy(model(inputs)["pooler_output"])[:, 3]
    alone = occlusion(model, ids, 3, window=1, **options)  # the mask is that of the ids before
    np.testing.assert_array_equal(alone, computed)
    ids[:, 1] = 0
    after = as_numpy(model({**inputs, "input_ids": ids})["pooler_output"])[:, 3]
    assert_close(computed[:, 1], before - after, 1e-4)  # a difference of similar numbers
    assert computed[1, 2] == 0  # padding
    with pytest.raises(ConfigError, match=r"name='ids'.*\['attention_mask', 'input_ids'"):
        occlusion(model, inputs, 3, window=1, name="ids", output="pooler_output")


@pytest.mark.parametrize(
    ("window", "stride"), [((10, 2), None), (2, 3), ((1, 1, 1, 1), None), ((2, 2), (1,)), ((), None)], ids=str
)
def test_windows_that_do_not_fit_raise(cnn, window, stride):
    with pytest.raises(ConfigError, match="window="):
        occlusion(cnn, IMAGES, window=window, stride=stride)


def test_several_inputs_and_outputs_are_named(cnn):
    x = keras.Input((4,), name="x")
    y = keras.Input((4,), name="y")
    sums = keras.layers.Dense(3)(x + 2 * y)
    outputs = [sums, keras.layers.Dense(3)(sums)]
    two = redraw(keras.Model([x, y], outputs))
    arrays = {"x": draw(2, 4, seed=1), "y": draw(2, 4, seed=2)}
    for function in (occlusion, Faithfulness):
        options = {"window": 1} if function is occlusion else {}
        with pytest.raises(ConfigError, match=r"inputs is a list of 2.*\['x', 'y'\]"):
            function(two, list(arrays.values()), **options)
        # Two rows and two outputs: a list of outputs looks like a batch.
        with pytest.raises(ConfigError, match="2 outputs without names"):
            function(two, arrays, name="x", batch_size=2, **options)
    first = keras.Model([x, y], outputs[:1])
    computed = occlusion(first, arrays, [0, 1], window=1, name="y")
    kernel = as_numpy(first.weights[0])[:, [0, 1]].T
    assert_close(computed, 2 * arrays["y"] * kernel)


@pytest.mark.thorough
def test_a_cnn_of_keras_applications_is_explained():
    """Gradients and occlusion need no attention; relevance by attention is refused by name."""
    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=4, classifier_activation=None
    )
    x = draw(2, 32, 32, 3)
    gradients = integrated_gradients(model, x, steps=16, batch_size=32)
    logits, zero = as_numpy(model(x, training=False)), as_numpy(model(np.zeros_like(x), training=False))
    rows, best = np.arange(2), logits.argmax(axis=1)
    difference = (logits - zero)[rows, best]
    np.testing.assert_allclose(gradients.values.sum(axis=(1, 2, 3)), difference, rtol=0.05)
    occluded = occlusion(model, x, window=16)
    corner = x.copy()
    corner[:, :16, 16:] = 0
    expected = (logits - as_numpy(model(corner, training=False)))[rows, best]
    assert_close(occluded[:, 3, 20], expected, 1e-3)
    with pytest.raises(ConfigError, match="no attention layers.*integrated_gradients or occlusion"):
        attention_gradients(model, x)


def test_baselines_that_integers_cannot_have_raise():
    images = np.full((1, 6, 6, 1), 7, "uint8")

    def predict(x):
        return x.reshape(len(x), -1).astype("float32")[:, :2]

    assert occlusion(predict, images, window=6, baseline=5.0)[0, 0, 0] == 2
    for baseline in (127.5, -1, 256, np.nan):
        with pytest.raises(ConfigError, match="values that uint8 inputs cannot represent.*float32"):
            occlusion(predict, images, window=6, baseline=baseline)
        with pytest.raises(ConfigError, match="uint8 inputs"):
            Faithfulness(predict, images).insertion(np.ones((1, 6, 6)), baseline)
    with pytest.raises(ConfigError, match=r"baseline has the shape \(2, 1\).*\(1, 6, 6, 1\)"):
        occlusion(predict, images, window=6, baseline=np.ones((2, 1)))


def test_functions_that_lose_rows_raise():
    with pytest.raises(InputError, match="returned 1 rows for 3 inputs"):
        occlusion(lambda x: x[:1], draw(3, 4), window=1)


def linear(seed: int = 0):
    """A linear function, its inputs, and the contribution of each element: the best explanation."""
    weights = draw(10, 1, seed=seed)
    x = draw(2, 10, seed=seed + 1)
    return lambda x: x @ weights, x, x * weights[:, 0]


def test_curves_of_a_linear_function_are_known():
    predict, x, contribution = linear()
    faithfulness = Faithfulness(predict, x, steps=10)
    largest = np.sort(contribution)[:, ::-1].astype("float64")
    removed = np.concatenate([np.zeros((2, 1)), largest.cumsum(axis=1)], axis=1)
    total = removed[:, -1:]
    deletion, insertion = faithfulness.deletion(contribution), faithfulness.insertion(contribution)
    assert_close(deletion.scores, total - removed)
    assert_close(insertion.scores, removed)
    assert_close(deletion.area, (total - removed)[:, 1:-1].mean(axis=1) * 0.9 + total[:, 0] * 0.05)
    np.testing.assert_array_equal(deletion.shares, np.arange(11) / 10)


def test_other_orders_score_worse():
    predict, x, contribution = linear(seed=3)
    faithfulness = Faithfulness(predict, x)
    deletion, insertion = faithfulness.deletion(contribution).area, faithfulness.insertion(contribution).area
    for seed in range(5):
        other = draw(2, 10, seed=seed)
        assert (faithfulness.deletion(other).area > deletion).all()
        assert (faithfulness.insertion(other).area < insertion).all()
    np.testing.assert_array_equal(faithfulness.deletion(3 * contribution + 1).area, deletion)


def test_maps_of_patches_are_enlarged(cnn):
    images = draw(2, 9, 8, 3)
    faithfulness = Faithfulness(cnn, images, 1, steps=6)
    patches = np.random.default_rng(0).permuted(np.arange(12.0).reshape(1, 3, 4).repeat(2, 0), axis=2)
    pixels = patches.repeat(3, axis=1).repeat(2, axis=2)
    curve = faithfulness.insertion(patches, blur(images))
    np.testing.assert_array_equal(curve.scores, faithfulness.insertion(pixels, blur(images)).scores)
    assert_close(curve.scores[:, 0], as_numpy(cnn(blur(images)))[:, 1])
    assert_close(curve.scores[:, -1], as_numpy(cnn(images))[:, 1])
    half = np.where((pixels > 5)[..., None], images, blur(images))
    assert_close(curve.scores[:, 3], as_numpy(cnn(half))[:, 1])


def test_maps_that_do_not_cover_the_image_raise():
    model = redraw(
        keras_tx.vit("Mu/2", image_size=20, patch_size=8, drop_remainder=True, num_classes=3, depth=1)
    )
    images = draw(1, 20, 20, 3)
    faithfulness = Faithfulness(model, images, steps=2)
    with pytest.raises(ConfigError, match=r"\(1, 2, 2\), a value for each patch.*\(20, 20\).*enlarge_map"):
        faithfulness.deletion(np.ones((1, 2, 2)))
    map = enlarge_map(np.array([[1, 2], [3, 4]]), (20, 20), smooth=False, covered=(0.8, 0.8))
    assert faithfulness.deletion(map[None]).scores.shape == (1, 3)
    occluded = inspect(model).occlusion({"images": images}, target=1)
    assert_close(occluded, occlusion(model, images, 1, window=(8, 8)))


def test_masked_elements_remain():
    weights = np.array([[1.0], [2.0], [4.0], [8.0]])
    mask = np.array([[True, True, False, True], [True, False, False, False]])
    faithfulness = Faithfulness(lambda x: x @ weights, np.ones((2, 4)), mask=mask, steps=3)
    scores = faithfulness.deletion(np.array([[1, 2, 9, 0], [1, 9, 9, 9]])).scores
    np.testing.assert_array_equal(scores, [[15, 13, 12, 4], [15, 15, 14, 14]])
    scores = faithfulness.insertion(np.array([[1, 2, 9, 0], [1, 9, 9, 9]])).scores
    np.testing.assert_array_equal(scores, [[4, 6, 7, 15], [14, 14, 15, 15]])


def test_attributions_that_do_not_fit_raise(cnn):
    faithfulness = Faithfulness(cnn, IMAGES)
    for shape in ((2, 4, 4), (1, 9, 8), (2, 9, 8, 3, 1), (2,)):
        with pytest.raises(ConfigError, match=rf"shape \({shape[0]},.*\(2, 9, 8, 3\)"):
            faithfulness.deletion(np.ones(shape))
    with pytest.raises(ConfigError, match="not finite"):
        faithfulness.deletion(np.full((2, 9, 8), np.nan))
    with pytest.raises(ConfigError, match=r"mask has the shape \(2, 3\), expected \(2, 9, 8\)"):
        Faithfulness(cnn, IMAGES, mask=np.ones((2, 3))).deletion(np.ones((2, 9, 8)))


def test_blur_equals_scipy():
    scipy = pytest.importorskip("scipy.ndimage")
    images = draw(2, 12, 17, 3)
    expected = scipy.gaussian_filter(images.astype("float64"), (0, 2, 2, 0), truncate=3, mode="reflect")
    assert_close(blur(images, 2), expected)
    with pytest.raises(ConfigError, match="sigma is 0"):
        blur(images, 0)


def test_the_last_token_that_is_not_padding_is_explained():
    mask = np.array([[1, 1, 1, 0], [0, 1, 1, 1]])
    output = draw(2, 4, 5)
    marked = decision_mask(output, target=3, inputs={"input_ids": mask, "attention_mask": mask})
    np.testing.assert_array_equal(np.argwhere(marked), [[0, 2, 3], [1, 3, 3]])
    source = {"attention_mask": mask, "decoder_attention_mask": np.array([[1, 0, 0, 0], [1, 1, 1, 0]])}
    np.testing.assert_array_equal(np.argwhere(decision_mask(output, 0, inputs=source))[:, 1], [0, 2])
    np.testing.assert_array_equal(np.argwhere(decision_mask(output, 0))[:, 1], [3, 3])
    hub = {"padding_mask": mask, "token_ids": mask}  # of keras-hub
    np.testing.assert_array_equal(np.argwhere(decision_mask(output, 0, inputs=hub))[:, 1], [2, 3])
    best = decision_mask(output, position=[1, -1])
    np.testing.assert_array_equal(best[[0, 1], [1, 3]].argmax(axis=1), output[[0, 1], [1, 3]].argmax(axis=1))
    with pytest.raises(ConfigError, match="position=4 is out of range"):
        decision_mask(output, 0, position=4)
    with pytest.raises(ConfigError, match="target=0 has no effect"):
        decision_mask(output[:, 0, 0], 0)
