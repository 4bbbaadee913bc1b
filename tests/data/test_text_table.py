"""Tables of texts: formats, labels, broken rows by their line, and splits."""

from __future__ import annotations

import collections
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import TextTable, text_table
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import train_wordpiece

CSV = 'text,label\n"A good, long film.",good\n"One ""word"".\nTwo lines.",bad\n\nBad.,bad\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "reviews.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def reviews(write: Callable[..., Path], good: int = 40, bad: int = 20) -> TextTable:
    lines = [f"Film {number} is good.,good" for number in range(good)]
    lines += [f"Film {number} is bad.,bad" for number in range(bad)]
    return text_table(write("\n".join(["text,label", *lines])))


def test_quotes_line_breaks_and_blank_lines(write):
    table = text_table(write(CSV))
    assert table.texts == ["A good, long film.", 'One "word".\nTwo lines.', "Bad."]
    assert table.labels == ("bad", "good") and table.task == "classification"
    assert table.targets is not None and table.targets.tolist() == [1, 0, 0]
    assert table.lines.tolist() == [2, 3, 6]
    assert table.counts() == {"bad": 2, "good": 1}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_the_csv_module_writes_is_read(write, delimiter, end):
    random = np.random.default_rng(0)
    letters = list('ab"\n,;\té雪😀 ')
    texts = ["x" + "".join(random.choice(letters, random.integers(1, 30))) for _ in range(200)]
    labels = [str(label) for label in random.choice(["p", "q"], 200)]
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerows([["text", "label"], *zip(texts, labels, strict=True)])
    name = "a.tsv" if delimiter == "\t" else "a.csv"
    table = text_table(write(file.getvalue(), name))
    assert table.texts == texts
    assert table.labels is not None and table.targets is not None
    assert [table.labels[target] for target in table.targets] == labels


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(write, encoding):
    table = text_table(write("text,label\nDéjà vu.,a\nNever.,b\n".encode(encoding)))
    assert table.texts == ["Déjà vu.", "Never."]


def test_json_lines(write):
    rows = [{"text": "a\nb", "label": True, "id": 1}, {"label": False, "text": "c", "x": None}]
    table = text_table(write("\n\n".join(map(json.dumps, rows)), "a.jsonl"))
    assert table.texts == ["a\nb", "c"] and table.lines.tolist() == [1, 3]
    assert table.labels == ("false", "true") and table.targets is not None
    assert table.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("cells", "options", "labels", "targets"),
    [
        (["10", "9", "10"], {}, ("9", "10"), [1, 0, 1]),
        (["0.0", "1.0"], {}, ("0", "1"), [0, 1]),
        (["1", "0"], {"labels": ["no", "yes"]}, ("no", "yes"), [1, 0]),
        (["yes", "no"], {"labels": ["yes", "no", "unknown"]}, ("yes", "no", "unknown"), [0, 1]),
        (["2", "1"], {"labels": ["2", "1"]}, ("2", "1"), [0, 1]),
        (["a|b", "", "b"], {"separator": "|"}, ("a", "b"), [[1, 1], [0, 0], [0, 1]]),
        (["0.5", "-2", "1e3"], {}, None, [0.5, -2.0, 1000.0]),
        (["3", "4"], {"regression": True}, None, [3.0, 4.0]),
        (["0.5", "1.5", "0.5"], {"regression": False}, ("0.5", "1.5"), [0, 1, 0]),
        (["none", "NA"], {}, ("NA", "none"), [1, 0]),
    ],
)
def test_labels(write, cells, options, labels, targets):
    rows = "".join(f"Text {index}.,{cell}\n" for index, cell in enumerate(cells))
    table = text_table(write("text,label\n" + rows), **options)
    assert table.labels == labels
    assert table.targets is not None and table.targets.tolist() == targets


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (",good", r"line 3, column 'text': the text is empty"),
        ("nan,good", r"line 3, column 'text': the text is 'nan'"),
        ("Fine.,", r"line 3, column 'label': the label is empty"),
        ("Fine.,NaN", r"line 3, column 'label': the label is 'NaN'"),
        ("Fine.", r"line 3: has 1 fields, expected 2"),
        ("Fine, good.,good", r"line 3: has 3 fields, expected 2"),
        ('"He said "no".",good', r"line 3: a quote within a field is not doubled"),
        ("A\0.,good", r"line 3, column 'text': .*NUL"),
    ],
)
def test_broken_rows_are_named_or_left_out(write, row, place):
    path = write(f"text,label\nA.,good\n{row}\nB.,bad\n")
    with pytest.raises(TextError, match=rf"reviews.csv has 1 broken row of 3: {place}"):
        text_table(path)
    table = text_table(path, skip_broken=True)
    assert table.texts == ["A.", "B."] and table.lines.tolist() == [2, 4]
    assert len(table.broken) == 1 and "1 broken rows were left out: line 3" in repr(table)


