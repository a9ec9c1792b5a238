"""The server as a Ray Serve application: replicas with an engine each, more of them the more requests wait.

    pip install 'daguerre[ray]'
    serve run examples.ray_serve:application model=default min_replicas=2 max_replicas=8

Every interface of `daguerre serve` is there, at the address of Ray's proxy. A replica whose engine has stopped is
replaced; the requests that it had end with an error, none of them silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ray import serve

import daguerre
from daguerre.http.settings import Settings
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool


@dataclass(frozen=True)
class Options:
    """What `serve run` takes as NAME=VALUE.

    model         a folder, a name on a hub, or "default"; `device` is where it runs, "cpu" or "cuda"
    min_replicas, max_replicas   how many engines there are; `cpus` and `gpus` is what each takes of the cluster
    queue         requests that wait or run, for each replica: with more there will be more replicas
    max_running   samples that share a step of an engine
    timeout       seconds after which a request ends with status 408
    drain         seconds that requests have to end when a replica is taken away
    """

    model: str = "default"
    device: str = "cpu"
    min_replicas: int = 1
    max_replicas: int = 4
    queue: float = 16.0
    max_running: int = 64
    cpus: float = 1.0
    gpus: float = 0.0
    timeout: float = 300.0
    drain: float = 30.0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """From texts. ValueError for a name that is none of them."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        if strange := set(given) - set(kinds):
            raise ValueError(f"unknown option {min(strange)!r}: choose of {', '.join(kinds)}")
        return cls(**{name: kinds[name](value) for name, value in given.items()})


@serve.deployment
@serve.ingress()
class Replica:
    """One engine and the routes to it."""

    def __init__(self, options: Options) -> None:
        load = lambda: daguerre.load(options.model, device=options.device)  # noqa: E731
        self._settings = Settings(timeout=options.timeout, drain=options.drain)
        self._pool = ModelPool({options.model: load}, max_running=options.max_running)
        self._pool.get()  # before it is given requests

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self._pool, self._settings)

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        for one in self._pool.loaded:
            if one.engine.error is not None:
                raise one.engine.error


def application(args: Mapping[str, Any]) -> serve.Application:
    """The application, for `serve run` and `serve.run`."""
    options = Options.read(args)
    scaling = {
        "min_replicas": options.min_replicas,
        "max_replicas": max(options.min_replicas, options.max_replicas),
        "target_ongoing_requests": options.queue,
        "upscale_delay_s": 2.0,
        "downscale_delay_s": 60.0,
        "metrics_interval_s": 1.0,
        "look_back_period_s": 5.0,
    }
    return Replica.options(
        autoscaling_config=scaling,
        max_ongoing_requests=4 * options.max_running,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        graceful_shutdown_timeout_s=options.drain,
        health_check_period_s=2.0,
    ).bind(options)
