"""Which type of step of an agent a request is: a linear model on hashed n-grams and on the request's structure.

Where the operation leaves no doubt (`CERTAIN`, or a suffix) nothing is predicted. Else a multinomial logistic
regression, which `recipes/steps/train.py` fits with scikit-learn, adds up a row of weights for each n-gram and each
fact that the request has. Of long texts only the ends are read, so the time is bounded. An instruction stands mostly in
the first or the last line of a message, beside the material that it is about, so these lines count apart.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.router.config import STEPS
from daguerre.router.reading import ParsedRequest, read
from daguerre.router.step_loops import LOOP, SETTINGS_OF_LOOPS, loop_of, observed
from daguerre.router.step_words import (
    ACTS,
    ENDS,
    FORM,
    FRAMES,
    MEANINGS,
    NAMES,
    PATTERNS,
    PERSONA,
    form_of,
    held_by_instructions,
    holding,
    together,
)

ROWS = 1 << 15
"""Rows of weights for n-grams, of which a hash chooses one each."""
GROUPS = {"all": 1.0, "words": 1.0, "pairs": 1.0, "stems": 0.7, "first": 1.05, "last": 1.05, "told": 1.05}
GROUPS |= {"told pairs": 1.05, "tools": 0.7, "form": 0.7, "letters": 0.5, "roots": 0.9}
"""Groups of n-grams and the length of each one's vector: words of instructions and of the last message, of that
message alone, pairs of its words, beginnings of its longer words, words and pairs of its first and of its last line,
words and pairs of instructions, words of tools and of a schema, four characters at a message's start, the beginnings
of words of its first and last line and of instructions."""
FACT = 0.32
"""What a fact counts beside an n-gram."""
HEAD, TAIL = 360, 240
"""Characters that are read at the beginning and at the end of a text."""
SCAN = 4000
"""Characters at either end in which a client's frame is looked for."""
LINE = 160
"""Characters of a first or last line that is looked at as an instruction; of a longer one it is a sentence."""
EDGE = 14
"""Words of such a line."""
EDGES_TOLD = 60
"""Words of the instructions whose roots are looked at."""
CHARACTERS = 120
CERTAIN = {"decisions": "classify", "fim": "infill", "edit": "edit", "embeddings": "look_up"}
"""Operations that are a type of step; an embedding is what is looked up by."""
LENGTHS = (20, 60, 150, 400, 1000, 3000)
LIMITS = (8, 32, 100, 300, 800, 2000)
COUNTS = (1, 2, 4, 8)
THEN = re.compile(PATTERNS["then"], re.IGNORECASE)
SENTENCE = re.compile(r"[.?!:。？！：]\s")
WORD = re.compile(r"\w+|[^\w\s]")
SPLIT = "\x1f"
SEEDS = {group: zlib.crc32(group.encode()) for group in GROUPS}
FACTS = (
    *(f"last {role}" for role in ("user", "assistant", "tool", "system")),
    *(f"operation {name}" for name in ("chat", "completions", "responses")),
    *(f"choice {name}" for name in ("none", "auto", "required", "named")),
    *(f"format {name}" for name in ("text", "json_object", "json_schema")),
    *("labels", "strict", "images", "suffix", "pins", "spans", "stream", "logprobs", "choices"),
    *(f"ask {name}" for name in PATTERNS),
    *(f"head {name}" for name in PATTERNS),
    *(f"system {name}" for name in PATTERNS),
    *(f"any {name}" for name in PATTERNS),
    *("short question", "question of material", "write program", "write text", "code to change", "code to explain"),
    *(
        "only text",
        "only question",
        "given code",
        "short and plain",
        "outline of text",
        "acts with tools",
        "only system asks",
    ),
    *(f"last over {size}" for size in LENGTHS),
    *(f"all over {size}" for size in LENGTHS),
    *(f"instructions over {size}" for size in LENGTHS),
    "limit",
    *(f"limit over {size}" for size in LIMITS),
    *(f"tools {num}" for num in COUNTS),
    *(f"results {num}" for num in COUNTS),
    *(f"turns {num}" for num in COUNTS),
    *("tools and last user", "tools and last tool", "not ascii", "lower case", "more to do"),
    *FORM,
    *("tool noun", "tool acts", "tool ends", "tool forced", "some tool acts"),
    *MEANINGS,
    *LOOP,
)
PLACES = {name: ROWS + place for place, name in enumerate(FACTS)}
SETTINGS = {
    "rows": ROWS,
    "groups": GROUPS,
    "fact": FACT,
    "ends": [HEAD, TAIL, SCAN, LINE, EDGE, EDGES_TOLD, CHARACTERS],
    "facts": FACTS,
    "patterns": PATTERNS,
    "names": [sorted(ACTS), sorted(ENDS), NAMES, FRAMES.pattern, PERSONA.pattern],
    "loops": SETTINGS_OF_LOOPS,
    "steps": STEPS,
}
SETTINGS_HASH = hashlib.sha256(json.dumps(SETTINGS).encode()).hexdigest()


