"""Hugging Face's ViT, DeiT and DINOv2 have equal outputs here, and round trips keep all tensors."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

import keras_tx
from keras_tx import ClassifierHead, DistilledClassifierHead, from_checkpoint
from keras_tx.errors import ConfigError
from keras_tx.models.checkpoint_saving import save_checkpoint
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close
from tests.weights.vit_comparing import compare, compare_resized, expected_of

GOLDEN = Path(__file__).parents[1] / "golden" / "vit"
FOLDERS = sorted(path.name for path in GOLDEN.glob("transformers*"))
LIVE = [
    "vit",
    "vit_body",
    "vit_no_qkv_bias",
    "deit",
    "deit_plain",
    "deit_body",
    "dinov2",
    "dinov2_body",
    "dinov2_swiglu",
    "dinov2_without_mask_token",
    "registers",
    "registers_body",
    "dinov3",
    "dinov3_gated",
    "dinov3_biases",
    "dinov3_no_biases",
]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint that a test may change."""
    return shutil.copytree(GOLDEN / "transformers4_vit", tmp_path / "checkpoint")


def changed(folder: Path, file: str = "config.json", **fields: Any) -> Path:
    path = folder / file
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | fields))
    return folder


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def assert_same_tensors(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name].dtype == value.dtype
        np.testing.assert_array_equal(mine[name], value, err_msg=name)


@pytest.mark.parametrize("name", FOLDERS)
def test_equals_the_golden_file(name: str):
    compare(from_checkpoint(GOLDEN / name), expected_of(GOLDEN / name))


@pytest.mark.parametrize("name", FOLDERS)
def test_positions_for_another_image_size(name: str):
    def load(**options: Any) -> Any:
        return from_checkpoint(GOLDEN / name, **options)

    compare_resized(load, expected_of(GOLDEN / name))


@pytest.mark.parametrize("name", [name for name in FOLDERS if name.startswith("transformers4")])
def test_in_and_out_again_is_bit_equal(name: str, tmp_path):
    model = from_checkpoint(GOLDEN / name)
    back = save_checkpoint(model, tmp_path / "back")
    assert_same_tensors(tensors_of(back), tensors_of(GOLDEN / name))
    again = from_checkpoint(back)
    assert (again.config, again.head) == (model.config, model.head)


def reference() -> Any:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    from tests.golden import make_vit

    return make_vit


@pytest.mark.parametrize("case", LIVE)
def test_equals_transformers(case: str, tmp_path):
    """Outputs, positions for other sizes, the way back, and the names of both versions of transformers."""
    make_vit = reference()
    assert list(make_vit.CASES) == LIVE
    written = make_vit.write_transformers(case, tmp_path / "files", seed=1)
    expected = expected_of(tmp_path / "files")
    model = from_checkpoint(tmp_path / "files")
    compare(model, expected)
    compare_resized(lambda **options: from_checkpoint(tmp_path / "files", **options), expected)

    back = save_checkpoint(model, tmp_path / "back")
    assert_same_tensors(tensors_of(back), tensors_of(tmp_path / "files"))
    opened, info = type(written).from_pretrained(back, output_loading_info=True)
    assert not any(info.values()), info
    opened.set_attn_implementation("eager")
    np.testing.assert_array_equal(make_vit.of_transformers(opened, 1)["output"], expected["output"])

    make_vit.write_transformers(case, tmp_path / "classes", seed=1, names_of_classes=True)
    other = from_checkpoint(tmp_path / "classes")
    for mine, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


