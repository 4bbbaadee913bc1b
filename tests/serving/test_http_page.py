"""The page of the server in Chromium: each kind of model, keyboard, phone, keys, and no other origin."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_tx
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx.serving.http.api_keys import ApiKeys
from keras_tx.serving.http.limits import Limits
from keras_tx_onnx import export_onnx
from tests.chromium import Page, browser, needs_chromium
from tests.drawing import redraw
from tests.exported_folders import CORPUS
from tests.serving.running_server import RunningServer, running
from tests.serving.test_http_tasks import png

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def server(exported_folders, tmp_path_factory) -> Iterator[RunningServer]:
    words = dataclasses.replace(train_byte_bpe(CORPUS, size=280), chat_template=TEMPLATE)
    chat = tmp_path_factory.mktemp("chat") / "chat"
    export_onnx(redraw(keras_tx.gpt("pico", processing=words)), chat, verify=False)
    names = {
        "flowers": "vit",
        "reviews": "bert, classifier",
        "squad": "bert, span",
        "minilm": "bert, sentence",
    }
    names |= {"names": "bert, tags", "stories": "multiple choice", "translator": "translation", "poet": "gpt"}
    folders = {name: exported_folders[export].path for name, export in names.items()}
    with running({**folders, "chat": chat}, limits=Limits(max_new_tokens=64)) as one:
        yield one


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


def visit(page: Page, server: RunningServer, path: str = "", **window: int) -> None:
    page.visit(f"http://{server.address}/{path}", **window)
    page.wait_for("document.querySelectorAll('#models input').length == 9")


def choose(page: Page, name: str) -> None:
    page.evaluate(f"document.querySelector('input[value={name}]').click()")


def fill(page: Page, name: str, text: str) -> None:
    page.evaluate(f"document.getElementById('field-{name}').value = {json.dumps(text)}")


def press_run(page: Page, answered: str) -> None:
    page.evaluate("document.getElementById('run').click()")
    page.wait_for(f"!document.getElementById('run').disabled && {answered}")


def problems(page: Page, server: RunningServer) -> list[str]:
    """Errors of the console, and requests to other origins."""
    own = f"request: http://{server.address}/"
    return [one for one in page.problems if not one.startswith(own)]


def answer(page: Page) -> str:
    return page.evaluate("document.getElementById('answer').innerText")


@needs_chromium
def test_image(page, server, tmp_path):
    visit(page, server)
    content = base64.b64encode(png()).decode()
    page.evaluate(  # as if a file were dropped
        f"""(async () => {{
            const bytes = Uint8Array.from(atob("{content}"), (c) => c.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "rose.png", {{ type: "image/png" }}));
            const event = new DragEvent("drop", {{ dataTransfer: data, cancelable: true }});
            document.querySelector(".drop").dispatchEvent(event);
        }})()"""
    )
    page.wait_for("document.querySelectorAll('.bars li').length == 3")
    with load(server.application.models.folders["flowers"], provider="cpu") as model:
        best = model(png())[0]
    assert answer(page).split("\n")[0] == best["label"]
    assert f"{best['score'] * 100:.1f} %" in answer(page)
    page.wait_for("document.querySelector('.drop img').naturalWidth == 8")
    assert problems(page, server) == []


@needs_chromium
@pytest.mark.parametrize(
    ("name", "fields", "shown"),
    [
        ("reviews", {"text": TEXT}, "%"),
        ("squad", {"text": TEXT, "question": "Who sat?"}, "%"),
        ("minilm", {"text": TEXT}, "A vector of shape"),
        ("names", {"text": TEXT}, "cat"),
        ("stories", {"text": TEXT, "choices": "on the mat.\nin London."}, "in London."),
        ("translator", {"text": "uno due"}, ""),
    ],
)
def test_texts(page, server, name, fields, shown):
    visit(page, server, f"#{name}")
    for field, text in fields.items():
        fill(page, field, text)
    press_run(page, "document.getElementById('time').textContent.includes('ms')")
    assert shown in answer(page)
    assert page.evaluate("document.querySelector('.error')") is None
    assert problems(page, server) == []


@needs_chromium
@pytest.mark.parametrize("name", ["poet", "chat"])
def test_tokens_stream(page, server, name):
    visit(page, server, f"#{name}")
    fill(page, "prompt", "the cat")
    fill(page, "max_tokens", "6")
    fill(page, "temperature", "0")
    press_run(page, "document.getElementById('time').textContent.startsWith('6 tokens')")
    with load(server.application.models.folders[name], provider="cpu") as model:
        expected = model.generate("the cat", max_new_tokens=6).text
    assert page.evaluate("document.querySelector('#answer .text span:last-child').textContent") == expected
    path = "v1/chat/completions" if name == "chat" else "v1/completions"
    assert path in page.evaluate("document.querySelector('#command pre').textContent")
    assert problems(page, server) == []


@needs_chromium
def test_keyboard(page, server):
    """Arrow keys select a model, Tab reaches the text, and Ctrl + Enter runs it."""
    visit(page, server)
    page.evaluate("document.querySelector('input[value=flowers]').focus()")
    page.press("ArrowRight")
    assert page.evaluate("location.hash") == "#reviews"
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "field-text"
    page.call("Input.insertText", text=TEXT)
    page.press("Enter", modifiers=2)
    page.wait_for("document.querySelectorAll('.bars li').length == 3")
    for _ in range(3):
        page.press("Tab")
    assert page.evaluate("document.activeElement.tagName") in ("BUTTON", "SUMMARY")


@needs_chromium
def test_phone(page, server, tmp_path):
    visit(page, server, "#reviews", width=360, height=740)
    fill(page, "text", TEXT + " Ada" * 30)
    press_run(page, "document.querySelectorAll('.error, .bars li').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.getElementById('run').getBoundingClientRect().height") >= 44


@needs_chromium
def test_errors_are_shown(page, server):
    visit(page, server, "#squad")
    fill(page, "text", TEXT + " Ada" * 3)
    fill(page, "question", "a " * 400)
    press_run(page, "document.querySelector('.error')")
    assert "422" not in answer(page) and "tokens" in answer(page)
    visit(page, server, "#flowers")
    press_run(page, "document.querySelector('.error')")
    assert "Choose an image" in answer(page)


@needs_chromium
def test_keys(page, exported_folders):
    with running({"flowers": exported_folders["vit"].path}, keys=ApiKeys(["secret"])) as server:
        page.visit(f"http://{server.address}/")
        page.wait_for("document.activeElement.id == 'key'")
        page.call("Input.insertText", text="secret")
        page.press("Enter")
        page.wait_for("document.querySelectorAll('#models input').length == 1")


@needs_chromium
def test_page_of_the_description(page, server):
    page.visit(f"http://{server.address}/docs")
    page.wait_for("document.querySelectorAll('.operation').length > 20")
    assert "/models/reviews" in page.evaluate("document.body.innerText")
    assert problems(page, server) == []


def test_files_of_the_page(server):
    for path in ("", "page.css", "page.js", "docs", "docs.js"):
        file = server.get(f"/{path}")
        assert file.status == 200 and "default-src 'none'" in file.headers["content-security-policy"]
    names = {path.name for path in Path(keras_tx.__file__).parent.joinpath("serving/http").glob("*.[hcj]*s*")}
    assert {"page.css", "page.js", "docs.js"} <= names
