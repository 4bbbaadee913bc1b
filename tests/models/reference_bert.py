"""Hugging Face's BERT, RoBERTa and DistilBERT weights put into ours, for comparing the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tx.models import Bert

# by the family's prefix: query, key, value, output, norm; up, down, norm
BERT_BLOCK = (
    "encoder.layer.{}",
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
)
BLOCKS = {
    "bert": BERT_BLOCK,
    "roberta": BERT_BLOCK,
    "distilbert": (
        "transformer.layer.{}",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 "
        "output_layer_norm",
    ),
}
HEADS = {  # our layer: the names that it has in the several models
    "prediction_dense": ("cls.predictions.transform.dense",),
    "prediction_norm": ("cls.predictions.transform.LayerNorm",),
    "seq_relationship_logits": ("cls.seq_relationship",),
    "pooler": ("pooler.dense", "classifier.dense", "pre_classifier"),
    "logits": ("classifier", "classifier.out_proj"),
    "span": ("qa_outputs",),
}


def load(model: Bert, state: Mapping[str, np.ndarray], family: str = "bert") -> None:
    """Assigns every tensor of the state; each is used exactly once, and no weight of ours is left out."""
    left = {name.removeprefix(f"{family}."): value for name, value in state.items()}
    words = left["embeddings.word_embeddings.weight"]
    tied = left.pop("cls.predictions.decoder.weight", words)  # a state dict has it twice
    assert np.array_equal(tied, words)
    left.pop("cls.predictions.decoder.bias", None)
    taken: list[Any] = []

    def put(variable: Any, value: np.ndarray) -> None:
        variable.assign(value)
        taken.append(variable.path)

    def put_layer(layer: Any, name: str) -> None:
        first, second = ("kernel", "bias") if hasattr(layer, "kernel") else ("gamma", "beta")
        weight = left.pop(f"{name}.weight")
        put(getattr(layer, first), weight.T if first == "kernel" else weight)
        put(getattr(layer, second), left.pop(f"{name}.bias"))

    table = left.pop("embeddings.position_embeddings.weight")
    types = left.pop("embeddings.token_type_embeddings.weight", None)
    if model.config.segments:
        put(model.get_layer("segments").table, types)
    elif types is not None:
        table = table + types  # RoBERTa's one type, which every token has
    put(model.get_layer("positions").table, table)
    put(model.get_layer("token_embedding").table, left.pop("embeddings.word_embeddings.weight"))
    put_layer(model.get_layer("embedding_norm"), "embeddings.LayerNorm")
    where, names = BLOCKS[family]
    for index in range(model.config.depth):
        block = model.get_layer(f"block_{index}")
        attention, feed_forward = block.attention, block.feed_forward
        layers = (
            *(attention.query, attention.key, attention.value, attention.output_projection),
            *(block.attention_norm, feed_forward.up, feed_forward.down, block.feed_forward_norm),
        )
        for layer, name in zip(layers, names.split(), strict=True):
            put_layer(layer, f"{where.format(index)}.{name}")
    if "cls.predictions.bias" in left:
        alone = "cls.seq_relationship.weight" not in left
        name = "logits" if alone else "prediction_logits"
        put(model.get_layer(name).bias, left.pop("cls.predictions.bias"))
    here = {layer.name: layer for layer in model.layers}
    for ours, theirs in HEADS.items():
        for name in theirs:
            if f"{name}.weight" in left:
                put_layer(here[ours], name)
    assert not left, f"not used: {sorted(left)}"
    assert sorted(taken) == sorted(v.path for v in model.weights), "a weight of ours was left out"
