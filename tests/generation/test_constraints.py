"""Constraints on the next token equal those of transformers: greedy, in beam search and for sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError, InputError
from keras_tx.generation import Constraints, DistinctTokens, Generator
from keras_tx.generation.constraints import CONSTRAINTS
from keras_tx.generation.logits import penalize
from keras_tx.models.generation import generate
from keras_tx.runtime import TextGenerator, load
from tests.runtime.counting_decoder import continued, make

VOCABULARY, COUNT, PADDING = 40, 14, 39
PROMPTS = [[5, 17, 9, 17, 9], [1]]


def drawn_options(seed: int, free: list[int], prompt: list[int]) -> dict[str, Any]:
    """Random constraints around a text that is generated without any."""
    random = np.random.default_rng(seed)
    ids = [int(i) for i in random.permutation(VOCABULARY - 1) if i not in free]
    stops = [*ids[:2], free[int(random.integers(2, 6))]]
    forced = [ids[2], ids[3]] if random.random() < 0.4 else ids[2]
    words = [[free[0]], [free[1], free[2]], free[3:6], [prompt[-1], free[0]], [ids[4], *free[:2]], ids[5:25]]
    options: dict[str, Any] = {
        "bad_words_ids": [word for word in words if word[0] not in stops],
        "suppress_tokens": [free[int(random.integers(0, 6))], *ids[6:9]],
        "begin_suppress_tokens": [free[0], free[1], ids[9]],
        "no_repeat_ngram_size": int(random.integers(1, 4)),
        "min_new_tokens": int(random.integers(0, COUNT)),
        "forced_eos_token_id": forced,
        "repetition_penalty": 1.3,
    }
    if len(prompt) == 1:
        options["forced_bos_token_id"] = ids[10]
    options = {name: value for name, value in options.items() if random.random() < 0.5}
    return {"stop_tokens": stops, **options}


def of_transformers(model: Any, prompt: list[int], options: dict[str, Any]) -> Any:
    import torch

    options = dict(options)
    stops = options.pop("stop_tokens")
    ids = torch.tensor([prompt])
    with torch.no_grad():
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=COUNT,
            eos_token_id=stops,
            pad_token_id=PADDING,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **{"do_sample": False, **options},
        )


def cases(theirs: Any, seeds: range) -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts with random constraints."""
    drawn = []
    for prompt in PROMPTS:
        free = of_transformers(theirs, prompt, {"stop_tokens": [PADDING]}).sequences[0, len(prompt) :]
        drawn += [(prompt, drawn_options(seed, free.tolist(), prompt)) for seed in seeds]
    return drawn


@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_equal_transformers(both, num_beams):
    theirs, _, folder = both
    changed = 0
    with load(folder, provider="cpu", threads=1) as poet:
        assert isinstance(poet, TextGenerator)
        for prompt, options in cases(theirs, range(24 if num_beams == 1 else 12)):
            beams = {"num_beams": num_beams} if num_beams > 1 else {}
            if beams and isinstance(forced := options.get("forced_eos_token_id"), list):
                options["forced_eos_token_id"] = forced[0]  # torch.topk orders equal scores as it likes
            expected = of_transformers(theirs, prompt, {**options, **beams}).sequences[0, len(prompt) :]
            made = poet.generate(prompt, max_new_tokens=COUNT, **options, **beams)
            length = len(made.ids)
            assert list(made.ids) == expected[:length].tolist(), options
            assert {*expected[length:].tolist()} <= {PADDING}
            assert made.finish == "stop" or length == COUNT
            plain = {"stop_tokens": options["stop_tokens"], **beams}
            changed += made.ids != poet.generate(prompt, max_new_tokens=COUNT, **plain).ids
            if num_beams == 1:
                assert tuple(poet.stream(prompt, max_new_tokens=COUNT, **options)) == made.ids
    assert changed > 8


def test_tokens_in_keras_equal_transformers(both):
    theirs, ours, _ = both
    for prompt, options in cases(theirs, range(3)):
        expected = of_transformers(theirs, prompt, options).sequences[0, len(prompt) :].tolist()
        made = generate(ours, prompt, max_new_tokens=COUNT, **options)
        assert list(made.ids) == expected[: len(made.ids)]


def test_distributions_for_sampling_equal_transformers(both):
    """The logits from which a token is drawn, at each step of texts that transformers draws."""
    import torch

    theirs, _, _ = both
    steps = 0
    for number, (prompt, options) in enumerate(cases(theirs, range(24))):
        torch.manual_seed(number)
        made = of_transformers(theirs, prompt, {**options, "do_sample": True, "top_k": 0})
        constraints = Constraints(**{name: options[name] for name in CONSTRAINTS if name in options})
        ids = made.sequences[0].tolist()
        for step, (logits, expected) in enumerate(zip(made.logits, made.scores, strict=True)):
            text = ids[: len(prompt) + step]
            stops = frozenset(options["stop_tokens"])
            actual = constraints.apply(logits[0].numpy(), text, step, step == COUNT - 1, stops)
            actual = penalize(actual, DistinctTokens(text).ids, options.get("repetition_penalty", 1.0))
            np.testing.assert_allclose(actual, expected[0].numpy(), rtol=1e-6)
            steps += 1
    assert steps > 200


