"""compile(chunk_size=): the loss and the weights of the whole batch, computed by chunks of its rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.layers import rematerialization
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw
from tests.tolerances import FP32, HALF, assert_close

BACKEND = keras.backend.backend()
INSTALL = "pip install --no-deps sentence-transformers scikit-learn scipy joblib threadpoolctl"
ROWS = 14
IDS = np.random.default_rng(0).integers(1, 20, (ROWS, 6)).astype("int32")
MASK = (np.arange(6) < np.random.default_rng(1).integers(1, 7, (ROWS, 1))).astype("int32")
TEXTS = {"input_ids": IDS * MASK, "attention_mask": MASK, "token_type_ids": np.zeros_like(IDS)}
PAIRS = np.stack([np.arange(ROWS) // 2, np.arange(ROWS) % 2, np.arange(ROWS)], 1)
# Eager steps are faster than tracing two steps; on JAX, compiled ones are.
STEPS = {} if BACKEND == "jax" else {"run_eagerly": True}
COMPILED = ("chunk_size", "remat", "run_eagerly", "jit_compile")
SIZES: dict[str, Any] = {"vocabulary_size": 20, "width": 8, "depth": 2, "num_heads": 2}


def embedder(dropout: float = 0.0, **options: Any) -> Any:
    rates = {"dropout": dropout, "attention_dropout": dropout}
    head = keras_tx.SentenceEmbeddingHead()
    model = keras_tx.bert(**SIZES, max_length=8, head=head, **rates, **options)
    return model, TEXTS, PAIRS, keras_tx.MultipleNegativesRankingLoss()


def classifier(dropout: float = 0.0, **options: Any) -> Any:
    rates = {"dropout": dropout, "drop_path": dropout}
    model = keras_tx.vit("Mu/2", image_size=4, num_classes=3, depth=2, **rates, **options)
    return model, draw(ROWS, 4, 4, 3).clip(-1, 1), np.arange(ROWS) % 3, None


def trained(factory: Any = embedder, steps: int = 2, **options: Any) -> tuple[list[float], Any]:
    """The losses of some steps, and the model."""
    compiled = {**STEPS, **{name: options.pop(name) for name in COMPILED if name in options}}
    keras.utils.set_random_seed(1)
    model, x, y, loss = factory(**options)
    random = np.random.default_rng(2)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(random.normal(0, 0.3, weight.shape) + (weight.name == "gamma"))
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=[], **compiled)
    losses = []
    for _ in range(steps):
        history = model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0).history
        losses.append(history["loss"][0])
    return losses, model


def assert_equal(actual: tuple[list[float], Any], expected: tuple[list[float], Any], tolerance: float = FP32):
    np.testing.assert_allclose(actual[0], expected[0], rtol=tolerance)
    scale = max(np.abs(as_numpy(w)).max() for w in expected[1].trainable_weights)
    for ours, theirs in zip(actual[1].trainable_weights, expected[1].trainable_weights, strict=True):
        gap = np.abs(as_numpy(ours) - as_numpy(theirs)).max()
        assert gap <= tolerance * scale, f"{ours.path} differs by {gap:.1e}"


@pytest.mark.parametrize(
    ("factory", "chunk_size"), [(embedder, 1), (embedder, 5), (embedder, 100), (classifier, 4)]
)
def test_loss_and_weights_are_those_of_the_whole_batch(factory: Any, chunk_size: int):
    expected = trained(factory)
    assert abs(expected[0][1] - expected[0][0]) > 100 * FP32
    assert_equal(trained(factory, chunk_size=chunk_size), expected)


def test_with_rematerialized_blocks_and_half_precision():
    assert_equal(trained(chunk_size=4, remat=True), trained())
    half = trained(dtype="mixed_bfloat16", steps=1)
    assert_equal(trained(dtype="mixed_bfloat16", steps=1, chunk_size=4), half, HALF["mixed_bfloat16"])


@pytest.mark.parametrize("remat", [False, True])
def test_one_chunk_has_the_dropout_of_an_ordinary_step(remat: bool):
    expected = trained(dropout=0.3, steps=1)
    assert_equal(trained(dropout=0.3, steps=1, chunk_size=ROWS, remat=remat), expected)


def test_both_computations_of_a_chunk_have_the_same_dropout(monkeypatch: pytest.MonkeyPatch):
    recomputed = trained(dropout=0.3, chunk_size=4)
    calls = []
    if BACKEND == "tensorflow":

        def once(function: Any, chunks: Any, outputs: Any, weights: Any) -> Any:
            calls.append(weights)
            return rematerialization.map_sequentially(function, chunks, outputs)

        monkeypatch.setattr(rematerialization, "_recomputed_in_tensorflow", once)
    else:
        monkeypatch.setattr(keras, "remat", lambda function: calls.append(function) or function)
    assert_equal(recomputed, trained(dropout=0.3, chunk_size=4))
    assert calls


def frozen(**options: Any) -> Any:
    model, *rest = embedder(**options)
    model.freeze(["token_embedding", "block_0"])
    return model, *rest


def test_frozen_layers():
    expected = trained(frozen)
    assert_equal(trained(frozen, chunk_size=4), expected)
    assert len(expected[1].trainable_weights) < len(expected[1].weights)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="always compiled on JAX, and eager on PyTorch")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_steps(jit_compile: bool):
    compiled = trained(chunk_size=4, run_eagerly=False, jit_compile=jit_compile)
    assert_equal(compiled, trained(), 10 * FP32)


def test_batches_of_different_sizes():
    """The last batch is smaller, and texts have other lengths."""

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            rows, length = ((slice(10), 6), (slice(10, 14), 3))[index]
            return {name: x[rows, :length] for name, x in TEXTS.items()}, PAIRS[rows]

    losses = []
    for chunk_size in (None, 4):
        keras.utils.set_random_seed(1)
        model, _, _, loss = embedder()
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=[], chunk_size=chunk_size, **STEPS)
        history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history["loss"]
        losses.append(history)
    np.testing.assert_allclose(*losses, rtol=FP32)


def test_dropout_differs_between_chunks_and_between_steps():
    model, *_ = embedder(dropout=0.3)
    model.compile(chunk_size=2)
    same = {name: np.repeat(x[:1], 4, 0) for name, x in TEXTS.items()}
    first, second = (as_numpy(model(same, training=True)) for _ in range(2))
    rows = np.concatenate([first, second])
    gaps = np.abs(rows[:, None] - rows[None, :]).max(-1) + np.eye(8)
    assert gaps.min() > 1e-3
    np.testing.assert_array_equal(as_numpy(model(same)), np.repeat(as_numpy(model(same))[:1], 4, 0))


def test_saved_and_loaded(tmp_path: Any):
    _, model = trained(chunk_size=3)
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert loaded.chunk_size == 3
    for one in (model, loaded):
        one.fit(TEXTS, PAIRS, batch_size=ROWS, verbose=0)
    for ours, theirs in zip(loaded.weights, model.weights, strict=True):
        assert_close(as_numpy(ours), as_numpy(theirs))
    loaded.compile()
    assert loaded.chunk_size is None


@pytest.mark.exports
def test_a_trained_model_is_exported(tmp_path: Any):
    _, model = trained(classifier, chunk_size=3)
    report = export_onnx(model, tmp_path / "folder")
    assert report.manifest.task == "image-classification"


@pytest.mark.parametrize("chunk_size", [0, 2.5, True])
def test_chunk_size_out_of_range_raises(chunk_size: Any):
    with pytest.raises(ConfigError, match=f"chunk_size is {chunk_size}"):
        embedder()[0].compile(chunk_size=chunk_size)


def test_equals_the_cached_loss_of_sentence_transformers(tmp_path: Any):
    """Loss and weights after a step of SGD, with the same weights and batch."""
    package = pytest.importorskip("sentence_transformers", reason=INSTALL)
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    import torch

    from tests.wordpiece import wordpiece

    keras.utils.set_random_seed(0)
    head, processing = keras_tx.SentenceEmbeddingHead(), keras_tx.TextTransform.of(wordpiece())
    options = {"width": 16, "depth": 2, "num_heads": 2, "max_length": 16, "dropout": 0.0}
    model = keras_tx.bert("tiny", head=head, processing=processing, attention_dropout=0.0, **options)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(draw(*weight.shape) * 0.3 + (weight.name == "gamma"))
    folder = keras_tx.save_checkpoint(model, tmp_path / "before")
    texts = ["the cat", "a film", "Ada", "good", "the cat sat", "the film", "Ada lives", "bad"]

    theirs = package.SentenceTransformer(str(folder), device="cpu")
    loss = losses.CachedMultipleNegativesRankingLoss(theirs, scale=20.0, mini_batch_size=3)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    theirs.train()
    value = loss([theirs.preprocess(texts[:4]), theirs.preprocess(texts[4:])], None)
    value.backward()
    optimizer.step()
    theirs.save(str(tmp_path / "after"))

    labels = np.stack([np.tile(np.arange(4), 2), np.repeat([0, 1], 4), np.arange(8)], 1)
    model.compile(keras.optimizers.SGD(0.5), keras_tx.MultipleNegativesRankingLoss(), chunk_size=3)
    history = model.fit(processing(texts), labels, batch_size=8, shuffle=False, verbose=0).history
    assert history["loss"][0] == pytest.approx(value.item(), rel=FP32)
    before, expected = (keras_tx.from_checkpoint(tmp_path / name) for name in ("before", "after"))
    pairs = zip(before.weights, expected.weights, strict=True)
    assert np.median([np.abs(as_numpy(x) - as_numpy(y)).max() for x, y in pairs]) > 1e-3
    scale = max(np.abs(as_numpy(w)).max() for w in expected.weights)
    for mine, other in zip(model.weights, expected.weights, strict=True):
        gap = np.abs(as_numpy(mine) - as_numpy(other)).max()
        assert gap <= FP32 * scale, f"{mine.path} differs by {gap:.1e}"
