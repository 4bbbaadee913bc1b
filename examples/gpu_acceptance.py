"""Acceptance on a GPU: train, export and run a ViT, a BERT and a GPT on CUDA, and compare with the CPU.

    command   python examples/gpu_acceptance.py --report gpu.json
    needs     Linux, an NVIDIA GPU, pip install "keras-tx[gpu]"
    hardware  not yet run on a GPU
    minutes   not yet known; about 15 are expected, most of them for XLA compilation
    metric    every row of "Checks" is ok, and the exit code is 0

It trains a ViT on images, a BERT on texts of mixed lengths, and a GPT on a repeated text, each in float32,
mixed_float16 (with loss scaling) and mixed_bfloat16, the ViT and the GPT also with XLA, and each on all GPUs
if there are several. It runs the exported folders on CUDA, a text without any token among others.

Exit codes: 0 if all checks passed; 1 if one failed, which the report names; 2 without a GPU.
On a machine without a GPU, --allow-cpu runs all parts at a size for tests:

    python examples/gpu_acceptance.py --allow-cpu --small
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
FAMILIES = ("vit", "bert", "gpt")
CLASSES = 4
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NEW_TOKENS = 24

# The largest difference between two runs of one file, relative to the scale of the output. On a GPU, float32
# products are TF32 by default, rounded to 11 bits: 16 roundings on the way through a block of 2 ** -11 each,
# as in tests/tolerances.py. On a CPU, both sides are float32.
TOLERANCE = {"cuda": 16 * 2.0**-11, "cpu": 1e-4}


@dataclasses.dataclass(frozen=True)
class Fit:
    """One training run.

    `memory_mb` is the largest memory of the device, or of the process on a CPU; `loss_scale` is that of
    mixed_float16 after the last step, and `applied` the number of steps that it did not skip.
    """

    family: str
    policy: str
    xla: bool
    devices: int
    steps: int
    first_loss: float
    last_loss: float
    compile_seconds: float  # the first step
    step_ms: float  # median of the second half
    examples_per_second: float
    memory_mb: float
    loss_scale: float | None = None
    applied: int | None = None

    @property
    def learned(self) -> bool:
        return bool(np.isfinite(self.last_loss)) and self.last_loss < 0.8 * self.first_loss

    @property
    def name(self) -> str:
        several = f", {self.devices} devices" if self.devices > 1 else ""
        return f"{self.family}, {self.policy}, XLA {'on' if self.xla else 'off'}{several}"


@dataclasses.dataclass(frozen=True)
class Export:
    """One exported folder, run on the provider.

    `keras` is the difference that the export measured, of onnxruntime on the CPU from Keras in float32;
    `cpu` that of the provider from onnxruntime on the CPU; `same` the share of equal answers: labels, or
    generated tokens. `no_tokens` is the difference of the logits of a text without any token from Keras,
    for a BERT.
    """

    family: str
    policy: str
    keras: float
    cpu: float
    same: float
    provider: str
    batch_ms: dict[int, float]  # by batch size
    tokens_per_second: float | None = None
    no_tokens: float | None = None
    zeros: bool = True  # whether onnxruntime returns zeros for a query without keys, as Keras


@dataclasses.dataclass(frozen=True)
class Subject:
    """A family with its data.

    Args:
        model: returns a new model for a dtype policy.
        batches: returns the batches of a training; all steps are in one epoch.
        outputs: returns the logits or log-probabilities of a number of samples from a loaded folder.
        xla: whether shapes are fixed, so that XLA compiles once.
    """

    model: Callable[[str], Any]
    batches: Callable[[Any], Any]
    outputs: Callable[[Any, int], np.ndarray]
    xla: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the report."""
    options = parse(argv)
    started = time.perf_counter()
    gpus = visible_gpus()
    if not gpus and not options.allow_cpu:
        print(no_gpu(), file=sys.stderr)
        return 2
    provider = "cuda" if gpus else "cpu"
    several = max(options.devices, len(gpus)) > 1
    if several and backend() == "torch":
        say("Keras 3.15 trains on one PyTorch device; the other GPUs are not used.")
        several = False
    fits: list[Fit] = []
    exports: list[Export] = []
    for family in options.families:
        subject = {"vit": images, "bert": texts, "gpt": alphabet}[family](options)
        for policy in options.policies:
            model = None
            for xla in (False, True) if subject.xla else (False,):
                say(f"fit {family} with {policy}, XLA {'on' if xla else 'off'} ...")
                model, row = fit(subject, family, policy, options, xla=xla)
                fits.append(row)
            say(f"export {family} and run it on {provider} ...")
            exports.append(export_and_run(model, subject, family, policy, provider))
        if several:
            say(f"fit {family} on all devices ...")
            fits.append(fit(subject, family, "float32", options, xla=False, parallel=True)[1])
    checks = judge(fits, exports, provider)
    print(markdown(fits, exports, checks, gpus))
    print(f"\npython {' '.join(sys.argv)}: {(time.perf_counter() - started) / 60:.1f} minutes")
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
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, metavar="POLICY")
    parser.add_argument("--batch", type=int, default=64, help="samples per step (default: 64)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (default: 60)")
    parser.add_argument("--small", action="store_true", help="tiny models and batches, for tests")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU, to test this script")
    parser.add_argument(
        "--devices", type=int, default=1, help="with --allow-cpu: also train on this many virtual CPUs"
    )
    options = parser.parse_args(argv)
    if options.small:
        options.batch, options.steps = 16, 30
    return options


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def backend() -> str:
    """The name of Keras's backend."""
    import keras

    return keras.backend.backend()


