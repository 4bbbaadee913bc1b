"""The training of a ViT on a folder of images with a subfolder per class."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_tx.data.augmentation import crop_and_flip
from keras_tx.data.batches import Batches
from keras_tx.data.image_dataset import image_batches
from keras_tx.data.image_list import ImageList, list_folder
from keras_tx.data.label_column import listed_counts
from keras_tx.errors import ConfigError
from keras_tx.heads import ClassifierHead
from keras_tx.models.vit.model import vit
from keras_tx.processing import ImageTransform
from keras_tx.training.evaluation import Evaluation, Sample, evaluate_classes
from keras_tx.training.recipes import muon_recipe
from keras_tx.training.schedules import WarmupCosine
from keras_tx.training.training_job import (
    FINETUNE,
    HEAD,
    SCRATCH,
    JobOptions,
    JobPlan,
    TrainingJob,
    family_and_variant,
    load_checkpoint,
)

SMALL = {"patch_size": 8, "width": 96, "depth": 4, "num_heads": 3, "mlp_dim": 192}  # docs/vit.md
CACHED = 2_000_000_000  # bytes of decoded images that are kept in the folder of the state
SIDES = (48, 64, 96)  # sizes of images for a new model without --model


class ImageJob(TrainingJob):
    """Classes of images."""

    kind: ClassVar[str] = "a folder of images"
    unused: ClassVar[tuple[str, ...]] = (
        *("label", "text", "pair", "separator", "max_length"),
        *("encoding", "quotes"),
    )
    families: ClassVar[tuple[str, ...]] = ("vit",)
    unit: ClassVar[str] = "images"
    metric = "val_accuracy"
    most_epochs: ClassVar[dict[str, int]] = {FINETUNE: 8, SCRATCH: 100, HEAD: 20}

    def __init__(self, path: Path, options: JobOptions) -> None:
        super().__init__(path, options)
        self.images = list_folder(path, options.labels)
        if len(np.unique(self.images.targets)) < 2:
            raise ConfigError(
                f"All images in {str(path)!r} are of one class. Add a subfolder with those of another one."
            )
        self.train, self.validation = self.images.split(options.validation, options.seed)
        self.labels: tuple[str, ...] = self.images.labels or ()

    def describe(self) -> list[str]:
        return [
            f"{self.path.name}: {len(self.images):,} images of {len(self.labels)} classes",
            listed_counts(self.images.counts()),
            f"{len(self.train):,} images for training, {len(self.validation):,} for validation",
        ]

    def choose(self, folder: Path) -> JobPlan:
        self._folder = folder
        options, rows = self.options, len(self.train)
        small = options.batch_size or (32 if rows < 5000 else 64)
        if options.source is not None:
            size = self._loaded.config.size[0]
            batch_size = options.batch_size or 16
            rate = 2e-5 if self.recipe == FINETUNE else 1e-3
            why, optimizer = f"the weights of {options.source}, images of {size} pixels", "AdamW"
            name = options.source
        else:
            batch_size, rate, optimizer = small, 2e-3, "Muon"
            name = options.model or f"vit:{self._side(rows)}"
            why = f"a new ViT for {rows:,} images"
            if options.model is None:
                why += f" of {self._side(rows)} pixels with a convolutional stem"
            why += "; a checkpoint (--from) is usually more accurate"
        plan = JobPlan(name, self.recipe, batch_size, options.learning_rate or rate)
        frozen = "; only its head is trained" if plan.recipe == HEAD else ""
        return plan.because(
            f"Model: {why}{frozen}.",
            f"Recipe: {plan.recipe}, {optimizer} with a learning rate of {plan.learning_rate:g}, batches of "
            f"{batch_size}, shifted and mirrored images.",
        )

    def _side(self, rows: int) -> int:
        return SIDES[(rows >= 2000) + (rows >= 20_000)]

    def _head(self) -> ClassifierHead:
        smoothing = 0.1 if self.recipe != HEAD else 0.0
        return ClassifierHead(len(self.labels), labels=self.labels, label_smoothing=smoothing)

    @functools.cached_property
    def _loaded(self) -> Any:
        """The checkpoint."""
        return load_checkpoint(self.options.source, self._head(), ImageTransform, "a ViT")

    def build(self, plan: JobPlan, folder: Path) -> Any:
        self._folder = folder
        if plan.recipe != SCRATCH:
            return self._loaded
        if self.options.model is not None:
            return vit(family_and_variant(self.options.model, self.families)[1], head=self._head())
        side = int(plan.model.partition(":")[2])
        options: dict[str, Any] = {"stem": "convolutions", "pooling": "average", "head": self._head()}
        return vit("Mu/2", image_size=side, **SMALL, **options)

    def optimizer(self, model: Any, plan: JobPlan) -> Any:
        if plan.recipe != SCRATCH:
            return super().optimizer(model, plan)
        return muon_recipe(plan.epochs * plan.steps, learning_rate=plan.learning_rate)

    def schedule(self, plan: JobPlan) -> Any:
        if plan.recipe != SCRATCH:
            return super().schedule(plan)
        return WarmupCosine(plan.learning_rate, plan.epochs * plan.steps, 0.1, 0.0)

    def batches(self, model: Any, plan: JobPlan) -> tuple[Batches, Batches]:
        transform = model.processing
        train = self.train.part(np.sort(self.chosen(plan, len(self.train))))
        augment = crop_and_flip(max(1, transform.height // 8))
        return (
            self._batches(train, transform, plan, "train", augment=augment),
            self._batches(self.validation, transform, plan, "validation", shuffle=False),
        )

    def _batches(
        self, images: ImageList, transform: Any, plan: JobPlan, part: str | None = None, **options: Any
    ) -> Any:
        """Batches of images; those of a part are decoded once, before the training, if there is space."""
        size = len(images) * transform.height * transform.width * transform.channels
        if part is not None and size <= CACHED:
            options["cache"] = self._folder / f"{part}-{len(images)}.cache"
        options = {"batch_size": plan.batch_size, "seed": self.options.seed, **options}
        options["skip_broken"] = self.options.skip_broken
        return image_batches(images.images, images.targets, transform, classes=self.labels, **options)

    def evaluate(self, model: Any, plan: JobPlan, *, few: bool = False) -> Evaluation:
        images = self.validation.part(np.arange(len(self.validation))[: plan.batch_size if few else None])
        batches = self._batches(images, model.processing, plan, None if few else "validation", shuffle=False)
        logits, targets = [], []
        for index in range(len(batches)):
            pixels, labels = batches[index]
            logits.append(np.asarray(model.predict_on_batch(pixels)))
            targets.append(labels)
        paths = batches.images.images
        if len(paths) != sum(map(len, targets)):  # an image was left out while it was read
            paths = [""] * sum(map(len, targets))

        def sample(row: int) -> Sample:
            path = str(paths[row])
            return Sample(Path(path).name, image=path or None)

        return evaluate_classes(np.concatenate(logits), np.concatenate(targets), self.labels, sample)
