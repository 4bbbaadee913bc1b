"""The time and the memory of a training step with each option of docs/training.md.

Each option runs in a process of its own: a BERT of MiniLM's shape embeds pairs of texts.

KERAS_BACKEND=tensorflow python -m tests.benchmarks.training_options --batch 256 --tokens 64
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from tests import memory

SHAPE = {"width": 384, "depth": 6, "num_heads": 12, "mlp_dim": 1536, "vocabulary_size": 30522}
SMALL = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "vocabulary_size": 100}
# option: arguments of the model, of compile and of the optimizer, and the parts of a batch
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    "none": ({}, {}, {}, 1),
    "remat=True": ({}, {"remat": True}, {}, 1),
    "chunk_size": ({}, {"chunk_size": 0}, {}, 1),  # of --chunk
    "gradient_accumulation_steps=4": ({}, {}, {"gradient_accumulation_steps": 4}, 4),
    "mixed_bfloat16": ({"dtype": "mixed_bfloat16"}, {}, {}, 1),
    "jit_compile=True": ({}, {"jit_compile": True}, {}, 1),
    "steps_per_execution=4": ({}, {"steps_per_execution": 4}, {}, 1),
    "use_ema=True": ({}, {}, {"use_ema": True}, 1),
    "muon": ({}, {}, {}, 1),
}


def measure(option: str, batch: int, tokens: int, chunk: int, steps: int, small: bool) -> dict[str, float]:
    """The seconds of a batch of pairs of texts, and the bytes that training adds to those of the model."""
    import keras

    import keras_tx

    of_model, of_compile, of_optimizer, parts = OPTIONS[option]
    compiled: dict[str, Any] = {**of_compile, **({"chunk_size": chunk} if "chunk_size" in of_compile else {})}
    keras.utils.set_random_seed(0)
    sizes = {**(SMALL if small else SHAPE), "max_length": tokens, "dropout": 0.0, **of_model}
    model = keras_tx.bert("tiny", head=keras_tx.SentenceEmbeddingHead(), **sizes)
    optimizer = (keras_tx.optimizers.Muon if option == "muon" else keras_tx.AdamW)(1e-4, **of_optimizer)
    loss: Any = keras_tx.MultipleNegativesRankingLoss()
    model.compile(optimizer, loss, metrics=[], **compiled)
    count = steps * batch
    ids = np.random.default_rng(0).integers(1, sizes["vocabulary_size"], (count, tokens), dtype="int32")
    labels = np.stack([np.arange(count) // 2, np.arange(count) % 2, np.arange(count)], 1)
    held = memory.resident()
    memory.begin_peak()
    arguments = {"batch_size": batch // parts, "shuffle": False, "verbose": 0}
    model.fit(ids, labels, **arguments)  # compiles
    # From the first step to the last: on TensorFlow, `fit` may return later.
    times: list[float] = []
    stop_watch = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: times.append(time.perf_counter()),
        on_train_end=lambda logs: times.append(time.perf_counter()),
    )
    model.fit(ids, labels, callbacks=[stop_watch], **arguments)
    return {"seconds": (times[1] - times[0]) / steps, "bytes": memory.peak() - held}


def table(options: argparse.Namespace) -> str:
    """A table with a row for each option."""
    backend, load = os.environ.get("KERAS_BACKEND", "tensorflow"), os.getloadavg()[0]
    lines = [
        f"{options.batch} x {options.tokens} tokens, chunk_size={options.chunk}, {backend}, "
        f"{os.cpu_count()} cores, load {load:.1f}",
        "",
        "| option | s per batch | of none | memory, MB | of none |",
        "| --- | --- | --- | --- | --- |",
    ]
    first: dict[str, float] = {}
    for name in options.only or OPTIONS:
        command = [sys.executable, "-m", "tests.benchmarks.training_options", *sys.argv[1:], "--run", name]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode:
            lines.append(f"| `{name}` | {(finished.stderr.strip() or 'ended').splitlines()[-1][:80]} | | | |")
            continue
        row = json.loads(finished.stdout.splitlines()[-1])
        first = first or row
        lines.append(
            f"| `{name}` | {row['seconds']:.2f} | {row['seconds'] / first['seconds']:.2f} "
            f"| {row['bytes'] / 1e6:,.0f} | {row['bytes'] / first['bytes']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256, help="texts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--only", nargs="*", choices=list(OPTIONS))
    parser.add_argument("--run", choices=list(OPTIONS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (options.batch, options.tokens, options.chunk, options.steps, options.small)
    print(table(options) if options.run is None else json.dumps(measure(options.run, *sizes)))


if __name__ == "__main__":
    main()
