"""Explanations of an Inspector: maps of the functions that they call, and occlusion of folders."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect import (
    attention_gradients,
    gradient_rollout,
    inspect,
    integrated_gradients,
    occlusion,
    self_attention_relevance,
)
from keras_tx.processing import train_byte_bpe
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close
from tests.wordpiece import wordpiece

IMAGES = (np.random.default_rng(0).random((2, 8, 12, 3)) * 255).astype("uint8")
TEXTS = ["the cat sat", "Ada lives in London"]
SOURCE = np.array([[7, 8, 9, 1], [9, 5, 1, 0]])
TARGETS = np.array([[11, 12], [13, 14]])


@pytest.fixture(scope="module")
def vit() -> Any:
    options = {"registers": 2, "num_classes": 3}
    return redraw(keras_tx.vit("Mu/2", image_size=(8, 12), depth=2, **options))


@pytest.fixture(scope="module")
def t5() -> Any:
    model = redraw(keras_tx.t5("tiny"))
    for weight in model.weights:
        if "query/" in weight.path:  # T5 does not scale the scores, and one key would have the whole weight
            weight.assign(0.1 * weight)
    return model


def test_maps_of_images(vit):
    inspector = inspect(vit)
    pixels = vit.processing(IMAGES)
    computed = attention_gradients(vit, pixels, target=1)
    relevance = self_attention_relevance(computed.layers[""])[:, 0, 3:].reshape(2, 4, 6)
    assert_close(inspector.relevance(list(IMAGES), target=1), relevance)
    each = inspector.relevance(list(IMAGES), target=[1, 2])
    assert_close(each[0], relevance[0])
    assert_close(each[1], inspector.relevance(IMAGES[1], target=2)[0])
    with pytest.raises(ConfigError, match=r"target is \[1, 2, 0\].* 2 examples"):
        inspector.relevance(list(IMAGES), target=[1, 2, 0])
    rollout = gradient_rollout(computed.layers[""])[:, 0, 3:].reshape(2, 4, 6)
    assert_close(inspector.gradient_rollout(list(IMAGES), target=1), rollout)
    expected = integrated_gradients(vit, pixels, 1, steps=3)
    result = inspector.integrated_gradients(list(IMAGES), target=1, steps=3)
    assert_close(result.values, expected.values.sum(axis=-1))
    np.testing.assert_array_equal(result.scores, expected.scores)
    assert result.values.shape == (2, 8, 12)
    expected = occlusion(vit, pixels, 1, window=(2, 2))
    assert_close(inspector.occlusion(list(IMAGES), target=1), expected)


def test_averaged_tokens_have_their_mean():
    model = redraw(keras_tx.vit("Mu/2", image_size=8, pooling="average", num_classes=3))
    images = model.processing(IMAGES[:, :, :8])
    layers = attention_gradients(model, images, target=0).layers[""]
    expected = self_attention_relevance(layers).mean(axis=1).reshape(2, 4, 4)
    assert_close(inspect(model).relevance({"images": images}, target=0), expected)


def test_maps_of_texts():
    model = redraw(
        keras_tx.bert(
            "tiny", width=16, depth=1, num_classes=3, processing=keras_tx.TextTransform.of(wordpiece())
        )
    )
    tensors = model.processing(TEXTS)
    inspector = inspect(model)
    relevance = inspector.relevance(TEXTS, target=1)
    assert relevance.shape == np.shape(tensors["input_ids"])
    padding = np.asarray(tensors["attention_mask"]) == 0
    assert padding.any()
    assert not relevance[padding].any()
    gradients = inspector.integrated_gradients(TEXTS, target=1, steps=20)
    assert not gradients.values[padding].any()
    assert_close(gradients.values.sum(axis=1), gradients.scores - gradients.baseline_scores, 1e-3)
    occluded = inspector.occlusion(TEXTS, target=1)
    ids = np.array(tensors["input_ids"])
    ids[:, 2] = model.processing.id_of("[MASK]")
    after = as_numpy(model({**tensors, "input_ids": ids}))[:, 1]
    assert_close(occluded[:, 2], as_numpy(model(tensors))[:, 1] - after, 1e-3)
    # A token that becomes padding is still attended to.
    ids = {"input_ids": np.array(tensors["input_ids"])}
    occluded = inspector.occlusion(ids, target=1, baseline=0)
    assert_close(occluded, inspector.occlusion(TEXTS, target=1, baseline=0), 1e-3)


@pytest.mark.parametrize("name", ["vit", "bert, classifier", "gpt"])
def test_occlusion_of_a_folder_equals_that_of_the_model(name, exported_folders):
    exported = exported_folders[name]
    inputs: Any = IMAGES[0, :, :8] if name == "vit" else "the cat sat"
    baseline = None
    if "bert" in name:  # its model has no tokenizer
        tensors = inspect(exported.path).reader.adapter.tensors(TEXTS)
        inputs = {key: np.asarray(value) for key, value in tensors.items()}
        baseline = 4
    mine, theirs = (
        inspect(model).occlusion(inputs, target=2, baseline=baseline)
        for model in (exported.path, exported.model)
    )
    assert_close(mine, theirs, 1e-4)  # of a difference of similar numbers


def test_folders_have_no_gradients(exported_folders):
    inspector = inspect(exported_folders["vit"].path)
    for method in ("relevance", "gradient_rollout", "integrated_gradients"):
        with pytest.raises(ConfigError, match=rf"{method} requires gradients.*load_model"):
            getattr(inspector, method)("missing.png")


def test_parts_of_an_encoder_decoder(t5):
    inspector = inspect(t5)
    options = {"targets": TARGETS, "target": 5}
    source, target = (inspector.relevance(SOURCE, part=part, **options) for part in ("encoder", "decoder"))
    assert source.shape == (2, 4)
    assert target.shape == (2, 3)
    assert source[1, 3] == 0  # padding
    assert target.min() >= 0
    first = inspector.relevance(SOURCE, part="decoder", position=0, **options)
    assert not first[:, 1:].any()  # causal
    gradients = [
        inspector.integrated_gradients(SOURCE, part=part, steps=80, batch_size=160, baseline=0.5, **options)
        for part in ("encoder", "decoder")
    ]
    assert [x.values.shape for x in gradients] == [(2, 4), (2, 3)]
    assert gradients[0].values[1, 3] == 0
    for part in gradients:  # the other part does not change
        assert_close(part.values.sum(axis=1), part.scores - part.baseline_scores, 0.02)  # of the integral
        assert abs(part.error).max() < 0.003
    first = inspector.integrated_gradients(
        SOURCE, part="decoder", position=0, baseline=0.5, steps=200, batch_size=400, **options
    ).values
    assert not first[:, 1:].any()
    occluded = abs(inspector.occlusion(SOURCE, part="decoder", position=0, baseline=4, **options))
    assert occluded[:, 1:].max() < 1e-5 * occluded[:, 0].min()
    for part in (None, "cross"):
        with pytest.raises(ConfigError, match=f"part is {part!r}"):
            inspector.relevance(SOURCE, part=part, **options)
    with pytest.raises(ConfigError, match="gradient_rollout does not support"):
        inspector.gradient_rollout(SOURCE)
    with pytest.raises(InputError, match="'t5' has no tokenizer.*baseline="):
        inspector.occlusion(SOURCE, part="encoder", **options)


def test_the_explained_position_of_a_gpt(exported_folders):
    model = exported_folders["gpt"].model
    inspector = inspect(model)
    last = inspector.relevance(TEXTS, target=3)
    tensors = model.processing(TEXTS)
    lengths = np.asarray(tensors["attention_mask"]).sum(axis=1)
    for row, text in enumerate(TEXTS):
        alone = inspector.relevance(text, target=3)
        real = np.asarray(tensors["attention_mask"])[row] != 0
        assert_close(last[row][real], alone[0])
        assert alone.shape == (1, lengths[row])
    first = inspector.relevance(TEXTS[0], target=3, position=0)
    assert not first[0, 1:].any()


def test_models_of_several_arrays_raise():
    x, y = keras.Input((4, 8), name="x"), keras.Input((4, 8), name="y")
    attended = keras.layers.MultiHeadAttention(2, 4)(x, y)
    inspector = inspect(keras.Model([x, y], keras.layers.Dense(2)(attended[:, 0])))
    arrays = {name: draw(1, 4, 8) for name in ("x", "y")}
    for method, options in (("integrated_gradients", {}), ("occlusion", {"window": 1})):
        with pytest.raises(InputError, match=rf"'x', 'y'.*keras_tx.inspect.{method}"):
            getattr(inspector, method)(arrays, **options)


def test_a_baseline_at_which_gradients_are_large_is_warned_of():
    """Llama normalizes token vectors first, so that it jumps near 0, but not between tokens."""
    processing = train_byte_bpe(TEXTS * 3, size=270)
    inspector = inspect(redraw(keras_tx.gpt("llama-tiny", depth=1, processing=processing)))
    with pytest.warns(
        UserWarning, match="of example 0 sum to .* but the scores differ by .* another baseline"
    ):
        rough = inspector.integrated_gradients(TEXTS[0], target=3, steps=5)
    computed = inspector.integrated_gradients(TEXTS[0], target=3, steps=20, baseline=" ")
    assert abs(computed.error[0]) < 1e-3 * abs(rough.error[0])
    with pytest.raises(InputError, match="baseline='unknown token'"):
        inspector.integrated_gradients(TEXTS[0], baseline="unknown token")
    with pytest.raises(ConfigError, match="baseline='gray' is for texts"):
        inspect(keras_tx.vit("Mu/2", image_size=8)).integrated_gradients(IMAGES[0, :, :8], baseline="gray")