DINOV3 = {"positions": "rotary", "layer_scale": 0.5}
OURS = {
    "vit": {"num_classes": 3},
    "vit not square": {"num_classes": 3, "image_size": (8, 12), "channels": 1},
    "vit with a remainder": {"num_classes": 3, "image_size": (9, 13), "drop_remainder": True},
    "vit features": {},
    "vit tokens": {"pooling": "none"},
    "vit pooler": {"pooler": "tanh", "pooler_dim": 5},
    "deit": {"head": DistilledClassifierHead(3), "distillation": True},
    "dinov2": {"layer_scale": 0.5, "num_classes": 3, "pooling": "token+average", "depth": 2},
    "dinov2 features": {"layer_scale": 0.5, "mask_token": True, "drop_path": 0.1},
    "dinov2 with a remainder": {"layer_scale": 0.5, "image_size": 9, "drop_remainder": True},
    "registers": {"layer_scale": 0.5, "registers": 3, "pooling": "token+average", "num_classes": 3},
    "registers and mask": {"layer_scale": 0.5, "registers": 3, "mask_token": True},
    "dinov3": {**DINOV3, "registers": 3, "mask_token": True, "key_bias": False, "norm_epsilon": 1e-5},
    "dinov3 without registers": {**DINOV3, "activation": "geglu_exact", "image_size": (8, 12)},
    "dinov3 with a remainder": {**DINOV3, "qkv_bias": False, "image_size": 9, "drop_remainder": True},
}


FOLDED = {  # what Dinov2's classes, which have LayerScale, cannot be like
    "layer_scale and the token alone": {"layer_scale": 0.5, "num_classes": 3, "depth": 2},
    "layer_scale and a rectangle": {"layer_scale": 0.5, "image_size": (8, 12)},
    "layer_scale and an mlp": {"layer_scale": 0.5, "mlp_dim": 33, "pooler": "tanh"},
    "layer_scale and deit": {
        "layer_scale": 0.5,
        "head": DistilledClassifierHead(3),
        "distillation": True,
        "qkv_bias": False,
    },
}


@pytest.mark.parametrize("name", [*OURS, *FOLDED])
def test_saved_model_opens_in_transformers_without_a_warning(name: str, tmp_path, caplog):
    reference()
    import torch
    import transformers

    model = redraw(keras_tx.vit("Mu/2", **{"image_size": 8, **(OURS | FOLDED)[name]}))
    folder = save_checkpoint(model, tmp_path / "saved")
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    transformers.utils.logging.enable_propagation()
    opened, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert not caplog.records
    images = draw(2, *model.config.size, model.config.channels)
    with torch.no_grad():
        result = opened.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    theirs = result.logits if model.head is not None else result.last_hidden_state
    if model.head is None and model.config.pooling == "token":
        theirs = result.pooler_output if model.config.pooler else theirs[:, 0]
    assert_close(as_numpy(model(images)), theirs.numpy())


