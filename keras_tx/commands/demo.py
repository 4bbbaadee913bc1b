"""keras-tx demo: the whole way, from images to predictions without Keras, in about a minute."""

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
Trains a small vision transformer on scikit-learn's 1,797 handwritten digits (8x8 pixels, installed with the
package, nothing is downloaded) with plain model.fit, exports it to an ONNX folder, loads that folder with
onnxruntime, and compares the two on the fifth of the digits that was held out. It takes less than a minute
on two cores and reaches 98 % or so. One of the digits is written beside the folder, as a PNG to try it on.
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
        "--folder", default="digits", metavar="DIR", help="where to export to (default: digits)"
    )
    parser.add_argument("--epochs", type=whole, metavar="N", help="passes over the images (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another one gives another split")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder of a former demo")


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
        verbose="auto" if sys.stdout.isatty() else 2,  # a bar is drawn over itself, which a file cannot show
        say=lambda text: print(f"\n{text}", flush=True),
    )
    print(f"\n{result.report}\n\nThe folder, run by onnxruntime on images that training never saw:\n")
    print(drawn(result))
    print(f"\n{result}\n\n{_next_steps(result)}")
    return 0


def drawn(result: DemoResult) -> str:
    """Some test digits and what the folder says of them, mistakes first."""
    wrong = result.predictions != result.digits.test_labels
    chosen = sorted(range(len(wrong)), key=lambda i: not wrong[i])
    chosen = [*chosen[: min(wrong.sum(), SHOWN // 2)], *[i for i in chosen if not wrong[i]]][:SHOWN]
    columns = []
    for i in chosen:
        told = f"{result.predictions[i]}  {result.scores[i]:.0%}"
        truth = f"(is a {result.digits.test_labels[i]})" if wrong[i] else ""
        columns.append([*picture(result.digits.test_images[i, ..., 0]), told, truth])
    return beside(columns).rstrip()


def _next_steps(result: DemoResult) -> str:
    folder, image = str(result.folder), str(result.picture)
    return "\n".join(
        [
            "Next:",
            f"  keras-tx run {folder} {image}",
            f"  keras-tx verify {folder}",
            f'  python -c \'from keras_tx.runtime import load; print(load("{folder}")("{image}"))\'',
        ]
    )
