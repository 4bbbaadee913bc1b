"""A small model of each family and head, for tests of checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from tests.decoder_architectures import ARCHITECTURES
from tests.drawing import as_numpy

LABELS = ("yes", "no", "perhaps")
HEADS = {
    "none": None,
    "classes": keras_tx.ClassifierHead(3, labels=LABELS),
    "number": keras_tx.RegressionHead(),
    "masked": keras_tx.MaskedLMHead(),
    "next": keras_tx.NextSentenceHead(),
    "both": keras_tx.PretrainingHead(),
    "tags": keras_tx.TokenClassifierHead(4),
    "span": keras_tx.SpanHead(),
    "sentence": keras_tx.SentenceEmbeddingHead(),
}
MODELS: dict[str, Any] = {
    **{f"bert, {name}": lambda head=head: bert(head, width=16, depth=1) for name, head in HEADS.items()},
    "gpt": lambda: keras_tx.gpt("pico"),
    "gpt, none": lambda: keras_tx.gpt("pico", head=None),
    "llama": lambda: keras_tx.gpt("llama-tiny"),
    **{name: lambda x=x: keras_tx.gpt(x[0], **x[1]) for name, x in ARCHITECTURES.items()},
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, num_classes=3, drop_path=0.1),
    "deit": lambda: keras_tx.vit(
        "Mu/2", image_size=8, distillation=True, head=keras_tx.DistilledClassifierHead(3)
    ),
    "vit, none": lambda: keras_tx.vit("Mu/2", image_size=8),
}


def bert(head: Any = None, **options: Any) -> Any:
    return keras_tx.bert("tiny", head=head, **{"vocabulary_size": 40, "max_length": 16, **options})


def load_in_transformers(model: Any, folder: Any) -> Any:
    """Returns transformers' model, of the class in the checkpoint that we write, with the same weights."""
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    keras_tx.save_checkpoint(model, folder)
    name = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    return getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()


def assert_same_weights(one: Any, other: Any) -> None:
    ours, theirs = ({x.path: as_numpy(x) for x in model.weights} for model in (one, other))
    assert set(ours) == set(theirs)
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)
