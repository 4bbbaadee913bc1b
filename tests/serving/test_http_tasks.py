"""POST /models/NAME returns what `load(folder)` returns, for every task."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_tx import contract
from keras_tx.generation.constraints import CONSTRAINTS
from keras_tx.generation.generator import SAMPLING, BaseGenerator
from keras_tx.runtime import load
from keras_tx.runtime.tasks import all_tasks
from keras_tx.runtime.tasks.base import RunOptions
from keras_tx.serving.engine.cache_rows import bytes_per_token
from keras_tx.serving.http import tensors
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.tasks import GENERATION
from tests.serving.running_server import PATIENCE, RunningServer, multipart, running, until
from tests.tolerances import assert_close

TEXTS = ["The cat sat on the mat.", "Ada!", "I love the film, it is very good.", "Paris"]
MASKED = ["The [MASK] sat on the mat.", "[MASK]!"]
NAMES = {
    "flowers": "vit",
    "poet": "gpt",
    "translator": "translation",
    "stories": "multiple choice",
    **{
        name.replace(" ", "-"): f"bert, {name}"
        for name in (
            "none",
            "masked",
            "next",
            "pretraining",
            "classifier",
            "regression",
            "tags",
            "span",
            "sentence",
        )
    },
}


@pytest.fixture(scope="module")
def server(exported_folders, tmp_path_factory) -> Iterator[RunningServer]:
    folders = {name: exported_folders[export].path for name, export in NAMES.items()}
    folders["features"] = image_features(tmp_path_factory.mktemp("features") / "features")
    folders["sums"] = sums(tmp_path_factory.mktemp("sums") / "sums")
    folders |= keras_hub_folders(tmp_path_factory.mktemp("keras_hub"))
    with running(folders) as one:
        yield one


def image_features(path: Any) -> Any:
    import keras_tx
    from keras_tx_onnx import export_onnx
    from tests.drawing import redraw

    export_onnx(redraw(keras_tx.vit("Mu/2", image_size=8, head=None)), path, verify=False)
    return path


def keras_hub_folders(parent: Path) -> dict[str, Path]:
    """An object detector and an image segmenter, whose pictures keras-hub resizes."""
    from keras_tx_onnx import export_onnx
    from tests.export import test_keras_hub_tasks as keras_hub_tasks

    detector = keras_hub_tasks.image_task(
        "RetinaNetObjectDetector",
        keras_hub_tasks.retinanet(),
        (64, 64),
        num_classes=3,
        bounding_box_format="xyxy",
    )
    body = keras_hub_tasks.images.segformer(2)
    segmenter = keras_hub_tasks.image_task("SegFormerImageSegmenter", body, (64, 64), num_classes=3)
    for name, model in (("detector", detector), ("segmenter", segmenter)):
        export_onnx(model, parent / name, labels=["a", "b", "c"], verify=False)
    return {name: parent / name for name in ("detector", "segmenter")}


def sums(path: Any) -> Any:
    """A generic model of two inputs."""
    import keras

    from keras_tx_onnx import export_onnx

    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    export_onnx(keras.Model([a, b], keras.layers.Add(name="sum")([a, b])), path)
    return path


def opened(server: RunningServer, name: str) -> Any:
    return load(server.application.models.folders[name], provider="cpu")


def png(size: tuple[int, int] = (8, 8), seed: int = 0, mode: str = "RGB") -> bytes:
    channels = () if mode == "L" else (len(mode),)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels)).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def assert_same(actual: Any, expected: Any) -> None:
    """Equal, with the tolerance of a batch for numbers that are not whole."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list) and expected and isinstance(expected[0], float):
        assert_close(np.array(actual), np.array(expected))
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, float):
        assert abs(actual - expected) <= 1e-5
    else:
        assert actual == expected


@pytest.mark.parametrize(
    ("name", "key", "texts"),
    [
        ("classifier", "predictions", TEXTS),
        ("regression", "numbers", TEXTS),
        ("masked", "tokens", MASKED),
        ("pretraining", "tokens", MASKED),
        ("tags", "entities", TEXTS),
        ("translator", "translation_text", ["uno due", "tre"]),
    ],
)
def test_texts(server, name, key, texts):
    with opened(server, name) as model:
        expected = model(texts)
    assert_same(server.post(f"/models/{name}", {"text": texts}).json, [{key: answer} for answer in expected])
    assert_same(server.post(f"/models/{name}", {"text": texts[0]}).json, {key: expected[0]})


