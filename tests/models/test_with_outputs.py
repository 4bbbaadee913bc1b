"""Hidden states and attention weights equal those of transformers, and export."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx_onnx import export_onnx
from tests.decoder_architectures import ARCHITECTURES
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import run
from tests.tolerances import assert_close
from tests.weights.small_models import bert, load_in_transformers

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
IDS = np.where(MASK, np.random.default_rng(3).integers(4, 30, MASK.shape), 0)
TEXT = {"input_ids": IDS, "attention_mask": MASK}


def of_transformers(model: Any, folder: Any, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The outputs of transformers' class for the checkpoint that we write of the model."""
    theirs = load_in_transformers(model, folder)
    import torch

    with torch.no_grad():
        outputs = theirs(
            **{key: torch.from_numpy(value) for key, value in inputs.items()},
            output_hidden_states=True,
            output_attentions=True,
        )
    return {key: tuple(x.numpy() for x in outputs[key]) for key in ("hidden_states", "attentions")} | {
        "logits": outputs.logits.numpy()
    }


def compared(mine: dict[str, Any], theirs: dict[str, Any], real: Any = True) -> None:
    """Equal at real tokens: what stands at padding is nobody's."""
    assert_close(mine["logits"] * real, theirs["logits"] * real)
    for key in ("hidden_states", "attentions"):
        assert len(mine[key]) == len(theirs[key])
    for ours, expected in zip(mine["hidden_states"], theirs["hidden_states"], strict=True):
        assert_close(ours * real, expected * real)
    for ours, expected in zip(mine["attentions"], theirs["attentions"], strict=True):
        rows = real if real is True else real[:, None]
        assert_close(ours * rows, expected * rows)


def test_vit_equals_transformers(tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3))
    images = draw(2, 8, 8, 3)
    mine = as_numpy(model.with_outputs(hidden_states=True, attentions=True)(images))
    pixels = {"pixel_values": images.transpose(0, 3, 1, 2)}
    compared(mine, of_transformers(model, tmp_path / "folder", pixels))
    assert_close(mine["logits"], as_numpy(model(images)))  # attention without weights may be fused


def test_bert_equals_transformers(tmp_path):
    model = redraw(bert(keras_tx.TokenClassifierHead(3), depth=3, segments=2))
    types = np.random.default_rng(4).integers(0, 2, IDS.shape)
    inputs = {**TEXT, "token_type_ids": types}
    mine = as_numpy(model.with_outputs(hidden_states=True, attentions=True)(inputs))
    compared(mine, of_transformers(model, tmp_path / "folder", inputs), MASK[..., None])


@pytest.mark.parametrize(
    ("variant", "options"), [("pico", {}), ("llama-tiny", {}), *ARCHITECTURES.values()], ids=str
)
def test_gpt_equals_transformers(variant, options, tmp_path):
    model = redraw(keras_tx.gpt(variant, depth=3, **options))
    positions = np.maximum(MASK.cumsum(1) - 1, 0)
    inputs = {**TEXT, "position_ids": positions}
    mine = as_numpy(model.with_outputs(hidden_states=True, attentions=True)(inputs))
    compared(mine, of_transformers(model, tmp_path / "folder", inputs), MASK[..., None])


def test_only_requested_outputs():
    model = keras_tx.gpt("pico")
    assert sorted(model.with_outputs().output) == ["logits"]
    assert sorted(model.with_outputs(attentions=True).output) == ["attentions", "logits"]
    assert sorted(keras_tx.bert("tiny", vocabulary_size=50).with_outputs(hidden_states=True).output) == [
        "hidden_states",
        "last_hidden_state",
        "pooler_output",
    ]
    embedder = keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.SentenceEmbeddingHead())
    assert "sentence_embedding" in embedder.with_outputs(attentions=True).output
    assert "image_embeds" in keras_tx.vit("Mu/2", image_size=8).with_outputs(attentions=True).output
    tokens = keras_tx.vit("Mu/2", image_size=8, pooling="none").with_outputs(attentions=True)
    assert "last_hidden_state" in tokens.output


def test_family_without_blocks_raises():
    class Pixels(keras_tx.ViT):
        pass

    images = keras.Input((8, 8, 3))
    model = Pixels(
        images,
        keras.layers.Flatten()(images),
        config=keras_tx.ViTConfig.variant("Mu/2"),
        head=None,
        name="flat",
    )
    with pytest.raises(ConfigError, match="'flat' has no TransformerBlock"):
        model.with_outputs(hidden_states=True)


def test_weights_are_shared_and_the_model_stays_as_it_is():
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    model.compile()
    inside = model.with_outputs(hidden_states=True, attentions=True)
    assert {id(w) for w in inside.weights} == {id(w) for w in model.weights}
    assert not inside.compiled
    model.get_layer("logits").bias.assign([1.0, 2.0, 3.0])
    images = np.tanh(draw(2, 8, 8, 3))
    assert_close(as_numpy(inside(images)["logits"]), as_numpy(model(images)))
    assert type(keras_tx.ViT.from_config(model.get_config())) is keras_tx.ViT
    assert model.predict(images, verbose=0).shape == (2, 3)


@pytest.mark.exports
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("family", ["vit", "bert", "gpt"])
def test_export_has_the_outputs(family, opset, tmp_path):
    """Verified by the export, then run; the outputs have names."""
    if family == "vit":
        model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
        inputs = {"images": draw(2, 8, 8, 3)}
    elif family == "bert":
        model = redraw(bert(keras_tx.ClassifierHead(3), depth=1, segments=0))
        inputs = TEXT
    else:
        model = redraw(keras_tx.gpt("pico", depth=1))
        inputs = {**TEXT, "position_ids": np.maximum(MASK.cumsum(1) - 1, 0)}
    inside = model.with_outputs(hidden_states=True, attentions=True)
    export_onnx(model, tmp_path / "plain", opset=opset)
    report = export_onnx(inside, tmp_path / "folder", opset=opset)
    names = [output.name for output in report.manifest.outputs]
    assert {"logits", "hidden_states_0", "attentions_0"} <= set(names), names
    order = [next(x for x in inputs if x in spec.name) for spec in report.manifest.inputs]
    got = dict(zip(names, run(tmp_path / "folder", *(inputs[name] for name in order)), strict=True))
    expected = as_numpy(inside(inputs if family != "vit" else inputs["images"]))
    real = MASK[..., None] if family != "vit" else 1
    assert_close(got["attentions_0"], expected["attentions"][0])
    for index, state in enumerate(expected["hidden_states"]):
        assert_close(got[f"hidden_states_{index}"] * real, state * real)


def test_saved_model_loads(tmp_path):
    inside = redraw(keras_tx.gpt("pico")).with_outputs(attentions=True)
    inside.save(tmp_path / "inside.keras")
    loaded = keras.saving.load_model(tmp_path / "inside.keras")
    inputs = {**TEXT, "position_ids": np.maximum(MASK.cumsum(1) - 1, 0)}
    for mine, expected in zip(*map(keras.tree.flatten, (loaded(inputs), inside(inputs))), strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(expected))
