"""The folder of a BERT: names of inputs and outputs, config.json, tokenizer files, and unpadding."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy
from tests.export.exporting import nodes_of
from tests.export.small_bert import DISTILBERT, EXAMPLE, HEADS, MASK, OUTPUTS, RELU, ROBERTA, TINY, run, tiny
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, wordpiece

PADDED = ("none", "tags")  # the other heads are thorough tests


@pytest.mark.parametrize(
    ("head", "unpad"),
    [
        *(pytest.param(head, True, id=f"{head}-unpadded") for head in HEADS),
        *(
            pytest.param(
                head, False, id=f"{head}-padded", marks=() if head in PADDED else pytest.mark.thorough
            )
            for head in HEADS
        ),
    ],
)
def test_every_head(head: str, unpad: bool, tmp_path):
    model = tiny(HEADS[head])
    manifest = export_onnx(model, tmp_path / "x", unpad=unpad).manifest
    assert [spec.name for spec in manifest.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {(spec.dtype, spec.shape) for spec in manifest.inputs} == {
        ("int64", ("batch_size", "sequence_length"))
    }
    assert {spec.name for spec in manifest.outputs} == OUTPUTS.get(head, {"logits"})
    for spec in manifest.outputs:
        assert spec.shape[0] == "batch_size"
        assert spec.shape[1] == "sequence_length" or isinstance(spec.shape[1], int)
    assert manifest.task == model.task
    assert manifest.parity is not None and manifest.parity.cases[1].endswith("every mask")

    expected = as_numpy(model(EXAMPLE))
    expected = (
        expected if isinstance(expected, dict) else {"sentence_embedding": expected, "logits": expected}
    )
    for name, value in run(tmp_path / "x", EXAMPLE).items():
        if name == "last_hidden_state" and "sentence" in head:
            continue
        if value.shape[:2] != MASK.shape:
            assert_close(value, expected[name])
            continue
        assert_close(value[MASK == 1], expected[name][MASK == 1])
        if unpad or head == "span":
            assert (value[MASK == 0] == (-1e4 if head == "span" else 0)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("opset", range(17, 27))
def test_every_opset(opset: int, tmp_path):
    for name, options in (("bert", {}), ("roberta", ROBERTA)):
        model = tiny(keras_tx.TokenClassifierHead(3), depth=1, **options)
        for unpad in (True, False):
            export_onnx(model, tmp_path / f"{name}{unpad}", opset=opset, unpad=unpad)


def test_nodes_of_a_block(tmp_path):
    """One Attention per layer and one mask; unpadded, one GatherND and three Gather per layer."""
    counts = {}
    for depth in (1, 2):
        for unpad in (True, False):
            folder = tmp_path / f"{depth}{unpad}"
            export_onnx(tiny(depth=depth), folder, verify=False, unpad=unpad)
            counts[depth, unpad] = nodes_of(folder)
    block = dict.fromkeys(("MatMul",), 4) | {"Add": 6, "LayerNormalization": 2, "Gelu": 1, "Attention": 1}
    block["Split"] = 1
    assert counts[2, False] - counts[1, False] == block
    assert counts[2, True] - counts[1, True] == {**block, "Gather": 3, "GatherND": 1}


CONFIGS = [
    ("bert", "BertModel", None, {}),
    ("bert", "BertModel", None, {"pooler": None, "activation": "gelu_tanh", "norm_epsilon": 1e-3}),
    ("bert", "BertForMaskedLM", keras_tx.MaskedLMHead(), {"activation": "relu", "pooler": "relu"}),
    ("bert", "BertForNextSentencePrediction", keras_tx.NextSentenceHead(), {}),
    ("bert", "BertForPreTraining", keras_tx.PretrainingHead(), {}),
    ("bert", "BertForSequenceClassification", keras_tx.ClassifierHead(3, dropout=0.3), {"segments": 3}),
    ("bert", "BertForTokenClassification", keras_tx.TokenClassifierHead(4), {"pooler": None}),
    ("bert", "BertForQuestionAnswering", keras_tx.SpanHead(), {"pooler": None}),
    ("bert", "BertModel", keras_tx.SentenceEmbeddingHead(), {}),
    ("roberta", "RobertaForSequenceClassification", keras_tx.RegressionHead(), ROBERTA),
    ("bert", "BertForSequenceClassification", keras_tx.MultiLabelHead(4), {}),
    ("roberta", "RobertaForMaskedLM", keras_tx.MaskedLMHead(), ROBERTA),
    ("distilbert", "DistilBertForSequenceClassification", keras_tx.ClassifierHead(2), DISTILBERT | RELU),
    ("distilbert", "DistilBertForQuestionAnswering", keras_tx.SpanHead(), DISTILBERT),
    (None, "pooler='relu'", keras_tx.ClassifierHead(2), {"pooler": "relu"}),
    (None, "pooler=None", keras_tx.PretrainingHead(), {"pooler": None}),
    (None, "pooler='relu'", None, {"pooler": "relu"}),
    (None, "position_offset=5 with pad_id=1", None, {**ROBERTA, "position_offset": 5}),
    (None, "with activation='relu'", keras_tx.MaskedLMHead("relu"), ROBERTA),
    (None, "norm_epsilon=0.001", None, {**DISTILBERT, "norm_epsilon": 1e-3}),
    (None, "a PretrainingHead", keras_tx.PretrainingHead(), DISTILBERT | RELU),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "expected", "head", "options"), CONFIGS)
def test_config(kind: str | None, expected: str, head: Any, options: dict, tmp_path):
    report = export_onnx(tiny(head, **options), tmp_path / "x", verify=False)
    config = json.loads((tmp_path / "x/config.json").read_text())
    if kind is None:
        assert "model_type" not in config and expected in report.manifest.notes[0]
        return
    assert (config["model_type"], config["architectures"]) == (kind, [expected])
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    read = transformers.AutoConfig.from_pretrained(tmp_path / "x")
    for name, value in config.items():
        if name in ("id2label", "position_embedding_type"):
            continue
        assert getattr(read, name) == value, name
    model = getattr(transformers, expected)(read)
    theirs = {name: tuple(p.shape) for name, p in model.named_parameters()}
    table = next(shape for name, shape in theirs.items() if name.endswith("position_embeddings.weight"))
    assert table == (TINY["max_length"] + options.get("position_offset", 0), TINY["width"])


def test_labels(tmp_path):
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    for head in (keras_tx.TokenClassifierHead(4), keras_tx.ClassifierHead(4)):
        manifest = export_onnx(
            tiny(head), tmp_path / "x", labels=names, verify=False, overwrite=True
        ).manifest
        assert list(manifest.labels or ()) == names
        config = json.loads((tmp_path / "x/config.json").read_text())
        assert config["id2label"] == {str(i): name for i, name in enumerate(names)}
        assert config["label2id"] == {name: i for i, name in enumerate(names)}
        named = tiny(type(head)(4, labels=names))
        of_head = export_onnx(named, tmp_path / "x", verify=False, overwrite=True).manifest
        assert list(of_head.labels or ()) == names
        again = type(head).from_config(json.loads(json.dumps(named.head.get_config())))
        assert again == named.head and again.labels == tuple(names)
        with pytest.raises(ConfigError, match="3 names.* 4 classes"):
            type(head)(4, labels=names[:3])
        with pytest.raises(ConfigError, match="labels.*'O'"):
            type(head)(4, labels=["O", "A", "B", "O"])
    with pytest.raises(ConfigError, match="4 names.* 2 classes"):
        export_onnx(tiny(keras_tx.NextSentenceHead()), tmp_path / "z", labels=names)
    with pytest.raises(ConfigError, match="labels.*'bert'"):
        export_onnx(tiny(keras_tx.SpanHead()), tmp_path / "z", labels=names)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("segments", [2, 0])
def test_transformers_reads_the_tokenizer(lowercase: bool, segments: int, tmp_path):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    tokenizer = wordpiece(lowercase=lowercase)
    export_onnx(tiny(segments=segments), tmp_path / "x", tokenizer=tokenizer, verify=False)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    first, second = "The cät sat on the MAT.", "Ada Lovelace works in Paris \u4e2d!"
    expected = tokenizer.encode(first, second)
    got = read(first, second)
    assert got["input_ids"] == expected.ids
    assert ("token_type_ids" in got) == bool(segments)
    if segments:
        assert got["token_type_ids"] == expected.type_ids
    assert read.model_max_length == TINY["max_length"]
    assert (read.mask_token, read.pad_token_id) == ("[MASK]", 0)
    assert (tmp_path / "x/vocab.txt").read_text().split() == VOCABULARY
    assert read(first, truncation=True, max_length=4)["input_ids"][-1] == 3


def test_tokenizer_by_path(tmp_path):
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path / "tokenizer.json")):
        export_onnx(tiny(), tmp_path / "x", tokenizer=source, verify=False, overwrite=True)
        assert (tmp_path / "x/tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("tokenizer", "options", "message"),
    [
        (7, {}, "tokenizer.* int"),
        ("missing.json", {}, "missing.json"),
        (wordpiece(), {"vocabulary_size": 20}, "20 vectors.*vocabulary_size=39"),
        (wordpiece(), {"pad_id": 3}, r"'\[PAD\]'.*pad_id=3"),
        (wordpiece(special=["[PAD]", "[UNK]"]), {}, "tokenizer.*cls_token, sep_token.*'bert'"),
    ],
)  # fmt: skip
def test_unsuitable_tokenizers_raise(tokenizer: Any, options: dict, message: str, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(tiny(**options), tmp_path / "x", tokenizer=tokenizer, verify=False)
    assert not (tmp_path / "x").exists()


def test_options_of_other_interfaces_raise(tmp_path):
    with pytest.raises(ConfigError, match="raw_pixels=True.*'bert'.*labels, tokenizer, unpad"):
        export_onnx(tiny(), tmp_path / "x", raw_pixels=True)
    with pytest.raises(ConfigError, match="tokenizer=.*'vit'.*image, labels, raw_pixels"):
        export_onnx(
            keras_tx.vit("Mu/2", image_size=8, num_classes=3),
            tmp_path / "x",
            tokenizer=wordpiece(),
            verify=False,
        )


@pytest.mark.parametrize("pooling", ["mean", "class"])
@pytest.mark.parametrize("normalize", [True, False])
def test_files_for_sentence_transformers(pooling: str, normalize: bool, tmp_path):
    model = tiny(keras_tx.SentenceEmbeddingHead(pooling, normalize))
    export_onnx(model, tmp_path / "x", verify=False)
    modules = json.loads((tmp_path / "x/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"][: 2 + normalize]
    read = json.loads((tmp_path / "x/1_Pooling/config.json").read_text())
    assert read["word_embedding_dimension"] == 16
    assert (read["pooling_mode_mean_tokens"], read["pooling_mode_cls_token"]) == (
        pooling == "mean",
        pooling == "class",
    )
    assert json.loads((tmp_path / "x/sentence_bert_config.json").read_text())["max_seq_length"] == 70
    # Pooling by a client equals pooling in the graph.
    outputs = run(tmp_path / "x", EXAMPLE)
    tokens = outputs["last_hidden_state"]
    pooled = tokens[:, 0] if pooling == "class" else tokens.sum(1) / MASK.sum(1, keepdims=True)
    if normalize:
        pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    assert_close(outputs["sentence_embedding"], pooled)


def test_sentence_transformers_equals_the_runtime_without_a_head(tmp_path):
    """The default is the normalized mean."""
    export_onnx(tiny(), tmp_path / "x", verify=False)
    modules = json.loads((tmp_path / "x/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    assert json.loads((tmp_path / "x/1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"] is True
    export_onnx(tiny(keras_tx.MaskedLMHead()), tmp_path / "y", verify=False)
    assert not (tmp_path / "y/modules.json").exists()


def test_processing_of_the_model_is_the_default_tokenizer(tmp_path):
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    transform = keras_tx.TextTransform.load(tmp_path / "tokenizer.json")
    export_onnx(tiny(processing=transform), tmp_path / "x", verify=False)
    read = keras_tx.TextTransform.load(tmp_path / "x")
    assert (read.vocabulary, read.max_length, read.segments) == (transform.vocabulary, 70, True)


def test_tokenizer_config(tmp_path):
    """tokenizer_class is BertTokenizer only if that class has the same behavior; other options are kept."""
    plain = keras_tx.processing.wordpiece(VOCABULARY, too_long="raise", multiple=8)
    split = json.loads(plain.tokenizer)
    split["pre_tokenizer"] = {"type": "Whitespace"}
    templated = json.loads(plain.tokenizer)
    templated["post_processor"]["pair"][3]["Sequence"]["type_id"] = 0
    for transform, segments, expected in (
        (plain, 2, "BertTokenizer"),
        (plain, 0, "PreTrainedTokenizerFast"),
        (dataclasses.replace(plain, tokenizer=json.dumps(split)), 2, "PreTrainedTokenizerFast"),
        (dataclasses.replace(plain, tokenizer=json.dumps(templated)), 2, "PreTrainedTokenizerFast"),
    ):
        model = tiny(segments=segments)
        export_onnx(model, tmp_path / "x", tokenizer=transform, verify=False, overwrite=True)
        config = json.loads((tmp_path / "x/tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == expected
        read = keras_tx.TextTransform.load(tmp_path / "x")
        assert read == dataclasses.replace(transform, max_length=70, segments=segments > 0)
        assert (read.too_long, read.multiple) == ("raise", 8)


def test_byte_level_tokenizers(tmp_path):
    """RoBERTa's files: vocab.json and merges.txt, and no segments."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat"] * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    model = tiny(**{**ROBERTA, "vocabulary_size": 60})
    export_onnx(model, tmp_path / "x", tokenizer=tokenizer, verify=False)
    assert (tmp_path / "x/merges.txt").read_text().startswith("#version: 0.2\n")
    assert json.loads((tmp_path / "x/vocab.json").read_text())["<mask>"] == 4
    read = keras_tx.TextTransform.load(tmp_path / "x")
    assert list(read("the cat")["input_ids"][0]) == tokenizer.encode("the cat").ids
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert theirs("the cat", "sat")["input_ids"] == tokenizer.encode("the cat", "sat").ids
