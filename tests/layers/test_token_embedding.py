"""TokenEmbedding: rows by id, and scores of every row with the same table."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import TokenEmbedding
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close

IDS = np.array([[1, 0, 4], [2, 2, 3]])


def test_returns_rows_of_the_table():
    layer = built(TokenEmbedding(5, 8), IDS)
    np.testing.assert_array_equal(as_numpy(layer(IDS)), as_numpy(layer.table)[IDS])


def test_reverse_scores_every_row():
    layer = built(TokenEmbedding(5, 8), IDS)
    x = draw(2, 3, 8)
    assert_close(as_numpy(layer(x, reverse=True)), x @ as_numpy(layer.table).T)


def test_embedding_and_reverse_share_one_variable():
    ids = keras.Input((None,), dtype="int32")
    layer = TokenEmbedding(5, 8)
    model = keras.Model(ids, layer(layer(ids), reverse=True))
    assert len(model.weights) == 1
    assert model.output_shape == (None, None, 5)
    before = as_numpy(layer.table)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.array([[1, 2]]), np.array([[2, 1]]), verbose=0)
    # A lookup alone would leave the rows of other ids as they were.
    assert (as_numpy(layer.table) != before).any(axis=1).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_scores_are_float32_and_not_rounded(policy: str):
    layer, half = (built(TokenEmbedding(5, 8, dtype=dtype), IDS) for dtype in ("float32", policy))
    vectors = half(IDS)
    assert keras.backend.standardize_dtype(vectors.dtype) == policy.removeprefix("mixed_")
    scores = half(vectors, reverse=True)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert_close(as_numpy(scores), as_numpy(layer(as_numpy(vectors), reverse=True)))


def test_from_config_of_get_config():
    layer = TokenEmbedding(5, 8, initializer="ones", name="words")
    assert TokenEmbedding.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenEmbedding(0, 8), r"vocabulary_size is 0, expected a whole number"),
        (lambda: TokenEmbedding(5, 2.5), r"width is 2.5, expected a whole number"),
        (lambda: TokenEmbedding(5, 8, name="words")(draw(2, 3)), r"'words': the ids are float32"),
        (
            lambda: TokenEmbedding(5, 8)(keras.KerasTensor((None, 3, 7)), reverse=True),
            r"reverse=True.*\(None, 3, 7\).*8",
        ),
    ],
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
