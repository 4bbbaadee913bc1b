"""The demo: trains a small ViT on handwritten digits, exports it, and runs it without Keras."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keras_tx.errors import ConfigError, ExportError, whole_number

if TYPE_CHECKING:
    import numpy as np

LABELS = tuple("0123456789")
EPOCHS = 10
SEED = 0
BATCH = 128
COPIES = 8  # augmented copies of each training image


@dataclasses.dataclass(frozen=True)
class Digits:
    """scikit-learn's handwritten digits, split: uint8 images (n, 8, 8, 1) and labels (n,)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """The results of the demo; prints as a summary."""

    folder: Path
    picture: Path  # a test digit as PNG
    report: Any  # of the export
    digits: Digits
    predictions: np.ndarray  # of the exported folder, for each test image
    scores: np.ndarray  # of those predictions
    keras_accuracy: float
    onnx_accuracy: float
    agreement: float  # share of test images with equal predictions
    seconds: dict[str, float]  # by step

    @property
    def confusions(self) -> Counter[tuple[str, str]]:
        """Counts of (label, prediction) where they differ."""
        pairs = zip(self.digits.test_labels, self.predictions, strict=True)
        return Counter((LABELS[true], LABELS[got]) for true, got in pairs if true != got)

    def __str__(self) -> str:
        count = len(self.predictions)
        common = self.confusions.most_common(6)
        errors = [
            f"{label} as {prediction}" + (f" ({n} times)" if n > 1 else "")
            for (label, prediction), n in common
        ]
        rest = self.confusions.total() - sum(n for _, n in common)
        rows = [
            ("test accuracy", f"{self.keras_accuracy:.1%} in Keras, {self.onnx_accuracy:.1%} in onnxruntime"),
            ("agreement", f"equal predictions for {self.agreement:.1%} of the {count} test images"),
            (
                "errors",
                ", ".join(errors) + (f", and {rest} more" if rest else "") if errors else "none",
            ),
            ("seconds", ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())),
        ]
        return "\n".join(f"{name:<15}{value}" for name, value in rows)


def run(
    folder: str | os.PathLike[str] = "digits",
    *,
    epochs: int = EPOCHS,
    seed: int = SEED,
    overwrite: bool = False,
    verbose: Literal["auto", 0, 1, 2] = "auto",
    say: Callable[[str], None] | None = None,
) -> DemoResult:
    """Trains a ViT, exports it, and runs the exported folder.

    >>> run("digits").onnx_accuracy > 0.97  # doctest: +SKIP
    True

    Args:
        folder: the folder to write. A test digit is written next to it, as `<folder>.png`.
        epochs: training epochs.
        seed: of the split, the augmentation, and (globally) Keras.
        overwrite: whether to replace the folder of an earlier demo.
        verbose: of `model.fit`.
        say: is called with a message before each step.

    Returns:
        The accuracy in Keras and in onnxruntime, the predictions, and the time of each step.

    Raises:
        ConfigError: for an invalid argument.
        ExportError: if the folder or the PNG file exists.
    """
    say = say or (lambda text: None)
    epochs = whole_number("epochs", epochs)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed!r} is invalid, expected a whole number from 0 to 4294967295.")
    folder = Path(folder)
    picture = folder.with_name(folder.name + ".png")
    import keras
    import numpy as np

    from keras_tx.atomic_write import check_export_target
    from keras_tx.runtime import load
    from keras_tx_onnx import export_onnx

    check_export_target(folder.absolute(), overwrite)
    if picture.exists() and not overwrite:
        raise ExportError(f"{picture} exists, and the demo would replace it. Choose another folder.")
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    keras.utils.set_random_seed(seed)
    digits = load_digits(seed)
    model = small_vit()
    images, labels = with_variations(digits.train_images, digits.train_labels, seed)
    compile_for(model, epochs * math.ceil(len(images) / BATCH))
    say(
        f"Training a ViT with {model.count_params():,} parameters on {len(digits.train_images):,} digits and "
        f"{COPIES} augmented copies of each, {keras.backend.backend()} backend."
    )
    model.fit(model.processing(images), labels, batch_size=BATCH, epochs=epochs, verbose=verbose)
    logits = model.predict(model.processing(digits.test_images), batch_size=BATCH, verbose=0)
    by_keras = logits.argmax(axis=-1)
    start = _lap(seconds, "fit", start)

    say(f"Exporting to {folder}.")
    report = export_onnx(model, folder, labels=LABELS, overwrite=overwrite)
    start = _lap(seconds, "export", start)

    with load(folder) as loaded:
        best = [answer[0] for answer in loaded(digits.test_images, top_k=1)]
    _lap(seconds, "run", start)
    predictions = np.array([LABELS.index(answer["label"]) for answer in best])
    write_png(picture, digits.test_images[0])
    return DemoResult(
        folder=folder,
        picture=picture,
        report=report,
        digits=digits,
        predictions=predictions,
        scores=np.array([answer["score"] for answer in best]),
        keras_accuracy=float((by_keras == digits.test_labels).mean()),
        onnx_accuracy=float((predictions == digits.test_labels).mean()),
        agreement=float((predictions == by_keras).mean()),
        seconds=seconds,
    )