@pytest.mark.parametrize("name", ["none", "sentence"])
def test_embeddings(server, name):
    with opened(server, name) as model:
        expected = model(TEXTS)
    answers = server.post(f"/models/{name}", {"text": TEXTS}).json
    assert_close(np.array([x["embedding"] for x in answers]), expected)
    assert server.post(f"/models/{name}", {"text": "Ada!"}).json["shape"] == [expected.shape[1]]


def test_options(server):
    with opened(server, "classifier") as model:
        expected = model(TEXTS[0], top_k=1)
    assert_same(
        server.post("/models/classifier", {"text": TEXTS[0], "top_k": 1}).json, {"predictions": expected}
    )
    with opened(server, "next") as model:
        expected = model(TEXTS[0], "It slept.")
    answer = server.post("/models/next", {"text": TEXTS[0], "pair": "It slept."}).json
    assert_same(answer, {"pair": "It slept.", "predictions": expected})


def test_question(server):
    with opened(server, "span") as model:
        expected = model("Who lives in London?", TEXTS[2])
    answer = server.post("/models/span", {"text": TEXTS[2], "question": "Who lives in London?"}).json
    assert_same(answer, {"question": "Who lives in London?", "answers": expected})
    missing = server.post("/models/span", {"text": TEXTS[2]})
    assert missing.status == 422 and "'question'" in missing.message


def test_choices(server):
    with opened(server, "stories") as model:
        expected = model(TEXTS[0], ["on the mat.", "in London."])
    answer = server.post("/models/stories", {"text": TEXTS[0], "choices": ["on the mat.", "in London."]}).json
    assert_same(answer, {"choices": expected})


def test_generation_options(server):
    with opened(server, "translator") as model:
        expected = model("uno due", num_beams=3, max_new_tokens=4)
    body = {"text": "uno due", "num_beams": 3, "max_new_tokens": 4}
    assert server.post("/models/translator", body).json == {"translation_text": expected}


def test_model_that_searches_by_default(server, monkeypatch):
    """A decoder whose generation_config.json has num_beams."""
    served = server.application.models.get("poet")
    monkeypatch.setattr(served.model, "defaults", {"num_beams": 4})
    with opened(server, "poet") as model:
        model.defaults = {"num_beams": 4}
        greedy = model("a", num_beams=1, max_new_tokens=20)
        for options in ({}, {"temperature": 0}, {"seed": 3, "top_k": 9}):
            expected = model("a", max_new_tokens=20, **options)
            body = {"prompt": "a", "max_new_tokens": 20, **options}
            answer = server.post("/models/poet", body).json
            assert (answer["generated_text"], tuple(answer["ids"])) == (expected.text, expected.ids)
            assert expected.ids != greedy.ids


@pytest.mark.parametrize("name", ["poet", "translator"])
def test_beams_of_all_inputs_are_bounded(server, name, monkeypatch):
    """The beams of a batch are at most as many rows as the engine or a batch of others has."""
    served = server.application.models.get(name)
    monkeypatch.setattr(served, "most_rows", 7)
    rows: list[int] = []
    method = type(served.model.decoder).run

    def run(self: Any, ids: np.ndarray, *arguments: Any, **options: Any) -> Any:
        rows.append(len(ids))
        return method(self, ids, *arguments, **options)

    monkeypatch.setattr(type(served.model.decoder), "run", run)
    key = "prompt" if name == "poet" else "text"
    texts = ["uno", "due", "tre", "uno due", "due tre"]
    for num_beams, most in ((3, 6), (8, 8), (1, 7)):
        rows.clear()
        body = {key: texts, "num_beams": num_beams, "max_new_tokens": 3}
        answers = server.post(f"/models/{name}", body)
        assert answers.status == 200 and len(answers.json) == len(texts)
        assert max(rows) <= most


def test_beams_are_bounded_by_the_memory(server, monkeypatch):
    served = server.application.models.get("poet")
    context, per_token = served.model.context, bytes_per_token(served.model.decoder)
    monkeypatch.setattr(served.engine, "cache_memory", 3 * context * per_token)
    sizes: list[int] = []
    generate = type(served.model).generate

    def observed(self: Any, prompts: Any, *, batch_size: int, **options: Any) -> Any:
        sizes.append(batch_size)
        return generate(self, prompts, batch_size=batch_size, **options)

    monkeypatch.setattr(type(served.model), "generate", observed)
    body = {"prompt": ["a"] * 4, "num_beams": 1, "max_new_tokens": 2}
    assert server.post("/models/poet", body).status == 200 and sizes == [3]
    body |= {"num_beams": 4, "max_new_tokens": context}
    refused = server.post("/models/poet", body)
    assert refused.status == 422 and "cache_memory" in refused.message and sizes == [3]


