"""A GGUF file as it is, beside llama.cpp with the same file: part "real" of `daguerre bench`.

Each engine is a process of its own that has the file loaded and stays. In every round each writes NEW tokens behind a
prompt of PROMPT, in turn; Daguerre also computes forwards of one and of several rows, and REQUESTS requests at once. A
ratio is the median of those of the rounds. On one thread times are the processor's, else the wall's.

quality  bits per byte of held-out Python: of the file as it is loaded, of its numbers in float32 by PyTorch's modules,
         and of llama.cpp; second halves of windows of WINDOW tokens, as `llama-perplexity` scores them
blocks   no such model is needed: of blocks of 8 that commit 4 tokens a forward by force, one forward has 8 open rows
         behind the 8 clean ones of the block before, and the next has 8 open rows alone
load     the first, which packs the weights and keeps them in an empty folder; and the next, which maps them
memory   of a process, each shared page by its share (PSS), after all rounds
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from daguerre.errors import DaguerreError, InputError
from daguerre.evals.bench.llama_cpp import (
    LineEngine,
    NodeEngine,
    ServerEngine,
    check_packages,
    llama_cpp,
    perplexity_nats,
    proportional_memory,
)
from daguerre.evals.workers import Progress
from daguerre.files import CACHE, cache_folder
from daguerre.models.gguf.facts import stored_kinds
from daguerre.models.gguf.header import Header, is_gguf, read_header, size_of

OURS, FLOAT32, LLAMA = "Daguerre", "float32", "llama.cpp"
PROMPT, NEW = 512, 64
CONTEXT = 256
"""Cached keys behind which rows are timed."""
CROWD_PROMPT, CROWD_NEW = 64, 32
WINDOW, WINDOWS = 512, 8
PAUSE = 0.3
"""Seconds before each timing on several threads: those of the other engine spin for a moment after they are done."""
WARM_UP = 1
COMMAND = (sys.executable, "-m", "daguerre.evals.bench.real_side")


def gguf_file(model: str, packages: str | None) -> Path:
    """The file that is measured. InputError for anything else, and for a folder that has no node-llama-cpp."""
    path = Path(model)
    if not is_gguf(path):
        raise InputError(f"part real measures a GGUF file, and {model} is none: give --model FILE.gguf")
    if packages is not None:
        check_packages(packages)
    return path.resolve()


def measure(model: str, packages: str | None, rounds: int, threads: int, quality: bool, said: Progress) -> Any:
    """All figures with a number of threads. quality: bits per byte, too, which do not depend on it."""
    path = gguf_file(model, packages)
    with ExitStack() as stack:
        cache = stack.enter_context(_fresh_cache())
        loads: dict[str, dict[str, Any]] = {OURS: {"first_seconds": _first_load(path, threads, cache)}}
        ours = stack.enter_context(_engine(threads, cache))
        before = proportional_memory(ours.pid)
        loads[OURS] |= ours.ask("load", model=str(path), threads=threads, backend="native")
        _check_room(path, loads[OURS]["positions"])
        peer, missing = _peer(stack, path, packages, threads, loads)
        texts = ours.ask("texts", windows=WINDOWS, length=WINDOW)
        bits = _bits(path, texts, ours, peer, threads, cache, said) if quality else None
        engines = {OURS: ours} | ({} if peer is None else {LLAMA: peer})
        took = _rounds(engines, texts["prompt"][:PROMPT], rounds, threads, said)
        memory = {name: proportional_memory(engine.pid) for name, engine in engines.items()}
        keys = ours.ask("keys", positions=PROMPT + NEW)["bytes"]
    sides = {name: {"load": loads[name], "pss": memory[name], "rounds": took[name]} for name in took}
    sides[OURS] |= {"pss_before": before, "keys": keys}
    return {"file": _about(path), "sides": sides, "missing": missing, "bits": bits, "sizes": _sizes(threads)}


def _sizes(threads: int) -> dict[str, Any]:
    clock = "the processor's time" if threads == 1 else "wall time"
    crowd = {"crowd_prompt": CROWD_PROMPT, "crowd_new": CROWD_NEW}
    return {
        "prompt": PROMPT,
        "new": NEW,
        "context": CONTEXT,
        "window": WINDOW,
        "windows": WINDOWS,
        "clock": clock,
    } | crowd


def _about(path: Path) -> dict[str, Any]:
    """The file: its name, its bytes, those of them that a token's forward reads, and the types of its tensors."""
    header = read_header(path)
    return {"name": path.name, "bytes": size_of(path), "read": _read_bytes(header), "kinds": stored_kinds(header)}


