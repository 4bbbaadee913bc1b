"""Text-to-text generation from a folder, with an encoder-decoder whose tokens are known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from keras_tx import contract
from keras_tx.contract import Manifest
from keras_tx.errors import ConfigError, FolderError, InputError, KerasTxError, TextError
from keras_tx.runtime import Session, Summarizer, TextToTextGenerator, Translator, load
from keras_tx.runtime.tasks.base import RunOptions
from tests.runtime.counting_decoder import byte_tokenizer
from tests.runtime.counting_encoder_decoder import (
    CONTEXT,
    END,
    START,
    VOCABULARY,
    continued,
    make,
    next_token,
)

SOURCES = [[4, 9, 2], [7], [3, 3, 8, 1, 12, 5, 6], [29, 2]]


def until_end(ids: list[int]) -> tuple[int, ...]:
    return tuple(ids[: ids.index(END) + 1] if END in ids else ids)


@pytest.fixture
def counter(tmp_path: Path):
    with load(make(tmp_path / "counter"), provider="cpu") as model:
        assert isinstance(model, TextToTextGenerator)
        yield model


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_greedy(counter, batch_size):
    made = counter(SOURCES, max_new_tokens=15, batch_size=batch_size)
    assert [text.ids for text in made] == [until_end(continued(source, 15)) for source in SOURCES]
    assert [text.finish for text in made] == ["stop" if END in text.ids else "length" for text in made]
    for source, text in zip(SOURCES, made, strict=True):
        assert tuple(counter.stream(source, max_new_tokens=15)) == text.ids


def test_beams_and_samples(counter):
    """Logits are minus the distance to one token, so that all beams follow the greedy text."""
    beams = counter.generate(SOURCES, num_beams=3, samples=3, max_new_tokens=6, stop_tokens=[])
    assert [group[0].ids for group in beams] == [tuple(continued(source, 6)) for source in SOURCES]
    for source, group in zip(SOURCES, beams, strict=True):
        for text in group:
            scored = counter.score(source, text.ids)
            assert text.score == pytest.approx(scored.total / 6, abs=1e-4)
        assert len({text.ids for text in group}) == 3
    drawn = {"samples": 2, "seed": 1, "temperature": 3.0, "max_new_tokens": 8}
    together = counter.generate(SOURCES, **drawn)
    assert together == [counter.generate(source, **drawn) for source in SOURCES]


def test_score_in_chunks(counter, monkeypatch):
    target = continued(SOURCES[2], 12)
    whole = counter.score(SOURCES[2], target)
    assert whole.ids == (START, *target)
    peak = -np.log(np.exp(-np.abs(np.arange(VOCABULARY) - target[0])).sum())
    assert whole.log_probabilities[0] == pytest.approx(peak, abs=1e-5)
    monkeypatch.setattr("keras_tx.generation.decoding_loop.CHUNK", 5)
    np.testing.assert_allclose(
        counter.score(SOURCES[2], target).log_probabilities, whole.log_probabilities, atol=1e-6
    )


def test_the_source_is_encoded_once_and_its_keys_are_kept(counter, monkeypatch):
    runs: list[tuple[Path, tuple[str, ...], bool]] = []
    device_outputs = Session._device_outputs

    def recorded(self: Session, inputs: Any, outputs: Any) -> Any:
        cached = inputs.get(contract.USE_CACHE_BRANCH)
        runs.append((self.graph, tuple(outputs), cached is not None and bool(cached[0])))
        return device_outputs(self, inputs, outputs)

    monkeypatch.setattr(Session, "_device_outputs", recorded)
    counter.generate(SOURCES, max_new_tokens=5, stop_tokens=[], num_beams=2)
    names = [graph.name for graph, _, _ in runs]
    assert names == ["encoder_model.onnx", *["decoder_model_merged.onnx"] * 5]
    assert [cached for _, _, cached in runs] == [False, False, True, True, True, True]
    for _, outputs, cached in runs[1:]:
        assert any("encoder" in name for name in outputs) != cached


def test_rows_of_another_source(counter):
    """Beams of the second source take the place of all rows."""
    sources = np.array([[4, 9], [7, 2]])
    past = counter.model.encode(sources, np.ones_like(sources))

    def run(ids: list[int], past: Any) -> tuple[np.ndarray, Any]:
        column = np.array(ids)[:, None]
        return counter.model.run(column, np.ones_like(column), np.zeros_like(column), past, False)

    _, past = run([START, START], past)
    logits, _ = run([5, 6], counter.model.select(past, [1, 1]))
    expected = [next_token([7, 2], [START, token]) for token in (5, 6)]
    assert logits[:, 0].argmax(axis=-1).tolist() == expected


def test_constraints_of_the_folder(tmp_path):
    ids = continued(SOURCES[0], 4)
    folder = make(tmp_path / "counter", bad_words_ids=[[ids[0]]], forced_eos_token_id=END)
    with load(folder, provider="cpu") as model:
        assert isinstance(model, TextToTextGenerator)
        made = model.generate(SOURCES[0], max_new_tokens=4, stop_tokens=[])
        assert ids[0] not in made.ids
        assert made.ids[-1] == END
        free = model.generate(SOURCES[0], max_new_tokens=4, bad_words_ids=[], forced_eos_token_id=None)
        assert free.ids == tuple(ids)
    folder = make(tmp_path / "forced", forced_bos_token_id=5)
    with load(folder, provider="cpu") as model:
        assert isinstance(model, TextToTextGenerator)
        assert model.generate(SOURCES[0], max_new_tokens=2).ids[0] == 5


def test_beams_of_the_folder(tmp_path):
    folder = make(tmp_path / "counter", num_beams=3, length_penalty=-2.0, early_stopping=True)
    options: dict[str, Any] = {"max_new_tokens": 5}
    with load(folder, provider="cpu") as model:
        assert isinstance(model, TextToTextGenerator)
        made = model.generate(SOURCES, samples=2, **options)
        beams = {"num_beams": 3, "length_penalty": -2.0, "early_stopping": True}
        expected = model.generate(SOURCES, samples=2, **beams, **options)
        assert made == expected
        other = model.generate(SOURCES, samples=2, length_penalty=1.0, **options)
        assert [group[0].score for group in other] != [group[0].score for group in made]
        assert model.generate(SOURCES[0], num_beams=1, **options).score is None
        assert model.generate(SOURCES[0], seed=0, **options).score is None


def test_warm_up_close_and_description(counter):
    counter.warm_up()
    counter.warm_up(encoder_sequence_length=5, batch_size=2)
    with pytest.raises(InputError, match="'source_length'"):
        counter.warm_up(source_length=5)
    assert f"{VOCABULARY} tokens, context {CONTEXT}" in repr(counter)
    counter.close()
    for session in counter.sessions:
        with pytest.raises(KerasTxError, match="closed"):
            session.run({})


def test_translate_and_summarize(tmp_path):
    pytest.importorskip("tokenizers")
    tasks = {contract.TRANSLATION: Translator, contract.SUMMARIZATION: Summarizer}
    for task, kind in tasks.items():
        folder = make(tmp_path / task, task=task, tokenizer=byte_tokenizer())
        with load(folder, provider="cpu") as model:
            assert isinstance(model, kind)
            options = {"max_new_tokens": 6, "stop_tokens": []}
            made = model.generate(["abc", "e"], **options)
            assert model(["abc", "e"], **options) == [text.text for text in made]
            assert model("abc", **options) == made[0].text
            ids = model.tokenizer.encode("abc").ids
            assert made[0].text == model.tokenizer.decode(continued(ids, 6))
            with pytest.raises(InputError, match="source 0 is empty"):
                model(" ")
    with load(make(tmp_path / "ids", task=contract.TRANSLATION), provider="cpu") as model:
        assert isinstance(model, Translator)
        for source in ("text", [1, 2]):
            with pytest.raises(InputError, match=r"tokenizer\.json"):
                model.translate(source)


TASKS = {
    "translation_en_to_de": {"prefix": "ab ", "max_length": 5, "num_beams": 3, "length_penalty": -2.0},
    "translation": {"prefix": "c "},
    "summarization": {"prefix": "d ", "min_length": 4, "max_length": 7},
}


def test_tasks_of_the_config(tmp_path):
    """As in transformers, lengths include the decoder's first token."""
    pytest.importorskip("tokenizers")
    folder = make(
        tmp_path / "pairs", task=contract.TRANSLATION, tokenizer=byte_tokenizer(), tasks=TASKS, num_beams=2
    )
    with load(folder, provider="cpu") as model:
        assert isinstance(model, Translator)
        assert model.translate("e") == model.generate("c e").text
        beams: dict[str, Any] = {"num_beams": 3, "length_penalty": -2.0, "max_new_tokens": 4}
        expected = model.generate(["ab e", "ab a"], **beams)
        assert model.translate(["e", "a"], task="translation_en_to_de") == [text.text for text in expected]
        greedy = model.generate("ab e", num_beams=1, max_new_tokens=2)
        made = model.translate("e", task="translation_en_to_de", num_beams=1, max_new_tokens=2)
        assert made == greedy.text
        assert model.generate("e").ids == model.generate("e", num_beams=2).ids
        with pytest.raises(ConfigError, match="task='translation_de'.*'translation_en_to_de'"):
            model.translate("e", task="translation_de")
        with pytest.raises(InputError, match=r"source 1 is \[1\].*'c '"):
            model.translate(["a", [1]])
    folder = make(tmp_path / "sums", task=contract.SUMMARIZATION, tokenizer=byte_tokenizer(), tasks=TASKS)
    with load(folder, provider="cpu") as model:
        assert isinstance(model, Summarizer)
        for text in ("a", "b", "e", "ab"):
            expected = model.generate(f"d {text}", max_new_tokens=6, min_new_tokens=3)
            assert model.summarize(text) == expected.text
        for empty in ("", " "):  # the prefix alone is no source
            with pytest.raises(InputError, match="source 1 is empty"):
                model.summarize(["a", empty])
    with load(make(tmp_path / "plain", task=contract.TRANSLATION, tokenizer=byte_tokenizer())) as model:
        assert isinstance(model, Translator)
        with pytest.raises(ConfigError, match="task='translation'.*Omit"):
            model.translate("a", task="translation")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "task_specific_params is"),
        ({"translation": "ab "}, "task_specific_params is"),
        ({"translation": {"prefix": 3}}, "'translation': prefix is 3"),
        ({"translation": {"max_length": 1}}, "'translation': max_length is 1"),
        ({"translation": {"min_length": "4"}}, "'translation': min_length is '4'"),
        (
            {"translation": {"bad_words_ids": [1]}},
            "'translation': bad_words_ids is 1, expected",
        ),
    ],
)
def test_invalid_tasks_raise(tasks, message, tmp_path):
    with pytest.raises(FolderError, match=message):
        load(make(tmp_path / "counter", tasks=tasks), provider="cpu")


