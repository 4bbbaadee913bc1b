"""The time of a training step and the memory of the optimizer, with LoRA and of the whole model.

KERAS_BACKEND=torch python -m tests.benchmarks.low_rank_training 124M --batch 2 --tokens 128
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

import numpy as np

RUNS = ("whole", "lora", "enable_lora")  # the last is Keras's own, on the same layers


def trained_bytes(optimizer: Any) -> int:
    """The bytes of the optimizer's variables."""
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in optimizer.variables)


def prepared(run: str, variant: str, **options: Any) -> Any:
    """A compiled GPT, trained fully or with adapters."""
    import keras_tx

    model = keras_tx.gpt(variant, dropout=0.0, **options)
    if run == "lora":
        keras_tx.lora(model, 8)
    elif run == "enable_lora":
        for block in [layer for layer in model.layers if layer.name.startswith("block_")]:
            for part in block._flatten_layers():
                for variable in part._trainable_variables:
                    variable.trainable = False
            for name in ("query", "key", "value", "output_projection"):
                getattr(block.attention, name).enable_lora(8)
        for layer in model.layers:
            if not layer.name.startswith("block_"):
                layer.trainable = False
    model.compile(keras_tx.AdamW(1e-4))
    return model


def measure(variant: str, batch: int, tokens: int, steps: int, **options: Any) -> str:
    """A table with a row for each kind of training; steps are interleaved."""
    import keras

    ids = np.random.default_rng(0).integers(0, 50, (batch, tokens + 1))
    models = {run: prepared(run, variant, **options) for run in RUNS}
    seconds: dict[str, list[float]] = {run: [] for run in RUNS}
    for index in range(steps + 1):
        for run, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(ids[:, :-1], ids[:, 1:])
            if index:  # the first step compiles
                seconds[run].append(time.perf_counter() - start)
    first = np.median(seconds["whole"])
    held = trained_bytes(models["whole"].optimizer)
    lines = [
        f"gpt {variant}, {batch} x {tokens} tokens, {steps} steps, {keras.backend.backend()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "",
        "| training | trained numbers | optimizer, bytes | of whole | step, s | of whole |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run, model in models.items():
        count = sum(math.prod(x.shape) for x in model.trainable_variables)
        size, median = trained_bytes(model.optimizer), np.median(seconds[run])
        lines.append(
            f"| {run} | {count:,} | {size:,} | {size / held:.2%} | {median:.3f} | {median / first:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", help="a variant of keras_tx.gpt")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print(measure(options.variant, options.batch, options.tokens, options.steps))


if __name__ == "__main__":
    main()
