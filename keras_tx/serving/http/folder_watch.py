"""Loads new exports of the folders that a server serves."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from keras_tx.errors import KerasTxError
from keras_tx.serving.http.metrics import Metrics
from keras_tx.serving.http.model_set import ModelSet
from keras_tx.serving.http.request_log import log_event

State = tuple[tuple[str, int, int, int], ...]  # of each file: its path, inode, size and time of change


def folder_state(path: Path) -> State:
    """The files of a folder; empty if it does not exist, or is replaced during the call."""
    files = []
    try:
        for root, _, names in os.walk(path):
            for name in names:
                file = os.path.join(root, name)
                info = os.stat(file)
                files.append((file, info.st_ino, info.st_size, info.st_mtime_ns))
    except OSError:
        return ()
    return tuple(sorted(files))


class FolderWatch:
    """Replaces models whose folder has changed, and keeps a model whose new export is damaged.

    A folder is loaded when it has not changed for an interval, so that a copy is complete.

    Args:
        models: the models.
        metrics: count what is loaded and what is refused.
        seconds: interval between two looks at the folders.
    """

    def __init__(self, models: ModelSet, metrics: Metrics, seconds: float) -> None:
        self._models = models
        self._metrics = metrics
        self._seconds = seconds
        self._served = {name: folder_state(path) for name, path in models.folders.items()}
        self._latest = dict(self._served)

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            for name, path in self._models.folders.items():
                state = await asyncio.to_thread(folder_state, path)
                stable = state == self._latest[name]
                self._latest[name] = state
                if state and stable and state != self._served[name]:
                    self._served[name] = state  # a refused export is not loaded again
                    await self._replace(name)

    async def _replace(self, name: str) -> None:
        try:
            await self._models.replace(name, verify=True)
        except Exception as error:  # of any kind: the old model continues
            self._metrics.reloads.labels(name, "refused").inc()
            unexpected = None if isinstance(error, KerasTxError) else error
            log_event(
                "reload refused", level=logging.ERROR, exception=unexpected, model=name, message=str(error)
            )
        else:
            self._metrics.reloads.labels(name, "loaded").inc()
            log_event("reloaded", model=name)
