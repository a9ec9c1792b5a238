"""What a figure was measured with: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import tokenizers

import daguerre
from daguerre.extras import pytorch
from daguerre.models.contention import num_threads
from daguerre.models.processor import instruction_set


def machine_facts(device: Any = "cpu") -> dict[str, Any]:
    """Processor, accelerator and threads, the instruction set that the native backend uses, and versions; None for
    PyTorch's where it is not installed. device: PyTorch's, or its name.
    """
    return {
        "processor": _processor(),
        "instruction_set": instruction_set(),
        "cores": os.cpu_count(),
        "threads": num_threads(),
        "device": _named(str(device)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "daguerre": daguerre.__version__,
        "torch": _version("torch"),
        "numpy": numpy.__version__,
        "tokenizers": tokenizers.__version__,
        "commit": source_commit(),
    }


def _named(device: str) -> str:
    """The name of an accelerator, or the kind of a device."""
    kind = device.partition(":")[0]
    return str(pytorch().cuda.get_device_name(device)) if kind == "cuda" else kind


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def memory(what: str = "VmRSS", process: int | str = "self") -> int:
    """Bytes of a process by the name that Linux has for them in /proc: VmRSS, what is in memory; VmHWM, the most that
    ever was; RssAnon, what is no file's.
    """
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def source_commit() -> str | None:
    """The commit of the checkout that this package runs from, with "+" for uncommitted changes; None outside of one."""
    here = Path(__file__).resolve()
    try:
        tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
        if tracked is None or (commit := _git(here.parent, "rev-parse", "HEAD")) is None:
            return None
        return commit + ("+" if _git(here.parent, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
