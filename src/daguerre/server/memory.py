"""Memory that was freed, given back to the system: each thread's is kept for that thread otherwise."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _trim() -> Any:
    """glibc's `malloc_trim`; None for another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give it back, where the C library can. Takes milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
