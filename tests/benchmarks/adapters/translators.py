"""CTranslate2 on the same weights. Its converter requires torch and transformers, its translator does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import BATCH, Adapter
from tests.benchmarks.machine import threads


class CTranslate2(Adapter):
    """Option quantization: float32 or int8."""

    @property
    def folder(self) -> Path:
        return self.place / f"ctranslate2-{self.options['quantization']}"

    def prepare(self) -> None:
        if not self.folder.exists():
            convert(self.place / "huggingface", self.folder, str(self.options["quantization"]))

    def load(self) -> None:
        import ctranslate2

        self.model = ctranslate2.Translator(
            str(self.folder),
            device="cpu",
            compute_type=str(self.options["quantization"]),
            inter_threads=1,
            intra_threads=threads(),
        )

    def generate(self, ids: np.ndarray, mask: np.ndarray, count: int, beams: int) -> list[list[int]]:
        sources = [
            [token(number) for number in row[real > 0].tolist()] for row, real in zip(ids, mask, strict=True)
        ]
        made = self.model.translate_batch(
            sources,
            max_batch_size=BATCH,
            beam_size=beams,
            min_decoding_length=count,
            max_decoding_length=count,
        )
        return [[int(name[1:-1]) for name in one.hypotheses[0]] for one in made]


def token(number: int) -> str:
    """The token of an id: CTranslate2 accepts and returns tokens."""
    return f"<{number}>"


class Vocabulary:
    """The methods of a tokenizer that CTranslate2's converter calls."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.pad_token = self.bos_token = token(config.pad_token_id)
        self.eos_token, self.unk_token = token(config.eos_token_id), token(2)

    def get_vocab(self) -> dict[str, int]:
        vocabulary = {token(number): number for number in range(self.config.vocab_size)}
        if self.config.model_type == "marian":  # the converter expects a padding token of this name, the last
            del vocabulary[token(self.config.pad_token_id)]
            vocabulary["<pad>"] = self.config.pad_token_id
        return vocabulary

    def convert_ids_to_tokens(self, number: int) -> str:
        return token(number)


def convert(folder: Path, out: Path, quantization: str) -> None:
    """Writes CTranslate2's files of a Hugging Face folder that has no tokenizer."""
    import torch
    import transformers
    from ctranslate2.converters import transformers as converting
    from ctranslate2.converters.converter import Converter

    class Untokenized(Converter):
        def _load(self) -> Any:
            config = transformers.AutoConfig.from_pretrained(folder)
            loader = converting._MODEL_LOADERS[type(config).__name__]
            model = getattr(transformers, loader.architecture_name).from_pretrained(folder).eval()
            with torch.no_grad():
                return loader(model, Vocabulary(model.config))

    unfinished = out.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    Untokenized().convert(str(unfinished), quantization=None if quantization == "float32" else quantization)
    unfinished.rename(out)