class StepModel:
    """weights: float16 of [ROWS + len(FACTS), len(STEPS)]; bias: float32 of [len(STEPS)]."""

    def __init__(self, weights: np.ndarray, bias: np.ndarray) -> None:
        shapes = ((ROWS + len(FACTS), len(STEPS)), (len(STEPS),))
        if (weights.shape, bias.shape) != shapes:
            raise CheckpointError(f"weights of steps have the shapes {weights.shape} and {bias.shape}, not {shapes}")
        if weights.dtype != np.float16 or bias.dtype != np.float32:
            raise CheckpointError(f"weights of steps are {weights.dtype} and {bias.dtype}, not float16 and float32")
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise CheckpointError("weights of steps are not all finite: train them again with recipes/steps/train.py")
        self.weights, self.bias = weights, bias
        self._table = weights.astype(np.float32)

    def of(self, reading: ParsedRequest, body: object) -> dict[str, float]:
        """The probability of each step type of a request, in the order of STEPS. reading: of the body."""
        certain = certain_step(reading)
        if certain is not None:
            return {name: float(name == certain) for name in STEPS}
        rows, values = features(reading, body)
        scores = self.bias + values @ self._table[rows]
        raised = np.exp(scores - scores.max())
        return dict(zip(STEPS, (raised / raised.sum()).tolist(), strict=True))

    def save(self, path: Path) -> None:
        """Plain arrays; the same bytes for the same weights."""
        with path.open("wb") as file:
            np.savez_compressed(file, weights=self.weights, bias=self.bias, settings=np.array(SETTINGS_HASH))


def certain_step(reading: ParsedRequest) -> str | None:
    """The step type of a request whose operation or suffix says it; None: it has to be predicted."""
    return CERTAIN.get(reading.operation) or ("infill" if reading.suffix else None)


def load_steps(path: Path | None = None) -> StepModel:
    """The model of a file, or the one that comes with the package. CheckpointError for a file that is none, or that was
    made with other features or step types.
    """
    if path is None:
        return _own()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
    return parse_steps(data, str(path))


@cache
def _own() -> StepModel:
    data = resources.files("daguerre").joinpath("assets/router/steps.npz").read_bytes()
    return parse_steps(data, "daguerre's steps.npz")


