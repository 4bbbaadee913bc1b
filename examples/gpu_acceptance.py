"""Acceptance on a GPU: fit a ViT in three precisions, with and without XLA, export, run on CUDA, compare.

    command   python examples/gpu_acceptance.py --report gpu.json
    needs     Linux, an NVIDIA GPU, pip install "keras-tx[gpu]"
    hardware  not yet run on a GPU
    minutes   not yet known; expect about 10, most of them XLA compiling
    metric    every row of "Checks" says ok, and the exit code is 0

Exit codes: 0 every check passed; 1 one failed, the report says which; 2 there is no GPU to accept.
On a machine without one, --allow-cpu goes through the same steps at a size that a test can afford:

    python examples/gpu_acceptance.py --allow-cpu --variant Mu/2 --image-size 8 --batch 16 --steps 12
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
CLASSES = 4

# The largest difference between two runs of one file, in units of the output's scale. On a GPU, float32
# products are TF32 by default, rounded to 11 bits: 16 roundings on the way through a block of 2 ** -11 each,
# as in tests/tolerances.py. On the CPU both sides are float32 proper.
TOLERANCE = {"cuda": 16 * 2.0**-11, "cpu": 1e-4}


@dataclasses.dataclass(frozen=True)
class Fit:
    """One training run."""

    policy: str
    xla: bool
    first_loss: float
    last_loss: float
    compile_seconds: float  # the first step
    step_ms: float  # median of the second half
    images_per_second: float

    @property
    def learned(self) -> bool:
        return bool(np.isfinite(self.last_loss)) and self.last_loss < 0.8 * self.first_loss


@dataclasses.dataclass(frozen=True)
class Export:
    """One exported folder, run."""

    policy: str
    keras: float  # the difference that the export measured: onnxruntime on the CPU against Keras in float32
    cpu: float  # the provider against onnxruntime on the CPU
    same_labels: float  # share of images for which both give the same label
    provider: str
    batch_ms: dict[int, float]  # by batch size

    @property
    def agrees(self) -> bool:
        return self.cpu <= TOLERANCE[self.provider]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the report."""
    options = parse(argv)
    gpus = visible_gpus()
    if not gpus and not options.allow_cpu:
        print(no_gpu(), file=sys.stderr)
        return 2
    provider = "cuda" if gpus else "cpu"
    images, labels = colours(options.image_size, max(options.batch * 2, 64))
    fits, exports = [], []
    for policy in options.policies:
        trained = []
        for xla in options.xla:
            print(f"fit under {policy}, XLA {'on' if xla else 'off'} ...", file=sys.stderr)
            trained.append(fit(options, policy, xla, images, labels))
        fits += [row for _, row in trained]
        print(f"export and run {policy} on {provider} ...", file=sys.stderr)
        exports.append(export_and_run(trained[-1][0], policy, provider, images))
    checks = judge(fits, exports, provider)
    print(markdown(fits, exports, checks, gpus))
    if options.report is not None:
        content = {
            "machine": machine(gpus),
            "fits": [dataclasses.asdict(row) for row in fits],
            "exports": [dataclasses.asdict(row) for row in exports],
            "checks": checks,
        }
        options.report.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0 if all(checks.values()) else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--variant", default="S/16", help="of keras_tx.vit (default: S/16)")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60, help="of each training run (default: 60)")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, metavar="POLICY")
    parser.add_argument("--xla", nargs="+", choices=("on", "off"), default=("off", "on"))
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--allow-cpu", action="store_true", help="go on without a GPU, to test this script")
    options = parser.parse_args(argv)
    options.xla = [choice == "on" for choice in options.xla]
    return options


def visible_gpus() -> list[str]:
    """The GPUs that Keras's backend would train on."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        details = tf.config.experimental.get_device_details
        return [details(gpu).get("device_name", gpu.name) for gpu in tf.config.list_physical_devices("GPU")]
    if keras.backend.backend() == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def no_gpu() -> str:
    import keras

    return (
        f"gpu_acceptance: error: keras on {keras.backend.backend()} sees no GPU. Does nvidia-smi show one? "
        'Is pip install "keras-tx[gpu]" done (Linux)? Was the container started with --gpus all? '
        "keras-tx doctor --deep says what does not fit. --allow-cpu tries this script without one."
    )


def colours(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a tint, red, green, blue or none, which is the class: to be learned in a few dozen steps."""
    images = np.random.default_rng(0).integers(0, 156, (count, size, size, 3), "uint8")
    labels = np.arange(count) % CLASSES
    for image, label in zip(images, labels, strict=True):
        image[..., label : label + 1] += np.uint8(100)
    return images, labels


