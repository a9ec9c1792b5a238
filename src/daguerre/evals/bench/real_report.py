"""What part "real" found, as tables, and its targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from daguerre.evals.bench.real import FLOAT32, LLAMA, OURS
from daguerre.evals.bench.real_side import BLOCK, FORCED, REQUESTS
from daguerre.evals.tables import counted, table

AVX2 = "avx2"
MAX_BITS, MAX_MEMORY, MIN_AR, MIN_READ, MIN_BLOCK, MIN_CROWD = 1.003, 1.15, 1.25, 0.85, 2.2, 4.0
MIN_PROMPT, MIN_PROMPT_AVX2 = 2.0, 1.5
MAX_EIGHT = {AVX2: 1.7, "avx512": 1.35, "avx512_vnni": 1.35, "avx512_bf16": 1.35, "amx": 1.15}
"""By instruction set: 8 rows, times one."""
Round = dict[str, Any]


@dataclass(frozen=True)
class Real:
    """The figures with one number of threads."""

    found: dict[str, Any]

    @property
    def rounds(self) -> list[Round]:
        """Daguerre's."""
        out: list[Round] = self.found["sides"][OURS]["rounds"]
        return out

    @property
    def theirs(self) -> list[Round] | None:
        """llama.cpp's; None without it."""
        side = self.found["sides"].get(LLAMA)
        return None if side is None else side["rounds"]

    def of(self, name: str, value: Callable[[Round], float]) -> float | None:
        """The median over the rounds of an engine; None without it."""
        side = self.found["sides"].get(name)
        return None if side is None else statistics.median(map(value, side["rounds"]))

    def times(self, ours: Callable[[Round], float], theirs: Callable[[Round], float] | None = None) -> float | None:
        """How many times llama.cpp's seconds ours are fewer: the median of the rounds; None without it."""
        if self.theirs is None:
            return None
        pairs = zip(self.rounds, self.theirs, strict=True)
        return statistics.median((theirs or ours)(their) / ours(our) for our, their in pairs)

    def bits(self, name: str) -> float | None:
        """Bits per byte; None where they were not measured."""
        bits = self.found["bits"]
        nats = None if bits is None else bits["nats"].get(name)
        return None if nats is None else nats / bits["bytes"] / math.log(2)

    @property
    def eight(self) -> float:
        """A forward of BLOCK rows over one of a row."""
        return statistics.median(one["rows"]["8"] / one["rows"]["1"] for one in self.rounds)

    def crowd(self, part: str) -> float:
        """The tokens a second of REQUESTS requests over those of one; part: "all", or "behind" their prompts."""
        return statistics.median(REQUESTS * one["one"][part] / one["many"][part] for one in self.rounds)

    @property
    def reading(self) -> float:
        """Of the speed of reading memory, that at which a token's forward reads the file's numbers."""
        read = self.found["file"]["read"]
        return statistics.median(read * one["byte"] / one["rows"]["1"] for one in self.rounds)

    @property
    def memory(self) -> float | None:
        """Memory without keys and values, over the file's bytes."""
        side = self.found["sides"][OURS]
        return None if side["pss"] is None else (side["pss"] - side["keys"]) / self.found["file"]["bytes"]


def token(one: Round) -> float:
    """Seconds of a written token."""
    return float(one["token"])


def prompt(one: Round) -> float:
    """Seconds of the prompt."""
    return float(one["prompt"])


def in_blocks(one: Round) -> float:
    """Seconds of a token in blocks of BLOCK, FORCED a forward: two forwards, one of which has the block before."""
    assert BLOCK == 2 * FORCED
    return float(one["rows"]["8"] + one["rows"]["16"]) / BLOCK


