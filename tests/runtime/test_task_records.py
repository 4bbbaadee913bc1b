"""Task records: each names its class, and adding a task takes one module."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_tx import contract, runtime
from keras_tx.runtime import load
from keras_tx.runtime.tasks import all_tasks, tasks_named
from keras_tx.runtime.tasks.base import LoadedModel, RunOptions, Task

VERBS = {"image": {"classify", "embed", "segment", "detect"}, "prompt": {"generate"}, "arrays": {"run"}}
VERBS["text"] = {"classify", "embed", "tag", "answer", "choose", "fill", "generate", "translate", "summarize"}
SHARED_DEFAULTS = {"top_k": 5, "batch_size": 32, "progress": False, "overlap": None}

BRIGHTNESS = """
import numpy as np

from keras_tx.runtime.tasks.base import Task
from keras_tx.runtime.tasks.image_task import ImageTask


class BrightnessMeter(ImageTask):
    def __init__(self, folder, session):
        super().__init__(folder, session, ("brightness",))

    def measure(self, images, *, batch_size=32):
        return [float(np.mean(value)) for value in self.run_images(images, batch_size)]

    __call__ = measure


def answer(model, images, options):
    return [{"brightness": value} for value in model.measure(list(images))]


def render(answer, draw_bar):
    yield f"  brightness {answer['brightness']:.3f}"


TASK = Task("image-brightness", BrightnessMeter, "image", answer=answer, render=render)
"""


def task_id(task: Task) -> str:
    return getattr(task.runtime, "__name__", "")


@pytest.mark.parametrize("task", all_tasks(), ids=task_id)
def test_record_names_a_public_class_whose_call_is_its_verb(task: Task):
    kind = task.runtime
    assert inspect.isclass(kind) and issubclass(kind, LoadedModel)
    assert getattr(runtime, kind.__name__) is kind
    verbs = [name for name in VERBS[task.inputs] if hasattr(kind, name)]
    parameters = [inspect.signature(getattr(kind, verb)).parameters for verb in verbs]
    call = inspect.signature(kind.__call__).parameters
    assert any(list(call) == list(one) or "options" in call for one in parameters)
    for names in parameters:
        for name, default in SHARED_DEFAULTS.items():
            if name in names:
                assert (names[name].kind, names[name].default) == (inspect.Parameter.KEYWORD_ONLY, default)


@pytest.mark.parametrize("task", all_tasks(), ids=task_id)
def test_record_is_complete(task: Task):
    runs_on_files = task.inputs in ("image", "text")
    assert (task.answer is not None) == (task.render is not None) == runs_on_files
    options = RunOptions()
    assert all(hasattr(options, name) for name in (*task.options, *task.required))


def test_names_are_those_of_the_contract():
    assert {task.name for task in all_tasks()} == {
        None,
        contract.IMAGE_CLASSIFICATION,
        contract.IMAGE_FEATURES,
        contract.IMAGE_SEGMENTATION,
        contract.OBJECT_DETECTION,
        contract.TEXT_CLASSIFICATION,
        contract.TOKEN_CLASSIFICATION,
        contract.QUESTION_ANSWERING,
        contract.MULTIPLE_CHOICE,
        contract.FILL_MASK,
        contract.FEATURE_EXTRACTION,
        contract.TEXT_GENERATION,
        contract.TEXT2TEXT_GENERATION,
        contract.TRANSLATION,
        contract.SUMMARIZATION,
    }
    assert tasks_named("image-brightness") == []


def test_new_task_is_one_module(tmp_path: Path, monkeypatch, make_image_folder, capsys):
    """It loads, runs, prints and verifies, with no change elsewhere."""
    from PIL import Image

    from keras_tx.cli import main

    tasks = importlib.import_module("keras_tx.runtime.tasks")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "image_brightness.py").write_text(BRIGHTNESS)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(modules)])
    folder = make_image_folder(task="image-brightness", output="brightness", labels=None, raw_pixels=True)
    pixels = np.full((4, 6, 3), 100, "uint8")
    try:
        with load(folder.path, provider="cpu") as model:
            assert type(model).__name__ == "BrightnessMeter"
            (expected,) = model([pixels])
        Image.fromarray(pixels).save(tmp_path / "grey.png")
        assert main(["run", str(folder.path), str(tmp_path / "grey.png")]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"  brightness {expected:.3f}"
        assert main(["verify", str(folder.path)]) == 0
        assert "image-brightness, as BrightnessMeter" in capsys.readouterr().out
    finally:
        sys.modules.pop("keras_tx.runtime.tasks.image_brightness", None)
