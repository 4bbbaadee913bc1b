"""Compares an encoder with the answers of its class of transformers; see golden/make_encoders.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.drawing import as_numpy
from tests.tolerances import assert_close
from tests.weights.states import quietly_opened

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def compare(model: Any, expected: Mapping[str, np.ndarray], rows: Any = slice(None)) -> None:
    """Outputs, hidden states and attentions at all real tokens; `rows` are those of the outputs of texts."""
    feed = {name: expected[name] for name in INPUTS if name in expected}
    real = expected["attention_mask"].astype(bool)
    outputs = as_numpy(model.with_outputs(hidden_states=True, attentions=True)(model.complete(feed)))
    assert set(outputs) == set(expected) - set(feed)
    for name, mine in outputs.items():
        theirs = expected[name]
        if isinstance(mine, tuple):
            assert len(mine) == len(theirs)
            for one, other in zip(mine, theirs, strict=True):
                if one.ndim == 4:  # (batch, heads, queries, keys)
                    one, other = np.moveaxis(one, 1, 2), np.moveaxis(other, 1, 2)
                assert_close(one[real], other[real])
        elif mine.shape[:2] == real.shape:
            assert_close(mine[real], theirs[real])
        else:
            assert_close(mine[rows], theirs[rows])


def opened(folder: Path, name: str, theirs: Any) -> Any:
    """Their class opens our folder with nothing missing or left over, and has the same tensors."""
    import torch
    import transformers

    again, info = quietly_opened(getattr(transformers, name), folder)
    for problem, names in info.items():
        assert not names, f"{problem}: {names}"
    expected, state = theirs.state_dict(), again.state_dict()
    assert set(state) == set(expected)
    for key, value in expected.items():
        assert torch.equal(state[key], value), key
    return again


def changed(golden: Path, folder: Path, **changes: Any) -> Path:
    """A golden folder with another config."""
    shutil.copytree(golden, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
