"""BERT's sizes, inputs, heads, saving, and errors."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.bert.model import VARIANTS, Bert, BertConfig, bert
from tests.drawing import as_numpy, redraw
from tests.naming import shown
from tests.tolerances import HALF, assert_close

TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 24, "vocabulary_size": 30, "max_length": 12}
IDS = np.array([[2, 7, 8, 3, 9, 3], [2, 11, 3, 0, 0, 0]])
HEADS = [
    keras_tx.MaskedLMHead(),
    keras_tx.NextSentenceHead(),
    keras_tx.PretrainingHead(),
    keras_tx.ClassifierHead(3, dropout=0.1),
    keras_tx.MultiLabelHead(3, dropout=0.1),
    keras_tx.RegressionHead(),
    keras_tx.TokenClassifierHead(4, dropout=0.1),
    keras_tx.SpanHead(),
    keras_tx.SentenceEmbeddingHead(),
    keras_tx.SentenceEmbeddingHead("class", normalize=False),
]


def tiny(**options) -> Bert:
    return redraw(bert("tiny", **{**TINY, **options}))


def labels_for(head: object, ids: np.ndarray):
    """Labels that the head can learn from, padding left out."""
    tokens = np.where(ids == 0, -100, ids % getattr(head, "num_classes", 30))
    samples = np.arange(len(ids)) % 2
    return {
        "MaskedLMHead": tokens,
        "TokenClassifierHead": tokens,
        "MultiLabelHead": (ids[:, :3] % 2).astype("float32"),
        "PretrainingHead": {"prediction_logits": tokens, "seq_relationship_logits": samples},
        "SpanHead": {"start_logits": samples, "end_logits": samples + 1},
    }.get(type(head).__name__, samples)


@pytest.mark.parametrize(
    ("name", "million"),
    # table 1 of Turc et al., which counts the pre-training head
    [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7), ("base", 110.1)],
)
def test_sizes_are_those_of_the_paper(name: str, million: float):
    config = BertConfig.variant(name)
    width, words = config.width, config.vocabulary_size
    head = (width * width + width) + 2 * width + words + (2 * width + 2)
    assert (keras_tx.cost(config).params + head) / 1e6 == pytest.approx(million, abs=0.05)


# google-bert's uncased checkpoints; sentence-transformers' all-MiniLM-L6-v2 and -L12-v2; XLMRobertaModel
# with the sizes of FacebookAI's checkpoints
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("base", 109_482_240),
        ("large", 335_141_888),
        ("minilm-l6", 22_713_216),
        ("minilm-l12", 33_360_000),
        ("xlm-r-base", 278_043_648),
        ("xlm-r-large", 559_890_432),
    ],
)
def test_exact_parameters(name: str, count: int):
    assert keras_tx.cost(BertConfig.variant(name)).params == count


def test_variants_include_the_24_miniatures():
    miniatures = {name for name in VARIANTS if name.startswith("L-")}
    assert len(miniatures) == 24
    config = BertConfig.variant("L-10_H-256")
    assert (config.depth, config.width, config.num_heads, config.mlp_dim) == (10, 256, 4, 1024)
    assert BertConfig.variant("small") == BertConfig.variant("L-4_H-512")


def test_flops_worked_by_hand():
    cost = keras_tx.cost(bert("tiny", head=keras_tx.MaskedLMHead(), **TINY), tokens=8)
    block = 2 * 8 * (4 * 16 * 16) + 2 * 2 * 8 * 8 * 16 + 2 * 8 * (2 * 16 * 24)
    assert {layer.name: layer.flops for layer in cost.layers if layer.flops} == {
        "block_0": block,
        "block_1": block,
        "prediction_dense": 2 * 8 * 16 * 16,
        "token_embedding": 2 * 8 * 30 * 16,  # used again for the logits
    }
    assert None not in [layer.flops for layer in cost.layers]
    longest = keras_tx.cost(bert("tiny", head=keras_tx.MaskedLMHead(), **TINY))
    assert longest.flops == keras_tx.cost(bert("tiny", head=keras_tx.MaskedLMHead(), **TINY), tokens=12).flops


@pytest.mark.parametrize("options", [{}, {"segments": 0, "position_offset": 2, "pad_id": 1}], ids=shown)
def test_inputs_that_are_left_out_are_derived(options: dict):
    model = tiny(**options)
    padding = model.config.pad_id
    ids = np.where(IDS == 0, padding, IDS)
    whole = {"input_ids": ids, "attention_mask": (ids != padding).astype("int64")}
    if model.config.segments:
        whole["token_type_ids"] = np.zeros_like(ids)
    expected = as_numpy(model(whole))
    for inputs in (ids, ids.tolist(), {"input_ids": ids}, {"input_ids": ids.astype("uint8")}):
        for name, value in as_numpy(model(inputs)).items():
            np.testing.assert_array_equal(value, expected[name])
    predicted = model.predict(ids, verbose=0)
    assert_close(predicted["last_hidden_state"], expected["last_hidden_state"])


def test_optional_inputs_are_used():
    model = tiny()
    derived = as_numpy(model(IDS))["pooler_output"]
    for name, value in (("attention_mask", np.ones_like(IDS)), ("token_type_ids", np.ones_like(IDS))):
        assert (
            np.abs(as_numpy(model({"input_ids": IDS, name: value}))["pooler_output"] - derived).max() > 1e-3
        )


def test_one_segment_accepts_zeros_alone():
    model = keras_tx.bert("tiny", vocabulary_size=50, depth=1, segments=1)
    ids = np.array([[7, 8, 9]])
    expected = as_numpy(model({"input_ids": ids})["last_hidden_state"])
    zeros = {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}
    np.testing.assert_array_equal(as_numpy(model(zeros)["last_hidden_state"]), expected)
    with pytest.raises(ConfigError, match="token_type_ids.* 1 "):
        model({"input_ids": ids, "token_type_ids": np.array([[0, 0, 1]])})


def test_padding_changes_nothing():
    model = tiny()
    short, long = as_numpy(model(IDS[1:, :3])), as_numpy(model(np.pad(IDS[1:], ((0, 0), (0, 4)))))
    assert_close(long["last_hidden_state"][:, :3], short["last_hidden_state"])
    assert_close(long["pooler_output"], short["pooler_output"])


def test_no_answer_is_at_padding():
    for logits in as_numpy(tiny(head=keras_tx.SpanHead())(IDS)).values():
        np.testing.assert_array_equal(logits == -1e4, IDS == 0)


@pytest.mark.parametrize("head", [None, *HEADS], ids=shown)
def test_a_row_of_only_padding_is_finite(head):
    model = tiny(head=head)
    for value in keras.tree.flatten(as_numpy(model(np.zeros((2, 5), "int32")))):
        assert np.isfinite(value).all()


def test_roberta_positions_count_real_tokens():
    """Left padding moves no position."""
    model = tiny(segments=0, position_offset=2, pad_id=1)
    plain, left = as_numpy(model([[2, 7, 8]])), as_numpy(model([[1, 1, 2, 7, 8]]))
    assert_close(left["last_hidden_state"][:, 2:], plain["last_hidden_state"])


def test_outputs_of_each_head():
    shapes = {
        "MaskedLMHead": (2, 6, 30),
        "NextSentenceHead": (2, 2),
        "PretrainingHead": {"prediction_logits": (2, 6, 30), "seq_relationship_logits": (2, 2)},
        "ClassifierHead": (2, 3),
        "MultiLabelHead": (2, 3),
        "RegressionHead": (2, 1),
        "TokenClassifierHead": (2, 6, 4),
        "SpanHead": {"start_logits": (2, 6), "end_logits": (2, 6)},
        "SentenceEmbeddingHead": (2, 16),
    }
    for head in HEADS:
        outputs = tiny(head=head)(IDS)
        shape = shapes[type(head).__name__]
        if isinstance(shape, dict):
            assert {name: tuple(value.shape) for name, value in outputs.items()} == shape
        else:
            assert tuple(outputs.shape) == shape


def test_masked_tokens_are_predicted_with_the_embedding_itself():
    model = tiny(head=keras_tx.MaskedLMHead())
    assert sum(v.shape == (30, 16) for v in model.weights) == 1
    before = as_numpy(model(IDS))
    table = model.get_layer("token_embedding").table
    table.assign(as_numpy(table) * np.where(np.arange(30) == 29, 2.0, 1.0)[:, None])  # not among IDS
    changed = np.abs(as_numpy(model(IDS)) - before).max((0, 1)) > 1e-4
    np.testing.assert_array_equal(changed, np.arange(30) == 29)


def test_sentence_embeddings_are_means_of_real_tokens():
    model, plain = tiny(head=keras_tx.SentenceEmbeddingHead()), tiny()
    plain.set_weights([*model.get_weights(), *plain.get_weights()[-2:]])  # the pooler's two come last
    tokens = as_numpy(plain(IDS))["last_hidden_state"]
    mean = np.stack([row[: (ids != 0).sum()].mean(0) for row, ids in zip(tokens, IDS, strict=True)])
    assert_close(as_numpy(model(IDS)), mean / np.linalg.norm(mean, axis=-1, keepdims=True))


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS, ids=shown)
def test_every_head_trains_is_saved_and_trains_on(head, tmp_path):
    if hasattr(head, "dropout"):
        head = dataclasses.replace(head, dropout=0.0)  # the loss shall fall, not jump
    model = tiny(head=head, depth=1, dropout=0.0, attention_dropout=0.0)
    ids = np.random.default_rng(0).integers(1, 30, (8, 6))
    ids[4:, 4:] = 0
    labels = labels_for(head, ids)
    model.compile(keras_tx.AdamW(1e-2), run_eagerly=True)  # faster than tracing for a few steps
    history = model.fit(ids, labels, epochs=4, verbose=0, shuffle=False).history
    assert history["loss"][-1] < history["loss"][0]
    assert len(history) > 1, "a head has metrics"
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded) is Bert
    assert (loaded.config, loaded.head, loaded.processing) == (model.config, head, None)
    assert loaded.get_config() == model.get_config()
    for mine, theirs in zip(
        keras.tree.flatten(as_numpy(loaded(ids))),
        keras.tree.flatten(as_numpy(model(ids))),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert int(loaded.optimizer.iterations) == 4
    loaded.run_eagerly = True
    again = loaded.fit(ids, labels, verbose=0, shuffle=False).history
    assert set(again) == set(history)
    assert again["loss"][0] < history["loss"][0]


@pytest.mark.parametrize("policy", [*HALF, "float32"])
@pytest.mark.parametrize("head", HEADS, ids=shown)
def test_logits_are_float32_under_every_policy(head, policy: str):
    model = tiny(head=head, depth=1)
    half = keras_tx.from_checkpoint(model, dtype=policy)
    assert (half.head, half.config) == (model.head, model.config)
    assert half.layers_policy.name == policy
    for mine, exact in zip(
        keras.tree.flatten(half(IDS)), keras.tree.flatten(as_numpy(model(IDS))), strict=True
    ):
        assert keras.backend.standardize_dtype(mine.dtype) == "float32"
        assert_close(as_numpy(mine), exact, 4 * HALF.get(policy, 1e-5))  # embedding, block, pooler, head


def test_dropout_is_where_bert_has_it():
    block = bert("tiny", **TINY, dropout=0.3, attention_dropout=0.2).get_layer("block_1")
    assert (block.residual_dropout.rate, block.attention.weights_dropout.rate) == (0.3, 0.2)
    assert block.feed_forward.hidden_dropout.rate == 0


def test_initialization_is_that_of_the_paper():
    model = bert("tiny", vocabulary_size=2000)
    for path in ("token_embedding", "segments", "positions", "pooler"):
        weight = as_numpy(model.get_layer(path).weights[0])
        # 0.0176 where it is truncated at two deviations; Keras on PyTorch truncates at two itself. What is
        # drawn, n numbers, is off by a share of 1 / sqrt(2 n), and by five times that never.
        share = 5 / np.sqrt(2 * weight.size)
        assert 0.0176 * (1 - share) < weight.std() < 0.02 * (1 + share)


def test_answers_are_measured_by_both_of_their_ends():
    model = tiny(head=keras_tx.SpanHead(), depth=1)
    ids = np.random.default_rng(0).integers(1, 30, (10, 6))
    logits = {name: as_numpy(value) for name, value in model(ids).items()}
    labels = {name: value.argmax(1) for name, value in logits.items()}
    labels["end_logits"][5:] = 0
    model.compile()
    for _ in range(2):  # the second does not go on from the first
        results = model.evaluate(ids, labels, batch_size=4, verbose=0, return_dict=True)
        for metric in (keras_tx.SpanExactMatch(), keras_tx.SpanF1()):
            metric.update_state(labels, logits)
            assert results[metric.name] == pytest.approx(float(metric.result()), abs=1e-6)


def test_model_is_a_layer_of_another_functional_model(tmp_path):
    model = tiny(depth=1)
    ids = keras.Input((None,), dtype="int32", name="ids")
    wrapped = keras.Model(ids, model(ids)["pooler_output"])
    np.testing.assert_allclose(
        as_numpy(wrapped(IDS)), as_numpy(model(IDS))["pooler_output"], rtol=1e-5, atol=1e-6
    )
    wrapped.save(tmp_path / "wrapped.keras")
    loaded = keras.models.load_model(tmp_path / "wrapped.keras")
    np.testing.assert_array_equal(as_numpy(loaded(IDS)), as_numpy(wrapped(IDS)))
    hidden = keras.Model(model.input, model.get_layer("block_0").output)
    assert type(hidden) is not Bert


def test_from_config_of_get_config():
    model = tiny(head=keras_tx.SpanHead(), segments=0, pooler=None)
    assert Bert.from_config(model.get_config()).get_config() == model.get_config()


@pytest.mark.parametrize("head", HEADS, ids=shown)
def test_heads_from_config_of_get_config(head):
    assert type(head).from_config(head.get_config()) == head


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bert("bass"), r"variant='bass' is unknown.*'base'"),
        (lambda: bert("L-10_H-255"), r"variant='L-10_H-255' is unknown.*'L-10_H-256'"),
        (lambda: bert("tiny", vocab=7), r"no field 'vocab'.*'vocabulary_size'"),
        (lambda: bert("tiny", num_heads=7), r"width=128 is not divisible by num_heads=7"),
        (lambda: bert("tiny", segments=-1), r"segments is -1"),
        (lambda: bert("tiny", max_length=0), r"max_length is 0"),
        (lambda: bert("tiny", dropout=1), r"dropout is 1"),
        (lambda: bert("tiny", pooler="tan"), r"pooler='tan' is unknown.*'tanh'"),
        (lambda: bert("tiny", activation="swiglu"), r"activation='swiglu' is unknown"),
        (lambda: bert("tiny", pad_id=99, vocabulary_size=99), r"pad_id=99"),
        (lambda: bert("tiny", head=2), r"head=2"),
        (lambda: bert("tiny", head=keras_tx.CausalLMHead()), r"head=CausalLMHead"),
        (
            lambda: keras_tx.vit("Mu/2", image_size=8, head=keras_tx.SpanHead()),
            r"head=SpanHead",
        ),
        (lambda: tiny()(np.ones((1, 13), "int32")), r"length 13.*max_length=12.*max_length=13"),
        (lambda: tiny()(keras.Input((13,), dtype="int32")), r"length 13.*max_length=12"),
        (
            lambda: tiny().predict(np.ones((1, 13)), verbose=0),
            r"input_ids is float32",
        ),
        (lambda: tiny()(np.array([[1, 2], [3, 30]])), r"input_ids has 30 in row 1.*0 to 29"),
        (lambda: tiny().predict(np.array([[1, 2], [3, 30]]), verbose=0), r"input_ids has 30 in row 1"),
        (lambda: tiny().fit({"input_ids": IDS + 30}, IDS), r"input_ids has 32 in row 0"),
        (
            lambda: tiny().evaluate({"input_ids": IDS, "token_type_ids": IDS}),
            r"token_type_ids has 2 in row 0",
        ),
        (lambda: tiny()({"input_ids": IDS, "attention_mask": IDS - 9}), r"attention_mask has -7 in row 0"),
        (lambda: tiny()(np.array([[1, -1]])), r"input_ids has -1 in row 0"),
        (lambda: tiny()([[1, 2], [3]]), r"input_ids has rows of different lengths"),
        (lambda: tiny()(np.array([["a"]])), r"input_ids is <U1"),
        (lambda: tiny()(np.array([1, 2])), r"shape \(2,\), expected \(batch, sequence\)"),
        (lambda: tiny()({"attention_mask": IDS}), r"'input_ids'.*\['attention_mask'\]"),
        (lambda: tiny()({"input_ids": IDS, "mask": IDS}), r"no input 'mask'.*'attention_mask'"),
        (lambda: tiny(segments=0)({"input_ids": IDS, "token_type_ids": IDS}), r"no input 'token_type_ids'"),
        (
            lambda: tiny()({"input_ids": IDS, "attention_mask": np.ones((2, 4), "int32")}),
            r"attention_mask has the shape \(2, 4\), but input_ids has \(2, 6\)",
        ),
        (lambda: keras_tx.TokenClassifierHead(1), r"num_classes is 1"),
        (lambda: keras_tx.SentenceEmbeddingHead("average"), r"pooling='average' is unknown"),
        (lambda: keras_tx.SpanHead(dropout=2), r"dropout is 2.*rate"),
        (lambda: keras_tx.RegressionHead(0), r"outputs is 0"),
    ],
    ids=shown,
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