@pytest.mark.parametrize("name", OURS)
def test_saved_model_loads_again(name: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", **{"image_size": 8, **OURS[name]}))
    if model.config.mask_token:
        model.get_layer("mask_token").token.assign(draw(model.config.width))
    back = from_checkpoint(
        save_checkpoint(model, tmp_path / "saved"), **({"pooling": "none"} if name == "vit tokens" else {})
    )
    assert (back.config, back.head) == (model.config, model.head)
    for mine, theirs in zip(model.weights, back.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_scale_becomes_part_of_the_dense_layers_before_it(name: str, dtype: str, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", **{"image_size": 8, **FOLDED[name]}, dtype=dtype))
    back = from_checkpoint(save_checkpoint(model, tmp_path / "saved"), dtype=dtype)
    assert (back.config, back.head) == (dataclasses.replace(model.config, layer_scale=None), model.head)
    ours = {weight.path: as_numpy(ops.cast(weight, "float32")) for weight in model.weights}
    for index in range(model.config.depth):
        for half, dense in (("attention", "attention/output"), ("feed_forward", "feed_forward/down")):
            scale = ours.pop(f"block_{index}/{half}_scale")
            for name in ("kernel", "bias"):
                ours[f"block_{index}/{dense}/{name}"] *= scale
    assert ours.keys() == {weight.path for weight in back.weights}
    for weight in back.weights:
        expected = ops.cast(ops.cast(ours[weight.path], weight.dtype), "float32")
        np.testing.assert_array_equal(as_numpy(ops.cast(weight, "float32")), as_numpy(expected))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pooling": "average", "num_classes": 3}, "pooling='average'"),
        ({"pooling": "none", "class_token": False}, "class_token=False"),
        ({"positions": "sine-cosine"}, "positions='sine-cosine'"),
        ({"activation": "swiglu"}, "activation='swiglu'"),
        ({"patch_bias": False}, "patch_bias=False"),
        ({"pre_norm": True}, "pre_norm=True"),
        ({"stem": "convolutions"}, "stem='convolutions'"),
        ({"qk_norm": True, "num_classes": 3}, "qk_norm=True"),
        ({"qk_norm": True, "layer_scale": 0.1}, "qk_norm=True"),
        ({"pooled_norm": True}, "pooled_norm=True"),
        ({"pooler": "tanh", "num_classes": 3}, "pooler='tanh'"),
        ({"registers": 2}, "registers=2 without layer_scale"),
        ({"registers": 2, "distillation": True}, "registers=2 with a distillation token"),
        ({"layer_scale": 0.1, "registers": 2, "num_classes": 3}, "pooling='token' with layer_scale=0.1"),
        ({"layer_scale": 0.1, "registers": 2, "image_size": (8, 12)}, r"image_size=\(8, 12\)"),
        ({"layer_scale": 0.1, "registers": 2, "mlp_dim": 33}, "mlp_dim=33 with width=32"),
        ({"layer_scale": 0.1, "mask_token": True, "num_classes": 3}, "pooling='token' with layer_scale=0.1"),
        ({"layer_scale": 0.1, "activation": "swiglu", "image_size": (8, 12)}, r"image_size=\(8, 12\)"),
        ({"mask_token": True}, "mask_token=True"),
        ({"key_bias": False}, "key_bias=False"),
        ({"positions": "rotary"}, "layer_scale=None"),
        ({**DINOV3, "num_classes": 3}, "a ClassifierHead with positions='rotary'"),
        ({**DINOV3, "pooling": "average"}, "pooling='average'"),
        ({**DINOV3, "distillation": True}, "distillation=True"),
        ({**DINOV3, "pooler": "tanh"}, "pooler='tanh'"),
        ({**DINOV3, "dropout": 0.1}, r"dropout=0\.1"),
    ],
    ids=str,
)
def test_options_that_no_class_supports_raise(options: dict, reason: str, tmp_path):
    model = keras_tx.vit("Mu/2", **{"image_size": 8, **options})
    with pytest.raises(ConfigError, match=reason):
        save_checkpoint(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_backbone_without_its_pooler(tmp_path):
    """A classifier of theirs has none; tokens have none; and where there is none, zeros are written."""
    folder = GOLDEN / "transformers4_vit_body"
    with pytest.warns(UserWarning, match=r"logits/kernel.*; .*pooler.dense"):
        model = from_checkpoint(folder, head=ClassifierHead(5))
    assert model.config.pooler is None
    with pytest.warns(UserWarning, match="pooler.dense"):
        tokens = from_checkpoint(folder, pooling="none")
    expected = expected_of(folder)
    assert_close(as_numpy(tokens(expected["images"])), expected["tokens"])
    with pytest.warns(UserWarning, match="pooler.dense"):
        token = from_checkpoint(folder, pooler=None)
    assert from_checkpoint(save_checkpoint(token, tmp_path / "saved")).config.pooler is None


def test_new_head_on_a_loaded_backbone():
    with pytest.warns(UserWarning, match=r"logits/kernel.*; .*classifier.weight"):
        model = from_checkpoint(GOLDEN / "transformers4_vit", head=ClassifierHead(5))
    assert model.output_shape == (None, 5)
    with pytest.warns(UserWarning, match="cls_classifier.weight"):
        plain = from_checkpoint(GOLDEN / "transformers4_deit", head=None)
    expected = expected_of(GOLDEN / "transformers4_deit")
    assert_close(as_numpy(plain(expected["images"])), expected["tokens"][:, 0])
    with pytest.warns(UserWarning, match="logits/kernel"):
        wide = from_checkpoint(GOLDEN / "transformers5_deit_body", head=ClassifierHead(4))
    assert wide.config.pooling == "token"
    with pytest.warns(UserWarning, match="classifier"):
        features = from_checkpoint(GOLDEN / "transformers4_dinov2", head=None)
    assert features.config.pooling == "token"


def test_weights_of_a_variant(folder):
    options = {"patch_size": 2, "width": 8, "depth": 2, "mlp_dim": 12, "num_heads": 2}
    expected = expected_of(folder)
    model = keras_tx.vit("Mu/2", num_classes=3, weights=folder / "model.safetensors", image_size=6, **options)
    compare(model, expected)
    with pytest.raises(ConfigError, match="variant='Mu/2' has width=32.*has width=8"):
        keras_tx.vit("Mu/2", num_classes=3, weights=folder)


def test_labels_are_kept(folder, tmp_path):
    names = ["crane", "rose", "tulip"]
    labels = {"id2label": dict(enumerate(names)), "label2id": {x: i for i, x in enumerate(names)}}
    model = from_checkpoint(changed(folder, **labels))
    assert model.head == ClassifierHead(3, labels=("crane", "rose", "tulip"))
    written = json.loads((save_checkpoint(model, tmp_path / "saved") / "config.json").read_text())
    assert written["id2label"] == {"0": "crane", "1": "rose", "2": "tulip"}


def test_two_classes_of_one_name(folder):
    with pytest.warns(UserWarning, match="several classes 'crane'"):
        model = from_checkpoint(changed(folder, id2label={"0": "crane", "1": "rose", "2": "crane"}))
    assert model.head.labels == ("crane (0)", "rose", "crane (2)")


def test_the_image_transform(folder):
    fields = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 6, "width": 6},
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "resample": 3,
    }
    model = from_checkpoint(changed(folder, "preprocessor_config.json", **fields))
    expected = keras_tx.ImageTransform(6, resample="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert model.processing == expected
    larger = from_checkpoint(folder, image_size=(8, 10)).processing
    assert (larger.size, larger.mean) == ((8, 10), expected.mean)


def test_an_image_transform_that_crops_warns(folder):
    """DeiT's and DINOv2's: the short side to 256, and the middle of it."""
    fields = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 8},
        "do_center_crop": True,
        "crop_size": {"height": 6, "width": 6},
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "resample": 3,
    }
    changed(folder, "preprocessor_config.json", **fields)
    with pytest.warns(UserWarning, match=r"BitImageProcessor.*6 x 6"):
        model = from_checkpoint(folder)
    expected = keras_tx.ImageTransform(6, resample="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert model.processing == expected


@pytest.mark.parametrize(
    ("golden", "fields", "message"),
    [
        (
            "vit",
            {"hidden_act": "mish"},
            "hidden_act='mish'.*'gelu'",
        ),
        ("vit", {"qkv_bias": "yes"}, "qkv_bias='yes'"),
        ("vit", {"head_dim": 5}, "head_dim=5.*head_dim=4"),
        ("vit", {"is_decoder": True}, "is_decoder=True"),
        ("vit", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("vit", {"quantization_config": {}}, "quantization_config"),
        ("vit", {"patch_size": [2, 3, 1]}, r"patch_size=\[2, 3, 1\]"),
        ("dinov2", {"patch_size": [2, 3]}, r"patch_size=\[2, 3\]"),
        ("vit", {"image_size": "6"}, "image_size='6'"),
        ("vit", {"image_size": 1}, "config.json: image_size=1 is smaller than patch_size=2"),
        (
            "vit",
            {"num_attention_heads": 3},
            "config.json: hidden_size=8 is not divisible by num_attention_heads=3",
        ),
        ("vit", {"num_attention_heads": 0}, "config.json: num_attention_heads is 0"),
        ("vit", {"hidden_size": -8}, "hidden_size=-8"),
        ("vit", {"num_hidden_layers": 10**12}, "num_hidden_layers|depth"),
        ("vit", {"hidden_dropout_prob": 2}, "hidden_dropout_prob is 2"),
        ("vit", {"layer_norm_eps": None}, "layer_norm_eps=None"),
        ("vit", {"architectures": None}, "architectures"),
        ("vit", {"architectures": ["ViTForMaskedImageModeling"]}, "'ViTForMaskedImageModeling'.*head=None"),
        ("deit", {"problem_type": "regression"}, "problem_type='regression'.*3 labels"),
        ("vit", {"id2label": {"0": "yes"}}, "RegressionHead"),
        ("vit", {"num_hidden_layers": 3}, r"missing: vit.encoder.layer.2"),
        ("vit", {"intermediate_size": 13}, r"shape: vit.encoder.layer.0.intermediate.dense.weight is 12 x 8"),
        ("vit", {"qkv_bias": False}, r"not expected: vit.encoder.layer.0.attention.attention.key.bias"),
        ("vit", {"image_size": 8}, "shape: vit.embeddings.position_embeddings is 1 x 10 x 8.*1 x 17 x 8"),
        ("vit_body", {"pooler_act": "relu"}, "pooler_act='relu'"),
        ("dinov2", {"image_size": [6, 8]}, r"image_size=\[6, 8\]"),
        ("dinov2", {"use_swiglu_ffn": True}, "missing: dinov2.encoder.layer.0.mlp.weights_in.weight"),
        ("registers", {"num_register_tokens": 0}, "num_register_tokens=0"),
        ("registers", {"num_register_tokens": 3}, "shape: .*register_tokens is 1 x 2 x 8"),
        ("dinov3", {"num_register_tokens": 3}, "shape: .*register_tokens is 1 x 2 x 8"),
        ("dinov3", {"num_register_tokens": 0}, "not expected: embeddings.register_tokens"),
        ("dinov3", {"query_bias": False}, "value_bias=True; only value_bias equal to query_bias=False"),
        ("dinov3", {"key_bias": True}, "missing: layer.0.attention.k_proj.bias"),
        ("dinov3", {"proj_bias": False}, "proj_bias=False"),
        ("dinov3", {"mlp_bias": False}, "mlp_bias=False"),
        ("dinov3", {"hidden_act": "silu"}, "hidden_act='silu', which is not supported"),
        ("dinov3", {"use_gated_mlp": True}, "missing: layer.0.mlp.gate_proj"),
        ("dinov3", {"rope_theta": 0}, "rope_theta is 0"),
        ("dinov3", {"num_attention_heads": 4}, "head.*divisible by 4, not 8 / 4"),
        ("dinov3", {"architectures": ["DINOv3ViTForImageClassification"]}, "DINOv3ViTForImage.*head=None"),
        (
            "dinov3",
            {"model_type": "dinov3_convnext"},
            "'dinov3_convnext', which is not supported.*dinov3_vit",
        ),
    ],
    ids=str,
)
def test_unsupported_configs_raise(golden: str, fields: dict, message: str, tmp_path):
    folder = shutil.copytree(GOLDEN / f"transformers4_{golden}", tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=message):
        from_checkpoint(changed(folder, **fields))


def test_a_pooler_of_another_width(folder, tmp_path):
    """Both the config and the tensors say so."""
    folder = shutil.copytree(GOLDEN / "transformers4_vit_body", tmp_path / "body")
    state = tensors_of(folder)
    state["pooler.dense.weight"], state["pooler.dense.bias"] = draw(5, 8), draw(5)
    save_file(state, folder / "model.safetensors")
    model = from_checkpoint(changed(folder, pooler_output_size=5))
    assert model.output_shape == (None, 5)


@pytest.mark.parametrize("name", ["transformers4_vit", "transformers4_registers"])
def test_a_loaded_model_for_another_image_size(name: str):
    """at_image_size resizes as loading does."""
    loaded = from_checkpoint(GOLDEN / name, image_size=4)
    copied = from_checkpoint(GOLDEN / name).at_image_size(4)
    for mine, theirs in zip(loaded.weights, copied.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


def test_the_same_number_of_positions_in_another_grid(tmp_path):
    """4 x 4 patches to 2 x 8: as many rows, but others."""
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    folder = save_checkpoint(model, tmp_path / "saved")
    wide = from_checkpoint(folder, image_size=(4, 16))
    tables = [as_numpy(x.get_layer("positions").table) for x in (model, wide)]
    assert tables[0].shape == tables[1].shape
    expected = as_numpy(model.at_image_size((4, 16)).get_layer("positions").table)
    np.testing.assert_array_equal(tables[1], expected)
    assert not np.array_equal(tables[0], tables[1])


def test_a_checkpoint_without_other_tensors_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for name in FOLDERS:
            from_checkpoint(GOLDEN / name)
