"""The trainings of `keras-tx train`: from a file or folder of data to a trained model."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from keras_tx.atomic_write import write_file
from keras_tx.data.batches import Batches
from keras_tx.errors import ConfigError, nearest
from keras_tx.models.checkpoint_loading import from_checkpoint
from keras_tx.models.families import Family, families
from keras_tx.models.source_lookup import open_source
from keras_tx.processing import TextTransform
from keras_tx.training.evaluation import Evaluation
from keras_tx.training.probes import train_head
from keras_tx.training.recipes import finetune_recipe
from keras_tx.training.resuming import fit_resumable
from keras_tx.training.schedules import WarmupLinear
from keras_tx.training.training_monitor import Stopped, TrainingMonitor

MINUTES = 10.0  # the budget if neither minutes nor epochs are passed
FINETUNE, SCRATCH, HEAD = "finetune", "scratch", "head"
RECIPES = (FINETUNE, SCRATCH, HEAD)
SIZED = 40  # batches whose size is compared
QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7)  # of the sizes of batches whose time is measured
MEASURING = 0.05  # share of the time for it
SAVED_EVERY = 30.0  # seconds between two states
FORWARD = 1 / 3  # time of a validation step relative to a training step
PLAN, STATE, LOG, BEST, TOKENIZER = "plan.json", "training.state", "log.jsonl", "best.weights.h5", "tokenizer"

DECAY = "The learning rate warms up and then decays."

Say = Callable[[str], Any]


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """The options of a training; with None, the value is chosen from the data.

    Args:
        source: the checkpoint to start from, as for `from_checkpoint`.
        model: the model to train from scratch, such as "bert:mini" or "gpt:124M".
        recipe: "finetune", "scratch", or "head" to train only the head of a checkpoint.
        minutes: the time of the whole training.
        epochs: passes over the data.
        batch_size: samples per step.
        learning_rate: the largest learning rate.
        max_length: the largest number of tokens of a text.
        seed: seed of the split, the initial weights and the order.
        validation: the share of the data for validation.
        text, label, pair, labels, separator, encoding, quotes: as for `text_table`.
        skip_broken: whether broken rows and files are left out.
    """

    source: str | None = None
    model: str | None = None
    recipe: str | None = None
    minutes: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    max_length: int | None = None
    seed: int = 0
    validation: float = 0.1
    text: str | None = None
    label: str | None = None
    pair: str | None = None
    labels: tuple[str, ...] | None = None
    separator: str | None = None
    encoding: str | None = None
    quotes: bool = True
    skip_broken: bool = False

    def __post_init__(self) -> None:
        if self.source is not None and self.model is not None:
            raise ConfigError(
                f"A checkpoint ({self.source}) and a model ({self.model}) were both passed. Pass one of them."
            )
        if self.recipe is not None and self.recipe not in RECIPES:
            raise ConfigError(f"recipe={self.recipe!r} is unknown. {nearest(self.recipe, RECIPES)}")
        if self.source is None and self.recipe in (FINETUNE, HEAD):
            raise ConfigError(
                f"recipe={self.recipe!r} starts from a checkpoint. Pass one, or omit the recipe."
            )
        if self.source is not None and self.recipe == SCRATCH:
            raise ConfigError(
                f"recipe='scratch' does not start from a checkpoint, but {self.source} was passed."
            )
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation={self.validation!r} is out of range. Pass a share such as 0.1.")


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """The choices of a training, which are saved so that a resumed training uses the same ones.

    Args:
        model: the variant, such as "bert:mini", or the checkpoint.
        recipe: "finetune", "scratch" or "head".
        batch_size: samples per step.
        learning_rate: the largest learning rate.
        max_length: the largest number of tokens of a text; None for images.
        epochs: passes over the data, or parts of the training between two validations.
        steps: steps per epoch.
        rows: training samples that the time allows; None for all.
        every: steps between two saved states.
        reasons: sentences that state each choice and its reason.
    """

    model: str
    recipe: str
    batch_size: int
    learning_rate: float
    max_length: int | None = None
    epochs: int = 1
    steps: int = 1
    rows: int | None = None
    every: int = 100
    reasons: tuple[str, ...] = ()

    def because(self, *reasons: str, **changes: Any) -> JobPlan:
        """Returns a plan with these changes and reasons."""
        return dataclasses.replace(self, reasons=(*self.reasons, *reasons), **changes)


@dataclasses.dataclass(frozen=True)
class JobResult:
    """A trained model, how it was trained, and its result."""

    model: Any
    plan: JobPlan
    evaluation: Evaluation
    steps: list[dict[str, float]]
    epochs: list[dict[str, float]]
    best_epoch: int


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The time of a training in seconds.

    Args:
        step: time of a step.
        validation: time of a validation.
        left: time that is left for steps and validations.
        minutes: the whole time budget.
    """

    step: float
    validation: float
    left: float
    minutes: float


