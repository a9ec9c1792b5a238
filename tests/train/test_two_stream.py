"""One training forward gives every span the logits that decoding gives it with a cache, span by span.

The reference knows nothing of the training layout: it caches the tokens before a span (or, between gaps, each segment
separately) as clean rows, and computes the noisy rows behind them. Flipping any one bit of the training mask must break
the equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from daguerre.models.core import batched
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, Rows, allowed, run_batch
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, collate
from daguerre.train.examples import make_example
from daguerre.train.noising import Example, Source
from daguerre.train.objectives import CONTEXT_OF, Objective

LENGTHS = (72, 60, 48)
BUDGET = 72
MARGIN = 1e-4
NUM_FLIPS = 12
CAUSAL = [name for name, context in CONTEXT_OF.items() if context == "causal"]
SHIFTED = ("next_token", "groups")
"""Layouts of shifted models alone."""
CASES = [(name, shift) for name in CAUSAL for shift in (True, False) if shift or name not in SHIFTED]
each_layout = pytest.mark.parametrize(
    ("layout", "shift"), [(name, name in SHIFTED or bool(i % 2)) for i, name in enumerate(CAUSAL)]
)
MakeSource = Callable[[int, str, int], Source]
Case = tuple[list[Source], list[Example], Batch]


@pytest.fixture(scope="module")
def backbone(tokenizer: Tokenizer) -> Backbone:
    return Backbone(tiny_config(tokenizer)).initialize(0, zero_outputs=False).eval().requires_grad_(False)


def make_case(make_source: MakeSource, tokenizer: Tokenizer, layout: str, shift: bool) -> Case:
    objective = Objective(layout=layout, shift=shift, times="full" if layout == "drafts" else "uniform")
    sources = [make_source(seed, layout, length) for seed, length in enumerate(LENGTHS)]
    examples = [
        make_example(source, objective, (0.3 + i / 3) % 1, np.random.default_rng(i), BUDGET)
        for i, source in enumerate(sources)
    ]
    return sources, examples, collate(examples, objective, tokenizer.pad_id)


def training_logits(backbone: Backbone, batch: Batch) -> Tensor:
    return backbone.logits(run_batch(backbone, batch.tokens, batch.layout))


def decoded_span(backbone: Backbone, tokens: Tensor, position: Tensor, inputs: Tensor) -> Tensor:
    """Logits of noisy rows behind a cache of the clean `tokens` (1, S) before them."""
    cache = new_cache(backbone)
    if tokens.shape[1]:
        run_batch(backbone, tokens, BatchLayout.causal(tokens.shape[1]), cache)
    rows = Rows.make(position, span=0)
    return backbone.logits(run_batch(backbone, inputs, BatchLayout(rows, num_clean=0), cache))[0]


def new_cache(backbone: Backbone) -> BatchCache:
    return BatchCache(backbone.config, 256, 1, torch.float32, torch.device("cpu"))


def decoded_gaps(backbone: Backbone, source: Source, example: Example, shift: bool) -> Tensor:
    """Logits of the noisy rows of an infilling example: each fixed segment cached separately, blind to the others.

    The segments are cut from the source by its gaps; a segment begins right behind its gap's last position.
    """
    cache, noisy = new_cache(backbone), slice(example.num_clean, None)
    place, inputs = example.position[noisy], example.tokens[noisy]
    targets_at = place + 1 if shift else place
    bounds = [0, *(edge for gap in source.gaps for edge in gap), len(source.tokens)]
    segments = list(zip(bounds[::2], bounds[1::2], strict=True))
    start_at = 0
    for number, (start, end) in enumerate(segments):
        keep = end - start - (1 if shift and number < len(source.gaps) else 0)
        if keep > 0:
            tokens = torch.from_numpy(source.tokens[start : start + keep])[None]
            rows = Rows.make(torch.arange(start_at, start_at + keep)[None], document=0, segment=number)
            run_batch(backbone, tokens, BatchLayout(rows, num_clean=keep), cache)
        start_at += end - start
        if number < len(source.gaps):
            gap_positions = targets_at[(targets_at >= start_at)]
            run = np.flatnonzero(np.diff(gap_positions, prepend=start_at - 1) != 1)
            start_at += int(run[0]) if run.size else len(gap_positions)
    rows = Rows.make(torch.from_numpy(place)[None], span=0)
    layout = BatchLayout(rows, num_clean=0)
    return backbone.logits(run_batch(backbone, torch.from_numpy(inputs)[None], layout, cache))[0]


def clean_reference(backbone: Backbone, source: Source, layout: str) -> Tensor:
    """Logits of the clean rows: one causal forward, or for infilling one a segment: from a gap's end to the next's."""
    edges = [0, *(end for _, end in source.gaps), len(source.tokens)] if layout == "infill" else [0, len(source.tokens)]
    parts = []
    for start, end in zip(edges, edges[1:], strict=False):
        tokens = torch.from_numpy(source.tokens[start:end])[None]
        parts.append(backbone.logits(run_batch(backbone, tokens, BatchLayout.causal(end - start)))[0])
    return torch.cat(parts)


def references(backbone: Backbone, case: Case, layout: str, shift: bool) -> Iterator[tuple[int, np.ndarray, Tensor]]:
    """(example, rows of the batch, their logits as decoding computes them)."""
    sources, examples, batch = case
    for b, (source, example) in enumerate(zip(sources, examples, strict=True)):
        num, behind = example.num_clean, batch.layout.num_clean
        yield b, np.arange(num), clean_reference(backbone, source, layout)
        spans = example.span[num:]
        if layout == "infill":
            yield b, behind + np.arange(len(spans)), decoded_gaps(backbone, source, example, shift)
            continue
        for span in np.unique(spans):
            index = num + np.flatnonzero(spans == span)
            first = int(example.position[index[0]])
            clean = torch.from_numpy(source.tokens[:first])[None]
            position = torch.arange(first, first + len(index))[None]
            inputs = torch.from_numpy(example.tokens[index])[None]
            yield b, behind + index - num, decoded_span(backbone, clean, position, inputs)


def largest_difference(backbone: Backbone, case: Case, expected: list[tuple[int, np.ndarray, Tensor]]) -> float:
    logits = training_logits(backbone, case[2])
    return max(float((logits[b, rows] - reference).nan_to_num().abs().max()) for b, rows, reference in expected)


def test_training_logits_are_those_of_cached_decoding(
    backbone: Backbone, make_source: MakeSource, tokenizer: Tokenizer, subtests: pytest.Subtests
) -> None:
    for layout, shift in CASES:
        with subtests.test(layout, shift=shift):
            case = make_case(make_source, tokenizer, layout, shift)
            expected = list(references(backbone, case, layout, shift))
            covered = sum(len(rows) for _, rows, _ in expected)
            assert covered == sum(len(example.tokens) for example in case[1])
            logits = torch.cat([reference.flatten() for _, _, reference in expected])
            assert 0.7 < logits[logits.isfinite()].std() < 1.4
            assert largest_difference(backbone, case, expected) < MARGIN


@each_layout
def test_any_flipped_bit_of_the_mask_breaks_the_equality(
    backbone: Backbone,
    make_source: MakeSource,
    tokenizer: Tokenizer,
    layout: str,
    shift: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bits drawn among those of one span's rows (or, with no spans, of clean rows), to reveal a key or to hide one."""
    case = make_case(make_source, tokenizer, layout, shift)
    expected = list(references(backbone, case, layout, shift))
    batch = case[2]
    general = Batch(**{**batch.__dict__, "layout": BatchLayout(batch.layout.rows, batch.layout.num_clean)})
    case = (case[0], case[1], general)
    assert largest_difference(backbone, case, expected) < MARGIN
    rng = np.random.default_rng(0)
    rows = batch.layout.rows
    real = (rows.span != batched.PADDING)[0].numpy()
    mask = allowed(rows[:], rows[:], "causal")[0].numpy()
    noisy = np.arange(len(real)) >= batch.layout.num_clean
    for part in (noisy, ~noisy):
        for seen in (True, False):
            pairs = np.argwhere((mask == seen) & (part & real)[:, None] & real)
            if seen:
                pairs = pairs[mask.sum(1)[pairs[:, 0]] > 1]
            else:  # clean rows never get noisy keys: those are cut off before the mask
                pairs = pairs[part[pairs[:, 0]] & (noisy[pairs[:, 0]] | ~noisy[pairs[:, 1]])]
            for query, key in rng.permutation(pairs)[:NUM_FLIPS]:
                start = batch.layout.num_clean if noisy[query] else 0

                def flipped(queries: Rows, keys: Rows, *rule, at=(query - start, key), of=noisy[query]) -> Tensor:  # type: ignore[no-untyped-def]
                    out = allowed(queries, keys, *rule)
                    if bool(queries.num_rows == keys.num_rows) != bool(of):
                        out[0, at[0], at[1]] ^= True
                    return out

                with monkeypatch.context() as patch:
                    patch.setattr(batched, "allowed", flipped)
                    difference = largest_difference(backbone, case, expected)
                assert difference > 10 * MARGIN, f"row {query} and key {key} may be flipped unnoticed"