def test_defaults_that_have_no_effect_are_permitted(both):
    """As in transformers: a stop token among the bad words, and a forced first token after a long prompt."""
    theirs, _, folder = both
    with load(folder, provider="cpu", threads=1) as poet:
        assert isinstance(poet, TextGenerator)
        for prompt in PROMPTS:
            free = list(poet.generate(prompt, max_new_tokens=COUNT, stop_tokens=[]).ids)
            options = {"stop_tokens": [free[2]]}
            defaults = {"bad_words_ids": [[free[2]], [3, 3]], "forced_bos_token_id": free[0]}
            expected = of_transformers(theirs, prompt, {**options, **defaults}).sequences[0, len(prompt) :]
            writer = Generator(
                poet.decoder, poet.stop_ids, "writer", None, {**defaults, "min_new_tokens": 99}
            )
            made = writer.generate(prompt, max_new_tokens=COUNT, min_new_tokens=None, **options)
            assert made.ids == tuple(free[: free.index(free[2]) + 1]) == tuple(expected.tolist())
            assert len(writer.generate(prompt, max_new_tokens=5, **options).ids) == 5
        defaults = {"bad_words_ids": [free[:1]], "forced_bos_token_id": 2}
        writer = Generator(poet.decoder, poet.stop_ids, "writer", None, defaults)
        for none in (None, []):
            options = {"bad_words_ids": none, "forced_bos_token_id": None, "max_new_tokens": 1}
            assert writer.generate(prompt, **options).ids == (free[0],)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([1, 2], {"forced_bos_token_id": 3}, "forced_bos_token_id is 3, .*prompt of 2 tokens"),
    ([1], {"bad_words_ids": [[3], [30]]}, r"bad_words_ids has \[30\], a stop token.*suppress_tokens"),
    ([1], {"bad_words_ids": [3]}, "bad_words_ids is 3, expected a list of ids"),
    ([1], {"bad_words_ids": 3}, "bad_words_ids is 3, expected a list of lists"),
    ([1], {"bad_words_ids": [[]]}, "bad_words_ids has an empty sequence"),
    ([1], {"bad_words_ids": [[1, 31]]}, "bad_words_ids has 31, expected ids from 0 to 30"),
    ([1], {"suppress_tokens": 3}, "suppress_tokens is 3, expected a list"),
    ([1], {"suppress_tokens": [-1]}, "suppress_tokens has -1"),
    ([1], {"suppress_tokens": [31]}, "suppress_tokens has 31"),
    ([1], {"begin_suppress_tokens": [True]}, "begin_suppress_tokens has True"),
    ([1], {"forced_eos_token_id": [3, "4"]}, "forced_eos_token_id has '4'"),
    ([1], {"forced_eos_token_id": [3, 4], "suppress_tokens": [5, 4, 3]}, r"is \[3, 4\], but suppress_tokens"),
    (
        [1],
        {"forced_bos_token_id": 3, "suppress_tokens": [3]},
        "forced_bos_token_id is 3, but",
    ),
    ([1], {"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
    ([1], {"no_repeat_ngram_size": 1.5}, r"no_repeat_ngram_size is 1\.5"),
    ([1], {"min_new_tokens": False}, "min_new_tokens is False"),
    ([1], {"bad_words_id": [[1]]}, "'bad_words_id'.*'bad_words_ids'"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), BAD, ids=[row[2] for row in BAD])
def test_invalid_constraints_raise(prompt, options, message, tmp_path):
    with load(make(tmp_path / "counter"), provider="cpu") as counter:
        assert isinstance(counter, TextGenerator)
        for call in (counter.generate, counter.stream):
            with pytest.raises(ConfigError, match=message):
                call(prompt, **options)


def test_a_suppressed_forced_token_raises_when_it_is_due(tmp_path):
    """begin_suppress_tokens applies after a forced token, as in transformers, and excludes all tokens."""
    options: dict[str, Any] = {"forced_eos_token_id": 3, "begin_suppress_tokens": [3], "stop_tokens": []}
    with load(make(tmp_path / "counter"), provider="cpu") as counter:
        assert isinstance(counter, TextGenerator)
        for num_beams in (1, 2):
            with pytest.raises(InputError, match="begin_suppress_tokens"):
                counter.generate([1], max_new_tokens=1, num_beams=num_beams, **options)
        made = counter.generate([1], max_new_tokens=3, **options)
        assert made.ids == (*continued([1], 2), 3)
