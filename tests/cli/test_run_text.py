"""keras-tx run on texts: every task, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import keras_tx
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.wordpiece import VOCABULARY, wordpiece

TEXT = "Ada lives in London."
TASKS = {
    "reviews": (keras_tx.ClassifierHead(2), TEXT, []),
    "scores": (keras_tx.RegressionHead(), TEXT, ["--pair", "a cat"]),
    "names": (keras_tx.TokenClassifierHead(2), TEXT, []),
    "squad": (keras_tx.SpanHead(), TEXT, ["--question", "Who lives in London?"]),
    "masked": (keras_tx.MaskedLMHead(), "the [MASK] sat on [MASK]", []),
    "minilm": (keras_tx.SentenceEmbeddingHead(), TEXT, []),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("texts")
    sizes = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8, "vocabulary": len(VOCABULARY)}
    for name, (head, _, _) in TASKS.items():
        model = redraw(keras_tx.bert("tiny", head=head, **sizes))
        export_onnx(model, parent / name, tokenizer=wordpiece(), verify=False)
    return parent


@pytest.mark.parametrize("name", TASKS)
def test_every_task(name: str, tx, folders):
    _, text, options = TASKS[name]
    ran = tx("run", folders / name, text, *options)
    assert (ran.code, ran.err) == (0, "")
    first, second, *rows = ran.out.splitlines()
    assert first.endswith(" on cpu") and second == text and rows
    answer = json.loads(tx("run", folders / name, text, *options, "--json").out)
    with load(folders / name) as model:
        expected = {
            "reviews": lambda: model.classify(text),
            "scores": lambda: model.classify(text, "a cat"),
            "names": lambda: model.tag(text),
            "squad": lambda: model.answer(options[-1], text, top_k=5),
            "masked": lambda: model.fill(text),
            "minilm": lambda: model.embed(text).tolist(),
        }[name]()
    assert expected in list(answer.values())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("squad", [], "answers questions: add --question TEXT"),
        ("reviews", ["--question", "who?"], "answers no questions. Leave --question out"),
        ("names", ["--pair", "a"], "takes no pairs of texts. Leave --pair out"),
    ],
)
def test_options_that_do_not_fit(name: str, options: list[str], said: str, tx, folders):
    ran = tx("run", folders / name, TEXT, *options)
    assert (ran.code, ran.out) == (2, "") and said in ran.err


def test_a_text_that_is_refused_is_named_and_the_others_are_run(tx, folders):
    ran = tx("run", folders / "masked", "no mask", f"{TEXT} [MASK]")
    assert ran.code == 2
    assert "has no [MASK]" in ran.err and TEXT in ran.out
