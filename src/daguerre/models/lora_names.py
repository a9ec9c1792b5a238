"""Under which published names an adapter has the matrices of a model, and how its factors turn into ours and back.

Letters: I and O numbers before and after a matrix, r the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.families import FAMILIES
from daguerre.models.families.base import Piece
from daguerre.models.families.gpt2 import transposed
from daguerre.models.families.llama import llama_pieces

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdapterNames:
    """The pieces of a model, by the names of the publisher's class, all of which begin with `prefix` or with none; and
    its family, if it has one.
    """

    pieces: tuple[Piece, ...]
    prefix: str = ""
    family: str | None = None


def names_in(config: ModelConfig, family: str | None) -> AdapterNames:
    """The names of a model of a family; None: of Daguerre's own layout."""
    if family is None:
        return AdapterNames(tuple(own_pieces(config)), "model.")
    found = FAMILIES[family]
    return AdapterNames(tuple(found.pieces(config)), found.prefix, family)


def own_pieces(config: ModelConfig) -> list[Piece]:
    """The pieces of a model in Daguerre's own layout: under the names that `daguerre export --out` gives them, so that
    PEFT finds them there; the rest, and all of a model that cannot be exported, under their own.
    """
    from daguerre.models.export import class_of

    own = [Piece(name, name) for name in parameter_shapes(config)]
    try:
        class_of(config)
    except UnsupportedError:
        return own
    llama = llama_pieces(config)
    known = {piece.target for piece in llama}
    return llama + [piece for piece in own if piece.target not in known]


def is_conv(piece: Piece) -> bool:
    """Whether a published matrix is a Conv1D, (I, O): PEFT's factors of it are those of a Linear."""
    return piece.change is transposed


def rows_of(piece: Piece, num: int) -> Tensor:
    """Which published row each of our `num` rows of a piece is, int64 (O,)."""
    import torch

    if piece.change is None or is_conv(piece):
        return torch.arange(num)
    rows, columns = piece.change(torch.arange(num)[:, None].expand(num, 2)), piece.change(torch.ones(num, 2))
    if rows.shape != (num, 2) or not torch.equal(rows[:, 0], rows[:, 1]) or not bool((columns == 1).all()):
        raise UnsupportedError(f"{piece.name} is changed in more than its order of rows: it cannot have an adapter")
    return rows[:, 0]


def published_factor(piece: Piece, b: Tensor) -> Tensor:
    """The factor B (O, r) of a published matrix, from ours."""
    out = b.clone()
    out[rows_of(piece, len(b))] = b
    return out


def module_of(piece: Piece) -> str:
    """The published name of a piece's module."""
    return piece.name.rpartition(".")[0]
