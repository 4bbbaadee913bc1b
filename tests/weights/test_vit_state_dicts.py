"""State dicts of timm, of DINOv2's authors and of torchvision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy
from tests.weights.vit_comparing import compare, compare_resized, expected_of

GOLDEN = Path(__file__).parents[1] / "golden" / "vit"
SIZES = {"patch_size": 2, "width": 8, "depth": 2, "mlp_dim": 12, "num_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "timm_plain": {"num_classes": 3},
    "timm_distilled": {"head": keras_tx.DistilledClassifierHead(3), "distillation": True},
    "timm_registers": {
        "num_classes": 3,
        "registers": 2,
        "layer_scale": 0.5,
        "activation": "swiglu",
        "qkv_bias": False,
    },
    "timm_average": {
        "num_classes": 3,
        "pooling": "average",
        "class_token": True,
        "pooled_norm": True,
        "pre_norm": True,
        "patch_bias": False,
    },
    "timm_qk_norm": {"num_classes": 3, "qk_norm": True, "norm_epsilon": 1e-3, "qkv_bias": False},
    "torchvision": {"num_classes": 3},
}
every_case = pytest.mark.parametrize("name", CASES)


def load(name: str, path: Path | None = None, **options: Any) -> Any:
    path = path or GOLDEN / name / "model.safetensors"
    return keras_tx.vit("Mu/2", weights=path, **{"image_size": 6, **SIZES, **CASES[name], **options})


@every_case
def test_equals_the_golden_file(name: str):
    compare(load(name), expected_of(GOLDEN / name))


@every_case
def test_positions_for_another_image_size(name: str):
    compare_resized(lambda **options: load(name, **options), expected_of(GOLDEN / name))


def renamed(name: str, folder: Path, *pairs: tuple[str, str]) -> Path:
    state = load_file(GOLDEN / name / "model.safetensors")
    for old, new in pairs:
        state = {re.sub(old, new, key): value for key, value in state.items()}
    save_file(state, folder / "other.safetensors")
    return folder / "other.safetensors"


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("timm_plain", [("^", "module.")]),
        ("timm_registers", [("reg_token", "register_tokens"), ("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3")]),
        ("torchvision", [("mlp.0", "mlp.linear_1"), ("mlp.3", "mlp.linear_2")]),
    ],
    ids=["data parallel", "DINOv2", "torchvision before 0.13"],
)
def test_other_spellings(name: str, pairs: list[tuple[str, str]], tmp_path):
    compare(load(name, renamed(name, tmp_path, *pairs)), expected_of(GOLDEN / name))


def test_unused_tensors_warn():
    with pytest.warns(UserWarning, match="head.weight"):
        features = load("timm_plain", num_classes=None)
    expected = expected_of(GOLDEN / "timm_plain")
    np.testing.assert_allclose(
        as_numpy(features(expected["images"])), expected["tokens"][:, 0], rtol=1e-4, atol=1e-5
    )
    with pytest.warns(UserWarning, match="logits/kernel.*; .*heads.head.weight"):
        load("torchvision", num_classes=7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("timm_registers", {"registers": 0}, "not expected: reg_token 1 x 2 x 8"),
        ("timm_plain", {"registers": 2}, "missing: reg_token 1 x 2 x 8 for registers/tokens"),
        (
            "timm_registers",
            {"qkv_bias": True},
            r"missing: blocks.0.attn.qkv.bias 24 for block_0/attention/query",
        ),
        ("timm_average", {"pooled_norm": False}, "missing: norm.weight"),
        ("timm_plain", {"positions": "sine-cosine"}, "positions='sine-cosine'"),
        ("timm_qk_norm", {"qk_norm": False}, "not expected: blocks.0.attn.k_norm.bias 4"),
        (
            "timm_plain",
            {"qk_norm": True},
            "missing: blocks.0.attn.q_norm.weight 4 for block_0/attention/query_norm",
        ),
        ("torchvision", {"qk_norm": True}, "torchvision's ViT.*block_0/attention/key_norm"),
        ("torchvision", {"registers": 2}, "torchvision's ViT.*registers/tokens"),
        (
            "torchvision",
            {"pooling": "average"},
            "torchvision's ViT.*class_token/tokens",
        ),
        ("torchvision", {"depth": 1}, "not expected: encoder.layers.encoder_layer_1"),
    ],
    ids=str,
)
def test_other_options_than_the_files(name: str, options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        load(name, **options)


def test_registers_that_have_positions(tmp_path):
    """timm without no_embed_class: a table that is no square behind the class token."""
    state = load_file(GOLDEN / "timm_registers" / "model.safetensors")
    state["pos_embed"] = np.zeros((1, 12, 8), "float32")
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match="shape: pos_embed is 1 x 12 x 8.*need 1 x 10 x 8|needs 1 x 10 x 8"):
        load("timm_registers", tmp_path / "other.safetensors")
