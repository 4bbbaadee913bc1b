"""Attention of texts equals that of transformers and BertViz, and pages have it without padding."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect import attention_parts, inspect
from keras_tx.inspect.html_page import AttentionPart
from keras_tx.processing import TextTransform
from tests.drawing import redraw
from tests.tolerances import assert_close
from tests.weights.small_models import load_in_transformers
from tests.wordpiece import wordpiece

IDS = np.array([[5, 17, 9, 9, 2, 30]])
TARGETS = np.array([[0, 8, 21, 3]])
FAMILIES = {
    "bert": lambda: keras_tx.bert("tiny", vocabulary_size=40, depth=3),
    "gpt": lambda: keras_tx.gpt("pico", vocabulary_size=40),
    "t5": lambda: keras_tx.t5("tiny", vocabulary_size=40),
}
PARTS = {None: "attentions", "encoder": "encoder_attentions", "decoder": "decoder_attentions"}
PARTS["cross"] = "cross_attentions"


@pytest.fixture(scope="module", params=FAMILIES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A redrawn Keras model, and the outputs of transformers' model with the same weights."""
    ours = redraw(FAMILIES[request.param]())
    theirs = load_in_transformers(ours, tmp_path_factory.mktemp(request.param) / "checkpoint")
    import torch

    with torch.no_grad():
        inputs = {name: torch.from_numpy(value) for name, value in tensors(ours).items()}
        return ours, theirs(**inputs, output_attentions=True)


def tensors(model: Any) -> dict[str, np.ndarray]:
    return {"input_ids": IDS} | ({"decoder_input_ids": TARGETS} if "decoder_input_ids" in model.input else {})


def test_attention_equals_transformers(models):
    ours, outputs = models
    inspector = inspect(ours)
    parts = attention_parts(inspector, tensors(ours))
    for part, shown in zip(inspector.parts or (None,), parts, strict=True):
        theirs = [weights.numpy() for weights in outputs[PARTS[part]]]
        made = inspector.attention(tensors(ours), part=part)
        assert len(made) == len(shown.attentions) == len(theirs) > 1
        for one, in_page, expected in zip(made, shown.attentions, theirs, strict=True):
            assert_close(one, expected)
            np.testing.assert_array_equal(in_page, one[0])


class Shown(str):
    """Stands for a class of IPython, which BertViz wraps its HTML and JavaScript in."""

    @property
    def data(self) -> str:
        return str(self)


def bertviz_data(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> list[dict[str, Any]]:
    """The arrays and tokens in the page of BertViz's head view."""
    if "IPython" not in sys.modules:
        module = types.ModuleType("IPython.display")
        monkeypatch.setattr(module, "HTML", Shown, raising=False)
        monkeypatch.setattr(module, "Javascript", Shown, raising=False)
        monkeypatch.setattr(module, "display", print, raising=False)
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", module)
    bertviz = pytest.importorskip("bertviz", reason="pip install --no-deps bertviz")
    text = bertviz.head_view(**arguments, html_action="return").data
    return json.JSONDecoder().raw_decode(text, text.index('{"attention": '))[0]["attention"]


@pytest.mark.filterwarnings("ignore:.*head_view.js:pytest.PytestUnraisableExceptionWarning")  # left open
def test_arrays_of_the_page_equal_bertviz(models, monkeypatch):
    ours, outputs = models
    parts = attention_parts(inspect(ours), tensors(ours))
    if len(parts) == 1:
        arguments = {"attention": outputs.attentions, "tokens": parts[0].queries}
    else:
        arguments = {name: outputs[f"{name}s"] for name in ("encoder_attention", "decoder_attention")}
        arguments |= {"cross_attention": outputs.cross_attentions}
        arguments |= {"encoder_tokens": parts[0].queries, "decoder_tokens": parts[1].queries}
    theirs = bertviz_data(monkeypatch, **arguments)
    for part, expected in zip(parts, theirs, strict=True):
        assert_close(np.stack(part.attentions), np.array(expected["attn"], "float32"))
        assert [list(part.queries), list(part.key_tokens)] == [expected["left_text"], expected["right_text"]]


@pytest.fixture(scope="module")
def bert() -> Any:
    processing = TextTransform.of(wordpiece())
    return redraw(keras_tx.bert("tiny", depth=3, processing=processing))


def test_padding_is_omitted(bert):
    padded = bert.processing(["the cat sat", "the cat sat on the mat in paris"])
    rows = {name: value[:1] for name, value in padded.items()}
    assert rows["attention_mask"].sum() == 5 < rows["attention_mask"].shape[1]
    (part,) = attention_parts(inspect(bert), rows)
    (expected,) = attention_parts(inspect(bert), "the cat sat")
    assert list(part.queries) == list(expected.queries) == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    for mine, theirs in zip(part.attentions, expected.attentions, strict=True):
        assert_close(mine, theirs)


def test_page_of_an_inspector(bert, tmp_path: Path):
    inspector = inspect(bert)
    path = inspector.page("the cat sat", tmp_path / "page.html", layers=[-1, 0])
    text = path.read_text("utf-8")
    assert "<title>the cat sat</title>" in text and '"layers": [2, 0]' in text
    assert "<title>mine</title>" in inspector.page("a", path, title="mine").read_text("utf-8")


@pytest.mark.parametrize("name", ["gpt", "bert, none"])
def test_page_of_a_folder_equals_that_of_the_model(name: str, exported_folders, tmp_path: Path):
    model, path = exported_folders[name]
    inspector = inspect(path)
    (made,) = attention_parts(inspector, "the cat sat")
    (expected,) = attention_parts(inspect(model), inspector.reader.adapter.tensors("the cat sat"))
    assert "".join(made.queries).replace(" ", "") in ("thecatsat", "[CLS]thecatsat[SEP]")
    for mine, theirs in zip(made.attentions, expected.attentions, strict=True):
        assert_close(mine, theirs)
    assert inspector.page("the cat sat", tmp_path / "page.html").is_file()


def test_wrong_inputs_raise_and_write_nothing(bert, tmp_path: Path):
    inspector = inspect(bert)
    path = tmp_path / "page.html"
    with pytest.raises(InputError, match="one text, got 2"):
        inspector.page(["a cat", "a dog"], path)
    with pytest.raises(ConfigError, match="layers has 7"):
        inspector.page("a cat", path, layers=7)
    with pytest.raises(ConfigError, match=r"page\.txt"):
        inspector.page("a cat", tmp_path / "page.txt")
    with pytest.raises(InputError, match="targets= is for encoder-decoders"):
        inspector.page("a cat", path, targets="a dog")
    with pytest.raises(InputError, match="accepts images"):
        inspect(keras_tx.vit("Mu/2", image_size=8)).page("a cat", path)
    with pytest.raises(InputError, match="requires targets="):
        inspect(keras_tx.t5("tiny")).page(IDS, path)
    assert list(tmp_path.iterdir()) == []


def test_attention_that_is_too_large_raises_after_one_layer(bert, monkeypatch):
    monkeypatch.setattr("keras_tx.inspect.html_page.MAX_WEIGHTS", 100)
    calls = []
    monkeypatch.setattr(AttentionPart, "__post_init__", lambda part: calls.append(part))
    with pytest.raises(InputError, match=r"has 150 weights.* 100"):
        attention_parts(inspect(bert), "the cat sat")
    assert calls == []
