"""Adapters of a folder: by name in /models, and as models of their own in /v1."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.processing import train_byte_bpe, train_unigram
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.export.small_bert import HEADS, tiny
from tests.export.test_adapters import trained
from tests.exported_folders import CORPUS
from tests.serving.running_server import RunningServer, running
from tests.serving.test_http_tasks import assert_same
from tests.wordpiece import wordpiece

PROMPT = "the cat sat on the mat Ada lives in London"
NAMES = (None, "reviews", "sport")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RunningServer]:
    parent = tmp_path_factory.mktemp("adapters")
    words, pieces = train_byte_bpe(CORPUS, size=280), train_unigram(CORPUS, 40, sentinels=0)
    bases = {
        "poet": redraw(keras_tx.gpt("pico", processing=words)),
        "stories": redraw(keras_tx.t5("tiny", depth=1, processing=pieces)),
        "labels": tiny(HEADS["classifier"], max_length=24, processing=keras_tx.TextTransform.of(wordpiece())),
    }
    folders = {name: exported(parent / name, base) for name, base in bases.items()}
    with running(folders) as one:
        yield one


def exported(parent: Path, base: Any) -> Path:
    parent.mkdir()
    for seed, name in enumerate(("reviews", "sport"), 1):
        trained(base, parent, name, seed, targets="dense")
    export_onnx(base, parent / "out", adapters=[parent / "reviews", parent / "sport"], verify=False)
    return parent / "out"


def test_models(server):
    ids = [one["id"] for one in server.get("/v1/models").json["data"]]
    assert ids[:3] == ["poet", "poet:reviews", "poet:sport"]
    assert server.get("/v1/models/poet:sport").status == 200
    assert server.get("/models/labels").json["adapters"] == ["reviews", "sport"]


def test_tasks(server):
    text = "The cat sat on the mat."
    with load(server.application.models.folders["labels"], provider="cpu") as model:
        expected = [{"predictions": model(text, adapter=name)} for name in NAMES]
    answers = [
        server.post("/models/labels", {"text": text, **({} if name is None else {"adapter": name})}).json
        for name in NAMES
    ]
    assert_same(answers, expected)
    assert answers[0] != answers[1] != answers[2]
    wrong = server.post("/models/labels", {"text": text, "adapter": "none"})
    assert wrong.status == 422 and '"sport"' in wrong.message


def test_texts_of_an_encoder_decoder(server):
    """Alone, in batches with requests for other adapters, as lists and with a deadline."""
    fixed = {"max_new_tokens": 8, "stop_tokens": []}
    texts = ["the cat sat", "Ada lives"]
    with load(server.application.models.folders["stories"], provider="cpu") as model:
        expected = {
            adapter: [x.text for x in model.generate(texts, adapter=adapter, **fixed)] for adapter in NAMES
        }
    assert server.get("/models/stories").json["adapters"] == ["reviews", "sport"]

    def post(text: Any, adapter: str | None, **options: Any) -> Any:
        body = {"text": text, **fixed, **options, **({} if adapter is None else {"adapter": adapter})}
        answer = server.post("/models/stories", body).json
        made = [one["generated_text"] for one in (answer if isinstance(answer, list) else [answer])]
        return made if isinstance(answer, list) else made[0]

    pairs = [(index, adapter) for index in range(len(texts)) for adapter in NAMES] * 3
    with ThreadPoolExecutor(len(pairs)) as clients:
        made = list(clients.map(lambda pair: post(texts[pair[0]], pair[1]), pairs))
    assert made == [expected[adapter][index] for index, adapter in pairs]
    for adapter in NAMES:
        assert post(texts, adapter) == expected[adapter]
        assert post(texts[0], adapter, deadline=1e6) == expected[adapter][0]
    assert len(set(map(tuple, expected.values()))) == 3
    wrong = server.post("/models/stories", {"text": "a", "adapter": "none"})
    assert wrong.status == 422 and '"sport"' in wrong.message


def test_texts(server):
    with load(server.application.models.folders["poet"], provider="cpu") as model:
        expected = [model.generate(PROMPT, max_new_tokens=12, adapter=name).text for name in NAMES]
    made = []
    for name in NAMES:
        body = {"model": "poet" if name is None else f"poet:{name}", "prompt": PROMPT}
        answer = server.post("/v1/completions", {**body, "max_tokens": 12, "temperature": 0}).json
        assert answer["model"] == body["model"]
        made.append(answer["choices"][0]["text"])
    assert made == expected
    assert len(set(made)) == 3
    plain = {"prompt": PROMPT, "max_new_tokens": 12, "adapter": "sport"}
    assert server.post("/models/poet", plain).json["generated_text"] == expected[2]
    assert server.post("/v1/completions", {"model": "poet:none", "prompt": "a"}).status == 404
