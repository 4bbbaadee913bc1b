"""Text generation from a folder, with a decoder whose tokens are known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, KerasTxError
from keras_tx.generation import PromptCache
from keras_tx.runtime import TextGenerator, load
from tests.runtime.counting_decoder import CONTEXT, END, VOCABULARY, byte_tokenizer, continued, make

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def until_end(ids: list[int]) -> tuple[int, ...]:
    return tuple(ids[: ids.index(END) + 1] if END in ids else ids)


@pytest.fixture
def counter(tmp_path: Path):
    with load(make(tmp_path / "counter"), provider="cpu") as model:
        yield model


@pytest.fixture
def writer(tmp_path: Path):
    pytest.importorskip("tokenizers")
    with load(make(tmp_path / "writer", tokenizer=byte_tokenizer()), provider="cpu") as model:
        yield model


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_greedy(counter, prompt):
    made = counter.generate(prompt, max_new_tokens=12)
    assert made.ids == until_end(continued(prompt, 12))
    assert made.finish == ("stop" if END in made.ids else "length")
    assert made.text is None
    assert str(made) == str(list(made.ids))


def test_batch_equals_single_prompts(counter):
    assert counter.generate(PROMPTS, max_new_tokens=20) == [
        counter.generate(prompt, max_new_tokens=20) for prompt in PROMPTS
    ]
    drawn = {"max_new_tokens": 15, "temperature": 3.0, "seed": 5, "samples": 3}
    together = counter.generate(PROMPTS, **drawn)
    assert together == [counter.generate(prompt, **drawn) for prompt in PROMPTS]
    assert len({made.ids for made in together[0]}) == 3
    assert together[0][0] == counter.generate(PROMPTS[0], **{**drawn, "samples": None})
    assert together != counter.generate(PROMPTS, **{**drawn, "seed": 6})


def test_prompts_as_arrays(counter):
    expected = counter.generate([1, 2, 3], max_new_tokens=3)
    assert counter(np.array([1, 2, 3]), max_new_tokens=3) == expected
    assert counter(np.array([[1, 2, 3]]), max_new_tokens=3) == [expected]
    assert counter([], max_new_tokens=3) == []


def test_empty_prompt(counter, tmp_path):
    assert counter.generate([[]], max_new_tokens=4)[0].ids == until_end(continued([END], 4))
    with load(make(tmp_path / "endless", end=None), provider="cpu") as model:
        assert isinstance(model, TextGenerator)
        with pytest.raises(InputError, match="prompt 0 is empty"):
            model.generate([[]])
        assert model.generate([1], max_new_tokens=30).ids == tuple(continued([1], 30))


def test_stop_tokens(counter):
    ids = continued([1, 2, 3], 12)
    made = counter.generate([1, 2, 3], stop_tokens=[ids[4]])
    assert made.ids == tuple(ids[: ids.index(ids[4]) + 1])
    assert made.finish == "stop"


def test_at_context(counter):
    made = counter.generate([1], max_new_tokens=200, stop_tokens=[])
    assert made.ids == tuple(continued([1], CONTEXT))  # the last one was not read any more
    assert made.finish == "context"
    slid = counter.generate([[1], [2, 3, 4]], max_new_tokens=100, stop_tokens=[], at_context="slide")
    for start, made in zip(([1], [2, 3, 4]), slid, strict=True):
        text, first = list(start), 0
        for token in made.ids:
            if len(text) - first > CONTEXT:
                first = len(text) - CONTEXT // 2
            assert token == continued(text[first:], 1)[0]
            text.append(token)
        assert len(made.ids) == 100


def test_long_prompt_raises(counter):
    text = [1] * (CONTEXT + 1)
    with pytest.raises(InputError, match="prompt 1 has 41 tokens.* 40"):
        counter.generate([[1], text])
    made = counter.generate(text, at_context="slide", max_new_tokens=1)
    assert made.ids == tuple(continued([1] * (CONTEXT // 2), 1))


def test_log_probabilities_equal_score(counter):
    made = counter.generate([1, 2], max_new_tokens=6, seed=0, temperature=2.0, log_probabilities=True)
    scored = counter.score([1, 2, *made.ids])
    np.testing.assert_allclose(scored.log_probabilities[1:], made.log_probabilities, atol=1e-6)
    distances = np.abs(np.arange(VOCABULARY) - continued([1, 2], 1)[0])
    expected = -distances - np.log(np.exp(-distances.astype("float64")).sum())
    assert made.log_probabilities[0] == pytest.approx(expected[made.ids[0]], abs=1e-6)
    assert scored.perplexity == pytest.approx(math.exp(-scored.total / len(scored.log_probabilities)))
    assert counter.score([[1, 2, 3]])[0].ids == (1, 2, 3)


def test_score_in_chunks(counter, monkeypatch):
    text = continued([1], 30)
    whole = counter.score(text)
    monkeypatch.setattr("keras_tx.generation.decoding_loop.CHUNK", 7)
    np.testing.assert_allclose(counter.score(text).log_probabilities, whole.log_probabilities, atol=1e-6)


def test_deadline_and_cancelled(counter):
    made = counter.generate([1], deadline=1e-9, stop_tokens=[])
    assert (made.finish, len(made.ids)) == ("deadline", 1)
    asked = iter([False, False, True])
    made = counter.generate([1], cancelled=lambda: next(asked), stop_tokens=[])
    assert (made.finish, len(made.ids)) == ("cancelled", 3)


def test_stream_may_be_closed(counter):
    expected = counter.generate([1, 2, 3], max_new_tokens=8)
    assert tuple(counter.stream([1, 2, 3], max_new_tokens=8)) == expected.ids
    stream = counter.stream([1, 2, 3], max_new_tokens=8)
    assert next(stream) == expected.ids[0]
    stream.close()
    first, second = counter.stream([1, 2, 3], max_new_tokens=8), counter.stream([9], max_new_tokens=8)
    mixed = [pair for pair in zip(first, second, strict=False)]
    assert [a for a, _ in mixed] == list(expected.ids)[: len(mixed)]
    assert counter.generate([1, 2, 3], max_new_tokens=8) == expected


def test_stream_yields_whole_characters(writer):
    made = writer.generate("ab", max_new_tokens=30, seed=2, temperature=50.0, stop_tokens=[])
    pieces = list(writer.stream("ab", max_new_tokens=30, seed=2, temperature=50.0, stop_tokens=[]))
    assert "".join(pieces) == made.text == writer.tokenizer.decode(list(made.ids))
    assert made.text and len(pieces) > 5
    assert all(pieces)


def test_stop_strings(writer):
    whole = writer.generate("ab", max_new_tokens=30, seed=2, temperature=50.0, stop_tokens=[]).text
    stop = whole[6:9]
    options = {"max_new_tokens": 30, "seed": 2, "temperature": 50.0, "stop_tokens": [], "stop": stop}
    made = writer.generate("ab", **options)
    assert made.text == whole[: whole.index(stop)]
    assert made.finish == "stop"
    assert "".join(writer.stream("ab", **options)) == made.text


def test_end_of_text_is_not_in_text(writer):
    prompt = next([a, b] for a in range(30) for b in range(30) if continued([a, b], 3)[2] == END)
    made = writer.generate(prompt, max_new_tokens=10)
    assert made.ids[-1] == END
    assert "endoftext" not in made.text
    assert "".join(writer.stream(prompt, max_new_tokens=10)) == made.text


BAD = [
    ([1, VOCABULARY], {}, "prompt 0 has the id 31"),
    ([-1], {}, "prompt 0 has the id -1"),
    ("text", {}, r"prompt 0 is text, but .* has no tokenizer\.json"),
    ([[1.5]], {}, r"prompt 0 is \[1\.5\]"),
    (7, {}, r"The prompt is 7 \(int\)"),
    (np.array(7), {}, r"The prompt is array\(7\)"),
    (b"text", {}, r"The prompt is b'text' \(bytes\)"),
    ([5.0, 6.5], {}, r"prompt 0 is 5.0 \(float\), expected text or a list of token ids"),
    ([5, 6.5], {}, r"prompt 0 is 5 \(int\)"),
    ([[1], None], {}, r"prompt 1 is None \(NoneType\)"),
    ([1], {"do_sample": "no"}, "do_sample is 'no', expected True or False"),
    ([1], {"do_sample": 1}, "do_sample is 1, expected True or False"),
    ([1], {"log_probabilities": "no"}, "log_probabilities is 'no'"),
    ([1], {"deadline": True}, "deadline is True"),
    ([1], {"cancelled": True}, "cancelled is True, expected a function"),
    ([1], {"stop": 5}, "stop is 5, expected strings"),
    ([1], {"stop_tokens": 5}, r"stop_tokens is 5, expected a list: \[5\]"),
    ([1], {"stop_tokens": [[5]]}, r"stop_tokens has \[5\]"),
    ([1], {"stop_tokens": [True]}, "stop_tokens has True"),
    (
        [1],
        {"length_penality": 1.0},
        r"generate has no option 'length_penality'. Did you mean 'length_penalty'",
    ),
    ([1], {"earlystopping": True}, "'early_stopping'"),
    ([1], {"logprobabilities": True}, "'log_probabilities'"),
    ([1], {"temperature": -1.0}, r"temperature is -1\.0"),
    ([1], {"temperature": 0, "do_sample": True}, "temperature is 0 with do_sample=True"),
    ([1], {"top_k": 0}, "top_k is 0"),
    ([1], {"top_p": 0.0}, r"top_p is 0\.0"),
    ([1], {"min_p": 1.5}, r"min_p is 1\.5"),
    ([1], {"repetition_penalty": 0}, "repetition_penalty is 0"),
    ([1], {"seed": -1}, "seed is -1"),
    ([1], {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ([1], {"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9.* 8"),
    ([1] * 3, {"min_new_tokens": 39}, "min_new_tokens is 39.* room for 38"),
    ([1], {"samples": 0}, "samples is 0"),
    ([1], {"deadline": 0}, "deadline is 0"),
    ([1], {"at_context": "wrap"}, "at_context='wrap'"),
    ([1], {"topk": 4}, "'topk'.*'top_k'"),
    ([1], {"stop": ["!"]}, r"stop is \['!'\]"),
    ([1], {"stop": ""}, "stop is ''"),
    ([1], {"stop_tokens": [99]}, "stop_tokens has 99"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), BAD, ids=[row[2] for row in BAD])
def test_invalid_prompts_and_options_raise(counter, prompt, options, message):
    with pytest.raises((InputError, ConfigError), match=message):
        counter.generate(prompt, **options)
    assert counter.generate([1], max_new_tokens=2).ids == tuple(continued([1], 2))


def test_invalid_streams_scores_and_folders_raise(counter, tmp_path):
    with pytest.raises(InputError, match="stream accepts one prompt"):
        counter.stream([[1], [2]])
    with pytest.raises(ConfigError, match="as_ids is 'no'"):
        counter.stream([1], as_ids="no")
    with pytest.raises(ConfigError, match="prompt_cache is 5"):
        counter.stream([1], prompt_cache=5)
    with pytest.raises(ConfigError, match="'as_id'.*'as_ids'"):
        counter.stream([1], as_id=True)
    with pytest.raises(InputError, match="text 0 has 1 tokens"):
        counter.score([1])
    with pytest.raises(InputError, match="text 1 has 0 tokens"):
        counter.score([[1, 2], []])
    with pytest.raises(InputError, match=r"text 1 is 6\.5 \(float\)"):
        counter.score([[1, 2], 6.5])
    counter.close()
    with pytest.raises(KerasTxError, match="closed"):
        counter.generate([1])
    folder = make(tmp_path / "a", config={})
    with pytest.raises(FolderError, match="n_positions"):
        load(folder)
    folder = make(tmp_path / "b", end=VOCABULARY)
    with pytest.raises(FolderError, match="eos_token_id 31"):
        load(folder)


def test_invalid_default_raises(tmp_path):
    folder = make(tmp_path / "counter", generation={"suppress_tokens": 3})
    with pytest.raises(FolderError, match="suppress_tokens is 3") as caught:
        load(folder)
    assert str(caught.value).count(contract.GENERATION_CONFIG) == 1


def test_invalid_tokenizer_raises(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {str(i): i for i in range(VOCABULARY + 1)}
    large = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    with pytest.raises(FolderError, match=r"tokenizer\.json has 32 tokens.* 31"):
        load(make(tmp_path / "large", tokenizer=large))

    class Broken:
        def save(self, path: str) -> None:
            Path(path).write_text("{}")

    with pytest.raises(FolderError, match=r"tokenizer\.json"):
        load(make(tmp_path / "broken", tokenizer=Broken()))


def test_temperature_zero_is_greedy(counter):
    greedy = counter.generate([1], max_new_tokens=9)
    assert counter.generate([1], max_new_tokens=9, temperature=0, seed=1, top_k=5) == greedy


def test_generation_without_keras(tmp_path: Path, without_training_packages: Callable[[str], list[str]]):
    from tests.runtime.test_import import run

    folder = make(tmp_path / "counter")
    code = (
        "import keras_tx.runtime as runtime\n"
        f"with runtime.load({str(folder)!r}, provider='cpu', threads=1) as model:\n"
        "    print(*model.generate([1, 2, 3], max_new_tokens=5, stop_tokens=[]).ids)\n"
    )
    assert run(without_training_packages(code)).split() == [str(i) for i in continued([1, 2, 3], 5)]


def test_prefill_computes_last_logits_only(counter, monkeypatch):
    asked = []
    advance = counter.session.advance

    def noted(feed, *more):
        asked.append(int(feed.get("num_logits_to_keep", 0)))
        return advance(feed, *more)

    monkeypatch.setattr(counter.session, "advance", noted)
    counter.generate([1, 2, 3], max_new_tokens=2, stop_tokens=[])
    counter.score([1, 2, 3])
    assert asked == [1, 0, 0]  # decode steps request the last logits, a score requests all


def test_samples_share_prefill(counter, monkeypatch):
    read = []
    run = counter.decoder.run

    def counted(ids, *more, **options):
        read.append(ids.shape)
        return run(ids, *more, **options)

    monkeypatch.setattr(counter.decoder, "run", counted)
    options = {"max_new_tokens": 4, "stop_tokens": [], "temperature": 1.0, "seed": 0}
    made = counter.generate([1, 2, 3, 4], samples=3, **options)
    assert len(made) == 3
    assert read == [(1, 4), (3, 1), (3, 1), (3, 1)]


def test_prompt_cache_prefills_only_new_tokens(counter, monkeypatch):
    memory = PromptCache()
    first = tuple(counter.stream([1, 2, 3], max_new_tokens=4, stop_tokens=[], prompt_cache=memory))
    assert memory.ids == [1, 2, 3, *first]
    read = []
    run = counter.decoder.run

    def counted(ids, *more, **options):
        read.append(ids.shape[1])
        return run(ids, *more, **options)

    monkeypatch.setattr(counter.decoder, "run", counted)
    prompt = [*memory.ids, 9, 8]
    stream = counter.stream(prompt, max_new_tokens=6, stop_tokens=[], prompt_cache=memory)
    made = [next(stream) for _ in range(3)]
    stream.close()
    assert made == continued(prompt, 3)
    assert read == [3, 1, 1]  # the last token of the previous call, and two new ones
    again = [*memory.ids, 7]
    assert list(counter.stream(again, max_new_tokens=2, stop_tokens=[], prompt_cache=memory)) == continued(
        again, 2
    )
    other = [5, *memory.ids]
    assert list(counter.stream(other, max_new_tokens=2, stop_tokens=[], prompt_cache=memory)) == continued(
        other, 2
    )
    slid = tuple(
        counter.stream([1], max_new_tokens=50, stop_tokens=[], at_context="slide", prompt_cache=memory)
    )
    assert memory.num_cached == 0
    assert memory.ids == [1, *slid]


def test_ids_with_tokenizer(writer):
    assert writer.generate(np.array([0, 1]), max_new_tokens=4) == writer.generate([0, 1], max_new_tokens=4)
    with pytest.raises(InputError, match="prompt 0 has the id -1"):
        writer.generate([-1])


def test_cancelled_generation_stops(counter):
    expected = counter.generate([1, 2, 3], max_new_tokens=9)

    async def cancel() -> None:
        endless = {"max_new_tokens": 10**9, "at_context": "slide", "stop_tokens": []}
        task = asyncio.create_task(counter.call_async([1, 2, 3], **endless))
        await asyncio.sleep(0.2)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())  # waits for its threads, which end only if generation stops
    assert counter.generate([1, 2, 3], max_new_tokens=9) == expected
