"""The share of a training step that waits for data: packed batches compared with one prepared batch.

    python -m tests.benchmarks.input_pipeline [--variants tiny,small,base] [--steps 20] [--rounds 3]

For each task, `fit` runs on the batches of its packer, as tf.data and as PyDataset, and on one repeated batch
of the same shape. The difference is the time that it waits. The feeds are interleaved; medians of the rounds.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import statistics
import time
from collections.abc import Callable
from typing import Any

FEEDS = ("one batch", "tf.data", "PyDataset")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--variants", default="tiny,small,base", help="sizes as keras_tx.bert() names them")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each feed (default: 3)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    options = parser.parse_args(arguments)
    print("| task | size | packing, ms | one batch, ms | tf.data, ms | waiting | PyDataset, ms | waiting |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    tasks = _tasks(options.length, options.batch_size, options.steps)
    for variant in options.variants.split(","):
        for task, (batches, head) in tasks.items():
            times = measure(variant, batches, head, options.length, options.steps, options.rounds)
            cached, *packed = (times[feed] for feed in FEEDS)
            shares = [f"{1000 * x:.1f} | {max(0.0, 1 - cached / x):.1%}" for x in packed]
            first = f"{1000 * times['packing']:.1f} | {1000 * cached:.1f}"
            print(f"| {task} | {variant} | {first} | {' | '.join(shares)} |", flush=True)


def _paragraphs() -> list[list[str]]:
    """The documentation that Python includes: paragraphs by topic."""
    chapters = [text.split("\n\n") for text in pydoc_data.topics.topics.values()]
    documents = [[" ".join(part.split()) for part in parts if len(part.split()) > 3] for parts in chapters]
    return [parts for parts in documents if len(parts) > 3]


def _tasks(length: int, batch_size: int, steps: int) -> dict[str, tuple[Any, Any]]:
    """Batches, padded to one length, and the head of each task."""
    import dataclasses

    import keras_tx
    from keras_tx.processing import train_wordpiece
    from keras_tx.training import packing

    documents = _paragraphs()
    texts = [" ".join(parts) for parts in documents]
    learned = train_wordpiece(texts, 4000, max_length=length, multiple=length)
    transform = dataclasses.replace(learned, too_long="cut")
    paragraphs = [part for parts in documents for part in parts]
    while len(paragraphs) < (steps + 1) * batch_size:
        paragraphs = paragraphs * 2
    words = [part.split() for part in paragraphs]
    answers = [(0, len(text.split()[0])) for text in texts]
    shared: dict[str, Any] = {"batch_size": batch_size}
    tags = [[len(word) % 3 for word in row] for row in words]
    return {
        "masked language": (
            packing.masked_lm_batches(texts * 3, transform, whole_words=True, **shared),
            keras_tx.MaskedLMHead(),
        ),
        "pairs": (
            packing.sentence_pair_batches(documents * 3, transform, **shared),
            keras_tx.PretrainingHead(),
        ),
        "spans": (
            packing.question_answering_batches(
                ["What is it?"] * len(texts),
                texts,
                answers,
                transform,
                overlap=min(32, length // 4),
                **shared,
            ),
            keras_tx.SpanHead(),
        ),
        "labels": (
            packing.text_classification_batches(
                paragraphs, [len(x) % 2 for x in paragraphs], transform, **shared
            ),
            keras_tx.ClassifierHead(2),
        ),
        "labels of words": (
            packing.token_classification_batches(words, tags, transform, **shared),
            keras_tx.TokenClassifierHead(3),
        ),
    }


def measure(variant: str, batches: Any, head: Any, length: int, steps: int, rounds: int) -> dict[str, float]:
    """Seconds per step by feed, and per packed batch."""
    import tensorflow as tf

    import keras_tx

    model: Any = keras_tx.bert(variant, head=head, vocabulary_size=4000, max_length=length)
    model.compile()
    batch = batches[0]
    feeds: dict[str, Callable[[], Any]] = {
        "one batch": lambda: tf.data.Dataset.from_tensors(batch).repeat(),
        "tf.data": lambda: batches.tf_data().repeat(),
        "PyDataset": lambda: batches,
    }
    steps = min(steps, len(batches) - 1)
    model.fit(feeds["one batch"](), steps_per_epoch=2, epochs=1, shuffle=False, verbose=0)  # compiles
    times: dict[str, list[float]] = {feed: [] for feed in FEEDS}
    for _ in range(rounds):
        for feed, data in feeds.items():
            times[feed].append(_step_time(model, data(), steps))
    start = time.perf_counter()
    for index in range(steps):
        batches[index]
    packing = (time.perf_counter() - start) / steps
    return {"packing": packing, **{feed: statistics.median(samples) for feed, samples in times.items()}}


def _step_time(model: Any, data: Any, steps: int) -> float:
    """Seconds per step after the first, which also creates the iterator."""
    import keras

    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    model.fit(data, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0, callbacks=[Clock()])
    return (ends[-1] - ends[0]) / (len(ends) - 1)


if __name__ == "__main__":
    main()
