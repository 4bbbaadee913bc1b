"""A GPT that writes like Python's manual, character by character, in nanoGPT's settings for a CPU.

    command   python examples/gpt_characters.py --plot curve.png
    needs     pip install "keras-tx[cpu]"; --plot also matplotlib
    hardware  two CPU cores that others used, too
    minutes   4
    metric    validation loss 1.422 nats a character, 2.05 bits a byte. The mean of three seeds is 1.4145;
              nanoGPT's recipe in PyTorch has 1.4139 on the same batches (tests/training/reference_nanogpt.py)

The text is pydoc_data.topics, 465 kB of English, and the settings are those that nanoGPT's README gives for
a CPU: 4 blocks of 4 heads, width 128, context 64, batches of 12, 2000 steps, no dropout. (Its configuration
for a GPU, 6 blocks of width 384, context 256, batches of 64 and 5000 steps, is keras_tx.gpt("char"); on two
cores it takes hours.)

After an interruption, the same command resumes.
"""

from __future__ import annotations

import argparse
import os
import platform
import pydoc_data.topics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import keras_tx
from keras_tx.data import causal_lm_batches
from keras_tx.processing import TextTransform, character_vocabulary, write_tokens
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx


def write_corpus(parent: Path) -> Path:
    """The manual as token files; `keras-tx tokens FOLDER manual.txt --characters` does the same."""
    folder = parent / "tokens"
    if not folder.exists():
        text = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
        (parent / "manual.txt").write_text(text, encoding="utf-8", newline="\n")
        transform = character_vocabulary([text], eos_token="<|endoftext|>")
        write_tokens(folder, [parent / "manual.txt"], transform, validation=0.1)
    return folder


def make(transform: TextTransform, context: int = 64, width: int = 128, depth: int = 4) -> keras_tx.GPT:
    """nanoGPT's model for characters, smaller: exact gelu, no biases, tied head."""
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    sizes = {"max_length": context, "width": width, "depth": depth, "num_heads": 4}
    return keras_tx.gpt("char", processing=transform, **sizes, **rates)


def curve(history: dict[str, list[float]], steps: int) -> str:
    """The losses as lines of text."""
    most = max(history["loss"] + history["val_loss"])
    lines = [f"{'step':>6} {'training':>9} {'validation':>11}"]
    for index, (train, unseen) in enumerate(zip(history["loss"], history["val_loss"], strict=True)):
        bar = "#" * round(40 * unseen / most)
        lines.append(f"{(index + 1) * steps:>6} {train:>9.4f} {unseen:>11.4f} {bar}")
    return "\n".join(lines)


def plot(history: dict[str, list[float]], steps: int, path: Path) -> None:
    from matplotlib import pyplot

    at = [(index + 1) * steps for index in range(len(history["loss"]))]
    figure, axes = pyplot.subplots()
    axes.plot(at, history["loss"], label="training")
    axes.plot(at, history["val_loss"], label="validation")
    axes.set(xlabel="step", ylabel="loss, nats a character")
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("gpt_characters"), help="where everything goes")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--between", type=int, default=250, help="steps from one validation to the next")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="a picture of the curve")
    options = parser.parse_args(arguments)
    started = time.perf_counter()

    keras.utils.set_random_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    tokens = write_corpus(options.folder)
    transform = TextTransform.load(tokens)
    blocks = causal_lm_batches(
        tokens / "train.tokens", options.context, options.batch_size, steps=options.between, seed=options.seed
    )
    unseen = causal_lm_batches(tokens / "validation.tokens", options.context, 64, shuffle=False)

    model = make(transform, options.context, options.width, options.depth)
    model.compile(
        keras_tx.pretrain_recipe(
            options.steps, learning_rate=1e-3, warmup=min(100, options.steps // 2), beta_2=0.99
        ),
        metrics=[keras_tx.BitsPerByte(unseen.tokens.bytes_per_token)],
    )
    history = keras_tx.fit_resumable(
        model,
        blocks,
        options.folder / "run.state",
        epochs=options.steps // options.between,
        validation_data=unseen,
        verbose=2,
        callbacks=[keras_tx.SampleText("The ")],
    ).history
    print(f"\n{curve(history, options.between)}")
    if options.plot:
        plot(history, options.between, options.plot)

    print(f"\n{export_onnx(model, options.folder / 'poet', overwrite=True)}\n")
    with load(options.folder / "poet") as poet:
        for piece in poet.stream(
            "The ", max_new_tokens=300, temperature=0.8, seed=options.seed, at_context="slide"
        ):
            print(piece, end="", flush=True)
    print()
    minutes = (time.perf_counter() - started) / 60
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {keras.backend.backend()}"
    print(f"python {' '.join(sys.argv)}: {minutes:.1f} minutes on {machine}")
    print(f"validation loss {history['val_loss'][-1]:.3f} nats a character")
    return history


if __name__ == "__main__":
    main()
