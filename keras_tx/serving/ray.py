"""Ray Serve: the HTTP server as a deployment, whose replicas start on several machines."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.serve  # pyright: ignore[reportMissingImports]
from starlette.types import Receive, Scope, Send

from keras_tx.errors import ConfigError
from keras_tx.serving.http.api_keys import ApiKeys
from keras_tx.serving.http.application import Application
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ModelOptions
from keras_tx.serving.http.origins import Origins
from keras_tx.serving.http.request_log import log_event, write_logs

NAME = "keras-tx"
DRAIN_SECONDS = 30.0


def ray_application(
    folders: Mapping[str, str | os.PathLike[str]],
    options: ModelOptions | None = None,
    *,
    limits: Limits | None = None,
    keys: ApiKeys | None = None,
    origins: Origins | None = None,
    **deployment: Any,
) -> Any:
    """Returns the server of `keras-tx serve` as an application of Ray Serve, with all models in each replica.

    A replica gets requests when its models are loaded. Its responses are streamed, and its work stops when a
    client leaves. When it is replaced, its running requests are answered.

        from ray import serve
        from keras_tx.serving.ray import ray_application

        application = ray_application(
            {"reviews": "/shared/reviews", "poet": "/shared/poet"},
            autoscaling_config={"min_replicas": 2, "max_replicas": 8, "target_ongoing_requests": 8},
            ray_actor_options={"num_cpus": 4},
        )
        serve.run(application)

    Args:
        folders: the exported folder of each name, at the same path on each machine.
        options: how models are loaded and batched. By default, a model has as many threads as a replica has
            CPUs.
        limits: limits of requests of each replica.
        keys: keys of clients; without any, every client is served.
        origins: the web pages that may send requests.
        deployment: options of `ray.serve.deployment`, such as num_replicas, autoscaling_config and
            ray_actor_options. By default a replica has 1 CPU, accepts `limits.max_concurrent` requests at a
            time, and has 30 seconds to answer them before it stops.

    Returns:
        The application, for `ray.serve.run`.

    Raises:
        ConfigError: if there are no folders, or the CPUs of a replica are not a whole number.
    """
    paths = {name: Path(folder).absolute() for name, folder in folders.items()}
    if not paths:
        raise ConfigError("folders is empty, expected at least one exported folder.")
    limits = limits or Limits()
    cpus = _cpus(deployment.get("ray_actor_options") or {})
    options = options or ModelOptions()
    if options.threads is None:
        options = dataclasses.replace(options, threads=cpus)
    defaults = {
        "name": NAME,
        "max_ongoing_requests": limits.max_concurrent,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
    }

    def build() -> _LoadedApplication:  # in each replica
        write_logs()
        application = Application(paths, options, limits=limits, keys=keys, origins=origins)
        return _LoadedApplication(application)

    return ray.serve.deployment(**{**defaults, **deployment})(ray.serve.ingress(build)()).bind()


class _LoadedApplication:
    """An application whose start ends when its models are loaded, as Ray Serve expects it."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        await receive()
        try:
            await self._application.models.load()
        except Exception as error:
            log_event("loading failed", level=logging.ERROR, message=str(error))
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._application.models.close()
        await send({"type": "lifespan.shutdown.complete"})


def _cpus(actor_options: Mapping[str, Any]) -> int:
    """The CPUs of a replica: those are the threads of its models."""
    cpus = actor_options.get("num_cpus", 1)
    if isinstance(cpus, bool) or not isinstance(cpus, int | float) or cpus < 0:
        raise ConfigError(f"num_cpus of ray_actor_options is {cpus!r}, expected a number of CPUs.")
    return max(1, int(cpus))
