"""The cases of the verification: vocabularies, masks, and the sizes that Keras accepts."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx.errors import ExportError
from keras_tx.runtime import example_inputs
from keras_tx_onnx import export_onnx
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.reading import registry
from keras_tx_onnx.reading.input_uses import input_uses
from keras_tx_onnx.reading.signature import Functional, as_functional
from keras_tx_onnx.verifying import cases
from tests.drawing import redraw

RANDOM = np.random.default_rng(0)


def ids(name: str = "ids", length: int | None = None):
    return keras.Input((length,), dtype="int32", name=name)


def drawn(model, masks=example_inputs.MASKS, length: int = 8) -> list[np.ndarray]:
    interface = choose_interface(as_functional(model, None), {}, 23)
    return interface.example(dict.fromkeys(interface.axes, length), masks, RANDOM)[1]


def test_integers_stay_in_the_smallest_vocabulary():
    tokens, segments, free = ids(), ids("segments"), ids("free")
    x = layers.Embedding(50, 4)(tokens) + layers.Embedding(3, 4)(segments)
    nested = keras.Model([tokens, segments], x)
    y = nested([tokens + 0, segments])
    y = y + layers.Embedding(20, 4)(tokens) + keras.ops.cast(free, "float32")[..., None]
    model = keras.Model([tokens, segments, free], y)
    assert [use.vocabulary_size for use in input_uses(model)] == [20, 3, 2]
    for array, largest in zip(drawn(model, length=64), (19, 2, 1), strict=True):
        assert (array.min(), array.max(), array.dtype) == (0, largest, "int64")


def test_floats_computed_from_integers_are_not_indices():
    tokens = ids()
    rounded = keras.ops.cast(keras.ops.sigmoid(layers.Embedding(50, 4)(tokens)) > 0.5, "int32")
    model = keras.Model(tokens, layers.Embedding(2, 4)(rounded))
    assert input_uses(model)[0].vocabulary_size == 50


def test_masks_are_equal_in_all_inputs():
    mask, flags = keras.Input((None,), name="padding_mask", dtype="int32"), keras.Input((None,), dtype="bool")
    wide = keras.Input((None, None), name="attention_mask")
    tokens = ids()
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    y = x * keras.ops.cast(mask, "float32")[..., None] * keras.ops.cast(flags, "float32")[..., None]
    model = keras.Model([mask, flags, wide, tokens], [y, wide + 0.0])
    assert [array.dtype.name for array in drawn(model)] == ["int64", "bool", "float32", "int64"]
    expected = {
        "all": [1] * 8,
        "right": [1] * 5 + [0] * 3,
        "left": [0] * 3 + [1] * 5,
        "holes": [0, 1, 1, 0, 1, 1, 0, 1],
        "one token": [0, 0, 0, 0, 1, 0, 0, 0],
        "none": [0] * 8,
    }
    masks = list(example_inputs.MASKS)
    assert masks == list(expected)
    for order in (masks, masks[::-1]):
        padded = drawn(model, order)
        for array in (padded[0], padded[1], padded[3] > 0, padded[2][:, 0], padded[2][:, 7]):
            np.testing.assert_array_equal(array, [expected[kind] for kind in order])


def test_dynamic_axes_have_different_sizes(tmp_path):
    """Where Keras accepts them: a sum needs equal ones."""
    a, b = keras.Input((None, 4), name="a"), keras.Input((None, 4), name="b")
    mean = keras.ops.mean(b, axis=1, keepdims=True)
    report = export_onnx(keras.Model([a, b], a + mean), tmp_path / "free")
    assert report.manifest.parity.cases == (
        "batch 1, a_sequence_length 64, b_sequence_length 96",
        "batch 3, a_sequence_length 64, b_sequence_length 32",
        "batch 2, a_sequence_length 4, b_sequence_length 8",
        "batch 1, length 1",
        "batch 1, length 900",
    )
    report = export_onnx(keras.Model([a, b], a + b), tmp_path / "equal")
    assert report.manifest.parity.cases == (
        "batch 1, length 64",
        "batch 3, length 32",
        "batch 2, length 4",
        "batch 1, length 1",
        "batch 1, length 900",
    )


def test_large_model_is_compared_on_short_texts():
    lengths = []

    class OneAxis(Interface):
        axes = ("n",)
        sequences = True

        def open(self, context):
            return []

        def example(self, sizes, masks, random):
            lengths.append(sizes["n"])
            return {}, [np.zeros(1)]

    interface = OneAxis(Functional(None, []), None, 23)
    for parameters, farthest, expected in (
        (1000, 0, [64, 32, 4, 1, 900]),
        (10**8, 0, [100, 32, 4, 1]),  # instead of 64 and 100
        (10**9, 0, [64, 32, 4, 1]),
        (10**9, 128, [64, 32, 4, 1, 160]),
    ):
        lengths.clear()
        interface.farthest = farthest
        cases.cases_of(interface, lambda arrays: arrays, parameters)
        assert lengths == expected


def test_mean_without_tokens_is_not_compared(tmp_path):
    """It is NaN in Keras."""
    tokens = ids()
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    model = redraw(keras.Model(tokens, layers.GlobalAveragePooling1D()(x)))
    cases_of = export_onnx(model, tmp_path / "out").manifest.parity.cases
    assert cases_of[1] == "batch 6, length 32, masks all right left holes one token"


def test_fixed_batch_has_every_mask(tmp_path):
    tokens, mask = keras.Input(batch_shape=(4, 8), name="x"), keras.Input(batch_shape=(4, 8), name="mask")
    report = export_onnx(keras.Model([tokens, mask], tokens * mask), tmp_path / "out")
    assert report.manifest.parity.cases == (
        "batch 4",
        "batch 4, masks all right left holes",
        "batch 4, masks one token none all right",
    )


@pytest.fixture
def limit_lengths(monkeypatch):
    """Makes Keras accept only these lengths, as a model with a table of positions does."""

    def limit(allowed, error):
        def run(model, inputs):
            if inputs[0].shape[1] not in allowed:
                raise error
            return run_keras(model, inputs)

        run_keras = cases.run_keras
        monkeypatch.setattr(cases, "run_keras", run)

    return limit


def dynamic_model():
    x = keras.Input((None, 4), name="x")
    return redraw(keras.Model(x, layers.Dense(3)(x)))


def test_position_table_limits_the_length(limit_lengths, tmp_path):
    limit_lengths(range(33), IndexError("beyond the table"))
    report = export_onnx(dynamic_model(), tmp_path / "out")
    assert report.manifest.parity.cases == (
        "batch 1, length 32",
        "batch 3, length 16",
        "batch 2, length 4",
        "batch 1, length 1",
    )
    assert "fp32 tolerance 1e-04; batch 1, length 32, batch 3, length 16" in str(report)


def test_single_valid_length_is_used_for_every_case(limit_lengths, tmp_path):
    limit_lengths([96], ValueError("too short"))
    report = export_onnx(dynamic_model(), tmp_path / "out")
    assert report.manifest.parity.cases == ("batch 1, length 96", "batch 3, length 96", "batch 2, length 96")


def test_lengths_are_larger_than_a_window(tmp_path):
    x = keras.Input((None, 2), name="x")
    model = redraw(keras.Model(x, layers.Conv1D(2, 80)(x)))
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.parity.cases == (
        "batch 1, length 96",
        "batch 3, length 128",
        "batch 2, length 224",
        "batch 1, length 900",
    )


def test_fixed_batch_is_kept(tmp_path):
    x = keras.Input(batch_shape=(2, 4), name="x")
    report = export_onnx(redraw(keras.Model(x, layers.Dense(3)(x))), tmp_path / "out")
    assert report.manifest.inputs[0].shape == (2, 4)
    assert report.manifest.parity.cases == ("batch 2", "batch 2")


def test_model_without_a_valid_length_raises(limit_lengths, tmp_path):
    limit_lengths([], ValueError("only between 500 and 600"))
    with pytest.raises(ExportError, match="only between 500.*verify=False"):
        export_onnx(dynamic_model(), tmp_path / "out")
    assert not list(tmp_path.iterdir())
    assert export_onnx(dynamic_model(), tmp_path / "out", verify=False).manifest.parity is None


def test_non_finite_outputs_raise(tmp_path):
    x = keras.Input((4,), name="x")
    model = redraw(keras.Model(x, layers.Dense(3)(x)))
    model.layers[-1].kernel.assign(model.layers[-1].kernel * 3e38)
    with pytest.raises(ExportError, match="'batch 1'"):
        export_onnx(model, tmp_path / "out")


def test_lost_mask_fails_verification(tmp_path, monkeypatch):
    tokens, mask = ids(), keras.Input((None,), name="padding_mask")
    x = layers.Embedding(9, 4)(tokens)
    x = layers.Multiply(name="masked")([x, mask[..., None]])
    model = redraw(keras.Model([tokens, mask], layers.Dense(2)(x)))
    report = export_onnx(model, tmp_path / "right")
    assert report.manifest.parity.cases == (
        "batch 1, length 64",
        "batch 6, length 32, every mask",
        "batch 2, length 4, masks right left",
        "batch 1, length 1",
        "batch 1, length 900",
    )
    right = registry._LOWERINGS[layers.Multiply]
    wrong = dataclasses.replace(right, function=lambda cx, layer, inputs: cx.op.Identity(inputs[0]))
    monkeypatch.setitem(registry._LOWERINGS, layers.Multiply, wrong)
    with pytest.raises(
        ExportError,
        match=r"'batch 6, length 32, every mask'.*'masked' \(Multiply, registered\).*1.0e\+00",
    ):
        export_onnx(model, tmp_path / "wrong")


@pytest.mark.filterwarnings("ignore:Layer 'inner' .of type Functional. was passed an input with a mask")
def test_mask_argument_is_not_an_input_of_a_nested_model():
    x = keras.Input((None, 4), name="x")
    inner = keras.Model(x, layers.Dense(2)(x), name="inner")
    tokens = ids()
    model = keras.Model(tokens, inner(layers.Embedding(7, 4, mask_zero=True)(tokens)))
    assert input_uses(model) == [example_inputs.Use(7, padding=0)]
