"""ConvLSTM1D, ConvLSTM2D and ConvLSTM3D: options, states and masks, at lengths not seen in the export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.export.test_recurrent import OTHER_ON_JAX
from tests.tolerances import assert_close

KINDS = {1: layers.ConvLSTM1D, 2: layers.ConvLSTM2D, 3: layers.ConvLSTM3D}
SIZES = (5, 6, 4)
CHANNELS = 2


def check(model: Any, folder: Path, *shapes: tuple[int, ...], opset: int = 23) -> None:
    """`shapes` are those of other inputs, without the batch."""
    redraw(model)
    exported(model, folder / "out", opset=opset)
    for batch, length in ((1, 3), (3, 7)):
        images = draw(batch, length, *model.inputs[0].shape[2:])
        arrays = [images, *(draw(batch, *shape, seed=i) for i, shape in enumerate(shapes))]
        for computed, expected in zip(run(folder / "out", *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(computed, expected)
    assert nodes_of(folder / "out")["Scan"]


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("rank", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": "same", "return_sequences": True, "return_state": True},
        {"strides": 2, "go_backwards": True, "return_sequences": True, "use_bias": False},
        {"padding": "same", "dilation_rate": 2, "activation": "relu", "recurrent_activation": "hard_sigmoid"},
    ],
    ids=str,
)
def test_options(options: dict[str, Any], rank: int, opset: int, tmp_path):
    x = keras.Input((None, *SIZES[:rank], CHANNELS), name="x")
    check(keras.Model(x, KINDS[rank](3, 2, **options)(x)), tmp_path, opset=opset)


@pytest.mark.parametrize("sequences", [True, False])
def test_channels_first(sequences: bool, tmp_path):
    x = keras.Input((None, CHANNELS, *SIZES[:2]), name="x")
    layer = layers.ConvLSTM2D(3, 2, data_format="channels_first", return_sequences=sequences)
    check(keras.Model(x, layer(x)), tmp_path)


def test_initial_state(tmp_path):
    x = keras.Input((None, *SIZES[:2], CHANNELS), name="x")
    state = (*SIZES[:2], 3)
    states = [keras.Input(state, name="h"), keras.Input(state, name="c")]
    layer = layers.ConvLSTM2D(3, 2, padding="same", return_state=True)
    check(keras.Model([x, *states], layer(x, initial_state=states)), tmp_path, state, state)


def test_bidirectional(tmp_path):
    x = keras.Input((None, *SIZES[:2], CHANNELS), name="x")
    layer = layers.Bidirectional(layers.ConvLSTM2D(3, 2, return_sequences=True))
    check(keras.Model(x, layer(x)), tmp_path)


@OTHER_ON_JAX
def test_mask(tmp_path):
    x, mask = keras.Input((None, 5, CHANNELS), name="x"), keras.Input((None,), name="mask", dtype="bool")
    model = redraw(keras.Model([x, mask], layers.ConvLSTM1D(3, 2, return_sequences=True)(x, mask=mask)))
    exported(model, tmp_path / "out")
    for length in (3, 7):
        images = draw(4, length, 5, CHANNELS)
        real = np.random.default_rng(length).random((4, length)) > 0.4
        assert_close(*run(tmp_path / "out", images, real), *outputs_of(model, images, real))
