"""Losses of sentence embeddings equal NumPy's, and those of sentence-transformers on the same batch.

The comparison with sentence-transformers runs where it is installed:
`pip install --no-deps sentence-transformers scikit-learn scipy joblib threadpoolctl`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import mine_hard_negatives, text_ranking_batches, text_similarity_batches
from keras_tx.errors import ConfigError, InputError, TextError
from keras_tx.losses import CoSENTLoss, MatryoshkaLoss, MultipleNegativesRankingLoss
from keras_tx.processing import TextTransform
from tests.drawing import as_numpy
from tests.wordpiece import wordpiece

TEMPERATURE = 0.1
INSTALL = "pip install --no-deps sentence-transformers scikit-learn scipy joblib threadpoolctl"


def columns(count: int, samples: int = 5, width: int = 8) -> np.ndarray:
    """Vectors (columns, samples, width) of different lengths."""
    random = np.random.default_rng(count)
    return random.standard_normal((count, samples, width)).astype("float32") * 3


def ranking(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels and rows of a batch, as text_ranking_batches has them."""
    count, samples, width = vectors.shape
    group, role = np.repeat(np.arange(samples), count), np.tile(np.arange(count), samples)
    return np.stack([group, role, np.arange(len(group))], 1), vectors.transpose(1, 0, 2).reshape(-1, width)


