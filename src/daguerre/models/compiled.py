"""Compiled execution: steps of decoding run code that PyTorch's compiler made ahead of time for these weights.

`models.step.Step` is compiled once for any number of rows and keys (AOTInductor, weights frozen and packed), and kept
on disk with its weights: a second start loads it, and needs no compiler. What it leaves out of lean execution is the
work of Python and PyTorch between operations. All else, a long prompt, a batch, 8-bit keys and values, no cache at all,
runs as lean.

Letters: B requests, R rows, A asked rows, C keys, D width, V vocabulary.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.files import atomic_write, cache_folder
from daguerre.models.backbone import Backbone
from daguerre.models.cache import ROUND, Cache
from daguerre.models.layout import Layout
from daguerre.models.lean import PACKED, LeanBackbone, cannot_pack, chunks
from daguerre.models.step import Step

FEW = 64
"""Rows; more of them that nobody asks for a law run as lean: there the products are what takes time."""
TOGETHER = {torch.float32: 4, torch.bfloat16: 2}
"""Rows of a step come in multiples of it: fewer are summed in another order."""
MOST_ROWS, MOST_KEYS = 1 << 14, 1 << 24
"""What the code is compiled for."""
MAX_BYTES = 2 << 30
"""Of all compiled code in the folder; beyond it what was used least recently goes."""

Run = Callable[[list[Tensor]], list[Tensor]]


class CompiledBackbone:
    """A `Backbone` for inference on a CPU: the same calls, the same answers to rounding.

    Holds the compiled step and its packed weights, and a `LeanBackbone` for all that is no step. Safe to use from
    several threads, each with its own cache. UnsupportedError where this model cannot be compiled here.
    """

    def __init__(self, backbone: Backbone, folder: Path | None = None) -> None:
        reason = cannot_compile(backbone)
        if reason:
            raise UnsupportedError(f'execution "compiled" cannot run {reason}: use execution="lean" or leave it out')
        self.config, self.embedding = backbone.config, backbone.embedding
        self._lean = LeanBackbone(backbone)
        self.drafting = self._lean.drafting
        self._run = load_step(backbone, folder or compiled_folder())
        self._numbers = torch.arange(2 * self.config.max_positions)

    @torch.inference_mode()
    def __call__(
        self, tokens_BR: Tensor, layout: Layout, cache: Cache | None = None, asked_A: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, R, D), or those of the asked rows, ascending, (B, A, D); the cache is read and filled as by
        lean.

        Whether a row runs compiled depends on what is asked and what is settled before it alone, and in float32
        settled rows that are multiplied with different numbers of keys are steps of their own; so a row that tells the
        autoregressive law has the same bits whatever is computed beside it.
        """
        batch, rows = tokens_BR.shape
        first = 0 if asked_A is None else min(int(asked_A[0]), layout.num_settled)
        law = asked_A is not None and first < layout.num_settled
        if cache is None or cache.scales is not None or batch > 1 or not (law or rows - first <= FEW):
            return self._lean(tokens_BR, layout, cache, asked_A)
        if first > FEW:
            assert asked_A is not None
            tokens_BR, layout, asked_A = settle_first(self._lean, first, tokens_BR, layout, cache, asked_A)
        edges = step_edges(layout, cache, self.embedding.weight.dtype)
        if len(edges) == 2:
            return self._step(tokens_BR[0], layout, cache, asked_A)[None]
        steps = [
            self._step(tokens_BR[0, start:stop], part(layout, start, stop), cache, None)
            for start, stop in zip(edges, edges[1:], strict=False)
        ]
        hidden = torch.cat(steps)
        return (hidden if asked_A is None else hidden[asked_A])[None]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        return self._lean.logits(hidden)

    def _step(self, tokens_R: Tensor, layout: Layout, cache: Cache, asked_A: Tensor | None) -> Tensor:
        """Hidden states (A, D) of a forward that runs compiled."""
        rows, past, dtype = len(tokens_R), cache.length, self.embedding.weight.dtype
        bias = bias_of(layout, cache, num_filled(rows, dtype), -(-(past + rows) // ROUND) * ROUND)
        stored = cache.stored(rows, len(bias) - rows)
        numbers = self._numbers if past + len(bias) <= len(self._numbers) else torch.arange(past + len(bias))
        asked = numbers[: len(bias)]
        if asked_A is not None and len(asked_A) < rows:
            asked = filled(asked_A, num_filled(len(asked_A), dtype))
        tokens, position = (filled(x, len(bias)) for x in (tokens_R, layout.rows.position[0]))
        hidden = self._run([tokens, position, numbers[past : past + len(bias)], bias, asked, *stored])[0]
        if layout.num_settled:
            cache.commit(layout.rows[: layout.num_settled])
        return hidden[: rows if asked_A is None else len(asked_A)]


def num_filled(rows: int, dtype: torch.dtype) -> int:
    """Rows of a step that has so many to compute."""
    return -(-rows // TOGETHER[dtype]) * TOGETHER[dtype]


def filled(x: Tensor, num_rows: int) -> Tensor:
    """Rows, and behind them zeros up to `num_rows`: rows that are computed for nothing."""
    return F.pad(x, (0, num_rows - len(x))) if len(x) < num_rows else x.contiguous()


def settle_first(
    executor: Callable[[Tensor, Layout, Cache, Tensor], Tensor],
    first: int,
    tokens_BR: Tensor,
    layout: Layout,
    cache: Cache,
    asked_A: Tensor,
) -> tuple[Tensor, Layout, Tensor]:
    """Settle the first rows of a forward, of which none is asked; what is left: tokens, layout and asked rows."""
    settled = replace(part(layout, 0, first), alone=0, among=None)
    executor(tokens_BR[:, :first], settled, cache, torch.tensor([first - 1], device=tokens_BR.device))
    return tokens_BR[:, first:], part(layout, first, tokens_BR.shape[1]), asked_A - first


def part(layout: Layout, start: int, stop: int) -> Layout:
    """Rows [start, stop) of a layout, the settled ones before them being cached."""
    if (start, stop) == (0, layout.rows.num_rows):
        return layout
    num_settled = max(0, min(stop, layout.num_settled) - start)
    alone = min(num_settled, layout.alone)
    return replace(layout, rows=layout.rows[start:stop], num_settled=num_settled, alone=alone, among=None)


def step_edges(layout: Layout, cache: Cache, dtype: torch.dtype) -> list[int]:
    """Where the rows of a forward are cut into steps.

    In float32 a product with more keys sums those that have a weight in another order, so settled rows of causal
    context run with as many keys as their place needs, in multiples of ROUND. In bfloat16 it does not.
    """
    rows, num_settled, past = layout.rows.num_rows, layout.num_settled, cache.length
    if dtype != torch.float32 or layout.context != "causal" or not num_settled:
        return [0, rows]
    cuts = list(range(-past % ROUND or ROUND, num_settled, ROUND))
    if -(-(past + num_settled) // ROUND) != -(-(past + rows) // ROUND):
        cuts.append(num_settled)
    return [0, *cuts, rows]


def bias_of(layout: Layout, cache: Cache, num_rows: int, num_keys: int) -> Tensor:
    """What is added to the scores (R, C) of the rows behind those of a cache, rows and keys filled up: what the last
    rows write behind the others is seen by no row that is asked.
    """
    dtype, least = cache.keys.dtype, torch.finfo(cache.keys.dtype).min
    bias = torch.zeros(num_rows, num_keys, dtype=dtype, device=cache.keys.device)
    for chunk in chunks(layout, cache, dtype):
        if chunk.num_seen < num_keys:
            bias[chunk.start : chunk.stop, chunk.num_seen :] = least
        if chunk.bias is not None:
            bias[chunk.start : chunk.stop, chunk.first : chunk.num_seen] = chunk.bias[0, 0]
    return bias


def cannot_compile(backbone: Backbone) -> str | None:
    """Why this backbone cannot run compiled, or None when it can, given a compiler."""
    if backbone.config.context == "full":
        return "a model with full context, where no row settles and there is no step"
    return cannot_pack(backbone)


def compiled_folder() -> Path | None:
    """Where compiled code is kept: `compiled` in the folder of `files.cache_folder`; None for nowhere."""
    folder = cache_folder()
    return None if folder is None else folder / "compiled"


def load_step(backbone: Backbone, folder: Path | None) -> Run:
    """The compiled step of these weights: from the folder, or compiled now and kept there where that can be done.

    UnsupportedError without a C++ compiler, when one is needed.
    """
    path = None if folder is None else folder / f"{key_of(backbone)}.pt2"
    if path is not None and path.exists():
        with suppress(Exception):  # whatever a damaged file makes the loader raise
            run = _loaded(path)
            os.utime(path)
            return run
    with tempfile.TemporaryDirectory() as beside:
        made = _compile(backbone, Path(beside) / "step.pt2")
        if path is not None:
            with suppress(OSError):  # a full disk, a folder that is not ours
                _keep(made, path)
        return _loaded(made)


def _loaded(path: Path) -> Run:
    package: Any = torch._inductor.aoti_load_package(str(path))
    run: Run = package.loader.boxed_run
    return run


def _keep(made: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(made.read_bytes())
    files = [(held.stat(), held) for held in path.parent.glob("*.pt2")]
    total = 0
    for stat, held in sorted(files, key=lambda file: file[0].st_mtime_ns, reverse=True):
        total += stat.st_size
        if total > MAX_BYTES:
            held.unlink(missing_ok=True)


def key_of(backbone: Backbone) -> str:
    """A hash of what compiled code depends on: weights, facts, PyTorch, the processor's instructions, our source."""
    weight = backbone.embedding.weight
    here = Path(__file__).parent
    facts = (repr(backbone.config), weight.dtype, torch.__version__, torch.backends.cpu.get_cpu_capability())
    key = hashlib.sha256(repr(facts).encode())
    for source in ("compiled.py", "step.py"):
        key.update((here / source).read_bytes())
    for name, parameter in sorted(backbone.named_parameters()):
        key.update(name.encode())
        key.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return key.hexdigest()


@torch.no_grad()
def _compile(backbone: Backbone, path: Path) -> Path:
    """Compile a step, any number of rows and keys, to a file. Takes seconds to minutes."""
    find_compiler()
    config, dtype = backbone.config, backbone.embedding.weight.dtype
    rows, keys, capacity = PACKED, 2 * ROUND, 3 * ROUND  # weights are packed for so many rows
    tokens, position, place, asked = (torch.arange(num) for num in (rows, rows, rows, rows // 2))  # none twice
    shape = (config.num_kv_heads, capacity, config.head_width)
    stored = [torch.zeros(shape, dtype=dtype) for _ in range(2 * config.num_layers)]
    bias = torch.zeros(rows, keys, dtype=dtype)
    num_rows = torch.export.Dim("rows", min=TOGETHER[dtype], max=MOST_ROWS)
    num_asked = torch.export.Dim("asked", min=TOGETHER[dtype], max=MOST_ROWS)
    num_keys = torch.export.Dim("keys", min=ROUND, max=MOST_KEYS)
    room = torch.export.Dim("capacity", min=ROUND, max=MOST_KEYS)
    shapes = {
        **{name: {0: num_rows} for name in ("tokens", "position", "place")},
        "bias": {0: num_rows, 1: num_keys},
        "asked": {0: num_asked},
        "stored": [{1: room} for _ in stored],
    }
    given = (tokens, position, place, bias, asked, stored)
    options = {"freezing": True, "cpp.threads": 1}  # what is not a product is too little for threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its own parts
        exported = torch.export.export(Step(backbone).eval(), given, dynamic_shapes=shapes)
        made = torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
    return Path(made)


def find_compiler() -> str:
    """The name of a C++ compiler, that in the environment's CXX first; UnsupportedError without one."""
    named = os.environ.get("CXX")
    found = next(filter(shutil.which, [named] if named else ["g++", "clang++", "c++"]), None)
    if found is None:
        what = f"CXX names {named}, which is not found" if named else "none is found: install g++"
        raise UnsupportedError(f"this execution needs a C++ compiler and {what}, or leave out execution")
    return found
