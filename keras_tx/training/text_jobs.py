"""Trainings on tables of texts: classes, several labels, numbers, and answers to questions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.question_table import QuestionTable, question_table
from keras_tx.data.text_table import CLASSIFICATION, MULTI_LABEL, REGRESSION, TextTable, text_table
from keras_tx.errors import ConfigError
from keras_tx.heads import ClassifierHead, MultiLabelHead, RegressionHead, SpanHead
from keras_tx.models.bert.model import bert
from keras_tx.processing import TextTransform, train_wordpiece
from keras_tx.training.evaluation import (
    Evaluation,
    Sample,
    evaluate_classes,
    evaluate_numbers,
    evaluate_several,
)
from keras_tx.training.training_job import (
    HEAD,
    SCRATCH,
    TOKENIZER,
    JobOptions,
    JobPlan,
    TrainingJob,
    counted,
    family_and_variant,
    load_checkpoint,
)

SAMPLED = 2000  # texts whose length is measured
COVERED = 95  # percent of the texts that are not truncated
SHORTEST = 64  # tokens, to which texts are truncated where there is little time
LONGEST = 256  # tokens, by default; attention costs the square of the length
OVERLAP = 64  # tokens that consecutive parts of a document share, unless an answer is longer
WITHIN_WORD = 2  # tokens more that an answer may have in its document, where it begins or ends within a word
MULTIPLE = 16  # lengths of rows, so that few shapes are compiled
FEW_SAMPLES = 4  # that are evaluated before the training
FEW = 5000  # texts for which batches are small
SIZES = (
    (500, "tiny", 2000),
    (20_000, "mini", 8000),
    (200_000, "small", 16_000),
)  # texts, variant, vocabulary


class _TextJob(TrainingJob):
    """Base class of the trainings of encoders; `train` and `validation` are the parts of a table."""

    train: Any
    validation: Any
    cut: ClassVar[str] = "truncated"  # what happens to longer texts

    def head(self) -> Any:
        raise NotImplementedError

    def texts(self) -> tuple[list[str], list[str] | None]:
        """The texts and second texts for training."""
        raise NotImplementedError

    def choose(self, folder: Path) -> JobPlan:
        options, rows = self.options, len(self.train)
        if options.source is None:
            name, transform = self._new_model(rows, folder)
            rate, why = (
                5e-4,
                f"a new {name} for {rows:,} texts, with a vocabulary of {transform.vocabulary_size:,}",
            )
            why += "; a checkpoint (--from) is usually more accurate"
        else:
            name, transform = options.source, self._loaded.processing
            rate = float(f"{min(2e-4, 5e-5 * 768 / self._loaded.config.width):.1g}")
            why = f"the weights of {name}"
        length, reason = self._length(transform)
        batch_size = options.batch_size or (16 if rows < FEW else 32)
        plan = JobPlan(name, self.recipe, batch_size, options.learning_rate or rate, length)
        frozen = "; only its head is trained" if plan.recipe == HEAD else ""
        return plan.because(
            f"Model: {why}{frozen}.",
            f"Recipe: {plan.recipe}, AdamW with a learning rate of {plan.learning_rate:g} and batches of "
            f"{batch_size}.",
            reason,
        )

    def _new_model(self, rows: int, folder: Path) -> tuple[str, TextTransform]:
        variant, size = next(
            ((name, words) for most, name, words in SIZES if rows < most), ("medium", 30_000)
        )
        if self.options.model is not None:
            variant = family_and_variant(self.options.model, self.families)[1]
        first, second = self.texts()
        transform = train_wordpiece([*first, *(second or [])], size)
        transform.save(folder / TOKENIZER)
        return f"bert:{variant}", transform

    def _length(self, transform: TextTransform) -> tuple[int, str]:
        """Returns the largest number of tokens, and the reason."""
        first, second = self.texts()
        chosen = np.random.default_rng(0).permutation(len(first))[:SAMPLED]
        free = dataclasses.replace(transform, max_length=None)
        rows = free.encode([first[i] for i in chosen], second and [second[i] for i in chosen])
        self._lengths = np.array([len(row) for row in rows])
        covering = int(np.ceil(np.percentile(self._lengths, COVERED) / MULTIPLE)) * MULTIPLE
        limit = 512 if self.options.source is None else self._loaded.config.max_length
        self._least = -(-self.least(transform) // MULTIPLE) * MULTIPLE
        length = self.options.max_length or min(max(min(covering, LONGEST), self._least), limit)
        if length > limit:
            raise ConfigError(f"max_length={length} is above the {limit} positions of the model.")
        return length, self._about_length(length)

    def least(self, transform: TextTransform) -> int:
        """Returns the smallest length that the data allows."""
        return 0

    def _about_length(self, length: int) -> str:
        longer = float((self._lengths > length).mean())
        part = f"{longer:.0%} of the texts are longer and {self.cut}" if longer else "no text is longer"
        return f"Texts: a median of {int(np.median(self._lengths))} tokens; the model reads {length}; {part}."

    @functools.cached_property
    def _loaded(self) -> Any:
        """The checkpoint."""
        return load_checkpoint(self.options.source, self.head(), TextTransform, "a BERT")

    def build(self, plan: JobPlan, folder: Path) -> Any:
        if plan.recipe == SCRATCH:
            transform = TextTransform.load(folder / TOKENIZER, max_length=plan.max_length)
            variant = plan.model.partition(":")[2]
            length = max(plan.max_length or 0, MULTIPLE)
            return bert(variant, head=self.head(), processing=transform, max_length=length)
        model = self._loaded
        model.processing = dataclasses.replace(model.processing, max_length=plan.max_length)
        return model

    def batches(self, model: Any, plan: JobPlan) -> tuple[Batches, Batches]:
        train = self.train.take(self.chosen(plan, len(self.train)))
        return self._batches(train, model, plan), self._batches(self.validation, model, plan)

    def _batches(self, table: Any, model: Any, plan: JobPlan) -> Batches:
        options = {"batch_size": plan.batch_size, "seed": self.options.seed}
        return table.batches(self._transform(model), **options)

    def smaller(self, plan: JobPlan, share: float) -> JobPlan | None:
        before = plan.max_length or 0
        length = max(SHORTEST, self._least, int(0.9 * share * before) // MULTIPLE * MULTIPLE)
        if share >= 1 or self.options.max_length is not None or length >= before:
            return None
        others = [reason for reason in plan.reasons if not reason.startswith("Texts:")]
        reason = self._about_length(length) + " A larger length would exceed the time."
        return dataclasses.replace(plan, max_length=length, reasons=(*others, reason))

    def _transform(self, model: Any) -> TextTransform:
        return dataclasses.replace(model.processing, multiple=MULTIPLE, too_long="cut")


class TableJob(_TextJob):
    """Classes, several labels or numbers of texts, from a CSV, TSV or JSON Lines file."""

    kind: ClassVar[str] = "a table of texts"

    def __init__(self, path: Path, options: JobOptions) -> None:
        super().__init__(path, options)
        columns = {name: getattr(options, name) for name in ("text", "label") if getattr(options, name)}
        self.table: TextTable = text_table(
            path,
            **columns,
            pair=options.pair,
            labels=options.labels,
            separator=options.separator,
            encoding=options.encoding,
            quotes=options.quotes,
            skip_broken=options.skip_broken,
        )
        self.train, self.validation = self.table.split(options.validation, seed=options.seed)
        self.metric = {MULTI_LABEL: "val_f1", REGRESSION: "val_loss"}.get(
            str(self.table.task), "val_accuracy"
        )

    def describe(self) -> list[str]:
        return [
            *repr(self.table).splitlines(),
            f"{len(self.train):,} rows for training, {len(self.validation):,} for validation; rows "
            f"with the same {'text' if self.table.pairs is None else 'first text'} are in the same part",
        ]

    def texts(self) -> tuple[list[str], list[str] | None]:
        return self.train.texts, self.train.pairs

    def head(self) -> Any:
        labels, task = self.table.labels, self.table.task
        if labels is None:
            return RegressionHead(1)
        kind = MultiLabelHead if task == MULTI_LABEL else ClassifierHead
        return kind(len(labels), dropout=0.1, labels=labels)

    def evaluate(self, model: Any, plan: JobPlan, *, few: bool = False) -> Evaluation:
        lengths = np.array([len(text) for text in self.validation.texts])
        table = self.validation.take(np.argsort(lengths, kind="stable")[: FEW_SAMPLES if few else None])
        batches = table.batches(self._transform(model), batch_size=32, shuffle=False)
        logits = np.concatenate([np.asarray(model.predict_on_batch(x), "float32") for x, _ in batches])

        def sample(row: int) -> Sample:
            pair = {} if table.pairs is None else {"pair": table.pairs[row]}
            return Sample(f"line {table.lines[row]}", {"text": table.texts[row], **pair})

        if table.labels is None:
            return evaluate_numbers(logits, table.targets, sample)
        evaluate = evaluate_classes if table.task == CLASSIFICATION else evaluate_several
        return evaluate(logits, table.targets, table.labels, sample)


class QuestionJob(_TextJob):
    """Answers to questions, from a file in the format of SQuAD."""

    kind: ClassVar[str] = "a file of questions"
    unused: ClassVar[tuple[str, ...]] = (
        *("text", "label", "pair", "labels", "separator"),
        *("encoding", "quotes"),
    )
    cut: ClassVar[str] = "divided into overlapping parts"
    unit: ClassVar[str] = "questions"

    def __init__(self, path: Path, options: JobOptions) -> None:
        super().__init__(path, options)
        self.table: QuestionTable = question_table(path, skip_broken=options.skip_broken)
        self.train, self.validation = self.table.split(options.validation, seed=options.seed)
        if not any(self.train.answers):
            raise ConfigError(
                f"{path} has no answer in the {counted(len(self.train), 'question')} for training. Add "
                "questions with answers."
            )
        self.metric = "val_loss"
        self._questions: list[int] = []  # their numbers of tokens, once they are known

    def describe(self) -> list[str]:
        return [
            *repr(self.table).splitlines(),
            f"{len(self.train):,} questions for training, {len(self.validation):,} for validation, about "
            "different documents",
        ]

    def texts(self) -> tuple[list[str], list[str] | None]:
        return self.train.questions, self.train.documents

    def head(self) -> Any:
        return SpanHead()

    def evaluate(self, model: Any, plan: JobPlan, *, few: bool = False) -> Evaluation:
        table = self.validation.take(range(FEW_SAMPLES)[: len(self.validation)]) if few else self.validation
        batches = self._batches(table, model, plan)
        metrics = model.evaluate(batches, verbose=0, return_dict=True)
        summary = (
            f"{metrics['exact_match']:.1%} exact answers and F1 {metrics['span_f1']:.3f} on "
            f"{counted(int(batches.lengths.size), 'part')} of the validation documents"
        )
        return Evaluation(metrics, summary)

    def least(self, transform: TextTransform) -> int:
        self._measure(transform)
        row = self._special + max(self._questions)
        return next(size for size in itertools.count(row) if size > row + self._overlap(size))

    def _batches(self, table: Any, model: Any, plan: JobPlan) -> Batches:
        length, least = plan.max_length or 0, self.least(model.processing)
        if length < least:
            longest = int(np.argmax(self._questions))
            raise ConfigError(
                f"Question {self.table.ids[longest]!r} has {counted(self._questions[longest], 'token')}; "
                f"with a part of its document it needs max_length={least} or more, but max_length={length}. "
                "Shorten the question, or increase max_length=."
            )
        options = {"batch_size": plan.batch_size, "seed": self.options.seed}
        return table.batches(self._transform(model), overlap=self._overlap(length), **options)

    def _overlap(self, length: int) -> int:
        """Returns the number of tokens that consecutive parts share, enough for the longest answer."""
        return max(self._answer, min(OVERLAP, length // 4))

    def _measure(self, transform: TextTransform) -> None:
        """Counts the special tokens of a row, and the tokens of the questions and of the longest answer."""
        if self._questions:
            return
        free = dataclasses.replace(transform, max_length=None)
        pairs = zip(self.table.documents, self.table.answers, strict=True)
        answers = [document[slice(*answer)] for document, answer in pairs if answer is not None]
        self._special = int((free.encode(["a"], ["a"])[0].parts < 0).sum())
        self._questions = [len(piece) for piece in free.pieces(self.table.questions)]
        self._answer = max(map(len, free.pieces(answers))) + WITHIN_WORD