def load_digits(seed: int = SEED) -> Digits:
    """Splits the 1,797 digits: a stratified fifth is the test set."""
    import numpy as np
    from sklearn import datasets, model_selection

    values, labels = datasets.load_digits(return_X_y=True)
    images = np.rint(values.reshape(-1, 8, 8, 1) * (255 / 16)).astype("uint8")  # from 0 to 16
    train, test, train_labels, test_labels = model_selection.train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    return Digits(train, train_labels, test, test_labels)


def small_vit() -> Any:
    """A ViT with 16 patches of 2x2 pixels, a class token, and 3 blocks of width 64."""
    import keras_tx

    return keras_tx.vit(
        "Mu/2",
        image_size=8,
        channels=1,
        num_classes=len(LABELS),
        width=64,
        depth=3,
        mlp_dim=128,
        num_heads=4,
        name="digits",
    )


def compile_for(model: Any, steps: int, peak: float = 2e-3) -> None:
    """Compiles with AdamW, linear warmup over a tenth of the steps, and cosine decay."""
    import keras

    from keras_tx.optimizers import AdamW

    warmup = max(steps // 10, 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        peak / 100, max(steps - warmup, 1), warmup_target=peak, warmup_steps=warmup
    )
    # On a CPU, "auto" disables XLA, although TensorFlow is faster with it. JAX always uses XLA, and
    # torch.compile takes longer than this training.
    jit = True if keras.backend.backend() == "tensorflow" else "auto"
    model.compile(AdamW(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)


def with_variations(images: np.ndarray, labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The images, and COPIES of each that are rotated, scaled and shifted."""
    import numpy as np

    random = np.random.default_rng(seed)
    varied = [np.stack([_varied(image, random) for image in images]) for _ in range(COPIES)]
    return np.concatenate([images, *varied]), np.tile(labels, 1 + COPIES)


def _varied(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import numpy as np
    from PIL import Image

    height, width = image.shape[:2]
    angle = math.radians(random.uniform(-12, 12))
    scale = math.exp(random.uniform(-0.1, 0.1))
    right, down = random.uniform(-0.7, 0.7, 2)
    # Pillow expects the inverse transform, about the centre.
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    x, y = width / 2 + right, height / 2 + down
    inverse = (cos, sin, width / 2 - cos * x - sin * y, -sin, cos, height / 2 + sin * x - cos * y)
    picture = Image.fromarray(image[..., 0])
    moved = picture.transform(picture.size, Image.Transform.AFFINE, inverse, Image.Resampling.BICUBIC)
    return np.asarray(moved)[..., None]


def write_png(path: Path, image: np.ndarray) -> None:
    """Writes a grayscale image (height, width, 1)."""
    from PIL import Image

    Image.fromarray(image[..., 0]).save(path)


def _lap(seconds: dict[str, float], step: str, start: float) -> float:
    now = time.perf_counter()
    seconds[step] = now - start
    return now
