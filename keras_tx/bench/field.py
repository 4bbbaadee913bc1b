"""The field: which contenders there are, what each needs, and which subjects it can run."""

from __future__ import annotations

import dataclasses
from typing import Any

VIT, BERT, GPT = "vit-b16", "bert-base", "gpt2-124m"
ENCODERS = (VIT, BERT)


@dataclasses.dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Args:
        module: of keras_tx.bench.contenders.
        options: what its `prepare` and `load` take besides the place.
        needs: modules that its Python must have.
        subjects: those it can run.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    subjects: tuple[str, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def package(self) -> str:
        """What it is installed as: the key of `--python`."""
        return self.name.split()[0]


def _ours(precision: str, subjects: tuple[str, ...] = (*ENCODERS, GPT)) -> Contender:
    return Contender(
        f"keras-tx {precision}",
        "keras_tx_runtime",
        ("onnxruntime", "tokenizers"),
        subjects,
        {"precision": precision},
    )


FIELD = (
    _ours("fp32"),
    _ours("int8"),
    _ours("int4", (GPT,)),
    Contender("keras predict", "keras_predict", ("keras", "tensorflow"), ENCODERS),
    Contender("keras-hub generate", "keras_hub_generate", ("keras_hub", "tensorflow"), (GPT,)),
    Contender("torch eager", "pytorch", ("torch", "transformers"), (*ENCODERS, GPT), {"way": "eager"}),
    Contender("torch compiled", "pytorch", ("torch", "transformers"), ENCODERS, {"way": "compiled"}),
    Contender("torch bf16", "pytorch", ("torch", "transformers"), ENCODERS, {"way": "bf16"}),
    Contender("optimum", "optimum_onnx", ("optimum.onnxruntime", "torch"), (*ENCODERS, GPT)),
    Contender("openvino fp32", "openvino_runtime", ("openvino",), ENCODERS, {"hint": "f32"}),
    Contender("openvino bf16", "openvino_runtime", ("openvino",), ENCODERS, {"hint": "bf16"}),
    Contender(
        "llama.cpp f32", "llama_cpp_python", ("llama_cpp", "gguf", "safetensors"), (GPT,), {"kind": "f32"}
    ),
    Contender(
        "llama.cpp q8_0", "llama_cpp_python", ("llama_cpp", "gguf", "safetensors"), (GPT,), {"kind": "q8_0"}
    ),
    Contender(
        "llama.cpp q4_0", "llama_cpp_python", ("llama_cpp", "gguf", "safetensors"), (GPT,), {"kind": "q4_0"}
    ),
    Contender("genai fp32", "genai", ("onnxruntime_genai",), (GPT,)),
)


@dataclasses.dataclass(frozen=True)
class Goal:
    """How many times as fast as a peer we want to be, in one case."""

    subject: str
    case: str
    ours: str
    peer: str
    ratio: float


MIXED = "batch 8, lengths 16-128"
GOALS = (
    Goal(VIT, "batch 1", "keras-tx fp32", "optimum", 1.0),
    Goal(VIT, "batch 1", "keras-tx fp32", "openvino fp32", 1.0),
    Goal(VIT, "batch 1", "keras-tx fp32", "keras predict", 1.15),
    Goal(VIT, "batch 1", "keras-tx fp32", "torch eager", 2.0),
    Goal(VIT, "batch 1", "keras-tx int8", "openvino fp32", 2.5),
    Goal(VIT, "batch 1", "keras-tx int8", "openvino bf16", 1.6),
    Goal(BERT, MIXED, "keras-tx fp32", "optimum", 1.4),
    Goal(BERT, MIXED, "keras-tx fp32", "openvino fp32", 1.3),
    Goal(BERT, MIXED, "keras-tx int8", "optimum", 3.3),
    Goal(BERT, MIXED, "keras-tx int8", "openvino bf16", 1.7),
    Goal(GPT, "decode at 16", "keras-tx fp32", "optimum", 1.15),
    Goal(GPT, "decode at 16", "keras-tx fp32", "llama.cpp f32", 1.0),
    Goal(GPT, "decode at 16", "keras-tx int8", "llama.cpp q8_0", 1.15),
    Goal(GPT, "decode at 16", "keras-tx int4", "llama.cpp q4_0", 1.15),
    Goal(GPT, "prefill of 128", "keras-tx int8", "llama.cpp q8_0", 3.0),
    Goal(GPT, "decode at 16", "keras-tx fp32", "keras-hub generate", 2.5),
    Goal(GPT, "decode at 16", "keras-tx fp32", "torch eager", 2.0),
)
