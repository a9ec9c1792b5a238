"""Prompts for suppression and injection, and what writes their continuations."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from daguerre.concepts.labels import Labels, label
from daguerre.concepts.taxonomy import Concept
from daguerre.decoding.result import Result
from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.evals.concepts.endings import parses, uses
from daguerre.evals.statistics import clustered_wilson
from daguerre.model import Model

NEW_TOKENS, TEMPERATURE = 48, 0.8
MOST_RUNNING, MOST_WAITING = 256, 1 << 20
"""Of the engine: no number of texts from one prompt is refused."""
SLACK = 16
"""Positions that are left free: the end of a prompt may have more tokens by itself than in the whole."""
MOST_CHARACTERS = 4000
"""Prompts are the beginnings of files, not longer than this; the model reads what fits."""


class Write(Protocol):
    """Writes continuations of a prompt: NEW_TOKENS tokens at TEMPERATURE, or fewer where the text ends."""

    def __call__(self, prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        """`num` continuations; the controls are options of `Model.generate`: steer, forbid, forbid_exactly."""


def writer(model: Model) -> Write:
    """What writes with a model: one token at a time, since many texts in one forward gain nothing from drafts. A prompt
    is computed once, for its first token alone; the engine stores it for everything that is written from there.
    """
    engine = Engine(model, max_running=MOST_RUNNING, max_waiting=MOST_WAITING)
    room = model.config.max_positions - NEW_TOKENS - len(model.config.first) - SLACK

    def write(prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        tokens = model.tokenizer.encode(prompt)
        shown = prompt if len(tokens) <= room else _shown(model, tokens, room)
        _result(engine, engine.generate(shown, 1, mode="ar"))
        asked = engine.generate(shown, NEW_TOKENS, n=num, seed=seed, temperature=TEMPERATURE, mode="ar", **controls)
        return [choice.text for choice in _result(engine, asked).choices]

    return write


def _result(engine: Engine, job: Job) -> Result:
    """The result of a job, which is the only one in its engine; this drives the engine."""
    while not job.done:
        engine.step()
    return job.result()


def _shown(model: Model, tokens: list[int], room: int) -> str:
    """The last tokens of a prompt as text: whole lines, so that the text and its tokens agree."""
    text = model.tokenizer.decode_bytes(tokens[-room:]).decode("utf-8", errors="ignore")
    return text[text.find("\n") + 1 :]


@dataclass(frozen=True)
class FilePrompt:
    """The beginning of a file, and the number of the file."""

    file: int
    text: str


def before_uses(texts: Iterable[tuple[int, str, Labels]], concept: Concept, limit: int) -> list[FilePrompt]:
    """At most `limit` prompts that end just before an instance of a concept, from as many files as there are: every
    file's first one before a file's second. Instances of equal beginnings count once.
    """
    by_file = list[list[FilePrompt]]()
    for file, text, labels in texts:
        starts = sorted({start for start, _ in labels.of(concept) if 0 < start <= MOST_CHARACTERS})
        by_file.append([FilePrompt(file, text[:start]) for start in starts])
    rounds = max((len(each) for each in by_file), default=0)
    turns = [each[number] for number in range(rounds) for each in by_file if number < len(each)]
    return turns[:limit]


def before_statements(texts: Iterable[tuple[int, str, Labels]], limit: int, seed: int) -> list[FilePrompt]:
    """At most `limit` prompts that end just before a statement of a function, in a random order, one a file."""
    out = []
    for file, text, _ in texts:
        starts = _statement_starts(text)
        if starts:
            place = int(np.random.default_rng((seed, file)).integers(len(starts)))
            out.append(FilePrompt(file, text[: starts[place]]))
    order = np.random.default_rng(seed).permutation(len(out))
    return [out[number] for number in order[:limit]]


def _statement_starts(text: str) -> list[int]:
    """Where statements of functions begin that are first on their lines, but for the first of each body."""
    lines = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    found = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.body[1:]:
                start = int(lines[one.lineno - 1]) + one.col_offset
                if text.isascii() and start <= MOST_CHARACTERS and not text[lines[one.lineno - 1] : start].strip():
                    found.add(start)
    return sorted(found)


def labeled_texts(texts: Iterable[str]) -> list[tuple[int, str, Labels]]:
    """The texts that parse, with their numbers and labels; each text once."""
    out = []
    for number, text in enumerate(dict.fromkeys(texts)):
        found = label(text)
        if found.certain and "\r" not in text and "\f" not in text:
            out.append((number, text, found))
    return out


def figures(
    prompts: Sequence[FilePrompt],
    concept: Concept,
    write: Write,
    num: int,
    seed: int,
    controls: Mapping[str, Any],
) -> dict[str, Any]:
    """Rate of use and parse rate of `num` generations, spread evenly over the prompts."""
    shares = np.diff(np.arange(len(prompts) + 1) * num // len(prompts))
    used, written = [], []
    for prompt, share in zip(prompts, shares.tolist(), strict=True):
        texts = write(prompt.text, share, seed, **controls) if share else []
        used.append(sum(uses(concept, prompt.text, text) for text in texts))
        written += [(prompt.text, text) for text in texts]
    above, files = np.array(used, dtype=float), np.array([prompt.file for prompt in prompts])
    return {
        "generations": len(written),
        "used": int(above.sum()),
        "rate": float(above.sum() / len(written)),
        "rate_interval": clustered_wilson(above, shares.astype(float), files),
        "parses": float(np.mean([parses(prompt + text) for prompt, text in written])),
    }
