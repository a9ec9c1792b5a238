"""The models of a server, by name: each is loaded when it is first asked for, and unloaded if memory is short."""

from __future__ import annotations

import copy
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread
from typing import Any

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.engine.scheduler import EngineLimits
from daguerre.errors import DaguerreError, EngineError, InputError, shown
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.server.bounds import BoundedEngine, SampleCounts

LOG = logging.getLogger("daguerre")
UNLOAD = 3600.0
"""Seconds that requests have to end whose model is unloaded meanwhile."""


class NoSuchModel(InputError):
    """The server has no model of this name."""

    http_status = 404


class CannotLoad(DaguerreError):
    """A model of the server could not be loaded; the next request tries again."""

    http_status = 503


@dataclass(eq=False)
class Served:
    """A model that is loaded, and its engine. created: seconds since 1970."""

    name: str
    model: Model
    engine: BoundedEngine
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_bytes(self) -> int:
        """Memory of the weights."""
        return self.model.denoiser.num_bytes

    @property
    def idle(self) -> bool:
        """Whether nobody is being served."""
        stats = self.engine.stats()
        return not (stats.running or stats.waiting)


class ModelPool:
    """Models by name. The first is the default. Safe to use from any thread: while one is loaded the others are there.

    loaders  how each is loaded
    on_done  is called with the model's name and each job that is done
    read     the shares of the models' weights that were read, by name, as far as loaders tell
    memory   bytes of weights that may be loaded at once; beyond, the idle model that was used the longest ago is
             unloaded. None: no limit
    bounds   what requests may ask for
    """

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], Model]],
        memory: int | None = None,
        read: Mapping[str, float] | None = None,
        **limits: Any,
    ) -> None:
        if not loaders:
            raise InputError("there is no model to serve: name one")
        self._loaders, self._memory, self._limits = dict(loaders), memory, limits
        self.read: Mapping[str, float] = {} if read is None else read
        self._served = OrderedDict[str, Served]()  # the one that was used the longest ago is first
        self._sizes: dict[str, int] = {}
        self.on_done: Callable[[str, Job], None] | None = None
        self.bounds, self._counts = Settings(), SampleCounts()
        self._lock, self._closed = Lock(), False
        self._loading = {name: Lock() for name in self._loaders}

    @property
    def names(self) -> tuple[str, ...]:
        """All models, loaded or not."""
        return tuple(self._loaders)

    def add(self, name: str, loader: Callable[[], Model]) -> None:
        """One more model; one of this name stays as it is."""
        with self._lock:
            self._loading.setdefault(name, Lock())
            self._loaders = {**self._loaders, name: self._loaders.get(name, loader)}  # others read the old one

    @property
    def max_waiting(self) -> int:
        """How many requests of each model may wait."""
        return int(self._limits.get("max_waiting", EngineLimits.max_waiting))

    @property
    def loaded(self) -> tuple[Served, ...]:
        """The models that are loaded."""
        return tuple(self._served.values())

    def get(self, name: str | None = None) -> Served:
        """A model, loaded if it is not. None and "default" are the first one. NoSuchModel for an unknown name,
        CannotLoad where loading fails.

        A model that is unloaded while its caller holds it works until the caller lets go of it.
        """
        if name in (None, "", "default") and name not in self._loaders:
            name = self.names[0]
        if name not in self._loaders:
            raise NoSuchModel(f"there is no model {shown(name)}: ask for one of {', '.join(self.names)}")
        found = self._find(name)
        if found is None:
            with self._loading[name]:
                found = self._find(name) or self._load(name)
        return found

    def _find(self, name: str) -> Served | None:
        with self._lock:
            if name in self._served:
                self._served.move_to_end(name)
            return self._served.get(name)

    def _load(self, name: str) -> Served:
        with self._lock:
            self._make_room(self._sizes.get(name, 0))
        try:
            model = self._loaders[name]()
        except Exception as error:
            LOG.exception("%s could not be loaded", name)
            raise CannotLoad(f"the model {name!r} could not be loaded; the server's log says why") from error
        if model.tokenizer.num_positions is None:
            model = copy.copy(model)
            model.tokenizer = model.tokenizer.limited(model.config.max_positions)
        done = partial(self._done, name)
        engine = BoundedEngine(model, lambda: self.bounds, done, self._counts, **self._limits).start()
        new = Served(name, model, engine)
        weakref.finalize(new, _close_later, engine).atexit = False
        with self._lock:
            if self._closed:
                raise EngineError("the server is stopping: ask another one")
            self._sizes[name] = new.num_bytes
            self._make_room(new.num_bytes)
            self._served[name] = new
        return new

    def _done(self, name: str, job: Job) -> None:
        if self.on_done is not None:
            self.on_done(name, job)

    def _make_room(self, new: int) -> None:
        """Unload idle models until there is room for as many bytes; the caller has the lock."""
        while self._memory is not None and self._served:
            if new + sum(self._sizes[one.name] for one in self.loaded) <= self._memory:
                return
            idle = next((one for one in self.loaded if one.idle), None)
            if idle is None:
                LOG.warning("the models take more memory than they may: all are at work")
                return
            del self._served[idle.name]

    def close(self, drain: float = 0.0) -> None:
        """Stop all engines, each after at most `drain` seconds for what was accepted."""
        end = time.monotonic() + drain
        with self._lock:
            self._closed = True
        for one in self.loaded:
            one.engine.close(max(0.0, end - time.monotonic()))


def _close_later(engine: Engine) -> None:
    """Stop the engine of a model that nobody holds any more; requests that run may end."""
    Thread(target=engine.close, args=(UNLOAD,), name="daguerre-unload", daemon=True).start()