def parse_steps(data: bytes, name: str) -> StepModel:
    """The model of a file's bytes; `name` is for errors."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            held = {key: arrays[key] for key in ("weights", "bias", "settings")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{name} has no weights of steps ({error}): install the package again") from None
    if str(held["settings"]) != SETTINGS_HASH:
        raise CheckpointError(f"{name} was made with other features or step types: run recipes/steps/train.py again")
    return StepModel(held["weights"], held["bias"])


def classify(reading: ParsedRequest, body: object) -> dict[str, float]:
    """The probability of each step type of a request, by the model that comes with the package."""
    return load_steps().of(reading, body)


def features(reading: ParsedRequest, body: object) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the weights and what each counts. reading: of the body."""
    users = [turn.text for turn in reading.turns if turn.role == "user" and not observed(turn)] or reading.of("user")
    last, system = asked(users[-1] if users else reading.turns[-1].text if reading.turns else "", reading.of("system"))
    form, names = form_of(body)
    words, told = _words(last), _told(system)
    first, end = (_words(line) for line in _edges(last))
    first, end, start = first[:EDGE], end[-EDGE:], last[:CHARACTERS].lower()
    described = " ".join(_ends(text) for text in (" ".join(reading.tools).replace("_", " "), reading.described))
    rows = {
        "all": _rows("all", [*words, *told.words]),
        "words": _rows("words", words),
        "pairs": _rows("pairs", _pairs(words)),
        "stems": _rows("stems", [word[:5] for word in words if len(word) > 5]),
        "roots": _rows("roots", [word[:4] for word in (*first, *end, *told.words[:EDGES_TOLD]) if len(word) > 4]),
        "first": _rows("first", [*first, *_pairs(first)]),
        "last": _rows("last", [*end, *_pairs(end)]),
        "told": told.rows,
        "told pairs": told.pairs,
        "tools": _rows_of_words("tools", described),
        "form": _rows_of_words("form", _ends(names)),
        "letters": _rows("letters", [start[place : place + 4] for place in range(len(start) - 3)]),
        "facts": [PLACES[name] for name in (*facts(reading, last, system), *form, *loop_of(reading, body, last))],
    }
    lengths = [len(some) for some in rows.values()]
    scales = [FACT if group == "facts" else GROUPS[group] / max(1, len(some)) ** 0.5 for group, some in rows.items()]
    return np.array([*chain(*rows.values())], dtype=np.int64), np.repeat(np.array(scales, dtype=np.float32), lengths)


@dataclass(frozen=True)
class _Told:
    """Words of instructions, and their rows."""

    words: tuple[str, ...]
    rows: list[int]
    pairs: list[int]


@lru_cache(maxsize=256)
def _told(system: str) -> _Told:
    """Of the ends of instructions, which many requests have alike."""
    words = _words(system)
    return _Told(tuple(words), _rows("told", words), _rows("told pairs", _pairs(words)))


@lru_cache(maxsize=256)
def _rows_of_words(group: str, text: str) -> list[int]:
    """Of the ends of a text that many requests have alike."""
    return _rows(group, _words(text))


def _rows(group: str, items: Iterable[str]) -> list[int]:
    """The rows of the weights for different n-grams. A CRC is taken of all of them in one piece, split where none has
    a character: `SPLIT` is white space, which letters alone may have, and they are then split there, too.
    """
    some = SPLIT.join(dict.fromkeys(items)).encode("utf-8", "surrogatepass")
    seed, hashed = SEEDS[group], zlib.crc32
    return [hashed(one, seed) % ROWS for one in some.split(SPLIT.encode())] if some else []


