"""Milliseconds of a line's infilling: PREFIX and SUFFIX tokens in the cache, NEW between them.

At random weights FORCED tokens a forward. A model runs on held-out Python, so and under the default policy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from daguerre.errors import DataError
from daguerre.evals.bench.job import FORCED, Shape, random_model
from daguerre.evals.bench.timed import infilling
from daguerre.evals.frozen import load_frozen
from daguerre.evals.shared import SharedSession
from daguerre.model import Model, load
from daguerre.planning import make_plan
from daguerre.sampling.decode import Decode

PREFIX, SUFFIX, NEW = 512, 256, 16
ALL = PREFIX + NEW + SUFFIX
PLACES_A_ROUND = 2
Tell = Callable[[str, int, int], None]


def measure(options: dict[str, Any], tell: Tell) -> list[dict[str, Any]]:
    """options: shape, model, rounds; a median is over twice as many places as rounds."""
    shape, places = Shape(**options["shape"]), PLACES_A_ROUND * options["rounds"]
    random = random_model(shape, torch.bfloat16, ALL + 1)
    drawn = np.random.default_rng(0).integers(random.config.num_reserved, shape.vocab_size, (places, ALL))
    forced = Decode(policy="confidence", steps=NEW // FORCED, min_tokens=NEW)
    out = [_figure("random weights", f"{FORCED} a forward", random, forced, drawn.tolist(), tell)]
    model = load(options["model"], dtype="bfloat16")
    texts = _texts(model, places)
    out.append(_figure(options["model"], f"{FORCED} a forward", model, forced, texts, tell))
    out.append(_figure(options["model"], "default policy", model, Decode(min_tokens=NEW), texts, tell))
    return out


def _texts(model: Model, limit: int) -> list[list[int]]:
    """The beginnings of held-out documents that are long enough."""
    encoded = (model.tokenizer.encode(document.text) for document in load_frozen())
    found = [ids[:ALL] for ids, _ in zip((ids for ids in encoded if len(ids) >= ALL), range(limit), strict=False)]
    if not found:
        raise DataError(f"no held-out document has {ALL} tokens of this model's vocabulary: leave 'infill' out")
    return found


def _figure(
    name: str, policy: str, model: Model, decode: Decode, texts: Sequence[Sequence[int]], tell: Tell
) -> dict[str, Any]:
    took = []
    for index, ids in enumerate(texts):
        tell(f"infill, {name}, {policy}", index, len(texts))
        prefix, suffix = ids[:PREFIX], ids[PREFIX + NEW :]
        plan = make_plan(model.config, model.tokenizer, decode, prefix, suffix, NEW, heal=False)
        shared = SharedSession(model.denoiser, plan.canvas)
        infilling(shared, plan)  # leaves the prefix and the suffix in the cache
        took.append(infilling(shared, plan))
    return {
        "model": name,
        "policy": policy,
        "places": len(took),
        "ms": statistics.median(1e3 * seconds for seconds, _ in took),
        "forwards": statistics.median(forwards for _, forwards in took),
    }
