"""Filters, positions and nearest tokens of models, against scikit-learn and NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import keras_tx
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.inspect import NearestToken, NearestTokens, inspect, nearest_rows
from keras_tx.inspect.embeddings import (
    patch_kernel,
    position_similarity,
    position_table,
    principal_filters,
    token_table,
)
from keras_tx.layers.position_tables import sine_cosine
from keras_tx.processing import TextTransform
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.exported_folders import CORPUS
from tests.tolerances import FP32, assert_close, difference
from tests.wordpiece import VOCABULARY, wordpiece


@pytest.mark.parametrize("shape", [(4, 3, 2, 40), (4, 4, 3, 9)])  # more filters than pixels, and fewer
def test_components_equal_those_of_scikit_learn(shape):
    decomposition = pytest.importorskip("sklearn.decomposition")
    kernel = draw(*shape) + draw(*shape[:-1], 1, seed=1)  # the mean filter is not 0
    components, shares = principal_filters(kernel, 6)
    theirs = decomposition.PCA(6, svd_solver="full").fit(kernel.reshape(-1, shape[-1]).T.astype("float64"))
    assert_close(shares, theirs.explained_variance_ratio_)
    flat = components.reshape(6, -1)
    signs = np.sign((flat * theirs.components_).sum(axis=1, keepdims=True))
    assert_close(flat, signs * theirs.components_)
    assert (flat[range(6), np.abs(flat).argmax(axis=1)] > 0).all()


def test_count_is_limited_by_pixels_and_filters():
    assert len(principal_filters(draw(2, 2, 3, 40))[0]) == 12
    assert len(principal_filters(draw(4, 4, 3, 10))[0]) == 9
    components, shares = principal_filters(draw(16, 16, 3, 64))
    assert components.shape == (28, 16, 16, 3)
    assert (np.diff(shares) < 0).all()


def test_kernel_of_a_model():
    model = redraw(keras_tx.vit("Mu/2", image_size=8))
    kernel = patch_kernel(model)
    assert kernel.shape == (2, 2, 3, 32)
    assert_close(kernel, as_numpy(model.get_layer("patch_embedding").kernel))
    assert_close(patch_kernel(model, "patch_embedding"), kernel)


def test_errors_contain_the_layer():
    model = keras_tx.vit("Mu/2", image_size=8)
    with pytest.raises(ConfigError, match="layer='block_0'.*'patch_embedding'"):
        patch_kernel(model, "block_0")
    with pytest.raises(ConfigError, match="'gpt' has no PatchEmbedding"):
        patch_kernel(keras_tx.gpt("pico", vocabulary_size=30))


@pytest.mark.parametrize(
    "kernel, count, text",
    [
        (draw(4, 3, 8), 2, r"shape \(4, 3, 8\)"),
        (np.full((2, 2, 3, 8), np.nan), 2, "finite"),
        (np.ones((2, 2, 3, 8)), 2, "All 8 filters"),
        (draw(2, 2, 3, 8), 0, "count=0"),
    ],
)
def test_other_kernels_raise(kernel, count, text):
    with pytest.raises(ConfigError, match=text):
        principal_filters(kernel, count)


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


@pytest.fixture(scope="module")
def bert() -> Any:
    return redraw(keras_tx.bert("tiny", depth=1, processing=TextTransform.of(wordpiece())))


def ranked(table: np.ndarray, vector: np.ndarray) -> tuple[list[int], np.ndarray]:
    similarities = cosine_similarity(vector[None], table)[0]
    order = np.argsort(-similarities)
    return order.tolist(), similarities[order]


def test_rows_equal_scikit_learn():
    table, vector = draw(200, 12), draw(12, seed=1)
    order, similarities = ranked(table, vector)
    made, values = nearest_rows(table, vector, top_k=200)
    assert made.tolist() == order
    np.testing.assert_allclose(values, similarities, atol=1e-6)
    made, values = nearest_rows(table, -7 * vector, top_k=3, omit=[order[-2]])
    assert made.tolist() == [order[-1], order[-3], order[-4]]


def test_rows_of_zeros_are_omitted():
    table = draw(4, 3)
    table[1] = 0
    assert set(nearest_rows(table, [1, 0, 0], top_k=3)[0].tolist()) == {0, 2, 3}
    with pytest.raises(ConfigError, match=r"top_k=4 .* 3 rows"):
        nearest_rows(table, [1, 0, 0], top_k=4)


def test_tokens_of_a_bert(bert):
    table = keras.ops.convert_to_numpy(bert.get_layer("token_embedding").table)
    inspector = inspect(bert)
    number = VOCABULARY.index("cat")
    order, similarities = ranked(table, table[number])
    made = inspector.nearest_tokens("cat", top_k=5)
    assert [token.id for token in made] == order[1:6]  # without the token itself
    assert [token.text for token in made] == [VOCABULARY[index] for index in order[1:6]]
    np.testing.assert_allclose([token.similarity for token in made], similarities[1:6], atol=1e-6)
    assert inspector.nearest_tokens(number, top_k=5) == made
    (own,) = inspector.nearest_tokens(2 * table[number], top_k=1)
    assert own.text == "cat" and own.similarity == pytest.approx(1)


def test_parts_of_characters_are_shown_as_bytes():
    processing = keras_tx.processing.train_byte_bpe(["abc", "a b"] * 3, size=264)
    inspector = inspect(redraw(keras_tx.gpt("pico", processing=processing)))
    text = "\u00e9 \ufffd \U0001f600a"
    tokens = inspector.tokens(text)[0]
    shown = "".join(tokens)
    assert "\ufffd" not in shown
    assert shown == "<0xC3><0xA9> <0xEF><0xBF><0xBD> <0xF0><0x9F><0x98><0x80>a"
    known = keras_tx.processing.train_byte_bpe(["\u00e9 \ufffd"] * 9, size=400)
    names = inspect(keras_tx.gpt("pico", processing=known)).tokens("\u00e9 \ufffd")[0]
    assert "".join(names) == "\u00e9 \ufffd"


def test_token_with_a_space_of_a_byte_tokenizer():
    processing = keras_tx.processing.train_byte_bpe(CORPUS, size=280)
    inspector = inspect(redraw(keras_tx.gpt("pico", processing=processing)))
    number = processing.vocabulary["\u0120the"]
    assert inspector.nearest_tokens(" the", top_k=2) == inspector.nearest_tokens(number, top_k=2)
    with pytest.raises(InputError, match="no token ' the cat'"):
        inspector.nearest_tokens(" the cat")


@pytest.mark.parametrize("name", ["gpt", "bert, none"])
def test_tokens_of_a_folder_equal_those_of_the_model(name: str, exported_folders):
    model, path = exported_folders[name]
    for token in (7, 20):
        expected, made = (inspect(one).nearest_tokens(token, top_k=4) for one in (model, path))
        assert [near.id for near in made] == [near.id for near in expected]
        assert not any(near.text.isdecimal() for near in made)


def test_quantized_folder_has_an_approximate_table(tmp_path: Path):
    model = redraw(keras_tx.gpt("pico", depth=1, vocabulary_size=512, width=256))
    export_onnx(model, tmp_path / "poet", precision=["fp32", "int8"], verify=False)
    table = token_table(model)
    for precision, tolerance in (("fp32", FP32), ("int8", 1 / 127)):
        quantized = inspect(tmp_path / "poet", precision=precision).reader.token_table()
        assert difference(quantized, table) < tolerance
    assert difference(quantized, table) > 0


def test_folder_without_token_embedding_raises(tmp_path: Path):
    inputs = keras.Input((None,), dtype="int32", name="input_ids")
    tokens = keras.layers.Embedding(9, 8, name="words")(inputs)
    model = keras.Model(inputs, keras_tx.layers.MultiHeadAttention(2)(tokens))
    export_onnx(model, tmp_path / "folder", verify=False)
    with pytest.raises(FolderError, match="token_embedding"):
        inspect(tmp_path / "folder").nearest_tokens(3)


def test_table_of_other_models():
    layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 4, name="words")]
    model = keras.Sequential(layers)
    table = keras.ops.convert_to_numpy(model.layers[0].embeddings)
    np.testing.assert_array_equal(token_table(model), table)
    assert token_table(keras_tx.t5("tiny", vocabulary_size=40)).shape == (40, 32)
    with pytest.raises(ConfigError, match="'vit' has 0 Embedding layers"):
        token_table(keras_tx.vit("Mu/2", image_size=8))


def test_model_with_two_embeddings_raises():
    inputs = keras.Input((None,), dtype="int32", name="input_ids")
    embeddings = [keras.layers.Embedding(9, 8, name=name)(inputs) for name in ("words", "places")]
    tokens = keras.layers.Add()(embeddings)
    model = keras.Model(inputs, keras_tx.layers.MultiHeadAttention(2)(tokens), name="own")
    with pytest.raises(ConfigError, match=r"'own' has 2 Embedding layers \('words', 'places'\)"):
        inspect(model).nearest_tokens(3)


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        ("kat", InputError, "no token 'kat'"),
        ("", InputError, "no token ''"),
        (len(VOCABULARY), InputError, f"token is {len(VOCABULARY)}, .* {len(VOCABULARY) - 1}"),
        (-1, InputError, "token is -1"),
        (np.ones(5), InputError, r"shape \(5,\), expected \(128,\)"),
        (np.zeros(128), InputError, "norm 0"),
        (np.full(128, np.nan), InputError, "norm nan"),
    ],
)
def test_wrong_tokens_raise(bert, token: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        inspect(bert).nearest_tokens(token)


def test_wrong_models_and_counts_raise(bert):
    with pytest.raises(ConfigError, match="top_k is 0"):
        inspect(bert).nearest_tokens("cat", top_k=0)
    with pytest.raises(ConfigError, match=f"top_k={len(VOCABULARY)} .* {len(VOCABULARY) - 1} rows"):
        inspect(bert).nearest_tokens("cat", top_k=len(VOCABULARY))
    with pytest.raises(ConfigError, match="'vit' does not accept texts"):
        inspect(keras_tx.vit("Mu/2", image_size=8)).nearest_tokens("cat")
    with pytest.raises(InputError, match="no token 'cat'"):  # no tokenizer
        inspect(keras_tx.gpt("pico")).nearest_tokens("cat")


def test_tokens_print_as_a_table():
    text = repr(NearestTokens([NearestToken(7, " a", 1.0), NearestToken(12, "long one", -0.25)]))
    lines = text.split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == ["12", "'long", "one'", "-0.2500"]
