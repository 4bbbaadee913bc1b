"""Recipes, schedules and resumable training."""

from keras_tx.training.recipes import finetune_recipe, pretrain_recipe
from keras_tx.training.resuming import fit_resumable
from keras_tx.training.schedules import WarmupCosine, WarmupLinear

__all__ = ["WarmupCosine", "WarmupLinear", "finetune_recipe", "fit_resumable", "pretrain_recipe"]
