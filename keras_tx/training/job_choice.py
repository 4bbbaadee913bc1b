"""The kind of training for a file or folder."""

from __future__ import annotations

from pathlib import Path

from keras_tx.data.table_file import SUFFIXES
from keras_tx.errors import ConfigError
from keras_tx.training.training_job import JobOptions, TrainingJob

QUESTIONS = ".json"
TEXTS = (".txt", ".md", ".rst", ".text", ".tex", "")


def open_job(path: Path, options: JobOptions) -> TrainingJob:
    """Reads the data, and returns its training.

    Args:
        path: a folder with a subfolder of images per class, a CSV, TSV or JSON Lines file of texts, a JSON
            file in the format of SQuAD, or a text file.
        options: options of the training.

    Raises:
        KerasTxError: the data cannot be read, or does not match the options.
    """
    check_data(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        from keras_tx.training.image_job import ImageJob

        return ImageJob(path, options)
    if suffix in SUFFIXES:
        from keras_tx.training.text_jobs import TableJob

        return TableJob(path, options)
    if suffix == QUESTIONS:
        from keras_tx.training.text_jobs import QuestionJob

        return QuestionJob(path, options)
    from keras_tx.training.language_job import LanguageJob

    return LanguageJob(path, options)


def check_data(path: Path) -> None:
    """Raises a ConfigError for a path without training data of a known kind."""
    tables = ", ".join(SUFFIXES)
    known = f"a folder with a subfolder of images per class, a table ({tables}), a {QUESTIONS} file in the "
    known += "format of SQuAD, or a text file (.txt)"
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Pass {known}.")
    if path.is_dir():
        return
    if path.suffix.lower() not in (*SUFFIXES, QUESTIONS, *TEXTS):
        raise ConfigError(f"{path} is not data for training. Pass {known}.")
