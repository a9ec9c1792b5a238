"""LoRA (Hu et al., arXiv 2106.09685): factors of low rank learn, and the model that a run starts from stays as it is.

Factors get AdamW and no Muon. Muon makes all singular values of a matrix's step alike; the step of B A is not that of
B or of A, so what it promises of a matrix does not hold of a product, and at first, with B = 0, it would move all r
directions alike, whatever their gradients. AdamW is also what rates of published recipes are for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from daguerre.errors import CheckpointError, InputError, unknown
from daguerre.files import synced_write, write_json
from daguerre.models.core.backbone import Backbone
from daguerre.models.families.base import Piece, changed_back
from daguerre.models.loading import weights_hash
from daguerre.models.lora import CONFIG, WEIGHTS, WRAPPED, merge_adapter
from daguerre.models.lora_factors import adapted, attach
from daguerre.models.lora_names import AdapterNames, is_conv, module_of, published_factor
from daguerre.models.weights import formatted
from daguerre.train.keys import Section, key

ALL = "all-linear"
"""Every matrix that multiplies rows, but the vocabulary projection; as PEFT's word."""
NOT_CALLED = ("router", "known_embedding")
"""Ends of the names of matrices that are not multiplied with rows as a module."""


@dataclass(frozen=True, kw_only=True)
class Lora(Section, place="lora."):
    """The table [lora] of a recipe. `targets` and `whole` are names of modules, or of the end of them, as published or
    as in our backbone: q_proj, layers.0.self_attn.q_proj, qkv.
    """

    rank: int = key("rank of the factors", 8, low=1)
    alpha: float = key("products are multiplied by alpha / rank", 16.0, above=0)
    targets: Sequence[str] = key(
        "modules with factors, by names or their ends; all-linear: every matrix but the projection", (ALL,)
    )
    dropout: float = key("dropout of the factors' inputs", 0.0, low=0, below=1)
    rslora: bool = key("alpha / sqrt(rank) instead", False)
    whole: Sequence[str] = key("modules trained whole, beside the factors (PEFT: modules_to_save)", ())

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise InputError(f'recipe: lora.targets is empty: name modules, or "{ALL}"')

    @property
    def scale(self) -> float:
        """What products are multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True)
class Base:
    """The model that an adapter is for: its folder, the name by which it is loaded, and its published names."""

    folder: Path
    name: str
    published: AdapterNames
    is_causal: bool

    def facts(self) -> dict[str, str]:
        """What a checkpoint keeps of it, in place of its weights."""
        return {"path": str(self.folder), "weights_sha256": weights_hash(self.folder)}

    def check(self, saved: Mapping[str, str], path: Path) -> None:
        """CheckpointError where a run began with other weights."""
        if saved["weights_sha256"] != weights_hash(self.folder):
            raise CheckpointError(
                f"{path} began with other weights than those of {self.folder} now: give the model it began with, with "
                "--from"
            )


@dataclass(frozen=True)
class LoraRun:
    """The adapter of a run: which matrices have factors, and which weights are trained whole."""

    options: Lora
    base: Base
    targets: tuple[Piece, ...]
    whole: tuple[Piece, ...]

    def line(self, backbone: Backbone) -> str:
        """What is trained, for people."""
        trained = sum(p.numel() for p in backbone.parameters() if p.requires_grad)
        share = trained / sum(p.numel() for p in backbone.parameters())
        beside = f", and {len(self.whole)} tensors whole" if self.whole else ""
        return (
            f"LoRA of rank {self.options.rank} beside {len(self.targets)} matrices{beside}: {trained:,} weights are "
            f"trained ({share:.1%})"
        )

    def write(self, folder: Path, backbone: Backbone, values: Mapping[str, Tensor], extra: Mapping[str, Any]) -> Path:
        """Write the adapter in PEFT's layout, with the factors that `values` has under the names of parameters."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(self._tensors(backbone, values))
        with synced_write(folder / WEIGHTS) as file:
            file.write(formatted(tensors, [*tensors], torch.float32))
        for name, content in ((CONFIG, self._config()), ("training.json", dict(extra))):
            write_json(folder / name, content, indent=2)
        return folder

    def merge(self, merged: Backbone, backbone: Backbone, values: Mapping[str, Tensor]) -> None:
        """Add the products of the factors in `values` to the weights of `merged`, as loading the adapter would."""
        with TemporaryDirectory() as folder:
            published = self.base.published
            merge_adapter(merged, published.pieces, self.write(Path(folder), backbone, values, {}), published.prefix)

    def _tensors(self, backbone: Backbone, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, piece, factors in adapted(backbone):
            kind = "lora_embedding_{}" if factors.embedding else "lora_{}.weight"
            module = WRAPPED + module_of(piece)
            a, b = values[f"{name}.a"], values[f"{name}.b"]
            yield f"{module}.{kind.format('A')}", a
            yield f"{module}.{kind.format('B')}", b if factors.embedding else published_factor(piece, b)
        for piece in self.whole:
            yield f"{WRAPPED}{piece.name}", changed_back(piece, values[piece.target][piece.index])

    def _config(self) -> dict[str, Any]:
        options = self.options
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM" if self.base.is_causal else None,
            "base_model_name_or_path": self.base.name,
            "r": options.rank,
            "lora_alpha": options.alpha,
            "lora_dropout": options.dropout,
            "use_rslora": options.rslora,
            "target_modules": self._shortest(self.targets),
            "modules_to_save": self._shortest(self.whole) or None,
            "bias": "none",
            "fan_in_fan_out": any(is_conv(piece) for piece in self.targets),
            "init_lora_weights": True,
            "inference_mode": True,
        }

    def _shortest(self, pieces: Sequence[Piece]) -> list[str]:
        """Names for PEFT, which takes every module whose name ends with one of them, even in the middle of a word: the
        last word of a name where every module that ends with it is meant, else the whole name.
        """
        wanted = {module_of(piece) for piece in pieces}
        every = {module_of(piece) for piece in self.base.published.pieces}
        words = {name.rpartition(".")[2] for name in wanted}
        clear = {word for word in words if {name for name in every if name.endswith(word)} <= wanted}
        return sorted(clear | {name for name in wanted if name.rpartition(".")[2] not in clear})