def fit(
    options: argparse.Namespace, policy: str, xla: bool, images: np.ndarray, labels: np.ndarray
) -> tuple[Any, Fit]:
    """Trains anew, timing each step."""
    import keras

    import keras_tx
    from keras_tx.optimizers import AdamW

    keras.utils.set_random_seed(0)
    model = keras_tx.vit(
        options.variant, image_size=options.image_size, num_classes=CLASSES, pooling="average", dtype=policy
    )
    model.compile(AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=xla)

    times, losses = [time.perf_counter()], []

    def step_done(step: int, logs: dict[str, float]) -> None:
        losses.append(float(logs["loss"]))  # reading it waits for the device
        times.append(time.perf_counter())

    class Batches(keras.utils.PyDataset):
        """All steps in one epoch, from images that are prepared once."""

        prepared = model.processing(images)

        def __len__(self) -> int:
            return options.steps

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            chosen = np.random.default_rng(index).integers(0, len(images), options.batch)
            return self.prepared[chosen], labels[chosen]

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=step_done)
    model.fit(Batches(), shuffle=False, verbose=0, callbacks=[watch])
    took = np.diff(times)
    step = float(np.median(took[len(took) // 2 :]))
    # Keras reports the mean since the epoch began; wanted are those of the first and the last tenth of steps.
    sums = np.array(losses) * np.arange(1, len(losses) + 1)
    each, tenth = np.diff(sums, prepend=0), max(len(losses) // 10, 1)
    first, last = float(each[:tenth].mean()), float(each[-tenth:].mean())
    return model, Fit(policy, xla, first, last, float(took[0]), step * 1e3, options.batch / step)


def export_and_run(model: Any, policy: str, provider: str, images: np.ndarray) -> Export:
    """Exports, runs the folder on the provider and on the CPU, and times the first."""
    from keras_tx.runtime import load
    from keras_tx_onnx import export_onnx

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "model")
        report = export_onnx(model, folder)
        some = model.processing(images[:16]).transpose(0, 3, 1, 2)
        feed = {"pixel_values": np.ascontiguousarray(some)}
        with load(folder, provider="cpu") as reference, load(folder, provider=provider) as loaded:
            expected = reference.session.run(feed)["logits"]
            got = loaded.session.run(feed)["logits"]
            running = loaded.provider
            timed = {batch: milliseconds(loaded.session, feed["pixel_values"][:batch]) for batch in (1, 8)}
    assert report.manifest.parity is not None
    return Export(
        policy=policy,
        keras=report.manifest.parity.max_difference,
        cpu=float(np.abs(got - expected).max() / np.abs(expected).max()),
        same_labels=float((got.argmax(-1) == expected.argmax(-1)).mean()),
        provider=running,
        batch_ms=timed,
    )


def milliseconds(session: Any, pixels: np.ndarray, runs: int = 30) -> float:
    """The median time of a run, after some to warm up."""
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run({"pixel_values": pixels})
        took.append(time.perf_counter() - start)
    return float(np.median(took[runs // 3 :])) * 1e3


def judge(fits: list[Fit], exports: list[Export], provider: str) -> dict[str, bool]:
    """What has to hold, and whether it does."""
    checks = {f"{row.policy}, XLA {'on' if row.xla else 'off'}: the loss falls": row.learned for row in fits}
    for row in exports:
        checks[f"{row.policy}: onnxruntime runs on {provider}"] = row.provider == provider
        limit = TOLERANCE[row.provider]
        checks[f"{row.policy}: {row.provider} within {limit:.0e} of the CPU"] = row.agrees
        checks[f"{row.policy}: the same labels"] = row.same_labels == 1
    return checks


def machine(gpus: list[str]) -> dict[str, str]:
    """Where this was run, and with what."""
    import keras
    import onnxruntime

    import keras_tx

    return {
        "gpu": ", ".join(gpus) or "none",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "keras-tx": keras_tx.__version__,
        "keras": f"{keras.__version__} on {keras.backend.backend()}",
        "onnxruntime": onnxruntime.__version__,
    }


def markdown(fits: list[Fit], exports: list[Export], checks: dict[str, bool], gpus: list[str]) -> str:
    """The report, to paste into an issue."""
    lines = ["# GPU acceptance", "", *(f"- {name}: {value}" for name, value in machine(gpus).items())]
    lines += ["", "## Training", ""]
    lines += table(
        ("policy", "XLA", "loss", "first step, s", "ms a step", "images/s"),
        [
            (
                row.policy,
                "on" if row.xla else "off",
                f"{row.first_loss:.3f} -> {row.last_loss:.3f}",
                f"{row.compile_seconds:.1f}",
                f"{row.step_ms:.1f}",
                f"{row.images_per_second:,.0f}",
            )
            for row in fits
        ],
    )
    lines += ["", "## The exported folders", ""]
    lines += table(
        (
            "trained under",
            "provider",
            "CPU against Keras",
            "provider against CPU",
            "labels",
            "batch 1, ms",
            "batch 8, ms",
        ),
        [
            (
                row.policy,
                row.provider,
                f"{row.keras:.1e}",
                f"{row.cpu:.1e}",
                f"{row.same_labels:.0%}",
                *(f"{took:.2f}" for took in row.batch_ms.values()),
            )
            for row in exports
        ],
    )
    lines += ["", "## Checks", ""]
    lines += table(
        ("check", "result"), [(name, "ok" if passed else "**FAILED**") for name, passed in checks.items()]
    )
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
