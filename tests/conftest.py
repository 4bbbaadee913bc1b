"""The quick tests (a part of each room that runs in about a minute), and the folders that tests share."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.exported_folders import ExportedFolders

TESTS = Path(__file__).parent
SEED = 0
QUICK = {
    "packaging/test_complexity.py",
    "packaging/test_import_rules.py",
    "layers/test_attention.py",
    "layers/test_class_token.py",
    "layers/test_patch_embedding.py",
    "layers/test_positional_embedding.py",
    "layers/test_token_embedding.py",
    "metrics/test_metrics.py",
    "models/test_gpt.py",
    "models/test_vit.py",
    "processing/test_image.py",
    "processing/test_text.py",
    "generation/test_sampling.py",
    "runtime/test_folder.py",
    "runtime/test_session.py",
    "export/test_graph_walk.py",
    "export/test_token_selection.py",
    "quantizing/test_against_onnxruntime.py",
    "cli/test_cli.py",
    "test_arguments.py",
}


def is_thorough(item: pytest.Item) -> bool:
    return any(mark.name in ("slow", "thorough", "combinations") for mark in item.iter_markers())


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in QUICK and not is_thorough(item):
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    """Keeps what is imported out of garbage collection, which otherwise is a tenth of the time of a run."""
    shorten_compilations()
    shorten_collections()
    gc.set_threshold(10_000, 10, 20)


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    """Makes weights, dropout and shuffling of each test the same in every run and order of tests."""
    random.seed(SEED)
    np.random.seed(SEED)
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(SEED)


@pytest.hookimpl(wrapper=True)  # after the fixtures of the module are finalized
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Keeps what earlier modules left in memory out of the collections of Keras.

    Keras keeps the graphs of models that were trained on TensorFlow, and collects garbage for each variable
    that it removes: quantizing a small model took 30 s at the end of a run.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        shorten_collections()


def shorten_compilations() -> None:
    """On JAX, compiling is most of what the tests take: each operation anew for each shape."""
    as_usual = os.environ.get("KERAS_TX_OPTIMIZE_JAX") == "1"
    if "jax" in sys.modules and os.environ.get("KERAS_BACKEND") == "jax" and not as_usual:
        sys.modules["jax"].config.update("jax_disable_most_optimizations", True)


def shorten_collections() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def exported_folders(tmp_path_factory: pytest.TempPathFactory) -> ExportedFolders:
    """Small exported models by name: "vit", "gpt", "bert, classifier", ... A test that changes one fails."""
    return ExportedFolders(tmp_path_factory.mktemp("exported_folders"))


@pytest.fixture(autouse=True)
def unchanged_folders(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "exported_folders" in request.fixturenames:
        changed = request.getfixturevalue("exported_folders").changed()
        assert not changed, f"the test changed shared folders: {changed}; use exported_folders.copy"


@pytest.fixture
def without_training_packages() -> Callable[[str], list[str]]:
    """A command that runs code in a process in which importing a training package or onnx raises."""

    def command(code: str) -> list[str]:
        guard = (
            "import sys\n"
            "class Guard:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] in {'keras', 'tensorflow', 'torch', 'jax', 'onnx'}:\n"
            "            raise AssertionError(name + ' was imported')\n"
            "sys.meta_path.insert(0, Guard())\n"
        )
        return [sys.executable, "-W", "error", "-c", guard + code]

    return command
