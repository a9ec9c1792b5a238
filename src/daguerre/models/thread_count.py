"""How many threads a computation on the CPU uses: a setting of the process, which PyTorch shares where it is there."""

from __future__ import annotations

import os
import sys
from typing import Any

_chosen: list[int] = []
"""What was set here and PyTorch has not been told; and then nothing."""


def num_threads() -> int:
    """The threads to use: PyTorch's setting where it was imported; else what was set, OMP_NUM_THREADS, or one for each
    CPU that this process may use.
    """
    torch = _torch()
    if torch is None:
        return _chosen[-1] if _chosen else _default()
    if _chosen:
        torch.set_num_threads(_chosen.pop())
    num: int = torch.get_num_threads()
    return num


def set_num_threads(num: int) -> None:
    """Use so many from now on, in PyTorch, too."""
    torch = _torch()
    if torch is None:
        _chosen[:] = [num]
    else:
        torch.set_num_threads(num)


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() and int(given) else num_cpus()


def _torch() -> Any:
    """PyTorch, where it was imported whole."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_num_threads") else None
