"""Text generation with NumPy only: sampling, beam search and the loop, for Keras and the runtime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.generation.beam_search import BeamSearch
    from keras_tx.generation.constraints import Constraints
    from keras_tx.generation.decoding_loop import Decoder, Limits, PromptCache, Token, decode, score
    from keras_tx.generation.few_shot_prompt import few_shot
    from keras_tx.generation.generator import Generation, Generator, Scored
    from keras_tx.generation.grammar import Grammar, GrammarCompiler, TextGrammar
    from keras_tx.generation.logits import log_probability, log_softmax
    from keras_tx.generation.next_tokens import NextToken, NextTokens
    from keras_tx.generation.sampling import DistinctTokens, Sampling, choose_token
    from keras_tx.generation.seq2seq import EncoderDecoder, Seq2SeqGenerator

_HOMES = {
    "BeamSearch": "beam_search",
    "Constraints": "constraints",
    "Decoder": "decoding_loop",
    "DistinctTokens": "sampling",
    "EncoderDecoder": "seq2seq",
    "Generation": "generator",
    "Generator": "generator",
    "Grammar": "grammar",
    "GrammarCompiler": "grammar",
    "Limits": "decoding_loop",
    "NextToken": "next_tokens",
    "NextTokens": "next_tokens",
    "PromptCache": "decoding_loop",
    "Sampling": "sampling",
    "Scored": "generator",
    "Seq2SeqGenerator": "seq2seq",
    "TextGrammar": "grammar",
    "Token": "decoding_loop",
    "choose_token": "sampling",
    "decode": "decoding_loop",
    "few_shot": "few_shot_prompt",
    "log_probability": "logits",
    "log_softmax": "logits",
    "score": "decoding_loop",
}

__all__ = [
    "BeamSearch",
    "Constraints",
    "Decoder",
    "DistinctTokens",
    "EncoderDecoder",
    "Generation",
    "Generator",
    "Grammar",
    "GrammarCompiler",
    "Limits",
    "NextToken",
    "NextTokens",
    "PromptCache",
    "Sampling",
    "Scored",
    "Seq2SeqGenerator",
    "TextGrammar",
    "Token",
    "choose_token",
    "decode",
    "few_shot",
    "log_probability",
    "log_softmax",
    "score",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
