"""DeBERTa's sizes, relative positions, heads, training, saving, and errors."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.heads.base import Head, project
from keras_tx.models.deberta.model import Deberta, DebertaConfig, deberta
from tests.covering import covering
from tests.drawing import as_numpy, redraw
from tests.models.test_bert import labels_for
from tests.naming import shown
from tests.tolerances import HALF, assert_close

TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 24, "vocabulary_size": 30, "max_length": 40}
IDS = np.array([[1, 7, 8, 2, 9, 2], [1, 11, 2, 0, 0, 0]])
HEADS = [
    keras_tx.MaskedLMHead(),
    keras_tx.MaskedLMHead(tied=False, activation="relu"),
    keras_tx.ClassifierHead(3),
    keras_tx.ClassifierHead(3, pooling="average"),
    keras_tx.MultiLabelHead(3),
    keras_tx.RegressionHead(),
    keras_tx.TokenClassifierHead(4),
    keras_tx.SpanHead(),
    keras_tx.SentenceEmbeddingHead(),
]


def tiny(**options) -> Deberta:
    return redraw(deberta("tiny", **{**TINY, "buckets": 4, "max_distance": 9, **options}))


# DebertaV2Model of transformers with the sizes of microsoft's checkpoints. The paper counts 22, 44, 86 and
# 304 million without the embeddings.
@pytest.mark.parametrize(
    ("name", "count"),
    [("xsmall", 70_682_112), ("small", 141_304_320), ("base", 183_831_552), ("large", 434_012_160)],
)
def test_exact_parameters(name: str, count: int):
    assert keras_tx.cost(DebertaConfig.variant(name)).params == count


def test_flops_are_counted():
    model = deberta("tiny", **TINY, buckets=4, max_distance=9, head=keras_tx.ClassifierHead(2))
    costs = {layer.name: layer.flops for layer in keras_tx.cost(model, tokens=6).layers}
    block = 2 * 6 * (4 * 16 * 16) + 2 * 2 * 6 * 6 * 16 + 2 * 6 * (2 * 16 * 24)
    positions = 2 * (2 * 8 * 16 * 16 + 2 * 6 * 11 * 16)
    assert [costs[f"block_{index}"] for index in range(2)] == [block + positions] * 2
    assert None not in costs.values()


def test_padding_changes_nothing():
    for head in (None, keras_tx.ClassifierHead(3), keras_tx.ClassifierHead(3, pooling="average")):
        model = tiny(head=head)
        short, long = (model(np.pad(IDS[1:, :3], ((0, 0), (0, pads)))) for pads in (0, 20))
        if head is None:
            assert_close(*(as_numpy(x["last_hidden_state"])[:, :3] for x in (long, short)))
        else:
            assert_close(as_numpy(long), as_numpy(short))
    model = tiny()
    left = as_numpy(model(np.pad(IDS[1:, :3], ((0, 0), (4, 0)))))["last_hidden_state"]
    assert_close(left[:, 4:], as_numpy(model(IDS[1:, :3]))["last_hidden_state"])


@pytest.mark.parametrize("head", [None, *HEADS], ids=shown)
def test_a_row_of_only_padding_is_finite(head):
    for value in keras.tree.flatten(as_numpy(tiny(head=head)(np.zeros((2, 5), "int32")))):
        assert np.isfinite(value).all()


def test_order_matters():
    model = tiny()
    one, other = (as_numpy(model(ids)["last_hidden_state"]) for ids in ([[1, 7, 8, 2]], [[1, 8, 7, 2]]))
    assert np.abs(one[:, 0] - other[:, 0]).max() > 1e-3


@pytest.mark.parametrize("head", [HEADS[0], HEADS[2]], ids=shown)
@pytest.mark.parametrize("shared", [True, False])
def test_every_weight_has_a_gradient(head, shared: bool):
    model = tiny(head=head, shared_projections=shared)
    ids = np.random.default_rng(0).integers(1, 30, (4, 12))  # at all distances
    before = [as_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    model.fit(ids, labels_for(head, ids), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        if weight.path.endswith("position_key/bias"):
            continue  # it adds the same to all scores of a query
        assert np.abs(as_numpy(weight) - old).max() > 0, weight.path


def test_rematerialized_training_equals_plain_training():
    ids = np.random.default_rng(0).integers(1, 30, (4, 12))
    head = keras_tx.ClassifierHead(3)
    trained = []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        model = tiny(head=head, dropout=0.0, attention_dropout=0.0)
        model.compile(keras.optimizers.SGD(0.1), remat=remat, jit_compile=False)
        model.fit(ids, labels_for(head, ids), verbose=0, shuffle=False, batch_size=4)
        trained.append([as_numpy(weight) for weight in model.trainable_weights])
    for plain, again in zip(*trained, strict=True):
        assert_close(again, plain)


@pytest.mark.thorough
@covering(strength=1, head=HEADS, remat=[False, True])
def test_every_head_trains_is_saved_and_trains_on(head, remat: bool, tmp_path):
    model = tiny(head=head, pooler_dropout=0.1)
    ids = np.random.default_rng(0).integers(1, 30, (8, 6))
    ids[4:, 4:] = 0
    labels = labels_for(head, ids)
    model.compile(keras_tx.AdamW(5e-4), run_eagerly=True, remat=remat)  # faster than tracing for a few steps
    before = model.evaluate(ids, labels, verbose=0, return_dict=True)["loss"]
    model.fit(ids, labels, epochs=4, verbose=0, shuffle=False)
    after = model.evaluate(ids, labels, verbose=0, return_dict=True)["loss"]
    assert after < before
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded) is Deberta and loaded.get_config() == model.get_config()
    for mine, theirs in zip(
        keras.tree.flatten(as_numpy(loaded(ids))),
        keras.tree.flatten(as_numpy(model(ids))),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    loaded.run_eagerly = True
    loaded.fit(ids, labels, epochs=4, verbose=0, shuffle=False)
    assert loaded.evaluate(ids, labels, verbose=0, return_dict=True)["loss"] < after


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("head", [HEADS[0], HEADS[2]], ids=shown)
def test_logits_are_float32_under_every_policy(head, policy: str):
    model = tiny(head=head)
    half = keras_tx.from_checkpoint(model, dtype=policy)
    logits = half(IDS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    # Embedding, positions, two blocks, pooler or head, norm.
    assert_close(as_numpy(logits), as_numpy(model(IDS)), 6 * HALF[policy])


def test_saved_weights_and_config(tmp_path):
    options = {"shared_projections": False, "normalize_positions": False, "buckets": None, "pooler": "tanh"}
    model = tiny(head=keras_tx.ClassifierHead(2), **options)
    assert Deberta.from_config(model.get_config()).get_config() == model.get_config()
    model.save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    assert loaded.config == model.config
    for mine, theirs in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


@dataclasses.dataclass(frozen=True)
class OwnHead(Head):
    takes_sample = True

    def __call__(self, features):
        return project(features, 2, "logits")


def test_a_head_of_the_users_own_reads_the_pooled_class_token():
    model = tiny(head=OwnHead())
    classifier = keras_tx.from_checkpoint(model, head=keras_tx.ClassifierHead(2))
    assert_close(as_numpy(model(IDS)), as_numpy(classifier(IDS)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: deberta("bass"), r"variant='bass' is unknown.*'base'"),
        (lambda: deberta("tiny", width=63), r"width=63 is not divisible by num_heads=2"),
        (lambda: deberta("tiny", pad_id=9, vocabulary_size=9), r"pad_id=9 is out of range"),
        (lambda: deberta("tiny", buckets=7), r"buckets is 7, expected an even number"),
        (lambda: deberta("tiny", buckets=64, max_distance=33), r"max_distance is 33, expected 34 or more"),
        (lambda: deberta("tiny", activation="silu"), r"activation='silu' is unknown"),
        (lambda: deberta("tiny", pooler="silu"), r"pooler='silu' is unknown"),
        (
            lambda: deberta("tiny", content_to_position=False, position_to_content=False),
            r"position_to_content are both False",
        ),
        (lambda: deberta("tiny", segments=2), r"no field 'segments'"),
        (lambda: deberta("tiny", head=2), r"head=2 is not supported"),
        (lambda: deberta("tiny", head=keras_tx.CausalLMHead()), r"head=CausalLMHead.*MaskedLMHead"),
        (lambda: deberta("tiny", head=keras_tx.MultipleChoiceHead()), r"head=MultipleChoiceHead"),
        (lambda: tiny()(np.ones((1, 41), "int32")), r"length 41.*max_length=40"),
        (lambda: tiny()({"input_ids": IDS, "token_type_ids": IDS}), r"no input 'token_type_ids'"),
    ],
    ids=shown,
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