def test_requests_of_an_encoder_decoder_run_in_batches(server, monkeypatch):
    """Those with the same options; each has the text that it would have alone."""
    served = server.application.models.get("translator")
    assert "same options" in server.get("/models/translator").json["batching"]
    rows: list[int] = []
    opened_gate = threading.Event()
    method = type(served.model.decoder).run

    def run(self: Any, ids: np.ndarray, *arguments: Any, **options: Any) -> Any:
        assert opened_gate.wait(PATIENCE)
        rows.append(len(ids))
        return method(self, ids, *arguments, **options)

    bodies = [
        {"text": text, "max_new_tokens": 4, "seed": seed, **beams}
        for text in ("uno", "due", "tre", "uno due", "due tre")
        for seed, beams in ((1, {}), (2, {}), (None, {"num_beams": 3}))
    ]
    bodies = [{key: value for key, value in body.items() if value is not None} for body in bodies]
    with opened(server, "translator") as model:
        options = [{key: body[key] for key in body if key != "text"} for body in bodies]
        expected = [model(body["text"], **one) for body, one in zip(bodies, options, strict=True)]
    monkeypatch.setattr(type(served.model.decoder), "run", run)
    with ThreadPoolExecutor(len(bodies)) as clients:
        answers = clients.map(lambda body: server.post("/models/translator", body), bodies)
        until(lambda: server.application.admission.running == len(bodies))
        opened_gate.set()
        assert [answer.json["translation_text"] for answer in answers] == expected
    assert max(rows) > 3  # several texts, some with 3 beams


@contextlib.contextmanager
def connected(server: RunningServer, body: Any) -> Iterator[None]:
    """A client of the translator that leaves at the end, without reading the answer."""
    content = json.dumps(body).encode()
    head = f"POST /models/translator HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + content)
        yield


def test_a_batch_of_texts_ends_when_all_clients_have_left(server, monkeypatch):
    served = server.application.models.get("translator")
    steps: list[int] = []
    method = type(served.model.decoder).run

    def run(*arguments: Any, **options: Any) -> Any:
        steps.append(1)
        until(lambda: len(steps) < 3 or server.application.in_flight == 0)
        return method(*arguments, **options)

    monkeypatch.setattr(type(served.model.decoder), "run", run)
    with connected(server, {"text": "uno", "max_new_tokens": 12, "stop_tokens": []}):
        until(lambda: len(steps) >= 3)
    until(lambda: server.application.in_flight == 0)
    batcher = served._batcher
    until(lambda: batcher._idle == batcher.workers)
    assert len(steps) == 3


def test_a_text_ends_when_its_client_has_left(server, monkeypatch):
    """The text of the other client in its batch continues."""
    served = server.application.models.get("translator")
    batcher = served._batcher
    first, second = threading.Event(), threading.Event()
    gates = {0: first, 1: second}  # of the two batches that keep the workers busy
    workers: list[int] = []
    rows: list[int] = []
    method = type(served.model.decoder).run

    def run(self: Any, ids: np.ndarray, *arguments: Any, **options: Any) -> Any:
        if (worker := threading.get_ident()) not in workers:
            workers.append(worker)
            assert gates[workers.index(worker)].wait(PATIENCE)
        else:
            rows.append(len(ids))
            until(lambda: len(rows) < 3 or server.application.in_flight == 2)
        return method(self, ids, *arguments, **options)

    body = {"text": "due tre", "max_new_tokens": 8, "stop_tokens": []}
    with opened(server, "translator") as model:
        expected = model(body["text"], max_new_tokens=8, stop_tokens=[])
    assert batcher.workers == 2
    monkeypatch.setattr(type(served.model.decoder), "run", run)
    with ThreadPoolExecutor(3) as clients:
        busy = []
        for count in (1, 2):
            one = {"text": "uno", "max_new_tokens": 1}
            busy.append(clients.submit(server.post, "/models/translator", one))
            until(lambda count=count: len(workers) == count)
        stays = clients.submit(server.post, "/models/translator", body)
        with connected(server, body):
            until(lambda: len(batcher._pending) == 2)
            first.set()
            until(lambda: len(rows) == 3)
        answer = stays.result()
        second.set()
        assert [one.result().status for one in busy] == [200, 200]
    assert answer.json == {"translation_text": expected}
    assert rows == [2, 2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["poet", "translator"])
