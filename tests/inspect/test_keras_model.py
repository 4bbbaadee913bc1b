"""Attention weights and hidden states of Keras models equal those of `with_outputs`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect import PatchGrid, inspect, inspector
from keras_tx.inspect.graph_evaluation import GraphEvaluation
from keras_tx.layers import TransformerBlock
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

IMAGES = (np.random.default_rng(0).random((2, 8, 8, 3)) * 255).astype("uint8")
IDS = np.array([[5, 6, 7, 8, 1], [9, 10, 1, 0, 0]])
MASK = (IDS != 0).astype("int64")
TARGETS = np.array([[11, 12, 13], [14, 15, 16]])


@pytest.fixture(scope="module")
def vit() -> Any:
    return redraw(keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3))


@pytest.fixture(scope="module")
def t5() -> Any:
    return redraw(keras_tx.t5("tiny"))


def test_vit_equals_its_outputs(vit):
    inspected = inspect(vit)
    expected = as_numpy(vit.with_outputs(hidden_states=True, attentions=True)(vit.processing(IMAGES)))
    for name, arrays in (
        ("attentions", inspected.attention(IMAGES)),
        ("hidden_states", inspected.hidden_states(IMAGES)),
    ):
        assert len(arrays) == len(expected[name])
        for mine, theirs in zip(arrays, expected[name], strict=True):
            assert mine.dtype == np.float32
            assert_close(mine, theirs)


def test_text_equals_its_outputs_and_padding_is_0():
    model = redraw(keras_tx.bert("tiny", vocabulary_size=50, depth=2))
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    expected = as_numpy(model.with_outputs(hidden_states=True, attentions=True)(model.complete(inputs)))
    inspected = inspect(model)
    for mine, theirs in zip(inspected.attention(inputs), expected["attentions"], strict=True):
        assert_close(mine, theirs * MASK[:, None, :, None])
        assert (mine[1, :, 3:] == 0).all() and (mine[1, :, :, 3:] == 0).all()
    for mine, theirs in zip(inspected.hidden_states(inputs), expected["hidden_states"], strict=True):
        assert_close(mine, theirs * MASK[:, :, None])
    assert inspected.tokens(inputs)[1] == ["9", "10", "1", "0", "0"]


def test_parts_of_an_encoder_decoder_equal_its_outputs(t5):
    inspected = inspect(t5)
    assert inspected.parts == ("encoder", "decoder", "cross")
    shifted = np.insert(TARGETS, 0, t5.start_id, axis=1)
    inputs = t5.complete({"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": shifted})
    expected = as_numpy(t5.with_outputs(hidden_states=True, attentions=True)(inputs))
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    for part, name in names.items():
        rows = MASK[:, None, :, None] if part == "encoder" else 1
        arrays = inspected.attention({"input_ids": IDS}, targets=TARGETS, part=part)
        for mine, theirs in zip(arrays, expected[name], strict=True):
            assert_close(mine, theirs * rows)
    for part in ("encoder", "decoder"):
        rows = MASK[:, :, None] if part == "encoder" else 1
        arrays = inspected.hidden_states({"input_ids": IDS}, targets=TARGETS, part=part)
        for mine, theirs in zip(arrays, expected[f"{part}_hidden_states"], strict=True):
            assert_close(mine, theirs * rows)
    assert inspected.tokens({"input_ids": IDS}, targets=TARGETS, part="decoder")[0] == ["0", "11", "12", "13"]
    with pytest.raises(ConfigError, match="part is None"):
        inspected.attention({"input_ids": IDS})
    with pytest.raises(ConfigError, match="part='cros'"):
        inspected.attention({"input_ids": IDS}, part="cros")
    with pytest.raises(ConfigError, match="part='cross' has no hidden states"):
        inspected.hidden_states({"input_ids": IDS}, part="cross")


def test_parts_that_are_models_of_their_own(t5):
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    expected = inspect(t5).attention(inputs, part="encoder")
    for mine, theirs in zip(inspect(t5.encoder()).attention(inputs), expected, strict=True):
        assert_close(mine, theirs)
    with pytest.raises(ConfigError, match="'t5_decoder' contains the keras.Function"):
        inspect(t5.decoder())


def test_layers_are_selected_by_index_and_name(vit):
    inspected = inspect(vit)
    every = inspected.attention(IMAGES)
    assert inspected.layer_names() == ["block_0", "block_1", "block_2"]
    for layers, expected in ((-1, [2]), (["block_1", 0], [1, 0]), ([0, 0], [0, 0]), ("block_0", [0])):
        chosen = inspected.attention(IMAGES, layers=layers)
        assert len(chosen) == len(expected)
        for mine, index in zip(chosen, expected, strict=True):
            np.testing.assert_array_equal(mine, every[index])
    (state,) = inspected.hidden_states(IMAGES, layers="block_2")
    np.testing.assert_array_equal(state, inspected.hidden_states(IMAGES)[-1])
    with pytest.raises(ConfigError, match="no layer 'blok_1'. Did you mean 'block_1'"):
        inspected.attention(IMAGES, layers="blok_1")
    with pytest.raises(ConfigError, match="layers has 3, .* 3 layers"):
        inspected.attention_layers(IMAGES, layers=[0, 3])
    with pytest.raises(ConfigError, match="layers has 1.5"):
        inspected.attention(IMAGES, layers=[1.5])


def test_large_results_raise_before_they_are_computed(vit, monkeypatch):
    monkeypatch.setattr(inspector, "MAX_BYTES", 2 * 2 * 2 * 17 * 17 * 4)  # of two layers
    inspected = inspect(vit)
    with pytest.raises(InputError, match=r"attention weights \(2, 2, 17, 17\) of 3 layers"):
        inspected.attention(IMAGES)
    assert len(inspected.attention(IMAGES, layers=[0, 2])) == 2
    assert len(list(inspected.attention_layers(IMAGES))) == 3


@pytest.mark.parametrize(
    ("options", "prefix", "has_class_token"),
    [
        ({}, 1, True),
        ({"pooling": "average"}, 0, False),
        ({"distillation": True, "registers": 3}, 5, True),
        ({"pooling": "average", "registers": 2}, 2, False),
    ],
    ids=["token", "average", "registers", "registers only"],
)
def test_grid_of_patches(options, prefix, has_class_token):
    model = keras_tx.vit("Mu/2", image_size=(8, 12), depth=1, **options)
    grid = inspect(model).grid(np.zeros((8, 12, 3), "uint8"))
    assert grid == PatchGrid(4, 6, prefix, registers=options.get("registers", 0))
    assert grid.has_class_token == has_class_token


def test_grid_without_the_remainder():
    model = keras_tx.vit("Mu/2", image_size=(8, 12), patch_size=5, depth=1, drop_remainder=True)
    assert inspect(model).grid(np.zeros((8, 12, 3), "uint8")) == PatchGrid(1, 2, 1, (5 / 8, 10 / 12))


def test_functional_model_with_attention_layers_of_keras():
    tokens = keras.Input((6, 8))
    first = keras.layers.MultiHeadAttention(2, 4, name="first")
    second = keras.layers.MultiHeadAttention(2, 4, name="second")
    x = keras.layers.Dense(8)(first(tokens, tokens))
    model = redraw(keras.Model(tokens, second(x, tokens, use_causal_mask=True)))
    inputs = draw(2, 6, 8)
    inspected = inspect(model)
    assert inspected.layer_names() == ["first", "second"]
    one, two = inspected.attention(inputs)
    _, expected = first(inputs, inputs, return_attention_scores=True)
    assert_close(one, as_numpy(expected))
    x = model.layers[2](first(inputs, inputs))
    _, expected = second(x, inputs, use_causal_mask=True, return_attention_scores=True)
    assert_close(two, as_numpy(expected))
    with pytest.raises(ConfigError, match="hidden states"):
        inspected.hidden_states(inputs)


@pytest.fixture(scope="module")
def crossed() -> Any:
    """A decoder of one's own, which is no encoder-decoder of keras_tx."""
    source, target = keras.Input((6, 8), name="source"), keras.Input((4, 8), name="target")
    block = TransformerBlock(2, 16, cross_attention=True, causal=True, name="decoder")
    encoded = TransformerBlock(2, 16, name="encoder")(source)
    return redraw(keras.Model([source, target], keras.layers.Dense(3)(block(target, encoded))))


