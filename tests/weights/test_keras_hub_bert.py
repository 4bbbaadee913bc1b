"""keras-hub's BERT, RoBERTa and DistilBERT: equal outputs after conversion in both directions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import characters, train_byte_bpe, wordpiece
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY

keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[cpu]"')
from keras_tx.models.bert.keras_hub import to_keras_hub  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")

SIZES = dict(
    vocabulary_size=len(VOCABULARY),
    num_layers=2,
    num_heads=2,
    hidden_dim=8,
    intermediate_dim=12,
    max_sequence_length=16,
)
KINDS = ("Bert", "Roberta", "DistilBert")
TASKS = {"Backbone": {}, "TextClassifier": {"num_classes": 3}, "MaskedLM": {}}
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def made(kind: str, task: str, **options: Any) -> Any:
    backbone = getattr(keras_hub.models, f"{kind}Backbone")(**SIZES)
    if task != "Backbone":
        backbone = getattr(keras_hub.models, f"{kind}{task}")(backbone, **{**TASKS.get(task, {}), **options})
    return redraw(backbone)


def theirs_of(model: Any) -> dict[str, np.ndarray]:
    """Inputs and outputs for two texts."""
    ids = np.random.default_rng(0).integers(2, SIZES["vocabulary_size"], MASK.shape)
    padding = 1 if "Roberta" in type(model).__name__ else 0
    ids = np.where(MASK, ids, padding)
    inputs = {"token_ids": ids, "padding_mask": MASK}
    if "segment_ids" in model.input:
        inputs["segment_ids"] = (np.arange(6) > 2) * MASK
    if "mask_positions" in model.input:
        inputs["mask_positions"] = np.tile(np.arange(6), (2, 1))
    tensors = {"input_ids": ids, "attention_mask": MASK, "token_type_ids": inputs.get("segment_ids")}
    out = as_numpy(model({name: np.asarray(x, "int32") for name, x in inputs.items()}))
    if not isinstance(out, dict):
        out = {"last_hidden_state" if type(model).__name__.endswith("Backbone") else "logits": out}
    names = {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"}
    return {**tensors, **{names.get(name, name): value for name, value in out.items()}}


def compare(model: Any, expected: dict[str, Any]) -> None:
    inputs = {name: expected[name] for name in model.input}
    outputs = as_numpy(model(inputs))
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    assert set(outputs) == {x for x in expected if x not in ("input_ids", "attention_mask", "token_type_ids")}
    for name, mine in outputs.items():
        of_tokens = mine.ndim == 3
        places = MASK.astype(bool) if of_tokens else slice(None)
        assert_close(mine[places], expected[name][places])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, task: str):
    source = made(kind, task)
    expected = theirs_of(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = keras_tx.from_checkpoint(source)
        back = to_keras_hub(model)
    compare(model, expected)
    assert type(back) is type(source)
    for name, value in theirs_of(back).items():
        assert value is None or np.array_equal(value, expected[name]), name
    for mine, theirs in zip(back.weights, source.weights, strict=True):
        assert mine.path.split("/")[1:] == theirs.path.split("/")[1:]
        if task == "MaskedLM" and mine.path.startswith("pooled_dense"):
            continue  # which that task does not use
        assert np.array_equal(as_numpy(mine), as_numpy(theirs)), mine.path


@pytest.mark.thorough
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_embedders(pooling: str, normalize: bool):
    source = made("Bert", "TextEmbedder", pooling_mode=pooling, normalize=normalize)
    model = keras_tx.from_checkpoint(source)
    compare(model, theirs_of(source))
    back = to_keras_hub(model)
    assert (back.pooling_mode, back.normalize) == (pooling, normalize)
    compare(model, theirs_of(back))


def tokenizer() -> Any:
    return keras_hub.models.BertTokenizer(vocabulary=list(VOCABULARY), lowercase=True, strip_accents=True)


def test_presets(tmp_path: Path):
    """A task with its tokenizer, and a backbone alone."""
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer(), sequence_length=12)
    source = made("Bert", "TextClassifier", preprocessor=preprocessor)
    source.save_to_preset(tmp_path / "task")
    model = keras_tx.from_checkpoint(tmp_path / "task")
    compare(model, theirs_of(source))
    assert model.head == keras_tx.ClassifierHead(3, 0.1)
    assert model.processing.max_length == 12
    texts = ["The cat sat on the MAT!", "I love the film"]
    theirs = preprocessor(texts)
    mine = model.processing(texts)
    length = mine["input_ids"].shape[1]
    assert np.array_equal(mine["input_ids"], as_numpy(theirs["token_ids"])[:, :length])
    assert np.array_equal(mine["attention_mask"], as_numpy(theirs["padding_mask"])[:, :length])
    back = to_keras_hub(model)
    again = back.preprocessor(texts)
    assert all(np.array_equal(as_numpy(again[name]), as_numpy(theirs[name])) for name in theirs)
    source.backbone.save_to_preset(tmp_path / "backbone")
    preprocessor.tokenizer.save_to_preset(tmp_path / "backbone")
    body = keras_tx.from_checkpoint(tmp_path / "backbone")
    compare(body, theirs_of(source.backbone))
    assert body.processing.vocabulary == model.processing.vocabulary
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias"):
        keras_tx.from_checkpoint(source.backbone, head=keras_tx.TokenClassifierHead(3))


def test_the_tokenizer_of_roberta(tmp_path: Path):
    learned = train_byte_bpe(
        ["the cat sat on the mat", "I love the film"] * 3, 300,
        **{"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
        mask_token="<mask>", cls_token="<s>", sep_token="</s>",
    )  # fmt: skip
    options = dict(width=8, depth=1, num_heads=2, mlp_dim=12, max_length=16, segments=0, position_offset=2)
    head = keras_tx.ClassifierHead(2)
    model = keras_tx.bert("tiny", processing=learned, head=head, norm_epsilon=1e-5, **options)
    source = to_keras_hub(model)
    texts = ["the cat", "I love films \u00e9"]
    mine, theirs = model.processing(texts), source.preprocessor(texts)
    length = mine["input_ids"].shape[1]
    assert np.array_equal(mine["input_ids"], as_numpy(theirs["token_ids"])[:, :length])
    again = keras_tx.from_checkpoint(source)
    assert np.array_equal(again.processing(texts)["input_ids"], mine["input_ids"])
    back = to_keras_hub(again).preprocessor(texts)
    assert np.array_equal(as_numpy(back["token_ids"]), as_numpy(theirs["token_ids"]))


@pytest.mark.parametrize(("changes", "message"), [
    ({"sep_token": "</s>"}, "its sep_token is"), ({"characters": True}, ".*WordLevel"),
])  # fmt: skip
def test_a_tokenizer_that_keras_hub_lacks_is_omitted(changes: dict[str, Any], message: str):
    special = dict(
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )
    if "characters" in changes:
        transform = characters([*special.values(), *"abc"], **special)
    else:
        tokens = [*special.values(), "</s>", "cat"]
        transform = wordpiece(tokens, **{**special, **changes})
    model = keras_tx.bert(
        "tiny", processing=transform, head=keras_tx.ClassifierHead(2), activation="gelu_tanh", depth=1
    )
    with pytest.warns(UserWarning, match=f"tokenizer of model 'bert'.*{message}"):
        assert to_keras_hub(model).preprocessor is None


def test_from_keras_hub_to_transformers(tmp_path: Path):
    source = made("Roberta", "TextClassifier")
    model = keras_tx.from_checkpoint(source)
    assert (model.config.position_offset, model.config.segments, model.config.pad_id) == (2, 0, 1)
    compare(keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / "x")), theirs_of(source))


def test_a_lone_segment_goes_into_the_positions():
    options = dict(
        width=8, depth=1, num_heads=2, mlp_dim=12, vocabulary_size=20, max_length=16, norm_epsilon=1e-5
    )
    model = redraw(keras_tx.bert("tiny", segments=1, position_offset=2, pad_id=1, pooler=None, **options))
    compare(model, {k: v for k, v in theirs_of_small(to_keras_hub(model)).items() if k != "token_type_ids"})


def theirs_of_small(model: Any) -> dict[str, Any]:
    ids = np.where(MASK, np.arange(12).reshape(2, 6) + 3, 1)
    out = as_numpy(model({"token_ids": ids.astype("int32"), "padding_mask": MASK.astype("int32")}))
    return {"input_ids": ids, "attention_mask": MASK, "last_hidden_state": out}


REFUSED = [
    ({}, "activation='gelu'"),
    ({"activation": "gelu_tanh", "norm_epsilon": 1e-5}, "norm_epsilon=1e-05"),
    ({"activation": "gelu_tanh", "head": keras_tx.SpanHead()}, "a SpanHead"),
    ({"activation": "gelu_tanh", "head": keras_tx.MaskedLMHead()}, "activation='gelu_tanh', a MaskedLM"),
    ({"activation": "gelu_tanh", "pooler": None, "head": keras_tx.ClassifierHead(2)}, "pooler=None"),
    ({"segments": 0, "pooler": None, "head": keras_tx.SentenceEmbeddingHead()}, "a SentenceEmbeddingHead"),
    ({"segments": 2, "position_offset": 2, "pooler": None, "norm_epsilon": 1e-5}, "segments=2"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_options_that_keras_hub_lacks_raise(options: dict[str, Any], message: str):
    model = keras_tx.bert("tiny", depth=1, vocabulary_size=20, max_length=8, **options)
    with pytest.raises(ConfigError, match=message):
        to_keras_hub(model)


def test_unsupported_options_of_a_task_raise():
    source = made("Bert", "TextClassifier", activation="softmax")
    with pytest.raises(ConfigError, match="activation='softmax'.*ClassifierHead"):
        keras_tx.from_checkpoint(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        keras_tx.from_checkpoint(source, head=keras_tx.ClassifierHead(3))
    with pytest.raises(ConfigError, match="hidden_dim=5"):
        keras_tx.from_checkpoint(made("Roberta", "TextClassifier", hidden_dim=5))
    with pytest.raises(ConfigError, match="pooling_mode='max'"):
        keras_tx.from_checkpoint(made("Bert", "TextEmbedder", pooling_mode="max"))
    assert keras_tx.from_checkpoint(made("Bert", "TextClassifier", num_classes=1)).head == (
        keras_tx.RegressionHead(1, 0.1)
    )


def test_a_second_dropout_rate_warns():
    model = keras_tx.bert("tiny", depth=1, vocabulary_size=20, activation="gelu_tanh", attention_dropout=0.2)
    with pytest.warns(UserWarning, match="attention_dropout=0.2 .*0.1"):
        to_keras_hub(model)


def test_an_unsupported_tokenizer_warns():
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer(), sequence_length=12)
    preprocessor.tokenizer.suffix_indicator = "@@"
    source = made("Bert", "TextClassifier", preprocessor=preprocessor)
    with pytest.warns(UserWarning, match="BertTokenizer.*suffix_indicator='@@'"):
        assert keras_tx.from_checkpoint(source).processing is None
