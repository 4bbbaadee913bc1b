"""Recipes, schedules and resumable training."""

from keras_tx.training.distribution import model_parallel
from keras_tx.training.probes import k_shot_accuracy, linear_probe
from keras_tx.training.recipes import (
    bert_recipe,
    deit3_recipe,
    deit_recipe,
    finetune_recipe,
    muon_recipe,
    pretrain_recipe,
    t5_recipe,
    transformer_recipe,
)
from keras_tx.training.resuming import fit_resumable
from keras_tx.training.schedules import InverseSquareRoot, WarmupCosine, WarmupLinear

__all__ = [
    "InverseSquareRoot",
    "WarmupCosine",
    "WarmupLinear",
    "bert_recipe",
    "deit3_recipe",
    "deit_recipe",
    "finetune_recipe",
    "fit_resumable",
    "k_shot_accuracy",
    "linear_probe",
    "model_parallel",
    "muon_recipe",
    "pretrain_recipe",
    "t5_recipe",
    "transformer_recipe",
]
