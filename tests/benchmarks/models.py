"""The models of the benchmark: random weights, in every form that a contender reads, and what they cost."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import KerasTxError
from tests.benchmarks.cases import (
    BERT,
    BERT_TRAINED,
    CASES,
    GPT,
    GPT_TRAINED,
    IMAGES,
    PREFILL,
    SMALL_BERT,
    TRAINED,
    VIT,
    VIT_TRAINED,
    Case,
    batch_of,
    inputs_of,
)
from tests.benchmarks.subprocesses import environment

PRECISIONS = {
    VIT: ("fp32", "int8", "fp16", "int8-blocks"),
    BERT: ("fp32", "int8", "fp16", "int8-blocks"),
    GPT: ("fp32", "int8", "int4", "int8-blocks"),
    SMALL_BERT: ("fp32", "int8"),
}
# Nothing is drawn at random in a step, so that all start with one loss; GPT with biases, as GPT-2 has them.
STEADY: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a subject costs, by its own arithmetic: two operations for each multiply-add.

    Args:
        read: weights that a token reads behind a prompt: all but the table of positions.
        cache: numbers that are kept of a token, and read for each that comes later.
        flops: of a case, by its name: of real tokens only, and of a step three times a forward pass.
    """

    parameters: int
    read: int
    flops: dict[str, float]
    cache: int = 0


def prepare(subject: str, place: Path) -> Facts:
    """place/ gets inputs.npz, model.keras, huggingface/ and keras_tx/, if they are not there yet.

    A process of its own makes them, so that none has Keras in memory while others are measured.
    """
    path = place / "facts.json"
    if not path.exists():
        command = [sys.executable, "-m", "tests.benchmarks.models", subject, str(place)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise KerasTxError(f"The models of {subject} could not be made in {place}: {said}")
    return Facts(**json.loads(path.read_text("utf-8")))


def main(subject: str, place: Path) -> None:
    if not (place / "model.keras").exists():
        _make(subject, place)
    import keras_tx

    model = keras_tx.load_model(place / "model.keras", compile=False)
    if subject not in TRAINED and not _exported(place / "keras_tx", PRECISIONS[subject]):
        _export(subject, model, place)
    path = place / "facts.json"
    aside = path.with_suffix(".unfinished")
    aside.write_text(json.dumps(dataclasses.asdict(facts_of(model, CASES[subject], place))), encoding="utf-8")
    os.replace(aside, path)


def _make(subject: str, place: Path) -> None:
    import keras_tx

    place.mkdir(parents=True, exist_ok=True)
    model = model_of(subject)
    np.savez(place / "inputs.npz", **inputs(model, CASES[subject]))  # pyright: ignore[reportArgumentType]
    keras_tx.save_checkpoint(model, place / "huggingface", overwrite=True)
    model.save(place / "unfinished.keras")
    os.replace(place / "unfinished.keras", place / "model.keras")  # last: it says that all is there


def _exported(folder: Path, precisions: tuple[str, ...]) -> bool:
    path = folder / contract.MANIFEST
    return path.exists() and set(json.loads(path.read_text("utf-8"))["precisions"]) >= set(precisions)


def _export(subject: str, model: Any, place: Path) -> None:
    from keras_tx_onnx import export_onnx

    labels = [f"class {index}" for index in range(1000)] if subject == VIT else None
    export_onnx(model, place / "keras_tx", labels=labels, precision=PRECISIONS[subject], overwrite=True)


def inputs(model: Any, cases: tuple[Case, ...]) -> dict[str, np.ndarray]:
    vocabulary = getattr(model.config, "vocabulary_size", 0)
    if cases[0].parts != ("x", "y"):
        return inputs_of(cases, vocabulary)
    size = getattr(model.config, "image_size", None)
    height, width = (size, size) if isinstance(size, int) else size or (0, 0)
    (case,) = cases
    return batch_of(
        case,
        image=(height, width, 3) if size else None,
        vocabulary=vocabulary,
        classes=getattr(model.head, "num_classes", None),
    )


def model_of(subject: str) -> Any:
    """The model with new weights."""
    import keras

    import keras_tx

    keras.utils.set_random_seed(0)
    made = {
        VIT: lambda: keras_tx.vit("B/16", num_classes=1000),
        BERT: lambda: keras_tx.bert("base"),
        GPT: lambda: keras_tx.gpt("124M"),
        SMALL_BERT: lambda: keras_tx.bert("mini"),
        VIT_TRAINED: lambda: keras_tx.vit("S/16", num_classes=1000, **STEADY),
        BERT_TRAINED: lambda: keras_tx.bert("small", head=keras_tx.ClassifierHead(2), **STEADY),
        GPT_TRAINED: lambda: keras_tx.gpt("char", use_bias=True, **STEADY),
    }
    return made[subject]()


def facts_of(model: Any, cases: tuple[Case, ...], place: Path) -> Facts:
    """Of a model with its head."""
    import keras_tx

    flops: dict[str, float] = {}
    with np.load(place / "inputs.npz", allow_pickle=False) as given:
        for case in cases:
            if case.parts == ("x", "y"):
                x = given[f"{case.inputs}.x"]
                tokens = None if x.ndim == 4 else x.shape[1]
                flops[case.name] = 3.0 * len(x) * keras_tx.cost(model, tokens=tokens).flops
            elif case.kind == IMAGES:
                flops[case.name] = float(case.batch * keras_tx.cost(model).flops)
            else:
                name = f"{case.inputs}.mask"
                lengths = given[name].sum(axis=1) if name in given else [len(given[f"{case.inputs}.ids"])]
                flops[case.name] = float(sum(_flops(model, case, int(length)) for length in lengths))
    positions = [v for v in model.weights if "position" in v.path]
    read = model.count_params() - sum(int(np.prod(v.shape)) for v in positions)
    config = model.config
    cache = 0
    if cases[0].kind == PREFILL:
        heads = config.kv_heads or config.num_heads
        cache = 2 * config.depth * heads * (config.width // config.num_heads)
    return Facts(model.count_params(), read, flops, cache)


def _flops(model: Any, case: Case, length: int) -> float:
    """Of a prompt, only the last token is asked what comes next."""
    import keras_tx

    layers = keras_tx.cost(model, tokens=length).layers
    head = sum(layer.flops or 0 for layer in layers if layer.kind == "TokenEmbedding")
    whole = sum(layer.flops or 0 for layer in layers)
    return whole - head * (length - 1) / length if case.kind == PREFILL else whole


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