def test_default_number_of_new_tokens_is_within_the_limit(exported_folders, name):
    body = {"prompt" if name == "poet" else "text": "uno due", "stop_tokens": []}
    with running({name: exported_folders[NAMES[name]].path}, limits=Limits(max_new_tokens=3)) as server:
        answer = server.post(f"/models/{name}", body).json
        assert answer == server.post(f"/models/{name}", {**body, "max_new_tokens": 3}).json
        if name == "poet":
            assert len(answer["ids"]) == 3
            made = server.post("/v1/completions", {"model": name, "prompt": "uno"}).json
            assert made["usage"]["completion_tokens"] <= 3
    with load(exported_folders[NAMES[name]].path, provider="cpu") as model:
        assert model("uno due", stop_tokens=[]) != model("uno due", stop_tokens=[], max_new_tokens=3)


def test_pairs_of_texts_and_choices_are_bounded(server):
    body = {"text": ["a"] * 16, "choices": ["b"] * 17}
    refused = server.post("/models/stories", body)
    assert refused.status == 422 and "272 pairs" in refused.message


def test_options_of_generation():
    """A client may send the options that `generate` has, among them all constraints."""
    parameters = inspect.signature(BaseGenerator.generate).parameters
    assert GENERATION.keys() <= {*SAMPLING, *CONSTRAINTS, *parameters}
    assert {*SAMPLING, *CONSTRAINTS, "regex", "json_schema"} <= GENERATION.keys()


@pytest.mark.parametrize("name", ["poet", "translator"])
def test_constraints(server, name):
    """Each changes the text, to that of `load(folder)`."""
    key, inputs = ("prompt", [3]) if name == "poet" else ("text", "uno due")
    fixed = {"max_new_tokens": 4, "stop_tokens": []}
    with opened(server, name) as model:
        plain = model.generate(inputs, **fixed)
        first, other = plain.ids[0], 5
        assert other not in plain.ids
        for options in (
            {"suppress_tokens": [first]},
            {"begin_suppress_tokens": [first]},
            {"bad_words_ids": [[first], [other, first]]},
            {"forced_bos_token_id": other},
            {"forced_eos_token_id": other},
            {"forced_eos_token_id": [other]},
        ):
            expected = model.generate(inputs, **fixed, **options)
            assert expected.ids != plain.ids
            answer = server.post(f"/models/{name}", {key: inputs, **fixed, **options}).json
            if name == "poet":
                assert tuple(answer["ids"]) == expected.ids
            else:
                assert answer == {"translation_text": expected.text}


@pytest.mark.parametrize("num_beams", [None, 1])
def test_grammars(server, num_beams):
    """In the engine, and outside of it."""
    pytest.importorskip("llguidance", reason='pip install "keras-tx[serve]"')
    alone = {} if num_beams is None else {"num_beams": num_beams}
    answer = server.post("/models/poet", {"prompt": "a", "regex": "(cat|mat)[0-9]{3}", **alone}).json
    assert re.fullmatch("(cat|mat)[0-9]{3}", answer["generated_text"])
    body = {"prompt": "a", "json_schema": {"enum": ["cat", 7]}, **alone}
    assert json.loads(server.post("/models/poet", body).json["generated_text"]) in ("cat", 7)
    assert server.post("/models/poet", {"prompt": "a", "regex": "(", **alone}).status == 422


def test_length_penalty_is_bounded(server):
    refused = server.post("/models/translator", {"text": "uno", "num_beams": 2, "length_penalty": 1e6})
    assert refused.status == 422 and "-10 to 10" in refused.message


def test_prompts(server):
    options = {"max_new_tokens": 6, "seed": 3, "top_k": 9}
    with opened(server, "poet") as model:
        expected = model("the cat", **options)
    answer = server.post("/models/poet", {"prompt": "the cat", **options}).json
    assert answer == {"generated_text": expected.text, "ids": list(expected.ids), "finish": expected.finish}
    assert server.post("/models/poet", {"prompt": ["the cat", "Ada"], **options}).json[0] == answer


