"""The field: which contenders there are, what each needs, and which subjects it can run."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.benchmarks.cases import BERT, GPT, SMALL_BERT, TRAINED, VIT

ENCODERS = (VIT, BERT)
ALL = (VIT, BERT, GPT)
BACKENDS = ("tensorflow", "jax", "torch")


@dataclasses.dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Args:
        module: of tests.benchmarks.adapters.
        needs: modules that its Python must have; they are imported before anything is timed.
        subjects: those it can run.
        options: what its `prepare` and `load` take besides the place.
        arithmetic: the numbers that it multiplies: which of the machine's rates is its limit.
        bits: of a weight, as it is read from memory, scales included.
        cache_bits: of a number that it keeps of the tokens so far.
        environment: variables of its process.
        slow: whether a quick run does without it.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    arithmetic: str = "fp32"
    bits: float = 32
    cache_bits: int = 32
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    slow: bool = False

    @property
    def package(self) -> str:
        """What it is installed as: the key of `--python`."""
        return self.name.split()[0]


RUNTIME = ("onnxruntime", "tokenizers", "keras_tx.runtime")
KERAS = ("tensorflow", "keras", "keras_tx.models")
HUB = (*KERAS, "keras_hub")
EXPORTER = (*KERAS, "keras_tx_onnx.export")
TORCH = ("torch", "transformers")
OPTIMUM = ("torch", "optimum.onnxruntime")
LLAMA = ("llama_cpp", "gguf", "safetensors")
STOCK = (*KERAS, "tf2onnx", "onnxruntime")
BITS = {  # of 32 numbers and a scale
    "fp32": 32,
    "fp16": 16,
    "int8": 8,
    "int8-blocks": 9,
    "int4": 5,
    "f32": 32,
    "q8_0": 8.5,
    "q4_0": 4.5,
}


def _ours(precision: str, subjects: tuple[str, ...], slow: bool = False) -> Contender:
    # int4 weights are multiplied with int8 ones; fp16 has no rate: a processor computes it in fp32 or not
    arithmetic = precision if precision in ("fp32", "fp16") else "int8"
    return Contender(
        f"keras-tx {precision}",
        "keras_tx_runtime",
        RUNTIME,
        subjects,
        {"precision": precision},
        arithmetic,
        BITS[precision],
        slow=slow,
    )


def _llama(kind: str) -> Contender:
    arithmetic = "fp32" if kind == "f32" else "int8"
    return Contender(
        f"llama.cpp {kind}",
        "llama_cpp_python",
        LLAMA,
        (GPT,),
        {"kind": kind},
        arithmetic,
        BITS[kind],
        cache_bits=16,
    )


def _torch(way: str, subjects: tuple[str, ...], slow: bool = False) -> Contender:
    arithmetic = "bf16" if way == "bf16" else "fp32"
    return Contender(f"torch {way}", "pytorch", TORCH, subjects, {"way": way}, arithmetic, slow=slow)


def _openvino(hint: str, name: str) -> Contender:
    return Contender(
        f"openvino {name}", "openvino_runtime", ("openvino",), (*ENCODERS, SMALL_BERT), {"hint": hint}, name
    )


OURS, OURS_INT8, OURS_INT4 = (
    _ours("fp32", (*ALL, SMALL_BERT)),
    _ours("int8", (*ALL, SMALL_BERT)),
    _ours("int4", (GPT,)),
)
PREDICT = Contender("keras predict", "keras_predict", KERAS, (*ENCODERS, SMALL_BERT))
OPTIMUM_ON_ORT = Contender("optimum", "optimum_onnx", OPTIMUM, (*ALL, SMALL_BERT))
OPENVINO = _openvino("f32", "fp32")
STOCK_FILE = Contender(
    "keras stock export of keras-hub", "keras_stock_onnx", (*STOCK, "keras_hub"), ENCODERS, slow=True
)

MODELS = (
    OURS,
    OURS_INT8,
    OURS_INT4,
    _ours("fp16", ENCODERS, slow=True),
    _ours("int8-blocks", ALL, slow=True),
    PREDICT,
    Contender("keras-hub predict", "keras_hub_predict", HUB, ENCODERS, slow=True),
    Contender("keras-hub generate", "keras_hub_generate", HUB, (GPT,)),
    STOCK_FILE,
    _torch("eager", ALL),
    _torch("compiled", ENCODERS, slow=True),
    _torch("bf16", ENCODERS, slow=True),
    OPTIMUM_ON_ORT,
    OPENVINO,
    _openvino("bf16", "bf16"),
    _llama("f32"),
    _llama("q8_0"),
    _llama("q4_0"),
    Contender("genai fp32", "genai", ("onnxruntime_genai",), (GPT,), slow=True),
)

STARTED = (OURS, OURS_INT8, PREDICT, OPTIMUM_ON_ORT, OPENVINO)


def _exporter(
    name: str, module: str, needs: tuple[str, ...], slow: bool = False, **options: Any
) -> Contender:
    return Contender(name, module, needs, ALL, options, slow=slow)


EXPORTERS = (
    _exporter("keras-tx fp32", "keras_tx_export", EXPORTER, precision="fp32"),
    _exporter(
        "keras-tx fp32 verified", "keras_tx_export", EXPORTER, slow=True, precision="fp32", verify=True
    ),
    _exporter("keras-tx int8", "keras_tx_export", EXPORTER, precision="int8"),
    dataclasses.replace(
        _exporter("keras-tx int4", "keras_tx_export", EXPORTER, precision="int4"), subjects=(GPT,)
    ),
    _exporter(
        "keras-tx of keras-hub",
        "keras_tx_export",
        (*EXPORTER, "keras_hub"),
        slow=True,
        precision="fp32",
        hub=True,
    ),
    _exporter("keras stock export", "keras_stock_export", STOCK, slow=True),
    _exporter(
        "keras stock export of keras-hub", "keras_stock_export", (*STOCK, "keras_hub"), slow=True, hub=True
    ),
    _exporter("optimum", "optimum_export", OPTIMUM),
)


def _keras(backend: str, precision: str) -> Contender:
    name, arithmetic = f"keras {backend} {precision}", "fp32" if precision == "float32" else "bf16"
    needs = (backend, "keras", "keras_tx.models")
    environment = {"KERAS_BACKEND": backend}
    return Contender(
        name,
        "keras_training",
        needs,
        TRAINED,
        {"precision": precision},
        arithmetic,
        environment=environment,
        slow=(backend, precision) != ("tensorflow", "float32"),
    )


TRAINERS = (
    *(_keras(backend, precision) for backend in BACKENDS for precision in ("float32", "mixed_bfloat16")),
    Contender("torch eager", "pytorch_training", TORCH, TRAINED, {"autocast": False}),
    Contender("torch bf16", "pytorch_training", TORCH, TRAINED, {"autocast": True}, "bf16", slow=True),
)


def _rate(package: str, module: str, *kinds: str) -> tuple[Contender, ...]:
    needs = {"onnxruntime": ("onnx", "onnxruntime"), "torch": ("torch",), "openvino": ("openvino",)}[package]
    return tuple(
        Contender(f"{package} {kind}", module, needs, (f"rate-{kind}",), {"kind": kind}) for kind in kinds
    )


RATES = (
    *_rate("onnxruntime", "rates_of_onnxruntime", "fp32", "int8", "memory"),
    *_rate("torch", "rates_of_torch", "fp32", "bf16"),
    *_rate("openvino", "rates_of_openvino", "fp32", "bf16"),
)

CLIENTS = (Contender("keras-tx fp32", "keras_tx_clients", RUNTIME, (BERT,), {"precision": "fp32"}),)

PACKAGES = tuple(
    dict.fromkeys(one.package for group in (MODELS, EXPORTERS, TRAINERS, RATES, CLIENTS) for one in group)
)
