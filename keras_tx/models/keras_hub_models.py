"""keras-hub's presets, by name or folder, and its live models: who reads them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import keras

from keras_tx.errors import ConfigError, nearest
from keras_tx.models.bert import keras_hub as keras_hub_bert
from keras_tx.models.bert.model import Bert
from keras_tx.models.gpt import keras_hub as keras_hub_gpt
from keras_tx.models.vit import keras_hub as keras_hub_vit
from keras_tx.models.weight_source import WeightSource
from keras_tx.weights.keras_hub_tokenizers import text_transform

READERS: tuple[Any, ...] = (keras_hub_vit, keras_hub_bert, keras_hub_gpt)
FILES = ("config.json", "metadata.json")  # of a preset's folder
TASK = "task.json"
TOKENIZER = "tokenizer.json"
NAME = re.compile(r"[a-z0-9]+(_[a-z0-9.]+)+")  # as "bert_base_en"
URLS = ("kaggle://", "modelscope://", "gs://")

# Families that only keras-hub supports, by Hugging Face's model_type: the class of keras-hub, and one of its
# presets if keras-hub does not read Hugging Face's files of the family.
OTHERS: dict[str, tuple[str, str | None]] = {
    "albert": ("AlbertBackbone", None),
    "bart": ("BartBackbone", None),
    "blip-2": ("BLIP2Backbone", None),
    "bloom": ("BloomBackbone", "bloom_560m_multi"),
    "clip": ("CLIPBackbone", "clip_vit_base_patch32"),
    "deberta-v2": ("DebertaV3Backbone", "deberta_v3_small_en"),
    "dinov3_vit": ("DINOV3Backbone", None),
    "electra": ("ElectraBackbone", "electra_small_discriminator_uncased_en"),
    "esm": ("ESMBackbone", None),
    "falcon": ("FalconBackbone", "falcon_refinedweb_1b_en"),
    "fnet": ("FNetBackbone", "f_net_base_en"),
    "gemma": ("GemmaBackbone", None),
    "gemma2": ("GemmaBackbone", None),
    "gemma3": ("Gemma3Backbone", None),
    "gemma3_text": ("Gemma3Backbone", None),
    "gpt_oss": ("GptOssBackbone", None),
    "metaclip_2": ("MetaCLIP2Backbone", None),
    "mixtral": ("MixtralBackbone", None),
    "moonshine": ("MoonshineBackbone", "moonshine_tiny_en"),
    "opt": ("OPTBackbone", "opt_125m_en"),
    "paligemma": ("PaliGemmaBackbone", None),
    "phi3": ("Phi3Backbone", "phi3_mini_4k_instruct_en"),
    "qwen2": ("QwenBackbone", None),
    "qwen2_moe": ("QwenMoeBackbone", None),
    "qwen3": ("Qwen3Backbone", None),
    "qwen3_moe": ("Qwen3MoeBackbone", None),
    "resnet": ("ResNetBackbone", "resnet_50_imagenet"),
    "siglip": ("SigLIPBackbone", "siglip_base_patch16_224"),
    "smollm3": ("SmolLM3Backbone", None),
    "swin": ("SwinTransformerBackbone", None),
    "t5": ("T5Backbone", "t5_small_multi"),
    "t5gemma": ("T5GemmaBackbone", None),
    "whisper": ("WhisperBackbone", "whisper_tiny_en"),
}


def advice(model_type: str, place: object) -> str:
    """How to export a family that only keras-hub supports, for the end of an error; otherwise empty."""
    if model_type not in OTHERS:
        return ""
    name, preset = OTHERS[model_type]
    source, made = (str(place), "it") if preset is None else (preset, "its presets")
    return (
        f"keras-hub reads {made}: keras_tx_onnx.export_onnx(keras_hub.models.{name}.from_preset({source!r}), "
        '"folder") exports it.'
    )


def is_url(name: str) -> bool:
    return name.startswith(URLS)


def is_name(name: str) -> bool:
    """Whether it could be the name of a preset; the package is loaded only to look it up."""
    return NAME.fullmatch(name) is not None and not name.endswith((".keras", ".h5", ".safetensors"))


def is_folder(path: Path) -> bool:
    return all((path / name).is_file() for name in FILES)


def is_model(source: Any) -> bool:
    """Whether it is a backbone or task; asked where keras_hub is loaded already."""
    import keras_hub

    return isinstance(source, keras_hub.models.Backbone | keras_hub.models.Task)


def of_model(source: keras.Model) -> WeightSource:
    names = [kind.__name__ for kind in type(source).__mro__]
    for reader in READERS:
        if set(names) & set(reader.CLASSES):
            return reader.origin(source)
    known = ", ".join(name for reader in READERS for name in reader.CLASSES)
    raise ConfigError(
        f"keras-hub's {names[0]} {source.name!r} is not one of the models whose weights are read: {known}. "
        "keras_tx_onnx.export_onnx exports it unchanged."
    )


def of_preset(name: str) -> WeightSource:
    """Loads a preset as what it was saved as: a task with its head, or a backbone."""
    try:
        import keras_hub
        from keras_hub.src.utils import preset_utils  # whether a preset is a task, no public name says
    except ImportError as error:
        raise ConfigError(f'{name} is read by keras-hub: pip install "keras-tx[cpu]".') from error
    known = keras_hub.models.Backbone.presets
    if not is_url(name) and "://" not in name and not Path(name).exists() and name not in known:
        raise ConfigError(f"{name} is neither a path nor a preset of keras-hub. {nearest(name, known)}")
    models = keras_hub.models
    try:
        kind: Any = models.Backbone
        if preset_utils.check_file_exists(name, TASK):
            kind = getattr(models, str(preset_utils.load_json(name, TASK).get("class_name")), None)
            if not (isinstance(kind, type) and issubclass(kind, models.Task)):
                raise ConfigError(f"{name}: its {TASK} names no task of keras-hub.")
        loaded = kind.from_preset(name)
    except ConfigError:
        raise
    except Exception as error:  # whatever downloading, reading and building raise, each library its own
        raise ConfigError(
            f"keras-hub could not load the preset {name}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    origin = of_model(loaded)
    if (
        origin.family is Bert
        and origin.processing is None
        and preset_utils.check_file_exists(name, TOKENIZER)
    ):
        # A backbone has none, but its folder does.
        tokenizer = text_transform(models.Tokenizer.from_preset(name), origin.where)
        fields = dict(origin.fields or {})
        if tokenizer is not None and tokenizer.pad_token is not None:
            fields["pad_id"] = tokenizer.pad_id
        origin = dataclasses.replace(origin, processing=tokenizer, fields=fields)
    return origin
