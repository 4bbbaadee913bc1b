"""Hides the messages that TensorFlow prints when it starts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_start() -> Iterator[None]:
    """Captures standard error of the process, and prints it if the body raises.

    TensorFlow's libraries print some twenty lines before a log level can be set. `keras-tx doctor` reports
    the GPUs.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
    except OSError:  # a process without a standard error
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except ModuleNotFoundError:  # its message suffices
            raise
        except BaseException:
            held.seek(0)
            with os.fdopen(os.dup(stderr), "wb") as shown:
                shutil.copyfileobj(held, shown)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def import_keras() -> None:
    """Imports Keras and its backend without messages; the first operation starts the devices."""
    with quiet_start():
        import keras

        keras.ops.zeros((1,))
