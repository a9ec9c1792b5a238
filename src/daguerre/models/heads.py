"""Concept heads, and the vocabulary projection beside them, for whoever explains, steers and searches: in NumPy, from a
model's weights by name. The reference are the modules, `models.core.concept_heads`, which say what is computed;
`models.core.module_heads` asks them the same.

Letters: A rows, D width, V vocabulary, N known concepts, M discovered ones, C = N + M, K kept concepts, J concepts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from daguerre.models.bits import floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import CLAMP, SMALL, ConceptShape
from daguerre.models.model_weights import ModelWeights

ROWS_AT_ONCE = 8192
"""Of a matrix as float32: all of a vocabulary projection may be gigabytes."""
MOST_HELD = 1 << 24
"""Numbers of a matrix that is held as float32, whatever its type: 64 MB."""


@dataclass(frozen=True, eq=False)
class KeptConcepts:
    """The concepts that hidden states keep, and what these leave.

    concepts  int64 (A, K): known ones and then discovered ones, each in ascending order
    weights   float32 (A, K)
    residual  float32 (A, D): h - known - discovered
    """

    concepts: np.ndarray
    weights: np.ndarray
    residual: np.ndarray


class Heads(ABC):
    """What a hidden state says: its concepts, in a model that has heads, and logits. Arrays are float32 where nothing
    else is said, whatever the type of the weights.
    """

    config: ModelConfig

    @property
    def shape(self) -> ConceptShape:
        """The shape of the concept heads, which there are."""
        assert self.config.concepts is not None
        return self.config.concepts

    @abstractmethod
    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (A, C) of all concepts in hidden states (A, D)."""

    @abstractmethod
    def known_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (A, N) of the known concepts in hidden states (A, D)."""

    @abstractmethod
    def read_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (A, N) of the known concepts of the tokens that rows with hidden states (A, D) have read, where the
        shape `reads`.
        """

    @abstractmethod
    def weights(self, hidden: np.ndarray) -> np.ndarray:
        """The weights (A, C) of all concepts in hidden states (A, D): 0 for those that are not kept."""

    @abstractmethod
    def kept(self, hidden: np.ndarray) -> KeptConcepts:
        """Hidden states (A, D) as sums."""

    @abstractmethod
    def vectors(self, concepts: np.ndarray) -> np.ndarray:
        """The vectors (J, D) of concepts by their numbers (J,)."""

    @abstractmethod
    def sums(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sums of the vectors of known and of discovered concepts, (D,) each, by weights (C,)."""

    @abstractmethod
    def effects(self, tokens: np.ndarray, concepts: np.ndarray) -> np.ndarray:
        """K_c . W_y, (A, J), of concepts (A, J) and tokens y (A,)."""

    @abstractmethod
    def promoted(self, vectors: np.ndarray) -> np.ndarray:
        """How far vectors (J, D), added to hidden states, raise each token's logit above the mean of those that can be
        predicted: (J, V), 0 for tokens that cannot be.
        """

    @abstractmethod
    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """The rows of the vocabulary projection of tokens (A,), (A, D)."""

    @abstractmethod
    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """What the vocabulary projection adds to the logits of tokens (A,) by itself, (A,)."""


class ArrayHeads(Heads):
    """The heads of a model whose weights are on a CPU."""

    def __init__(self, weights: ModelWeights) -> None:
        self.config = config = weights.config
        projection = "embedding.weight" if config.tied else "output.weight"
        part = weights.outside((projection, "output.bias", *CONCEPTS))
        self._projection, self._bias = part[projection], part.get("output.bias")
        self._parts = {name: floats(x) if x.size <= MOST_HELD else x for name, x in part.items() if name in CONCEPTS}

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of all concepts; see `Heads`."""
        inner = self._product("discovered_down", hidden.astype(np.float32, copy=False))
        discovered = self._product("discovered_up", inner, self.shape.discovered)
        out = np.concatenate([self.known_logits(hidden), discovered], axis=-1)
        return np.clip(out, -CLAMP, CLAMP, out=out)

    def known_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of known concepts; see `Heads`."""
        h = hidden.astype(np.float32, copy=False)
        return self._product("known_predictor", h, self.shape.known).clip(-CLAMP, CLAMP)

    def read_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of known concepts of tokens that were read; see `Heads`."""
        h = hidden.astype(np.float32, copy=False)
        return self._product("read_predictor", h, self.shape.known).clip(-CLAMP, CLAMP)

    def weights(self, hidden: np.ndarray) -> np.ndarray:
        """Weights of all concepts; see `Heads`."""
        logits, (concepts, weights) = self._kept(hidden)
        out = np.zeros_like(logits)
        np.put_along_axis(out, concepts, weights, axis=-1)
        return out

    def kept(self, hidden: np.ndarray) -> KeptConcepts:
        """Hidden states as sums; see `Heads`."""
        _, (concepts, weights) = self._kept(hidden)
        num = self.shape.kept_known
        known = _combined(weights[:, :num], concepts[:, :num], self._table("known_embedding"))
        places = concepts[:, num:] - self.shape.known
        inner = _combined(weights[:, num:], places, self._table("discovered_coefficients"))
        residual = hidden.astype(np.float32, copy=False) - known - self._product("discovered_basis", inner)
        return KeptConcepts(concepts, weights, residual)

    def vectors(self, concepts: np.ndarray) -> np.ndarray:
        """The vectors of concepts; see `Heads`."""
        num = self.shape.known
        known = concepts < num
        out = np.empty((len(concepts), self.config.width), np.float32)
        out[known] = floats(self._table("known_embedding")[concepts[known]])
        inner = floats(self._table("discovered_coefficients")[concepts[~known] - num])
        out[~known] = self._product("discovered_basis", inner)
        return out

    def predictors(self, concepts: np.ndarray) -> np.ndarray:
        """By how much the logits of concepts (J,) rise with each number of a hidden state, float32 (J, D)."""
        num, up = self.shape.known, self._table("discovered_up")
        known = concepts < num
        out = np.empty((len(concepts), self.config.width), np.float32)
        out[known] = floats(self._table("known_predictor")[concepts[known]])
        out[~known] = floats(up[concepts[~known] - num]) @ floats(self._table("discovered_down"))
        return out

    def sums(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of vectors; see `Heads`."""
        num, given = self.shape.known, weights.astype(np.float32, copy=False)
        known = _weighted(given[:num], self._table("known_embedding")[:num])
        inner = _weighted(given[num:], self._table("discovered_coefficients")[: self.shape.discovered])
        return known, self._product("discovered_basis", inner)

    def effects(self, tokens: np.ndarray, concepts: np.ndarray) -> np.ndarray:
        """What concepts do for tokens; see `Heads`."""
        rows, shape = self.rows(tokens), self.shape
        inner = rows @ floats(self._table("discovered_basis"))
        parts = (
            _times(rows, self._table("known_embedding")[: shape.known]),
            _times(inner, self._table("discovered_coefficients")[: shape.discovered]),
        )
        return np.take_along_axis(np.concatenate(parts, axis=-1), concepts, axis=-1)

    def promoted(self, vectors: np.ndarray) -> np.ndarray:
        """What vectors promote; see `Heads`."""
        raised, never = _times(vectors, self._projection), list(self.config.unpredictable_ids)
        raised[:, never] = 0
        raised -= raised.sum(axis=-1, keepdims=True) / np.float32(raised.shape[-1] - len(never))
        raised[:, never] = 0
        return raised

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of the projection; see `Heads`."""
        return floats(self._projection[tokens])

    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """Biases of the projection; see `Heads`."""
        return np.zeros(len(tokens), np.float32) if self._bias is None else floats(self._bias[tokens])

    def _kept(self, hidden: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Logits (A, C) of all concepts, and the kept ones with their weights, (A, K)."""
        logits, shape = self.logits(hidden), self.shape
        known = largest(logits[:, : shape.known], shape.kept_known)
        concepts = np.concatenate(
            [known, largest(logits[:, shape.known :], shape.kept_discovered) + shape.known], axis=-1
        )
        return logits, (concepts, sigmoid(np.take_along_axis(logits, concepts, axis=-1)))

    def _table(self, name: str) -> np.ndarray:
        return self._parts[f"concepts.{name}.weight"]

    def _product(self, name: str, x: np.ndarray, num: int | None = None) -> np.ndarray:
        """A layer's results (..., O), or the first `num` of them, for its inputs (..., I)."""
        out, bias = _times(x, self._table(name)[:num]), self._parts.get(f"concepts.{name}.bias")
        return out if bias is None else out + floats(bias[:num])


LAYERS = ("known_predictor", "discovered_down", "discovered_up", "discovered_basis", "read_predictor")
TABLES = ("known_embedding", "discovered_coefficients")
CONCEPTS = (
    *(f"concepts.{name}.weight" for name in (*LAYERS, *TABLES)),
    *(f"concepts.{name}.bias" for name in LAYERS),
)
"""Names of the weights of concept heads, of which not all need be there."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        made: np.ndarray = 1 / (1 + np.exp(-x))
    return made


def largest(numbers: np.ndarray, num: int) -> np.ndarray:
    """The places, int64 (A, num), of the largest of each row (A, C), in ascending order; of equals the first."""
    if num >= numbers.shape[-1]:
        return np.tile(np.arange(numbers.shape[-1]), (len(numbers), 1))
    if not num:
        return np.zeros((len(numbers), 0), np.int64)
    kept = numbers >= np.partition(numbers, -num, axis=-1)[:, -num, None]
    over = np.flatnonzero(kept.sum(axis=-1) > num)  # too many are equal to the least
    kept[over] = False
    kept[over[:, None], np.argsort(-numbers[over], axis=-1, kind="stable")[:, :num]] = True
    return kept.nonzero()[-1].reshape(len(numbers), num)


def _parts(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The rows of a matrix as float32, some at a time, and which these are."""
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        yield rows, floats(matrix[rows])


def _times(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """x (..., I) times the transpose of a matrix (O, I)."""
    if len(matrix) <= ROWS_AT_ONCE:
        return x @ floats(matrix).T
    return np.concatenate([x @ part.T for _, part in _parts(matrix)], axis=-1)


def _weighted(weights: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The sum (D,) of the rows of a table (C, D) by weights (C,)."""
    made: np.ndarray = sum((weights[rows] @ part for rows, part in _parts(table)), np.zeros((), np.float32))
    return made


def _combined(weights: np.ndarray, places: np.ndarray, table: np.ndarray) -> np.ndarray:
    """sum_k w_ak table[i_ak], (A, D), of weights and places (A, K): one product with the whole table where that is
    small, since rows that are gathered take more time than zeros.
    """
    if len(table) <= SMALL:
        spread = np.zeros((len(weights), len(table)), np.float32)
        np.put_along_axis(spread, places, weights, axis=-1)
        return spread @ floats(table)
    return np.stack([some @ floats(table[at]) for some, at in zip(weights, places, strict=True)])
