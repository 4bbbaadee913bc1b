"""Training with Ray Train: one JAX process per worker, which train one model together."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import ray.train  # pyright: ignore[reportMissingImports]
from ray.train.collective import broadcast_from_rank_zero  # pyright: ignore[reportMissingImports]
from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]

from keras_tx.errors import ConfigError
from keras_tx.training.process_group import process_index
from keras_tx.training.resuming import fit_resumable

STATE = "run.state"


def join_workers() -> None:
    """Connects this Ray Train worker to the others, so that they train one model together.

    Call it in the function of the trainer, before the model is created. Each worker then passes its own part
    of every batch to `fit` or `fit_in_worker`, as on several machines without Ray:

        from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
        from ray.train.v2.jax import JaxTrainer
        from keras_tx.training.ray import fit_in_worker, join_workers

        def train():
            join_workers()
            model = keras_tx.vit("S/16", num_classes=10)
            model.compile(keras_tx.deit_recipe(model, steps))
            fit_in_worker(model, my_part(get_context().get_world_rank()), epochs=10, every=100)

        JaxTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
            run_config=RunConfig(
                storage_path="/shared/runs",
                failure_config=FailureConfig(max_failures=3),
                worker_runtime_env={"env_vars": {"KERAS_BACKEND": "jax"}},
            ),
        ).fit()

    With GPUs or TPUs, JaxTrainer connects the processes; with CPUs, this function does. On both, it sets a
    `keras.distribution.DataParallel`, unless the function has set a distribution.

    Raises:
        ConfigError: the backend of Keras is not JAX.
        RuntimeError: the process is not a worker of Ray Train.
    """
    if keras.backend.backend() != "jax":
        raise ConfigError(
            f"The backend of this worker is {keras.backend.backend()!r}, but only 'jax' trains with several "
            'processes. Pass RunConfig(worker_runtime_env={"env_vars": {"KERAS_BACKEND": "jax"}}).'
        )
    import jax

    context = ray.train.get_context()
    if not jax.distributed.is_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        first = context.get_world_rank() == 0
        address = broadcast_from_rank_zero(_free_address() if first else None)
        keras.distribution.initialize(address, context.get_world_size(), context.get_world_rank())
    if keras.distribution.distribution() is None:
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


def fit_in_worker(
    model: Any, data: Any, *, epochs: int, callbacks: Sequence[Any] = (), **options: Any
) -> keras.callbacks.History:
    """`keras_tx.fit_resumable` in a worker of Ray Train; the saved states are checkpoints of Ray.

    If a worker fails, Ray starts all of them again, on other machines if necessary, and the training
    continues after the last checkpoint. Metrics of whole epochs are reported to Ray with each checkpoint.

    Args:
        model: a compiled model, the same in each worker.
        data: the part of this worker of every batch, in one of the forms of `fit_resumable`.
        epochs: the number of all epochs.
        callbacks: as for `fit_resumable`.
        options: the other options of `fit_resumable`, such as `every`, the number of steps between two saves.

    Returns:
        The History of all epochs.

    Raises:
        ConfigError: as in `fit_resumable`.
        RuntimeError: the process is not a worker of Ray Train.
    """
    checkpoint = ray.train.get_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STATE)
        if checkpoint is not None:
            with checkpoint.as_directory() as saved:
                shutil.copyfile(Path(saved, STATE), path)
        return fit_resumable(
            model, data, path, epochs=epochs, callbacks=[*callbacks, _Report(path)], **options
        )


class _Report(keras.callbacks.Callback):
    """Reports each saved state to Ray, which waits for all workers."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def saved(self, epoch: int, step: int, history: dict[str, list[float]]) -> None:
        metrics = {"epoch": epoch, "step": step, **{name: values[-1] for name, values in history.items()}}
        first = process_index() == 0
        checkpoint = ray.train.Checkpoint.from_directory(self.path.parent) if first else None
        ray.train.report(metrics, checkpoint=checkpoint)


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{get_node_ip_address()}:{free.getsockname()[1]}"
