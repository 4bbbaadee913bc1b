"""Adapter folders in both directions: the outputs equal those of peft and transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.models.adapters.layer_selection import adapted_layers
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

peft = pytest.importorskip("peft", reason='peft is not installed: pip install "keras-tx[parity]"')
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# peft and the code that it imports warn of their own deprecations.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

IDS = np.array([[2, 15, 27, 3], [2, 9, 3, 4]])
PIXELS = draw(2, 8, 8, 3)
CLASSIFIER = keras_tx.ClassifierHead(2)
SMALL: dict[str, Any] = {"vocabulary_size": 30, "depth": 2}
SIZES: dict[str, Any] = {"image_size": 8, "num_classes": 3}
MODELS: dict[str, tuple[Any, str]] = {
    "bert": (lambda: keras_tx.bert("tiny", **SMALL, head=CLASSIFIER), "AutoModelForSequenceClassification"),
    "distilbert": (
        lambda: keras_tx.bert("tiny", **SMALL, segments=0, pooler="relu", head=CLASSIFIER),
        "AutoModelForSequenceClassification",
    ),
    "masked": (lambda: keras_tx.bert("tiny", **SMALL, head=keras_tx.MaskedLMHead()), "AutoModelForMaskedLM"),
    "gpt2": (lambda: keras_tx.gpt("pico"), "AutoModelForCausalLM"),
    "llama": (lambda: keras_tx.gpt("llama-tiny"), "AutoModelForCausalLM"),
    "vit": (lambda: keras_tx.vit("Mu/2", **SIZES), "AutoModelForImageClassification"),
    "dinov2": (lambda: keras_tx.vit("Mu/2", **SIZES, layer_scale=1.0), "AutoModelForImageClassification"),
    "t5": (lambda: keras_tx.t5("tiny", vocabulary_size=30), "AutoModelForSeq2SeqLM"),
}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "stabilized": {"targets": "dense", "rank_stabilized": True, "alpha": 5.0},
    "dora": {"targets": ["query", "value"], "dora": True},
}


def ours(model: Any) -> np.ndarray:
    if isinstance(model, keras_tx.ViT):
        return as_numpy(model(PIXELS))
    if isinstance(model, keras_tx.T5):
        return as_numpy(model({"input_ids": IDS, "decoder_input_ids": IDS}))
    return as_numpy(model(IDS))


def theirs(model: Any) -> np.ndarray:
    ids = torch.tensor(IDS)
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            pixels = torch.tensor(np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2)))
            return model(pixel_values=pixels).logits.numpy()
        if model.config.is_encoder_decoder:
            return model(input_ids=ids, decoder_input_ids=ids).logits.numpy()
        return model(input_ids=ids).logits.numpy()


@pytest.fixture(scope="module", params=MODELS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkpoint, and the class of transformers that opens it."""
    make, opened_by = MODELS[request.param]
    return keras_tx.save_checkpoint(redraw(make()), tmp_path_factory.mktemp("base") / "model"), opened_by


def opened(base: tuple[Path, str]) -> Any:
    return getattr(transformers, base[1]).from_pretrained(base[0]).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions(base: tuple[Path, str], kind: str, tmp_path: Path):
    keras.utils.set_random_seed(0)
    model = keras_tx.lora(keras_tx.from_checkpoint(base[0]), 3, **KINDS[kind])
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(as_numpy(variable) + 0.1 * rng.standard_normal(variable.shape))
    folder = keras_tx.save_adapter(model, tmp_path / "ours", base=str(base[0]))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(missing|unexpected|Unexpected).*")
        adapted = peft.PeftModel.from_pretrained(opened(base), folder)
    expected = theirs(adapted.eval())
    assert np.abs(expected - theirs(opened(base))).max() > 1e-3
    assert_close(ours(model), expected)

    adapted.save_pretrained(tmp_path / "theirs")
    loaded = keras_tx.load_adapter(keras_tx.from_checkpoint(base[0]), tmp_path / "theirs")
    assert_close(ours(loaded), expected)


def test_an_adapter_that_peft_made(base: tuple[Path, str], tmp_path: Path):
    theirs_plain = opened(base)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", lora_dropout=0.1)
    adapted = peft.get_peft_model(theirs_plain, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.tensor(draw(*weight.shape, seed=2)) * 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    model = keras_tx.load_adapter(keras_tx.from_checkpoint(base[0]), tmp_path / "adapter")
    assert {layer.adapter.dropout for layer in adapted_layers(model).values()} == {0.1}
    assert_close(ours(model), theirs(adapted.eval()))


def test_packed_modules_keep_the_ranks_of_their_layers(tmp_path: Path):
    model = keras_tx.lora(keras_tx.gpt("pico"), 2, targets=["query", "value", "output"])
    folder = keras_tx.save_adapter(model, tmp_path / "adapter")
    config = peft.LoraConfig.from_pretrained(folder)
    ranks = [config.rank_pattern.get(f"transformer.h.0.attn.{x}", config.r) for x in ("c_attn", "c_proj")]
    assert ranks == [4, 2]
    loaded = adapted_layers(keras_tx.load_adapter(keras_tx.gpt("pico"), folder))
    assert {layer.adapter.rank for layer in loaded.values()} == {2}
    assert sorted(loaded) == sorted(adapted_layers(model))
