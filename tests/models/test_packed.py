"""Forwards of one shape that are computed together, as on a device, have the states that each has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from daguerre.models.backends import torch_backend
from daguerre.models.backends.packed import PackedRows
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.forward import Forward, Hidden
from forwards import NUM_KINDS, difference, filled_cache, make, tokens_of


def batch(backend: Any) -> list[Forward]:
    """Of every kind three neighbours of one shape, with tokens, and cached keys, of their own; the last kind in 8
    bits.
    """
    return [one for number in range(NUM_KINDS) for one in alike(backend, number, int8=number == NUM_KINDS - 1)]


def alike(backend: Any, number: int, int8: bool) -> Sequence[Forward]:
    first = make(backend, number, ask=Hidden())
    past = None if first.cache is None else first.cache.length
    return [
        replace(
            first,
            tokens=tokens_of(backend, 10 * number + other, len(first.tokens)),
            cache=None if past is None else filled_cache(backend, 10 * number + other, past, int8),
        )
        for other in range(3)
    ]


@pytest.mark.parametrize("facts", [{}, {"context": "full", "shift": False}], ids=["causal", "full"])
def test_neighbours_of_one_shape_are_computed_together(
    make_model: Any, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, calls = TorchBackend(make_model(**facts).backbone), 0
    apart = [answer.hidden for answer in backend.forward(batch(backend))]
    attention = torch_backend.sdpa

    def counted(*given: torch.Tensor | None) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return attention(*given)  # type: ignore[arg-type]

    given = batch(backend)
    monkeypatch.setattr(torch_backend, "PackedRows", lambda batch, edges, together: PackedRows(batch, edges, True))
    monkeypatch.setattr(torch_backend, "sdpa", counted)
    together = [answer.hidden for answer in backend.forward(given)]
    assert calls <= NUM_KINDS * backend.config.num_layers
    for one, other in zip(together, apart, strict=True):
        assert one is not None and other is not None and difference(one, other) < 1e-5
    after = [0 if one.cache is None else one.cache.length for one in given]
    assert after == [length_after(one) for one in batch(backend)]


def length_after(one: Forward) -> int:
    return 0 if one.cache is None else one.cache.length + one.layout.num_clean
