"""A family that is defined outside the package works everywhere: the MLP-Mixer, and a small decoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx
from keras_tx.arguments import Size, check_fields
from keras_tx.cli import build_parser
from keras_tx.errors import ConfigError
from keras_tx.heads import ClassifierHead, Encoded
from keras_tx.layers import FeedForward, PatchEmbedding, TokenEmbedding, TransformerBlock
from keras_tx.models import families
from keras_tx.models.config import make_config, unknown_variant
from keras_tx.models.families import Family, register_family
from keras_tx.models.text_model import DecoderModel
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import ImageTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

pytestmark = pytest.mark.thorough

# ---- A family of images.

# patch, width, depth, token mlp, channel mlp: table 1 of Tolstikhin et al., "MLP-Mixer"
VARIANTS = {"S/32": (32, 512, 8, 256, 2048), "B/16": (16, 768, 12, 384, 3072), "Mu/4": (4, 16, 2, 8, 32)}


@dataclasses.dataclass(frozen=True)
class MixerConfig:
    patch_size: Size
    width: Size
    depth: Size
    tokens_mlp_dim: Size
    mlp_dim: Size
    image_size: Size = 224

    FREE = frozenset[str]()

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> MixerConfig:
        if name not in VARIANTS:
            raise unknown_variant(name, VARIANTS)
        fields = ("patch_size", "width", "depth", "tokens_mlp_dim", "mlp_dim")
        return make_config(cls, {**dict(zip(fields, VARIANTS[name], strict=True)), **overrides})


@keras.saving.register_keras_serializable("test_new_family")
class Mixer(TransformerModel):
    config_class = MixerConfig
    heads = (ClassifierHead,)
    task = "image-classification"

    @classmethod
    def assemble(
        cls,
        config: MixerConfig,
        *,
        head: Any = None,
        processing: Any = None,
        name: Any = None,
        dtype: Any = None,
    ) -> Mixer:
        cls.check_head(head)
        size = (config.image_size, config.image_size)
        images = keras.Input((*size, 3), name="images")
        x = PatchEmbedding(config.width, config.patch_size, dtype=dtype, name="patch_embedding")(images)
        for index in range(config.depth):
            mixed = keras.layers.LayerNormalization(dtype=dtype, name=f"token_norm_{index}")(x)
            mixed = ops.transpose(mixed, (0, 2, 1))  # (batch, tokens, width) -> (batch, width, tokens)
            mixed = FeedForward(config.tokens_mlp_dim, dtype=dtype, name=f"tokens_{index}")(mixed)
            x = ops.add(x, ops.transpose(mixed, (0, 2, 1)))
            normed = keras.layers.LayerNormalization(dtype=dtype, name=f"norm_{index}")(x)
            x = ops.add(x, FeedForward(config.mlp_dim, dtype=dtype, name=f"channels_{index}")(normed))
        x = keras.layers.LayerNormalization(dtype=dtype, name="last_norm")(x)
        features = ops.mean(x, axis=1)
        outputs = features if head is None else head(features)
        processing = processing or ImageTransform(size)
        return cls(images, outputs, config=config, head=head, processing=processing, name=name or "mixer")


def mixer(variant: str = "B/16", **options: Any) -> Mixer:
    return Mixer.from_variant(variant, **options)


MIXER = Family("mixer", "MLP-Mixer", Mixer, mixer, tuple(VARIANTS), interface="vision")


# ---- A family of decoders: one norm, no biases, no position table.


@dataclasses.dataclass(frozen=True)
class ChatConfig:
    width: Size = 16
    depth: Size = 2
    num_heads: Size = 2
    vocabulary_size: Size = 20
    max_length: Size = 32

    FREE = frozenset[str]()

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def variant(cls, name: str, **overrides: Any) -> ChatConfig:
        return make_config(cls, overrides)


@keras.saving.register_keras_serializable("test_new_family")
class Chat(DecoderModel):
    config_class = ChatConfig

    @classmethod
    def encode(cls, config: ChatConfig, inputs: dict[str, Any], dtype: Any) -> Encoded:
        words = TokenEmbedding(config.vocabulary_size, config.width, dtype=dtype, name="words")
        x = words(inputs["input_ids"])
        for index in range(config.depth):
            x = TransformerBlock(
                config.num_heads,
                2 * config.width,
                causal=True,
                rotary_base=10000.0,
                norm="rms",
                use_bias=False,
                dtype=dtype,
                name=f"layer_{index}",
            )(x, padding_mask=inputs["attention_mask"], positions=inputs["position_ids"])
        x = keras.layers.RMSNormalization(dtype=dtype, name="last_norm")(x)
        return Encoded(x, inputs["attention_mask"], words, config)


def chat(variant: str = "tiny", **options: Any) -> Chat:
    return Chat.from_variant(variant, **options)


CHAT = Family("chat", "Chat", Chat, chat, ("tiny",), interface="decoder")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(families, "_RECORDS", dict(families._RECORDS))
    for family in (MIXER, CHAT):
        register_family(family)


def test_names_are_registered_once():
    with pytest.raises(ConfigError, match="'mixer'"):
        register_family(MIXER)


def test_help_lists_the_families():
    assert "vit, bert, modernbert, deberta, gpt, transformer, t5, mixer, chat" in build_parser().format_help()


def test_images(tmp_path):
    model = redraw(mixer("Mu/4", num_classes=3, image_size=8))
    images = model.processing(np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), "uint8"))
    model.compile()
    model.fit(images, np.array([0, 1, 2, 1]), verbose=0)

    model.save(tmp_path / "mixer.keras")
    expected = as_numpy(model(images))
    for loaded in (keras_tx.load_model, keras_tx.from_checkpoint):
        assert_close(as_numpy(loaded(tmp_path / "mixer.keras")(images)), expected)
    model.save_weights(tmp_path / "mixer.weights.h5")
    started = mixer("Mu/4", num_classes=3, image_size=8, weights=tmp_path / "mixer.weights.h5")
    assert_close(as_numpy(started(images)), expected)

    cost = keras_tx.cost(model)
    assert cost.params == model.count_params()
    assert all(layer.flops is not None for layer in cost.layers)
    assert keras_tx.cost(model.config).flops == cost.flops - 2 * 16 * 3  # without a head

    report = export_onnx(model, tmp_path / "folder", labels=["daisy", "rose", "tulip"])
    assert set(report.manifest.tiers.values()) <= {"registered", "opened"}
    classify = load(tmp_path / "folder")
    assert {x["label"] for x in classify(np.zeros((8, 8, 3), "uint8"))} <= {"daisy", "rose", "tulip"}

    with pytest.raises(ConfigError, match="MLP-Mixer"):
        keras_tx.save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="Mixer"):
        keras_tx.to_keras_hub(model)
    with pytest.raises(ConfigError, match=r"head=SpanHead.*ClassifierHead"):
        mixer("Mu/4", head=keras_tx.SpanHead())


def test_text(tmp_path):
    model = redraw(chat(depth=3))
    ids = np.random.default_rng(0).integers(0, 20, (4, 9))
    model.compile()
    model.fit(ids, ids, verbose=0)

    model.save(tmp_path / "chat.keras")
    expected = as_numpy(model(ids))
    for loaded in (keras_tx.load_model, keras_tx.from_checkpoint):
        assert_close(as_numpy(loaded(tmp_path / "chat.keras")(ids)), expected)
    outputs = model.with_outputs(hidden_states=True)(model.complete(ids))
    body = keras_tx.from_checkpoint(model, head=None)
    assert_close(as_numpy(outputs["hidden_states"][-1]), as_numpy(body(ids)))

    cost = keras_tx.cost(model)
    assert cost.params == model.count_params()
    assert {layer.name: layer.flops for layer in cost.layers}["words"] == 2 * 32 * 20 * 16

    export_onnx(model, tmp_path / "folder")  # with a cache, verified against Keras
    assert load(tmp_path / "folder").generate([5, 17], max_new_tokens=6).ids == (
        keras_tx.generate(model, [5, 17], max_new_tokens=6).ids
    )

    with pytest.raises(ConfigError, match=r"num_classes=2.*CausalLMHead"):
        chat(num_classes=2)
