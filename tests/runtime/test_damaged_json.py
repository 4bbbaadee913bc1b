"""A folder with damaged JSON files runs, or raises an error that names the file and the key."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx.runtime
from keras_tx import contract
from keras_tx.errors import KerasTxError
from keras_tx.runtime import load
from tests.exported_folders import ExportedFolders

MISSING = object()
VALUES = [MISSING, None, True, -1, 0, 1.5, "x", "", [], {}, 10**30, [None], {"a": 1}, [1, 2], float("nan")]
Keys = tuple[str | int, ...]


def run(model: Any) -> None:
    if isinstance(model, keras_tx.runtime.ImageClassifier):
        model(np.zeros((8, 8, 3), "uint8"))
    elif isinstance(model, keras_tx.runtime.TextGenerator):
        model.generate([1], max_new_tokens=2)
    elif not isinstance(model, keras_tx.runtime.GenericModel):  # a text model without its tokenizer
        model("the cat")


@pytest.fixture(params=["vit", "bert, sentence", "gpt"])
def folder(request: pytest.FixtureRequest, exported_folders: ExportedFolders) -> Path:
    return exported_folders[request.param].path


def keys_of(value: Any, before: Keys = ()) -> Iterator[Keys]:
    """The path to each value in a JSON file, and to the first two of each list."""
    if before:
        yield before
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield from keys_of(one, (*before, key))


def changed(content: Any, keys: Keys, value: Any) -> Any:
    content = copy.deepcopy(content)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return content


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_damaged_json_raises_file_and_key(folder: Path, count: int, tmp_path: Path):
    manifest = json.loads((folder / contract.MANIFEST).read_text())
    contents = {contract.MANIFEST: manifest}
    for name in manifest["files"]:
        if name.endswith("config.json") or name == contract.SPECIAL_TOKENS:
            contents[name] = json.loads((folder / name).read_text())
    cases = [
        (name, keys, value)
        for name, content in contents.items()
        for keys in keys_of(content)
        for value in VALUES
        if keys[0] != "tiers"
    ]
    refused = 0
    for name, keys, value in random.Random(0).sample(cases, count):
        damaged = tmp_path / folder.name
        shutil.copytree(folder, damaged, dirs_exist_ok=True)
        (damaged / name).write_text(json.dumps(changed(contents[name], keys, value)))
        if name != contract.MANIFEST:  # the manifest is not damaged
            record = contract.describe_file(damaged / name)
            files = {**manifest["files"], name: {"size": record.size, "sha256": record.sha256}}
            (damaged / contract.MANIFEST).write_text(json.dumps({**manifest, "files": files}))
        try:
            with load(damaged, provider="cpu", threads=1) as model:
                run(model)
        except KerasTxError as error:
            refused += 1
            named = name in str(error) or (keys[0] == "files" and str(keys[1]) in str(error))
            assert named and any(str(key) in str(error) for key in keys), (name, keys, value, str(error))
    assert refused > count / 4
