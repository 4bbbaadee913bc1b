"""Decoders of other projects: llama.cpp, on a GGUF file of the same weights, and onnxruntime-genai."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter
from tests.benchmarks.cases import MOST_STREAM_TOKENS, MOST_STREAMS
from tests.benchmarks.machine import threads, threads_of_onnxruntime

# A GPT-2 block: the names of llama.cpp and of Hugging Face, and whether the weight is (in, out)
BLOCK = (
    ("attn_norm", "ln_1", False),
    ("attn_qkv", "attn.c_attn", True),
    ("attn_output", "attn.c_proj", True),
    ("ffn_norm", "ln_2", False),
    ("ffn_up", "mlp.c_fc", True),
    ("ffn_down", "mlp.c_proj", True),
)


class LlamaCpp(Adapter):
    """llama.cpp through llama-cpp-python. Option kind: f32, q8_0 or q4_0."""

    @property
    def path(self) -> Path:
        return self.place / f"gpt2-{self.options['kind']}.gguf"

    def prepare(self) -> None:
        if not self.path.exists():
            write_gguf(self.place / "huggingface", self.path, str(self.options["kind"]))

    def load(self) -> None:
        import llama_cpp

        self.model = llama_cpp.Llama(
            str(self.path),
            n_ctx=1024,
            n_batch=512,
            n_threads=threads(),  # by default half of the cores
            n_threads_batch=threads(),
            verbose=False,
        )

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        self.model.reset()
        generated = self.model.generate(ids.tolist(), temp=0.0, top_k=1, repeat_penalty=1.0)
        for _ in range(count):
            yield int(next(generated))


class LlamaCppStreams(LlamaCpp):
    """llama.cpp with a sequence for each stream, in batches as its server makes them: the next token of each
    text, then tokens of prompts."""

    most_tokens = 512  # of a batch, as by default

    def load(self) -> None:
        import llama_cpp

        llama_cpp.llama_backend_init()
        self.weights = llama_cpp.llama_model_load_from_file(
            os.fsencode(self.path), llama_cpp.llama_model_default_params()
        )
        options = llama_cpp.llama_context_default_params()
        options.n_seq_max = MOST_STREAMS
        options.n_ctx = MOST_STREAMS * MOST_STREAM_TOKENS
        options.n_batch = options.n_ubatch = self.most_tokens
        options.n_threads = options.n_threads_batch = threads()
        options.kv_unified = False  # no prefix is shared
        self.context = llama_cpp.llama_init_from_model(self.weights, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp does not load {self.path}")
        self.batch = llama_cpp.llama_batch_init(self.most_tokens, 0, 1)
        vocabulary = llama_cpp.llama_model_get_vocab(self.weights)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def streams(self, prompts: list[np.ndarray], count: int) -> tuple[list[list[int]], list[float]]:
        import llama_cpp

        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        waiting = [prompt.tolist() for prompt in prompts]  # tokens that are not in the cache
        cached = [0] * len(prompts)
        made: list[list[int]] = [[] for _ in prompts]
        first = [0.0] * len(prompts)
        start = time.perf_counter()
        while any(waiting):
            self.batch.n_tokens = 0
            chosen = []  # streams whose next token the batch decides, and its row
            for stream in sorted(range(len(prompts)), key=lambda stream: not made[stream]):
                part = waiting[stream][: self.most_tokens - self.batch.n_tokens]
                waiting[stream] = waiting[stream][len(part) :]
                for token in part:
                    self._append(token, cached[stream], stream)
                    cached[stream] += 1
                if part and not waiting[stream]:
                    self.batch.logits[self.batch.n_tokens - 1] = 1
                    chosen.append((stream, self.batch.n_tokens - 1))
            if llama_cpp.llama_decode(self.context, self.batch):
                raise RuntimeError("llama_decode failed")
            for stream, row in chosen:
                logits = llama_cpp.llama_get_logits_ith(self.context, row)
                token = int(np.ctypeslib.as_array(logits, (self.vocabulary_size,)).argmax())
                made[stream].append(token)
                first[stream] = first[stream] or time.perf_counter() - start
                if len(made[stream]) < count:
                    waiting[stream] = [token]
        return made, first

    def _append(self, token: int, position: int, stream: int) -> None:
        batch, row = self.batch, self.batch.n_tokens
        batch.token[row], batch.pos[row], batch.logits[row] = token, position, 0
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, stream
        batch.n_tokens = row + 1


class GenAI(Adapter):
    """onnxruntime-genai on the folder that keras-tx exports."""

    def load(self) -> None:
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(self.place / "keras_tx"))
        count = threads_of_onnxruntime()
        if count is not None:
            options = {"session_options": {"intra_op_num_threads": count}}
            config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = onnxruntime_genai.Model(config)

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        import onnxruntime_genai

        options = onnxruntime_genai.GeneratorParams(self.model)
        options.set_search_options(max_length=len(ids) + count, min_length=len(ids) + count, do_sample=False)
        generator = onnxruntime_genai.Generator(self.model, options)
        generator.append_tokens(ids[None].astype("int32"))
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])


def write_gguf(folder: Path, path: Path, kind: str) -> None:
    """Writes a GPT-2 as GGUF. `kind` applies to every matrix but the positions: the head is the embedding."""
    import gguf

    config = json.loads((folder / "config.json").read_text("utf-8"))
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    # llama.cpp refuses a file without a tokenizer; only ids are used
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"<{index}>" for index in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["< >"])
    writer.add_bos_token_id(config["vocab_size"] - 1)
    writer.add_eos_token_id(config["vocab_size"] - 1)
    for name, value in gpt2_tensors(folder, config["n_layer"]):
        value = np.ascontiguousarray(value)
        if value.ndim < 2 or kind == "f32" or name.startswith("position"):
            writer.add_tensor(name, value)
        else:
            quantization = getattr(gguf.GGMLQuantizationType, kind.upper())
            writer.add_tensor(name, gguf.quants.quantize(value, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)


def gpt2_tensors(folder: Path, depth: int) -> Iterator[tuple[str, Any]]:
    """The tensors of a GPT-2 by the names of llama.cpp, weights as (out, in)."""
    from safetensors.numpy import load_file  # this process has no Keras

    tensors = load_file(folder / "model.safetensors")

    def read(name: str) -> np.ndarray:
        return tensors[name if name in tensors else f"transformer.{name}"]

    yield "token_embd.weight", read("wte.weight")
    yield "position_embd.weight", read("wpe.weight")
    for index in range(depth):
        for name, source, transposed in BLOCK:
            weight = read(f"h.{index}.{source}.weight")
            yield f"blk.{index}.{name}.weight", weight.T if transposed else weight
            yield f"blk.{index}.{name}.bias", read(f"h.{index}.{source}.bias")
    yield "output_norm.weight", read("ln_f.weight")
    yield "output_norm.bias", read("ln_f.bias")
