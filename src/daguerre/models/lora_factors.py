"""Factors of low rank beside the matrices of a backbone, which are trained while the matrices stay as they are.

Each published matrix has factors of its own, as under PEFT: a fused one of ours, such as qkv, has those of its parts.

Letters: I and O numbers before and after a matrix, r the rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.backbone import Backbone
from daguerre.models.families.base import Piece
from daguerre.models.lora_names import rows_of

NAME = "lora"
"""What the names of factors have in them, and no others: `layers.0.attention.qkv.lora.parts.0.a`."""


class Factors(nn.Module):
    """A matrix of low rank, (O, I): the product of `b` (O, r) and `a` (r, I), times a scale.

    `a` is drawn as PEFT draws it and `b` is zero, so that at first nothing is added; for an embedding the other way
    round.
    """

    def __init__(self, num_in: int, num_out: int, rank: int, scale: float, *, embedding: bool = False) -> None:
        super().__init__()
        self.scale, self.embedding = scale, embedding
        self.a, self.b = nn.Parameter(torch.zeros(rank, num_in)), nn.Parameter(torch.zeros(num_out, rank))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Random numbers in one of the factors."""
        if self.embedding:
            self.b.normal_(generator=generator)
        else:
            bound = 1 / math.sqrt(self.a.shape[1])
            self.a.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """What is added to a matrix's results, (..., O), for its inputs (..., I), or for tokens (...)."""
        a, b = self.a, self.b
        if self.embedding:
            return self.scale * F.linear(F.embedding(x, a.t()), b)
        return self.scale * F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype))


@dataclass(frozen=True)
class FactorBlock:
    """Factors of the rows [start, stop) of a matrix of ours, and the published matrix that these are."""

    start: int
    stop: int
    piece: Piece


class Adapted(nn.Module):
    """The factors of the parts of one matrix. Dropout is of the inputs, and only where gradients are computed."""

    def __init__(self, num_out: int, parts: Sequence[tuple[FactorBlock, Factors]], dropout: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(factors for _, factors in parts)
        self.published = [part for part, _ in parts]
        self.num_out, self.dropout = num_out, dropout

    def forward(self, x: Tensor) -> Tensor:
        out, at = [], 0
        for part, factors in zip(self.published, self.parts, strict=True):
            dropped = x.is_floating_point() and self.training and torch.is_grad_enabled()
            made = factors(F.dropout(x, self.dropout) if dropped and self.dropout else x)
            if part.start > at:
                out.append(made.new_zeros(*made.shape[:-1], part.start - at))
            out.append(made)
            at = part.stop
        if at < self.num_out:
            out.append(out[0].new_zeros(*out[0].shape[:-1], self.num_out - at))
        return out[0] if len(out) == 1 else torch.cat(out, dim=-1)


def attach(backbone: Backbone, pieces: Sequence[Piece], rank: int, scale: float, dropout: float, seed: int) -> None:
    """Put fresh factors beside the matrices that pieces are of, and freeze all else."""
    backbone.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    by_target: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_target.setdefault(piece.target.removesuffix(".weight"), []).append(piece)
    for name, found in by_target.items():
        matrix, (num_out, num_in) = backbone.get_submodule(name), backbone.get_parameter(f"{name}.weight").shape
        embedding = isinstance(matrix, nn.Embedding)
        if embedding:
            num_out, num_in = num_in, num_out
        parts = []
        for piece in sorted(found, key=lambda piece: _rows(piece, num_out).start):
            rows = _rows(piece, num_out)
            rows_of(piece, rows.stop - rows.start)  # which refuses what cannot be written
            factors = Factors(num_in, rows.stop - rows.start, rank, scale, embedding=embedding)
            factors.initialize(generator)
            parts.append((FactorBlock(rows.start, rows.stop, piece), factors))
        matrix.add_module(NAME, Adapted(num_out, parts, dropout))
        matrix.register_forward_hook(_add)


def _add(matrix: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Any:
    """The hook that adds the factors' results to those of their matrix."""
    return out + matrix.get_submodule(NAME)(inputs[0]).to(out.dtype)


def _rows(piece: Piece, num_out: int) -> slice:
    rows = piece.index[0] if piece.index else slice(0, num_out)
    assert isinstance(rows, slice)
    return slice(rows.start or 0, num_out if rows.stop is None else rows.stop)


def adapted(backbone: Backbone) -> Iterator[tuple[str, Piece, Factors]]:
    """Every pair of factors: the name of its parameters, up to the last dot, and the published matrix that it is of."""
    for name, module in backbone.named_modules():
        if isinstance(module, Adapted):
            for number, (part, factors) in enumerate(zip(module.published, module.parts, strict=True)):
                assert isinstance(factors, Factors)
                yield f"{name}.parts.{number}", part.piece, factors