class TrainingJob:
    """Base class: one subclass for each kind of data.

    Args:
        path: path of the data.
        options: options of the training.

    Raises:
        KerasTxError: the data cannot be read, or does not match the options.
    """

    kind: ClassVar[str]  # of the data, for messages
    unused: ClassVar[tuple[str, ...]] = ()  # options that have no meaning for the data
    unit: ClassVar[str] = "texts"  # of the progress bar
    part: ClassVar[str] = "epoch"  # what ends with a validation
    families: ClassVar[tuple[str, ...]] = ("bert",)  # of a new model
    metric: str = "val_loss"  # that selects the best epoch
    most_epochs: ClassVar[dict[str, int]] = {FINETUNE: 4, SCRATCH: 20, HEAD: 10}

    def __init__(self, path: Path, options: JobOptions) -> None:
        self.path, self.options = path, options
        for name in self.unused:
            value = getattr(options, name)
            if value != getattr(JobOptions, name):
                raise ConfigError(
                    f"{name}={value!r} is not an option for {self.kind}, such as {path}. Omit it."
                )
        if options.model is not None:
            family_and_variant(options.model, self.families)

    def describe(self) -> list[str]:
        """Returns lines about the data."""
        raise NotImplementedError

    def choose(self, folder: Path) -> JobPlan:
        """Chooses the model and the recipe; writes the tokenizer of a new model into `folder`."""
        raise NotImplementedError

    def build(self, plan: JobPlan, folder: Path) -> Any:
        """Returns the model, not compiled."""
        raise NotImplementedError

    def batches(self, model: Any, plan: JobPlan) -> tuple[Batches, Batches]:
        """Returns the batches for training and for validation."""
        raise NotImplementedError

    def evaluate(self, model: Any, plan: JobPlan, *, few: bool = False) -> Evaluation:
        """Returns the result on the validation data, or on a few samples of it."""
        raise NotImplementedError

    def smaller(self, plan: JobPlan, share: float) -> JobPlan | None:
        """Returns a plan with inputs reduced to about this share of their size, or None if impossible."""
        return None

    @property
    def recipe(self) -> str:
        """The name of the recipe: the option, or finetune for a checkpoint and scratch without one."""
        return self.options.recipe or (SCRATCH if self.options.source is None else FINETUNE)

    def optimizer(self, model: Any, plan: JobPlan) -> Any:
        """Returns the optimizer for all steps of the plan; the recipe "head" freezes the layers below it."""
        if plan.recipe == HEAD:
            train_head(model)
        return finetune_recipe(model, plan.epochs * plan.steps, learning_rate=plan.learning_rate)

    def schedule(self, plan: JobPlan) -> Callable[[int], Any]:
        """Returns the learning rate of each step, as in `optimizer`."""
        return WarmupLinear(plan.learning_rate, plan.epochs * plan.steps, 0.1)

    def chosen(self, plan: JobPlan, count: int) -> np.ndarray:
        """Returns the indices of the training samples that the time allows."""
        rows = np.arange(count)
        if plan.rows is None or plan.rows >= count:
            return rows
        return np.random.default_rng(self.options.seed).permutation(count)[: plan.rows]

    def in_epochs(self, plan: JobPlan, epochs: int) -> JobPlan:
        """Returns a plan with this number of passes over the data."""
        schedule = f"Schedule: {counted(epochs, 'epoch')} of {counted(plan.steps, 'step')}."
        return plan.because(f"{schedule} {DECAY}", epochs=epochs)

    def in_time(self, plan: JobPlan, time: StepTime) -> JobPlan:
        """Returns a plan with as many steps as fit into the time."""
        most = self.options.epochs or self.most_epochs[plan.recipe]
        epoch = plan.steps * time.step + time.validation
        epochs = min(most, int(time.left // epoch))
        if epochs >= 1:
            why = "as many as fit into" if epochs < most else "which is less than"
            steps = f"{counted(epochs * plan.steps, 'step')}, {_duration(epochs * epoch)}"
            return plan.because(
                f"Schedule: a step takes {time.step:.2g} s, an epoch with its validation {_duration(epoch)}; "
                f"{counted(epochs, 'epoch')} ({steps}), {why} the {time.minutes:g} minutes. {DECAY}",
                epochs=epochs,
            )
        steps = min(plan.steps, max(2, int((time.left - time.validation) / time.step)))
        rows = steps * plan.batch_size
        return plan.because(
            f"Schedule: a step takes {time.step:.2g} s, so {time.minutes:g} minutes allow {steps:,} "
            f"of the {plan.steps:,} steps of one epoch: {rows:,} training samples, chosen at random. "
            f"{DECAY}",
            epochs=1,
            steps=steps,
            rows=rows,
        )


def load_checkpoint(source: Any, head: Any, processing: type, expected: str) -> Any:
    """Loads a checkpoint, after checking that its model has the inputs and the head.

    Args:
        source: the checkpoint, as for `from_checkpoint`.
        head: the head to train.
        processing: TextTransform or ImageTransform.
        expected: a model with them, for messages, such as "a ViT".

    Raises:
        ConfigError: the checkpoint is of another model, or cannot be loaded.
    """
    weights = open_source(source)
    lacks = None
    if not isinstance(weights.processing, processing):
        lacks = "has no tokenizer" if processing is TextTransform else "has no image transform"
    elif not isinstance(head, weights.model_class.heads):
        lacks = f"does not support a {type(head).__name__}"
    if lacks is not None:
        name = weights.model_class.__name__
        raise ConfigError(f"{source} is a {name} that {lacks}. Pass a checkpoint of {expected}.")
    return from_checkpoint(source, head=head)


def family_and_variant(text: str, known: tuple[str, ...]) -> tuple[Family, str]:
    """Returns the family and the variant of "vit:S/16".

    Args:
        text: the family, a colon, and the variant.
        known: the families that the data allows.

    Raises:
        ConfigError: the family or variant is unknown, or not for this data.
    """
    name, colon, variant = text.partition(":")
    records = {family.name: family for family in families()}
    if name not in records or not colon:
        raise ConfigError(
            f"model={text!r} is unknown. Pass a family and a variant, such as {known[0]}:"
            f"{records[known[0]].variants[0]}."
        )
    if name not in known:
        raise ConfigError(f"model={text!r} is not for this data. Pass a variant of {' or '.join(known)}.")
    records[name].config_class.variant(variant, **({"vocabulary_size": 8} if name != "vit" else {}))  # type: ignore
    return records[name], variant


def run_job(
    job: TrainingJob,
    folder: Path,
    *,
    say: Say = print,
    shown: bool = False,
    started: float | None = None,
    monitor_ready: Callable[[TrainingMonitor], Any] = lambda monitor: None,
    rehearse: Callable[[JobResult], Any] = lambda result: None,
) -> JobResult:
    """Trains, or resumes the training whose state is in `folder`.

    Args:
        job: the training.
        folder: an existing folder for the state.
        say: function that is called with each line of the output.
        shown: whether to draw a progress bar on standard error.
        started: time.monotonic() of the start of the budget.
        monitor_ready: function that is called with the monitor before the first step; `monitor.stop()` ends
            the training.
        rehearse: function that is called with the result of the untrained model on a few samples, before the
            first step of a new training. It does what the caller does with the result, so that a failure
            does not come after hours of training.

    Raises:
        Stopped: `monitor.stop()` was called; the state is saved.
        ConfigError: the state was saved with other options or data.
    """
    started = time.monotonic() if started is None else started
    keras.utils.set_random_seed(job.options.seed)
    plan = read_plan(folder)
    resumed = plan is not None
    if plan is None:
        plan, model = _planned(job, folder, started, rehearse)
        write_plan(folder, plan)
    else:
        model = job.build(plan, folder)
    for reason in plan.reasons:
        say(reason)
    model.compile(job.optimizer(model, plan))
    train, validation = job.batches(model, plan)
    monitor = TrainingMonitor(
        plan,
        folder / LOG,
        folder / BEST,
        metric=job.metric,
        unit=job.unit,
        part=job.part,
        rate=job.schedule(plan),
        say=say,
        shown=shown,
    )
    monitor_ready(monitor)
    if resumed and (folder / STATE).exists():
        say("The training continues from its last saved step.")
    try:
        options = {"every": plan.every, "validation_data": validation, "verbose": 0}
        fit_resumable(model, train, folder / STATE, epochs=plan.epochs, callbacks=[monitor], **options)
    finally:
        monitor.close()
    if monitor.stopping and len(monitor.epochs) < plan.epochs:
        raise Stopped(monitor.position)
    if (folder / BEST).exists():
        model.load_weights(folder / BEST)
    evaluation = job.evaluate(model, plan)
    return JobResult(model, plan, evaluation, monitor.steps, monitor.epochs, monitor.best_epoch)


def read_plan(folder: Path) -> JobPlan | None:
    """Returns the plan of an interrupted training, or None."""
    try:
        fields = json.loads((folder / PLAN).read_text(encoding="utf-8"))["plan"]
        return JobPlan(**{**fields, "reasons": tuple(fields["reasons"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / PLAN} is damaged ({error}). Remove {folder} to start over.") from error


def write_plan(folder: Path, plan: JobPlan) -> None:
    text = json.dumps({"plan": dataclasses.asdict(plan)}, indent=1)
    write_file(folder / PLAN, text.encode("utf-8"), ConfigError)


def _planned(
    job: TrainingJob, folder: Path, started: float, rehearse: Callable[[JobResult], Any]
) -> tuple[JobPlan, Any]:
    """Chooses the plan, with epochs and steps, and builds its model."""
    plan = job.choose(folder)
    model = job.build(plan, folder)
    begin = time.monotonic()
    model.compile(job.optimizer(model, plan))
    rehearse(JobResult(model, plan, job.evaluate(model, plan, few=True), [], [], 0))
    reserved = time.monotonic() - begin  # for the same after the training
    options = job.options
    minutes = options.minutes or MINUTES
    while True:
        train, validation = job.batches(model, plan)
        plan = dataclasses.replace(plan, steps=len(train), every=max(1, len(train) // 4))
        if options.minutes is None and options.epochs is not None:
            return job.in_epochs(plan, options.epochs), model
        model.compile(job.optimizer(model, plan))
        seconds = measure_step(model, train, MEASURING * minutes * 60)
        evaluated = len(validation) * seconds * FORWARD
        left = minutes * 60 - (time.monotonic() - started) - reserved - evaluated  # of the last evaluation
        smaller = job.smaller(plan, left / (plan.steps * seconds + evaluated))
        if smaller is None:
            plan = dataclasses.replace(plan, every=max(1, round(SAVED_EVERY / seconds)))
            return job.in_time(plan, StepTime(seconds, evaluated, left, minutes)), model
        plan, model = smaller, job.build(smaller, folder)  # as a resumed training builds it


def measure_step(model: Any, batches: Batches, limit: float) -> float:
    """Returns the mean time of a training step in seconds; the model is restored.

    Args:
        model: compiled.
        batches: training batches.
        limit: seconds after which no further batch is measured.
    """
    before = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    chosen = np.random.default_rng(0).permutation(len(batches))[:SIZED]
    data = sorted((batches[int(index)] for index in chosen), key=_size)
    times: list[float] = []
    begin = time.monotonic()
    for share in QUANTILES:  # of the sizes; the median first
        x, y = data[int(share * (len(data) - 1))]
        model.train_on_batch(x, y)  # this shape is compiled
        start = time.monotonic()
        model.train_on_batch(x, y)
        times.append(time.monotonic() - start)
        if time.monotonic() - begin > limit:
            break
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    return float(np.mean(times))


def _size(batch: tuple[Any, Any]) -> int:
    return np.size(keras.tree.flatten(batch[0])[0])


def counted(number: int, name: str, plural: str | None = None) -> str:
    """Returns a number with its noun.

    >>> counted(1, "pass", "passes"), counted(1200, "step")
    ('1 pass', '1,200 steps')
    """
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"
