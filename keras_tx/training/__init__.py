"""What training needs beside `model.fit`."""

from keras_tx.training.optimizers import AdamW
from keras_tx.training.recipes import finetune_recipe
from keras_tx.training.schedules import WarmupCosine, WarmupLinear

__all__ = ["AdamW", "WarmupCosine", "WarmupLinear", "finetune_recipe"]
