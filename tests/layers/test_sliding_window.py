"""SlidingWindow: which keys a query may attend to."""

from __future__ import annotations

import keras
import numpy as np

from keras_tx.layers import MultiHeadAttention
from keras_tx.layers.sliding_window import SlidingWindow
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close


def test_tokens_attend_to_their_neighbours():
    mask = as_numpy(SlidingWindow(2)(np.zeros((3, 6), "int32")))
    assert mask.dtype == bool and mask.shape == (1, 6, 6)
    rows, columns = np.indices((6, 6))
    np.testing.assert_array_equal(mask[0], abs(rows - columns) <= 2)
    np.testing.assert_array_equal(as_numpy(SlidingWindow(0)(np.zeros((1, 4))))[0], np.eye(4))
    assert as_numpy(SlidingWindow(9)(np.zeros((1, 4)))).all()


def test_attention_with_a_window_depends_on_the_neighbours_only():
    layer = built(MultiHeadAttention(2), x := draw(1, 7, 8))
    changed = x + np.where(np.arange(7) == 6, 1.0, 0.0)[:, None].astype("float32")
    near, other = (as_numpy(layer(y, attention_mask=SlidingWindow(3)(y))) for y in (x, changed))
    assert_close(near[:, :3], other[:, :3])
    assert np.abs(near[:, 3:] - other[:, 3:]).max(axis=-1).min() > 1e-3


def test_it_is_saved_with_its_distance(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    keras.Model(ids, SlidingWindow(distance=1, name="window")(ids)).save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    assert loaded.get_layer("window").distance == 1
    assert as_numpy(loaded(np.zeros((2, 3), "int32"))).sum() == 7
