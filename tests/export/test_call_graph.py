"""The exporter files that an export enters, and the cycles of calls between them."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import keras_tx
import keras_tx_onnx
from keras_tx_onnx import export_onnx

ROOT = Path(keras_tx_onnx.__file__).parent
# The call and its targets; 10 files that read Keras's graph and open layers, one only if a test has imported
# keras-hub; 8 with the nodes of the layers, 7 of the ONNX graph, 4 of the interface, 5 of the verification,
# and the tolerances. The target is 25.
FILES = 37


def file_of(frame: FrameType) -> str | None:
    """The file of the exporter that a frame runs, without the code of modules, which only runs in imports."""
    path = Path(frame.f_code.co_filename)
    if frame.f_code.co_name == "<module>" or not path.is_relative_to(ROOT):
        return None
    return path.relative_to(ROOT).as_posix()


def is_standard_library(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name in sys.stdlib_module_names and name != "__main__"


class Calls:
    """Records the files that are entered, and the calls between them.

    A call through contextlib or functools counts; one that Keras makes, such as of a replaced function, is
    Keras's.
    """

    def __init__(self):
        self.files: set[str] = set()
        self.targets: defaultdict[str, set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        target = file_of(frame) if event == "call" else None
        if target is None:
            return
        self.files.add(target)
        caller = frame.f_back
        while caller is not None and is_standard_library(caller):
            caller = caller.f_back
        source = None if caller is None else file_of(caller)
        if source not in (None, target):
            self.targets[source].add(target)  # type: ignore[index]

    def reachable(self, start: str) -> set[str]:
        reached: set[str] = set()
        pending = [start]
        while pending:
            new = self.targets.get(pending.pop(), set()) - reached
            reached |= new
            pending += new
        return reached

    def cycles(self) -> list[set[str]]:
        """The strongly connected components of more than one file."""
        reached = {file: self.reachable(file) for file in self.files}
        components = {
            frozenset(x for x in self.files if x in reached[file] and file in reached[x])
            for file in self.files
        }
        return [set(component) for component in components if len(component) > 1]


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> Calls:
    folder = tmp_path_factory.mktemp("vit")
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    export_onnx(model, folder / "first")  # imports what is imported lazily
    calls = Calls()
    sys.setprofile(calls)
    try:
        export_onnx(model, folder / "second")
    finally:
        sys.setprofile(None)
    return calls


def test_an_export_enters_few_files(calls: Calls):
    assert len(calls.files) <= FILES, sorted(calls.files)


def test_calls_between_files_form_no_cycle(calls: Calls):
    """Where opening a layer walks again, the walk calls itself within its file."""
    edges = [
        f"{source} -> {target}"
        for cycle in calls.cycles()
        for source in sorted(cycle)
        for target in sorted(calls.targets[source] & cycle)
    ]
    assert not edges
