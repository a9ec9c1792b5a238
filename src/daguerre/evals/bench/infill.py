"""Milliseconds of a line's infilling: PREFIX and SUFFIX tokens in the cache, NEW between them.

With random weights a forward commits FORCED tokens. A trained model runs on held-out Python, in the same way and then
with the default policy. In the type that `load` chooses.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.errors import DataError
from daguerre.evals.bench.job import FORCED, RANDOM, BenchShape, random_model, random_tokens
from daguerre.evals.shared import SharedSession
from daguerre.evals.workers import Progress
from daguerre.heldout import load_frozen
from daguerre.model import Model, load

PREFIX, SUFFIX, NEW = 512, 256, 16
ALL = PREFIX + NEW + SUFFIX
PLACES_A_ROUND = 2


def measure(options: dict[str, Any], progress: Progress) -> list[dict[str, Any]]:
    """options: shape, model, rounds; a median is over twice as many places as rounds."""
    shape, places = BenchShape(**options["shape"]), PLACES_A_ROUND * options["rounds"]
    random = random_model(shape, "auto", ALL + 1)
    forced = Decode(mode="block", policy="confidence", steps=NEW // FORCED, min_tokens=NEW)
    drawn = random_tokens(random.config, (places, ALL)).tolist()
    out = [_figure(RANDOM, f"{FORCED} a forward", random, forced, drawn, progress)]
    model = load(options["model"])
    texts = _texts(model, places)
    out.append(_figure(options["model"], f"{FORCED} a forward", model, forced, texts, progress))
    out.append(_figure(options["model"], "default policy", model, Decode(min_tokens=NEW), texts, progress))
    return out


def _texts(model: Model, limit: int) -> list[list[int]]:
    """The beginnings of held-out documents that are long enough."""
    encoded = (model.tokenizer.encode(document.text) for document in load_frozen())
    found = [ids[:ALL] for ids, _ in zip((ids for ids in encoded if len(ids) >= ALL), range(limit), strict=False)]
    if not found:
        raise DataError(f"no held-out document has {ALL} tokens of this model's vocabulary: leave 'infill' out")
    return found


def _figure(
    name: str, policy: str, model: Model, decode: Decode, texts: Sequence[Sequence[int]], progress: Progress
) -> dict[str, Any]:
    took = []
    for index, ids in enumerate(texts):
        progress(f"infill, {name}, {policy}", index, len(texts))
        prefix, suffix = ids[:PREFIX], ids[PREFIX + NEW :]
        request = Request.of("infill", prefix, suffix, NEW, decode, heal=False)
        plan = plan_of(model.denoiser, model.tokenizer, request)
        shared = SharedSession(model.denoiser, plan.canvas)
        shared.timed(plan)  # leaves the prefix and the suffix in the cache
        took.append(shared.timed(plan))
    return {
        "model": name,
        "policy": policy,
        "places": len(took),
        "ms": statistics.median(1e3 * seconds for seconds, _ in took),
        "forwards": statistics.median(forwards for _, forwards in took),
    }
