"""A report of a training as one HTML page: curves, the confusion matrix and the worst mistakes."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_tx.atomic_write import write_file
from keras_tx.errors import ConfigError
from keras_tx.inspect.html_charts import Line, confusion_table, line_chart
from keras_tx.inspect.html_elements import ASSETS, Section, html_document, text_html
from keras_tx.inspect.html_overlay import jpeg
from keras_tx.inspect.html_page import check_page_path

MOST_CLASSES = 30  # in a confusion matrix; for more classes, the most frequent confusions are listed
CONFUSIONS = 20
CHARACTERS = 900  # of a text
BODY = """\
<h1>{title}</h1>
<p class="report-faint">{summary}</p>
{sections}
<footer>Made by keras-tx {version}.</footer>"""


@dataclasses.dataclass(frozen=True)
class ReportedMistake:
    """A sample with its label and its prediction.

    Args:
        texts: the sample by name, or empty.
        image: uint8 (height, width, 3), or None.
        expected: the label.
        predicted: the prediction.
        detail: further information, such as the probability.
        place: location of the sample, such as a line or a path.
    """

    texts: Mapping[str, str]
    expected: str
    predicted: str
    detail: str
    place: str
    image: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """The content of the page.

    Args:
        title: title of the page, such as the name of the data.
        summary: the result in a sentence.
        facts: names and values of the choices of the training.
        steps: {"step", "loss", "rate"} of some steps.
        epochs: {"epoch", "at", "loss", "val_loss", ...} of each epoch; `at` is the step of its end.
        best_epoch: the number of the epoch whose weights the model has; 0 if unknown.
        labels: names of the classes.
        confusion: counts (label, prediction), or None.
        mistakes: the worst first.
        samples: generated texts, by their heading.
    """

    title: str
    summary: str
    facts: Sequence[tuple[str, str]]
    steps: Sequence[Mapping[str, float]] = ()
    epochs: Sequence[Mapping[str, float]] = ()
    best_epoch: int = 0
    labels: Sequence[str] = ()
    confusion: np.ndarray | None = None
    mistakes: Sequence[ReportedMistake] = ()
    samples: Mapping[str, str] = dataclasses.field(default_factory=dict)


def write_training_report(report: TrainingReport, path: str | os.PathLike[str]) -> Path:
    """Writes the page of a training atomically, as a single file without network requests.

    Args:
        report: content of the page.
        path: path of the file; it ends in .html.

    Returns:
        The path.

    Raises:
        ConfigError: the file cannot be written.

    Example:

    >>> import tempfile
    >>> report = TrainingReport("reviews", "accuracy 0.9", [("model", "bert:mini")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_training_report(report, folder + "/reviews.html").name
    'reviews.html'
    """
    from keras_tx import __version__

    check_page_path(path)
    sections = [_facts(report), *_curves(report), *_confusion(report), *_samples(report), *_mistakes(report)]
    body = BODY.format(
        title=html.escape(report.title),
        summary=html.escape(report.summary),
        sections="\n".join(map(str, sections)),
        version=__version__,
    )
    style = ASSETS.joinpath("report.css").read_text("utf-8")
    style += ASSETS.joinpath("training_report.css").read_text("utf-8")
    write_file(Path(path), html_document(report.title, style, body).encode("utf-8"), ConfigError)
    return Path(path)


def _facts(report: TrainingReport) -> Section:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in report.facts
    )
    return Section("Training", "", f'<table class="report-facts">{rows}</table>')


def _curves(report: TrainingReport) -> list[Section]:
    steps, epochs = report.steps, report.epochs
    losses = [
        _line("training loss", steps, "step", "loss"),
        _line("validation loss", epochs, "at", "val_loss"),
    ]
    best = f"The model has the weights of epoch {report.best_epoch}, the best on the validation data."
    chart = line_chart([line for line in losses if line.y], x_label="step", y_label="loss")
    sections = [Section("Loss", best if report.best_epoch else "", chart)]
    both = [name for name in (epochs[0] if epochs else ()) if f"val_{name}" in epochs[0] and name != "loss"]
    for name in both:
        pair = [_line("training", epochs, "epoch", name), _line("validation", epochs, "epoch", f"val_{name}")]
        title = name.replace("_", " ")
        chart = line_chart(pair, x_label="epoch", y_label=title)
        sections.append(Section(title.capitalize(), "Training values are means over the epoch.", chart))
    rates = [_line("learning rate", steps, "step", "rate")]
    chart = line_chart(rates, x_label="step", y_label="learning rate")
    return [*sections, Section("Learning rate", "", chart)]


def _line(title: str, rows: Sequence[Mapping[str, float]], x: str, y: str) -> Line:
    known = [row for row in rows if y in row]
    return Line(title, [row[x] for row in known], [row[y] for row in known])


def _confusion(report: TrainingReport) -> list[Section]:
    matrix = report.confusion
    if matrix is None:
        return []
    about = "Number of validation samples of each label (rows) and prediction (columns)."
    if len(report.labels) <= MOST_CLASSES:
        return [Section("Confusion matrix", about, confusion_table(matrix, report.labels))]
    wrong = matrix - np.diag(np.diag(matrix))
    pairs = np.dstack(np.unravel_index(np.argsort(-wrong, axis=None, kind="stable"), wrong.shape))[0]
    names = list(map(html.escape, report.labels))
    rows = "".join(
        f'<tr><td class="number">{wrong[row, column]}</td><td>{names[row]}</td><td>{names[column]}</td></tr>'
        for row, column in pairs[:CONFUSIONS].tolist()
        if wrong[row, column]
    )
    head = '<tr><th class="number">samples</th><th>label</th><th>prediction</th></tr>'
    about = f"The most frequent confusions of the {len(report.labels)} classes on the validation samples."
    return [Section("Confusions", about, f'<table class="report-answers">{head}{rows}</table>')]


def _samples(report: TrainingReport) -> list[Section]:
    if not report.samples:
        return []
    texts = "\n".join(text_html(name, text) for name, text in report.samples.items())
    return [Section("Generated texts", "", texts)]


def _mistakes(report: TrainingReport) -> list[Section]:
    if not report.mistakes:
        return []
    figures = "\n".join(map(_mistake, report.mistakes))
    about = "Validation samples with the largest loss. Some of these labels may be wrong."
    return [Section("Worst mistakes", about, f'<div class="report-mistakes">{figures}</div>')]


def _mistake(mistake: ReportedMistake) -> str:
    picture = (
        ""
        if mistake.image is None
        else f'<img src="{jpeg(mistake.image)}" alt="{html.escape(mistake.place)}">'
    )
    texts = "".join(
        text_html(name if len(mistake.texts) > 1 else "", _shortened(text))
        for name, text in mistake.texts.items()
    )
    return (
        f"<figure>{picture}{texts}<figcaption><b>{html.escape(mistake.predicted)}</b> instead of "
        f"<b>{html.escape(mistake.expected)}</b><br>{html.escape(mistake.detail)}; "
        f"{html.escape(mistake.place)}</figcaption></figure>"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"
