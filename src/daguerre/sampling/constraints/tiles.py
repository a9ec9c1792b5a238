"""A vocabulary in tiles, in which the compiled library sums classes of tokens: see native/weights.h."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.sampling.constraints.indices import ranges

TILE = 4096
"""Tokens of a tile, as in native/weights.h."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tokens of a class in a tile are a segment; those without a class count as the last class.

    place     (V,) uint16: tile by tile, and there segment by segment, each token's place in its tile
    end       (S,) int32: in this order, where the tokens of each segment end
    segment   (S,) int32: in this order, the number of each segment if they are counted class by class
    cls       (S,) int32: in this order, the class of each
    first     (N+1,): in this order, the first segment of each tile
    of_class  (C+2,): class by class, the first segment of each class
    starts    (S+1,): class by class, the place of each segment's first token in `TokenAutomaton.order`
    """

    place: np.ndarray
    end: np.ndarray
    segment: np.ndarray
    cls: np.ndarray
    first: np.ndarray
    of_class: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, order: np.ndarray, first_token: np.ndarray) -> Tiles:
        """From the arrays of a `TokenAutomaton`."""
        size, num_classes = len(order), len(first_token) - 1
        tile_V = order // TILE
        class_V = np.arange(num_classes + 1).repeat(np.diff([*first_token, size]))
        changes = np.flatnonzero(np.diff(tile_V) | np.diff(class_V)) + 1
        starts = np.concatenate([[0], changes, [size]]).astype(np.int64)
        tile_S, class_S = tile_V[starts[:-1]], class_V[starts[:-1]]
        segment = np.argsort(tile_S, kind="stable")
        place = order[ranges(starts[segment], starts[segment + 1])] % TILE
        return cls(
            place.astype(np.uint16),
            np.cumsum(np.diff(starts)[segment]).astype(np.int32),
            segment.astype(np.int32),
            class_S[segment].astype(np.int32),
            np.searchsorted(tile_S[segment], np.arange(-(-size // TILE) + 1)).astype(np.int64),
            np.searchsorted(class_S, np.arange(num_classes + 2)).astype(np.int64),
            starts,
        )
