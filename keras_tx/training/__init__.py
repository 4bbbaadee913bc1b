"""Recipes, schedules and resumable training."""

from keras_tx.training.recipes import finetune_recipe, pretrain_recipe, t5_recipe, transformer_recipe
from keras_tx.training.resuming import fit_resumable
from keras_tx.training.schedules import InverseSquareRoot, WarmupCosine, WarmupLinear

__all__ = [
    "InverseSquareRoot",
    "WarmupCosine",
    "WarmupLinear",
    "finetune_recipe",
    "fit_resumable",
    "pretrain_recipe",
    "t5_recipe",
    "transformer_recipe",
]
