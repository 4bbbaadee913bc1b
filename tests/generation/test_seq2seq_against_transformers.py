"""Encoder-decoders in Keras, and their exported folders, generate the tokens of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.models.generation import generate, stream
from keras_tx.runtime import TextToTextGenerator, load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import FP32, difference

SOURCES = [
    [*np.random.default_rng(index).integers(2, 40, 1 + 7 * index % 13).tolist(), 1] for index in range(34)
]
PAD = 0
STOPS = [1, 7, 22, 31]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "length_penalty": 0.7},
    {"num_beams": 3, "length_penalty": -0.5, "early_stopping": True, "samples": 2},
    {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never", "no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.4, "min_new_tokens": 4, "bad_words_ids": [[PAD], [9], [3, 11]]},
    {"num_beams": 2, "forced_bos_token_id": 9, "forced_eos_token_id": 1, "repetition_penalty": 1.2},
    {"suppress_tokens": [12, 25], "begin_suppress_tokens": [9, 30, 14], "forced_eos_token_id": [7, 3]},
    {"num_beams": 3, "forced_bos_token_id": 9, "begin_suppress_tokens": [7, 14], "bad_words_ids": [[24, 4]]},
    {"num_beams": 3, "suppress_tokens": [12, 25], "no_repeat_ngram_size": 2, "renormalize_logits": True},
]
NAMES = {"samples": "num_return_sequences"}  # ours -> transformers'
FAMILIES = {
    "t5": {"tied": True, "activation": "relu"},
    "t5-v1.1": {"tied": False, "activation": "geglu", "decoder_depth": 1, "scale_logits": False},
    "marian": {
        "positions": "sine-cosine-halves",
        "activation": "silu",
        "logits_bias": True,
        "norm_epsilon": 1e-5,
    },
}


@pytest.fixture(scope="module", params=FAMILIES)
def models(request, tmp_path_factory) -> tuple[Any, Any, Path]:
    """A model of transformers and one in Keras with the same weights, and the exported folder."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    torch.set_num_threads(1)
    factory = keras_tx.t5 if request.param.startswith("t5") else keras_tx.transformer
    ours: Any = factory(
        "tiny", vocabulary_size=40, pad_id=PAD, stop_ids=STOPS, dropout=0.0, **FAMILIES[request.param]
    )
    redraw(ours)
    matrix = 1.6 if factory is keras_tx.t5 else 2.5  # so that texts differ from source to source
    for weight in ours.weights:
        vector = 0.2 if weight.path.endswith(("bias", "beta")) else 1.0
        weight.assign(weight * (matrix if len(weight.shape) == 2 else vector))
    folder = tmp_path_factory.mktemp(request.param)
    keras_tx.save_checkpoint(ours, folder / "checkpoint")
    export_onnx(ours, folder / "export", verify=False)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "checkpoint").eval()
    return theirs, ours, folder / "export"


def of_transformers(
    model: Any, options: dict[str, Any], count: int
) -> tuple[list[list[int]], list[float] | None]:
    """The tokens without padding after the stop token, and the scores of beams."""
    import torch

    longest = max(map(len, SOURCES))
    ids = torch.tensor([source + [PAD] * (longest - len(source)) for source in SOURCES])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES])
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=STOPS,
            pad_token_id=PAD,
            return_dict_in_generate=True,
            output_scores=True,
            **{NAMES.get(name, name): value for name, value in options.items()},
        )
    rows = []
    for row in made.sequences[:, 1:].tolist():
        ends = [place for place, token in enumerate(row) if token in STOPS]
        assert set(row[ends[0] + 1 :] if ends else []) <= {PAD, STOPS[0]}
        rows.append(row[: ends[0] + 1] if ends else row)
    return rows, made.sequences_scores.tolist() if "num_beams" in options else None


def test_logits_equal_transformers(models):
    import torch

    theirs, ours, _ = models
    source, target = np.array([SOURCES[5]]), np.array([[PAD, 9, 3, 30, 12]])
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits
    actual = as_numpy(ours({"input_ids": source, "decoder_input_ids": target}))
    assert difference(actual, expected.numpy()) < FP32


def check(made: list[Any], options: dict[str, Any], expected: list[list[int]], scores: Any) -> None:
    """Asserts that generated texts have the expected tokens and scores."""
    texts = made if "samples" not in options else [text for group in made for text in group]
    assert [list(text.ids) for text in texts] == expected
    if scores is not None:
        np.testing.assert_allclose([text.score for text in texts], scores, rtol=1e-4, atol=1e-4)
    assert len({text.ids for text in texts}) > 8
    assert len({len(text.ids) for text in texts}) > 1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tokens_of_the_folder_equal_transformers(models, options):
    theirs, _, folder = models
    with load(folder, provider="cpu", threads=1) as model:
        assert isinstance(model, TextToTextGenerator)
        made = model.generate(SOURCES, max_new_tokens=16, **options)
    check(made, options, *of_transformers(theirs, options, 16))


@pytest.mark.parametrize(
    "options", [OPTIONS[1], *(pytest.param(x, marks=pytest.mark.thorough) for x in OPTIONS[::2])], ids=str
)
def test_tokens_in_keras_equal_transformers(models, options):
    theirs, ours, _ = models
    made = generate(ours, SOURCES, max_new_tokens=16, **options)
    check(made, options, *of_transformers(theirs, options, 16))


def test_stream_yields_the_tokens_of_generate(models):
    _, ours, folder = models
    (made,) = generate(ours, SOURCES[:1], max_new_tokens=12)
    assert tuple(stream(ours, SOURCES[0], max_new_tokens=12)) == made.ids
    with load(folder, provider="cpu", threads=1) as model:
        assert isinstance(model, TextToTextGenerator)
        assert tuple(model.stream(SOURCES[0], max_new_tokens=12)) == made.ids


def test_score_equals_transformers(models):
    import torch

    theirs, _, folder = models
    source, target = SOURCES[7], [9, 3, 30, 12, 1]
    with torch.no_grad():
        logits = theirs(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[PAD, *target[:-1]]])
        ).logits[0]
    expected = torch.log_softmax(logits, dim=-1)[range(5), target]
    with load(folder, provider="cpu", threads=1) as model:
        assert isinstance(model, TextToTextGenerator)
        scored = model.score(source, target)
    np.testing.assert_allclose(scored.log_probabilities, expected, atol=1e-4)
