"""Daguerre trains and runs diffusion language models, on a laptop CPU or a GPU.

The public names are imported on first use: `import daguerre` alone loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daguerre.lazily import names_from

if TYPE_CHECKING:
    from daguerre.canvas import Canvas, Decision
    from daguerre.decoding.pins import Pin
    from daguerre.decoding.request import Decode
    from daguerre.decoding.result import Result, StreamEvent
    from daguerre.decoding.running import Running
    from daguerre.decoding.steering import Operation, Steering
    from daguerre.errors import DaguerreError
    from daguerre.model import Model, load
    from daguerre.models.chat_format.chat_format import ChatFormat
    from daguerre.models.readers import load_tokenizer
    from daguerre.models.tokenizer import Tokenizer
    from daguerre.trace import Trace

    __version__: str

_HOMES = {
    "Canvas": "daguerre.canvas",
    "ChatFormat": "daguerre.models.chat_format.chat_format",
    "DaguerreError": "daguerre.errors",
    "Decision": "daguerre.canvas",
    "Decode": "daguerre.decoding.request",
    "Model": "daguerre.model",
    "Operation": "daguerre.decoding.steering",
    "Pin": "daguerre.decoding.pins",
    "Result": "daguerre.decoding.result",
    "Running": "daguerre.decoding.running",
    "Steering": "daguerre.decoding.steering",
    "StreamEvent": "daguerre.decoding.result",
    "Tokenizer": "daguerre.models.tokenizer",
    "Trace": "daguerre.trace",
    "load": "daguerre.model",
    "load_tokenizer": "daguerre.models.readers",
}

__all__ = [
    "Canvas",
    "ChatFormat",
    "DaguerreError",
    "Decision",
    "Decode",
    "Model",
    "Operation",
    "Pin",
    "Result",
    "Running",
    "Steering",
    "StreamEvent",
    "Tokenizer",
    "Trace",
    "__version__",
    "load",
    "load_tokenizer",
]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("daguerre")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


_found = names_from(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    return _found(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