def facts(reading: ParsedRequest, last: str, system: str) -> list[str]:
    """Which of FACTS hold. last: the ends of the user's last message; system: of the instructions."""
    turns, tools = reading.turns, [] if reading.choice == "none" else reading.tools
    role = turns[-1].role if turns else "user"
    results, asked = _results(reading), sum(turn.role == "user" for turn in turns)
    head, tail = _edges(last)
    whole = sum(len(turn.text) for turn in turns)
    told = sum(len(text) for text in reading.of("system"))
    steps = 1 + len(THEN.findall(last))
    out = {
        f"last {role}": True,
        f"operation {reading.operation}": True,
        f"choice {reading.choice}": bool(tools),
        f"format {reading.format}": True,
        "labels": reading.labels,
        "strict": reading.strict,
        "images": reading.images > 0,
        "suffix": bool(reading.suffix),
        "pins": "pins" in reading.own,
        "spans": bool(reading.own & {"spans", "lines", "gaps", "pattern"}),
        "stream": reading.stream,
        "logprobs": reading.logprobs,
        "choices": "choices" in reading.own,
        "limit": reading.limit is not None,
        "tools and last user": bool(tools) and role == "user",
        "tools and last tool": bool(tools) and role == "tool",
        "not ascii": not last.isascii(),
        "lower case": last == last.lower(),
        "more to do": bool(results) and results < steps,
    }
    asked_for = holding(tail)
    begun, told_to = asked_for if head == tail else holding(head), held_by_instructions(system)
    asks = asked_for | begun
    every = asks | told_to
    for prefix, some in (("ask", asked_for), ("head", begun), ("system", told_to), ("any", every)):
        out |= {f"{prefix} {name}": True for name in PATTERNS if name in some}
    out |= together(asks, every, len(last), whole, bool(tools))
    counts = {"tools": len(tools), "results": results, "turns": asked}
    for prefix, num in counts.items():
        out |= {f"{prefix} {least}": num >= least + (prefix == "turns") for least in COUNTS}
    length = max((len(text) for text in reading.of("user")[-1:]), default=0)
    for prefix, num in (("last", length), ("all", whole), ("instructions", told)):
        out |= {f"{prefix} over {size}": num > size for size in LENGTHS}
    if reading.limit is not None:
        out |= {f"limit over {size}": reading.limit > size for size in LIMITS}
    return [name for name, holds in out.items() if holds and name in PLACES]


def _results(reading: ParsedRequest) -> int:
    """Results of tools since the user's last message."""
    num = 0
    for turn in reversed(reading.turns):
        if turn.role == "user":
            break
        num += turn.role == "tool"
    return num


def _ends(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    """The beginning and the end of a text."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def asked(user: str, systems: Sequence[str]) -> tuple[str, str]:
    """The ends of the user's last message and of the instructions, without what clients put around them; a first line
    of the message that says who the model is belongs to the instructions.
    """
    last, system = (FRAMES.sub(" ", _ends(text, SCAN, SCAN)).strip() for text in (user, "\n".join(systems)))
    line, _, rest = last.partition("\n")
    if rest.strip() and PERSONA.match(line):
        last, system = rest.strip(), f"{system}\n{line}".strip()
    return _ends(last), _ends(system)


def _edges(text: str) -> tuple[str, str]:
    """The first and the last line; of a long line the first and the last sentence."""
    text = text.strip()
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    if len(first) > LINE:
        found = SENTENCE.search(first, 12, LINE)
        first = first[: found.end() if found else LINE]
    if len(last) > LINE:
        found = SENTENCE.search(last, len(last) - LINE, len(last) - 12)
        last = last[found.end() if found else -LINE :]
    return first, last


def _pairs(words: list[str]) -> list[str]:
    return [f"{one} {two}" for one, two in zip(words, words[1:], strict=False)]


def _words(text: str) -> list[str]:
    """Words in lower case, of numbers the number of digits alone."""
    return [f"#{len(word)}" if word.isdigit() else word[:24] for word in WORD.findall(text.lower())]


def likeliest(steps: dict[str, float]) -> str:
    """The step type of the highest probability; of equal ones the first of STEPS."""
    return max(steps, key=lambda name: steps[name])


def matrix(requests: Sequence[tuple[str, object]]) -> Any:
    """Features of many requests (operation and body) as a sparse matrix of SciPy's, a row each, for training."""
    from scipy.sparse import csr_array

    found = [features(read(operation, body), body) for operation, body in requests]
    ends = np.cumsum([0, *(len(rows) for rows, _ in found)])
    indices, values = (np.concatenate([one[which] for one in found]) for which in (0, 1))
    out = csr_array((values, indices, ends), shape=(len(found), ROWS + len(FACTS)))
    out.sum_duplicates()
    return out
