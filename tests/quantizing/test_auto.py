"""precision="auto" chooses the fastest precision within the tolerance and reports why others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import train_byte_bpe, train_wordpiece
from keras_tx.runtime import load, open_folder, verify_hashes
from keras_tx_onnx import quantize, tolerances
from keras_tx_onnx.quantizing import agreement, auto_precision, validation_score
from tests.drawing import as_numpy, draw
from tests.exported_folders import CORPUS
from tests.quantizing.folders import bert, exported, gpt, session, vit

PICTURES = draw(48, 8, 8, 3)


@pytest.fixture(scope="module", autouse=True)
def short_timing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_precision, "ROUNDS", 1)
        patch.setattr(auto_precision, "RUNS", 2)
        yield


@pytest.fixture
def folder(exported_folders, tmp_path) -> Path:
    return exported_folders.copy("wide vit", tmp_path / "folder")


def labels(folder: Path) -> np.ndarray:
    """The classes that the fp32 file predicts."""
    (logits,) = session(folder).run(None, {"pixel_values": PICTURES.transpose(0, 3, 1, 2)})
    return logits.argmax(-1)


def test_fastest_accepted_precision_is_chosen(folder):
    choice = quantize(folder, "auto", validation=(PICTURES, labels(folder)), tolerance=1.0)
    rows = {row.precision: row for row in choice.measured}
    assert set(rows) == {"fp32", *auto_precision.candidates(None)}
    assert rows["fp32"].score == 1 and choice.metric == "accuracy"
    assert all(row.accepted and row.milliseconds > 0 for row in rows.values())
    assert rows["fp32"].megabytes > rows["int8"].megabytes > rows["int4"].megabytes > 0
    assert choice.chosen == min(rows.values(), key=lambda row: row.milliseconds).precision
    opened = open_folder(folder, choice.chosen)
    verify_hashes(opened)
    assert set(opened.manifest.precisions) == {"fp32", choice.chosen}
    report = json.loads((folder / auto_precision.REPORT).read_text())
    assert report["chosen"] == choice.chosen
    assert [row["precision"] for row in report["measured"]] == list(rows)
    with load(folder, provider="cpu", precision=choice.chosen) as model:
        assert len(model(np.zeros((8, 8, 3), "uint8"))) == 5


def test_refusal_names_layers_with_largest_errors(folder):
    """A layer with a few huge inputs and many small ones that matter as much exceeds eight bits."""
    model = vit()
    scale = np.ones(128, "float32")
    scale[::16] = 3e4
    up, down = model.get_layer("block_1").feed_forward.up, model.get_layer("block_1").feed_forward.down
    up.kernel.assign(np.asarray(up.kernel) * scale)
    down.kernel.assign(20 * np.asarray(down.kernel) / scale[:, None])
    folder = exported(model, folder.parent / "spoiled")
    choice = quantize(folder, "auto", validation=(PICTURES, labels(folder)), tolerance=0.02)
    row = next(row for row in choice.measured if row.precision == "int8")
    assert not row.accepted and row.lost > 0.02
    assert row.blamed[0][0] == "block_1/feed_forward/down"
    assert row.blamed[0][1] > 3 * row.blamed[1][1]
    assert row.score_without_them is not None and row.score_without_them > row.score
    assert choice.chosen != "int8"
    text = str(choice)
    assert (
        "refused: loses" in text and "block_1/feed_forward/down alone loses" in text and "with keep=[" in text
    )
    again = quantize(folder, "auto", validation=(PICTURES, labels(folder)), tolerance=0.1, keep=["block_1"])
    int8 = next(row for row in again.measured if row.precision == "int8")
    assert int8.accepted and int8.score > row.score


def test_file_that_differs_too_much_is_removed(folder, monkeypatch):
    """Also if an older export of the folder had one within the tolerance."""
    quantize(folder, "fp16")
    monkeypatch.setattr(tolerances, "HALF", 0.0)
    choice = quantize(folder, "auto", validation=(PICTURES, labels(folder)), tolerance=1.0)
    row = next(row for row in choice.measured if row.precision == "fp16")
    assert not row.accepted and "tolerance" in row.reason
    assert set(open_folder(folder).manifest.precisions) == {"fp32", choice.chosen}
    assert not list((folder / "onnx").glob("model_fp16*"))
    assert not [name for name in open_folder(folder).manifest.files if "fp16" in name]


def test_validation_batches_and_dataset(folder):
    right = labels(folder)
    pairs = [(PICTURES[:30], right[:30]), (PICTURES[30:], right[30:])]

    class Dataset(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return 2

        def __getitem__(self, index):
            return pairs[index]

    metric = keras.metrics.SparseCategoricalAccuracy()
    for validation in (pairs, Dataset()):
        choice = quantize(folder, "auto", validation=validation, tolerance=1.0, metric=metric)
        assert (choice.measured[0].score, choice.metric) == (1, "sparse_categorical_accuracy")


def test_function_metric(folder):
    def agreement(outputs, targets):
        """A name that is also that of a metric without targets."""
        assert targets is None
        return 0.25 + float(np.abs(outputs["logits"]).mean() < 0)

    choice = quantize(folder, "auto", validation=PICTURES, metric=agreement)
    assert choice.metric == "agreement" and all(row.accepted for row in choice.measured)
    assert {row.score for row in choice.measured} == {0.25}


def test_decoder_is_timed_by_step_and_scored_by_perplexity(tmp_path):
    model = gpt()
    folder = exported(model, tmp_path / "poet")
    ids = np.random.default_rng(0).integers(0, 300, (4, 16))
    choice = quantize(folder, "auto", validation={"input_ids": ids}, tolerance=0.2)
    assert choice.metric == "-log(perplexity)" and choice.timed == "a step behind 64 tokens"
    known = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(16), (4, 1)),
    }
    logits = as_numpy(model({tensor.name: known[tensor.name] for tensor in model.inputs}))
    losses = keras.losses.sparse_categorical_crossentropy(ids[:, 1:], logits[:, :-1], from_logits=True)
    assert choice.measured[0].score == pytest.approx(-float(as_numpy(losses).mean()), rel=1e-4)


def test_metrics_of_text_tasks(tmp_path):
    ids = np.random.default_rng(0).integers(5, 300, (4, 16))
    tagger = exported(bert(head=keras_tx.TokenClassifierHead(3)), tmp_path / "tags")
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (logits,) = session(tagger).run(None, inputs)
    targets = logits.argmax(-1)
    targets[:, 8:] = contract.NO_LABEL
    targets[0, :8] = (targets[0, :8] + 1) % 3
    choice = quantize(tagger, "auto", validation=({"input_ids": ids}, targets), tolerance=1.0)
    assert (choice.metric, choice.measured[0].score) == ("accuracy of tokens", 0.75)
    outputs = {"start_logits": np.eye(4), "end_logits": np.eye(4)}
    spans = {"start_logits": np.arange(4), "end_logits": np.array([0, 1, 2, 0])}
    assert validation_score._exact_match(outputs, {}, spans) == (3.0, 4.0)


def test_metrics_of_multi_label_and_regression(tmp_path):
    several = exported(bert(head=keras_tx.MultiLabelHead(3)), tmp_path / "topics")
    ids = np.random.default_rng(0).integers(5, 300, (4, 16))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (logits,) = session(several).run(None, inputs)
    targets = (logits > 0).astype("float32")
    choice = quantize(several, "auto", validation=({"input_ids": ids}, targets), tolerance=1.0)
    assert (choice.metric, choice.measured[0].score) == ("F1 of all labels", 1.0)
    with pytest.raises(ConfigError, match=r"targets of shape \(4,\), expected \(4, 3\)"):
        quantize(several, "auto", validation=({"input_ids": ids}, targets[:, 0]))

    number = exported(bert(head=keras_tx.RegressionHead()), tmp_path / "likeness")
    (logits,) = session(number).run(None, inputs)
    choice = quantize(number, "auto", validation=({"input_ids": ids}, logits[:, 0] + 0.5), tolerance=1.0)
    assert choice.metric == "-mean absolute error"
    assert choice.measured[0].score == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("measure", "targets", "message"),
    [
        (validation_score._accuracy, np.zeros(5), r"\(5,\), expected \(4,\)"),
        (validation_score._accuracy, np.zeros((4, 2)), r"\(4, 2\), expected \(4,\)"),
        (validation_score._negative_absolute_error, np.zeros(12), r"\(12,\), expected \(4, 3\)"),
        (validation_score._f1, np.zeros(4), r"\(4,\), expected \(4, 3\)"),
        (
            validation_score._exact_match,
            {"start_logits": np.zeros(4), "end_logits": np.zeros(1)},
            r"\(1,\), expected \(4,\): .*end_logits",
        ),
    ],
)
def test_targets_of_wrong_shape_raise(measure, targets, message):
    outputs = {name: np.zeros((4, 3)) for name in ("logits", "start_logits", "end_logits")}
    with pytest.raises(ConfigError, match=f"targets of shape {message}"):
        measure(outputs, {}, targets)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((4, 2)), "ndarray.*'start_logits'"),
        ([0, 1, 2, 0], "list.*'start_logits'"),
        ({"start_logits": np.zeros(4)}, r"\['start_logits'\].*'end_logits'"),
        (None, "no targets"),
    ],
)
def test_answers_without_start_and_end_raise(targets, message):
    outputs = {name: np.zeros((4, 3)) for name in ("start_logits", "end_logits")}
    with pytest.raises(ConfigError, match=message):
        validation_score._exact_match(outputs, {}, targets)


def test_targets_with_extra_axis():
    logits = {"logits": np.array([[0.0, 1.0], [1.0, 0.0]])}
    for classes in ([1, 1], [[1], [1]], [[0, 1], [0, 1]]):
        assert validation_score._accuracy(logits, {}, np.array(classes)) == (1.0, 2.0)
    for numbers in ([1, 3], [[1], [3]]):
        assert validation_score._negative_absolute_error(
            {"logits": np.array([[0.0], [1.0]])}, {}, np.array(numbers)
        ) == (
            -3.0,
            2.0,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "precision='auto' .*validation"),
        ({"validation": "x"}, "validation is a str"),
        ({"validation": []}, "validation is empty"),
        ({"validation": PICTURES}, "validation has no targets"),
        ({"validation": (PICTURES, np.zeros(48)), "tolerance": -1}, "tolerance=-1"),
        ({"validation": (PICTURES, np.zeros(48)), "metric": "f1"}, "metric is a str"),
    ],
)
def test_invalid_arguments_raise(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        quantize(folder, "auto", **options)
    assert list(open_folder(folder).manifest.precisions) == ["fp32"]


def test_tf_data_texts(tmp_path):
    """A dict of arrays and labels, as for `fit`; an infinite dataset raises."""
    tf = pytest.importorskip("tensorflow")
    folder = exported(bert(head=keras_tx.ClassifierHead(3)), tmp_path / "reviews")
    ids = np.random.default_rng(0).integers(5, 300, (8, 16))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (logits,) = session(folder).run(None, inputs)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, logits.argmax(-1))).batch(4)
    choice = quantize(folder, "auto", validation=dataset, tolerance=1.0)
    assert (choice.metric, choice.measured[0].score) == ("accuracy", 1.0)
    with pytest.raises(ConfigError, match="validation .*infinite"):
        quantize(folder, "auto", validation=dataset.repeat(), tolerance=1.0)
    with pytest.raises(ConfigError, match="calibration .*infinite"):
        quantize(folder, "int8", calibration=dataset.repeat())


def test_validation_without_auto_raises(folder):
    with pytest.raises(ConfigError, match="precision='int8' .*validation"):
        quantize(folder, "int8", validation=(PICTURES, np.zeros(48)))


def test_generic_model_requires_metric(tmp_path):
    folder = exported(keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]), tmp_path / "generic")
    with pytest.raises(ConfigError, match="metric .*task None"):
        quantize(folder, "auto", validation=(draw(4, 64), np.zeros(4)))


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (np.full(48, 100), r"target 100 at \[0\].*class from 0 to 99"),
        (np.array([0] * 40 + [-1] * 8), r"target -1 at \[8\].*0 to 99"),
        (np.full(48, 0.5), "target 0.5"),
        (np.full((48, 100), 3.0), "target 3.0"),
        (np.full(48, np.nan), "target nan"),
        (np.array(["rose"] * 48), "targets of type <U4"),
    ],
)
def test_class_targets_out_of_range_raise(targets, match, folder):
    before = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(ConfigError, match=match):
        quantize(folder, "auto", validation=(PICTURES, targets))
    assert sorted(path.name for path in folder.rglob("*")) == before


LOGITS = np.zeros((2, 3), "float32")


@pytest.mark.parametrize(
    ("measure", "outputs", "targets", "match"),
    [
        (
            validation_score._f1,
            {"logits": LOGITS},
            [[0, 1, 2], [0, 0, 0]],
            r"target 2 at \[0, 2\].*0 or 1",
        ),
        (
            validation_score._negative_absolute_error,
            {"logits": LOGITS},
            [[0, 1, 2], [0, np.inf, 0]],
            "target inf.*finite",
        ),
        (
            validation_score._exact_match,
            {"start_logits": LOGITS, "end_logits": LOGITS},
            {"start_logits": [0, 1], "end_logits": [2, 3]},
            r"target 3 at \[1\].*0 to 2, in end_logits",
        ),
        (
            validation_score._accuracy_of_tokens,
            {"prediction_logits": LOGITS[None], "seq_relationship_logits": LOGITS},
            {"prediction_logits": [[-100, 3]], "seq_relationship_logits": [0]},
            r"target 3 at \[0, 1\].*0 to 2",
        ),
        (
            validation_score._accuracy,
            {"logits": LOGITS[None]},
            [[0, 3]],
            r"target 3 at \[0, 1\].*-100 for none",
        ),
    ],
)
def test_targets_out_of_range_raise(measure, outputs, targets, match):
    with pytest.raises(ConfigError, match=match):
        measure(outputs, {}, targets)


def test_agreement_of_texts_of_a_decoder(tmp_path):
    """The share of next tokens, with the windows computed by hand."""
    words = train_byte_bpe(CORPUS, size=280)
    folder = exported(gpt(vocabulary_size=280, max_length=32, processing=words), tmp_path / "poet")
    texts = CORPUS * 10
    choice = quantize(folder, "auto", validation=texts, tolerance=10.0)
    ids = load(folder, provider="cpu").tokenizer.encode("\n".join(texts)).ids
    rows = np.array(ids[: len(ids) // 32 * 32]).reshape(-1, 32)
    assert choice.data == f"{rows.size:,} of {len(ids):,} tokens in windows of 32"
    quantize(folder, ["int8", "int8-dynamic", "int4"])
    known = {"attention_mask": np.ones_like(rows), "position_ids": np.tile(np.arange(32), (len(rows), 1))}
    past = np.zeros((len(rows), 4, 0, 16), "float32")
    known |= {f"past_key_values.{i}.{kind}": past for i in range(2) for kind in ("key", "value")}
    best = {
        precision: session(folder, Path(name).name)
        .run(["logits"], {"input_ids": rows, **known})[0]
        .argmax(-1)
        for precision, name in open_folder(folder).manifest.precisions.items()
    }
    for row in choice.measured:
        if row.precision in ("fp32", "int8", "int4"):  # whose answers do not depend on the batch
            assert row.agreement == pytest.approx((best[row.precision] == best["fp32"]).mean(), abs=0.01)
    agreements = [row.agreement for row in choice.measured]
    assert agreements[0] == 1 and None not in agreements and min(agreements) < 1


def test_agreement_of_texts_of_an_encoder(tmp_path):
    words = train_wordpiece(CORPUS, size=60)
    options = {"vocabulary_size": words.vocabulary_size, "processing": words}
    classifier = exported(bert(head=keras_tx.ClassifierHead(3), **options), tmp_path / "reviews")
    choice = quantize(classifier, "auto", validation=CORPUS, tolerance=1.0)
    assert (choice.metric, choice.data) == ("agreement", f"{len(CORPUS)} texts")
    assert [row.score for row in choice.measured] == [row.agreement for row in choice.measured]
    embedder = exported(bert(head=keras_tx.SentenceEmbeddingHead(), **options), tmp_path / "sentences")
    choice = quantize(embedder, "auto", validation=CORPUS, tolerance=1.0)
    cosines = {row.precision: row.agreement for row in choice.measured}
    assert cosines["fp32"] == pytest.approx(1) and 0.9 < cosines["int8-blocks"] < 1
    assert cosines["int4"] < cosines["int8-blocks"]
    with pytest.raises(ConfigError, match="metric is missing"):
        quantize(embedder, "auto", validation={"input_ids": np.zeros((1, 4), "int64")})


def test_agreement_counts_answers():
    logits = np.array([[[0.0, 1], [1, 0], [1, 0]], [[0, 1], [0, 1], [0, 1]]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    first = agreement.answers({"logits": logits}, mask)
    second = agreement.answers({"logits": np.flip(logits, 2)}, mask)
    other = agreement.answers({"logits": np.concatenate([logits[:1], -logits[1:]])}, mask)
    assert first is not None and second is not None and other is not None
    assert first.tolist() == [1, 0, 1]
    assert agreement.agreement([first], [second]) == 0
    assert agreement.agreement([first], [other]) == pytest.approx(2 / 3)
    several = agreement.answers({"logits": logits[:, 0]}, None, contract.MULTI_LABEL)
    assert several is not None and several.tolist() == [[False, True], [False, True]]
    assert agreement.answers({"logits": logits[:, 0]}, None, contract.REGRESSION) is None
    assert agreement.answers({"heights": logits}) is None


def test_texts_that_do_not_fit_raise(folder, tmp_path):
    with pytest.raises(ConfigError, match="validation is a list of texts.*'image-classification'"):
        quantize(folder, "auto", validation=["a"])
    without = exported(gpt(), tmp_path / "poet")
    with pytest.raises(ConfigError, match="poet has no tokenizer"):
        quantize(without, "auto", validation=["a"])
