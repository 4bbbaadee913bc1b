"""ModernBERT's sizes, windows, heads, training, saving, and errors."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.heads.base import Head, project
from keras_tx.models.modernbert.model import ModernBert, ModernBertConfig, modernbert
from tests.covering import covering
from tests.drawing import as_numpy, redraw
from tests.models.test_bert import labels_for
from tests.naming import shown
from tests.tolerances import HALF, assert_close

TINY = {"width": 16, "depth": 4, "num_heads": 2, "mlp_dim": 24, "vocabulary_size": 30, "max_length": 40}
IDS = np.array([[2, 7, 8, 3, 9, 3], [2, 11, 3, 0, 0, 0]])
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


def tiny(**options) -> ModernBert:
    return redraw(modernbert("tiny", **{**TINY, "pad_id": 0, "window": 4, **options}))


# ModernBertModel of transformers with the sizes of answerdotai's checkpoints; the paper has 149 and 395
# million.
@pytest.mark.parametrize(("name", "count"), [("base", 149_014_272), ("large", 394_781_696)])
def test_exact_parameters(name: str, count: int):
    assert keras_tx.cost(ModernBertConfig.variant(name)).params == count


def test_the_vocabulary_of_the_checkpoints_has_a_padding_id():
    assert ModernBertConfig.variant("base").pad_id == 50283
    assert ModernBertConfig.variant("base", vocabulary_size=100).pad_id is None


def test_flops_are_counted():
    model = modernbert("tiny", **TINY)
    costs = {layer.name: layer.flops for layer in keras_tx.cost(model, tokens=8).layers}
    block = 2 * 8 * (4 * 16 * 16) + 2 * 2 * 8 * 8 * 16 + 2 * 8 * (3 * 16 * 24)
    assert [costs[f"block_{index}"] for index in range(4)] == [block] * 4
    assert None not in costs.values()


def test_local_blocks_see_a_window():
    """Of two local blocks with half a window of 2, a token sees at most 4 places around it."""
    model = tiny(global_every=3)
    ids = np.random.default_rng(0).integers(1, 30, (1, 12))
    other = ids.copy()
    other[0, 11] = 1 + ids[0, 11] % 29
    hidden = keras.Model(model.input, [model.get_layer(f"block_{index}").output for index in (1, 2, 3)])
    # Block 0 is global: replaced by the embeddings, so that only the local blocks mix tokens.
    first = model.get_layer("block_0")
    for layer in (first.attention.output_projection, first.feed_forward.down):
        layer.kernel.assign(np.zeros(layer.kernel.shape))
    for distance, one, two in zip(
        (2, 4, 11), hidden(model.complete(ids)), hidden(model.complete(other)), strict=True
    ):
        changed = np.abs(as_numpy(one) - as_numpy(two)).max(axis=-1)[0] > 1e-6
        np.testing.assert_array_equal(changed, np.arange(12) >= 11 - distance)


def test_padding_changes_nothing():
    for head in (None, keras_tx.ClassifierHead(3), keras_tx.ClassifierHead(3, pooling="average")):
        model = tiny(head=head)
        short, long = (model(np.pad(IDS[1:, :3], ((0, 0), (0, pads)))) for pads in (0, 9))
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


def test_the_first_block_has_no_norm_before_attention():
    model = tiny()
    assert {weight.path.split("/")[1] for weight in model.get_layer("block_0").weights} == {
        *("attention", "feed_forward", "feed_forward_norm"),
    }
    assert len(model.get_layer("block_1").weights) == len(model.get_layer("block_0").weights) + 1


@pytest.mark.parametrize("head", HEADS[:1] + HEADS[3:4], ids=shown)
def test_every_weight_has_a_gradient(head):
    model = tiny(head=head)
    before = [as_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    model.fit(IDS, labels_for(head, IDS), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(as_numpy(weight) - old).max() > 0, weight.path


@pytest.mark.thorough
@covering(strength=1, head=HEADS, remat=[False, True])
def test_every_head_trains_is_saved_and_trains_on(head, remat: bool, tmp_path):
    model = tiny(head=head, depth=2, global_every=2, hidden_dropout=0.1)
    ids = np.random.default_rng(0).integers(1, 30, (8, 6))
    ids[4:, 4:] = 0
    labels = labels_for(head, ids)
    model.compile(keras_tx.AdamW(1e-2), run_eagerly=True, remat=remat)  # faster than tracing for a few steps
    history = model.fit(ids, labels, epochs=4, verbose=0, shuffle=False).history
    assert history["loss"][-1] < history["loss"][0]
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded) is ModernBert and loaded.get_config() == model.get_config()
    for mine, theirs in zip(
        keras.tree.flatten(as_numpy(loaded(ids))),
        keras.tree.flatten(as_numpy(model(ids))),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    loaded.run_eagerly = True
    assert loaded.fit(ids, labels, verbose=0, shuffle=False).history["loss"][0] < history["loss"][0]


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("head", [HEADS[0], HEADS[2]], ids=shown)
def test_logits_are_float32_under_every_policy(head, policy: str):
    model = tiny(head=head, depth=2)
    half = keras_tx.from_checkpoint(model, dtype=policy)
    logits = half(IDS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert_close(
        as_numpy(logits), as_numpy(model(IDS)), 5 * HALF[policy]
    )  # embedding, two blocks, head, norm


def test_saved_weights_and_config(tmp_path):
    model = tiny(head=keras_tx.SpanHead(), use_bias=True, head_bias=True, activation="swiglu")
    assert ModernBert.from_config(model.get_config()).get_config() == model.get_config()
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


def test_a_head_of_the_users_own_reads_the_class_token():
    model = modernbert("tiny", **TINY, head=OwnHead())
    classifier = keras_tx.from_checkpoint(model, head=keras_tx.ClassifierHead(2))
    assert_close(as_numpy(model(IDS)), as_numpy(classifier(IDS)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: modernbert("bass"), r"variant='bass' is unknown.*'base'"),
        (lambda: modernbert("tiny", width=63), r"width=63 is not divisible by num_heads=2"),
        (lambda: modernbert("tiny", pad_id=9, vocabulary_size=9), r"pad_id=9 is out of range"),
        (lambda: modernbert("tiny", window=0), r"window is 0"),
        (lambda: modernbert("tiny", global_every=0), r"global_every is 0"),
        (lambda: modernbert("tiny", rotary_base=-1.0), r"rotary_base is -1"),
        (lambda: modernbert("tiny", activation="gelu"), r"activation='gelu' is unknown"),
        (lambda: modernbert("tiny", head_activation="silu"), r"head_activation='silu' is unknown"),
        (lambda: modernbert("tiny", segments=2), r"no field 'segments'"),
        (lambda: modernbert("tiny", head=2), r"head=2 is not supported"),
        (lambda: modernbert("tiny", head=keras_tx.CausalLMHead()), r"head=CausalLMHead.*MaskedLMHead"),
        (lambda: modernbert("tiny", head=keras_tx.MultipleChoiceHead()), r"head=MultipleChoiceHead"),
        (lambda: modernbert("tiny", head=keras_tx.DistilledClassifierHead(3)), r"head=DistilledClassifier"),
        (lambda: tiny()(np.ones((1, 41), "int32")), r"length 41.*max_length=40"),
        (lambda: tiny()({"input_ids": IDS, "token_type_ids": IDS}), r"no input 'token_type_ids'"),
        (lambda: tiny().predict({"input_ids": IDS, "token_type_ids": IDS}), r"no input 'token_type_ids'"),
    ],
    ids=shown,
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