def start_lora(backbone: Backbone, options: Lora, base: Base, seed: int) -> LoraRun:
    """Give a backbone fresh factors, and freeze the rest. InputError for targets that it does not have."""
    pieces = [piece for piece in base.published.pieces if not piece.copy]
    can = [piece for piece in pieces if _can_have_factors(backbone, piece)]
    linear = [piece for piece in can if not isinstance(_module(backbone, piece), nn.Embedding)]
    targets = [piece for word in options.targets for piece in (linear if word == ALL else _named(word, can, "targets"))]
    whole = [piece for word in options.whole for piece in _named(word, pieces, "whole")]
    _check_whole(backbone, whole, pieces)
    taken = {piece.target for piece in whole}
    once = {piece.name: piece for piece in targets if piece.target not in taken}
    attach(backbone, [*once.values()], options.rank, options.scale, options.dropout, seed)
    for piece in whole:
        backbone.get_parameter(piece.target).requires_grad_(True)
    return LoraRun(options, base, tuple(once.values()), tuple({piece.name: piece for piece in whole}.values()))


def _module(backbone: Backbone, piece: Piece) -> nn.Module | None:
    try:
        return backbone.get_submodule(piece.target.rpartition(".")[0])
    except AttributeError:
        return None


def _can_have_factors(backbone: Backbone, piece: Piece) -> bool:
    """Whether a piece is a matrix that a module multiplies rows with, or an embedding that is no projection, too."""
    module = _module(backbone, piece)
    if not piece.target.endswith(".weight") or any(not isinstance(part, slice) for part in piece.index):
        return False
    if isinstance(module, nn.Embedding):
        return not (backbone.config.tied and module is backbone.embedding)
    name = piece.target.removesuffix(".weight")
    return isinstance(module, nn.Linear) and module is not backbone.output and not name.endswith(NOT_CALLED)


def _named(word: str, pieces: Sequence[Piece], where: str) -> list[Piece]:
    """The pieces whose module's name, published or ours, is or ends with a name."""
    names = [(module_of(piece), piece.target.rpartition(".")[0]) for piece in pieces]
    found = [p for p, both in zip(pieces, names, strict=True) if any(f".{n}".endswith(f".{word}") for n in both)]
    if not found:
        known = {name.rpartition(".")[2] for both in names for name in both}
        raise InputError(f"recipe: {unknown(f'module in lora.{where}', word, sorted({*known, ALL}))}")
    return found


def _check_whole(backbone: Backbone, whole: Sequence[Piece], pieces: Sequence[Piece]) -> None:
    """InputError for a part of a fused matrix, and for a tied embedding."""
    for piece in whole:
        parts = {each.name for each in pieces if each.target == piece.target}
        if not parts <= {each.name for each in whole}:
            raise InputError(
                f"recipe: lora.whole has {module_of(piece)}, which is one matrix with others here: name all of "
                f"{', '.join(sorted(parts))}, or make it one of lora.targets"
            )
        if backbone.config.tied and piece.target == "embedding.weight":
            raise InputError("recipe: lora.whole has the embedding, which is the projection, too: leave it out")
