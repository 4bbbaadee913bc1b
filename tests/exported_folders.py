"""Exported folders that tests share: each is exported once per process, and no test may change it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Export = tuple[Any, dict[str, Any]]  # a model and the options of its export
LABELS = ["daisy", "rose", "tulip"]
CORPUS = ["the cat sat on the mat", "Ada lives in London"] * 3


def _vit() -> Export:
    import keras_tx
    from tests.drawing import redraw

    return redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=len(LABELS))), {"labels": LABELS}


def _wide_vit() -> Export:
    from tests.quantizing.folders import vit

    return vit(), {"verify": False}


def _gpt() -> Export:
    import keras_tx
    from keras_tx.processing import train_byte_bpe
    from tests.drawing import redraw

    return redraw(keras_tx.gpt("pico", processing=train_byte_bpe(CORPUS, size=280))), {}


def _translation() -> Export:
    import keras_tx
    from keras_tx.processing import train_unigram
    from tests.drawing import redraw

    words = train_unigram(["uno due tre", "one two three"] * 2, 30, sentinels=0)
    model = keras_tx.transformer("marian", depth=1, width=16, num_heads=2, mlp_dim=16, processing=words)
    return redraw(model), {"task": "translation", "verify": False}


def _multiple_choice() -> Export:
    import keras_tx
    from tests.export.small_bert import tiny
    from tests.wordpiece import wordpiece

    return tiny(keras_tx.MultipleChoiceHead()), {"tokenizer": wordpiece(), "verify": False}


def _bert(head: str) -> Callable[[], Export]:
    def make() -> Export:
        from tests.export.small_bert import HEADS, tiny
        from tests.wordpiece import wordpiece

        return tiny(HEADS[head], max_length=24), {"tokenizer": wordpiece(), "verify": head == "classifier"}

    return make


BERTS = ("none", "masked", "next", "pretraining", "classifier", "regression", "tags", "span", "sentence")
EXPORTS: dict[str, Callable[[], Export]] = {
    "vit": _vit,
    "gpt": _gpt,
    "translation": _translation,
    "multiple choice": _multiple_choice,
    "wide vit": _wide_vit,  # kernels large enough to be quantized
    **{f"bert, {head}": _bert(head) for head in BERTS},
}


class Exported(NamedTuple):
    model: Any
    path: Path


class ExportedFolders:
    """Models and their folders by name, exported on first use."""

    def __init__(self, parent: Path):
        self._parent = parent
        self._exports: dict[str, Exported] = {}
        self._states: dict[str, dict[str, tuple[int, int]]] = {}

    def __getitem__(self, name: str) -> Exported:
        if name not in self._exports:
            from keras_tx_onnx import export_onnx

            model, options = EXPORTS[name]()
            path = self._parent / name.replace(", ", "_").replace(" ", "_")
            export_onnx(model, path, **options)
            self._exports[name] = Exported(model, path)
            self._states[name] = _state(path)
        return self._exports[name]

    def copy(self, name: str, path: Path) -> Path:
        """A copy that a test may change."""
        return Path(shutil.copytree(self[name].path, path))

    def changed(self) -> list[str]:
        """The names of the folders that were changed since the last call; they are exported anew."""
        names = [name for name, state in self._states.items() if _state(self._exports[name].path) != state]
        for name in names:
            shutil.rmtree(self._exports.pop(name).path, ignore_errors=True)
            del self._states[name]
        return names


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """The size and the time of change of each file; permissions would not stop root from writing."""
    stats = {path.relative_to(folder).as_posix(): path.stat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
