"""Every number and boolean of a config, a head or a layer is checked for type, finiteness and range."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx import heads, layers
from keras_tx.arguments import Count, Rate, Size, check_fields
from keras_tx.errors import ConfigError

CONFIGS = {
    keras_tx.ViTConfig: dataclasses.asdict(keras_tx.ViTConfig.variant("Mu/2", image_size=8)),
    keras_tx.BertConfig: dataclasses.asdict(keras_tx.BertConfig.variant("tiny")),
    keras_tx.GPTConfig: dataclasses.asdict(keras_tx.GPTConfig.variant("pico")),
}
REQUIRED = {
    "num_classes": 3,
    "num_heads": 4,
    "mlp_dim": 8,
    "hidden": 8,
    "width": 8,
    "patch_size": 2,
    "grid": 4,
    "vocabulary_size": 9,
}
# What is neither a number nor a boolean, or is checked by a function of its own.
OTHERS = {
    *("stem", "pooling", "positions", "pooler", "activation", "norm", "norm_position", "kind", "labels"),
    *("rotary_scaling", "stop_ids", "generation", "initializer", "kernel_initializer", "kwargs", "self"),
}
NEVER = ("no", math.nan, math.inf, -math.inf, [], {}, -1, -0.5, 1 + 2j, np.zeros(2))


def constructors() -> dict[Any, dict[str, Any]]:
    """Each public class and the arguments that it can be made with."""
    classes = dict(CONFIGS)
    for module in (heads, layers):
        for name in module.__all__:
            cls = getattr(module, name)
            if name not in ("Encoded", "Head"):
                parameters = inspect.signature(cls.__init__).parameters
                classes[cls] = {key: value for key, value in REQUIRED.items() if key in parameters}
    return classes


CASES = [
    (cls, arguments, name)
    for cls, arguments in constructors().items()
    for name in inspect.signature(cls.__init__).parameters
    if name not in OTHERS
]


@pytest.mark.parametrize("cls, arguments, name", CASES, ids=[f"{c.__name__}-{n}" for c, _, n in CASES])
def test_nonsense_is_refused_by_name_and_value(cls, arguments, name):
    default = inspect.signature(cls.__init__).parameters[name].default
    for value in NEVER:
        if name == "layer_scale" and isinstance(value, int | float) and math.isfinite(value):
            continue  # any factor may be one to begin with
        with pytest.raises(ConfigError, match=rf"{name} is .*, expected"):
            cls(**{**arguments, name: value})
    if default is not None and not (isinstance(default, float) and name == "layer_scale"):
        with pytest.raises(ConfigError, match=f"{name} is None, expected"):
            cls(**{**arguments, name: None})
    if isinstance(default, bool) or name in ("class_token", "key_bias", "qkv_bias"):
        for value in (0, 1, 1.0):
            with pytest.raises(ConfigError, match=f"{name} is {value}, expected True or False"):
                cls(**{**arguments, name: value})
    else:
        with pytest.raises(ConfigError, match=f"{name} is True, expected"):
            cls(**{**arguments, name: True})


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: keras_tx.bert("tiny", norm_epsilon=-1), "norm_epsilon is -1, expected"),
        (lambda: keras_tx.bert("tiny", norm_epsilon=None), "norm_epsilon is None"),
        (lambda: keras_tx.bert("tiny", norm_epsilon=math.nan), "norm_epsilon is nan"),
        (lambda: keras_tx.vit("Mu/2", layer_scale=math.nan), "layer_scale is nan"),
        (lambda: keras_tx.vit("Mu/2", qkv_bias="no"), "qkv_bias is 'no', expected True or False"),
        (lambda: keras_tx.gpt("llama-tiny", rotary_base=0), "rotary_base is 0"),
        (lambda: keras_tx.gpt("llama-tiny", rotary_base=-1), "rotary_base is -1"),
        (
            lambda: layers.MultiHeadAttention(*np.zeros((3, 1, 4, 8), "float32")),
            "Attention: num_heads is array",
        ),
        (lambda: heads.MaskedLMHead(norm_epsilon=1), "norm_epsilon is 1"),
    ],
)
def test_examples_of_nonsense(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_numbers_of_numpy_are_stored_as_python_has_them():
    config = keras_tx.ViTConfig(
        *map(np.int64, (2, 32, 1, 64, 2)), image_size=[np.int32(8), 12], qkv_bias=np.True_, dropout=0
    )
    assert json.loads(json.dumps(dataclasses.asdict(config)))["image_size"] == [8, 12]
    assert config == keras_tx.ViTConfig(2, 32, 1, 64, 2, image_size=(8, 12))
    assert type(config.dropout) is float and config.qkv_bias is True
    layer = layers.FeedForward(np.int64(8), dropout=np.float32(0.5))
    assert json.loads(json.dumps({k: layer.get_config()[k] for k in ("hidden", "dropout")}))


def test_other_fields_are_left_to_the_class():
    assert heads.ClassifierHead(2, labels=["cat", "dog"]).labels == ("cat", "dog")
    assert keras_tx.GPTConfig.variant("pico", stop_ids=[3, 3]).stop_ids == (3,)


def test_invalid_saved_values_raise(tmp_path):
    """From a layer's config, a model's config and a checkpoint's config.json."""
    config = layers.TransformerBlock(2, 8).get_config()
    with pytest.raises(TypeError, match="TransformerBlock: norm_epsilon is nan"):  # Keras's, with our message
        layers.TransformerBlock.from_config({**config, "norm_epsilon": math.nan})
    model = keras_tx.bert("tiny", vocabulary_size=50, depth=1, head=keras_tx.ClassifierHead(2))
    saved = model.get_config()
    with pytest.raises(ConfigError, match="dropout is 2, expected"):
        type(model).from_config({**saved, "config": {**saved["config"], "dropout": 2}})
    keras_tx.save_checkpoint(model, tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "config.json"
    for value, match in ((-1.0, r"layer_norm_eps=-1\.0"), (0, "layer_norm_eps is 0"), (math.nan, "NaN")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "layer_norm_eps": value}))
        with pytest.raises(ConfigError, match=match):
            keras_tx.from_checkpoint(tmp_path / "checkpoint")
        path.write_text(path.read_text().replace("NaN", "1e-12"))


def test_unknown_arguments_raise_type_error():
    with pytest.raises(TypeError, match="num_heads"):
        layers.MultiHeadAttention()
    with pytest.raises((TypeError, ValueError), match="heads"):
        layers.MultiHeadAttention(2, heads=3)


def test_a_field_of_another_type_is_left_to_its_class():
    @dataclasses.dataclass(frozen=True)
    class Config:
        many: tuple[Size, ...] | Rate
        pair: tuple[Count, Count] | None
        text: str | int

        def __post_init__(self):
            check_fields(self)

    Config.__annotations__ = {
        "many": tuple[Size, ...] | Rate,
        "pair": tuple[Count, Count] | None,
        "text": str,
    }
    assert Config([1, 2], None, 5.5) == Config((1, 2), None, 5.5)
    for wrong in (([1, 0], None), ((), (1, 2, 3)), (0.5, (1, -1)), (1, None)):
        with pytest.raises(ConfigError, match="(many|pair) is .*each a whole number"):
            Config(*wrong, "")
