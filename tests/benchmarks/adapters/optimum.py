"""Optimum: its export of the PyTorch model, on onnxruntime and on OpenVINO."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter, generate_in_batches
from tests.benchmarks.adapters.exporting import Exporter
from tests.benchmarks.machine import threads, threads_of_onnxruntime

TASKS = {  # transformers' class: Optimum's task and class
    "ViTForImageClassification": ("image-classification", "ORTModelForImageClassification"),
    "BertModel": ("feature-extraction", "ORTModelForFeatureExtraction"),
    "GPT2LMHeadModel": ("text-generation-with-past", "ORTModelForCausalLM"),
    "T5ForConditionalGeneration": ("text2text-generation-with-past", "ORTModelForSeq2SeqLM"),
    "MarianMTModel": ("text2text-generation-with-past", "ORTModelForSeq2SeqLM"),
}


def names(place: Path) -> tuple[str, str, str]:
    """transformers' class, Optimum's task and Optimum's class."""
    (architecture,) = json.loads((place / "huggingface" / "config.json").read_text("utf-8"))["architectures"]
    return architecture, *TASKS[architecture]


class OnnxRuntime(Adapter):
    """Optimum's classes on onnxruntime."""

    def prepare(self) -> None:
        folder = self.place / "optimum"
        if folder.exists():
            return
        from optimum.exporters.onnx import main_export

        unfinished = self.place / "optimum.unfinished"
        task = names(self.place)[1]
        main_export(
            str(self.place / "huggingface"),
            output=unfinished,
            task=task,
            do_validation=False,
            library_name="transformers",  # also for a folder of sentence-transformers
        )
        unfinished.rename(folder)

    def imports(self) -> None:
        import optimum.onnxruntime
        import transformers

        architecture, _, name = names(self.place)
        getattr(transformers, architecture)
        getattr(optimum.onnxruntime, name)

    def load(self) -> None:
        import onnxruntime
        import optimum.onnxruntime

        _, task, name = names(self.place)
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = threads_of_onnxruntime() or 0
        options: dict[str, Any] = {"use_cache": True, "use_io_binding": False} if "generation" in task else {}
        self.model: Any = getattr(optimum.onnxruntime, name).from_pretrained(
            self.place / "optimum", session_options=session, **options
        )

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self.model(pixel_values=pixels).logits

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        import torch

        prompt = torch.from_numpy(ids[None])
        outputs = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        yield from outputs[0, len(ids) :].tolist()

    def generate(self, ids: np.ndarray, mask: np.ndarray, count: int, beams: int) -> list[list[int]]:
        from tests.benchmarks.adapters.pytorch import generate

        return generate_in_batches(ids, mask, partial(generate, self.model, count, beams))


class OpenVino(Adapter):
    """OpenVINO on Optimum's file. Option hint: f32 or bf16."""

    @property
    def path(self) -> Path:
        return self.place / "optimum" / "model.onnx"

    def prepare(self) -> None:
        if not self.path.exists():
            raise FileNotFoundError("OpenVINO reads Optimum's file, which is missing: run Optimum first")

    def load(self) -> None:
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": self.options["hint"],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads(),
        }
        core = openvino.Core()
        self.request = core.compile_model(core.read_model(self.path), "CPU", options).create_infer_request()

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._run({"pixel_values": pixels})

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        return self._run({"input_ids": ids, "attention_mask": mask, "token_type_ids": segments})

    def _run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return next(iter(self.request.infer(inputs).values())).copy()


class Export(Exporter):
    """Optimum's export, without its validation."""

    def imports(self) -> None:
        import transformers
        from optimum.exporters.onnx import onnx_export_from_model  # noqa: F401

        getattr(transformers, names(self.place)[0])

    def load(self) -> None:
        import transformers
        from optimum.exporters.onnx import onnx_export_from_model

        architecture, self.task, _ = names(self.place)
        if self.task.startswith("text2text"):
            self.path = "decoder_model_merged.onnx"
        self.model = getattr(transformers, architecture).from_pretrained(self.place / "huggingface")
        self.export_model = onnx_export_from_model

    def write(self, folder: Path) -> None:
        self.export_model(self.model, folder, task=self.task, do_validation=False)