def test_unknown_language_raises(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<unk>", "a", "b", ">>fra<<", ">>deu<<", "</s>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder = make(tmp_path / "pairs", task=contract.TRANSLATION, tokenizer=tokenizer)
    with load(folder, provider="cpu") as model:
        assert isinstance(model, Translator)
        for text in ("a b", ">>fra<< a", "a >>ita<< b", ["a", ">>deu<< b"]):
            model.translate(text, max_new_tokens=2)
        for text, index in ((">>ita<< a", 0), (["a", " >>ita<<b"], 1)):
            with pytest.raises(InputError, match=f"source {index} begins with '>>ita<<'.*>>deu<<, >>fra<<"):
                model.translate(text)
        for call in (
            model.generate,
            lambda text: list(model.stream(text)),
            lambda text: model.score(text, "a"),
        ):
            with pytest.raises(InputError, match=">>ita<<"):
                call(">>ita<< a")
        with pytest.raises(TextError, match=">>ita<<"):
            model.task.answer(model, [">>ita<< a"], RunOptions())
        model.score(">>fra<< a", ">>ita<< b")
        with pytest.raises(InputError, match="source 1 is empty"):
            model.translate([">>fra<< a", ">>fra<< "])


def test_source_longer_than_context_raises(counter):
    with pytest.raises(InputError, match="source 1 has 21 tokens.* 20"):
        counter.generate([[1], [1] * 21])
    assert counter.generate([[1] * 20], max_new_tokens=1)[0].ids == tuple(continued([1] * 20, 1))
    made = counter.generate([1], max_new_tokens=50, stop_tokens=[])
    assert (len(made.ids), made.finish) == (CONTEXT, "context")


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"decoder_start_token_id": None}, "decoder_start_token_id is None"),
        ({"decoder_start_token_id": 31}, "decoder_start_token_id is 31"),
        ({"eos_token_id": 31}, "eos_token_id 31"),
        ({"bad_words_ids": [1]}, "bad_words_ids is 1, expected a list of ids"),
        ({"forced_bos_token_id": 40}, "forced_bos_token_id has 40"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "length_penalty": "long"}, "length_penalty is 'long'"),
    ],
)
def test_invalid_generation_configs_raise(generation, message, tmp_path):
    with pytest.raises(FolderError, match=message) as caught:
        load(make(tmp_path / "counter", **generation), provider="cpu")
    assert str(caught.value).count(contract.GENERATION_CONFIG) == 1


def test_folder_without_encoder_raises(tmp_path):
    folder = make(tmp_path / "counter")
    manifest = json.loads((folder / contract.MANIFEST).read_text())
    (folder / contract.MANIFEST).write_text(json.dumps({**manifest, "encoder": None}))
    with pytest.raises(FolderError, match="has no encoder"):
        load(folder, provider="cpu")


def test_encoder_of_another_width_raises(tmp_path):
    """The decoder expects hidden states of width 1."""
    folder = make(tmp_path / "counter")
    path = folder / contract.ENCODER_MODEL
    proto = onnx.load(path)
    proto.graph.node[-1].output[0] = "narrow"
    name = contract.LAST_HIDDEN_STATE
    proto.graph.node.append(onnx.helper.make_node("Concat", ["narrow", "narrow"], [name], axis=2))
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 2
    onnx.save(proto, path)
    manifest = Manifest.from_json((folder / contract.MANIFEST).read_text())
    files = {name: contract.describe_file(folder / name) for name in manifest.files}
    dataclasses.replace(manifest, files=files).save(folder)
    with pytest.raises(FolderError, match="last_hidden_state .*2.*encoder_hidden_states .*1"):
        load(folder, provider="cpu")
