"""Losses are compared with results computed by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.losses import ClassCrossentropy, ContrastiveLoss, TokenCrossentropy
from tests.drawing import as_numpy, draw

LABELS = np.array([[1, 3, -100, 0], [2, -100, -100, -100]])
LOGITS = draw(2, 4, 5)


def shares() -> np.ndarray:
    """-log of the probabilities, in float64."""
    logits = LOGITS.astype("float64")
    return np.log(np.exp(logits).sum(-1, keepdims=True)) - logits


def each(smoothing: float = 0.0) -> np.ndarray:
    """The loss of each token, 0 where it has no label."""
    target = (1 - smoothing) * np.eye(5)[np.maximum(LABELS, 0)] + smoothing / 5
    return (target * shares()).sum(-1) * (LABELS != -100)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mean_is_over_labelled_tokens(smoothing: float):
    loss = TokenCrossentropy(smoothing)
    assert float(loss(LABELS, LOGITS)) == pytest.approx(each(smoothing).sum() / 4, rel=1e-5)
    copy = TokenCrossentropy.from_config(loss.get_config())
    assert float(copy(LABELS, LOGITS)) == float(loss(LABELS, LOGITS))


def test_sample_weights_exclude_tokens():
    weights = (LABELS != -100).astype("float32")
    labels = np.maximum(LABELS, 0)
    assert float(TokenCrossentropy()(labels, LOGITS, weights)) == pytest.approx(each().sum() / 4, rel=1e-5)
    by_sample = np.array([1.0, 3.0])
    expected = (each().sum(1) * by_sample).sum() / (3 + 3)
    assert float(TokenCrossentropy()(LABELS, LOGITS, by_sample)) == pytest.approx(expected, rel=1e-5)


def test_other_reductions():
    np.testing.assert_allclose(
        as_numpy(TokenCrossentropy(reduction=None)(LABELS, LOGITS)), each(), rtol=1e-5, atol=1e-6
    )
    assert float(TokenCrossentropy(reduction="sum")(LABELS, LOGITS)) == pytest.approx(each().sum(), rel=1e-5)


def test_loss_without_labels_is_zero():
    assert float(TokenCrossentropy()(np.full((2, 4), -100), LOGITS)) == 0


def test_padding_does_not_change_the_loss_of_fit():
    """In a compiled step, where JAX drops Keras's mask."""
    inputs = keras.Input((None, 5))
    model = keras.Model(inputs, keras.layers.Dense(5, use_bias=False, kernel_initializer="identity")(inputs))
    model.compile(keras.optimizers.SGD(0.0), TokenCrossentropy())
    padded = np.pad(LOGITS, ((0, 0), (0, 3), (0, 0))), np.pad(LABELS, ((0, 0), (0, 3)), constant_values=-100)
    for x, y in ((LOGITS, LABELS), padded):
        assert model.train_on_batch(x, y) == pytest.approx(each().sum() / 4, rel=1e-5)


def test_contrastive_loss():
    vectors, labels = draw(5, 3), np.array([7, 7, 8, 7, 9])
    unit = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype("float64")
    scores = unit @ unit.T / 0.1
    losses = []
    for i in (0, 1, 3):  # labels 8 and 9 occur once
        others = [j for j in range(5) if j != i]
        total = np.log(np.exp(scores[i, others]).sum())
        losses.append(np.mean([total - scores[i, j] for j in others if labels[j] == 7]))
    loss = ContrastiveLoss(0.1)
    assert float(loss(labels, vectors)) == pytest.approx(np.mean(losses), rel=1e-5)
    assert ContrastiveLoss.from_config(loss.get_config()).temperature == 0.1
    assert float(loss(np.arange(5), vectors)) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenCrossentropy(1.0), r"label_smoothing=1.0"),
        (
            lambda: TokenCrossentropy()(LABELS[:, 0], LOGITS),
            r"TokenCrossentropy.*\(2,\).*\(2, 4",
        ),
        (lambda: ContrastiveLoss(0), r"temperature=0"),
    ],
)
def test_invalid_arguments_raise(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_crossentropy_equals_torch(smoothing: float):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    logits, ids = draw(6, 5), np.array([0, 4, 2, 2, 1, 3])
    shares = np.random.default_rng(1).dirichlet(np.ones(5), 6).astype("float32")
    loss = ClassCrossentropy(smoothing)
    for labels, theirs in ((ids, ids), (ids[:, None], ids), (shares, shares)):
        expected = torch.nn.functional.cross_entropy(
            torch.tensor(logits), torch.tensor(theirs), label_smoothing=smoothing
        )
        assert float(loss(labels, logits)) == pytest.approx(float(expected), rel=1e-5)
    copy = ClassCrossentropy.from_config(loss.get_config())
    assert float(copy(ids, logits)) == float(loss(ids, logits))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("wrong", [5, -1])
def test_class_numbers_out_of_range_are_not_trained_in_silence(wrong, smoothing):
    try:
        loss = float(ClassCrossentropy(smoothing)(np.array([0, wrong]), draw(2, 5)))
    except Exception as error:  # of the backend: its class differs
        assert str(wrong) in str(error)
    else:
        assert np.isnan(loss)


def test_shares_of_tf_data_with_unknown_axes_are_shares():
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("tensors of TensorFlow have unknown axes")
    shares = np.eye(5, dtype="float32")[[1, 4, 2]]
    compute = tf.function(
        lambda labels, logits: ClassCrossentropy()(labels, logits),
        input_signature=[tf.TensorSpec((None, None)), tf.TensorSpec((None, 5))],
    )
    expected = float(ClassCrossentropy()(shares, draw(3, 5)))
    assert float(compute(shares, draw(3, 5))) == pytest.approx(expected)


def test_label_smoothing_out_of_range_raises():
    with pytest.raises(ConfigError, match="label_smoothing=1"):
        ClassCrossentropy(1)