def similarity(vectors: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    samples, width = vectors.shape[1:]
    pair = np.repeat(np.arange(samples), 2)
    labels = np.stack([pair, np.repeat(scores, 2)], 1).astype("float32")
    return labels, vectors.transpose(1, 0, 2).reshape(-1, width)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (x.astype("float64") / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    return a @ b.T / TEMPERATURE


def logsumexp(x: np.ndarray, axis: int) -> np.ndarray:
    return np.log(np.exp(x).sum(axis))


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("symmetric", [False, True])
def test_multiple_negatives_ranking(count: int, symmetric: bool):
    vectors = columns(count)
    scores = cosines(vectors[0], vectors[1:].reshape(-1, 8))  # the positives, then the negatives
    own = np.diagonal(scores)
    expected = np.mean(logsumexp(scores, 1) - own)
    if symmetric:
        expected = (expected + np.mean(logsumexp(scores[:, :5], 0) - own)) / 2
    labels, rows = ranking(vectors)
    loss = MultipleNegativesRankingLoss(TEMPERATURE, symmetric)
    assert float(loss(labels, rows)) == pytest.approx(expected, rel=1e-5)
    order = np.random.default_rng(0).permutation(len(rows))
    assert float(loss(labels[order], rows[order])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_repeated_positive_is_not_a_negative(symmetric: bool):
    vectors = columns(2)
    vectors[1, 3] = vectors[1, 0]
    labels, rows = ranking(vectors)
    labels[7, 2] = labels[1, 2]
    scores = cosines(vectors[0], vectors[1])
    own = np.diagonal(scores).copy()
    scores[0, 3] = scores[3, 0] = -np.inf
    expected = np.mean(logsumexp(scores, 1) - own)
    if symmetric:
        expected = (expected + np.mean(logsumexp(scores, 0) - own)) / 2
    loss = MultipleNegativesRankingLoss(TEMPERATURE, symmetric)
    assert float(loss(labels, rows)) == pytest.approx(expected, rel=1e-5)


SCORES = np.array([0.2, 0.9, 0.9, 0.4, 0.0])


def test_cosent():
    vectors = columns(2)
    pairs = np.diagonal(cosines(vectors[0], vectors[1]))
    terms = [pairs[i] - pairs[j] for i in range(5) for j in range(5) if SCORES[i] < SCORES[j]]
    expected = np.log(1 + np.exp(terms).sum())
    labels, rows = similarity(vectors, SCORES)
    assert float(CoSENTLoss(TEMPERATURE)(labels, rows)) == pytest.approx(expected, rel=1e-5)
    equal = similarity(vectors, np.full(5, 0.5))
    assert float(CoSENTLoss(TEMPERATURE)(*equal)) == 0


def test_matryoshka():
    labels, rows = ranking(columns(3))
    inner = MultipleNegativesRankingLoss(TEMPERATURE)
    parts = [float(inner(labels, rows[:, :dim])) for dim in (8, 4, 2)]
    loss = MatryoshkaLoss(inner, [8, 4, 2], [1.0, 0.5, 0.25])
    assert float(loss(labels, rows)) == pytest.approx(np.dot(parts, [1.0, 0.5, 0.25]), rel=1e-5)
    with pytest.raises(ConfigError, match="dims has 16, but the vectors have 8 dimensions"):
        MatryoshkaLoss(inner, [16])(labels, rows)


@pytest.mark.parametrize(
    "loss",
    [
        MultipleNegativesRankingLoss(0.1, symmetric=True),
        CoSENTLoss(0.1),
        MatryoshkaLoss(CoSENTLoss(0.1), [8, 4], [1.0, 0.5]),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_saved_and_loaded(loss: Any):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert again.get_config() == loss.get_config()
    ranks = isinstance(loss, MultipleNegativesRankingLoss)
    batch = ranking(columns(2)) if ranks else similarity(columns(2), SCORES)
    assert float(again(*batch)) == float(loss(*batch))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultipleNegativesRankingLoss(0), "temperature=0 is out of range"),
        (lambda: CoSENTLoss(-1.0), "temperature=-1.0"),
        (lambda: CoSENTLoss()(np.arange(4), columns(2)[0][:4]), r"labels of shape \(4,\).*\(rows, 2\)"),
        (lambda: MultipleNegativesRankingLoss()(SCORES[:, None], columns(2)[0]), r"\(5, 1\).*\(rows, 3\)"),
        (lambda: MatryoshkaLoss("mse", [4]), "loss='mse' is a str"),
        (lambda: MatryoshkaLoss(CoSENTLoss(), [0]), r"dims=\[0\]"),
        (lambda: MatryoshkaLoss(CoSENTLoss(), [4, 2], [1.0]), "weights has 1 numbers, but dims has 2"),
    ],
)
def test_invalid_arguments_raise(call: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        call()


class Embedded:
    """A model of sentence-transformers that returns vectors; its features are the number of a column."""

    def __new__(cls, vectors: Any) -> Any:
        import torch

        class Model(torch.nn.Module):
            def forward(self, features: dict[str, Any]) -> dict[str, Any]:
                return {"sentence_embedding": vectors[int(features["column"])]}

            def get_embedding_dimension(self) -> int:
                return vectors.shape[-1]

        return Model()


def theirs(name: str, vectors: np.ndarray, labels: Any, **options: Any) -> tuple[float, np.ndarray]:
    """The loss of sentence-transformers, and its gradient."""
    pytest.importorskip("sentence_transformers", reason=INSTALL)
    import torch
    from sentence_transformers.sentence_transformer import losses

    tensor = torch.tensor(vectors, requires_grad=True)
    model = Embedded(tensor)
    features = [{"column": torch.tensor(index)} for index in range(len(vectors))]
    dims, weights = options.pop("dims", None), options.pop("weights", None)
    loss = getattr(losses, name)(model, scale=1 / TEMPERATURE, **options)
    if dims is not None:
        loss = losses.MatryoshkaLoss(model, loss, matryoshka_dims=dims, matryoshka_weights=weights)
    value = loss(features, None if labels is None else torch.tensor(labels))
    value.backward()
    return value.item(), tensor.grad.numpy()


def gradient(loss: Any, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Our gradient, from a step of SGD with the rate 1."""
    layer = keras.layers.Embedding(len(rows), rows.shape[1])
    model = keras.Sequential([keras.Input((), dtype="int32"), layer])
    layer.embeddings.assign(rows)
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.train_on_batch(np.arange(len(rows)), labels)
    return rows - as_numpy(layer.embeddings)


REFERENCES = [
    ("MultipleNegativesRankingLoss", 2, MultipleNegativesRankingLoss(TEMPERATURE), {}),
    ("MultipleNegativesRankingLoss", 4, MultipleNegativesRankingLoss(TEMPERATURE), {}),
    (
        "MultipleNegativesRankingLoss",
        3,
        MultipleNegativesRankingLoss(TEMPERATURE, symmetric=True),
        {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
    ),
    ("CoSENTLoss", 2, CoSENTLoss(TEMPERATURE), {}),
    (
        "MultipleNegativesRankingLoss",
        3,
        MatryoshkaLoss(MultipleNegativesRankingLoss(TEMPERATURE), [8, 4], [1.0, 0.5]),
        {"dims": [8, 4], "weights": [1.0, 0.5]},
    ),
]


@pytest.mark.parametrize(
    ("name", "count", "loss", "options"), REFERENCES, ids=lambda x: str(x) if isinstance(x, str | int) else ""
)
def test_equals_sentence_transformers(name: str, count: int, loss: Any, options: dict[str, Any]):
    vectors = columns(count)
    scores = SCORES.astype("float32") if name == "CoSENTLoss" else None
    expected, slopes = theirs(name, vectors, scores, **dict(options))
    labels, rows = ranking(vectors) if scores is None else similarity(vectors, scores)
    assert float(loss(labels, rows)) == pytest.approx(expected, rel=1e-5)
    ours = gradient(loss, labels, rows).reshape(5, count, 8).transpose(1, 0, 2)
    np.testing.assert_allclose(ours, slopes, atol=1e-5 * np.abs(slopes).max())


# ---- Batches and mining.

ANCHORS, POSITIVES = ["the cat", "Ada", "a film", "Ada"], ["the cat sat", "Ada lives", "good", "Ada lives"]


def test_rows_of_ranking_batches():
    transform = TextTransform.of(wordpiece())
    negatives = [["bad", "good"]] * 4
    batches = text_ranking_batches(
        ANCHORS, POSITIVES, transform, negatives=negatives, batch_size=4, shuffle=False
    )
    inputs, labels = batches[0]
    texts = [text for row in zip(ANCHORS, POSITIVES, negatives, strict=True) for text in (*row[:2], *row[2])]
    for name, array in transform(texts).items():
        np.testing.assert_array_equal(inputs[name], array)
    assert labels[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert labels[:, 1].tolist() == [0, 1, 2, 3] * 4
    same = np.array([[a == b for b in texts] for a in texts])
    np.testing.assert_array_equal(labels[:, 2][:, None] == labels[:, 2], same)


def test_rows_of_similarity_batches():
    batches = text_similarity_batches(
        ANCHORS, POSITIVES, [0, 1, 0.5, 1], TextTransform.of(wordpiece()), batch_size=3, seed=1
    )
    assert [len(labels) for _, labels in (batches[0], batches[1])] in ([6, 2], [2, 6])
    for inputs, labels in (batches[0], batches[1]):
        assert inputs["input_ids"].shape[0] == len(labels)
        np.testing.assert_array_equal(labels[::2], labels[1::2])


def test_invalid_columns_raise():
    transform = TextTransform.of(wordpiece())
    with pytest.raises(TextError, match="different lengths: 4, 3"):
        text_ranking_batches(ANCHORS, POSITIVES[:3], transform)
    with pytest.raises(TextError, match=r"negatives\[1\] has 2 texts"):
        text_ranking_batches(["a", "b"], ["c", "d"], transform, negatives=[["e"], ["f", "g"]])
    with pytest.raises(TextError, match=r"scores\[1\] is nan"):
        text_similarity_batches(["a", "b"], ["c", "d"], [1.0, float("nan")], transform)


def test_mined_negatives():
    random = np.random.default_rng(0)
    queries, documents = random.standard_normal((30, 6)), random.standard_normal((50, 6))
    positives = [[int(x), int(y)] for x, y in random.integers(0, 50, (30, 2))]
    mined = mine_hard_negatives(queries, documents, positives, count=4, skip=2, margin=0.1)
    scores = cosines(queries, documents)
    for row, own, chosen in zip(scores, positives, mined, strict=True):
        order = [i for i in np.argsort(-row) if i not in own][2:]
        expected = [i for i in order if row[i] < 0.9 * row[own].max()][:4]
        assert [i for i in chosen if i >= 0] == expected
    assert (mine_hard_negatives(documents[:1], documents[:2], [0], count=3) == [[1, -1, -1]]).all()


def test_mined_negatives_equal_semantic_search():
    util = pytest.importorskip("sentence_transformers", reason=INSTALL).util
    random = np.random.default_rng(0)
    queries, documents = (random.standard_normal((n, 6)).astype("float32") for n in (20, 40))
    hits = util.semantic_search(queries, documents, top_k=40)
    expected = [[hit["corpus_id"] for hit in row if hit["corpus_id"] != i][:5] for i, row in enumerate(hits)]
    assert mine_hard_negatives(queries, documents, range(20), count=5).tolist() == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"skip": -1}, ConfigError, "skip=-1"),
        ({"margin": 1.5}, ConfigError, "margin=1.5"),
        ({"count": 0}, ConfigError, "count is 0"),
        ({"positives": [0, 9]}, InputError, r"positives\[1\] is 9, expected .* 0 to 3"),
        ({"positives": [0]}, InputError, "2 queries but 1 positives"),
        ({"queries": np.ones((2, 3))}, InputError, "3 dimensions, but documents have 2"),
        ({"queries": np.full((2, 2), np.nan)}, InputError, "queries has numbers that are NaN"),
    ],
)
def test_invalid_mining_raises(options: dict[str, Any], error: type[Exception], message: str):
    arrays = {"queries": np.ones((2, 2)), "documents": np.ones((4, 2)), "positives": [0, 1]}
    with pytest.raises(error, match=message):
        mine_hard_negatives(**{**arrays, **options})


def test_fit():
    """The loss of a small encoder falls, and its head is saved with the model."""
    transform = TextTransform.of(wordpiece())
    model = keras_tx.bert(
        "tiny", head=keras_tx.SentenceEmbeddingHead(), processing=transform, width=16, depth=1, num_heads=2
    )
    batches = text_ranking_batches(ANCHORS[:3], POSITIVES[:3], transform, batch_size=2)
    model.compile(keras.optimizers.Adam(1e-2), MatryoshkaLoss(MultipleNegativesRankingLoss(), [16, 8]))
    history = model.fit(batches, epochs=8, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