def visible_gpus() -> list[str]:
    """The GPUs that Keras's backend would train on."""
    if backend() == "tensorflow":
        import tensorflow as tf

        details = tf.config.experimental.get_device_details
        return [details(gpu).get("device_name", gpu.name) for gpu in tf.config.list_physical_devices("GPU")]
    if backend() == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def no_gpu() -> str:
    return (
        f"gpu_acceptance: error: keras on {backend()} sees no GPU. Does nvidia-smi show one? "
        'Is pip install "keras-tx[gpu]" done (Linux)? Was the container started with --gpus all? '
        "keras-tx doctor --deep lists what does not fit. --allow-cpu tries this script without a GPU."
    )


def images(options: argparse.Namespace) -> Subject:
    """A ViT on noise with a tint, red, green, blue or none, which is the class."""
    import keras_tx

    variant, size = ("Mu/2", 8) if options.small else ("S/16", 224)
    count = max(options.batch * 2, 64)
    pixels = np.random.default_rng(0).integers(0, 156, (count, size, size, 3), "uint8")
    labels = np.arange(count) % CLASSES
    for image, label in zip(pixels, labels, strict=True):
        image[..., label : label + 1] += np.uint8(100)

    def model(policy: str) -> Any:
        return keras_tx.vit(variant, image_size=size, num_classes=CLASSES, pooling="average", dtype=policy)

    def batches(model: Any) -> Any:
        prepared = model.processing(pixels)
        return drawn(prepared, labels, options)

    def outputs(loaded: Any, samples: int) -> np.ndarray:
        prepared = keras_tx.ImageTransform(size)(pixels[:samples]).transpose(0, 3, 1, 2)
        return loaded.session.run({"pixel_values": np.ascontiguousarray(prepared)})["logits"]

    return Subject(model, batches, outputs, xla=True)


def texts(options: argparse.Namespace) -> Subject:
    """A BERT on texts of 2 to 120 words, of which one is the class."""
    import keras_tx
    from keras_tx.data import text_classification_batches
    from keras_tx.processing import train_wordpiece

    longest = 12 if options.small else 120
    random = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
    rows, labels = [], []
    for index in range(options.batch * options.steps):
        row = random.choice(words, random.integers(1, longest)).tolist()
        labels.append(index % CLASSES)
        row.insert(int(random.integers(len(row) + 1)), f"class{labels[-1]}")
        rows.append(" ".join(row))
    transform = train_wordpiece(rows[:500], 200)

    def model(policy: str) -> Any:
        head = keras_tx.ClassifierHead(CLASSES)
        variant = "tiny" if options.small else "small"
        return keras_tx.bert(variant, head=head, processing=transform, max_length=128, dtype=policy)

    def batches(model: Any) -> Any:
        return text_classification_batches(rows, labels, model.processing, batch_size=options.batch, seed=0)

    def outputs(loaded: Any, samples: int) -> np.ndarray:
        return loaded.session.run(transform(rows[:samples]))["logits"]

    return Subject(model, batches, outputs, xla=False)


def alphabet(options: argparse.Namespace) -> Subject:
    """A GPT on the repeated alphabet, in which each letter determines the next."""
    import keras_tx
    from keras_tx.processing import train_byte_bpe

    text = ALPHABET * 200
    length = 32 if options.small else 256
    transform = train_byte_bpe([ALPHABET], 257)
    ids = transform.encode([text])[0].ids

    def model(policy: str) -> Any:
        variant = "pico" if options.small else "124M"
        sizes = {} if options.small else {"depth": 6, "width": 384, "num_heads": 6, "mlp_dim": 1536}
        sizes |= {"vocabulary_size": transform.vocabulary_size, "max_length": 2 * length}
        return keras_tx.gpt(variant, processing=transform, dropout=0.0, dtype=policy, **sizes)

    def batches(model: Any) -> Any:
        starts = np.arange(len(ids) - length - 1)
        windows = np.stack([ids[start : start + length + 1] for start in starts[: 8 * len(ALPHABET)]])
        return drawn(windows[:, :-1], windows[:, 1:], options)

    def outputs(loaded: Any, samples: int) -> np.ndarray:
        texts = [text[row : length - row] for row in range(samples)]
        return np.concatenate([scored.log_probabilities for scored in loaded.score(texts)])

    return Subject(model, batches, outputs, xla=True)


