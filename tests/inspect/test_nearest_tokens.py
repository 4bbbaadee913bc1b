"""Nearest tokens equal a direct computation with scikit-learn, for vectors, tokens and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import keras_tx
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.inspect import NearestToken, NearestTokens, inspect, nearest_rows
from keras_tx.inspect.embeddings import token_table
from keras_tx.processing import TextTransform
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.exported_folders import CORPUS
from tests.tolerances import FP32, difference
from tests.wordpiece import VOCABULARY, wordpiece


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
    with pytest.raises(ConfigError, match="no Embedding layer"):
        token_table(keras_tx.vit("Mu/2", image_size=8))


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