def test_wrong_encoding_names_the_line_and_the_byte(write):
    path = write("text,label\nA.,a\nCafé.,b\n".encode("cp1252"))
    with pytest.raises(TextError, match=r"line 3, column 'text': byte 0xe9 is not UTF-8; pass encoding="):
        text_table(path)
    assert text_table(path, encoding="cp1252").texts == ["A.", "Café."]
    with pytest.raises(TextError, match="is not utf-16"):
        text_table(path, encoding="utf-16")
    with pytest.raises(ConfigError, match="encoding='utf8x'"):
        text_table(path, encoding="utf8x")


def test_open_quote_does_not_swallow_the_file(write):
    path = write('text,label\nA.,a\n"B.,b\nC.,a\nD.,b\n')
    with pytest.raises(TextError, match="line 3: a quote is opened and not closed"):
        text_table(path, skip_broken=True)
    assert text_table(path, quotes=False).texts == ["A.", '"B.', "C.", "D."]


def test_broken_json_lines_are_named(write):
    lines = ['{"text": "a", "label": "x"}', '{"text": "b"}', "{text}", "[1]", '{"text": 3, "label": "x"}']
    path = write("\n".join([*lines, '{"text": "c", "label": "y"}']), "a.jsonl")
    with pytest.raises(
        TextError, match=r"4 broken rows of 6: line 2, column 'label': is missing; line 3: is n"
    ):
        text_table(path)
    table = text_table(path, skip_broken=True)
    assert table.texts == ["a", "c"]
    assert [str(problem).split(":")[0] for problem in table.broken] == [
        "line 2, column 'label'",
        "line 3",
        "line 4",
        "line 5, column 'text'",
    ]


def test_missing_column_lists_the_columns(write):
    path = write("review,sentiment\nA.,a\nB.,b\n")
    with pytest.raises(
        TextError, match="no column 'text'; its columns are 'review', 'sentiment'. Pass text="
    ):
        text_table(path)
    with pytest.raises(TextError, match="no column 'reviews'.*Did you mean 'review'"):
        text_table(path, text="reviews")
    with pytest.raises(TextError, match="2 columns named 'text'"):
        text_table(write("text,text,label\na,b,c\n"))


@pytest.mark.parametrize(
    ("content", "options", "error", "match"),
    [
        ("text,label\nA.,a\nB.,a\n", {}, TextError, "Column 'label' has the value 'a' in all 2 rows"),
        ("text,label\nA.,0.5\nB.,0.5\n", {}, TextError, "has the value '0.5' in all 2 rows"),
        ("text,label\n", {}, TextError, "has no rows to train on"),
        ("", {}, TextError, "is empty"),
        (
            "text,label\nA.,a\nB.,godo\n",
            {"labels": ["a", "good"]},
            TextError,
            "line 3.*'godo' is not.*'good'",
        ),
        ("text,label\nA.,x\nB.,1.5\n", {"regression": True}, TextError, "line 2.*'x' is not a finite number"),
        ("text,label\nA.,inf\nB.,1.5\n", {"regression": True}, TextError, "line 2.*'inf'"),
        (
            "text,label\nA.,0\nB.,no\n",
            {"labels": ["no", "yes"]},
            TextError,
            "has names and numbers of the labels",
        ),
        ("text,label\nA.,a|c\n", {"separator": "|", "labels": ["a", "b"]}, TextError, "'c' is not a label"),
        (CSV, {"label": None, "labels": ["a", "b"]}, ConfigError, "labels= needs label="),
        (CSV, {"labels": "good"}, ConfigError, "labels='good'"),
        (CSV, {"labels": ["a", "a"]}, ConfigError, "labels="),
        (CSV, {"regression": True, "separator": "|"}, ConfigError, "regression=True and separator="),
        (CSV, {"skip_broken": "yes"}, ConfigError, "skip_broken is 'yes'"),
    ],
)
def test_errors_name_the_argument(write, content, options, error, match):
    with pytest.raises(error, match=match):
        text_table(write(content), **options)


def test_column_of_texts_is_no_column_of_labels(write):
    rows = "".join(f"Text {index}.,identity {index}\n" for index in range(50))
    with pytest.raises(TextError, match="Column 'label' has 50 different values in 50 rows"):
        text_table(write("text,label\n" + rows))


def test_files_that_are_no_tables(write, tmp_path):
    with pytest.raises(TextError, match=r"reviews.xlsx is not a table"):
        text_table(write("", "reviews.xlsx"))
    with pytest.raises(TextError, match="does not exist"):
        text_table(tmp_path / "none.csv")


def test_files_without_a_header(write):
    path = write("id1\t1\tA film.\nid2\t0\tAnother.\n", "cola.tsv")
    table = text_table(path, columns=["id", "label", "text"])
    assert table.texts == ["A film.", "Another."] and table.lines.tolist() == [1, 2]


