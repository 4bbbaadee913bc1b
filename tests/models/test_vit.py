"""The ViT's sizes, options, saving, and errors."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.vit.model import ViT, ViTConfig, vit
from tests.drawing import as_numpy, draw, redraw
from tests.naming import shown
from tests.tolerances import assert_close

# width, depth, mlp, heads, million parameters, GFLOPs at 224 and at 384, as the papers print them
PAPERS = """
s/28   256  6 1024  8  5.4   0.7    2.0
s/16   256  6 1024  8  5.0   2.2    7.8
S/32   384 12 1536  6   22   2.3    6.9
Ti/16  192 12  768  3  5.5   2.5    9.5
B/32   768 12 3072 12   87   8.7   26.0
S/16   384 12 1536  6   22   9.2   31.2
S/8    384 12 1536  6   21.7   -      -
B/8    768 12 3072 12   85.8   -      -
B/28   768 12 3072 12   87  11.3   30.5
B/16   768 12 3072 12   86  35.1  111.3
L/16  1024 24 4096 16  303 122.9  382.8
L/32  1024 24 4096 16  307     -      -
H/14  1280 32 5120 16  632     -      -
g/14  1408 40 6144 16 1011 533.1 1596.4
G/14  1664 48 8192 16 1843 965.3 2859.9
dinov3-S/16   384 12 1536  6   21 - -
dinov3-S+/16  384 12 1536  6   29 - -
dinov3-B/16   768 12 3072 12   86 - -
dinov3-L/16  1024 24 4096 16  300 - -
dinov3-H+/16 1280 32 5120 20  840 - -
dinov3-7B/16 4096 40 8192 32 6716 - -
"""


@pytest.mark.parametrize("row", [line.split() for line in PAPERS.split("\n") if line], ids=lambda row: row[0])
def test_sizes_are_those_of_the_papers(row: list[str]):
    name, *sizes = row
    config = ViTConfig.variant(name)
    assert [config.width, config.depth, config.mlp_dim, config.num_heads] == [int(n) for n in sizes[:4]]
    cost = keras_tx.cost(config)
    assert cost.params / 1e6 == pytest.approx(float(sizes[4]), rel=0.03)
    if sizes[5] != "-":
        assert cost.flops / 1e9 == pytest.approx(float(sizes[5]), rel=0.03)
        # 384 is no multiple of 14 or 28: the papers count the patches that fit.
        larger = keras_tx.cost(dataclasses.replace(config, image_size=384, drop_remainder=True))
        assert larger.flops / 1e9 == pytest.approx(float(sizes[6]), rel=0.03)


@pytest.mark.parametrize("alias", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"])
def test_torchvision_names(alias: str):
    _, size, patch = alias.split("_")
    assert ViTConfig.variant(alias) == ViTConfig.variant(f"{size.upper()}/{patch}")


def test_exact_parameters_of_b16():
    # torchvision documents 86,567,656 for vit_b_16 with 1,000 classes
    assert keras_tx.cost(ViTConfig.variant("B/16")).params + 768 * 1000 + 1000 == 86_567_656


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"num_classes": 3}, (2, 3)),
        ({}, (2, 32)),
        ({"pooling": "average"}, (2, 32)),
        ({"pooling": "none"}, (2, 17, 32)),
        ({"pooling": "none", "registers": 4}, (2, 21, 32)),
        ({"num_classes": 3, "pooling": "average", "registers": 2}, (2, 3)),
        ({"num_classes": 3, "image_size": (8, 12), "channels": 1}, (2, 3)),
        ({"pooling": "none", "image_size": (9, 13), "drop_remainder": True}, (2, 25, 32)),
        ({"num_classes": 3, "stem": "convolutions"}, (2, 3)),
        ({"pooling": "none", "stem": "convolutions", "patch_size": 4, "image_size": (8, 16)}, (2, 9, 32)),
        ({"pooling": "none", "stem": "convolutions", "patch_size": 6, "image_size": 24}, (2, 17, 32)),
        ({"positions": "none"}, (2, 32)),
        ({"positions": "learned-2d"}, (2, 32)),
        ({"positions": "sine-cosine"}, (2, 32)),
        ({"positions": "fourier"}, (2, 32)),
        ({"positions": "relative"}, (2, 32)),
        ({"positions": "relative", "registers": 2, "distillation": True, "image_size": (8, 12)}, (2, 32)),
        ({"positions": "rotary", "registers": 2, "key_bias": False, "image_size": (8, 12)}, (2, 32)),
        ({"positions": "rotary", "pooling": "average", "num_classes": 3}, (2, 3)),
        ({"pooling": "token+average"}, (2, 64)),
        ({"pooling": "average", "class_token": True, "pooled_norm": True}, (2, 32)),
        ({"pooling": "none", "class_token": False}, (2, 16, 32)),
        ({"pooling": "none", "distillation": True}, (2, 18, 32)),
        ({"pooler": "tanh"}, (2, 32)),
        ({"pooler": "tanh", "pooler_dim": 5}, (2, 5)),
        ({"distillation": True, "head": keras_tx.DistilledClassifierHead(3, dropout=0.1)}, (2, 3)),
        ({"head": keras_tx.MultiLabelHead(4, dropout=0.1)}, (2, 4)),
        ({"pre_norm": True, "patch_bias": False, "qkv_bias": False, "mask_token": True}, (2, 32)),
        ({"activation": "swiglu"}, (2, 32)),
        ({"layer_scale": 1e-4, "drop_path": 0.2, "dropout": 0.1, "attention_dropout": 0.1}, (2, 32)),
    ],
    ids=shown,
)
def test_options(options: dict, shape: tuple):
    options = {"image_size": 8, **options}
    model = vit("Mu/2", **options)
    images = draw(2, *model.config.size, model.config.channels)
    assert tuple(model(images).shape) == shape


def test_convolutions_before_the_patches():
    """Each halves the image and has twice the filters of the one before, up to the width."""
    model = vit("S/16", image_size=64, depth=1, stem="convolutions")
    shapes = [model.get_layer(f"stem_{index}").output.shape[1:] for index in range(4)]
    assert shapes == [(32, 32, 48), (16, 16, 96), (8, 8, 192), (4, 4, 384)]
    assert model.get_layer("patch_embedding").kernel.shape == (1, 1, 384, 384)
    assert vit("S/16", image_size=64, depth=1).config.stem_depth == 0
    assert ViTConfig.variant("H/14", stem="convolutions").stem_depth == 1


def test_average_pooling_leaves_registers_out():
    model = redraw(vit("Mu/2", image_size=8, pooling="average", registers=2))
    tokens = keras.Model(model.input, model.get_layer("norm").output)
    images = draw(2, 8, 8, 3)
    np.testing.assert_allclose(
        as_numpy(model(images)), as_numpy(tokens(images))[:, 2:].mean(1), rtol=1e-5, atol=1e-6
    )


def test_rotary_positions_follow_the_image_size():
    """The angles are those of the new grid; there are no weights to resize."""
    model = redraw(vit("Mu/2", image_size=8, depth=2, positions="rotary", registers=2, num_classes=3))
    assert not any("positions" in weight.path for weight in model.weights)
    larger = model.at_image_size((12, 20))
    assert larger.get_layer("block_1").attention.rotary_grid == (6, 10)
    for mine, theirs in zip(model.weights, larger.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))
    images = draw(2, 12, 20, 3)
    again = redraw(vit("Mu/2", image_size=(12, 20), depth=2, positions="rotary", registers=2, num_classes=3))
    again.assign_weights(model)
    np.testing.assert_array_equal(as_numpy(larger(images)), as_numpy(again(images)))
    turned = as_numpy(model(np.rot90(draw(1, 8, 8, 3), axes=(1, 2)).copy()))
    assert np.abs(turned - as_numpy(model(draw(1, 8, 8, 3)))).max() > 1e-3


def test_every_weight_with_rotary_positions_has_a_gradient():
    options = {"positions": "rotary", "registers": 2, "key_bias": False, "layer_scale": 0.5}
    model = redraw(vit("Mu/2", image_size=8, num_classes=3, **options))
    assert model.get_layer("block_0").attention.key.bias is None
    before = [as_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    model.fit(np.tanh(draw(4, 8, 8, 3)), np.array([0, 1, 2, 0]), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(as_numpy(weight) - old).max() > 0, weight.path


def test_relative_positions_reach_each_block_and_are_not_resized():
    model = redraw(vit("Mu/2", image_size=8, depth=2, positions="relative", pooling="average"))
    assert {(*w.shape,) for w in model.weights if "offsets" in w.path} == {(7, 16)}
    images = draw(1, 8, 8, 3)
    before = as_numpy(model(images))
    for name in ("block_0", "block_1"):
        for table in model.get_layer(name).attention.relative.tables:
            value = as_numpy(table)
            table.assign(-value)
            assert np.abs(as_numpy(model(images)) - before).max() > 1e-3
            table.assign(value)
    with pytest.raises(ConfigError, match="image_size=12"):
        model.at_image_size(12)
    assert_close(as_numpy(model.at_image_size(8)(images)), before)


@pytest.mark.parametrize("more", [{}, {"registers": 2}, {"distillation": True}], ids=shown)
def test_features_of_each_pooling(more: dict):
    """The class token, and the patches without the tokens before them."""
    options = {"image_size": 8, "class_token": True, **more}
    both, pooled = (
        redraw(vit("Mu/2", **options, **x))
        for x in ({"pooling": "token+average"}, {"pooling": "average", "pooled_norm": True})
    )
    images = draw(2, 8, 8, 3)
    tokens = as_numpy(keras.Model(both.input, both.get_layer("norm").output)(images))
    patches = tokens[:, -16:].mean(1)
    assert_close(as_numpy(both(images)), np.concatenate([tokens[:, 0], patches], axis=-1))
    raw = as_numpy(keras.Model(pooled.input, pooled.get_layer("block_0").output)(images))
    norm = pooled.get_layer("norm")
    assert_close(as_numpy(pooled(images)), as_numpy(norm(raw[:, -16:].mean(1))))


def test_a_distilled_head_is_the_mean_of_two():
    model = redraw(vit("Mu/2", image_size=8, distillation=True, head=keras_tx.DistilledClassifierHead(3)))
    images = draw(2, 8, 8, 3)
    tokens = as_numpy(keras.Model(model.input, model.get_layer("norm").output)(images))
    heads = [model.get_layer(name) for name in ("class_logits", "distillation_logits")]
    logits = [as_numpy(head(tokens[:, index])) for index, head in enumerate(heads)]
    assert_close(as_numpy(model(images)), (logits[0] + logits[1]) / 2)


def test_drop_path_grows_with_depth():
    model = vit("Mu/2", image_size=8, depth=3, drop_path=0.2)
    rates = [model.get_layer(f"block_{i}").drop_path for i in range(3)]
    assert rates == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_under_every_policy(policy: str):
    model = vit("Mu/2", image_size=8, num_classes=3, dtype=policy)
    logits = model(draw(2, 8, 8, 3))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert model.get_layer("block_0").compute_dtype == policy.removeprefix("mixed_")


@pytest.mark.parametrize(
    "options",
    [
        {"num_classes": 3, "dtype": "mixed_bfloat16"},
        {"pooling": "average", "registers": 1, "positions": "learned-2d", "image_size": (8, 12)},
        {"head": keras_tx.DistilledClassifierHead(3), "distillation": True, "mask_token": True},
        {"pooling": "token+average", "qkv_bias": False, "pre_norm": True, "pooler": "tanh", "pooler_dim": 5},
        {"head": keras_tx.ClassifierHead(4, dropout=0.1), "layer_scale": 0.1, "activation": "gelu_tanh"},
        {"qk_norm": True, "norm_epsilon": 1e-3},
        {"positions": "rotary", "rotary_base": 10.0, "registers": 2, "key_bias": False, "num_classes": 3},
        {"stem": "convolutions", "patch_size": 4, "num_classes": 3},
    ],
    ids=shown,
)
def test_saved_and_loaded_is_the_same_model(options: dict, tmp_path):
    model = redraw(vit("Mu/2", **{"image_size": 8, **options}))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is ViT
    assert loaded.get_config() == model.get_config()
    assert (loaded.config, loaded.head, loaded.processing) == (model.config, model.head, model.processing)
    images = draw(2, *model.config.size, 3)
    np.testing.assert_array_equal(as_numpy(loaded(images)), as_numpy(model(images)))


@pytest.mark.parametrize("options", [{"width": 64}, {"depth": 2}, {"num_classes": 4}], ids=shown)
def test_weights_that_do_not_fit_change_nothing(options: dict, tmp_path):
    path = tmp_path / "other.weights.h5"
    redraw(vit("Mu/2", **{"image_size": 8, "num_classes": 3, **options})).save_weights(path)
    model = redraw(vit("Mu/2", image_size=8, num_classes=3))
    before = model.get_weights()
    with pytest.raises(
        ConfigError, match=r"other.weights.h5 do not fit model 'vit' \(ViTConfig\(.*keras_tx.load_model"
    ):
        model.load_weights(path)
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)


def test_weights_that_fit(tmp_path):
    model, other = (redraw(vit("Mu/2", image_size=8, num_classes=3), seed=seed) for seed in (1, 2))
    model.save_weights(tmp_path / "vit.weights.h5")
    other.load_weights(tmp_path / "vit.weights.h5")
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("content", [None, b"", b"not a weights file"], ids=shown)
def test_a_damaged_weights_file(content: bytes | None, tmp_path):
    path = tmp_path / "bad.weights.h5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="bad.weights.h5 cannot be read as a weights file.*open file"):
        vit("Mu/2", image_size=8).load_weights(path)


def test_truncated_file_changes_no_weights(monkeypatch):
    model = redraw(vit("Mu/2", image_size=8))
    before = model.get_weights()

    def breaks_off(self, *args, **kwargs):
        self.set_weights([np.zeros_like(weight) for weight in before])
        raise OSError("the file ends early")

    monkeypatch.setattr(keras.Model, "load_weights", breaks_off)
    with pytest.raises(ConfigError, match="cannot be read as a weights file: the file ends early"):
        model.load_weights("half.weights.h5")
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)


def test_from_config_of_get_config():
    model = vit("Mu/2", image_size=8, num_classes=3)
    assert ViT.from_config(model.get_config()).get_config() == model.get_config()


def test_frozen_layers_stay_frozen_when_saved(tmp_path):
    model = vit("Mu/2", image_size=8, num_classes=3)
    model.freeze(["patch_embedding", "block_0/attention"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == [v.path for v in model.trainable_variables]
    assert len(loaded.trainable_variables) < len(loaded.variables)


def test_copies_stay_frozen():
    model = vit("Mu/2", image_size=8, num_classes=3)
    model.freeze(["block_0/attention"])
    copy = model.at_image_size(12)
    assert copy.frozen() == model.frozen()


def test_frozen_in_a_name_scope(tmp_path):
    with keras.name_scope("teacher"):
        model = vit("Mu/2", image_size=8, num_classes=3)
    model.freeze(["patch_embedding"])
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").frozen() == ["patch_embedding"]


def test_the_image_data_format_of_keras_does_not_matter():
    keras.config.set_image_data_format("channels_first")
    try:
        assert vit("Mu/2", image_size=8, pooling="average").output_shape == (None, 32)
    finally:
        keras.config.set_image_data_format("channels_last")


def test_numbers_of_numpy_are_numbers():
    labels = np.array([0, 2, 1])
    assert vit("Mu/2", image_size=np.int64(8), num_classes=labels.max() + 1).output_shape == (None, 3)


def test_freeze_names_the_nearest_layer():
    with pytest.raises(ConfigError, match="no layer 'patch_embeding'.*'patch_embedding'"):
        vit("Mu/2", image_size=8).freeze(["patch_embeding"])


def test_another_image_size_keeps_the_weights():
    model = redraw(vit("Mu/2", image_size=8, num_classes=3))
    larger = model.at_image_size((8, 16))
    assert larger.config.grid == (4, 8)
    assert (larger.processing.height, larger.processing.width) == (8, 16)
    for mine, theirs in zip(model.weights, larger.weights, strict=True):
        if "positions" not in mine.path:
            np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))
    same = larger.at_image_size(8)
    table = "positions"
    first, back = (as_numpy(m.get_layer(table).table)[0] for m in (model, same))
    np.testing.assert_array_equal(first, back)  # the class token's row is left alone


def test_another_image_size_keeps_the_stem():
    model = redraw(vit("Mu/2", patch_size=4, image_size=8, stem="convolutions", positions="sine-cosine"))
    larger = model.at_image_size(16)
    assert larger.config.grid == (4, 4)
    back = larger.at_image_size(8)
    images = draw(2, 8, 8, 3)
    np.testing.assert_array_equal(as_numpy(back(images)), as_numpy(model(images)))


def test_pixels_of_the_remainder_have_no_effect():
    model = redraw(vit("Mu/2", image_size=8, num_classes=3))
    larger = redraw(vit("Mu/2", image_size=9, drop_remainder=True, num_classes=3))
    images = draw(2, 9, 9, 3)
    assert_close(as_numpy(larger(images)), as_numpy(model(images[:, :8, :8])))
    with pytest.raises(ConfigError, match="image_size=9 is not divisible"):
        model.at_image_size(9)
    assert larger.at_image_size((13, 8)).config.grid == (6, 4)


def test_exact_parameters_of_dino():
    """vit_small_patch8_224 and vit_base_patch8_224 of timm, without classes."""
    assert keras_tx.cost(ViTConfig.variant("S/8")).params == 21_670_272
    assert keras_tx.cost(ViTConfig.variant("B/8")).params == 85_807_872


def test_summary_and_submodels_of_keras(capsys):
    model = vit("Mu/2", image_size=8, num_classes=3)
    model.summary()
    assert "patch_embedding" in capsys.readouterr().out
    assert isinstance(model, keras.Model)
    assert type(keras.Model(model.input, model.get_layer("norm").output)) is not ViT


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vit("b/16"), r"variant='b/16' is unknown.*'B/16'"),
        (lambda: vit("vit_b16"), r"variant='vit_b16' is unknown.*'vit_b_16'"),
        (lambda: vit("B/16", image_size=225), r"image_size=225 is not divisible by patch_size=16.*224"),
        (lambda: vit("g/14", image_size=384), r"image_size=384 .*by patch_size=14.*378.*drop_remainder=True"),
        (
            lambda: vit("g/14", image_size=(384, 13), drop_remainder=True),
            r"image_size=\(384, 13\) is smaller than patch_size=14",
        ),
        (lambda: vit("B/16", num_heads=7), r"width=768 is not divisible by num_heads=7"),
        (lambda: vit("B/16", witdh=7), r"no field 'witdh'.*'width'"),
        (lambda: vit("B/16", depth=0), r"depth is 0, expected a whole number"),
        (lambda: vit("B/16", width=True), r"width is True, expected a whole number"),
        (lambda: vit("B/16", image_size=(224,)), r"image_size is \(224,\)"),
        (lambda: vit("B/16", stem="conv"), r"stem='conv' is unknown.*'convolutions'"),
        (
            lambda: vit("B/16", stem="convolutions", patch_size=7),
            r"stem='convol.*even patch_size, not 7",
        ),
        (lambda: vit("B/16", stem="convolutions", width=24, num_heads=2), r"divisible by 16.*not 24"),
        (lambda: vit("B/16", stem="convolutions", mask_token=True), r"stem='convolutions'.*mask_token=True"),
        (
            lambda: vit("B/16", stem="convolutions", image_size=225, drop_remainder=True),
            r"stem='convolutions'.*drop_remainder=True with image_size=225",
        ),
        (lambda: vit("B/16", pooling="tokens"), r"pooling='tokens' is unknown.*'token'"),
        (lambda: vit("B/16", dropout=1.0), r"dropout is 1.0.*rate"),
        (lambda: vit("Mu/2", positions="learnt"), r"kind='learnt' is unknown.*'learned'"),
        (lambda: vit("Mu/2", activation="gel"), r"activation='gel' is unknown.*'gelu'"),
        (lambda: vit("Mu/2", class_token=False), r"pooling='token'.*class_token=False"),
        (lambda: vit("Mu/2", distillation=True, pooling="average"), r"distillation=True.*class token"),
        (lambda: vit("Mu/2", pooler="gelu"), r"pooler='gelu' is unknown.*'tanh'"),
        (lambda: vit("Mu/2", pooler_dim=5), r"pooler_dim=5.*pooler='tanh'"),
        (lambda: vit("Mu/2", pooler="tanh", pooling="none"), r"pooler='tanh'.*pooling='none'"),
        (lambda: vit("Mu/2", pooled_norm=True, pooling="none"), r"pooled_norm=True.*pooling='none'"),
        (lambda: vit("Mu/2", registers=-1), r"registers is -1"),
        (
            lambda: vit("Mu/2", head=keras_tx.DistilledClassifierHead(3)),
            r"distillation=True",
        ),
        (
            lambda: vit("Mu/2", head=keras_tx.DistilledClassifierHead(3), distillation=True, pooler="tanh"),
            r"pooler='tanh'.*pooler=None",
        ),
        (lambda: vit("Mu/2", num_classes=1), r"num_classes is 1"),
        (lambda: vit("Mu/2", num_classes=3, head=keras_tx.ClassifierHead(3)), r"num_classes=3.*head=Class"),
        (lambda: vit("Mu/2", num_classes=3, pooling="none"), r"pooling='none'.*'token' or 'average'"),
        (
            lambda: vit("Mu/2", image_size=8, processing=keras_tx.ImageTransform(16)),
            r"processing.*\(16, 16\).*image_size=\(8, 8\)",
        ),
    ],
    ids=shown,
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()


def large(**options) -> ViT:
    """Of S/16 in width, and so of its number of parameters for each block."""
    model = vit("S/16", image_size=32, depth=2, num_classes=3, **options)
    model.compile(run_eagerly=True)  # faster than tracing for one step
    return model


def sources(kind: str, images: np.ndarray, labels: np.ndarray) -> tuple:
    if kind == "arrays":
        return images, labels
    if kind == "PyDataset":
        return (keras_tx.image_batches(np.zeros(images.shape, "uint8"), labels, large().processing),)
    tf = pytest.importorskip("tensorflow")
    return (tf.data.Dataset.from_tensor_slices((images, labels)).batch(2),)


@pytest.mark.parametrize("kind", ["arrays", "PyDataset", "tf.data"])
def test_a_published_size_with_few_images_warns_once(kind: str):
    images, labels = np.zeros((4, 32, 32, 3), "float32"), np.array([0, 1, 2, 0])
    model, data = large(), sources(kind, images, labels)
    with pytest.warns(UserWarning, match="'S/16' has 4 million.*about 4 images.*stem='convolutions'"):
        model.fit(*data, shuffle=False, verbose=0)
    model.fit(*data, shuffle=False, verbose=0)


def test_other_models_do_not_warn_of_few_images(monkeypatch, tmp_path):
    images, labels = np.zeros((4, 32, 32, 3), "float32"), np.array([0, 1, 2, 0])
    monkeypatch.setattr("keras_tx.models.vit.few_images.FEW", 4)
    model = large()
    model.fit(images, labels, verbose=0)
    monkeypatch.undo()
    model.save(tmp_path / "model.keras")
    keras_tx.load_model(tmp_path / "model.keras").fit(images, labels, verbose=0)
    other = large()
    other.assign_weights(model)
    other.fit(images, labels, verbose=0)
    small = vit("Mu/2", image_size=32, num_classes=3)
    small.compile(run_eagerly=True)
    small.fit(images, labels, verbose=0)
