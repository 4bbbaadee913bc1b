"""ModernBERT of Hugging Face: equal outputs and tensors after loading and saving."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, redraw
from tests.golden.folders import golden_folders
from tests.tolerances import assert_close
from tests.weights.encoder_comparing import changed, compare, opened
from tests.wordpiece import VOCABULARY, wordpiece

GOLDEN = golden_folders("modernbert")
CLASSIFIER = next(path for path in GOLDEN if path.name == "5-ModernBertForSequenceClassification")
OLD = next(path for path in GOLDEN if path.name == "4-ModernBertForSequenceClassification")
HEADS = {
    "Model": None,
    "ForMaskedLM": keras_tx.MaskedLMHead(),
    "ForSequenceClassification": keras_tx.ClassifierHead(3, 0.1),
    "ForTokenClassification": keras_tx.TokenClassifierHead(3, 0.1),
    "ForQuestionAnswering": keras_tx.SpanHead(0.1),
}
BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in HEADS),
    *((name, {**BIASES, "global_attn_every_n_layers": 2}) for name in ("Model", "ForQuestionAnswering")),
    ("ForMaskedLM", {"tie_word_embeddings": False, "hidden_activation": "gelu_new"}),
    ("ForSequenceClassification", {"classifier_pooling": "mean", "classifier_activation": "relu"}),
    ("ForTokenClassification", {"hidden_activation": "silu", "norm_eps": 0.01, "local_attention": 7}),
    ("Model", {"num_hidden_layers": 1, "pad_token_id": None}),
    ("Model", {"global_attn_every_n_layers": 1, "max_position_embeddings": 8192}),
]


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_golden_folders(folder: Path, tmp_path: Path):
    model = keras_tx.from_checkpoint(folder)
    compare(model, load_file(folder / "answers.safetensors"))
    keras_tx.save_checkpoint(model, tmp_path / "again")
    mine, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "again", folder))
    assert set(mine) == set(theirs)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    again = keras_tx.from_checkpoint(tmp_path / "again")
    assert (again.config, again.head) == (model.config, model.head)


def redrawn(name: str, **options: Any) -> Any:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden import make_encoders

    labels = {"num_labels": 3} if "Classification" in name else {}
    return make_encoders.redrawn(f"ModernBert{name}", 3, classifier_dropout=0.1, **{**labels, **options})


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_equals_transformers_both_ways(name: str, options: dict[str, Any], tmp_path: Path):
    theirs = redrawn(name, **options)
    from tests.golden import make_encoders

    theirs.save_pretrained(tmp_path / "theirs")
    expected = make_encoders.answers(theirs, make_encoders.inputs(theirs.config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = keras_tx.from_checkpoint(tmp_path / "theirs")
    assert type(model.head) is type(HEADS[name])
    assert getattr(model.head, "dropout", None) == getattr(HEADS[name], "dropout", None)
    # The class token of a text with padding on the left is padding, whose vector is not defined.
    compare(model, expected, rows=slice(None) if "classifier_pooling" in options else slice(2))
    keras_tx.save_checkpoint(model, tmp_path / "ours")
    again = opened(tmp_path / "ours", f"ModernBert{name}", theirs)
    again.set_attn_implementation("eager")
    repeated = make_encoders.answers(again, make_encoders.inputs(again.config))
    for key, value in expected.items():
        assert_close(repeated[key], value)


REFUSED = [
    ({"hidden_activation": "relu"}, "hidden_activation='relu', which is not supported"),
    ({"classifier_activation": "tanh"}, "classifier_activation='tanh'"),
    ({"classifier_pooling": "max"}, "classifier_pooling='max'"),
    ({"mlp_bias": False}, "mlp_bias=False; only mlp_bias equal to attention_bias=True"),
    ({"norm_bias": False}, "norm_bias=False; only norm_bias equal to attention_bias=True"),
    ({"decoder_bias": False}, "decoder_bias=False"),
    ({"is_decoder": True}, "is_decoder=False"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope_parameters"),
    ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters=.*'sliding_attention'"),
    ({"global_rope_theta": 7.0}, "global_rope_theta=7.0; rope_parameters has 5000.0"),
    ({"local_rope_theta": "x", "rope_parameters": None}, "local_rope_theta is 'x'"),
    ({"layer_types": ["full_attention"] * 3}, "layer_types=.*expected 4 types"),
    (
        {"layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]},
        "layer_types=",
    ),
    ({"global_attn_every_n_layers": 0, "layer_types": None}, "global_attn_every_n_layers is 0"),
    ({"local_attention": 0}, "local_attention is 0"),
    ({"num_attention_heads": 3}, "hidden_size=8 is not divisible by num_attention_heads=3"),
    ({"num_attention_heads": 8}, "= 1 is odd, but rotary positions"),
    ({"num_hidden_layers": 3, "layer_types": None}, "not expected: model.layers.3"),
    ({"vocab_size": 23}, "tok_embeddings.weight is 24 x 8"),
    ({"pad_token_id": 99}, "pad_token_id=99 is out of range"),
    ({"architectures": ["ModernBertForMultipleChoice"]}, "'ModernBertForMultipleChoice'.*head=None"),
    ({"architectures": ["ModernBertForQuestionAnswering"]}, "id2label=.*expected two"),
    ({"model_type": "modernbert-decoder"}, "'modernbert-decoder', which is not supported.*'modernbert'"),
]


@pytest.mark.parametrize(
    ("changes", "message"), REFUSED, ids=lambda x: ",".join(x) if isinstance(x, dict) else ""
)
def test_unsupported_configs_raise(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        keras_tx.from_checkpoint(changed(CLASSIFIER, tmp_path / "x", **changes))


def test_dropout_of_the_attention_output_warns(tmp_path: Path):
    folder = changed(CLASSIFIER, tmp_path / "x", attention_dropout=0.1)
    with pytest.warns(UserWarning, match="attention_dropout=0.1.*also applies to the output"):
        assert keras_tx.from_checkpoint(folder).config.attention_dropout == 0.1


def test_fields_without_effect_are_accepted(tmp_path: Path):
    harmless = {"reference_compile": True, "sparse_prediction": True, "initializer_cutoff_factor": 3.0}
    keras_tx.from_checkpoint(changed(CLASSIFIER, tmp_path / "x", **harmless))


def test_without_a_local_base_transformers_4_uses_the_global_one(tmp_path: Path):
    config = keras_tx.from_checkpoint(changed(OLD, tmp_path / "x", local_rope_theta=None)).config
    assert config.local_rotary_base == config.rotary_base == 5000.0
    folder = changed(OLD, tmp_path / "y")
    fields = json.loads((folder / "config.json").read_text())
    del fields["local_rope_theta"], fields["global_rope_theta"]
    (folder / "config.json").write_text(json.dumps(fields))
    config = keras_tx.from_checkpoint(folder).config
    assert (config.rotary_base, config.local_rotary_base) == (160000.0, 10000.0)


@pytest.mark.parametrize(
    ("problem", "head"),
    [("regression", keras_tx.RegressionHead), ("multi_label_classification", keras_tx.MultiLabelHead)],
)
def test_the_problem_type_is_kept(problem: str, head: Any, tmp_path: Path):
    model = keras_tx.from_checkpoint(changed(CLASSIFIER, tmp_path / "x", problem_type=problem))
    assert model.head == head(3, 0.0, ("bad", "so so", "good"), "average")
    folder = keras_tx.save_checkpoint(model, tmp_path / "y")
    assert keras_tx.from_checkpoint(folder).head == model.head


def test_a_classifier_keeps_the_layer_of_the_language_model_below_it(tmp_path: Path):
    language = next(path for path in GOLDEN if path.name == "5-ModernBertForMaskedLM")
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias;.*decoder.bias") as caught:
        model = keras_tx.from_checkpoint(language, head=keras_tx.ClassifierHead(2))
    assert "prediction_dense" not in str(caught[0].message)
    for head in (keras_tx.ClassifierHead(2), keras_tx.TokenClassifierHead(3), keras_tx.SpanHead()):
        with pytest.warns(UserWarning, match="classifier.weight"):
            keras_tx.from_checkpoint(CLASSIFIER, head=head)
    tensors = load_file(language / "model.safetensors")
    np.testing.assert_array_equal(
        as_numpy(model.get_layer("prediction_norm").gamma), tensors["head.norm.weight"]
    )


def test_folders_of_sentence_transformers(tmp_path: Path):
    transform = keras_tx.TextTransform.of(wordpiece())
    head = keras_tx.SentenceEmbeddingHead("class")
    sizes = {"width": 16, "mlp_dim": 24, "depth": 2, "vocabulary_size": len(VOCABULARY), "max_length": 32}
    model = redraw(keras_tx.modernbert("tiny", processing=transform, head=head, **sizes))
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    fields = json.loads((folder / "config.json").read_text())
    assert (fields["cls_token_id"], fields["sep_token_id"]) == tuple(map(transform.id_of, ("[CLS]", "[SEP]")))
    assert (folder / "modules.json").is_file()
    again = keras_tx.from_checkpoint(folder)
    assert (again.head, again.config, again.processing) == (head, model.config, model.processing)
    batch = again.processing(["the cat", "I love films"])
    np.testing.assert_array_equal(as_numpy(again(batch)), as_numpy(model(batch)))


def test_heads_that_transformers_does_not_have(tmp_path: Path):
    head = keras_tx.MaskedLMHead(norm_epsilon=0.1)
    model = keras_tx.modernbert("tiny", vocabulary_size=30, head=head)
    with pytest.raises(ConfigError, match="a MaskedLMHead with norm_epsilon=0.1"):
        keras_tx.save_checkpoint(model, tmp_path / "x")
