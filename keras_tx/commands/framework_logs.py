"""Keeps TensorFlow's talk at start-up off the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what is written to the process's standard error; shows it if the body raises.

    TensorFlow's libraries write some twenty lines before anyone can set a log level, and one line is what an
    error of the command line has. Whether there is a GPU, `keras-tx doctor` says.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except OSError:  # a process without a standard error
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except ModuleNotFoundError:  # says it all by itself
            raise
        except BaseException:
            held.seek(0)
            with os.fdopen(os.dup(kept), "wb") as shown:
                shutil.copyfileobj(held, shown)
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def import_keras() -> None:
    """Keras and its backend, quietly; the first operation is what starts the devices."""
    with quiet_start():
        import keras

        keras.ops.zeros((1,))
