"""Canvases of one text with gaps of several lengths, computed together to search a length: equal to each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends import BACKENDS
from daguerre.canvas import Canvas
from daguerre.decoding import lengths
from daguerre.decoding.lengths import look_alone, look_together
from daguerre.model import Model
from daguerre.models.core.config import RopeScaling
from daguerre.models.session import Counts, compute
from forwards import difference

LENGTHS = (1, 2, 3, 7, 12)
TEXTS = (("def area(width):\n    return ", "\n\nprint(x)\n"), ("", "x"), ("x = 1", ")"))


def canvases(model: Model, before: str = TEXTS[0][0], after: str = TEXTS[0][1]) -> list[Canvas]:
    tokenizer, config = model.tokenizer, model.config
    segments = [[config.bos_id, *tokenizer.encode(before)], tokenizer.encode(after)]
    made = [Canvas.lay_out(segments, [length], config.mask_id) for length in LENGTHS]
    return [canvas.at(canvas.gaps[0]) for canvas in made]


def looked(look: Callable[..., Any], model: Model, some: list[Canvas], counts: Counts) -> list[np.ndarray]:
    return compute(look(model.denoiser, some, counts), model.denoiser.backend)


FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "unshifted": {"shift": False},
    "full": {"context": "full"},
    "timed": {"context": "full", "shift": False, "time_input": True},
    "learned": {"positions": "learned"},
    "yarn": {"rope_scaling": RopeScaling(kind="yarn", factor=2.0, original_positions=32)},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_gives_the_logits_of_each_canvas_alone(
    make_model: Any, backend: Any, subtests: pytest.Subtests
) -> None:
    for name in FACTS:
        with subtests.test(name):
            made = make_model(**FACTS[name])
            model = Model(made.backbone, made.tokenizer, backend)
            for before, after in TEXTS:
                some = canvases(model, before, after)
                fast, slow = (looked(look, model, some, Counts()) for look in (look_together, look_alone))
                for one, other, length in zip(fast, slow, LENGTHS, strict=True):
                    assert one.shape == (length, model.config.vocab_size)
                    assert difference(one, other) < 1e-4


def test_what_is_given_is_computed_once_in_causal_context(models: dict[str, Model]) -> None:
    causal, full = models["causal"], models["full"]
    some, counts = canvases(causal), Counts()
    looked(look_together, causal, some, counts)
    prefix = some[0].gaps[0][0] - 1
    suffix = len(some[0]) - some[0].gaps[0][1]
    assert counts.forwards == 2
    assert counts.prefill_tokens == prefix + suffix
    assert counts.reused_tokens == (prefix + suffix) * len(LENGTHS)
    assert counts.query_tokens == sum(LENGTHS)
    counts = Counts()
    looked(look_together, full, canvases(full), counts)
    assert (counts.forwards, counts.prefill_tokens) == (1, 0)


def test_canvases_beyond_the_room_of_a_batch_take_another(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    some, counts = canvases(causal), Counts()
    whole = looked(look_together, causal, some, Counts())
    monkeypatch.setattr(lengths, "MAX_ROWS", 16)
    parts = looked(look_together, causal, some, counts)
    assert counts.forwards == 3
    for one, other in zip(whole, parts, strict=True):
        assert difference(one, other) < 1e-5
