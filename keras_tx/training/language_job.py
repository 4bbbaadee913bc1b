"""The training of a GPT on a text file."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.blocks import causal_lm_batches
from keras_tx.errors import ConfigError
from keras_tx.heads import CausalLMHead
from keras_tx.models.generation import generate
from keras_tx.models.gpt.model import gpt
from keras_tx.processing import TextTransform, TokenFile, character_vocabulary, train_byte_bpe
from keras_tx.processing.corpus import write_tokens
from keras_tx.processing.documents import documents, whole_files
from keras_tx.training.evaluation import Evaluation
from keras_tx.training.recipes import finetune_recipe, pretrain_recipe
from keras_tx.training.schedules import WarmupCosine, WarmupLinear
from keras_tx.training.training_job import (
    DECAY,
    FINETUNE,
    HEAD,
    SCRATCH,
    JobOptions,
    JobPlan,
    StepTime,
    TrainingJob,
    counted,
    family_and_variant,
    load_checkpoint,
)

TOKENS = "tokens"  # the folder of the token files
END = "<|endoftext|>"
MOST_CHARACTERS = 300  # different ones, for a vocabulary of characters
SMALL_FILE = 2_000_000  # bytes, for a vocabulary of characters
PARTS = 10  # validations during the training
PASSES = {SCRATCH: 40, FINETUNE: 4}  # at most
SMALL = {
    "width": 128,
    "depth": 4,
    "num_heads": 4,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}  # nanoGPT's for CPUs
CHARACTERS = 300  # of a sample
PROMPT = 16  # tokens, at most
SHORTEST = 4  # tokens of a block


class LanguageJob(TrainingJob):
    """A GPT that continues the text of a file."""

    kind: ClassVar[str] = "a text file"
    unused: ClassVar[tuple[str, ...]] = (
        *("text", "label", "pair", "labels", "separator"),
        *("encoding", "quotes", "skip_broken"),
    )
    unit: ClassVar[str] = "blocks"
    families: ClassVar[tuple[str, ...]] = ("gpt",)
    part: ClassVar[str] = "part"
    metric = "val_loss"

    def __init__(self, path: Path, options: JobOptions) -> None:
        super().__init__(path, options)
        if self.recipe == HEAD:
            raise ConfigError("recipe='head' is for classifiers. Pass 'finetune' or omit it.")
        self.size = sum(part.end for part in whole_files([path]))
        self.characters: set[str] = set()
        for chunk in documents(whole_files([path])):  # raises for a file that is not UTF-8
            self.characters.update(chunk.text)
        if "\0" in self.characters:
            raise ConfigError(f"{path} contains NUL characters, so it is not a text in UTF-8. Convert it.")
        if not "".join(self.characters).strip():
            raise ConfigError(f"{path} contains only white space. Pass a text.")
        self.start = next(documents(whole_files([path]))).text[:200]

    def describe(self) -> list[str]:
        size = f"{self.size / 1e6:.2f} MB" if self.size > 1e5 else f"{self.size / 1e3:.1f} kB"
        return [f"{self.path.name}: {size} of text, {len(self.characters):,} different characters"]

    def choose(self, folder: Path) -> JobPlan:
        options = self.options
        if options.source is None:
            name, transform, why = self._new_model()
            rate, length = 1e-3, options.max_length or 128
        else:
            name, transform = options.source, self._loaded.processing
            why, rate = f"the weights of {name}", 5e-5
            length = options.max_length or min(128, self._loaded.config.max_length)
            if length > self._loaded.config.max_length:
                raise ConfigError(
                    f"max_length={length} is above the {self._loaded.config.max_length} positions of {name}."
                )
        if length < SHORTEST:
            raise ConfigError(f"max_length={length} is too small to learn from. Pass {SHORTEST} or more.")
        if not (folder / TOKENS).exists():
            write_tokens(folder / TOKENS, [self.path], transform, validation=options.validation)
        count = len(TokenFile(folder / TOKENS / "train.tokens"))
        batch_size = options.batch_size or min(16, max(1, count // length))
        plan = JobPlan(name, self.recipe, batch_size, options.learning_rate or rate, length, epochs=PARTS)
        self._folder = folder
        blocks = self._blocks = count // (length * batch_size)
        if blocks < 1:
            raise ConfigError(
                f"{self.path} has {counted(count, 'token')} for training, fewer than a batch of "
                f"{counted(batch_size, 'block')} of {length}. Decrease max_length= or batch_size=, or pass "
                "a longer text."
            )
        plan = dataclasses.replace(plan, steps=max(1, PASSES[plan.recipe] * blocks // PARTS))
        return plan.because(
            f"Model: {why}.",
            f"Recipe: {plan.recipe}, AdamW with a learning rate of {plan.learning_rate:g} and batches of "
            f"{counted(batch_size, 'block')} of {length} tokens.",
            f"Text: {counted(count, 'token')} for training; one pass has {counted(blocks, 'step')}.",
        )

    def _new_model(self) -> tuple[str, TextTransform, str]:
        variant = "nano"
        if self.options.model is not None:
            variant = family_and_variant(self.options.model, self.families)[1]
        texts = (chunk.text for chunk in documents(whole_files([self.path])))
        if self.size <= SMALL_FILE and len(self.characters) <= MOST_CHARACTERS:
            transform, tokens = character_vocabulary(texts, eos_token=END), "characters"
        else:
            size = 4000 if self.size < 5 * SMALL_FILE else 16_000
            transform, tokens = train_byte_bpe(texts, size), "byte-level BPE tokens"
        size = f"of the size {variant}" if self.options.model else "of the size that nanoGPT uses on CPUs"
        count = transform.vocabulary_size
        return f"gpt:{variant}", transform, f"a new GPT {size}, with a vocabulary of {count:,} {tokens}"

    @functools.cached_property
    def _loaded(self) -> Any:
        """The checkpoint."""
        return load_checkpoint(self.options.source, CausalLMHead(), TextTransform, "a GPT with a tokenizer")

    def build(self, plan: JobPlan, folder: Path) -> Any:
        self._folder = folder
        if plan.recipe != SCRATCH:
            return self._loaded
        transform = TextTransform.load(folder / TOKENS)
        sizes = SMALL if self.options.model is None else {}
        variant = plan.model.partition(":")[2]
        length = plan.max_length or 128
        return gpt(variant, processing=transform, max_length=length, **sizes)

    def optimizer(self, model: Any, plan: JobPlan) -> Any:
        steps, rate = plan.epochs * plan.steps, plan.learning_rate
        if plan.recipe == SCRATCH:
            return pretrain_recipe(steps, learning_rate=rate, warmup=0.05, beta_2=0.99)
        return finetune_recipe(model, steps, learning_rate=rate)

    def schedule(self, plan: JobPlan) -> Any:
        steps, rate = plan.epochs * plan.steps, plan.learning_rate
        return (
            WarmupCosine(rate, steps, 0.05, 0.1) if plan.recipe == SCRATCH else WarmupLinear(rate, steps, 0.1)
        )

    def batches(self, model: Any, plan: JobPlan) -> tuple[Batches, Batches]:
        options: dict[str, Any] = {"batch_size": plan.batch_size, "seed": self.options.seed}
        length, folder = plan.max_length or 128, self._folder / TOKENS
        train = causal_lm_batches(folder / "train.tokens", length, steps=plan.steps, **options)
        validation = causal_lm_batches(folder / "validation.tokens", length, shuffle=False, **options)
        return train, validation

    def in_epochs(self, plan: JobPlan, epochs: int) -> JobPlan:
        steps = max(PARTS, epochs * self._blocks)
        return self._in_parts(plan, steps, f"Schedule: {steps:,} steps, {counted(epochs, 'pass', 'passes')}")

    def in_time(self, plan: JobPlan, time: StepTime) -> JobPlan:
        most = self._blocks * (self.options.epochs or PASSES[plan.recipe])
        fitting = int((time.left - PARTS * time.validation) / time.step)
        steps = max(PARTS, min(most, fitting))
        why = "as many as fit into" if fitting < most else "which is less than"
        return self._in_parts(
            plan,
            steps,
            f"Schedule: a step takes {time.step:.2g} s; {steps:,} steps ({steps / self._blocks:.1f} passes "
            f"over the text), {why} the {time.minutes:g} minutes",
        )

    def _in_parts(self, plan: JobPlan, steps: int, reason: str) -> JobPlan:
        return plan.because(
            f"{reason}, with {PARTS} validations. {DECAY}", epochs=PARTS, steps=max(1, steps // PARTS)
        )

    def evaluate(self, model: Any, plan: JobPlan, *, few: bool = False) -> Evaluation:
        _, batches = self.batches(model, plan)
        metrics = model.evaluate(batches, steps=1 if few else None, verbose=0, return_dict=True)
        loss = float(metrics["loss"])
        tokens = TokenFile(self._folder / TOKENS / "validation.tokens")
        bits = loss / math.log(2) / tokens.bytes_per_token
        prompt = self._prompt(model)
        most = 1 if few else min(CHARACTERS, model.config.max_length - self._count(model, prompt))
        generated = {}
        for temperature in (0.5, 0.8):
            text = generate(model, prompt, max_new_tokens=most, temperature=temperature, seed=0)
            generated[f"temperature {temperature}"] = prompt + str(getattr(text, "text", text))
        values = {"loss": loss, "perplexity": float(np.exp(loss)), "bits_per_byte": bits}
        summary = f"validation loss {loss:.3f}, perplexity {math.exp(loss):.3g}, {bits:.3f} bits per byte"
        return Evaluation(values, summary, generated=generated, prompt=prompt)

    def _prompt(self, model: Any) -> str:
        """The first two words of the text; fewer characters where words are not separated by spaces."""
        prompt = " ".join(self.start.split()[:2]) or self.start
        most = min(PROMPT, model.config.max_length // 2)
        while len(prompt) > 1 and self._count(model, prompt) > most:
            prompt = prompt[: len(prompt) // 2]
        return prompt

    def _count(self, model: Any, text: str) -> int:
        """The number of tokens of a text."""
        return len(model.processing.pieces([text])[0])