def _read_bytes(header: Header) -> int:
    """Bytes of all tensors but an embedding beside an output of its own, of which a row is read."""
    apart = "token_embd.weight" if "output.weight" in header.entries else None
    return sum(entry.num_bytes for name, entry in header.entries.items() if name != apart)


def _check_room(path: Path, positions: int) -> None:
    needed = max(PROMPT + NEW + 1, WINDOW)
    if positions < needed:
        raise InputError(f"{path.name} has {positions} positions, and part real writes texts of {needed}")


@contextmanager
def _fresh_cache() -> Iterator[str]:
    """A cache's folder that has nothing but the compiled library, if one is kept."""
    with tempfile.TemporaryDirectory(prefix="daguerre-real-") as made:
        home = cache_folder()
        if home is not None:
            (home / "compiled").mkdir(parents=True, exist_ok=True)
            (Path(made) / "compiled").symlink_to(home / "compiled")
        yield made


@contextmanager
def _engine(threads: int, cache: str) -> Iterator[LineEngine]:
    """Daguerre's process, which has imported all that it needs."""
    engine = LineEngine(COMMAND, threads, {CACHE: cache})
    try:
        engine.ask("ready")
        yield engine
    finally:
        engine.close()


def _first_load(path: Path, threads: int, cache: str) -> float:
    """Seconds of a load that packs the weights, which are kept when it returns."""
    with _engine(threads, cache) as engine:
        seconds: float = engine.ask("load", model=str(path), threads=threads, backend="native")["seconds"]
        engine.finish()
    return seconds


def _peer(
    stack: ExitStack, path: Path, packages: str | None, threads: int, loads: dict[str, Any]
) -> tuple[NodeEngine | ServerEngine | None, str | None]:
    """llama.cpp with the file; or None, and why."""
    try:
        engine = llama_cpp(packages, threads)
        stack.callback(engine.close)
        loads[LLAMA] = engine.load(path, threads, PROMPT + NEW + 64)
    except DaguerreError as error:
        return None, str(error)
    return engine, None


def _bits(
    path: Path,
    texts: dict[str, Any],
    ours: LineEngine,
    peer: NodeEngine | ServerEngine | None,
    threads: int,
    cache: str,
    said: Progress,
) -> dict[str, Any]:
    """Nats of the same tokens by each; and the bytes of their text."""
    windows = texts["windows"]
    nats: dict[str, float | None] = {OURS: _nats(ours, windows, "as loaded", said)}
    with _engine(threads, cache) as reference:
        reference.ask("load", model=str(path), threads=threads, backend="torch", dtype="float32")
        nats[FLOAT32] = _nats(reference, windows, FLOAT32, said)
    if isinstance(peer, NodeEngine):
        nats[LLAMA] = _nats(peer, windows, LLAMA, said)
    elif peer is not None:
        said(f"bits per byte, {LLAMA}", 0, 1)
        nats[LLAMA] = perplexity_nats(path, texts["text"], len(windows), WINDOW, threads)
    return {"bytes": texts["bytes"], "nats": nats}


def _nats(engine: LineEngine, windows: list[list[int]], name: str, said: Progress) -> float:
    total = 0.0
    for number, window in enumerate(windows):
        said(f"bits per byte, {name}", number, len(windows))
        total += engine.ask("nats", window=window)["nats"]
    return total


def _rounds(
    engines: dict[str, Any], prompt: list[int], rounds: int, threads: int, said: Progress
) -> dict[str, list[dict[str, Any]]]:
    """What each engine took in each round, but for those that warm up."""
    took: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for number in range(rounds + WARM_UP):
        for name, engine in engines.items():
            said(name, number, rounds + WARM_UP)
            if threads > 1:
                time.sleep(PAUSE)
            took[name].append(engine.ask("write", prompt=prompt, num=NEW))
        said("rows and requests", number, rounds + WARM_UP)
        took[OURS][-1] |= engines[OURS].ask("rows", context=CONTEXT)
        took[OURS][-1] |= engines[OURS].ask("crowd", prompt=prompt, each=CROWD_PROMPT, new=CROWD_NEW)
    return {name: found[WARM_UP:] for name, found in took.items()}
