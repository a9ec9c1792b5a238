"""The teacher of a run: the model, where it is, and what it reads of a batch.

Letters: B sequences, R rows, C clean rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from daguerre.errors import CheckpointError, InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import CLEAN, NO_HORIZON, Rows, run_batch
from daguerre.models.loading import load_model, model_folder, weights_hash
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch
from daguerre.train.chosen import keep_frozen_in
from daguerre.train.noising import IGNORE


@dataclass(frozen=True)
class FrozenTeacher:
    """An autoregressive model that no run changes, and the folder or file that it was read from."""

    model: Backbone
    path: Path

    @classmethod
    def open(
        cls, path: Path, tokenizer: Tokenizer, dtype: torch.dtype, place: Callable[[Backbone], Backbone]
    ) -> FrozenTeacher:
        """Read it, its matrices in `dtype`; `place` puts it onto devices. InputError for a model that is not
        autoregressive, or has other tokens than the student.
        """
        model, words = load_model(path, dtype=torch.float32, device="cpu")
        if model.config.context != "causal" or not model.config.shift:
            raise InputError(f"teacher.model: {path} is not autoregressive: name the model that was converted")
        if words.to_bytes() != tokenizer.to_bytes():
            raise InputError(f"teacher.model: {path} has other tokens than the trained model: name its start")
        model.requires_grad_(False).eval()
        keep_frozen_in(model, dtype)
        return cls(place(model), path)

    def facts(self) -> dict[str, str]:
        """What a checkpoint keeps of it."""
        return {"path": str(self.path), "weights_sha256": weights_hash(self.path)}

    def check(self, saved: Mapping[str, str] | None, path: Path) -> None:
        """CheckpointError where a run began with another teacher."""
        if saved is None or saved["weights_sha256"] != self.facts()["weights_sha256"]:
            raise CheckpointError(f"{path} had another teacher than {self.path}: set teacher.model to that one")

    @torch.no_grad()
    def hidden(self, batch: Batch, attn_impl: str) -> Tensor:
        """The hidden states (B, C, D) of the clean rows of a batch, each text read from left to right."""
        rows, num = batch.layout.rows[: batch.layout.num_clean], batch.layout.num_clean
        position = torch.arange(num, device=batch.tokens.device) - first_rows(rows).gather(1, rows.document)
        labels = Rows.make(position.clamp(min=0), span=rows.span, document=rows.document)
        plain = not bool(rows.document.any())
        layout = replace(
            batch.layout, rows=labels, context="causal", block_size=None, plain=plain, seen=None, in_order=False
        )
        return run_batch(self.model, batch.tokens[:, :num], layout, attn_impl=attn_impl)


def teacher_path(name: str, start_from: str | None) -> Path:
    """Where the teacher is that a recipe names, or else the model that the run starts from, or started from. InputError
    where there is none.
    """
    if not name and start_from is None:
        raise InputError("recipe: [teacher] needs a model: start from one with --from, or name it as teacher.model")
    return Path(model_folder(name) if name else str(start_from))


def first_rows(rows: Rows) -> Tensor:
    """The first clean row of each text that is packed into a sequence, int64 (B, documents)."""
    num, clean = rows.num_rows, rows.span == CLEAN
    place = torch.where(clean, torch.arange(num, device=clean.device), num)
    first = place.new_full((len(place), int(rows.document.max()) + 1), num)
    return first.scatter_reduce(1, rows.document, place, "amin")


@dataclass(frozen=True)
class TaughtRows:
    """The rows of a batch that have a target: their sequence and place, int64 (N,) each; the clean row of the teacher
    that predicts the same token from the text before it, 0 where there is none; and whether there is one, bool (N,).
    """

    sequence: Tensor
    row: Tensor
    teacher: Tensor
    taught: Tensor

    @classmethod
    def of(cls, batch: Batch) -> TaughtRows:
        rows, num = batch.layout.rows, batch.layout.num_clean
        sequence, row = (batch.target != IGNORE).nonzero(as_tuple=True)
        origin = batch.origin[sequence, row]
        first = first_rows(rows[:num])[sequence, rows.document[sequence, row]]
        noisy = rows.span[sequence, row] != CLEAN
        sees_later = noisy & (rows.horizon[sequence, row] == NO_HORIZON)
        taught = (origin > 0) & ~sees_later
        return cls(sequence, row, torch.where(taught, first + origin - 1, 0), taught)
