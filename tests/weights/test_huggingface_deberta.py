"""DeBERTa of Hugging Face: equal outputs and tensors after loading and saving."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.weights.encoder_comparing import changed, compare, opened
from tests.wordpiece import VOCABULARY, wordpiece

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "debertav2").iterdir())
CLASSIFIER = next(path for path in GOLDEN if path.name.endswith("ForSequenceClassification"))
MASKED = next(path for path in GOLDEN if path.name.endswith("ForMaskedLM"))
HEADS = {
    "Model": None,
    "ForMaskedLM": keras_tx.MaskedLMHead(),
    "ForSequenceClassification": keras_tx.ClassifierHead(3, 0.1),
    "ForTokenClassification": keras_tx.TokenClassifierHead(3, 0.1),
    "ForQuestionAnswering": keras_tx.SpanHead(),
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"legacy": False}) for name in HEADS),
    ("Model", {"share_att_key": False}),
    ("Model", {"pos_att_type": ["c2p"]}),
    ("Model", {"pos_att_type": "p2c", "share_att_key": False}),
    ("Model", {"position_buckets": 8, "max_relative_positions": 12}),
    ("Model", {"position_buckets": 16}),
    ("Model", {"position_buckets": -1, "max_relative_positions": 5}),
    ("Model", {"norm_rel_ebd": "none", "num_hidden_layers": 1, "layer_norm_eps": 0.01}),
    ("ForSequenceClassification", {"pooler_hidden_act": "tanh", "hidden_act": "gelu_new"}),
    ("ForSequenceClassification", {"pooler_hidden_act": "gelu_new", "hidden_act": "relu"}),
]


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_golden_folders(folder: Path, tmp_path: Path):
    model = keras_tx.from_checkpoint(folder)
    compare(model, load_file(folder / "answers.safetensors"), rows=slice(2))
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
    return make_encoders.redrawn(f"DebertaV2{name}", 3, **{**labels, **options})


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
    compare(model, expected, rows=slice(2))
    keras_tx.save_checkpoint(model, tmp_path / "ours")
    again = opened(tmp_path / "ours", f"DebertaV2{name}", theirs)
    again.set_attn_implementation("eager")
    repeated = make_encoders.answers(again, make_encoders.inputs(again.config))
    for key, value in expected.items():
        assert_close(repeated[key], value)


@pytest.mark.parametrize("length", [1, 3, 40, 150])
def test_lengths_below_and_above_the_buckets(length: int, tmp_path: Path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    options: dict[str, Any] = {
        "position_buckets": 64,
        "max_position_embeddings": 160,
        "max_relative_positions": -1,
    }
    theirs = redrawn("Model", **options)
    theirs.save_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(length).integers(3, 24, (2, length))
    mask = np.ones_like(ids)
    mask[1, (length + 1) // 2 :] = 0
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state
    mine = as_numpy(keras_tx.from_checkpoint(tmp_path / "theirs")({"input_ids": ids, "attention_mask": mask}))
    assert_close(mine["last_hidden_state"][mask == 1], expected.numpy()[mask == 1])


def test_the_old_form_of_masked_tokens_is_read_and_written_in_the_new_one(tmp_path: Path):
    theirs = redrawn("ForMaskedLM", legacy=True)
    from tests.golden import make_encoders

    theirs.save_pretrained(tmp_path / "theirs")
    expected = make_encoders.answers(theirs, make_encoders.inputs(theirs.config))
    model = keras_tx.from_checkpoint(tmp_path / "theirs")
    compare(model, expected)
    keras_tx.save_checkpoint(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["legacy"] is False
    names = load_file(tmp_path / "ours/model.safetensors")
    assert "lm_predictions.lm_head.dense.weight" in names and not any(x.startswith("cls.") for x in names)
    compare(keras_tx.from_checkpoint(tmp_path / "ours"), expected)


def test_the_form_of_the_published_checkpoints(tmp_path: Path):
    """They name no architecture, and have heads of masked and of replaced tokens."""
    folder = changed(MASKED, tmp_path / "x")
    fields = json.loads((folder / "config.json").read_text())
    for name in ("architectures", "legacy", "dtype", "transformers_version"):
        fields.pop(name, None)
    (folder / "config.json").write_text(json.dumps({**fields, "max_relative_positions": -1}))
    tensors = load_file(folder / "model.safetensors")
    extra = {"mask_predictions.dense.weight": np.zeros((8, 8), "float32")}
    position_ids = {"deberta.embeddings.position_ids": np.arange(40)[None]}
    save_file({**tensors, **extra, **position_ids}, folder / "model.safetensors")
    with pytest.warns(UserWarning, match="mask_predictions"):
        encoder = keras_tx.from_checkpoint(folder)
    assert encoder.head is None and encoder.config.max_distance == 40
    with pytest.warns(UserWarning, match="mask_predictions"):
        masked = keras_tx.from_checkpoint(folder, head=keras_tx.MaskedLMHead())
    compare(masked, load_file(MASKED / "answers.safetensors"))
    with pytest.warns(UserWarning, match="lm_predictions"):
        classifier = keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(2))
    np.testing.assert_array_equal(
        as_numpy(classifier.get_layer("token_embedding").table),
        tensors["deberta.embeddings.word_embeddings.weight"],
    )


REFUSED = [
    ({"hidden_act": "silu"}, "hidden_act='silu', which is not supported"),
    ({"pooler_hidden_act": "silu"}, "pooler_hidden_act='silu'"),
    ({"relative_attention": False}, "relative_attention=False; only relative_attention=True"),
    ({"position_biased_input": True}, "position_biased_input=True; only position_biased_input=False"),
    ({"type_vocab_size": 2}, "type_vocab_size=2; only type_vocab_size=0"),
    ({"conv_kernel_size": 3}, "conv_kernel_size=3; only conv_kernel_size=0"),
    ({"embedding_size": 4}, "embedding_size=4; only embedding_size=8"),
    ({"pooler_hidden_size": 4}, "pooler_hidden_size=4; only pooler_hidden_size=8"),
    ({"attention_head_size": 8}, "attention_head_size=8; only attention_head_size=4"),
    ({"is_decoder": True}, "is_decoder=False"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"pos_att_type": "c2p|p2p"}, "pos_att_type='c2p|p2p'; expected c2p, p2c or both"),
    ({"pos_att_type": []}, "pos_att_type="),
    ({"norm_rel_ebd": "rms"}, "norm_rel_ebd='rms'; expected 'none' or 'layer_norm'"),
    ({"norm_rel_ebd": "layer_norm"}, "encoder.LayerNorm"),
    ({"share_att_key": "yes"}, "share_att_key='yes'; expected true or false"),
    ({"share_att_key": True}, "not expected: .*pos_key_proj"),
    ({"position_buckets": 5}, "buckets is 5|position_buckets"),
    ({"position_buckets": "x"}, "position_buckets='x'; expected a whole number"),
    ({"max_relative_positions": 7}, "rel_embeddings.weight is 12 x 8"),
    ({"num_attention_heads": 3}, "hidden_size=8 is not divisible by num_attention_heads=3"),
    ({"num_hidden_layers": 1}, "not expected: .*layer.1"),
    ({"vocab_size": 23}, "word_embeddings.weight is 24 x 8"),
    ({"pad_token_id": 99}, "pad_token_id=99 is out of range"),
    ({"architectures": ["DebertaV2ForMultipleChoice"]}, "'DebertaV2ForMultipleChoice'.*head=None"),
    ({"architectures": ["DebertaV2ForQuestionAnswering"]}, "id2label=.*expected two"),
    ({"model_type": "deberta"}, "'deberta', which is not supported.*'deberta-v2'"),
]


@pytest.mark.parametrize(
    ("changes", "message"), REFUSED, ids=lambda x: ",".join(x) if isinstance(x, dict) else ""
)
def test_unsupported_configs_raise(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        keras_tx.from_checkpoint(changed(CLASSIFIER, tmp_path / "x", **changes))


def test_masked_tokens_with_a_matrix_of_their_own_raise(tmp_path: Path):
    folder = changed(MASKED, tmp_path / "x", legacy=True, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="only tie_word_embeddings=True is supported"):
        keras_tx.from_checkpoint(folder)


@pytest.mark.parametrize(
    ("problem", "head"),
    [("regression", keras_tx.RegressionHead), ("multi_label_classification", keras_tx.MultiLabelHead)],
)
def test_the_problem_type_is_kept(problem: str, head: Any, tmp_path: Path):
    folder = changed(CLASSIFIER, tmp_path / "x", problem_type=problem, cls_dropout=0.3, pooler_dropout=0.2)
    model = keras_tx.from_checkpoint(folder)
    assert model.head == head(3, 0.3, ("bad", "so so", "good")) and model.config.pooler_dropout == 0.2
    again = keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / "y"))
    assert (again.head, again.config) == (model.head, model.config)


def test_another_classifier_keeps_the_pooler(tmp_path: Path):
    with pytest.warns(UserWarning, match="classifier.weight") as caught:
        model = keras_tx.from_checkpoint(CLASSIFIER, head=keras_tx.ClassifierHead(2))
    assert "pooler.dense" not in str(caught[0].message)
    tensors = load_file(CLASSIFIER / "model.safetensors")
    np.testing.assert_array_equal(
        as_numpy(model.get_layer("pooler").kernel), tensors["pooler.dense.weight"].T
    )
    for head in (keras_tx.TokenClassifierHead(3), keras_tx.SpanHead()):
        with pytest.warns(UserWarning, match="classifier.weight"):
            keras_tx.from_checkpoint(CLASSIFIER, head=head)


def test_folders_of_sentence_transformers(tmp_path: Path):
    transform = keras_tx.TextTransform.of(wordpiece())
    head = keras_tx.SentenceEmbeddingHead("mean")
    sizes: dict[str, Any] = {
        "width": 16,
        "mlp_dim": 24,
        "vocabulary_size": len(VOCABULARY),
        "max_length": 32,
        "buckets": 4,
    }
    model = redraw(keras_tx.deberta("tiny", processing=transform, head=head, **sizes))
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    assert (folder / "modules.json").is_file()
    again = keras_tx.from_checkpoint(folder)
    assert (again.head, again.config, again.processing) == (head, model.config, model.processing)
    batch = again.processing(["the cat", "I love films"])
    np.testing.assert_array_equal(as_numpy(again(batch)), as_numpy(model(batch)))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (keras_tx.MaskedLMHead(norm_epsilon=0.1), "a MaskedLMHead with norm_epsilon=0.1"),
        (keras_tx.MaskedLMHead(tied=False), "a MaskedLMHead with tied=False"),
        (keras_tx.MaskedLMHead("relu"), "a MaskedLMHead with activation='relu'"),
        (keras_tx.ClassifierHead(2, pooling="average"), "a ClassifierHead with pooling='average'"),
    ],
)
def test_heads_that_transformers_does_not_have(head: Any, message: str, tmp_path: Path):
    model = keras_tx.deberta("tiny", vocabulary_size=30, head=head)
    with pytest.raises(ConfigError, match=message):
        keras_tx.save_checkpoint(model, tmp_path / "x")


def test_a_folder_with_a_sentencepiece_model_is_exported_and_run(tmp_path: Path):
    """From a folder of transformers without tokenizer.json: scores equal those of transformers."""
    for package in ("torch", "transformers", "sentencepiece"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    from keras_tx.runtime import load
    from keras_tx_onnx import export_onnx
    from tests.processing.test_sentencepiece import train
    from tests.processing.test_sentencepiece_folder import DEBERTA

    theirs = redrawn("ForSequenceClassification", vocab_size=150)
    theirs.save_pretrained(tmp_path / "x")
    (tmp_path / "x" / "spm.model").write_bytes(train(**DEBERTA))
    (tmp_path / "x" / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    model = keras_tx.from_checkpoint(tmp_path / "x")
    assert model.processing is not None and model.processing.max_length == 40
    export_onnx(model, tmp_path / "answers")
    texts = ["The quick brown fox", "A quick answer to the question: the dogs are jumping, too!!"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=40)
    with torch.no_grad():
        expected = torch.softmax(theirs(**batch).logits, -1).numpy()
    with load(tmp_path / "answers") as runtime:
        for row, answer in zip(expected, runtime(texts), strict=True):
            scores = {entry["label"]: entry["score"] for entry in answer}
            assert_close(np.array([scores[f"LABEL_{index}"] for index in range(3)]), row)
