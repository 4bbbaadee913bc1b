"""keras-tx demo: from images to predictions without Keras in about a minute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx.commands.arguments import refuse_existing, whole
from keras_tx.commands.framework_logs import import_keras
from keras_tx.commands.terminal import beside, picture

if TYPE_CHECKING:
    from keras_tx.demo import DemoResult

SUMMARY = "train a small ViT on handwritten digits, export it and run it"
DESCRIPTION = """\
Trains a small vision transformer with model.fit on scikit-learn's 1,797 handwritten digits (8x8 pixels,
nothing is downloaded), exports it to an ONNX folder, runs that folder with onnxruntime, and compares both on
a test set of 360 digits. Takes about a minute on two cores and reaches about 98 % test accuracy. Also writes
a test digit as a PNG file next to the folder.
"""
EPILOG = """\
examples:
  keras-tx demo
  keras-tx demo --folder mine --epochs 3 --seed 7

In a notebook: `from keras_tx import demo; print(demo.run("digits"))`.
"""
SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", default="digits", metavar="DIR", help="the folder to write (default: digits)"
    )
    parser.add_argument("--epochs", type=whole, metavar="N", help="training epochs (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder of an earlier demo")


def execute(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    for path in (folder, folder.with_name(folder.name + ".png")):
        refuse_existing(path, arguments.overwrite)
    import_keras()
    from keras_tx import demo

    epochs = demo.EPOCHS if arguments.epochs is None else arguments.epochs
    result = demo.run(
        folder,
        epochs=epochs,
        seed=arguments.seed,
        overwrite=arguments.overwrite,
        verbose="auto" if sys.stdout.isatty() else 2,  # a file cannot show a progress bar
        say=lambda text: print(f"\n{text}", flush=True),
    )
    print(f"\n{result.report}\n\nPredictions of the folder in onnxruntime on test images:\n")
    print(drawn(result))
    print(f"\n{result}\n\n{_next_steps(result)}")
    return 0


def drawn(result: DemoResult) -> str:
    """Returns some test digits with their predictions, errors first, as text."""
    wrong = result.predictions != result.digits.test_labels
    chosen = sorted(range(len(wrong)), key=lambda i: not wrong[i])
    chosen = [*chosen[: min(wrong.sum(), SHOWN // 2)], *[i for i in chosen if not wrong[i]]][:SHOWN]
    columns = []
    for i in chosen:
        prediction = f"{result.predictions[i]}  {result.scores[i]:.0%}"
        label = f"(label: {result.digits.test_labels[i]})" if wrong[i] else ""
        columns.append([*picture(result.digits.test_images[i, ..., 0]), prediction, label])
    return beside(columns).rstrip()


def _next_steps(result: DemoResult) -> str:
    folder, image = str(result.folder), str(result.picture)
    return "\n".join(
        [
            "Next steps:",
            f"  keras-tx run {folder} {image}",
            f"  keras-tx verify {folder}",
            f'  python -c \'from keras_tx.runtime import load; print(load("{folder}")("{image}"))\'',
        ]
    )