def drawn(inputs: np.ndarray, labels: np.ndarray, options: argparse.Namespace) -> Any:
    """All steps in one epoch, from arrays that are prepared once."""
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return options.steps

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            rows = np.random.default_rng(index).integers(0, len(inputs), options.batch)
            return inputs[rows], labels[rows]

    return Batches()


def fit(
    subject: Subject,
    family: str,
    policy: str,
    options: argparse.Namespace,
    *,
    xla: bool,
    parallel: bool = False,
) -> tuple[Any, Fit]:
    """Trains a new model, and times each step."""
    import keras

    from keras_tx.optimizers import AdamW

    keras.utils.set_random_seed(0)
    with all_devices(options) if parallel else contextlib.nullcontext(1) as devices:
        model = subject.model(policy)
        model.compile(AdamW(1e-3), jit_compile=xla)

    times, losses = [time.perf_counter()], []

    def step_done(step: int, logs: dict[str, float]) -> None:
        losses.append(float(logs["loss"]))  # reading it waits for the device
        times.append(time.perf_counter())

    reset_peak()
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=step_done)
    model.fit(subject.batches(model), shuffle=False, verbose=0, callbacks=[watch])
    durations = np.diff(times)
    step = float(np.median(durations[len(durations) // 2 :]))
    # Keras reports the mean since the start of the epoch; these are the means of the first and last tenth.
    sums = np.array(losses) * np.arange(1, len(losses) + 1)
    each, tenth = np.diff(sums, prepend=0), max(len(losses) // 10, 1)
    scaled = hasattr(model.optimizer, "dynamic_scale")
    row = Fit(
        family=family,
        policy=policy,
        xla=xla,
        devices=devices,
        steps=len(losses),
        first_loss=float(each[:tenth].mean()),
        last_loss=float(each[-tenth:].mean()),
        compile_seconds=float(durations[0]),
        step_ms=step * 1e3,
        examples_per_second=options.batch / step,
        memory_mb=peak_memory() / 1e6,
        loss_scale=float(model.optimizer.dynamic_scale) if scaled else None,
        applied=int(model.optimizer.inner_optimizer.iterations) if scaled else None,
    )
    return model, row


@contextlib.contextmanager
def all_devices(options: argparse.Namespace) -> Iterator[int]:
    """A scope in which models are trained on all devices; yields their number."""
    import keras

    if backend() == "tensorflow":
        import tensorflow as tf

        names = [f"CPU:{index}" for index in range(options.devices)] if options.devices > 1 else None
        strategy = tf.distribute.MirroredStrategy(names)
        with strategy.scope():
            yield strategy.num_replicas_in_sync
    else:
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
        yield len(keras.distribution.list_devices())
        keras.distribution.set_distribution(None)


def reset_peak() -> None:
    if backend() == "tensorflow":
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            tf.config.experimental.reset_memory_stats("GPU:0")
    elif backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


def peak_memory() -> float:
    """The largest memory of the first device in bytes, or of the process if there is no GPU.

    JAX cannot reset its counter: the value is that of all trainings so far.
    """
    import resource

    if backend() == "tensorflow":
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    elif backend() == "jax":
        import jax

        if stats := jax.local_devices()[0].memory_stats():
            return stats["peak_bytes_in_use"]
    else:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def export_and_run(model: Any, subject: Subject, family: str, policy: str, provider: str) -> Export:
    """Exports, and runs the folder on the provider and on the CPU; times the first."""
    import onnxruntime

    from keras_tx.runtime import load
    from keras_tx_onnx import export_onnx

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "model")
        report = export_onnx(model, folder)
        with load(folder, provider="cpu") as reference, load(folder, provider=provider) as loaded:
            expected, actual = (subject.outputs(one, 8) for one in (reference, loaded))
            speed = None
            if family == "gpt":
                speed, same = generation(loaded, reference)
            else:
                same = float((actual.argmax(-1) == expected.argmax(-1)).mean())
            no_tokens = without_tokens(model, loaded) if family == "bert" else None
            timed = {batch: milliseconds(subject, loaded, batch) for batch in (1, 8)}
            running = loaded.provider
    assert report.manifest.parity is not None
    return Export(
        family=family,
        policy=policy,
        keras=report.manifest.parity.max_difference,
        cpu=difference(actual, expected),
        same=same,
        provider=running,
        batch_ms=timed,
        tokens_per_second=speed,
        no_tokens=no_tokens,
        zeros=tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 28),
    )


def generation(loaded: Any, reference: Any) -> tuple[float, float]:
    """Tokens per second of cached generation, and the share of texts that are equal to those of the CPU."""
    prompts = [ALPHABET[start : 2 * start + 3] for start in range(4)]
    start = time.perf_counter()
    texts = loaded.generate(prompts, max_new_tokens=NEW_TOKENS, do_sample=False)
    speed = len(prompts) * NEW_TOKENS / (time.perf_counter() - start)
    others = reference.generate(prompts, max_new_tokens=NEW_TOKENS, do_sample=False)
    return speed, float(np.mean([one.text == other.text for one, other in zip(texts, others, strict=True)]))


def without_tokens(model: Any, loaded: Any) -> float:
    """The difference from Keras of the logits of a text whose tokens are all masked."""
    inputs = model.processing(["class0 class1", "class2 class3"])
    inputs["attention_mask"][1] = 0
    expected = np.asarray(model.predict(inputs, verbose=0))
    return difference(loaded.session.run(inputs)["logits"][1], expected[1])


def milliseconds(subject: Subject, loaded: Any, batch: int, runs: int = 30) -> float:
    """The median time of a batch, after some batches to warm up."""
    durations = []
    for _ in range(runs):
        start = time.perf_counter()
        subject.outputs(loaded, batch)
        durations.append(time.perf_counter() - start)
    return float(np.median(durations[runs // 3 :])) * 1e3


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def judge(fits: Sequence[Fit], exports: Sequence[Export], provider: str) -> dict[str, bool]:
    """The checks, and whether each holds."""
    checks = {}
    for row in fits:
        checks[f"{row.name}: the loss falls"] = row.learned
        if row.applied is not None:
            checks[f"{row.name}: loss scaling skips at most half of the steps"] = row.applied >= row.steps / 2
    for row in exports:
        name, limit = f"{row.family}, {row.policy}", TOLERANCE[row.provider]
        checks[f"{name}: onnxruntime runs on {provider}"] = row.provider == provider
        checks[f"{name}: {row.provider} within {limit:.0e} of the CPU"] = row.cpu <= limit
        answers = "generated texts" if row.family == "gpt" else "labels"
        checks[f"{name}: the same {answers}"] = row.same == 1
        if row.no_tokens is not None and row.zeros:
            # The logits of Keras are those of its policy, on its device.
            within = 16 * 2.0**-8 if row.policy == "mixed_bfloat16" else 16 * 2.0**-11
            checks[f"{name}: a text without tokens within {within:.0e} of Keras"] = row.no_tokens <= within
        elif row.no_tokens is not None:
            checks[f"{name}: a text without tokens is finite"] = bool(np.isfinite(row.no_tokens))
    return checks


def machine(gpus: Sequence[str]) -> dict[str, str]:
    """The hardware and the versions of the packages."""
    import keras
    import onnxruntime

    import keras_tx

    return {
        "gpu": ", ".join(gpus) or "none",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "keras-tx": keras_tx.__version__,
        "keras": f"{keras.__version__} on {backend()}",
        "onnxruntime": onnxruntime.__version__,
    }


TRAINING = ("training", "loss", "first step, s", "ms per step", "samples/s", "memory, MB", "loss scale")
EXPORTED = (
    "family",
    "trained with",
    "provider",
    "CPU from Keras",
    "provider from CPU",
    "same answers",
    "batch 1, ms",
    "batch 8, ms",
    "tokens/s",
    "no tokens",
)


def markdown(
    fits: Sequence[Fit], exports: Sequence[Export], checks: dict[str, bool], gpus: Sequence[str]
) -> str:
    """The report, to paste into an issue."""
    trained = [
        (
            row.name,
            f"{row.first_loss:.3f} to {row.last_loss:.3f}",
            f"{row.compile_seconds:.1f}",
            f"{row.step_ms:.1f}",
            f"{row.examples_per_second:,.0f}",
            f"{row.memory_mb:,.0f}",
            "" if row.loss_scale is None else f"{row.loss_scale:g}",
        )
        for row in fits
    ]
    exported = [
        (
            row.family,
            row.policy,
            row.provider,
            f"{row.keras:.1e}",
            f"{row.cpu:.1e}",
            f"{row.same:.0%}",
            *(f"{duration:.2f}" for duration in row.batch_ms.values()),
            "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
            "" if row.no_tokens is None else f"{row.no_tokens:.1e}",
        )
        for row in exports
    ]
    results = [(name, "ok" if passed else "**FAILED**") for name, passed in checks.items()]
    lines = ["# GPU acceptance", "", *(f"- {name}: {value}" for name, value in machine(gpus).items())]
    lines += ["", "## Training", "", *table(TRAINING, trained)]
    lines += ["", "## Exported folders", "", *table(EXPORTED, exported)]
    lines += ["", "## Checks", "", *table(("check", "result"), results)]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
