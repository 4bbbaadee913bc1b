"""The time of a step in `model.fit` and of the compiled step alone, on TensorFlow.

python -m tests.benchmarks.fit_overhead --steps 10 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

NAMES = ("vit-s16", "bert-small", "gpt-char", "tiny")


def data_of(name: str, steps: int) -> tuple[Any, np.ndarray, np.ndarray, int]:
    """A model with random weights, inputs and labels for some steps, and the size of a batch."""
    import keras

    import keras_tx as tx

    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    if name == "vit-s16":
        images = random.uniform(-1, 1, (8 * steps, 224, 224, 3)).astype("float32")
        return tx.vit("S/16", num_classes=1000), images, random.integers(0, 1000, 8 * steps), 8
    if name == "bert-small":
        ids = random.integers(1000, 30000, (16 * steps, 128))
        return tx.bert("small", num_classes=2), ids, random.integers(0, 2, 16 * steps), 16
    model = tx.gpt("char") if name == "gpt-char" else tx.gpt("char", width=16, depth=1, num_heads=2)
    length = 257 if name == "gpt-char" else 9
    ids = random.integers(1, model.config.vocabulary_size, (16 * steps, length))
    return model, ids[:, :-1], ids[:, 1:], 16


def measure(name: str, steps: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds of a step in `fit`, and of the compiled step with batches in memory."""
    import keras
    import tensorflow as tf

    model, x, y, batch = data_of(name, steps)
    model.compile(keras.optimizers.AdamW(1e-4), jit_compile=True)
    batches = [
        (tf.constant(x[i : i + batch], "float32" if x.ndim == 4 else "int32"), tf.constant(y[i : i + batch]))
        for i in range(0, len(x), batch)
    ]
    # From the first step to the last: `fit` may return later.
    times: list[float] = []
    stop_watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
    )
    model.fit(x, y, batch_size=batch, verbose=0)
    compiled = tf.function(model.train_step, jit_compile=True, reduce_retracing=True)
    compiled(batches[0])
    in_fit, alone = [], []
    for _ in range(rounds):
        times.clear()
        model.fit(x, y, batch_size=batch, verbose=0, callbacks=[stop_watch])
        in_fit.append((times[1] - times[0]) / steps)
        start = time.perf_counter()
        logs = [compiled(inputs) for inputs in batches]
        float(logs[-1]["loss"])
        alone.append((time.perf_counter() - start) / steps)
    return statistics.median(in_fit) * 1000, statistics.median(alone) * 1000


def row(name: str, steps: int, rounds: int) -> str:
    """A row of the table for a model."""
    in_fit, alone = measure(name, steps, rounds)
    return f"| {name} | {in_fit:.1f} | {alone:.1f} | {in_fit / alone - 1:+.1%} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", nargs="*", choices=NAMES, default=NAMES[:-1])
    parser.add_argument("--steps", type=int, default=10, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    print("| model | step in `fit`, ms | compiled step, ms | more |\n| --- | --- | --- | --- |")
    for name in options.model:
        print(row(name, options.steps, options.rounds), flush=True)


if __name__ == "__main__":
    main()
