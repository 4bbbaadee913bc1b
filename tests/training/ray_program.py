"""A training on a local Ray cluster of two workers, for tests/training/test_ray.py.

    python -m tests.training.ray_program STORAGE [STEP]

At STEP, in the first attempt, the second worker kills itself with SIGKILL. Prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

BATCH, EPOCHS, EVERY = 8, 3, 3


def train(config: dict[str, Any]) -> None:
    import keras
    import numpy as np

    import keras_tx
    from keras_tx.training.ray import fit_in_worker, join_workers

    join_workers()
    context = ray.train.get_context()
    rank = context.get_world_rank()

    class Kill(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            killed = Path(config["storage"], "killed")
            if rank == 1 and self.steps == config["step"] and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    images = np.tanh(np.random.default_rng(0).standard_normal((32, 8, 8, 3))).astype("float32")
    part = BATCH // context.get_world_size()
    rows = np.arange(32).reshape(-1, BATCH)[:, rank * part : (rank + 1) * part].ravel()
    keras.utils.set_random_seed(0)
    model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, dropout=0.1)
    model.compile(keras_tx.AdamW(1e-2, epsilon=1e-2))
    history = fit_in_worker(
        model,
        (images[rows], rows % 3),
        epochs=EPOCHS,
        every=EVERY,
        batch_size=part,
        callbacks=[Kill()],
        verbose=0,
    )
    sums = [float(np.asarray(weight.value, "float64").sum()) for weight in model.weights]
    content = json.dumps({"losses": history.history["loss"], "sums": sums})
    Path(config["storage"], f"{rank}.json").write_text(content)


def main(storage: str, step: str = "-1") -> None:
    environment = {"env_vars": {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    trainer = JaxTrainer(
        train,
        train_loop_config={"storage": storage, "step": int(step)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="run",
            storage_path=storage,
            failure_config=FailureConfig(max_failures=1),
            worker_runtime_env=environment,
        ),
    )
    result = trainer.fit()
    assert result.metrics is not None
    workers = [json.loads(Path(storage, f"{rank}.json").read_text()) for rank in range(2)]
    reports = len(result.best_checkpoints)
    print(json.dumps({"metrics": result.metrics, "workers": workers, "reports": reports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
