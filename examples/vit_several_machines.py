r"""A ViT that several machines train together on JAX; after a failure, the same command resumes.

    command   sbatch examples/several_machines.sbatch; without SLURM, on each machine I of N:
              python examples/vit_several_machines.py --folder SHARED --address HOST:PORT \
                  --processes N --index I
    needs     pip install "keras-tx[gpu,jax]" with jax's CUDA plugin, or "keras-tx[cpu,jax]"
    hardware  two processes on two CPU cores, shared with other work
    minutes   1
    metric    validation accuracy on handwritten digits, printed by each process: 96.6 %

Each process reads its own part of every batch. SHARED is a folder that all machines see: it has the state of
the training, and at the end model.keras, for `keras-tx export SHARED/model.keras FOLDER`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_tx


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--folder", type=Path, required=True, metavar="SHARED")
    parser.add_argument("--address", metavar="HOST:PORT", help="of process 0; under SLURM, JAX finds it")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--index", type=int)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together (default: 64)")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    started = time.perf_counter()

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # without effect on GPUs
    jax.distributed.initialize(options.address, options.processes, options.index)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)

    values, labels = load_digits(return_X_y=True)
    images = np.rint(values.reshape(-1, 8, 8, 1) * 255 / 16).astype("uint8")
    order = np.random.default_rng(0).permutation(len(images))
    share = options.batch_size // jax.process_count()
    test, train = part(order[:320], share), part(order[320:], share)

    model = keras_tx.vit("Mu/2", image_size=8, channels=1, num_classes=10, width=64, depth=4, num_heads=4)
    model.compile(keras_tx.muon_recipe(options.epochs * len(train) // share))
    pixels = model.processing(images)
    options.folder.mkdir(parents=True, exist_ok=True)
    keras_tx.fit_resumable(
        model,
        (pixels[train], labels[train]),
        options.folder / "run.state",
        epochs=options.epochs,
        every=50,
        batch_size=share,
        validation_data=(pixels[test], labels[test]),
        validation_batch_size=share,
        verbose=2 if jax.process_index() == 0 else 0,
    )
    accuracy = model.history.history["val_accuracy"][-1]
    minutes = (time.perf_counter() - started) / 60
    machine = f"{jax.process_count()} x {platform.machine()}, {os.cpu_count()} cores, {jax.default_backend()}"
    print(f"python {' '.join(sys.argv)}: {minutes:.1f} minutes on {machine}")
    print(f"process {jax.process_index()} of {jax.process_count()}: validation accuracy {accuracy:.1%}")
    with tempfile.TemporaryDirectory() as aside:  # every process has to save, since Keras creates variables
        model.save((options.folder if jax.process_index() == 0 else Path(aside)) / "model.keras")


def part(rows: np.ndarray, share: int) -> np.ndarray:
    """The rows of this process: the same number of whole batches for each process."""
    whole = len(rows) // (share * jax.process_count()) * share * jax.process_count()
    return rows[:whole].reshape(-1, jax.process_count(), share)[:, jax.process_index()].ravel()


if __name__ == "__main__":
    main()
