"""BERT, RoBERTa and DistilBERT of Hugging Face: equal outputs and tensors after loading and saving."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy, redraw
from tests.golden.folders import golden_folders
from tests.tolerances import assert_close
from tests.weights.states import quietly_opened
from tests.wordpiece import VOCABULARY, wordpiece

GOLDEN = golden_folders("bert")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HEADS = {
    "ForPreTraining": keras_tx.PretrainingHead(),
    "ForMaskedLM": keras_tx.MaskedLMHead(),
    "ForNextSentencePrediction": keras_tx.NextSentenceHead(),
    "ForSequenceClassification": keras_tx.ClassifierHead(3, 0.1),
    "ForTokenClassification": keras_tx.TokenClassifierHead(3, 0.1),
    "ForQuestionAnswering": keras_tx.SpanHead(),
    "Model": None,
}


def compare(model: Any, expected: Mapping[str, np.ndarray]) -> None:
    """Every hidden state and every output, at all real tokens."""
    inputs = {name: expected[name] for name in INPUTS if name in expected}
    real = expected["attention_mask"].astype(bool)
    first = "dropout" if model.config.dropout else "embedding_norm"
    names = [first, *(f"block_{index}" for index in range(model.config.depth))]
    parts = keras.Model(model.input, [model.get_layer(name).output for name in names])
    for mine, theirs in zip(parts(model.complete(inputs)), expected["hidden"], strict=True):
        assert_close(as_numpy(mine)[real], theirs[real])
    outputs = as_numpy(model(inputs))
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    assert set(outputs) == {name for name in expected if name not in (*INPUTS, "hidden")}
    for name, mine in outputs.items():
        theirs = expected[name]
        of_tokens = theirs.shape[:2] == real.shape
        assert_close(mine[real] if of_tokens else mine, theirs[real] if of_tokens else theirs)


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_golden_folders(folder: Path, tmp_path: Path):
    model = keras_tx.from_checkpoint(folder)
    compare(model, load_file(folder / "answers.safetensors"))
    keras_tx.save_checkpoint(model, tmp_path / "again")
    mine, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "again", folder))
    if not folder.name.startswith("old"):
        assert set(mine) == set(theirs)
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    again = keras_tx.from_checkpoint(tmp_path / "again")
    assert (again.config, again.head) == (model.config, model.head)
    for a, b in zip(model.weights, again.weights, strict=True):
        assert np.array_equal(as_numpy(a), as_numpy(b))


CASES = [
    *((f"Bert{name}", {}) for name in HEADS),
    *((f"Roberta{name}", {}) for name in HEADS if "PreT" not in name and "Next" not in name),
    *((f"DistilBert{name}", {}) for name in HEADS if "PreT" not in name and "Next" not in name),
    ("BertForSequenceClassification", {"hidden_act": "gelu_new", "classifier_dropout": 0.0}),
    ("BertForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 0.01, "type_vocab_size": 3}),
    ("RobertaForMaskedLM", {"hidden_act": "gelu_new", "pad_token_id": 2, "type_vocab_size": 2}),
    ("DistilBertForSequenceClassification", {"activation": "gelu_new", "sinusoidal_pos_embds": True}),
    ("BertModel", {"type_vocab_size": 1, "chunk_size_feed_forward": 3, "pad_token_id": None}),
    ("XLMRobertaForTokenClassification", {}),
    ("CamembertForSequenceClassification", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_equals_transformers_both_ways(name: str, options: dict[str, Any], tmp_path: Path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden import make_bert

    extra: dict[str, Any] = {"num_labels": 3} if "Classification" in name else {}
    theirs = make_bert.redrawn(name, 3, **extra, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = make_bert.answers(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = keras_tx.from_checkpoint(tmp_path / "theirs")
    own = HEADS["For" + name.split("For")[1] if "For" in name else "Model"]
    assert type(model.head) is type(own)
    compare(model, expected)
    keras_tx.save_checkpoint(model, tmp_path / "ours")
    opened(tmp_path / "ours", name.removeprefix("XLM").replace("Camembert", "Roberta"), theirs)


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel"])
def test_padding_on_the_left_equals_transformers(name: str, tmp_path: Path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    from tests.golden import make_bert

    theirs = make_bert.redrawn(name, 3)
    theirs.save_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(3, 24, (2, 9))
    mask = np.ones_like(ids)
    mask[1, :4], ids[1, :4] = 0, theirs.config.pad_token_id
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    mine = as_numpy(keras_tx.from_checkpoint(tmp_path / "theirs")({"input_ids": ids, "attention_mask": mask}))
    assert_close(mine["last_hidden_state"][mask == 1], expected.last_hidden_state.numpy()[mask == 1])


def test_xlm_r_with_a_sentencepiece_model_answers_questions(tmp_path: Path):
    """From a folder without tokenizer.json to an exported one: scores and places equal transformers'."""
    for package in ("torch", "transformers", "sentencepiece"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    from keras_tx.runtime import load
    from keras_tx_onnx import export_onnx
    from tests.golden import make_bert
    from tests.processing.test_sentencepiece import train

    theirs = make_bert.redrawn(
        "XLMRobertaForQuestionAnswering", 2, vocab_size=140, max_position_embeddings=34
    )
    theirs.save_pretrained(tmp_path / "x")
    (tmp_path / "x" / "sentencepiece.bpe.model").write_bytes(train())
    (tmp_path / "x" / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    model = keras_tx.from_checkpoint(tmp_path / "x")
    assert model.processing.max_length == 32
    export_onnx(model, tmp_path / "answers")
    question, text = "What is quick?", "The  quick brown fox jumps"
    best = load(tmp_path / "answers")(question, text, top_k=3)
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")(question, text, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**batch)
    second = np.array([part == 1 for part in batch.sequence_ids(0)])
    second[0] = True  # no answer
    start, end = (torch.softmax(x[0, second], 0).numpy() for x in (logits.start_logits, logits.end_logits))
    scores = np.triu(np.outer(start[1:], end[1:]))
    assert best[0]["score"] == pytest.approx(scores.max(), rel=1e-4)
    for answer in best:
        assert answer["answer"] == text[answer["start"] : answer["end"]] == answer["answer"].strip() != ""


def test_a_tokenizer_that_needs_a_tokenizer_json_warns(tmp_path: Path):
    folder = tiny(tmp_path / "x", "RobertaForMaskedLM")
    (folder / "sentencepiece.bpe.model").write_bytes(b"")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CamembertTokenizer"}')
    with pytest.warns(UserWarning, match="no tokenizer.json, so the model has no tokenizer.*'camembert'"):
        assert keras_tx.from_checkpoint(folder).processing is None


def opened(folder: Path, name: str, theirs: Any) -> Any:
    """Their class opens our folder with nothing missing or left over, and has the same tensors."""
    import torch
    import transformers

    again, info = quietly_opened(getattr(transformers, name), folder)
    for problem, names in info.items():
        assert not names, f"{problem}: {names}"
    expected, state = theirs.state_dict(), again.state_dict()
    assert set(state) == set(expected)
    for key, value in expected.items():
        assert torch.equal(state[key], value), key
    return again


def tiny(folder: Path, name: str = "BertForSequenceClassification", **changes: Any) -> Path:
    """A golden folder with another config."""
    shutil.copytree(next(path for path in GOLDEN if path.name == f"5-{name}"), folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


REFUSED = [
    ({"hidden_act": "silu"}, "hidden_act='silu', which is not supported. Known: 'gelu'"),
    ({"hidden_act": None}, "hidden_act=None"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='absolute'"),
    ({"is_decoder": True}, "is_decoder=False"),
    ({"add_cross_attention": True}, "add_cross_attention=False"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder=False"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"hidden_size": "8"}, "hidden_size='8'"),
    ({"hidden_size": -8}, "hidden_size=-8"),
    ({"num_attention_heads": 3}, "hidden_size=8 is not divisible by num_attention_heads=3"),
    ({"hidden_size": 10**12}, "hidden_size=1000000000000, but the checkpoint's tensors have only"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers=1000000000000, but the checkpoint has only"),
    ({"num_hidden_layers": 3}, "missing: bert.encoder.layer.2"),
    ({"num_hidden_layers": 1}, "not expected: bert.encoder.layer.1"),
    ({"vocab_size": 23}, "word_embeddings.weight is 24 x 8"),
    ({"hidden_dropout_prob": 1.5}, "dropout is 1.5"),
    ({"layer_norm_eps": "small"}, "layer_norm_eps='small'"),
    ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "id2label="),
    ({"id2label": ["a", "b", "c"]}, "id2label="),
    ({"architectures": "Bert"}, "architectures='Bert'"),
    ({"architectures": []}, "architectures="),
    ({"architectures": ["BertLMHeadModel"]}, "'BertLMHeadModel'.*head=None"),
    ({"architectures": ["BertLMHeadModel"]}, "'BertLMHeadModel'.*head=None"),
    ({"architectures": ["BertForMaskedLM"]}, "MaskedLMHead.*\n  missing: cls.predictions"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"), REFUSED, ids=lambda x: "".join(x) if isinstance(x, dict) else ""
)
def test_unsupported_configs_raise(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        keras_tx.from_checkpoint(tiny(tmp_path / "x", **changes))


def test_fields_without_effect_are_accepted(tmp_path: Path):
    harmless = {"chunk_size_feed_forward": 4, "gradient_checkpointing": True, "dtype": "float32", "new": 1}
    keras_tx.from_checkpoint(tiny(tmp_path / "x", **harmless))


def test_an_unsupported_head_can_be_omitted(tmp_path: Path):
    folder = tiny(tmp_path / "y", architectures=["BertLMHeadModel"])
    with pytest.warns(UserWarning, match="classifier.bias, classifier.weight"):
        assert "pooler_output" in keras_tx.from_checkpoint(folder, head=None).output


def logits_of(model: Any, expected: Mapping[str, np.ndarray]) -> np.ndarray:
    return as_numpy(model({name: expected[name] for name in INPUTS if name in expected}))


def test_labels(tmp_path: Path):
    folder = tiny(tmp_path / "x")
    model = keras_tx.from_checkpoint(folder)
    assert model.head == keras_tx.ClassifierHead(3, 0.1, ("bad", "so so", "good"))
    keras_tx.save_checkpoint(model, tmp_path / "y")
    assert json.loads((tmp_path / "y/config.json").read_text())["id2label"]["1"] == "so so"
    same = {"0": "a", "1": "a", "2": "b"}
    with pytest.warns(UserWarning, match="several classes 'a'"):
        named = keras_tx.from_checkpoint(tiny(tmp_path / "z", id2label=same))
    assert named.head.labels == ("a (0)", "a (1)", "b")


@pytest.mark.parametrize(
    ("problem", "head"),
    [
        ("regression", keras_tx.RegressionHead),
        ("multi_label_classification", keras_tx.MultiLabelHead),
        ("single_label_classification", keras_tx.ClassifierHead),
    ],
)
def test_the_problem_type_is_kept(problem: str, head: Any, tmp_path: Path):
    folder = tiny(tmp_path / "x", problem_type=problem)
    expected = load_file(folder / "answers.safetensors")
    model = keras_tx.from_checkpoint(folder)
    assert model.head == head(3, 0.1, ("bad", "so so", "good"))
    assert_close(logits_of(model, expected), expected["logits"])
    keras_tx.save_checkpoint(model, tmp_path / "y")
    assert json.loads((tmp_path / "y/config.json").read_text())["problem_type"] == problem


def test_a_new_head_warns(tmp_path: Path):
    folder = tiny(tmp_path / "x")
    for head in (keras_tx.ClassifierHead(2), keras_tx.RegressionHead(3), keras_tx.TokenClassifierHead(3)):
        with pytest.warns(UserWarning, match="logits/kernel, logits/bias; .*classifier.weight"):
            model = keras_tx.from_checkpoint(folder, head=head)
        assert not np.array_equal(
            as_numpy(model.get_layer("logits").kernel),
            load_file(folder / "model.safetensors")["classifier.weight"].T,
        )
    folder = tiny(tmp_path / "y", "RobertaForSequenceClassification")
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias; .*classifier"):
        keras_tx.from_checkpoint(folder, head=keras_tx.RegressionHead(4))  # the layer below it is the same
    with pytest.warns(UserWarning, match="pooler/kernel, pooler/bias, logits"):
        keras_tx.from_checkpoint(folder, head=keras_tx.NextSentenceHead())
    folder = tmp_path / "x"
    same = keras_tx.ClassifierHead(3, dropout=0.2, labels=keras_tx.from_checkpoint(folder).head.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_tx.from_checkpoint(folder, head=same)


def test_the_pooler_follows_the_head(tmp_path: Path):
    """DistilBERT has a layer under its classifier that its encoder alone has not."""
    folder = tiny(tmp_path / "x", "DistilBertForMaskedLM")
    with pytest.warns(UserWarning, match="pooler/kernel, pooler/bias, logits/kernel"):
        assert keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(2)).config.pooler == "relu"
    with pytest.warns(UserWarning, match="vocab_transform.weight"):
        assert set(keras_tx.from_checkpoint(folder, head=None).output) == {"last_hidden_state"}
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias;"):
        assert (
            keras_tx.from_checkpoint(folder, head=keras_tx.ClassifierHead(2), pooler=None).config.pooler
            is None
        )


def test_tied_or_not(tmp_path: Path):
    old = next(path for path in GOLDEN if path.name.startswith("old"))
    tensors = load_file(old / "model.safetensors")
    table, bias = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
    changed = {
        "only the decoder's": {"bert.embeddings.word_embeddings.weight": None, "cls.predictions.bias": None},
        "tied": {},
        "differs": {table: tensors[table] + 1},
        "bias differs": {bias: tensors[bias] + 1},
        "both names": {"embeddings.word_embeddings.weight": tensors[table]},
    }
    for case, change in changed.items():
        folder = tmp_path / case
        shutil.copytree(old, folder)
        written = {name: x for name, x in {**tensors, **change}.items() if x is not None}
        save_file(written, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        config["tie_word_embeddings"] = case in ("both names", "bias differs", "only the decoder's")
        (folder / "config.json").write_text(json.dumps(config))
        if case in ("tied", "only the decoder's"):
            compare(keras_tx.from_checkpoint(folder), load_file(old / "answers.safetensors"))
        elif case == "differs":
            head = keras_tx.from_checkpoint(folder).head
            assert head is not None and not head.tied
        else:
            message = {"both names": "two names of one tensor"}
            with pytest.raises(ConfigError, match=message.get(case, "decoder.bias differs from cls")):
                keras_tx.from_checkpoint(folder)


def test_fewer_positions_are_the_first(tmp_path: Path):
    folder = tiny(tmp_path / "x")
    model = keras_tx.from_checkpoint(folder, max_length=9)
    expected = load_file(folder / "answers.safetensors")
    compare(model, expected)
    with pytest.raises(ConfigError, match=r"12 positions .* 13 "):
        keras_tx.from_checkpoint(folder, max_length=13)


def test_a_lone_file_and_shards(tmp_path: Path):
    folder = tiny(tmp_path / "x", "RobertaForSequenceClassification")
    expected = load_file(folder / "answers.safetensors")
    fields = dict(
        width=8, depth=2, num_heads=2, mlp_dim=12, vocabulary_size=24, max_length=12, activation="gelu_tanh"
    )
    roberta = dict(segments=1, position_offset=2, pad_id=1)
    model = keras_tx.bert(
        "tiny", weights=folder / "model.safetensors", head=keras_tx.RegressionHead(), **fields, **roberta
    )
    assert_close(logits_of(model, expected), expected["logits"])
    with pytest.raises(ConfigError, match="do not fit model"):
        keras_tx.bert("tiny", weights=folder / "model.safetensors", **{**fields, "depth": 1}, **roberta)


@pytest.mark.parametrize(("options", "name"), [
    ({"pooler": None}, "BertModel"),
    ({"pooler": None, "segments": 0, "position_offset": 2, "pad_id": 1}, "RobertaModel"),
    ({"pooler": None, "head": keras_tx.SentenceEmbeddingHead("class")}, "BertModel"),
    ({"head": keras_tx.NextSentenceHead(), "segments": 1, "position_offset": 2, "pad_id": 1},
     "RobertaForSequenceClassification"),
])  # fmt: skip
def test_missing_parts_are_written_as_zeros(options: dict[str, Any], name: str, tmp_path: Path):
    sizes = dict(width=8, depth=2, num_heads=2, mlp_dim=12, vocabulary_size=len(VOCABULARY), max_length=12)
    model = redraw(keras_tx.bert("tiny", **{**sizes, **options}))
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    again = keras_tx.from_checkpoint(folder)
    ids = np.array([[5, 9, 7, options.get("pad_id", 0)], [5, 6, 7, 8]])
    mine, theirs = as_numpy(model(ids)), as_numpy(again(ids))
    keras.tree.map_structure(assert_close, theirs, mine)
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    _, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_is_saved_with_the_weights(lowercase: bool, tmp_path: Path):
    transform = keras_tx.TextTransform.of(wordpiece(lowercase=lowercase))
    model = keras_tx.bert(
        "tiny", depth=1, processing=transform, head=keras_tx.ClassifierHead(2), max_length=32
    )
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    again = keras_tx.from_checkpoint(folder)
    assert again.processing == model.processing
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    texts = ["The c\u00e4t sat on the MAT.", "Ada works in Paris \u4e2d!"]
    read = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="np")
    for name, array in again.processing(texts).items():
        assert np.array_equal(array, read[name]), name


def test_folders_of_sentence_transformers(tmp_path: Path):
    transform = keras_tx.TextTransform.of(wordpiece())
    head = keras_tx.SentenceEmbeddingHead("class", normalize=False)
    sizes = dict(width=8, num_heads=2, mlp_dim=12, depth=1, max_length=32)
    model = redraw(keras_tx.bert("tiny", processing=transform, head=head, **sizes))
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    again = keras_tx.from_checkpoint(folder)
    assert again.head == head
    texts = ["the cat", "I love films"]
    assert np.array_equal(as_numpy(again(again.processing(texts))), as_numpy(model(model.processing(texts))))

    def changed(file: str, **fields: Any) -> Path:
        path = folder / file
        before = path.read_text() if path.exists() else "{}"
        path.write_text(json.dumps({**json.loads(before), **fields}))
        try:
            return keras_tx.from_checkpoint(folder)
        finally:
            path.write_text(before)

    settings, pooling = "sentence_bert_config.json", "1_Pooling/config.json"
    assert changed(settings, max_seq_length=7).processing.max_length == 7
    assert changed(settings, max_seq_length=None).processing.max_length == 32
    assert changed(pooling, pooling_mode="mean").head.pooling == "mean"
    for file, fields, message in (
        (settings, {"max_seq_length": "7"}, "max_seq_length='7'"),
        (
            pooling,
            {"pooling_mode_max_tokens": True},
            "pooling_mode_cls_token, pooling_mode_max_tokens",
        ),
        (pooling, {"pooling_mode": "lasttoken"}, "1_Pooling.*lasttoken"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            "default_prompt_name='query'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            changed(file, **fields)
    dense = [
        *json.loads((folder / "modules.json").read_text()),
        {"type": "sentence_transformers.models.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(dense))
    with pytest.raises(ConfigError, match="modules.json.*Transformer, Pooling, Dense"):
        keras_tx.from_checkpoint(folder)
    assert "last_hidden_state" in keras_tx.from_checkpoint(folder, head=None).output


def test_lowercasing_of_a_cased_tokenizer(tmp_path: Path):
    transform = keras_tx.TextTransform.of(wordpiece(lowercase=False))
    model = keras_tx.bert(
        "tiny", depth=1, processing=transform, head=keras_tx.SentenceEmbeddingHead(), max_length=32
    )
    folder = keras_tx.save_checkpoint(model, tmp_path / "x")
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 16, "do_lower_case": True}))
    lowercased = keras_tx.from_checkpoint(folder).processing
    assert np.array_equal(lowercased("THE CAT")["input_ids"], transform("the cat")["input_ids"])
    assert not np.array_equal(lowercased("THE CAT")["input_ids"], transform("THE CAT")["input_ids"])
