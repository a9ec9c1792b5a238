"""Hidden states of a backbone that stays as it is, from which rows are drawn to train concept heads alone.

Rows of one text are alike, and most are clean. Rows that are drawn from many texts, of each kind as many as SHARES
says, teach the heads several times as much in an update, and the backbone computes each text once.

Letters: A rows, D width, N known concepts, S slots, R rows of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from daguerre.train.batch import Batch
from daguerre.train.noising import IGNORE

CLEAN, READING, MASKED = range(3)
"""Kinds of rows: clean rows, which have not seen the token that they predict; rows of noisy spans, which have; and rows
that predict a masked token.
"""
SHARES = (0.25, 0.25, 0.5)
SLOTS = 192
"""Micro-batches whose rows are kept."""
DRAWN = 1024
"""Rows of an update."""


@dataclass(frozen=True, eq=False)
class PooledRows:
    """hidden float32 (A, D); concepts bool (A, N) and token int64 (A,), those of the token that each row predicts; kind
    int64 (A,); span int64 (A,), the span that a row counts to (`spans_of`), or IGNORE.
    """

    hidden: Tensor
    concepts: Tensor
    token: Tensor
    kind: Tensor
    span: Tensor

    def take(self, places: Tensor) -> PooledRows:
        """Some of the rows."""
        return PooledRows(*(getattr(self, each.name)[places] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[PooledRows]) -> PooledRows:
        """The rows of several parts, one after the other."""
        return cls(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(cls)))


def rows_of(batch: Batch, hidden: Tensor) -> PooledRows:
    """The labeled rows of a batch with hidden states (B, R, D)."""
    assert batch.concepts is not None
    sequence, row = (batch.origin != IGNORE).nonzero(as_tuple=True)
    origin, target = batch.origin[sequence, row], batch.target[sequence, row]
    masked, span = batch.level[sequence, row] >= 0, batch.layout.rows.span[sequence, row]
    return PooledRows(
        hidden[sequence, row].float(),
        batch.concepts[sequence, origin],
        torch.where(target == IGNORE, batch.tokens[sequence, origin], target),
        torch.where(span < 0, CLEAN, torch.where(masked, MASKED, READING)),
        spans_of(sequence, span, masked),
    )


def spans_of(sequence: Tensor, span: Tensor, masked: Tensor) -> Tensor:
    """To which span the rows (A,) of an `any_loss` count, int64; IGNORE: to none. Spans are numbered from 0 on: each
    noisy span by its masked rows or, where nothing is masked, by all.
    """
    noisy = span >= 0
    keys, number = torch.unique(sequence * (1 + span.clamp_min(0).max()) + span.clamp_min(0), return_inverse=True)
    any_masked = torch.zeros(len(keys), dtype=torch.bool, device=span.device)
    any_masked[number[noisy & masked]] = True
    counts = noisy & (masked | ~any_masked[number])
    return torch.where(counts, number, IGNORE)


class RowPool:
    """The rows of the last SLOTS micro-batches. `compute` gives those of an earlier micro-batch number i that is not
    held, as in a run that was resumed, so what is drawn is a function of the number and the seed.
    """

    def __init__(self, compute: Callable[[int], PooledRows], slots: int = SLOTS) -> None:
        self._compute, self._slots = compute, slots
        self._held = dict[int, PooledRows]()

    def draw(self, number: int, rows: PooledRows, num: int, seed: int) -> PooledRows:
        """`num` rows of micro-batches up to this number, with replacement; `rows` are those of this one."""
        wanted = range(max(0, number - self._slots + 1), number + 1)
        self._held = {n: held for n, held in self._held.items() if n in wanted} | {number: rows}
        for each in wanted:
            if each not in self._held:
                self._held[each] = self._compute(each)
        held = [self._held[each] for each in wanted]
        kind = torch.cat([each.kind for each in held])
        starts = torch.tensor([0, *(len(each.kind) for each in held)]).cumsum(0)
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for which, share in enumerate(SHARES):
            places = (kind == which).nonzero()[:, 0].cpu()
            if len(places):
                drawn.append(places[torch.randint(len(places), (round(share * num),), generator=generator)])
        place = torch.cat(drawn).sort().values
        slot = torch.searchsorted(starts, place, right=True) - 1
        parts = [
            each.take((place[slot == index] - starts[index]).to(each.kind.device)) for index, each in enumerate(held)
        ]
        return PooledRows.joined(parts)
