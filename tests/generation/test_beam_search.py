"""Beam search in Keras and in both graphs of a folder equals transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.generation import Generator
from keras_tx.models.generation import generate
from keras_tx.runtime import Session, TextGenerator, load
from keras_tx.runtime.cached_decoder import CachedDecoder
from tests.runtime.counting_decoder import byte_tokenizer, make

PROMPTS = [[5, 17, 9], [1], [20, 3, 3, 39, 7, 9]]
OPTIONS: list[dict[str, Any]] = [
    {"num_beams": 3},
    {"num_beams": 4, "length_penalty": 2.0, "stop_tokens": [13]},
    {"num_beams": 4, "length_penalty": -1.0, "stop_tokens": [13, 11, 28]},
    {"num_beams": 5, "length_penalty": 0.0, "early_stopping": "never", "stop_tokens": [11, 28]},
    {"num_beams": 3, "length_penalty": 1.5, "early_stopping": "never", "stop_tokens": [13, 10, 6]},
    {"num_beams": 3, "early_stopping": True, "stop_tokens": [11, 28]},
    {"num_beams": 4, "samples": 3, "stop_tokens": [13, 33, 28]},
    {"num_beams": 3, "repetition_penalty": 1.3, "stop_tokens": [7]},
    {"num_beams": 4, "repetition_penalty": 2.5, "renormalize_logits": True, "stop_tokens": [7]},
]
IN_KERAS = OPTIONS[4:7:2]  # which takes longest
PADDING = 39


def of_transformers(model: Any, options: dict[str, Any], count: int) -> tuple[list[list[int]], list[float]]:
    import torch

    options = dict(options)
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS])
    stops = options.pop("stop_tokens", None)
    options["num_return_sequences"] = options.pop("samples", 1)
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=stops,
            pad_token_id=PADDING,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    return made.sequences[:, longest:].tolist(), made.sequences_scores.tolist()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_beam_search_equals_transformers(both, options):
    theirs, ours, folder = both
    count = 24
    expected, scores = of_transformers(theirs, options, count)
    own = {"stop_tokens": [], **options, "max_new_tokens": count}
    with load(folder, provider="cpu", threads=1) as poet:
        assert isinstance(poet, TextGenerator)
        results = [poet.generate(PROMPTS, **own), [poet.generate(prompt, **own) for prompt in PROMPTS]]
        plain = CachedDecoder(Session(folder / contract.MODEL, "cpu", 1), poet.context)
        results.append(Generator(plain, poet.stop_ids, "plain", None).generate(PROMPTS, **own))
    if options in IN_KERAS:
        results.append(generate(ours, PROMPTS, **own))
    for made in results:
        texts = made if "samples" not in options else [text for group in made for text in group]
        assert len(texts) == len(expected)
        for text, sequence, score in zip(texts, expected, scores, strict=True):
            assert list(text.ids) == sequence[: len(text.ids)]
            assert set(sequence[len(text.ids) :]) <= {PADDING}
            assert text.score == pytest.approx(score, rel=1e-5)
            ended = text.ids[-1] in own["stop_tokens"]
            assert text.finish == ("stop" if ended else "length")
            assert ended or len(text.ids) == count


def test_beams_score_above_greedy(both):
    """The total log probability equals `score` and is at least that of the greedy text."""
    _, _, folder = both
    with load(folder, provider="cpu", threads=1) as poet:
        assert isinstance(poet, TextGenerator)
        options = {"max_new_tokens": 12, "stop_tokens": [], "log_probabilities": True}
        best = poet.generate(PROMPTS[0], num_beams=6, length_penalty=0.0, **options)
        greedy = poet.generate(PROMPTS[0], **options)
        scored = poet.score([*PROMPTS[0], *best.ids]).log_probabilities[len(PROMPTS[0]) - 1 :]
        np.testing.assert_allclose(best.log_probabilities, scored, atol=1e-4)
        assert best.score == pytest.approx(sum(scored), abs=1e-3)
        assert best.score > sum(greedy.log_probabilities) + 0.05


def test_beams_end_at_context(both):
    _, _, folder = both
    with load(folder, provider="cpu", threads=1) as poet:
        assert isinstance(poet, TextGenerator)
        made = poet.generate([[1] * 60, [1] * 55], num_beams=2, stop_tokens=[])
        assert [(len(text.ids), text.finish) for text in made] == [(1, "context"), (6, "context")]
        alone = poet.generate([1] * 55, num_beams=2, stop_tokens=[])
        assert alone.ids == made[1].ids


def test_stop_strings_and_cancelled(tmp_path):
    pytest.importorskip("tokenizers")
    with load(make(tmp_path / "writer", tokenizer=byte_tokenizer()), provider="cpu") as writer:
        assert isinstance(writer, TextGenerator)
        options: dict[str, Any] = {"num_beams": 3, "samples": 3, "max_new_tokens": 20, "stop_tokens": []}
        whole = writer.generate("ab", **options)[0]
        stop = whole.text[4:6]
        made = writer.generate("ab", stop=stop, length_penalty=-1.0, **options)
        stopped = [text for text in made if text.finish == "stop"]
        assert stopped
        for text in stopped:
            assert stop not in text.text
            assert stop in writer.tokenizer.decode(list(text.ids))
        asked = iter([False, False, True])
        cut = writer.generate("ab", cancelled=lambda: next(asked), **options)
        assert {(text.finish, len(text.ids)) for text in cut} == {("cancelled", 3)}
        late = writer.generate("ab", deadline=1e-9, **options)
        assert {(text.finish, len(text.ids)) for text in late} == {("deadline", 1)}


BAD = [
    ({"num_beams": 0}, "num_beams is 0"),
    ({"num_beams": 2, "seed": 1}, "num_beams=2 .* seed"),
    ({"num_beams": 2, "samples": 3}, "samples=3 .*num_beams=2"),
    ({"num_beams": 2, "at_context": "slide"}, "at_context='slide' .*num_beams=2"),
    ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
    ({"num_beams": 2, "early_stopping": "always"}, "early_stopping is 'always'"),
    ({"length_penalty": 1.0}, r"length_penalty=1\.0 .*num_beams"),
    ({"early_stopping": True}, "early_stopping=True .*num_beams"),
    ({"beams": 4}, "'beams'.*'num_beams'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[row[1] for row in BAD])
def test_invalid_beam_options_raise(options, message, tmp_path):
    with load(make(tmp_path / "counter"), provider="cpu") as counter:
        assert isinstance(counter, TextGenerator)
        with pytest.raises(ConfigError, match=message):
            counter.generate([1], **options)
