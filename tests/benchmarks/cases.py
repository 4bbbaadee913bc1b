"""The cases of each model, and their inputs: the same for every contender."""

from __future__ import annotations

import dataclasses

import numpy as np

VIT, BERT, GPT = "vit-b16", "bert-base", "gpt2-124m"
SMALL_BERT = "bert-mini"  # for the time of a start
MINILM, TEXTS_FILE = "minilm", "texts.json"  # trained, with its tokenizer, and English texts
ENCODER_DECODERS = T5_SMALL, T5_BASE, MARIAN = "t5-small", "t5-base", "marian-base"
TRAINED = VIT_TRAINED, BERT_TRAINED, GPT_TRAINED = "train-vit-s16", "train-bert-small", "train-gpt-char"

IMAGES, TEXTS, PREFILL, DECODE, OVERHEAD = "images", "texts", "prefill", "decode", "overhead"
GENERATE = "generate"  # encodes sources and generates a target for each
STREAMS = "streams"  # generates the texts of several clients together
STEP, EXPORT, CLIENTS, RATE = "step", "export", "clients", "rate"
SPECIAL = 3  # first ids of a vocabulary that are no words
PARTS = {
    IMAGES: ("pixels",),
    TEXTS: ("ids", "mask", "segments"),
    PREFILL: ("ids",),
    DECODE: ("ids",),
    OVERHEAD: ("ids",),
    GENERATE: ("ids", "mask"),
    STEP: ("x", "y"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement, repeated in each round.

    Args:
        lengths: the range of the tokens of a text.
        once: whether a process runs it only once.
        new_tokens: number of tokens of each target, which never end earlier.
        beams: of beam search; 1 is greedy.
    """

    name: str
    kind: str
    batch: int = 1
    lengths: tuple[int, int] = (128, 128)
    once: bool = False
    new_tokens: int = 0
    beams: int = 1

    @property
    def inputs(self) -> str:
        return self.name.replace(" ", "_")

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS.get(self.kind, ())


ONE, EIGHT = "batch 1", "batch 8"
ONE_STREAM, FEW_STREAMS, MANY_STREAMS = "1 stream", "8 streams", "32 streams"
MIXED, SINGLE = "batch 8, lengths 16-128", "batch 1, length 128"
PREFILLED, AT_16, AT_512, AT_768 = "prefill of 128", "decode at 16", "decode at 512", "decode at 768"
GREEDY, BEAMS = "source 128, target 64, greedy", "batch 8, beams 4"
SENTENCES = "100 sentences of 4-64 tokens"
FIRST_ANSWER, A_STEP, AN_EXPORT, A_REQUEST = (
    "first answer",
    "step",
    "export",
    "request",
)

CASES = {
    VIT: (Case(ONE, IMAGES), Case(EIGHT, IMAGES, 8)),
    BERT: (Case(MIXED, TEXTS, 8, (16, 128)), Case(SINGLE, TEXTS)),
    GPT: (
        Case(PREFILLED, PREFILL),
        Case(AT_16, DECODE, lengths=(16, 16)),
        Case(AT_512, DECODE, lengths=(512, 512)),
        Case(AT_768, DECODE, lengths=(768, 768)),
    ),
    T5_SMALL: (Case(GREEDY, GENERATE, new_tokens=64), Case(BEAMS, GENERATE, 8, new_tokens=64, beams=4)),
    T5_BASE: (Case(GREEDY, GENERATE, new_tokens=64), Case(BEAMS, GENERATE, 8, new_tokens=64, beams=4)),
    MARIAN: (Case(SENTENCES, GENERATE, 100, (4, 64), new_tokens=32),),
    SMALL_BERT: (Case(FIRST_ANSWER, TEXTS, lengths=(32, 32), once=True),),
    MINILM: (Case(A_REQUEST, CLIENTS),),
    VIT_TRAINED: (Case(A_STEP, STEP, 8),),
    BERT_TRAINED: (Case(A_STEP, STEP, 16),),
    GPT_TRAINED: (Case(A_STEP, STEP, 16, (256, 256)),),
}

STREAM_CASES = tuple(
    Case(name, STREAMS, count, (16, 64), new_tokens=64)
    for name, count in ((ONE_STREAM, 1), (FEW_STREAMS, 8), (MANY_STREAMS, 32))
)
MOST_STREAMS = max(case.batch for case in STREAM_CASES)
MOST_STREAM_TOKENS = max(case.lengths[1] + case.new_tokens for case in STREAM_CASES)


def prompts_of(case: Case, vocabulary: int) -> list[np.ndarray]:
    """Random ids for each stream, the same in every process."""
    random = np.random.default_rng(case.batch)
    lengths = random.integers(case.lengths[0], case.lengths[1] + 1, case.batch)
    return [random.integers(0, vocabulary, length) for length in lengths]


def inputs_of(
    cases: tuple[Case, ...], vocabulary: int, image: tuple[int, int, int] = (3, 224, 224)
) -> dict[str, np.ndarray]:
    """Random inputs of inference by case and part; for training, see `batch_of`."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for case in cases:
        if case.kind == IMAGES:
            arrays[f"{case.inputs}.pixels"] = random.normal(size=(case.batch, *image)).astype("float32")
            continue
        lengths = random.integers(case.lengths[0], case.lengths[1] + 1, case.batch)
        lengths[0] = case.lengths[1]
        ids = random.integers(1, vocabulary, (case.batch, lengths.max()))
        if case.kind not in (TEXTS, GENERATE):
            arrays[f"{case.inputs}.ids"] = ids[0]
            continue
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype("int64")
        if case.kind == GENERATE:  # without the special tokens, the first ones and the last
            ids = np.clip(ids, SPECIAL, vocabulary - 2)
        parts = {"ids": ids * mask, "mask": mask, "segments": np.zeros_like(mask)}
        arrays |= {f"{case.inputs}.{name}": parts[name] for name in case.parts}
    return arrays


def batch_of(
    case: Case, *, image: tuple[int, int, int] | None, vocabulary: int, classes: int | None
) -> dict[str, np.ndarray]:
    """A random training batch: images or ids, and classes or, without classes, the next ids."""
    random = np.random.default_rng(0)
    if image is not None:
        x = random.normal(size=(case.batch, *image)).astype("float32")
    else:
        x = random.integers(1, vocabulary, (case.batch, case.lengths[1] + (classes is None))).astype("int32")
    if classes is None:
        x, y = x[:, :-1], x[:, 1:]
    else:
        y = random.integers(0, classes, case.batch).astype("int32")
    return {f"{case.inputs}.x": x, f"{case.inputs}.y": y}
