"""The records of the model families, and functions that look them up.

A record describes a family to the rest of the package, so that no other module depends on one family.
Converters are imported when they are first used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keras_tx.errors import ConfigError

if TYPE_CHECKING:
    from keras_tx.heads import Head
    from keras_tx.models.transformer_model import TransformerModel
    from keras_tx.processing import TextTransform
    from keras_tx.weights.config_json import Fields
    from keras_tx.weights.tensor_map import Plan
    from keras_tx.weights.tensor_source import Checkpoint, Tensors

INTERFACES = ("vision", "encoder", "decoder", "encoder-decoder")


@dataclasses.dataclass(frozen=True)
class WeightSource:
    """The description of a checkpoint, file or live model by a converter.

    Args:
        where: the name of the source in messages.
        model_class: the class of its model.
        fields: of the config; None if the source contains only tensors.
        head: the head; None for a model without a head; a ConfigError for an unsupported head, raised
            unless another head is passed.
        processing: the tokenizer or image transform, or None.
        tensors: the tensors.
        plan: returns the tensor map of a model of this config, with this or another head. It reads only
            paths and shapes of the model's variables.
        config: the config.json of the fields, if any.
        adapted: adjusts a config to the head and the overrides, if layers below the head depend on them.
    """

    where: str
    model_class: type[TransformerModel]
    fields: dict[str, Any] | None
    head: Head | ConfigError | None
    processing: Any
    tensors: Tensors
    plan: Callable[[Any], Plan]
    config: Fields | None = None
    adapted: Callable[[Any, Head | None, dict[str, Any]], Any] | None = None


@dataclasses.dataclass(frozen=True)
class HuggingFaceConfig:
    """A model's config.json.

    Args:
        content: of the file, without model_type and architectures if `unsupported` is not empty.
        unsupported: options of the model that no class of transformers has.
    """

    content: dict[str, Any]
    unsupported: Sequence[str] = ()

    @property
    def note(self) -> str | None:
        """Why the file has no model_type, for the report of an export; None if it has one."""
        if not self.unsupported:
            return None
        return (
            f"config.json has no model_type: no class of transformers has {', '.join(self.unsupported)}. "
            "Clients that need one (Optimum, transformers.js) cannot open the folder; onnxruntime and "
            "keras_tx.runtime can."
        )


@dataclasses.dataclass(frozen=True)
class HuggingFace:
    """The converter between a family and Hugging Face folders.

    Args:
        model_types: values of `model_type` in config.json that `read` supports.
        read: describes a checkpoint that has a config.json.
        plan: returns the tensor map between a model and the tensors of a checkpoint; with None as second
            argument, that of a checkpoint for `save_checkpoint`.
        config: returns the config.json of a model with these labels and this tokenizer, by default the
            model's own.
        files: the other files of a checkpoint, by name: text, or content for a JSON file.
        module_name: returns the name of a module in the class of transformers 5, for a model and the name of
            the module in checkpoints; None if the class has no such module.
    """

    model_types: tuple[str, ...]
    read: Callable[[Checkpoint], WeightSource]
    plan: Callable[[Any, Tensors | None], Plan]
    config: Callable[[Any, Sequence[str] | None, TextTransform | None], HuggingFaceConfig]
    files: Callable[[Any], dict[str, Any]] = lambda model: {}
    module_name: Callable[[Any, str], str | None] = lambda model, name: name


@dataclasses.dataclass(frozen=True)
class KerasHub:
    """The converter between a family and keras-hub.

    Args:
        classes: names of the backbones and tasks that `read` supports.
        read: describes a live backbone or task.
        write: returns a backbone or task with the weights of a model.
        tokenizers: whether a preset of a backbone without preprocessor has a tokenizer for the family.
    """

    classes: tuple[str, ...]
    read: Callable[[Any], WeightSource]
    write: Callable[[Any], Any]
    tokenizers: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """The record of a model family.

    The class `model_class` has the config class, the heads and the kind of processing as attributes; the
    config class has `variant(name, **overrides)`.

    Args:
        name: of the factory, such as "vit".
        title: the family's name in messages and in the help of the command line, such as "ViT".
        model_class: a TransformerModel.
        factory: creates a model from the name of a variant.
        variants: the names of the published sizes.
        interface: of the exported graph: "vision", "encoder", "decoder" or "encoder-decoder".
        huggingface: returns the converter for Hugging Face folders; None if there is none.
        keras_hub: returns the converter for keras-hub; None if there is none.
    """

    name: str
    title: str
    model_class: type[TransformerModel]
    factory: Callable[..., TransformerModel]
    variants: tuple[str, ...]
    interface: str
    huggingface: Callable[[], HuggingFace] | None = None
    keras_hub: Callable[[], KerasHub] | None = None

    def __post_init__(self) -> None:
        if self.interface not in INTERFACES:
            raise ConfigError(
                f"interface={self.interface!r} is unknown. Pass one of {', '.join(INTERFACES)}."
            )

    @property
    def config_class(self) -> type:
        return self.model_class.config_class

    @property
    def heads(self) -> tuple[type[Head], ...]:
        return self.model_class.heads

    def config_json(
        self, model: Any, labels: Sequence[str] | None = None, processing: TextTransform | None = None
    ) -> HuggingFaceConfig:
        """Returns the config.json of a model; without a converter, one for keras_tx.runtime only."""
        if self.huggingface is not None:
            return self.huggingface().config(model, labels, processing)
        values = dataclasses.asdict(model.config)
        fields = {key: values[name] for name, key in NAMES.items() if values.get(name) is not None}
        return HuggingFaceConfig({**fields, **label_fields(labels)}, (f"the architecture of {self.title}",))


NAMES = {  # of config fields in a config.json without model_type
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "image_size": "image_size",
    "channels": "num_channels",
}


def label_fields(labels: Sequence[str] | None) -> dict[str, Any]:
    """Returns id2label and label2id of a config.json."""
    if labels is None:
        return {}
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def _vit() -> Family:
    from keras_tx.models.vit.record import RECORD

    return RECORD


def _bert() -> Family:
    from keras_tx.models.bert.record import RECORD

    return RECORD


def _modernbert() -> Family:
    from keras_tx.models.modernbert.record import RECORD

    return RECORD


def _deberta() -> Family:
    from keras_tx.models.deberta.record import RECORD

    return RECORD


def _gpt() -> Family:
    from keras_tx.models.gpt.record import RECORD

    return RECORD


def _transformer() -> Family:
    from keras_tx.models.transformer.record import RECORD

    return RECORD


def _t5() -> Family:
    from keras_tx.models.t5.record import RECORD

    return RECORD


_RECORDS: dict[str, Callable[[], Family]] = {
    "vit": _vit,
    "bert": _bert,
    "modernbert": _modernbert,
    "deberta": _deberta,
    "gpt": _gpt,
    "transformer": _transformer,
    "t5": _t5,
}


def register_family(family: Family) -> None:
    """Registers the record of a family that is defined outside the package.

    Raises:
        ConfigError: if the name is registered already.
    """
    if family.name in _RECORDS:
        raise ConfigError(f"A family {family.name!r} is registered already. Choose another name.")
    _RECORDS[family.name] = lambda: family


def family_names() -> tuple[str, ...]:
    """Returns the names of all families, without importing them."""
    return tuple(_RECORDS)


def families() -> tuple[Family, ...]:
    """Returns the records of all families."""
    return tuple(record() for record in _RECORDS.values())


def family_of(model: Any) -> Family | None:
    """Returns the record of a model's family, or None for other models."""
    return next((family for family in families() if isinstance(model, family.model_class)), None)


def variant_config(text: str, **overrides: Any) -> Any:
    """Returns the config of "family:variant", such as "gpt:124M", with other values of its fields.

    Raises:
        ConfigError: the family, the variant or a field is unknown.
    """
    name, colon, variant = text.partition(":")
    if name not in _RECORDS or not colon:
        raise ConfigError(
            f"model={text!r} is unknown. Pass a family and a variant, such as gpt:124M; the families are "
            f"{', '.join(_RECORDS)}."
        )
    return _RECORDS[name]().config_class.variant(variant, **overrides)


def factories() -> str:
    """Returns the names of all factories, for messages."""
    *others, last = (f"keras_tx.{name}" for name in family_names())
    return f"{', '.join(others)} or {last}"


def expected_models() -> str:
    """Returns a description of the models of all families, for messages."""
    return f"a model from {factories()}"
