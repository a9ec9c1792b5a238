"""The command `doctor`: what this machine has, what is installed and kept, and what would be faster."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from daguerre.commands.loading import AsJson
from daguerre.commands.machine import all_memory, in_words, measure_speed, processor_name
from daguerre.errors import DaguerreError

EXTRAS = {
    "torch": ("torch",),
    "serve": ("fastapi", "uvicorn", "orjson", "prometheus_client"),
    "route": ("aiohttp", "httptools", "ddsketch", "jsonschema"),
    "fit": ("sklearn",),
    "audit": ("cryptography", "rfc8785", "fastjsonschema"),
    "gguf": ("gguf",),
    "train": ("tensorboard", "matplotlib"),
    "data": ("pyarrow",),
    "eval": ("lm_eval",),
}
"""Extras of the package, and the modules of what they bring."""
GPU = Path("/dev/nvidia0")
MOST_WALKED = 20_000
"""Files of a folder whose sizes are added up."""


def doctor(as_json: AsJson = False) -> None:
    """Print what this machine has, what is installed and kept, and what would be faster."""
    facts, advice = facts_of_installation(), list(what_would_be_faster())
    if as_json:
        typer.echo(json.dumps(facts | {"faster": advice}, ensure_ascii=False))
        return
    for name, value in facts.items():
        typer.echo(f"{name:18}{value}")
    typer.echo("\nWhat would be faster:" if advice else "\nNothing is known that would be faster.")
    for line in advice:
        typer.echo(f"  {line}")


def facts_of_installation() -> dict[str, Any]:
    """The machine, the package and its libraries, extras, caches and pulled models, as JSON. PyTorch is not imported,
    nothing is compiled, and nobody is asked.
    """
    import daguerre
    from daguerre.models.backends.library import find_compiler, origin
    from daguerre.models.contention import num_cpus
    from daguerre.models.prebuilt import SOURCES
    from daguerre.models.processor import available, instruction_set

    try:
        compiler = find_compiler()
    except DaguerreError:
        compiler = "none"
    lower = ", ".join(name for name in available() if name != instruction_set())
    return {
        "daguerre": f"{daguerre.__version__}, in {Path(daguerre.__file__).parent}",
        "python": f"{platform.python_version()}, {platform.system()} on {platform.machine()}",
        "processor": f"{processor_name() or 'unknown'}, {num_cpus()} of {os.cpu_count()} processors usable",
        "instruction_set": instruction_set() + (f" (also {lower})" if lower else ""),
        "memory": _memory(),
        "compiler": compiler,
        **{source.name: origin(source) for source in SOURCES},
        "extras": ", ".join(name for name in EXTRAS if has_extra(name)) or "none",
        "not_installed": ", ".join(name for name in EXTRAS if not has_extra(name)) or "none",
        **_kept(),
    }


def _memory() -> str:
    """Memory, and how fast it is read."""
    from daguerre.models.backends.disk import free_memory

    total, free = ("unknown" if num is None else in_words(num) for num in (all_memory(), free_memory()))
    return f"{total}, of which {free} are free; read at {in_words(measure_speed().reading)}/s just now"


def _kept() -> dict[str, Any]:
    """What is in the caches, and how large it is."""
    from daguerre.files import cache_folder
    from daguerre.models.backends import kept_weights
    from daguerre.models.pulling.store import pulled

    home = cache_folder()
    if home is None:
        kept: dict[str, Any] = {"cache": "off: DAGUERRE_CACHE"}
    else:
        packed = sum(entry.num_bytes for entry in kept_weights.entries())
        kept = {
            "cache": str(home),
            "packed_weights": f"{in_words(packed)} (`daguerre cache --clear` deletes them)",
            "compiled": in_words(size_of(home / "compiled")),
        }
    models = pulled()
    kept["pulled"] = ", ".join(f"{', '.join(one.names)} ({in_words(one.size)})" for one in models) or "nothing"
    return kept | {"hub_cache": _hub_cache()}


def _hub_cache() -> str:
    """The cache of the hub's client, and its size."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE)
    return f"{place}: {in_words(size_of(place))}" if place.is_dir() else f"{place}: nothing"


def size_of(place: Path) -> int:
    """The bytes of the files below a folder, of the first MOST_WALKED."""
    total = 0
    for number, (folder, _, files) in enumerate(os.walk(place)):
        if number > MOST_WALKED:
            break
        for name in files:
            path = Path(folder, name)
            total += 0 if path.is_symlink() else path.stat(follow_symlinks=False).st_size
    return total


def has_extra(name: str) -> bool:
    """Whether the modules of an extra are installed; they are not imported."""
    return all(find_spec(module) is not None for module in EXTRAS[name])


def what_would_be_faster() -> Iterator[str]:
    """Advice, a line each, that follows from what is here."""
    from daguerre.files import cache_folder
    from daguerre.models.processor import VARIABLE, available, chosen

    if chosen() is not None and chosen() != available()[-1]:
        yield f"unset {VARIABLE}: it selects {chosen()}, and this processor has {available()[-1]}"
    if not available():
        yield "another processor: this one has no instruction set that the kernels are written for, such as AVX2"
    if cache_folder() is None:
        yield "unset DAGUERRE_CACHE: packed weights and compiled libraries are kept nowhere, and made at each start"
    yield from _about_libraries()
    yield from _about_processors()
    if GPU.exists() and not has_extra("torch"):
        yield "pip install 'daguerre[torch]': there is a GPU, which --device cuda uses with PyTorch"
    elif GPU.exists():
        yield "--device cuda: there is a GPU"


def _about_libraries() -> Iterator[str]:
    from daguerre.models.backends.library import find_compiler, places
    from daguerre.models.prebuilt import SOURCES
    from daguerre.models.processor import compiler_flags

    absent = [source.what for source in SOURCES if not any(map(Path.is_file, places(source, compiler_flags())))]
    if not absent:
        return
    try:
        yield f"a first model: {find_compiler()} then compiles {' and '.join(absent)}, once, in about twenty seconds"
    except DaguerreError:
        yield f"a C++ compiler, such as g++, or a wheel that has {' and '.join(absent)} compiled"


def _about_processors() -> Iterator[str]:
    from daguerre.models.contention import num_cpus

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and 0 < int(threads) < num_cpus():
        yield f"unset OMP_NUM_THREADS: it is {threads}, and {num_cpus()} processors are usable"
    try:
        load = os.getloadavg()[0]
    except OSError:
        return
    if load > num_cpus():
        yield f"fewer programs beside it: {load:.1f} want to compute on {num_cpus()} processors"
