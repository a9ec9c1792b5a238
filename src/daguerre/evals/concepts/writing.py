"""Prompts for suppression and injection, and what writes their continuations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from daguerre.concepts.endings import parses, uses
from daguerre.concepts.labels import Labels, label
from daguerre.concepts.prompts import FilePrompt
from daguerre.concepts.taxonomy import Concept
from daguerre.decoding.result import Result
from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.evals.statistics import clustered_wilson
from daguerre.model import Model

NEW_TOKENS, TEMPERATURE = 48, 0.8
MOST_RUNNING, MOST_WAITING = 256, 1 << 20
"""Of the engine: no number of texts from one prompt is refused."""
SLACK = 16
"""Positions that are left free: the end of a prompt may have more tokens by itself than in the whole."""


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
