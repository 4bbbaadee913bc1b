"""Low-rank adapters: what they compute, what trains, and what is saved."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.heads import Head
from keras_tx.layers.low_rank import LowRank, add_adapter
from keras_tx.models.adapters.layer_selection import adapted_layers
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

IDS = np.array([[2, 15, 27, 3], [2, 9, 3, 4]])
MODELS: dict[str, Any] = {
    "bert": lambda: keras_tx.bert("tiny", vocabulary_size=30, depth=1, head=keras_tx.ClassifierHead(2)),
    "gpt": lambda: keras_tx.gpt("pico"),
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, num_classes=3),
    "t5": lambda: keras_tx.t5("tiny", depth=1, vocabulary_size=30),
    "transformer": lambda: keras_tx.transformer("tiny", depth=1, vocabulary_size=30),
    "keras": lambda: keras_model(),
}


def keras_model() -> keras.Model:
    ids = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(30, 8, name="words")(ids)
    x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = keras.layers.Dense(8, activation="gelu", name="wide")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, keras.layers.Dense(2, name="classifier")(x))


def inputs_of(model: Any) -> Any:
    if isinstance(model, keras_tx.ViT):
        return draw(2, 8, 8, 3)
    if isinstance(model, keras_tx.T5 | keras_tx.Transformer):
        return {"input_ids": IDS, "decoder_input_ids": IDS}
    return IDS


def outputs_of(model: Any) -> np.ndarray:
    outputs = as_numpy(model(inputs_of(model)))
    return outputs["logits"] if isinstance(outputs, dict) else outputs


def drawn(model: Any, seed: int = 1) -> Any:
    """The model with other values in its adapters."""
    rng = np.random.default_rng(seed)
    for layer in adapted_layers(model).values():
        for variable in layer.adapter_variables.values():
            variable.assign(as_numpy(variable) + 0.2 * rng.standard_normal(variable.shape))
    return model


def outputs_of_base(model: Any) -> np.ndarray:
    """The outputs with adapters whose product is zero."""
    for layer in adapted_layers(model).values():
        layer.adapter_variables["b"].assign(np.zeros(layer.adapter_variables["b"].shape))
    return outputs_of(model)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return redraw(MODELS[request.param]())


def test_outputs_change_only_with_training(model):
    before = outputs_of(model)
    assert keras_tx.lora(model, 2) is model
    assert_close(outputs_of(model), before)
    drawn(model)
    assert np.abs(outputs_of(model) - before).max() > 1e-3
    assert np.array_equal(outputs_of_base(model), before)


def test_the_product_is_that_of_the_merged_kernel():
    inputs = draw(3, 5, 6)
    cases = {
        "dense": (keras.layers.Dense(4, activation="gelu"), LowRank(2, 3.0)),
        "stabilized": (keras.layers.Dense(4), LowRank(2, 3.0, rank_stabilized=True)),
        "dora": (keras.layers.Dense(4), LowRank(2, 3.0, dora=True)),
        "einsum": (keras.layers.EinsumDense("abc,cde->abde", (None, 2, 4)), LowRank(2, 3.0)),
        "turned": (keras.layers.EinsumDense("abc,cd->adb", (4, None)), LowRank(2, 3.0)),
    }
    for name, (layer, options) in cases.items():
        layer(inputs)
        add_adapter(layer, options)
        for variable in layer.adapter_variables.values():
            variable.assign(draw(*variable.shape, seed=3))
        a, b, kernel = (as_numpy(x) for x in (*list(layer.adapter_variables.values())[:2], layer._kernel))
        scale = 3 / 2**0.5 if name == "stabilized" else 3 / 2
        kernel = kernel + scale * (a @ b)
        if name == "dora":
            kernel = kernel * as_numpy(layer.magnitude) / np.linalg.norm(kernel, axis=0)
        equation = getattr(layer, "equation", "abc,cd->abd")
        expected = np.einsum(equation, inputs, kernel)
        if name == "dense":
            expected = as_numpy(keras.ops.gelu(expected, approximate=False))
        assert_close(as_numpy(layer(inputs)), expected)


def test_only_adapters_and_the_head_train(model):
    keras_tx.lora(model, 2)
    before = {x.path: as_numpy(x).copy() for x in model.weights}
    trainable = {x.path for x in model.trainable_variables}
    model.compile("sgd", "mse")
    target = np.ones_like(outputs_of(model))
    model.train_on_batch(inputs_of(model), target) if not hasattr(model, "head") else _step(model)
    after = {x.path: as_numpy(x) for x in model.weights}
    changed = {path for path, value in after.items() if not np.array_equal(value, before[path])}
    assert changed <= trainable
    assert any("lora" in path for path in changed)
    others = {path for path in trainable if "lora_" not in path}
    assert {path.split("/")[0] for path in others} <= {"pooler", "logits", "classifier"}


@keras.saving.register_keras_serializable("test_adapters")
@dataclasses.dataclass(frozen=True)
class TwoLayerHead(Head):
    """A head of a user, whose layers have other names than ours."""

    takes_sample = True

    def __call__(self, features: Any) -> Any:
        hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(features)
        return keras.layers.Dense(2, name="scores")(hidden)


def test_all_layers_of_a_head_are_trained(monkeypatch):
    monkeypatch.setattr(keras_tx.Bert, "heads", (*keras_tx.Bert.heads, TwoLayerHead))
    model = keras_tx.bert("tiny", vocabulary_size=30, depth=1, head=TwoLayerHead())
    assert [layer.name for layer in model.head_layers()] == ["hidden", "scores"]
    keras_tx.lora(model, 2, targets="dense")
    others = {x.path.split("/")[0] for x in model.trainable_variables if "lora_" not in x.path}
    assert others == {"pooler", "hidden", "scores"}
    assert not any(path.startswith(("hidden", "scores")) for path in adapted_layers(model))


def _step(model: Any) -> None:
    model.compile("sgd")
    logits = outputs_of(model)
    labels = np.zeros(logits.shape[:-1], "int64")
    keras.Model.fit(model, inputs_of(model), labels, verbose=0)


def test_the_optimizer_holds_the_trained_variables_only():
    model = keras_tx.lora(MODELS["gpt"](), 2)
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    states = sum(int(np.prod(x.shape)) for x in model.optimizer.variables if len(x.shape) > 1)
    assert states == 2 * sum(int(np.prod(x.shape)) for x in model.trainable_variables)


def test_targets():
    def paths(targets: Any) -> list[str]:
        return sorted(adapted_layers(keras_tx.lora(MODELS["bert"](), 2, targets=targets)))

    block = "block_0/attention/"
    assert paths("attention") == [block + x for x in ("key", "output", "query", "value")]
    assert paths(["query", "value"]) == [block + "query", block + "value"]
    assert paths(r"block_\d+/feed_forward/.*") == ["block_0/feed_forward/down", "block_0/feed_forward/up"]
    assert paths("dense") == sorted(
        [*paths("attention"), "block_0/feed_forward/down", "block_0/feed_forward/up"]
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"alpha": -1.0}, "alpha is -1"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"targets": ["quary"]}, "'quary'.*query"),
        ({"targets": "("}, r"targets='\('"),
        ({"targets": 3}, "targets is 3"),
        ({"targets": ["logits"]}, "'logits'.*train_also"),
        ({"train_also": ["logit"]}, "'logit'.*logits"),
    ],
)
def test_invalid_arguments_change_nothing(options: dict[str, Any], match: str):
    model = MODELS["bert"]()
    with pytest.raises(ConfigError, match=match):
        keras_tx.lora(model, **options)
    assert not adapted_layers(model)
    assert len(model.trainable_variables) == len(model.weights)


def test_layers_without_an_adapter_are_refused_by_name():
    model = keras_model()
    with pytest.raises(ConfigError, match=r"dora=True.*layer 'attention/.*EinsumDense"):
        keras_tx.lora(model, 2, dora=True)
    with pytest.raises(ConfigError, match=r"dropout=0.1.*'words'.*ids"):
        keras_tx.lora(model, 2, dropout=0.1, targets=["words"])
    with pytest.raises(ConfigError, match="targets has 'token_embedding'"):
        keras_tx.lora(MODELS["gpt"](), 2, targets=["token_embedding"])
    adapted = keras_tx.lora(model, 2)
    with pytest.raises(ConfigError, match="has adapters already"):
        keras_tx.lora(adapted, 2)


def test_dropout_applies_in_training_only():
    layer = keras.layers.Dense(4)
    inputs = draw(8, 32)
    layer(inputs)
    add_adapter(layer, LowRank(2, 2.0, dropout=0.5))
    for variable in layer.adapter_variables.values():
        variable.assign(draw(*variable.shape))
    plain = as_numpy(layer(inputs))
    assert np.array_equal(as_numpy(layer(inputs, training=False)), plain)
    assert np.abs(as_numpy(layer(inputs, training=True)) - plain).max() > 0.1


def test_saved_and_loaded(model, tmp_path: Path):
    name, kind = model.name, type(model)
    base = [as_numpy(x).copy() for x in model.weights]
    drawn(keras_tx.lora(model, 2, alpha=6.0, rank_stabilized=True))
    folder = keras_tx.save_adapter(model, tmp_path / "adapter")
    size = sum(np.prod(x.shape) for x in model.trainable_variables) * 4
    assert (folder / "adapter_model.safetensors").stat().st_size < 2 * size + 8192
    copy = next(
        make for make in MODELS.values() if type(make()) is kind and make().name.startswith(name[:3])
    )()
    for weight, value in zip(copy.weights, base, strict=True):
        weight.assign(value)
    assert keras_tx.load_adapter(copy, folder) is copy
    assert_close(outputs_of(copy), outputs_of(model))
    assert {x.path for x in copy.trainable_variables} == {x.path for x in model.trainable_variables}
    drawn(copy, seed=5)
    keras_tx.load_adapter(copy, folder)
    assert_close(outputs_of(copy), outputs_of(model))


def test_keras_files_keep_base_and_adapters(model, tmp_path: Path):
    # Composite layers of Keras create plain layers from their configs.
    targets = ["words", "wide"] if model.name.startswith("functional") else "attention"
    drawn(keras_tx.lora(model, 2, targets=targets))
    model.save(tmp_path / "model.keras")
    copy = keras_tx.load_model(tmp_path / "model.keras")
    assert_close(outputs_of(copy), outputs_of(model))
    assert list(adapted_layers(copy)) == list(adapted_layers(model))
    if hasattr(model, "head"):
        assert len(copy.trainable_variables) == len(model.trainable_variables)
    merged, base = outputs_of(model), outputs_of_base(model)
    assert_close(outputs_of_base(copy), base)
    assert np.abs(base - merged).max() > 1e-3


def test_weight_files(tmp_path: Path):
    model = redraw(MODELS["bert"]())
    model.save_weights(tmp_path / "plain.weights.h5")
    base = outputs_of(model)
    drawn(keras_tx.lora(model, 2))
    expected = outputs_of(model)
    model.save_weights(tmp_path / "adapted.weights.h5")
    drawn(model, seed=7)
    model.load_weights(tmp_path / "adapted.weights.h5")
    assert_close(outputs_of(model), expected)
    with pytest.raises(ConfigError, match="do not fit"):
        MODELS["bert"]().load_weights(tmp_path / "adapted.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")  # the adapters have no effect, and can be trained
    assert_close(outputs_of(model), base)
    assert all(np.abs(as_numpy(x.adapter_variables["a"])).max() > 0 for x in adapted_layers(model).values())


def test_copies_and_checkpoints_are_merged(tmp_path: Path):
    for name in ("bert", "gpt", "vit", "t5"):
        model = drawn(keras_tx.lora(redraw(MODELS[name]()), 2, dora=True))
        copy = keras_tx.from_checkpoint(model)
        assert not adapted_layers(copy)
        assert_close(outputs_of(copy), outputs_of(model))
        saved = keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / name))
        assert_close(outputs_of(saved), outputs_of(model))


@pytest.mark.exports
def test_exported_folders_are_merged(model, tmp_path: Path):
    report = export_onnx(drawn(keras_tx.lora(model, 2)), tmp_path / "folder")
    assert report.manifest.parity is not None and report.manifest.parity.max_difference < 1e-4


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized_base(mode: str, tmp_path: Path):
    def quantized() -> Any:
        keras.utils.set_random_seed(0)
        model = MODELS["bert"]()
        for part in ("query", "key", "value"):
            getattr(model.get_layer("block_0").attention, part).quantize(mode)
        return model

    model = quantized()
    before = outputs_of(model)
    with pytest.raises(ConfigError, match=f"dora=True.*quantized to {mode}"):
        keras_tx.lora(model, 2, dora=True, targets=["query"])
    keras_tx.lora(model, 2, targets=["query", "value"])
    assert_close(outputs_of(model), before)
    model.compile("adam")
    model.fit(IDS, np.array([0, 1]), epochs=3, verbose=0)
    assert np.abs(outputs_of(model) - before).max() > 1e-3
    assert model.get_layer("block_0").attention.query._kernel.dtype == "int8"
    folder = keras_tx.save_adapter(model, tmp_path / "adapter")
    assert_close(outputs_of(keras_tx.load_adapter(quantized(), folder)), outputs_of(model))


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"dora": True}, {"dora": True, "dropout": 0.1}])
def test_mixed_precision(options: dict[str, Any]):
    keras.utils.set_random_seed(0)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, dtype="mixed_bfloat16")
    before = outputs_of(model)
    keras_tx.lora(model, 2, **options)
    assert np.abs(outputs_of(model) - before).max() < 0.05
    model.compile(keras_tx.AdamW(0.01))
    pixels = np.tanh(draw(8, 8, 8, 3))
    history = model.fit(pixels, np.arange(8) % 3, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert {x.dtype for x in model.trainable_variables} == {"float32"}


def test_float8_is_refused_by_name():
    model = MODELS["bert"]()
    model.get_layer("block_0").attention.query.quantize("float8")
    with pytest.raises(ConfigError, match="query.*float8"):
        keras_tx.lora(model, 2)


def test_folders_that_do_not_fit(tmp_path: Path):
    model = drawn(keras_tx.lora(MODELS["bert"](), 2))
    folder = keras_tx.save_adapter(model, tmp_path / "adapter")
    with pytest.raises(ConfigError, match="exists"):
        keras_tx.save_adapter(model, folder)
    keras_tx.save_adapter(model, folder, overwrite=True)
    with pytest.raises(ConfigError, match="bert.*is not a dense layer"):
        keras_tx.load_adapter(MODELS["gpt"](), folder)
    wide = keras_tx.bert("tiny", vocabulary_size=30, depth=1, width=64, head=keras_tx.ClassifierHead(2))
    with pytest.raises(ConfigError, match="shape"):
        keras_tx.load_adapter(wide, folder)
    classes = keras_tx.bert("tiny", vocabulary_size=30, depth=1, head=keras_tx.ClassifierHead(3))
    with pytest.raises(ConfigError, match=r"classifier.*shape"):
        keras_tx.load_adapter(classes, folder)
    assert not adapted_layers(classes)
    with pytest.raises(ConfigError, match=r"attention.*rank=2.*rank=4"):
        keras_tx.load_adapter(keras_tx.lora(MODELS["bert"](), 4), folder)
    with pytest.raises(ConfigError, match=r"the folder has .*logits/bias"):
        keras_tx.load_adapter(keras_tx.lora(MODELS["bert"](), 2, train_also=()), folder)
    with pytest.raises(ConfigError, match="adapter_config.json"):
        keras_tx.load_adapter(model, tmp_path)
    with pytest.raises(ConfigError, match="has no adapters"):
        keras_tx.save_adapter(MODELS["bert"](), tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peft_type", "IA3"),
        ("bias", "all"),
        ("init_lora_weights", "pissa"),
        ("layer_replication", [[0, 1]]),
        ("trainable_token_indices", [3]),
        ("r", 3),
        ("lora_alpha", 0),
        ("use_dora", True),
    ],
)
def test_configs_that_are_not_supported(name: str, value: Any, tmp_path: Path):
    folder = keras_tx.save_adapter(keras_tx.lora(MODELS["bert"](), 2), tmp_path / "adapter")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    model = MODELS["bert"]()
    with pytest.raises(ConfigError):
        keras_tx.load_adapter(model, folder)
    assert not adapted_layers(model)
