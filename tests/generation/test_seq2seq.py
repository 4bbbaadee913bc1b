"""Generation with a NumPy encoder-decoder equals brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError, InputError
from keras_tx.generation import PromptCache, Seq2SeqGenerator
from keras_tx.generation.logits import log_softmax

START, END = 0, 1
SOURCES = [[5, 3, 1], [4], [2, 2, 6, 5, 4, 3, 1], [6, 1], [3, 3, 3, 3]]


class ToyModel:
    """One layer of cross-attention over embedded sources, with a running sum of the target as query."""

    def __init__(self, vocabulary_size: int = 7, context: int = 12) -> None:
        random = np.random.default_rng(18)
        self.vocabulary_size = vocabulary_size
        self.context = context
        self.source_context = 8
        self.source_table, self.target_table = random.standard_normal((2, vocabulary_size, 5)) * 1.5
        self.kernel = random.standard_normal((5, vocabulary_size))
        self.places = random.standard_normal((20, 5))
        self.encoded: list[int] = []  # rows of each call
        self.rows: list[int] = []

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Any:
        self.encoded.append(len(ids))
        sources = np.tanh(self.source_table[ids] + self.places[: ids.shape[1]])
        return sources, mask, np.zeros((len(ids), 0, 5))

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        self.rows.append(len(ids))
        sources, source_mask, targets = past
        assert mask.shape[1] == targets.shape[1] + ids.shape[1]
        targets = np.concatenate([targets, self.target_table[ids] * (1 + positions[..., None] / 3)], axis=1)
        state = np.tanh(targets.cumsum(axis=1)[:, -ids.shape[1] :])  # (b, t, w)
        scores = state @ sources.transpose(0, 2, 1)
        scores = np.where(source_mask[:, None], scores, -np.inf)
        weights = np.exp(log_softmax(scores))
        logits = ((state + weights @ sources) @ self.kernel).astype("float32")
        return (logits if all_logits else logits[:, -1:]), (sources, source_mask, targets)

    def select(self, past: Any, rows: Any, first: int = 0) -> Any:
        return tuple(array[list(rows)] for array in past)

    def log_probabilities(self, source: list[int], target: tuple[int, ...]) -> np.ndarray:
        """Of the token after each of the target, without batch, padding and cache."""
        past = self.encode(np.array([source]), np.ones((1, len(source)), "int64"))
        ids = np.array([[START, *target]])
        positions = np.arange(ids.shape[1])[None]
        return log_softmax(self.run(ids, np.ones_like(ids), positions, past, True)[0][0])


def generator(**options: Any) -> Seq2SeqGenerator:
    model = ToyModel(**options)
    return Seq2SeqGenerator(model, START, frozenset({END}), "toy", None)


def toy_of(writer: Seq2SeqGenerator) -> ToyModel:
    assert isinstance(writer.model, ToyModel)
    return writer.model


def greedy(model: ToyModel, source: list[int], count: int, excluded: Any = lambda ids: ()) -> list[int]:
    ids: list[int] = []
    while len(ids) < count and END not in ids:
        scores = model.log_probabilities(source, tuple(ids))[-1]
        scores[list(excluded(ids))] = -np.inf
        ids.append(int(scores.argmax()))
    return ids


def all_texts(model: ToyModel, source: list[int], count: int, penalty: float) -> list[tuple[float, Any]]:
    """All texts that have ended or have `count` tokens, with their scores, best first."""
    texts = []
    for length in range(1, count + 1):
        for ids in itertools.product(range(model.vocabulary_size), repeat=length):
            if END in ids[:-1] or (length < count and ids[-1] != END):
                continue
            rows = model.log_probabilities(source, ids[:-1])
            total = sum(row[token] for row, token in zip(rows, ids, strict=True))
            texts.append((total / length**penalty, ids))
    return sorted(texts, key=lambda x: -x[0])


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_greedy_equals_brute_force_in_the_order_of_the_sources(batch_size):
    writer = generator()
    made = writer.generate(SOURCES, max_new_tokens=10, batch_size=batch_size)
    expected = [greedy(ToyModel(), source, 10) for source in SOURCES]
    assert [list(text.ids) for text in made] == expected
    assert len(set(map(len, expected))) > 1
    assert [text.finish for text in made] == ["stop" if END in ids else "length" for ids in expected]
    assert writer.generate(SOURCES[0], max_new_tokens=10) == made[0]
    assert writer.generate([]) == []
    assert tuple(writer.stream(SOURCES[2], max_new_tokens=10)) == made[2].ids


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.0])
def test_beams_equal_brute_force(penalty):
    writer = generator(vocabulary_size=4)
    options = {"num_beams": 64, "samples": 5, "length_penalty": penalty, "early_stopping": "never"}
    sources = [[3, 1], [2, 3, 3, 2, 1], [2]]
    for source, group in zip(sources, writer.generate(sources, max_new_tokens=4, **options), strict=True):
        expected = all_texts(ToyModel(vocabulary_size=4), source, 4, penalty)[:5]
        assert [text.ids for text in group] == [ids for _, ids in expected]
        np.testing.assert_allclose([text.score for text in group], [x for x, _ in expected], rtol=1e-4)


def test_sources_are_encoded_once_and_finished_rows_leave_the_batch():
    writer = generator()
    made = writer.generate(SOURCES, max_new_tokens=10)
    assert toy_of(writer).encoded == [len(SOURCES)]
    lengths = [len(text.ids) for text in made]
    assert toy_of(writer).rows == [sum(n > step for n in lengths) for step in range(max(lengths))]
    writer = generator()
    writer.generate(SOURCES, max_new_tokens=10, num_beams=4)
    assert toy_of(writer).encoded == [len(SOURCES)]


def test_samples_of_a_batch_equal_those_of_each_source():
    writer = generator()
    options = {"samples": 3, "temperature": 1.5, "seed": 7, "max_new_tokens": 8}
    together = writer.generate(SOURCES, batch_size=2, **options)
    assert together == [writer.generate(source, **options) for source in SOURCES]
    assert len({text.ids for text in together[0]}) > 1
    del options["samples"]
    assert tuple(writer.stream(SOURCES[0], **options)) == together[0][0].ids


def test_score_is_the_log_probability_of_the_target():
    writer = generator()
    target = (4, 2, 2, 6, END)
    rows = ToyModel().log_probabilities(SOURCES[2], target[:-1])
    scored = writer.score(SOURCES[2], target)
    assert scored.ids == (START, *target)
    np.testing.assert_allclose(scored.log_probabilities, rows[np.arange(5), target], atol=1e-5)
    several = writer.score([SOURCES[0], SOURCES[2]], [[3], target])
    np.testing.assert_allclose(several[1].log_probabilities, scored.log_probabilities)
    made = writer.generate(SOURCES[2], max_new_tokens=6, log_probabilities=True)
    np.testing.assert_allclose(writer.score(SOURCES[2], made.ids).log_probabilities, made.log_probabilities)
    assert len(writer.score([3], [2] * 12).log_probabilities) == 12  # the whole context


CONSTRAINTS: list[tuple[dict[str, Any], Any]] = [
    ({"suppress_tokens": [3, 5]}, lambda ids: [3, 5]),
    ({"allowed_ids": [2, 6]}, lambda ids: [0, 3, 4, 5]),
    ({"min_new_tokens": 6}, lambda ids: [END] if len(ids) < 6 else []),
    ({"forced_bos_token_id": 4}, lambda ids: [i for i in range(7) if i != 4] if not ids else []),
    ({"forced_eos_token_id": END}, lambda ids: [i for i in range(7) if i != END] if len(ids) == 8 else []),
    (
        {"no_repeat_ngram_size": 2},
        lambda ids: [b for a, b in itertools.pairwise([START, *ids]) if a == [START, *ids][-1]],
    ),
]


@pytest.mark.parametrize(("options", "excluded"), CONSTRAINTS, ids=[str(x) for x, _ in CONSTRAINTS])
def test_constraints_equal_brute_force(options, excluded):
    writer = generator()
    made = writer.generate(SOURCES, max_new_tokens=9, **options)
    expected = [greedy(ToyModel(), source, 9, excluded) for source in SOURCES]
    assert [list(text.ids) for text in made] == expected
    assert expected != [greedy(ToyModel(), source, 9) for source in SOURCES]
    beams = writer.generate(SOURCES, max_new_tokens=9, num_beams=3, **options)
    for text in beams:
        for place, token in enumerate(text.ids):
            assert token not in excluded(list(text.ids[:place]))


def test_constraints_that_exclude_all_tokens_raise():
    writer = generator()
    options: dict[str, Any] = {"allowed_ids": [3], "no_repeat_ngram_size": 1, "stop_tokens": []}
    for num_beams in (1, 2):
        with pytest.raises(InputError, match="no_repeat_ngram_size"):
            writer.generate([2], num_beams=num_beams, **options)


def test_deadline_and_cancelled_end_the_texts_of_all_batches():
    writer = generator()
    options: dict[str, Any] = {"batch_size": 2, "stop_tokens": [], "max_new_tokens": 5}
    made = writer.generate(SOURCES, deadline=1e-9, **options)
    assert [(text.finish, len(text.ids)) for text in made] == [("deadline", 1)] * len(SOURCES)
    asked = iter([False] * 6 + [True] * 9)
    made = writer.generate(SOURCES, cancelled=lambda: next(asked), **options)
    lengths = [2, 1, 5, 2, 5]  # the longest sources are in the first batch
    assert [len(text.ids) for text in made] == lengths
    finishes = {5: "length", 2: "cancelled", 1: "cancelled"}
    assert [text.finish for text in made] == [finishes[n] for n in lengths]


@pytest.mark.parametrize("num_beams", [1, 2])
def test_texts_of_one_prompt_are_cancelled(num_beams):
    """The others have the tokens that they would have without it."""
    writer = generator()
    options: dict[str, Any] = {
        "batch_size": 2,
        "stop_tokens": [],
        "max_new_tokens": 5,
        "num_beams": num_beams,
    }
    expected = writer.generate(SOURCES, samples=2 if num_beams > 1 else None, **options)
    never = [False] * 5
    asked = [iter(one) for one in (never, [False, True], never, [True], never)]
    cancelled = [lambda one=one: next(one) for one in asked]
    made = writer.generate(SOURCES, cancelled=cancelled, **options)
    assert [len(text.ids) for text in made] == [5, 2, 5, 1, 5]
    assert [text.finish for text in made] == ["length", "cancelled"] * 2 + ["length"]
    for one, whole in zip(made, expected, strict=True):
        best = whole[0] if num_beams > 1 else whole
        assert one.finish == "cancelled" or one.ids == best.ids
    samples: dict[str, Any] = {"samples": 2, **({"seed": 1} if num_beams == 1 else {})}
    groups = writer.generate(SOURCES[:2], cancelled=[lambda: False, lambda: True], **options, **samples)
    assert [[len(text.ids) for text in group] for group in groups] == [[5, 5], [1, 1]]


@pytest.mark.parametrize("cancelled", [[], [lambda: True] * 2, [True] * len(SOURCES), "now"])
def test_cancelled_is_a_function_or_one_for_each_prompt(cancelled):
    with pytest.raises(ConfigError, match="cancelled (has|is)"):
        generator().generate(SOURCES, cancelled=cancelled)


def test_a_prompt_cache_raises():
    with pytest.raises(ConfigError, match="prompt_cache"):
        generator().stream([2], prompt_cache=PromptCache())


def test_text_ends_at_context():
    writer = generator(context=5)
    made = writer.generate(SOURCES, stop_tokens=[])
    assert [(len(text.ids), text.finish) for text in made] == [(5, "context")] * len(SOURCES)


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([[2], []], {}, InputError, "source 1 is empty"),
    ([[2], [2] * 9], {}, InputError, "source 1 has 9 tokens.* 8"),
    ([[2], [7]], {}, InputError, "source 1 has the id 7"),
    ([[2], "text"], {}, InputError, r"source 1 is text, but toy has no tokenizer\.json"),
    ([2], {"at_context": "slide"}, ConfigError, "at_context='slide'"),
    ([2], {"allowed_ids": []}, ConfigError, "allowed_ids is empty"),
    ([2], {"allowed_ids": [-1]}, ConfigError, "allowed_ids has -1"),
    ([2], {"forced_bos_token_id": True}, ConfigError, "forced_bos_token_id has True"),
    ([2], {"forced_eos_token_id": 9}, ConfigError, "forced_eos_token_id has 9"),
    ([2], {"batch_size": 0}, ConfigError, "batch_size is 0"),
    ([2], {"min_new_tokens": 5, "max_new_tokens": 4}, ConfigError, "min_new_tokens is 5.* 4"),
    ([2], {"min_new_tokens": 13, "max_new_tokens": 20}, ConfigError, "min_new_tokens is 13.* room for 12"),
    ([2], {"bad_words": [[1]]}, ConfigError, "'bad_words'.*'bad_words_ids'"),
]


@pytest.mark.parametrize(("sources", "options", "kind", "message"), BAD, ids=[row[3] for row in BAD])
def test_invalid_arguments_raise_before_encoding(sources, options, kind, message):
    writer = generator()
    with pytest.raises(kind, match=message):
        writer.generate(sources, **options)
    assert toy_of(writer).encoded == []


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([2], [2] * 13, "target 0 has 13 tokens.* 12"),
        ([2], [], "target 0 is empty"),
        ([[2]], [[2], [3]], "1 sources, but 2 targets"),
        ([2], [[2]], "sources and targets"),
    ],
)
def test_invalid_targets_raise(sources, targets, message):
    with pytest.raises(InputError, match=message):
        generator().score(sources, targets)


class Characters:
    """A tokenizer whose ids are letters, with END after each text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        assert add_special_tokens
        ids = ["_$abcde".index(c) for c in text.strip()]
        return type("Encoding", (), {"ids": [*ids, END]})

    def decode(self, ids: list[int]) -> str:
        return "".join("_$abcde"[i] for i in ids if i > END)


def test_texts():
    model = ToyModel()
    writer = Seq2SeqGenerator(model, START, frozenset({END}), "toy", Characters())
    made = writer.generate(["dab", "c"], max_new_tokens=9)
    for text, source in zip(made, ("dab", "c"), strict=True):
        ids = writer.tokenizer.encode(source).ids
        assert text.ids == tuple(greedy(ToyModel(), ids, 9))
        assert text.text == writer.tokenizer.decode(list(text.ids))
        assert "".join(writer.stream(source, max_new_tokens=9)) == text.text
    assert writer.score("dab", "ca").ids == (START, 4, 2, END)
    for blank in ("", "  \n"):
        with pytest.raises(InputError, match="source 0 is empty"):
            writer.generate(blank)
    stop = made[0].text[1:3]
    stopped = writer.generate("dab", stop=stop, max_new_tokens=9)
    assert (stopped.text, stopped.finish) == (made[0].text.partition(stop)[0], "stop")