def test_cross_attention_of_other_models(crossed, tmp_path):
    inputs = {"source": draw(2, 6, 8), "target": draw(2, 4, 8, seed=1)}
    export_onnx(crossed, tmp_path / "folder", verify=False)
    one, other = inspect(crossed), inspect(tmp_path / "folder")
    names = ["encoder", "decoder", "decoder/cross_attention"]
    assert one.layer_names() == other.layer_names() == names
    encoded = crossed.get_layer("encoder")(inputs["source"])
    block = crossed.get_layer("decoder")
    _, *expected = block(inputs["target"], encoded, return_attention_scores=True)
    for inspected in (one, other):
        for mine, theirs in zip(inspected.attention(inputs)[1:], expected, strict=True):
            assert_close(mine, as_numpy(theirs))
        (weights,) = inspected.attention(inputs, layers="decoder/cross_attention")
        assert_close(weights, as_numpy(expected[1]))
    with pytest.raises(ConfigError, match="has cross-attention.*encoder_decoder_relevance"):
        one.relevance(inputs)


def test_names_of_layers_that_are_called_twice_raise():
    tokens, block = keras.Input((6, 8)), TransformerBlock(2, 16, name="shared")
    inspected = inspect(keras.Model(tokens, block(block(tokens))))
    assert len(inspected.attention(draw(1, 6, 8), layers=1)) == 1
    with pytest.raises(ConfigError, match=r"'shared' several times. Pass one of \[0, 1\]"):
        inspected.attention(draw(1, 6, 8), layers="shared")


