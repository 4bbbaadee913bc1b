"""Converts keras-hub's T5, in both directions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.heads import Seq2SeqLMHead
from keras_tx.models.families import KerasHub, WeightSource
from keras_tx.models.t5.model import T5, T5Config
from keras_tx.weights.assignment import model_tensors
from keras_tx.weights.keras_hub_tokenizers import text_transform
from keras_tx.weights.tensor_map import HEAD, Entry, Plan
from keras_tx.weights.tensor_source import Tensors

TASK = "T5Seq2SeqLM"
CLASSES = (TASK, "T5Backbone")
LENGTH = 512  # keras-hub's T5 has none
BUCKETS, MAX_DISTANCE = 32, 128  # of keras-hub's T5
REVERSE = "token_embedding/reverse_embeddings"
EXACT_GELU, TANH_GELU = 0.841345, 0.841192  # of 1


def read(source: Any) -> WeightSource:
    """Describes a live backbone or task; max_length is that of its preprocessor."""
    task = TASK in {kind.__name__ for kind in type(source).__mro__}
    backbone = source.backbone if task else source
    preprocessor = source.preprocessor if task else None
    where = f"the keras-hub model {source.name!r}"
    variables = dict(_variables(backbone))
    tensors = Tensors(
        where,
        {name: tuple(variable.shape) for name, variable in variables.items()},
        lambda name: ops.convert_to_numpy(variables[name]),
        sum(4 * math.prod(variable.shape) for variable in variables.values()),
    )
    fields = _fields(backbone, where)
    if preprocessor is not None:
        lengths = (preprocessor.encoder_sequence_length, preprocessor.decoder_sequence_length)
        fields["max_length"] = max(length or LENGTH for length in lengths)
    return WeightSource(
        where=where,
        model_class=T5,
        fields=fields,
        head=Seq2SeqLMHead() if task else None,
        processing=text_transform(preprocessor, where),
        tensors=tensors,
        plan=plan,
    )


def _fields(backbone: Any, where: str) -> dict[str, Any]:
    value = float(backbone.activation(ops.convert_to_tensor(1.0)))
    gated = backbone.use_gated_activation
    if abs(value - (TANH_GELU if gated else 1.0)) > 1e-5:
        if not gated or abs(value - EXACT_GELU) > 1e-5:
            raise ConfigError(
                f"{where} has activation={keras.activations.serialize(backbone.activation)!r} and "
                f"use_gated_activation={gated}; only 'relu' without and 'gelu' with gates are supported."
            )
        warnings.warn(
            f"{where} has gates with the exact gelu; the model has its tanh approximation, with which T5 "
            "v1.1 and FLAN were trained. Outputs differ slightly.",
            stacklevel=user_stacklevel(),
        )
    return {
        "width": backbone.hidden_dim,
        "depth": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "head_dim": backbone.key_value_dim or backbone.hidden_dim // backbone.num_heads,
        "mlp_dim": backbone.intermediate_dim,
        "vocabulary_size": backbone.vocabulary_size,
        "max_length": LENGTH,
        "activation": "geglu" if gated else "relu",
        "tied": backbone.tie_embedding_weights,
        "scale_logits": backbone.tie_embedding_weights,
        "norm_epsilon": backbone.layer_norm_epsilon,
        "dropout": backbone.dropout,
    }


def plan(model: T5) -> Plan:
    """Returns the tensor map between a model and the names of `_variables`."""
    config: T5Config = model.config
    entries = [Entry("token_embedding/embeddings", ("token_embedding/table",))]
    names = {"input": "up", "output": "down"}
    if config.activation == "geglu":
        names = {"input": "gate", "gate": "up", "output": "down"}
    for part in ("encoder", "decoder"):
        for index in range(config.depth):
            name, block = f"{part}/{index}", f"{part}_block_{index}"
            for kind in ("attention", "cross_attention")[: 1 if part == "encoder" else 2]:
                entries.append(Entry(f"{name}/{kind}_norm", (f"{block}/{kind}_norm/scale",)))
                entries += [
                    Entry(f"{name}/{kind}/{layer}", (f"{block}/{kind}/{layer}/kernel",))
                    for layer in ("query", "key", "value", "output")
                ]
            entries.append(Entry(f"{name}/feed_forward_norm", (f"{block}/feed_forward_norm/scale",)))
            entries += [
                Entry(f"{name}/{theirs}", (f"{block}/feed_forward/{ours}/kernel",))
                for theirs, ours in names.items()
            ]
        entries.append(Entry(f"{part}/relative_bias", (f"{part}_relative_bias/table",)))
        entries.append(Entry(f"{part}/norm", (f"{part}_norm/scale",)))
    if model.head is not None and not config.tied:
        entries.append(Entry(REVERSE, (f"{contract.LOGITS}/kernel",), part=HEAD))
    return Plan(tuple(entries), others=(REVERSE,))


def _variables(backbone: Any) -> Iterator[tuple[str, Any]]:
    """Yields the variables of a backbone by names of this module: some of its layers have numbered names."""
    embedding = backbone.token_embedding
    yield "token_embedding/embeddings", embedding.embeddings
    if not backbone.tie_embedding_weights:
        yield REVERSE, embedding.reverse_embeddings
    for part in ("encoder", "decoder"):
        layers = getattr(backbone, f"{part}_transformer_layers")
        for index, layer in enumerate(layers):
            for kind, path in (("attention", "self_attention"), ("cross_attention", "cross_attention")):
                attention = getattr(layer, path, None)
                if attention is None:
                    continue
                yield f"{part}/{index}/{kind}_norm", getattr(layer, f"{path}_layer_norm").weight
                for name in ("query", "key", "value", "output"):
                    yield f"{part}/{index}/{kind}/{name}", getattr(attention, f"{name}_projector").kernel
            yield f"{part}/{index}/feed_forward_norm", layer.layer_norm.weight
            for name in ("input", "gate", "output")[:: 1 if backbone.use_gated_activation else 2]:
                yield f"{part}/{index}/{name}", getattr(layer, f"{name}_projector").kernel
        yield f"{part}/relative_bias", layers[0].self_attention.relative_attention_bias
        yield f"{part}/norm", getattr(backbone, f"{part}_layer_norm").weight


def to_keras_hub(model: T5) -> Any:
    """Returns a T5Seq2SeqLM, or a backbone for a model without a head, with equal outputs.

    The task has no preprocessor: keras-hub's tokenizers need a SentencePiece file.
    """
    import keras_hub

    config: T5Config = model.config
    reasons = [
        f"{name}={getattr(config, name)}"
        for name, expected in (
            ("decoder_depth", None),
            ("relative_buckets", BUCKETS),
            ("relative_max_distance", MAX_DISTANCE),
            ("scale_logits", config.tied),
        )
        if getattr(config, name) != expected
    ]
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which keras-hub's T5 does not support. Save it "
            "with model.save."
        )
    if model.processing is not None:
        warnings.warn(
            f"The tokenizer of model {model.name!r} is omitted, because keras-hub's T5 reads only "
            "SentencePiece files. Pass token ids to the task.",
            stacklevel=user_stacklevel(),
        )
    gated = config.activation == "geglu"
    gelu = keras.saving.get_registered_object("keras_hub>gelu_approximate")
    models: Any = keras_hub.models
    backbone = models.T5Backbone(
        vocabulary_size=config.vocabulary_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        intermediate_dim=config.mlp_dim,
        key_value_dim=config.head_dim,
        dropout=config.dropout,
        activation=gelu if gated else "relu",
        use_gated_activation=gated,
        layer_norm_epsilon=config.norm_epsilon,
        tie_embedding_weights=config.tied,
        dtype=model.layers_policy,
    )
    variables = dict(_variables(backbone))
    for entry, value in model_tensors(model, plan(model)):
        variables.pop(entry.name).assign(value)
    variables.pop(REVERSE, None)  # of a backbone without a head
    assert not variables, sorted(variables)
    return backbone if model.head is None else models.T5Seq2SeqLM(backbone=backbone, preprocessor=None)


CONVERTER = KerasHub(CLASSES, read, to_keras_hub, tokenizers=True)
