"""What training needs beside `model.fit`."""

from keras_tx.training.optimizers import AdamW

__all__ = ["AdamW"]
