"""The page of a training: its charts, its confusion matrix and its mistakes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.inspect.html_charts import Line, confusion_table, line_chart, ticks
from keras_tx.inspect.training_report import ReportedMistake, TrainingReport, write_training_report

STEPS = [{"step": step, "loss": 2.0 / step, "rate": 1e-4 * step} for step in range(1, 101)]
EPOCHS = [
    {"epoch": 1, "at": 50, "loss": 1.0, "accuracy": 0.5, "val_loss": 0.9, "val_accuracy": 0.6},
    {"epoch": 2, "at": 100, "loss": 0.5, "accuracy": 0.8, "val_loss": 0.7, "val_accuracy": 0.75},
]


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (0.61, 0.69, False, [0.6, 0.62, 0.64, 0.66, 0.68, 0.7]),
        (1, 2, True, [1, 2]),
        (3, 3, False, [1, 2, 3, 4, 5]),
        (-2e-5, 1e-5, False, [-2e-5, -1e-5, 0, 1e-5]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low, high, whole, expected):
    result = ticks(low, high, whole)
    assert result[0] <= low and result[-1] >= high and 2 <= len(result) <= 7
    assert result == pytest.approx(expected)


def test_points_are_inside_the_chart_and_keep_their_order():
    chart = line_chart([Line("a", [1, 2, 3], [0.5, float("nan"), 0.25])], x_label="step", y_label="loss")
    (points,) = re.findall(r'points="([^"]*)"', chart)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) == 2  # NaN is left out
    assert places[0][0] < places[1][0] and places[0][1] < places[1][1]  # SVG's y grows downwards
    assert all(0 <= x <= 760 and 0 <= y <= 280 for x, y in places)
    assert "No values" in line_chart([Line("a", [], [])], x_label="step", y_label="loss")


def test_confusion_matrix_has_counts_and_recall():
    table = confusion_table(np.array([[8, 2], [1, 0]]), ["a<b", "c"])
    assert "a&lt;b" in table and "a<b" not in table
    assert re.findall(r'<td class="(right|wrong)"[^>]*>(\d*)<', table) == [
        ("right", "8"),
        ("wrong", "2"),
        ("wrong", "1"),
        ("right", ""),
    ]
    assert re.findall(r'"share">(\d+%)<', table) == ["80%", "0%"]


def test_page_has_all_sections_and_escapes_texts(tmp_path):
    mistakes = [
        ReportedMistake({"text": "<script>x</script>"}, "good", "bad", "99% for bad", "line 7"),
        ReportedMistake({}, "cat", "dog", "80% for dog", "a.png", np.zeros((4, 4, 3), "uint8")),
    ]
    report = TrainingReport(
        "Training on a&b",
        "accuracy 0.75",
        [("model", "bert:mini")],
        STEPS,
        EPOCHS,
        2,
        ("bad", "good"),
        np.array([[3, 1], [0, 4]]),
        mistakes,
        {"temperature 0.5": "Once <b>"},
    )
    text = write_training_report(report, tmp_path / "page.html").read_text("utf-8")
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        "Training",
        "Loss",
        "Accuracy",
        "Learning rate",
        "Confusion matrix",
        "Generated texts",
        "Worst mistakes",
    ]
    assert "<script>x" not in text and "&lt;script&gt;x" in text and "Once &lt;b&gt;" in text
    assert "weights of epoch 2" in text and "data:image/jpeg;base64," in text and "line 7" in text
    with pytest.raises(ConfigError, match="page.txt"):
        write_training_report(report, tmp_path / "page.txt")


def test_many_classes_list_the_most_frequent_confusions(tmp_path):
    matrix = np.diag(np.full(40, 5))
    matrix[3, 4], matrix[7, 8] = 9, 2
    labels = [f"class{index}" for index in range(40)]
    report = TrainingReport("t", "s", [], labels=labels, confusion=matrix)
    text = write_training_report(report, tmp_path / "page.html").read_text("utf-8")
    rows = re.findall(r'<td class="number">(\d+)</td><td>(\w+)</td><td>(\w+)</td>', text)
    assert rows == [("9", "class3", "class4"), ("2", "class7", "class8")]
