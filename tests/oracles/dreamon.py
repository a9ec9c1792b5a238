"""How DreamOn fills gaps of unknown length, restated from its paper (arXiv 2602.01326) and what its script does.

A text is a list of cells. In each step one open position gets a token: the mark of expansion makes two open positions
of it, the mark of deletion takes it out. Ranks and draws are Dream's (`oracles.published`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from oracles.published import Dream, Numbers


@dataclass
class Cell:
    """A position: its token, None where it is open; and the number of its gap, None outside."""

    token: int | None
    gap: int | None = None


@dataclass
class Filled:
    """The texts of the gaps, and after each forward what they looked like, None at open positions."""

    texts: list[list[int | None]]
    history: list[list[list[int | None]]] = field(default_factory=list)
    expansions: int = 0
    deletions: int = 0
    blocked: int = 0


@dataclass(frozen=True, kw_only=True)
class DreamOn:
    """`fill` fills gaps that begin with `start` positions, and have between `fewest` and `most`.

    budget   how many expansions a gap may have
    to_right   a deletion also takes out what is open to its right in the gap
    last   a deletion waits for all other tokens
    never    tokens that are not drawn
    """

    ranks: Dream
    mask: int
    expand: int
    delete: int
    end: int
    start: int
    most: int
    budget: int
    fewest: int = 0
    to_right: bool = False
    last: bool = False
    never: tuple[int, ...] = ()

    def fill(
        self,
        logits_of: Callable[[np.ndarray], np.ndarray],
        segments: Sequence[Sequence[int]],
        numbers: Callable[[int], Numbers] | None = None,
    ) -> Filled:
        cells = [Cell(token) for token in segments[0]]
        for gap, segment in enumerate(segments[1:]):
            cells += [Cell(None, gap) for _ in range(self.start)] + [Cell(token) for token in segment]
        cells.append(Cell(self.end))
        num_gaps = len(segments) - 1
        left, out, forward = [self.budget] * num_gaps, Filled([]), 0
        while any(cell.token is None for cell in cells):
            logits = logits_of(np.array([self.mask if cell.token is None else cell.token for cell in cells]))
            logits[:, list(self.never)] = -np.inf
            lengths = [sum(cell.gap == gap for cell in cells) for gap in range(num_gaps)]
            for place, cell in enumerate(cells):
                if cell.gap is not None and (lengths[cell.gap] == self.most or not left[cell.gap]):
                    out.blocked += int(cell.token is None and logits[place].argmax() == self.expand)
                    logits[place, self.expand] = -np.inf
                if cell.gap is not None and lengths[cell.gap] == self.fewest:
                    logits[place, self.delete] = -np.inf
            known = None if numbers is None else numbers(len(cells))
            tokens, rank = self.ranks._predict(logits, known, forward)
            if self.last:
                rank = np.where(tokens == self.delete, -np.inf, rank)
            still = np.array([place for place, cell in enumerate(cells) if cell.token is None])
            (place,) = self.ranks._chosen(rank, still, 1, known, forward).tolist()
            self._apply(cells, place, int(tokens[place]), left, out)
            forward += 1
            out.texts = [[cell.token for cell in cells if cell.gap == gap] for gap in range(num_gaps)]
            out.history.append(out.texts)
        return out

    def _apply(self, cells: list[Cell], place: int, token: int, left: list[int], out: Filled) -> None:
        gap = cells[place].gap
        assert gap is not None
        if token == self.expand:
            cells.insert(place, Cell(None, gap))
            left[gap] -= 1
            out.expansions += 1
        elif token == self.delete:
            after = [cell for cell in cells[place + 1 :] if cell.gap == gap and cell.token is None]
            for cell in [cells[place], *(after if self.to_right else [])]:
                cells.pop(next(at for at, other in enumerate(cells) if other is cell))
                out.deletions += 1
        else:
            cells[place].token = token