def test_split_keeps_shares_and_is_seeded(write):
    table = reviews(write)
    train, validation = table.split(0.2, seed=3)
    assert train.counts() == {"bad": 16, "good": 32} and validation.counts() == {"bad": 4, "good": 8}
    assert collections.Counter(train.texts + validation.texts) == collections.Counter(table.texts)
    assert table.split(0.2, seed=3)[1].texts == validation.texts != table.split(0.2, seed=4)[1].texts
    assert validation.labels == table.labels
    for share in (0, 1, 2.0, True):
        with pytest.raises(ConfigError, match="share="):
            table.split(share)


def test_rare_classes_are_in_both_parts_if_they_can(write):
    rows = ["A.,often", "B.,often", "C.,often", "D.,twice", "E.,twice", "F.,once"]
    table = text_table(write("\n".join(["text,label", *rows])))
    train, validation = table.split(0.1)
    assert train.counts() == {"often": 2, "once": 1, "twice": 1}
    assert validation.counts() == {"often": 1, "once": 0, "twice": 1}


def test_equal_texts_are_not_in_both_parts(write):
    rows = [f"Film {number % 30}  is GOOD.,a" for number in range(60)]
    rows += [f"film {number % 30} is good.,b" for number in range(30)]
    rows += [f"Other {number}.,b" for number in range(30)]
    table = text_table(write("\n".join(["text,label", *rows])))
    assert len(table.repeated()) == 60 and len(table.contradictions()) == 30
    assert "60 repeated texts, 30 of them with another label" in repr(table)
    for seed in range(5):
        train, validation = table.split(0.3, seed=seed)
        assert len(validation) and validation.repeated(train) == []
    assert table.take([0, 70]).repeated(table.take([1, 31])) == []
    assert table.take([0, 70]).repeated(table.take([30, 31])) == [0]


def test_first_texts_of_pairs_are_not_in_both_parts(write):
    """Each premise has three hypotheses, one for each class; case and white space do not matter."""
    kinds = ("entailment", "neutral", "contradiction")
    rows = [
        f"Premise{' ' * (i + 1)}{n}.,Hypothesis {i},{kind}" for n in range(40) for i, kind in enumerate(kinds)
    ]
    table = text_table(write("\n".join(["text,pair,label", *rows])), pair="pair")
    for seed in range(3):
        train, validation = table.split(0.2, seed=seed)
        held_out, trained = ({text.replace(" ", "") for text in x.texts} for x in (validation, train))
        assert len(held_out) == 8 and not held_out & trained
        assert set(validation.counts().values()) == {8}


def test_split_hardly_changes_when_rows_are_added(write):
    before = reviews(write).split(0.2)[1].texts
    after = reviews(write, good=44, bad=22).split(0.2)[1].texts
    assert len(before) == 12 and len(set(before) - set(after)) <= 2


def test_validation_table_may_have_one_of_the_classes(write):
    table = text_table(write("text,label\nA.,good\nB.,good\n"), labels=("bad", "good"))
    assert table.targets is not None and table.targets.tolist() == [1, 1]


def test_table_feeds_fit_and_its_labels_reach_the_folder(write, tmp_path):
    train, validation = reviews(write).split(0.2)
    keras.utils.set_random_seed(0)
    words = train_wordpiece(train.texts, 80, max_length=16)
    head = keras_tx.ClassifierHead(2, labels=train.labels)
    model = keras_tx.bert("tiny", depth=1, head=head, processing=words)
    model.compile(keras_tx.finetune_recipe(model, 120, learning_rate=1e-3))
    history = model.fit(
        train.batches(words, batch_size=4), validation_data=validation.batches(words), epochs=10, verbose=0
    )
    assert history.history["val_accuracy"][-1] == 1.0
    report = keras_tx.export_onnx(model, tmp_path / "folder")
    answer = keras_tx.runtime.load(report.folder)("Film 3 is bad.", top_k=1)
    assert answer[0]["label"] == "bad"


def test_pairs_numbers_and_several_labels_fit_their_packers(write):
    rows = "".join(f"{a},{b},{index % 3 / 2}\n" for index, (a, b) in enumerate([("A b.", "C d.")] * 9))
    table = text_table(write("one,two,score\n" + rows), text="one", pair="two", label="score")
    words = train_wordpiece(["a b c d ."] * 3, 40)
    inputs, scores = table.batches(words, shuffle=False)[0]
    assert inputs["token_type_ids"].max() == 1
    assert scores.dtype == "float32" and scores[:3].tolist() == [0.0, 0.5, 1.0]
    texts = text_table(write("en,it\nA b.,C d.\n"), text="en", pair="it", label=None)
    with pytest.raises(ConfigError, match="has no labels"):
        texts.batches(words)
    several = text_table(write("text,label\nA.,x y\nB.,\nC.,y\n"), separator=" ")
    _, labels = several.batches(words, shuffle=False)[0]
    assert labels.tolist() == [[1, 1], [0, 0], [0, 1]]
