"""The ViT gives what Hugging Face's gives, with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy
from tests.models.reference_vit import load
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "vit.npz"


def ours(state: Mapping[str, np.ndarray], **options: object) -> keras_tx.ViT:
    sizes = {"width": 16, "depth": 2, "num_heads": 4, "mlp_dim": 24, "image_size": 12, "patch_size": 4}
    model = keras_tx.vit("Mu/2", classes=3, **sizes, **options)
    load(model, state)
    return model


def compare(state: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], **options: object) -> None:
    model = ours(state, **options)
    names = ["block_0", "block_1", "norm", "logits"]
    parts = keras.Model(model.input, [model.get_layer(name).output for name in names])
    first, second, tokens, logits = as_numpy(parts(expected["images"]))
    assert_close(first, expected["hidden"][0])
    assert_close(second, expected["hidden"][1])
    assert_close(tokens, expected["tokens"])
    assert_close(logits, expected["logits"])


def test_equals_the_golden_file():
    with np.load(GOLDEN, allow_pickle=False) as golden:
        arrays = dict(golden)
    state = {
        name.removeprefix("state/"): value for name, value in arrays.items() if name.startswith("state/")
    }
    compare(state, arrays)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("activation", "hidden_act"), [("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh")])
def test_equals_transformers(seed: int, activation: str, hidden_act: str):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden.make_vit import reference

    compare(*reference(seed, hidden_act), activation=activation)