def test_images(server):
    images = [png((8, 8)), png((13, 9), 1), png((8, 8), 2, "L")]
    with opened(server, "flowers") as model:
        expected = model(images, top_k=2)
    body, headers = multipart([("image", image) for image in images], {"top_k": "2"})
    answers = server.send("POST", "/models/flowers", body, headers).json
    assert_same(answers, [{"predictions": answer} for answer in expected])
    for kind in ("image/png", "application/octet-stream"):
        raw = server.send("POST", "/models/flowers?top_k=2", images[1], {"content-type": kind})
        assert_same(raw.json, {"predictions": expected[1]})


@pytest.mark.parametrize(("name", "key"), [("detector", "objects"), ("segmenter", "segments")])
def test_images_of_their_own_size(server, name, key):
    """Boxes are in pixels of the picture, and nothing is rounded to 8 bits before the graph."""
    images = [png((90, 70)), png((64, 64), 1), png((40, 120), 2)]
    with opened(server, name) as model:
        expected = [model.task.answer(model, [image], RunOptions())[0] for image in images]
    assert key in expected[0] and expected[0][key]
    body, headers = multipart([("image", image) for image in images])
    assert_same(server.send("POST", f"/models/{name}", body, headers).json, expected)
    alone = server.send("POST", f"/models/{name}", images[0], {"content-type": "image/png"})
    assert_same(alone.json, expected[0])
    damaged = server.send("POST", f"/models/{name}", images[0][:300], {"content-type": "image/png"})
    assert damaged.status == 422 and "the image" in damaged.message


def test_image_features(server):
    with opened(server, "features") as model:
        expected = model(png())
    answer = server.send("POST", "/models/features", png(), {"content-type": "image/png"}).json
    assert_close(np.array(answer["embedding"]), expected)


def test_arrays(server, monkeypatch):
    answer = server.post("/models/sums", {"inputs": {"a": [[1, 2, 3]], "b": [[0.5, 0.1, -3]]}})
    assert answer.json == {"sum": np.array([[1.5, 2.1, 0]], "float32").tolist()}
    ragged = server.post("/models/sums", {"inputs": {"a": [[1, 2], [3]], "b": [[0, 0, 0]]}})
    assert ragged.status == 422 and "'a'" in ragged.message
    large = server.post("/models/sums", {"inputs": {"a": [[1e39, 0, 0]], "b": [[0, 0, 0]]}})
    assert large.status == 422 and "float32" in large.message
    monkeypatch.setattr(tensors, "MOST_NUMBERS", 2)
    many = server.post("/models/sums", {"inputs": {"a": [[1, 2, 3]], "b": [[0, 0, 0]]}})
    assert many.status == 422 and "3 numbers" in many.message and "/v2" in many.message


def test_every_task_is_tested(server):
    """A new task is served by its record; this file has a folder of it."""
    served = {model.task.name for model in server.application.models.loaded}
    same_class_of_answers = {contract.SUMMARIZATION, contract.TEXT2TEXT_GENERATION}  # as translation
    assert {task.name for task in all_tasks()} == served | same_class_of_answers


def test_concurrent_clients_get_their_own_answers(server):
    texts = [f"{text} {number}" for number in range(16) for text in TEXTS]
    with opened(server, "classifier") as model:
        expected = [{"predictions": model(text, top_k=1 + len(text) % 2)} for text in texts]

    def ask(text: str) -> Any:
        return server.post("/models/classifier", {"text": text, "top_k": 1 + len(text) % 2}).json

    with ThreadPoolExecutor(16) as clients:
        for actual, answer in zip(clients.map(ask, texts), expected, strict=True):
            assert_same(actual, answer)
    sizes = server.application.metrics.registry.get_sample_value(
        "keras_tx_batch_size_count", {"model": "classifier"}
    )
    assert sizes is not None and sizes < len(texts) + 20


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"text": NaN}', 400, "NaN"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 200_000, 400, "not JSON"),
        ([], 422, "expected an object"),
        ({}, 422, "'text'"),
        ({"text": 3}, 422, "text is 3"),
        ({"text": []}, 422, "0 items"),
        ({"text": ["a", 3]}, 422, r"text[1] is 3"),
        ({"text": "\ud800"}, 422, "surrogate"),
        ({"text": "a", "top_k": 0}, 422, "top_k is 0"),
        ({"text": "a", "top_k": True}, 422, "top_k is True"),
        ({"text": "a", "topk": 1}, 422, "'top_k'"),
        ({"text": "a", "question": "b"}, 422, "'question'"),
    ],
)
def test_wrong_bodies(server, body, status, message):
    answer = server.post("/models/classifier", body)
    assert answer.status == status and message in answer.message, answer.body


