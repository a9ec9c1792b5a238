"""A worker that is killed while it sends its result is an error, not a wait for ever, though others live on."""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from daguerre.errors import DataError
from daguerre.evals.workers import map_examples
from daguerre.train.corpus.parallel import WorkerPool


def killed_while_it_sends(item: int) -> int:
    """Item 0 takes the lock of the pool's pipe, writes the beginning of a result and is killed; the others work."""
    if item:
        return item
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    queue = frame.f_locals["result_queue"]
    queue._wlock.acquire()
    os.write(queue._writer.fileno(), struct.pack("!i", 1000) + b"the beginning")
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize(
    "run", [partial(WorkerPool(2, progress=False).map, label="kill"), partial(map_examples, workers=2)]
)
def test_a_worker_that_is_killed_while_it_sends_is_an_error(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, preloaded: None
) -> None:
    monkeypatch.setattr("daguerre.train.workers.CHECKED", 0.2)
    with pytest.raises(DataError, match="fewer workers"):
        run(killed_while_it_sends, list(range(4)))
