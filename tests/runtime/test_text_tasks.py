"""The text tasks of the runtime equal Keras, for texts of any length, in their order."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, InputError, KerasTxError, TextError
from keras_tx.processing import TextTransform
from keras_tx.runtime import PretrainedEncoder, load
from keras_tx.runtime.tasks.token_classification import merge_words
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.exported_folders import ExportedFolders
from tests.memory import resident
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, WORDS, wordpiece

TINY = {
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "vocabulary_size": len(VOCABULARY),
    "max_length": 24,
}
TEXTS = ["The cat sat on the mat.", "Ada!", "I love the film, it is very good and I hated the cats.", "Paris"]


def opened(exported_folders: ExportedFolders, head: str) -> tuple[Any, Any, TextTransform]:
    """A shared model, its loaded folder and its text transform."""
    model, folder = exported_folders[f"bert, {head}"]
    return model, load(folder, provider="cpu"), TextTransform.load(folder)


def exported(folder: Path, head: Any, **options: Any) -> tuple[Any, Any, TextTransform]:
    """A model, its loaded folder and its text transform."""
    model = redraw(keras_tx.bert("tiny", head=head, **TINY))
    export_onnx(model, folder, tokenizer=wordpiece(), verify=False, **options)
    return model, load(folder, provider="cpu"), TextTransform.load(folder)


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def keras_outputs(model: Any, arrays: dict[str, np.ndarray]) -> Any:
    return as_numpy(model({name: arrays[name] for name in model.input}))


@pytest.mark.parametrize("unpad", [True, False])
def test_classify(unpad: bool, tmp_path):
    names = ["bad", "fair", "good"]
    model, classify, transform = exported(
        tmp_path / "x", keras_tx.ClassifierHead(3), labels=names, unpad=unpad
    )
    expected = softmax(keras_outputs(model, transform(TEXTS)))
    for answer, scores in zip(classify(TEXTS, batch_size=2), expected, strict=True):
        assert [a["label"] for a in answer] == [names[i] for i in np.argsort(-scores)]
        assert_close(np.array([a["score"] for a in answer]), np.sort(scores)[::-1])
    (one,) = classify(TEXTS[0], top_k=1)
    assert one["label"] == names[int(np.argmax(expected[0]))]
    assert classify([]) == []


def test_classify_pairs(exported_folders):
    model, classify, transform = opened(exported_folders, "next")
    pairs = TEXTS[::-1]
    expected = softmax(keras_outputs(model, transform(TEXTS, pairs)))
    for answer, scores in zip(classify(TEXTS, pairs), expected, strict=True):
        results = {a["label"]: a["score"] for a in answer}
        assert_close(np.array([results["IS_NEXT"], results["NOT_NEXT"]]), scores)


def test_regression_gives_numbers(tmp_path):
    model, score, transform = exported(tmp_path / "x", keras_tx.RegressionHead(2), labels=["a", "b"])
    expected = keras_outputs(model, transform(TEXTS))
    results = score(TEXTS)
    assert [a["label"] for a in results[0]] == ["a", "b"]
    assert_close(np.array([[a["score"] for a in answer] for answer in results]), expected)


def test_embed(tmp_path, exported_folders):
    other = exported(tmp_path / "x", keras_tx.SentenceEmbeddingHead("class", False))
    for index, (model, embedder, transform) in enumerate((opened(exported_folders, "sentence"), other)):
        assert_close(embedder(TEXTS, batch_size=3), keras_outputs(model, transform(TEXTS)))
        assert embedder("Ada").shape == (16,)
        plain = embedder(TEXTS, normalize=False)
        assert_close(plain / np.linalg.norm(plain, axis=1, keepdims=True), embedder(TEXTS, normalize=True))
        assert_close(embedder(TEXTS, normalize=not index), embedder(TEXTS))  # as each was made
        assert embedder([]).shape == (0, 16)


def test_embed_without_a_head(exported_folders):
    model, embedder, transform = opened(exported_folders, "none")
    arrays = transform(TEXTS)
    tokens, mask = keras_outputs(model, arrays)["last_hidden_state"], arrays["attention_mask"][..., None]
    mean = (tokens * mask).sum(1) / mask.sum(1)
    assert_close(embedder(TEXTS, normalize=False), mean)
    assert_close(embedder(TEXTS), mean / np.linalg.norm(mean, axis=1, keepdims=True))
    assert_close(embedder(TEXTS, pooling="class", normalize=False), tokens[:, 0])
    with pytest.raises(InputError, match="pooling='max'"):
        embedder(TEXTS, pooling="max")


def test_fill(exported_folders):
    model, fill, transform = opened(exported_folders, "masked")
    texts = ["the [MASK] sat.", "i love [MASK] and [MASK]!"]
    arrays = transform(texts)
    scores = softmax(keras_outputs(model, arrays))
    one, two = fill(texts, top_k=2)
    places = [np.flatnonzero(row == 4) for row in arrays["input_ids"]]
    best = int(np.argmax(scores[0, places[0][0]]))
    assert (one[0]["id"], one[0]["token"]) == (best, VOCABULARY[best])
    assert one[0]["score"] == pytest.approx(scores[0, places[0][0], best], rel=1e-5)
    assert [len(answers) for answers in two] == [2, 2]
    assert two[1][0]["id"] == int(np.argmax(scores[1, places[1][1]]))
    with pytest.raises(TextError, match=r"texts\[1\] has no \[MASK\]"):
        fill(["[MASK]", "the cat"])


def test_pretrained(exported_folders):
    """`fill` and `classify` of a model with both heads."""
    model, both, transform = opened(exported_folders, "pretraining")
    assert type(both) is PretrainedEncoder and both.folder.manifest.task == "fill-mask"
    arrays = transform("the [MASK] sat.")
    scores = softmax(keras_outputs(model, arrays)["prediction_logits"])
    place = int(np.flatnonzero(arrays["input_ids"][0] == 4)[0])
    (answer,) = both("the [MASK] sat.", top_k=1)
    assert answer["id"] == int(np.argmax(scores[0, place]))
    assert answer["score"] == pytest.approx(scores[0, place].max(), rel=1e-5)
    pairs = ["it is good", "Paris", "the dog", "no"]
    expected = softmax(keras_outputs(model, transform(TEXTS, pairs))["seq_relationship_logits"])
    for results, row in zip(both.classify(TEXTS, pairs, batch_size=3), expected, strict=True):
        assert [one["label"] for one in results] == [["IS_NEXT", "NOT_NEXT"][i] for i in np.argsort(-row)]
        assert_close(np.array([one["score"] for one in results]), np.sort(row)[::-1])
    assert both.classify(TEXTS[0], pairs[0], top_k=1) == [both.classify(TEXTS[0], pairs[0])[0]]


def test_tag(tmp_path):
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    model, tag, transform = exported(tmp_path / "x", keras_tx.TokenClassifierHead(5), labels=labels)
    text = "  Ada Lovelace lives in LONDON, Paris"
    arrays = transform([text], offsets=True)
    scores = softmax(keras_outputs(model, arrays))[0]
    words = tag(text, merge=False)
    assert [word["text"] for word in words] == ["Ada", "Lovelace", "lives", "in", "LONDON", ",", "Paris"]
    for word in words:
        place = next(i for i, (a, b) in enumerate(arrays["offset_mapping"][0]) if b and a == word["start"])
        assert word["label"] == labels[int(np.argmax(scores[place]))]
        assert word["score"] == pytest.approx(scores[place].max(), rel=1e-5)
    (entities,) = tag([text])
    for entity in entities:
        assert entity["text"] == text[entity["start"] : entity["end"]]
    assert len(tag(TEXTS)) == len(TEXTS)


def test_merge_words():
    text = "Ada Lovelace met Max in New York City"
    words = [("B-PER", 0.9, 0, 3), ("I-PER", 0.7, 4, 12), ("O", 1.0, 13, 16), ("B-PER", 0.6, 17, 20)]
    words += [("O", 1.0, 21, 23), ("I-LOC", 0.5, 24, 27), ("I-LOC", 0.7, 28, 32), ("B-LOC", 0.9, 33, 37)]
    assert [(e["label"], e["text"], round(e["score"], 6)) for e in merge_words(text, words)] == [
        ("PER", "Ada Lovelace", 0.8),
        ("PER", "Max", 0.6),
        ("LOC", "New York", 0.6),
        ("LOC", "City", 0.9),
    ]
    plain = [("LOC", 0.5, 24, 27), ("LOC", 0.7, 28, 32), ("PER", 0.9, 33, 37)]
    assert [e["text"] for e in merge_words(text, plain)] == ["New York", "City"]


def test_long_texts_are_tagged_in_windows(exported_folders):
    *_, tag, _ = opened(exported_folders, "tags")
    text = " ".join(word for word in WORDS * 4 if word.isalpha())
    words = tag(text, merge=False)
    assert [word["text"] for word in words] == text.split()
    assert [text[word["start"] : word["end"]] for word in words] == text.split()


def test_answer(exported_folders):
    model, answer, transform = opened(exported_folders, "span")
    question, text = "Who lives in Paris?", "Ada  lives in PARIS. The cat sat."
    arrays = transform([question], [text], offsets=True)
    out = keras_outputs(model, arrays)
    second = arrays["token_type_ids"][0].astype(bool)
    second[-1] = False  # the separator at the end
    places = [0, *np.flatnonzero(second)]
    start, end = (softmax(out[name][0][places]) for name in ("start_logits", "end_logits"))
    best: list[tuple[float, int, int]] = [(start[0] * end[0], 0, 0)]
    for i in range(1, len(places)):
        for j in range(i, min(len(places), i + 3)):
            offsets = arrays["offset_mapping"][0]
            best.append((start[i] * end[j], offsets[places[i], 0], offsets[places[j], 1]))
    best.sort(reverse=True)
    results = answer(question, text, top_k=4, max_tokens=3)
    for (score, first, last), answered in zip(best[:4], results, strict=True):
        assert answered["score"] == pytest.approx(score, rel=1e-4)
        assert (answered["start"], answered["end"], answered["answer"]) == (first, last, text[first:last])
        assert answered["no_answer"] == pytest.approx(start[0] * end[0], rel=1e-4)
    assert answer([question] * 2, text, top_k=1, max_tokens=3) == [results[:1]] * 2


def test_answers_in_long_texts(exported_folders):
    *_, answer, _ = opened(exported_folders, "span")
    text = " ".join(word for word in WORDS * 6 if word.isalpha())
    results = answer("Who is good?", text, top_k=50, max_tokens=4)
    assert len(results) > 20 and max(entry["start"] for entry in results) > len(text) / 3
    for entry in results:
        assert entry["answer"] == text[entry["start"] : entry["end"]]
        assert len(entry["answer"].split()) <= 4
    with pytest.raises(InputError, match="2 questions.* 1 texts"):
        answer(["who", "where"], ["the cat"])


def test_order_is_kept_over_buckets(exported_folders):
    *_, embedder, _ = opened(exported_folders, "sentence")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[:20], n)) for n in random.integers(1, 20, 30)]
    alone = np.stack([embedder(text) for text in texts])
    assert_close(embedder(texts, batch_size=4), alone)


def test_invalid_texts_raise(exported_folders):
    *_, classify, _ = opened(exported_folders, "classifier")
    for wrong in (None, 7, np.array("the cat")):
        with pytest.raises(KerasTxError, match="texts is"):
            classify(wrong)
    with pytest.raises(KerasTxError, match="progress is 'no'"):
        classify("the cat", progress="no")
    with pytest.raises(KerasTxError, match=r"texts\[0\] is 7"):
        classify([7])
    with pytest.warns(UserWarning, match="max_length=24"):
        classify(["the cat", "the cat " * 40])


def test_ids_without_tokenizer(tmp_path):
    model = redraw(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2), **TINY))
    export_onnx(model, tmp_path / "x", verify=False)
    ids = np.array([[2, 7, 3], [2, 8, 3]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with load(tmp_path / "x", provider="cpu") as runtime:
        for name, value in (
            ("input_ids", 99),
            ("attention_mask", 2),
            ("token_type_ids", 2),
            ("input_ids", -1),
        ):
            wrong = np.array(inputs[name])
            wrong[1, 1] = value
            with pytest.raises(InputError, match=f"{name} has {value} in row 1"):
                runtime({**inputs, name: wrong})
        with pytest.raises(InputError, match=r"input_ids has shape \(2, 25\).* 24"):
            runtime({name: np.ones((2, 25), "int64") for name in inputs})
        for shape, axis in (((0, 3), "batch_size"), ((2, 0), "sequence_length")):
            with pytest.raises(InputError, match=f"{axis} is 0"):
                runtime({name: np.ones(shape, "int64") for name in inputs})
        assert runtime(inputs)["logits"].shape == (2, 2)


def test_zeros_as_token_type_ids_with_one_segment(tmp_path):
    sizes = {**TINY, "segments": 1}
    export_onnx(keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2), **sizes), tmp_path / "x", verify=False)
    ids = np.array([[2, 7, 3], [2, 8, 3]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    with load(tmp_path / "x", provider="cpu") as runtime:
        expected = runtime(inputs)["logits"]
        zeros = runtime({**inputs, "token_type_ids": np.zeros_like(ids)})["logits"]
        np.testing.assert_array_equal(zeros, expected)
        with pytest.raises(InputError, match="token_type_ids has 1 in row 0"):
            runtime({**inputs, "token_type_ids": np.ones_like(ids)})


def test_inputs_of_gpt_without_cache_are_checked(tmp_path):
    export_onnx(keras_tx.gpt("pico", vocabulary_size=50), tmp_path / "x", verify=False, cache=False)
    ids = np.array([[2, 7, 3]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(3)[None]}
    with load(tmp_path / "x", provider="cpu") as runtime:
        assert runtime(inputs)["logits"].shape == (1, 3, 50)
        for name, value in (
            ("position_ids", -1),
            ("position_ids", 64),
            ("attention_mask", -1),
            ("input_ids", 50),
        ):
            wrong = np.array(inputs[name])
            wrong[0, 2] = value
            with pytest.raises(InputError, match=f"{name} has {value} in row 0"):
                runtime({**inputs, name: wrong})


def test_empty_text_equals_keras(exported_folders):
    model, classify, transform = opened(exported_folders, "classifier")
    scores = softmax(keras_outputs(model, transform(["the cat", ""])))
    for row, answer in enumerate(classify(["the cat", ""])):
        results = {one["label"]: one["score"] for one in answer}
        np.testing.assert_allclose([results[f"LABEL_{i}"] for i in range(3)], scores[row], atol=1e-5)
    _, tag, _ = opened(exported_folders, "tags")
    assert tag(["", "the cat"])[0] == []
    with pytest.raises(ConfigError, match="merge is 'no'"):
        tag("the cat", merge="no")
    _, answer, _ = opened(exported_folders, "span")
    assert answer("the cat", "")[0]["answer"] == ""
    for wrong in (None, 7):
        with pytest.raises(KerasTxError, match="questions is"):
            answer(wrong, "the cat")
        with pytest.raises(KerasTxError, match="texts is"):
            answer("the cat", wrong)
    _, embed, _ = opened(exported_folders, "sentence")
    assert np.isfinite(embed(["", "the cat"])).all()
    with pytest.raises(ConfigError, match="normalize is 'no'"):
        embed("the cat", normalize="no")


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is measured on Linux")
def test_memory_over_500_lengths(tmp_path):
    sizes = {**TINY, "width": 128, "mlp_dim": 512, "max_length": 512}
    model = redraw(keras_tx.bert("tiny", head=keras_tx.SentenceEmbeddingHead(), **sizes))
    export_onnx(model, tmp_path / "x", tokenizer=wordpiece(), verify=False)
    lengths = np.random.default_rng(0).permutation(500) + 1
    texts = [" ".join([WORDS[5]] * n) for n in lengths]
    with load(tmp_path / "x", provider="cpu") as embedder:
        embedder([" ".join([WORDS[5]] * 500)] * 2)  # the largest first: later calls need no more memory
        before = resident()
        for text in texts:
            embedder([text])
        assert resident() - before < 30 * 2**20  # one run of the longest text needs more than this


def test_texts_of_similar_length_run_together(exported_folders, monkeypatch: pytest.MonkeyPatch):
    *_, embedder, _ = opened(exported_folders, "sentence")
    shapes = []
    run = embedder.session.run
    monkeypatch.setattr(
        embedder.session, "run", lambda inputs: shapes.append(inputs["attention_mask"].shape) or run(inputs)
    )
    texts = [" ".join([WORDS[5]] * n) for n in (1, 20, 2, 19, 3, 18, 1, 20)]
    embedder(texts, batch_size=4)
    assert shapes == [(4, 24), (4, 16)]  # sorted by length; otherwise both batches would have 24


TASKS = {
    "classifier": "classify(texts)[0][0]['label']",
    "tags": "tag(texts, merge=False)[0][0]['label']",
    "span": "answer('Who sat?', texts[0])[0]['answer']",
    "masked": "fill('The [MASK] sat.')[0]['token']",
    "sentence": "embed(texts).shape",
}


@pytest.mark.parametrize("head", TASKS)
def test_tasks_run_without_keras(head: str, exported_folders, without_training_packages):
    from tests.runtime.test_import import run

    _, model, _ = opened(exported_folders, head)
    call, texts = TASKS[head], TEXTS[:2]
    code = (
        "import keras_tx.runtime as runtime\n"
        f"texts = {texts!r}\n"
        f"with runtime.load({str(model.folder.path)!r}, provider='cpu') as model:\n"
        f"    print(model.{call})\n"
    )
    expected = eval(f"model.{call}", {"model": model, "texts": texts})
    assert run(without_training_packages(code)) == f"{expected}\n"


def test_long_lists_run_in_parts(exported_folders, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("keras_tx.runtime.tasks.text_task.PART", 3)
    _, classify, _ = opened(exported_folders, "classifier")
    sizes = []
    encode = TextTransform.encode

    def noted(self, texts, *args, **options):
        sizes.append(len(texts))
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(TextTransform, "encode", noted)
    texts = TEXTS * 5
    results = classify(texts, batch_size=2, progress=True)
    assert sizes == [6, 6, 6, 2]  # texts in memory at a time
    one_by_one = [classify(text) for text in TEXTS] * 5
    assert [[a["label"] for a in answer] for answer in results] == [
        [a["label"] for a in answer] for answer in one_by_one
    ]
    assert "20 of 20 texts, 0 s left" in capsys.readouterr().err
    with pytest.raises(KerasTxError, match=r"texts\[19\] is 7"):
        classify([*texts[:19], 7], batch_size=2)
    with pytest.warns(UserWarning, match=r"row 14 lost the most"):
        classify([*texts[:14], "cat " * 60], batch_size=2)


def test_iterators_are_read_in_parts(exported_folders, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("keras_tx.runtime.tasks.text_task.PART", 3)
    *_, embed, _ = opened(exported_folders, "sentence")
    *_, tag, _ = opened(exported_folders, "tags")
    _, classify, _ = opened(exported_folders, "next")
    drawn, seen = [], []
    encode = TextTransform.encode

    def noted(self, texts, *args, start=0, **options):
        seen.append(len(drawn) - start)
        return encode(self, texts, *args, start=start, **options)

    monkeypatch.setattr(TextTransform, "encode", noted)

    def source(count: int):
        for index in range(count):
            drawn.append(index)
            yield TEXTS[index % len(TEXTS)]

    with pytest.raises(TextError, match="1 texts.* 2 pairs"):
        classify("ab", iter(["the cat", "a dog"]))
    drawn.clear(), seen.clear()
    results = embed(source(20), batch_size=2, progress=True)
    assert seen == [6, 6, 6, 2]  # read, but not yet processed
    assert "\r20 texts, " in capsys.readouterr().err
    assert_close(results, embed(TEXTS * 5))
    assert tag(source(9), batch_size=2) == tag((TEXTS * 3)[:9], batch_size=2)
    pairs = TEXTS[::-1] * 2
    assert classify(iter(TEXTS * 2), pairs, batch_size=2) == classify(TEXTS * 2, pairs, batch_size=2)
    assert embed(iter([])).shape == (0, 16) and tag(iter([])) == []
    with pytest.raises(KerasTxError, match="2 texts.* 1 pairs"):
        classify(iter(TEXTS * 2), iter(pairs[:7]), batch_size=2)
    with pytest.raises(KerasTxError, match=r"texts\[7\] is 7"):
        embed(iter([*TEXTS, *TEXTS[:3], 7]), batch_size=2)


@pytest.mark.thorough
def test_memory_of_iterators(exported_folders):
    *_, embed, _ = opened(exported_folders, "sentence")
    count, size = 2000, 20_000  # 40 MB of texts, each of which is one unknown word

    def source():
        for index in range(count):
            yield f"{index} " + "x" * size

    embed(source().__next__())
    tracemalloc.start()
    try:
        assert embed(source(), batch_size=1).shape == (count, 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6  # 64 texts, the vectors, and little else


def test_other_tasks_run_in_parts(exported_folders, monkeypatch: pytest.MonkeyPatch):
    _, tag, _ = opened(exported_folders, "tags")
    _, answer, _ = opened(exported_folders, "span")
    _, embed, _ = opened(exported_folders, "sentence")
    questions = ["Who sat?", "Who?", "Ada?", "Where?", "What is good?"]
    texts = [*TEXTS, TEXTS[0]]
    whole = tag(texts), answer(questions, texts), embed(texts)
    monkeypatch.setattr("keras_tx.runtime.tasks.text_task.PART", 1)
    parts = tag(texts, batch_size=2), answer(questions, texts, batch_size=2), embed(texts, batch_size=2)
    assert_close(parts[2], whole[2])
    for some, all_at_once in zip(parts[:2], whole[:2], strict=True):
        places = [[(x["start"], x["end"]) for x in results] for results in some]
        assert places == [[(x["start"], x["end"]) for x in results] for results in all_at_once]


def test_folder_replaced_while_open(tmp_path):
    _, classify, _ = exported(tmp_path / "x", keras_tx.ClassifierHead(3))
    before = classify(TEXTS)
    exported(tmp_path / "x", keras_tx.ClassifierHead(2), overwrite=True)
    assert classify(TEXTS) == before  # the opened files are unchanged
    with load(tmp_path / "x", provider="cpu") as new:
        assert len(new.labels) == 2