def test_tensors_of_another_shape_raise(vit):
    other = np.zeros((1, 4, 4, 3), "float32")  # Keras's layers would accept it without positions
    with pytest.raises(InputError, match=r"\(1, 4, 4, 3\).*\(None, 8, 8, 3\)"):
        inspect(keras_tx.vit("Mu/2", image_size=8, positions="relative")).attention({"images": other})
    with pytest.raises(InputError, match=r"inputs are empty.*\(0, 8, 8, 3\)"):
        inspect(vit).attention({"images": np.zeros((0, 8, 8, 3))})
    with pytest.raises(InputError, match=r"inputs are empty"):
        inspect(vit).attention([])


def test_every_value_is_freed_after_its_last_use(t5):
    reader = inspect(t5).reader
    values = reader._values({"input_ids": IDS, "decoder_input_ids": TARGETS})
    evaluation = GraphEvaluation(reader.inputs, values, reader.graph)
    largest = 0
    for call in reader.graph:
        evaluation.call(call)
        largest = max(largest, len(evaluation._values))
    assert not evaluation._values and largest < 10 < len(reader.graph)


def test_models_without_reachable_attention_raise():
    @keras.saving.register_keras_serializable("tests")
    class Outer(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = keras.layers.MultiHeadAttention(2, 4)

        def call(self, x):
            return self.inner(x, x)

    tokens = keras.Input((6, 8))
    with pytest.raises(ConfigError, match="'hidden' .*Outer"):
        inspect(keras.Model(tokens, Outer(name="hidden")(tokens)))
    seen = keras.layers.MultiHeadAttention(2, 4)(tokens, tokens)
    with pytest.raises(ConfigError, match="'more' .*Outer"):  # would be missing in the list
        inspect(keras.Model(tokens, Outer(name="more")(seen)))
    with pytest.raises(ConfigError, match="'flat' has no layers with attention"):
        inspect(keras.Model(tokens, keras.layers.Flatten()(tokens), name="flat"))

    class Subclassed(keras.Model):
        pass

    with pytest.raises(ConfigError, match="'subclassed' is not a functional"):
        inspect(Subclassed(name="subclassed"))
    with pytest.raises(ConfigError, match="numpy.ndarray"):
        inspect(np.zeros(3))
    with pytest.raises(ConfigError, match="precision='fp16'"):
        inspect(keras_tx.gpt("pico"), precision="fp16")


def test_inputs_of_another_kind_raise(vit, t5, tmp_path):
    with pytest.raises(InputError, match="'A cat.', but 'vit' accepts images"):
        inspect(vit).attention("A cat.")
    with pytest.raises(InputError, match="has no tokens"):
        inspect(vit).tokens(IMAGES)
    with pytest.raises(InputError, match="'t5' is a text model"):
        inspect(t5).grid({"input_ids": IDS})
    with pytest.raises(InputError, match=r"shape \(2, 8, 8, 3\), but 't5' accepts texts"):
        inspect(t5).attention(IMAGES, part="encoder")
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"")
    with pytest.raises(InputError, match="inputs is '.*, but 't5' accepts texts"):
        inspect(t5).attention(str(picture), part="encoder")
    with pytest.raises(InputError, match="'t5' has no tokenizer"):
        inspect(t5).attention("A cat.", part="encoder")
    with pytest.raises(InputError, match="part='cross' requires targets="):
        inspect(t5).attention(IDS, part="cross")
    with pytest.raises(InputError, match="targets= is for encoder-decoders"):
        inspect(vit).attention(IMAGES, targets="A cat.")
    with pytest.raises(InputError, match="'pixels', but 'vit' accepts 'images'"):
        inspect(vit).attention({"pixels": IMAGES})
