"""Reads keras-hub's presets and live models, and converts models to keras-hub."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import keras

from keras_tx.errors import ConfigError, nearest
from keras_tx.models.families import KerasHub, WeightSource, families, family_of
from keras_tx.weights.keras_hub_tokenizers import text_transform
from keras_tx.weights.weight_values import check_finite

FILES = ("config.json", "metadata.json")  # of a preset
TASK = "task.json"
TOKENIZER = "tokenizer.json"
NAME = re.compile(r"[a-z0-9]+(_[a-z0-9.]+)+")  # as "bert_base_en"
URLS = ("kaggle://", "modelscope://", "gs://")

# Families that only keras-hub supports, by Hugging Face's model_type: the class of keras-hub, and one of its
# presets if keras-hub does not read Hugging Face's files of the family.
OTHERS: dict[str, tuple[str, str | None]] = {
    "albert": ("AlbertBackbone", None),
    "blip-2": ("BLIP2Backbone", None),
    "bloom": ("BloomBackbone", "bloom_560m_multi"),
    "clip": ("CLIPBackbone", "clip_vit_base_patch32"),
    "deberta-v2": ("DebertaV3Backbone", "deberta_v3_small_en"),
    "dinov3_vit": ("DINOV3Backbone", None),
    "electra": ("ElectraBackbone", "electra_small_discriminator_uncased_en"),
    "esm": ("ESMBackbone", None),
    "falcon": ("FalconBackbone", "falcon_refinedweb_1b_en"),
    "fnet": ("FNetBackbone", "f_net_base_en"),
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
    "qwen2_moe": ("QwenMoeBackbone", None),
    "qwen3_moe": ("Qwen3MoeBackbone", None),
    "resnet": ("ResNetBackbone", "resnet_50_imagenet"),
    "siglip": ("SigLIPBackbone", "siglip_base_patch16_224"),
    "smollm3": ("SmolLM3Backbone", None),
    "swin": ("SwinTransformerBackbone", None),
    "t5gemma": ("T5GemmaBackbone", None),
    "whisper": ("WhisperBackbone", "whisper_tiny_en"),
}


def advice(model_type: str, place: object) -> str:
    """Returns how to export a family that only keras-hub supports, for an error; otherwise empty."""
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
    """Whether a name has the form of a preset; keras_hub is not imported."""
    return NAME.fullmatch(name) is not None and not name.endswith((".keras", ".h5", ".safetensors"))


def is_folder(path: Path) -> bool:
    return all((path / name).is_file() for name in FILES)


def is_model(source: Any) -> bool:
    """Whether an object is a backbone or task; imports keras_hub."""
    import keras_hub

    return isinstance(source, keras_hub.models.Backbone | keras_hub.models.Task)


def of_model(source: keras.Model) -> WeightSource:
    return _converter_of(source).read(source)


def _converter_of(source: keras.Model) -> KerasHub:
    names = [kind.__name__ for kind in type(source).__mro__]
    converters = [family.keras_hub() for family in families() if family.keras_hub is not None]
    for converter in converters:
        if set(names) & set(converter.classes):
            return converter
    known = ", ".join(name for converter in converters for name in converter.classes)
    raise ConfigError(
        f"Weights of keras-hub's {names[0]} {source.name!r} are not supported; expected one of {known}. "
        "keras_tx_onnx.export_onnx exports the model unchanged."
    )


def to_keras_hub(model: Any) -> Any:
    """Returns a keras-hub backbone or task with the weights of a model, and equal outputs.

    `save_to_preset` of the result writes a preset.

    Args:
        model: a model from a factory or `from_checkpoint`.

    Returns:
        A keras-hub backbone for a model without a head, else a task.

    Raises:
        ConfigError: if keras-hub does not support an option of the model.

    Example:

    >>> import keras_tx
    >>> type(keras_tx.to_keras_hub(keras_tx.gpt("pico"))).__name__
    'GPT2CausalLM'
    """
    family = family_of(model)
    if family is None or family.keras_hub is None:
        known = [record.model_class.__name__ for record in families() if record.keras_hub]
        raise ConfigError(
            f"model is a {type(model).__name__}, expected one of {', '.join(known)}. keras-hub has no "
            "counterpart of other models."
        )
    check_finite(model, "Use weights from before its training diverged.")
    return family.keras_hub().write(model)


# Branches: each failure of keras-hub has its own error.
def of_preset(name: str) -> WeightSource:
    """Loads a preset: a task with its head if it was saved as one, else a backbone."""
    try:
        import keras_hub
        from keras_hub.src.utils import preset_utils  # no public function tells tasks from backbones
    except ImportError as error:
        raise ConfigError(f'{name} requires keras-hub. Run pip install "keras-tx[cpu]".') from error
    known = keras_hub.models.Backbone.presets
    if not is_url(name) and "://" not in name and not Path(name).exists() and name not in known:
        raise ConfigError(f"{name} is neither a path nor a preset of keras-hub. {nearest(name, known)}")
    models = keras_hub.models
    try:
        kind: Any = models.Backbone
        if preset_utils.check_file_exists(name, TASK):
            kind = getattr(models, str(preset_utils.load_json(name, TASK).get("class_name")), None)
            if not (isinstance(kind, type) and issubclass(kind, models.Task)):
                raise ConfigError(
                    f"{name}: class_name in {TASK} is not a task of keras-hub. Update keras-hub."
                )
        loaded = kind.from_preset(name)
    except ConfigError:
        raise
    except Exception as error:  # downloading, reading and building raise errors of many libraries
        raise ConfigError(
            f"keras-hub could not load the preset {name}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    converter = _converter_of(loaded)
    source = converter.read(loaded)
    missing = source.processing is None and preset_utils.check_file_exists(name, TOKENIZER)
    if converter.tokenizers and missing:
        # The backbone has no tokenizer, but its preset does.
        tokenizer = text_transform(models.Tokenizer.from_preset(name), source.where)
        fields = dict(source.fields or {})
        if tokenizer is not None and tokenizer.pad_token is not None:
            fields["pad_id"] = tokenizer.pad_id
        source = dataclasses.replace(source, processing=tokenizer, fields=fields)
    return source
