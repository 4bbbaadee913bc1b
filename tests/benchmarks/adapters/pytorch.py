"""transformers in PyTorch: inference and training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter, generate_in_batches
from tests.benchmarks.adapters.exporting import Exporter
from tests.benchmarks.machine import threads

SOURCE = 8  # tokens of the example that is traced


class _Transformers(Adapter):
    def model_class(self) -> Any:
        import transformers

        config = json.loads((self.place / "huggingface" / "config.json").read_text("utf-8"))
        (architecture,) = config["architectures"]
        return getattr(transformers, architecture)

    def imports(self) -> None:
        self.model_class()


class Inference(_Transformers):
    """Option way: eager, compiled, or bf16."""

    def load(self) -> None:
        import torch

        torch.set_num_threads(threads())
        self.dtype = torch.bfloat16 if self.options["way"] == "bf16" else torch.float32
        model = self.model_class().from_pretrained(self.place / "huggingface", dtype=self.dtype).eval()
        self.model: Any = torch.compile(model) if self.options["way"] == "compiled" else model

    def images(self, pixels: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self.model(torch.from_numpy(pixels).to(self.dtype)).logits.float().numpy()

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        import torch

        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        with torch.inference_mode():
            outputs = self.model(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return outputs.last_hidden_state.float().numpy()

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        import torch

        inputs, past = torch.from_numpy(ids[None]), None
        with torch.inference_mode():
            for _ in range(count):
                outputs = self.model(inputs, past_key_values=past, use_cache=True, logits_to_keep=1)
                past, inputs = outputs.past_key_values, outputs.logits[:, -1:].argmax(-1)
                yield int(inputs)

    def generate(self, ids: np.ndarray, mask: np.ndarray, count: int, beams: int) -> list[list[int]]:
        return generate_in_batches(ids, mask, partial(generate, self.model, count, beams))


def generate(model: Any, count: int, beams: int, ids: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """Targets of transformers' `generate`, without their first token."""
    import torch

    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
    with torch.inference_mode():
        targets = model.generate(
            **inputs, max_new_tokens=count, min_new_tokens=count, num_beams=beams, do_sample=False
        )
    return targets[:, 1:].tolist()


class Training(_Transformers):
    """A training step in float32 or, with the option autocast, in bfloat16."""

    def load(self) -> None:
        import torch

        torch.set_num_threads(threads())
        self.model = self.model_class().from_pretrained(self.place / "huggingface").train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.004)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        import torch

        tensor = torch.from_numpy(x)
        if x.ndim == 4:
            inputs = {"pixel_values": tensor.permute(0, 3, 1, 2).contiguous()}
        else:
            inputs = {"input_ids": tensor.long()}
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(self.options["autocast"])):
            logits = self.model(**inputs).logits.float()
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), torch.from_numpy(y).long().reshape(-1)
            )
        loss.backward()
        self.optimizer.step()
        return float(loss)


class Export(_Transformers, Exporter):
    """`transformers.exporters` of an encoder-decoder: a graph for each part, without validation."""

    def imports(self) -> None:
        import transformers.exporters

        super().imports()
        self.exporters: Any = transformers.exporters

    def load(self) -> None:
        self.model: Any = self.model_class().from_pretrained(self.place / "huggingface").eval()
        self.exporter = self.exporters.OnnxExporter()

    def write(self, folder: Path) -> None:
        import torch

        ids = torch.arange(SOURCE * 2).reshape(2, SOURCE) + 3
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        exported = self.exporter.export_for_generation(
            self.model, inputs, self.exporters.OnnxConfig(dynamic=True)
        )
        exported.save_pretrained(folder)
        self.path = max(folder.glob("*.onnx"), key=lambda path: path.stat().st_size).name