def real_table(part: dict[str, Any]) -> str:
    """A table for each number of threads, what llama.cpp is, and what is missing."""
    some = next(iter(part["threads"].values()))
    file, kinds = some["file"], ", ".join(f"{num} {kind}" for kind, num in some["file"]["kinds"].items())
    parts = [f"{file['name']}, {file['bytes'] / 1e6:,.0f} MB ({kinds})."]
    parts += [_table(counted(int(num), "thread"), Real(found)) for num, found in part["threads"].items()]
    sizes = some["sizes"]
    parts.append(
        f"{sizes['new']} tokens behind a prompt of {sizes['prompt']}, medians of interleaved rounds; times of the "
        "processor on one thread, of the wall on more. Bits per byte are those of the second halves of "
        f"{sizes['windows']} windows of {sizes['window']} tokens of held-out Python. Rows are behind "
        f"{sizes['context']} cached keys. {REQUESTS} requests write {sizes['crowd_new']} tokens each behind prompts of "
        f"{sizes['crowd_prompt']}. Blocks are forwards of {BLOCK} open rows, every second one with the {BLOCK} rows of "
        f"the block before, {FORCED} tokens each, whatever the model would have drawn. Memory is proportional (PSS), "
        f"keys and values included. Daguerre has {some['sides'][OURS]['load']['numbers']} where the file's numbers are "
        "not multiplied as they are stored."
    )
    return "\n\n".join([*parts, *_notes(some)])


def _notes(some: dict[str, Any]) -> Iterator[str]:
    if some["missing"] is not None:
        yield f"llama.cpp was not measured: {some['missing']}."
    if LLAMA in some["sides"]:
        load = some["sides"][LLAMA]["load"]
        built = f", products for {load['built']}" if load["built"] else ""
        flags = f"; {load['flags'].strip(' |')}" if load["flags"] else ""
        yield f"llama.cpp: {load['release']}{built}, batches of 512, its defaults otherwise{flags}."


def _table(threads: str, real: Real) -> str:
    return table([threads, "Daguerre", "llama.cpp", "times llama.cpp"], lines(real))


def summary(parts: Iterable[dict[str, Any]]) -> str:
    """One table of many files and machines, a line for each number of threads."""
    header = ["", "bits per byte (float32; llama.cpp)", "load, s: first, next (llama.cpp)",
              "memory, times the file (llama.cpp)", "prompt, times llama.cpp", "`ar`, times llama.cpp",
              f"{BLOCK} rows, times one", f"{REQUESTS} requests, times one",
              f"blocks of {BLOCK}, {FORCED} a forward, times llama.cpp's `ar`"]  # fmt: skip
    rows = [
        [f"{found['file']['name'].removesuffix('.gguf')}, {part['machine']['instruction_set']}, "
         f"{counted(int(threads), 'thread')}", *_short(Real(found))]
        for part in parts for threads, found in part["threads"].items()
    ]  # fmt: skip
    return table(header, rows)


def _short(real: Real) -> list[str]:
    ours, peer, size = real.found["sides"][OURS], real.found["sides"].get(LLAMA), real.found["file"]["bytes"]
    bits = [_number(real.bits(name), ".4f") for name in (OURS, FLOAT32, LLAMA)]
    loads = f"{ours['load']['first_seconds']:.1f}, {ours['load']['seconds']:.1f}"
    memory = [_number(None if pss is None else pss / size, ".2f") for pss in (ours["pss"], peer and peer["pss"])]
    return [
        f"{bits[0]} ({bits[1]}; {bits[2] or 'none'})" if bits[0] else "",
        loads + (f" ({peer['load']['seconds']:.1f})" if peer else ""),
        memory[0] + (f" ({memory[1]})" if memory[1] else ""),
        *(_times(real.times(value)) for value in (prompt, token)),
        f"{real.eight:.2f}", f"{real.crowd('behind'):.1f}", _times(real.times(in_blocks, token)),
    ]  # fmt: skip