def test_wrong_prompts(server):
    """The error of a list is that of the alternative whose items have the same type."""
    wrong: list[tuple[Any, str]] = [
        (["a"] * 257, "prompt has 257 items, expected at most 256"),
        ([1, -1], "prompt[1] is -1"),
        ([1, "a"], "prompt[1] is 'a', expected a whole number"),
        (["a", 3], "prompt[1] is 3, expected a string"),
        ([[1.5]], "prompt[0]"),
    ]
    for prompt, message in wrong:
        for path, body in (("/models/poet", {}), ("/v1/completions", {"model": "poet"})):
            answer = server.post(path, {**body, "prompt": prompt})
            assert answer.status == 422 and message in answer.message, answer.message
    lists = server.post("/v1/completions", {"model": "poet", "prompt": [[1, 2]] * 257})
    assert lists.status == 422 and "prompt has 257 items, expected at most 256" in lists.message


def test_text_longer_than_the_model(server, exported_folders):
    long = "the cat sat on the mat " * 20
    refused = server.post("/models/classifier", {"text": long})
    assert refused.status == 422 and "24" in refused.message
    from keras_tx.serving.http.model_set import ModelOptions

    folder = exported_folders["bert, classifier"].path
    with running({"x": folder}, options=ModelOptions(truncate=True)) as other, load(folder) as model:
        with pytest.warns(UserWarning, match="max_length"):
            expected = model(long)
        assert_same(other.post("/models/x", {"text": long}).json, {"predictions": expected})


def test_text_that_is_the_path_of_an_image_is_not_opened(server, tmp_path):
    """Strings of a request never reach the file system."""
    path = tmp_path / "rose.png"
    path.write_bytes(png())
    for body in ({"image": str(path)}, {"text": str(path)}, str(path)):
        assert server.post("/models/flowers", body).status == 415
    form, headers = multipart([], {"image": str(path)})
    refused = server.send("POST", "/models/flowers", form, headers)
    assert refused.status == 422 and "no file" in refused.message
    raw = server.send("POST", "/models/flowers", str(path).encode(), {"content-type": "image/png"})
    assert raw.status == 422 and "not an image" in raw.message
    assert server.get(f"/models/..%2F..%2F{path.name}").status == 404
    adapter = server.post("/models/classifier", {"text": "a", "adapter": str(path)})
    assert adapter.status == 422


def test_wrong_images(server):
    def post(content: bytes, kind: str = "image/png", query: str = "") -> Any:
        return server.send("POST", f"/models/flowers{query}", content, {"content-type": kind})

    assert post(b"").status == 422
    assert post(png()[:60]).status == 422
    assert post(png(), "text/plain").status == 415
    assert post(png(), "multipart/form-data").status == 400
    assert post(png(), "multipart/form-data; boundary=x").status in (400, 422)
    wrong = post(png(), query="?top_k=many")
    assert wrong.status == 422 and "top_k" in wrong.message
    body, headers = multipart([("picture", png())])
    wrong = server.send("POST", "/models/flowers", body, headers)
    assert wrong.status == 422 and "'picture'" in wrong.message


def test_charset_of_a_form(server):
    """Python needs a time that is quadratic for some charsets, during which no other request is answered."""
    body, headers = multipart([("image", png())], {"top_k": "1"})
    for charset, status in (("UTF-8", 200), ("utf8", 200), ("punycode", 415), ("utf-16", 415), ("none", 415)):
        kind = f"{headers['content-type']}; charset={charset}"
        assert server.send("POST", "/models/flowers", body, {"content-type": kind}).status == status


def test_descriptions(server):
    models = server.get("/models").json["models"]
    assert [one["name"] for one in models] == list(server.application.models.folders)
    flowers = server.get("/models/flowers").json
    assert flowers["labels"] == ["daisy", "rose", "tulip"] and flowers["input"] == "image"
    assert json.loads(json.dumps(flowers["request"])) == flowers["request"]
    unknown = server.get("/models/flower")
    assert unknown.status == 404 and "'flowers'" in unknown.message
    assert server.get("/nothing").status == 404
    wrong = server.send("PUT", "/models/flowers")
    assert wrong.status == 405 and wrong.headers["allow"] == "GET, POST, HEAD"
