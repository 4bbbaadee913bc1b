"""--reload: new exports are loaded without a lost request, and damaged ones are refused."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import FolderError
from keras_tx.serving.http.folder_watch import folder_state
from tests.runtime.conftest import generic_folder, make_image_folder  # noqa: F401
from tests.runtime.test_replacement import BEST, LABELS, WEIGHTS_OF
from tests.serving.running_server import RunningServer, running, until

SECONDS = 0.05
RED = np.full((4, 6, 3), (255, 0, 0), "uint8")


@pytest.fixture
def versions(make_image_folder) -> dict[str, Path]:  # noqa: F811
    """Two exports of which the best labels of a red image differ."""
    return {
        name: make_image_folder(name=name, labels=LABELS[name], weights=WEIGHTS_OF[name], external=True).path
        for name in ("old", "new")
    }


@pytest.fixture
def served(versions, tmp_path) -> Path:
    return Path(shutil.copytree(versions["old"], tmp_path / "served"))


@pytest.fixture
def server(served) -> Iterator[RunningServer]:
    with running({"flowers": served}, reload_seconds=SECONDS) as one:
        yield one


def replace(target: Path, version: Path) -> None:
    with atomic_directory(target, FolderError) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)


def red() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(RED).save(file, "png")
    return file.getvalue()


def best(server: RunningServer, image: bytes) -> str:
    answer = server.send("POST", "/models/flowers", image, {"content-type": "image/png"})
    assert answer.status == 200, answer.body
    return answer.json["predictions"][0]["label"]


def reloads(server: RunningServer, result: str) -> Callable[[], float]:
    name = f'keras_tx_reloads_total{{model="flowers",result="{result}"}}'
    return lambda: server.metrics().get(name, 0)


def test_replacements_under_load(server, served, versions):
    image, stop = red(), threading.Event()
    labels: list[str] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                labels.append(best(server, image))
        except BaseException as error:
            errors.append(error)

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    first = server.application.models.get("flowers")
    for number, name in enumerate(("new", "old", "new"), 1):
        replace(served, versions[name])
        until(lambda number=number: reloads(server, "loaded")() == number)
        assert best(server, image) == BEST[name]
    stop.set()
    for client in clients:
        client.join()
    assert errors == [] and set(labels) == set(BEST.values())
    until(lambda: first.model.session._session is None)  # its memory is freed
    assert server.get("/models/flowers").json["labels"] == list(LABELS["new"])


def damage_data(folder: Path) -> None:
    """The same size: `load` alone does not see it."""
    data = folder / contract.MODEL_DATA
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))


def damage_graph(folder: Path) -> None:
    (folder / contract.MODEL).write_bytes(b"not a graph")


def remove_a_file(folder: Path) -> None:
    (folder / contract.CONFIG).unlink()


@pytest.mark.parametrize("damage", [damage_data, damage_graph, remove_a_file])
def test_damaged_export_is_refused(server, served, versions, tmp_path, damage):
    damaged = Path(shutil.copytree(versions["new"], tmp_path / "damaged"))
    damage(damaged)
    replace(served, damaged)
    until(lambda: reloads(server, "refused")() == 1)
    assert best(server, red()) == BEST["old"]
    assert server.get("/v2/health/ready").status == 200
    time.sleep(6 * SECONDS)
    assert reloads(server, "refused")() == 1  # not loaded again and again
    replace(served, versions["new"])
    until(lambda: reloads(server, "loaded")() == 1)
    assert best(server, red()) == BEST["new"]


def test_folder_that_is_missing_for_a_while(server, served, versions):
    shutil.rmtree(served)
    time.sleep(4 * SECONDS)
    assert best(server, red()) == BEST["old"]
    shutil.copytree(versions["new"], served)
    until(lambda: reloads(server, "loaded")() == 1)
    assert best(server, red()) == BEST["new"]


def test_requests_of_the_old_model_are_answered(server, served, versions, monkeypatch):
    """A request that runs during the replacement."""
    from keras_tx.serving.http import model_set

    run, inside, go = model_set.ServedModel._run, threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return run(*arguments)

    monkeypatch.setattr(model_set.ServedModel, "_run", held)
    labels: list[str] = []
    client = threading.Thread(target=lambda: labels.append(best(server, red())))
    client.start()
    assert inside.wait(60)
    replace(served, versions["new"])
    until(lambda: reloads(server, "loaded")() == 1)
    go.set()
    client.join()
    assert labels == [BEST["old"]]


def test_state_changes_with_any_file(served):
    before = folder_state(served)
    assert before == folder_state(served)
    (served / contract.CONFIG).write_text("{} ")
    assert folder_state(served) != before
    assert folder_state(served / "nothing") == ()