def lines(real: Real) -> list[list[str]]:
    """What is measured, Daguerre's figure, llama.cpp's, and how many times as good that is."""
    ours, peer, sizes = real.found["sides"][OURS], real.found["sides"].get(LLAMA), real.found["sizes"]
    load = ours["load"]
    one_token = [_ms(real.of(name, token)) for name in (OURS, LLAMA)] + [_times(real.times(token))]
    read = [_ms(real.of(name, prompt), sizes["prompt"]) for name in (OURS, LLAMA)] + [_times(real.times(prompt))]
    gain, behind = real.crowd("all"), real.crowd("behind")
    found = [
        ["bits per byte (float32: " + _number(real.bits(FLOAT32), ".4f") + ")",
         *(_number(real.bits(name), ".4f") for name in (OURS, LLAMA)), ""],
        ["load, s: the first, and the next", f"{load['first_seconds']:.1f}, {load['seconds']:.1f}",
         "" if peer is None else f"{peer['load']['seconds']:.1f}", ""],
        ["memory, MB", _mb(ours["pss"]), "" if peer is None else _mb(peer["pss"]), ""],
        ["of it the process before it loads, MB", _mb(ours["pss_before"]), "", ""],
        [f"of it keys and values of {sizes['prompt'] + sizes['new']} tokens, MB", _mb(ours["keys"]), "", ""],
        [f"ms a token of a prompt of {sizes['prompt']}", *read],
        ["ms a token, `ar`", *one_token],
        ["of memory's speed, one row", f"{real.reading:.0%}", "", ""],
        [f"{BLOCK} rows, times one", f"{real.eight:.2f}", "", ""],
        [f"{REQUESTS} requests, times the tokens a second of one (their prompts included)",
         f"{behind:.1f} ({gain:.1f})", "", ""],
        [f"ms a token, blocks of {BLOCK} forced to {FORCED} a forward, beside `ar`", _ms(real.of(OURS, in_blocks)),
         one_token[1], _times(real.times(in_blocks, token))],
    ]  # fmt: skip
    return found if real.found["bits"] is not None else found[1:]


def _ms(seconds: float | None, tokens: int = 1) -> str:
    return "" if seconds is None else f"{1e3 * seconds / tokens:.3g}"


def _mb(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1e6:,.0f}"


def _times(value: float | None) -> str:
    return _number(value, ".2f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def real_bars(part: dict[str, Any]) -> Iterator[tuple[str, str, str, str, bool]]:
    """The targets for a published file; see `evals.bench.bars`."""
    level = part["machine"]["instruction_set"]
    for threads, found in part["threads"].items():
        for name, figure, target, met in _bars(Real(found), level):
            yield f"{found['file']['name']}: {name}", threads, figure, target, met


def _bars(real: Real, level: str) -> Iterator[tuple[str, str, str, bool]]:
    yield from _quality(real)
    if (times := real.memory) is not None:
        yield (
            "memory without keys and values, times the file",
            f"{times:.2f}",
            f"{MAX_MEMORY} or less",
            times <= MAX_MEMORY,
        )
    if (times := real.times(token)) is not None:
        figure, target = f"{times:.2f}, {real.reading:.0%} of memory's speed", f"{MIN_AR}, or {MIN_READ:.0%}"
        yield "`ar`, times llama.cpp's", figure, target, times >= MIN_AR or real.reading >= MIN_READ
    if (times := real.times(prompt)) is not None:
        least = MIN_PROMPT_AVX2 if level == AVX2 else MIN_PROMPT
        yield "a prompt, times llama.cpp's", f"{times:.2f}", f"{least}", times >= least
    if level in MAX_EIGHT:
        most, times = MAX_EIGHT[level], real.eight
        yield f"{BLOCK} rows, times one", f"{times:.2f}", f"{most} or less", times <= most
    times = real.crowd("behind")
    yield f"{REQUESTS} requests at once, times one", f"{times:.2f}", f"{MIN_CROWD:g}", times >= MIN_CROWD
    if (times := real.times(in_blocks, token)) is not None:
        name = f"blocks of {BLOCK} forced to {FORCED} a forward, times llama.cpp's `ar`"
        yield name, f"{times:.2f}", f"{MIN_BLOCK}", times >= MIN_BLOCK


def _quality(real: Real) -> Iterator[tuple[str, str, str, bool]]:
    """Bits per byte, times those of float32: no more than MAX_BITS, or than llama.cpp's where those are more."""
    exact, ours, theirs = (real.bits(name) for name in (FLOAT32, OURS, LLAMA))
    if exact is not None and ours is not None:
        most = max(MAX_BITS, (theirs or 0.0) / exact)
        yield "bits per byte, times float32's", f"{ours / exact:.4f}", f"{most:.4f} or less", ours / exact <= most
