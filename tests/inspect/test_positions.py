"""Similarity of positional embeddings equals a loop, for learned and computed tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect.embeddings import position_similarity, position_table
from keras_tx.layers.position_tables import sine_cosine
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return sum(x * y) / math.sqrt(sum(x * x) * sum(y * y))


def test_similarity_equals_a_loop():
    table = draw(1 + 6, 8)
    similarity = position_similarity(table, (2, 3), prefix_tokens=1)
    assert similarity.shape == (2, 3, 2, 3)
    for i in range(6):
        for j in range(6):
            expected = cosine(table[1 + i].astype("float64"), table[1 + j].astype("float64"))
            assert similarity[i // 3, i % 3, j // 3, j % 3] == pytest.approx(expected, abs=1e-12)


def test_similarity_of_a_sequence_depends_on_the_distance_for_sines():
    similarity = position_similarity(sine_cosine((9,), 16), (9,))
    assert similarity.shape == (9, 9)
    for offset in range(9):
        diagonal = np.diagonal(similarity, offset)
        assert_close(diagonal, np.full_like(diagonal, diagonal[0]))


@pytest.mark.parametrize("kind", ["learned", "learned-2d", "sine-cosine", "fourier"])
def test_table_of_a_model_with_a_class_token(kind):
    model = redraw(keras_tx.vit("Mu/2", image_size=(6, 8), positions=kind))
    table, grid, prefix_tokens = position_table(model)
    assert (table.shape, grid, prefix_tokens) == ((13, 32), (3, 4), 1)
    zeros = np.zeros((1, 13, 32), "float32")
    assert_close(table, as_numpy(model.get_layer("positions")(zeros))[0])
    assert position_similarity(table, grid, prefix_tokens).shape == (3, 4, 3, 4)


def test_errors_contain_the_layers():
    with pytest.raises(ConfigError, match="kind='none'"):
        position_table(keras_tx.vit("Mu/2", image_size=8, positions="none"))
    model = keras_tx.transformer("tiny")
    with pytest.raises(
        ConfigError, match="2 PositionalEmbedding layers.*'encoder_positions', 'decoder_positions'"
    ):
        position_table(model)
    assert position_table(model, "decoder_positions")[0].ndim == 2


@pytest.mark.parametrize(
    "table, text",
    [
        (draw(5, 4), r"\(5, 4\).*\(4, width\)"),
        (np.eye(4)[[0, 1, 2, 2]] * [1, 1, 0, 1], "position 2 has the norm 0"),
    ],
)
def test_other_tables_raise(table, text):
    with pytest.raises(ConfigError, match=text):
        position_similarity(table, (2, 2))
