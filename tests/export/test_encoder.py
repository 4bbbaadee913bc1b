"""What a BERT becomes: the contract's names, a config for Hugging Face, tokenizer files, no padding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx_onnx import export_onnx
from keras_tx_onnx import unpad as unpadding
from keras_tx_onnx.sequence_sizes import sizes_of_ids
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import nodes_of
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, wordpiece

TINY = {
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "vocabulary": len(VOCABULARY),
    "max_length": 70,
}
ROBERTA = {"segments": 1, "position_offset": 2, "pad_id": 1}
DISTILBERT = {"segments": 0, "pooler": None}
RELU = {"pooler": "relu"}
HEADS = {
    "none": None,
    "masked": keras_tx.MaskedLMHead(),
    "next": keras_tx.NextSentenceHead(),
    "pretraining": keras_tx.PretrainingHead(),
    "classifier": keras_tx.ClassifierHead(3),
    "regression": keras_tx.RegressionHead(),
    "tags": keras_tx.TokenClassifierHead(4),
    "span": keras_tx.SpanHead(),
    "sentence": keras_tx.SentenceEmbeddingHead(),
    "class sentence": keras_tx.SentenceEmbeddingHead("class", normalize=False),
}
OUTPUTS = {
    "none": {"last_hidden_state", "pooler_output"},
    "pretraining": {"prediction_logits", "seq_relationship_logits"},
    "span": {"start_logits", "end_logits"},
    "sentence": {"last_hidden_state", "sentence_embedding"},
    "class sentence": {"last_hidden_state", "sentence_embedding"},
}
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
GIVEN = {
    "input_ids": np.arange(18).reshape(3, 6) * MASK + (1 - MASK),
    "attention_mask": MASK,
    "token_type_ids": (np.arange(6) > 2) * MASK,
}


def tiny(head: Any = None, **options: Any) -> Any:
    return redraw(keras_tx.bert("tiny", head=head, **{**TINY, **options}))


def run(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    found = session.run(None, {name: given[name].astype("int64") for name in names})
    return dict(zip([node.name for node in session.get_outputs()], found, strict=True))


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("head", HEADS)
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
    assert manifest.parity is not None and manifest.parity.cases[1].endswith("padded")

    expected = as_numpy(model(GIVEN))
    expected = (
        expected if isinstance(expected, dict) else {"sentence_embedding": expected, "logits": expected}
    )
    for name, value in run(tmp_path / "x", GIVEN).items():
        if name == "last_hidden_state" and "sentence" in head:
            continue
        if value.shape[:2] != MASK.shape:
            assert_close(value, expected[name])
            continue
        assert_close(value[MASK == 1], expected[name][MASK == 1])
        if unpad or head == "span":
            assert (value[MASK == 0] == (-1e4 if head == "span" else 0)).all()


@pytest.mark.parametrize("opset", range(17, 27))
def test_every_opset(opset: int, tmp_path):
    for name, options in (("bert", {}), ("roberta", ROBERTA)):
        model = tiny(keras_tx.TokenClassifierHead(3), depth=1, **options)
        for unpad in (True, False):
            export_onnx(model, tmp_path / f"{name}{unpad}", opset=opset, unpad=unpad)


def test_the_nodes_of_a_block(tmp_path):
    """One Attention a layer, with the mask made once; unpadded, one way out of padding and three back."""
    found = {}
    for depth in (1, 2):
        for unpad in (True, False):
            folder = tmp_path / f"{depth}{unpad}"
            export_onnx(tiny(depth=depth), folder, verify=False, unpad=unpad)
            found[depth, unpad] = nodes_of(folder)
    block = dict.fromkeys(("MatMul",), 4) | {"Add": 6, "LayerNormalization": 2, "Gelu": 1, "Attention": 1}
    block["Split"] = 1
    assert found[2, False] - found[1, False] == block
    assert found[2, True] - found[1, True] == {**block, "Gather": 3, "GatherND": 1}


@pytest.mark.parametrize("opset", [17, 23])
def test_dense_layers_see_no_padding(opset: int, tmp_path):
    model = tiny(keras_tx.MaskedLMHead(), segments=2)
    export_onnx(model, tmp_path / "x", opset=opset)
    graph = onnx.load(tmp_path / "x/onnx/model.onnx").graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    weights = {tensor.name for tensor in graph.initializer}
    products = [n for n in graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in weights]
    norms = [n for n in graph.node if n.op_type == "LayerNormalization"]
    assert len(products) == 2 * 4 + 2 and len(norms) == 2 * 2 + 2
    assert {ranks[node.output[0]] for node in (*products, *norms)} == {2}


@pytest.mark.parametrize("options", [{}, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize("head", ["none", "masked", "tags", "span", "sentence"])
def test_rows_without_any_token(head: str, options: dict, tmp_path):
    model = tiny(HEADS[head], **options)
    export_onnx(model, tmp_path / "x")
    export_onnx(model, tmp_path / "y", unpad=False)
    empty = {name: value * np.array([[1], [0], [1]]) for name, value in GIVEN.items()}
    found, padded, full = run(tmp_path / "x", empty), run(tmp_path / "y", empty), run(tmp_path / "x", GIVEN)
    for name, value in found.items():
        assert np.isfinite(value).all() and np.isfinite(padded[name]).all()
        assert_close(value[[0, 2]], full[name][[0, 2]])
    for value in run(tmp_path / "x", {name: value * 0 for name, value in GIVEN.items()}).values():
        assert np.isfinite(value).all()
        assert value.ndim < 3 or not value.any()


def test_any_layout_of_padding(tmp_path):
    """On the left, or in between: the mask counts, not where it is."""
    model = tiny(keras_tx.TokenClassifierHead(4))
    export_onnx(model, tmp_path / "x")
    mask = np.array([[0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]])
    given = {**GIVEN, "attention_mask": mask}
    expected = as_numpy(model(given))
    assert_close(run(tmp_path / "x", given)["logits"], np.where(mask[..., None] == 1, expected, 0))


@pytest.mark.parametrize("head", ["none", "tags", "sentence", "classifier"])
def test_what_is_not_finite_stays_in_its_row(head: str, tmp_path):
    """Whoever runs the texts of others in one batch gives each what it would get alone."""
    model = tiny(HEADS[head])
    (variable,) = model.get_layer("token_embedding").weights
    table = np.array(as_numpy(variable.value))
    table[7] = np.nan
    variable.assign(table)
    export_onnx(model, tmp_path / "x", verify=False)
    ids = np.array([[7, 2, 3, 4], [1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 0], [4, 7, 1, 0], [0, 0, 0, 0]])
    given = {"input_ids": ids, "attention_mask": (ids > 0) * 1, "token_type_ids": ids * 0}
    together = run(tmp_path / "x", given)
    for name, found in together.items():
        assert np.isnan(found[[0, 4]]).any() and np.isfinite(found[[1, 2, 3, 5]]).all()
        for row, real in ((1, 2), (3, 3)):
            alone = run(tmp_path / "x", {key: x[[row], :real] for key, x in given.items()})[name][0]
            assert_close(found[row, :real] if alone.ndim == 2 else found[row], alone)


@pytest.mark.parametrize("masked", [True, False])
def test_attention_without_a_mask_gets_zeros_for_padding(masked: bool):
    from onnx import helper

    size = ("batch_size", "sequence_length")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], "embeddings/Gather"),
        helper.make_node("Cast", ["attention_mask"], ["real"], "mask/Cast", to=onnx.TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["real", "keys"], ["of_keys"], "mask/keys"),
        helper.make_node("Unsqueeze", ["real", "queries"], ["of_queries"], "mask/queries"),
        helper.make_node("And", ["of_keys", "of_queries"], ["mask"], "mask/And"),
        helper.make_node(
            "Attention", ["x"] * 3 + ["mask"] * masked, ["y"], "attention", q_num_heads=2, kv_num_heads=2
        ),
    ]
    stored = {"table": draw(9, 8), "keys": np.array([1, 2]), "queries": np.array([1, 3])}
    graph = helper.make_graph(
        nodes if masked else [nodes[0], nodes[-1]],
        "graph",
        [helper.make_tensor_value_info(name, 7, size) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("y", 1, (*size, 8))],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    sizes_of_ids(model)
    assert unpadding.unpad(model) == 1
    (attention,) = [node for node in model.graph if node.op_type == "Attention"]
    expected = "Gather" if masked else "Reshape"
    assert {x.producer().op_type for x in attention.inputs[:3]} == {expected}
    ids = np.array([[3, 4, 5], [6, 0, 0]])
    given = {"input_ids": ids, "attention_mask": (ids > 0) * 1}
    changed = ir.to_proto(model).SerializeToString()
    (got,) = onnxruntime.InferenceSession(changed, providers=["CPUExecutionProvider"]).run(None, given)
    table = stored["table"].copy()
    table[0] = 0
    q = k = table[ids].reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / 2)
    if masked:
        scores = scores * (ids > 0)[:, None, None]
    mixed = (scores / scores.sum(-1, keepdims=True) @ k).transpose(0, 2, 1, 3).reshape(2, 3, 8)
    assert_close(got[ids > 0], mixed[ids > 0])


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


@pytest.mark.parametrize(("kind", "said", "head", "options"), CONFIGS)
def test_config(kind: str | None, said: str, head: Any, options: dict, tmp_path):
    report = export_onnx(tiny(head, **options), tmp_path / "x", verify=False)
    config = json.loads((tmp_path / "x/config.json").read_text())
    if kind is None:
        assert "model_type" not in config and said in report.manifest.notes[0]
        return
    assert (config["model_type"], config["architectures"]) == (kind, [said])
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    read = transformers.AutoConfig.from_pretrained(tmp_path / "x")
    for name, value in config.items():
        if name in ("id2label", "position_embedding_type"):
            continue
        assert getattr(read, name) == value, name
    model = getattr(transformers, said)(read)
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
        with pytest.raises(ConfigError, match="3 labels were given, but the model tells 4 classes apart"):
            type(head)(4, labels=names[:3])
        with pytest.raises(ConfigError, match="'O' more than once"):
            type(head)(4, labels=["O", "A", "B", "O"])
    with pytest.raises(ConfigError, match="4 labels were given, but the model tells 2 classes apart"):
        export_onnx(tiny(keras_tx.NextSentenceHead()), tmp_path / "z", labels=names)
    with pytest.raises(ConfigError, match="has no classifier head"):
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
    for given in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path / "tokenizer.json")):
        export_onnx(tiny(), tmp_path / "x", tokenizer=given, verify=False, overwrite=True)
        assert (tmp_path / "x/tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("tokenizer", "options", "said"),
    [
        (7, {}, "tokenizer is a int, expected a TextTransform, a tokenizers.Tokenizer, or"),
        ("missing.json", {}, "missing.json does not exist; expected a folder with tokenizer.json"),
        (wordpiece(), {"vocabulary": 20}, "but the model has 20 vectors. Make it with vocabulary=39"),
        (wordpiece(), {"pad_id": 3}, r"pads with '\[PAD\]', id 0, but the model has pad_id=3"),
        (wordpiece(special=["[PAD]", "[UNK]"]), {}, "tokenizer has no cls_token, sep_token, which"),
    ],
)  # fmt: skip
def test_tokenizers_that_do_not_fit(tokenizer: Any, options: dict, said: str, tmp_path):
    with pytest.raises(ConfigError, match=said):
        export_onnx(tiny(**options), tmp_path / "x", tokenizer=tokenizer, verify=False)
    assert not (tmp_path / "x").exists()


def test_arguments_for_other_models(tmp_path):
    with pytest.raises(ConfigError, match="raw_pixels=True was given, but 'bert' is a model of text"):
        export_onnx(tiny(), tmp_path / "x", raw_pixels=True)
    with pytest.raises(ConfigError, match="tokenizer was given, but 'vit' is a ViT, no text model"):
        export_onnx(
            keras_tx.vit("Mu/2", image_size=8, classes=3), tmp_path / "x", tokenizer=wordpiece(), verify=False
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
    # What a client pools by itself is what the graph gives.
    found = run(tmp_path / "x", GIVEN)
    tokens = found["last_hidden_state"]
    pooled = tokens[:, 0] if pooling == "class" else tokens.sum(1) / MASK.sum(1, keepdims=True)
    if normalize:
        pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    assert_close(found["sentence_embedding"], pooled)


def test_without_a_head_sentence_transformers_gives_what_the_runtime_does(tmp_path):
    """Which takes the mean, of length 1, where nothing else is said."""
    export_onnx(tiny(), tmp_path / "x", verify=False)
    modules = json.loads((tmp_path / "x/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    assert json.loads((tmp_path / "x/1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"] is True
    export_onnx(tiny(keras_tx.MaskedLMHead()), tmp_path / "y", verify=False)
    assert not (tmp_path / "y/modules.json").exists()


def test_the_transform_of_the_model_is_its_tokenizer(tmp_path):
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    transform = keras_tx.TextTransform.load(tmp_path / "tokenizer.json")
    export_onnx(tiny(processing=transform), tmp_path / "x", verify=False)
    read = keras_tx.TextTransform.load(tmp_path / "x")
    assert (read.vocabulary, read.max_length, read.segments) == (transform.vocabulary, 70, True)


def test_what_a_folder_says_of_its_tokenizer(tmp_path):
    """BertTokenizer, where that name alone says what the tokenizer is; how long texts are met is kept."""
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
    """What RoBERTa has: vocab.json and merges.txt, and no segments."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat"] * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    model = tiny(**{**ROBERTA, "vocabulary": 60})
    export_onnx(model, tmp_path / "x", tokenizer=tokenizer, verify=False)
    assert (tmp_path / "x/merges.txt").read_text().startswith("#version: 0.2\n")
    assert json.loads((tmp_path / "x/vocab.json").read_text())["<mask>"] == 4
    read = keras_tx.TextTransform.load(tmp_path / "x")
    assert list(read("the cat")["input_ids"][0]) == tokenizer.encode("the cat").ids
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert theirs("the cat", "sat")["input_ids"] == tokenizer.encode("the cat", "sat").ids


@pytest.mark.parametrize("head", ["tags", "masked"])
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method:UserWarning")
def test_what_keras_quantized_sees_no_padding_either(opset: int, head: str, tmp_path):
    model = tiny(HEADS[head])
    model.quantize("int8")
    report = export_onnx(model, tmp_path / "x", opset=opset)
    assert report.manifest.precisions.keys() == {"int8"}
    graph = onnx.load(tmp_path / "x/onnx/model.onnx").graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert products and {ranks[node.output[0]] for node in products} == {2}
