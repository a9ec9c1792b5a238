"""What a family of published checkpoints declares: how its files become a `ModelConfig` and a backbone's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, UnsupportedError, shown
from daguerre.models.bits import floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.published_facts import Published as Published

Weights = Any
"""The numbers of a tensor: NumPy's, of bfloat16 the bits as uint16, or PyTorch's."""
Change = Callable[[Weights], Weights]


def as_floats(weight: Weights) -> Weights:
    """The numbers of a tensor as float32."""
    return floats(weight) if isinstance(weight, np.ndarray) else weight.float()


@dataclass(frozen=True, slots=True)
class Piece:
    """A published tensor, and the part of one of our tensors that it becomes.

    name    the published name
    target  the name in `Backbone.state_dict()`
    index   the part of the target, which the tensor fills; () is all of it
    change  what is done to the published tensor first, such as a transposition; works on arrays and on tensors
    undo    what makes the published tensor again; None: the change itself does
    rows    whether the change does nothing but move rows
    copy    the tensor may be missing: it repeats another piece, such as a tied projection, and must be equal to it
    """

    name: str
    target: str
    index: tuple[slice | int, ...] = ()
    change: Change | None = None
    copy: bool = False
    undo: Change | None = None
    rows: bool = False


def changed_back(piece: Piece, ours: Weights) -> Weights:
    """A tensor as it was published. What is done when it is read undoes itself, or the piece says what does."""
    if piece.undo is not None:
        return piece.undo(ours)
    if piece.change is None:
        return ours.clone() if piece.copy else ours  # files hold no tensor twice
    theirs = piece.change(ours)
    if not bool((piece.change(theirs) == ours).all()):
        raise UnsupportedError(f"{piece.name} cannot be written back: save the model in another layout")
    return theirs


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """An adapter that a checkpoint may bring along in PEFT's layout, and that becomes weights of its own in our model
    instead of being merged (`models.bundled`).

    folder  its folder, beside config.json
    pieces  where its tensors belong, for a config and what adapter_config.json says; none where the config has no
            place for them
    """

    folder: str
    pieces: Callable[[ModelConfig, Mapping[str, Any]], list[Piece]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the published checkpoints of one kind are read.

    title           one line for people: which models these are
    model_types     of `config.json`; several families may share one
    architectures   of `config.json`; looked at first
    marks           keys of `config.json` that tell this family from others of the same architecture
    names           regular expressions that do so where the config cannot; they are looked for in the name on a hub, or
                    of the folder
    prefix          what the names of published tensors begin with, and lack where the model was saved without its head
    read            the `ModelConfig` of published files. UnsupportedError for what this family cannot honor
    pieces          where every published tensor belongs
    ignored         regular expressions of names of published tensors that hold nothing of the model
    bundled         an adapter that a checkpoint may bring along
    tokenizer       a name on a hub whose tokenizer is that of checkpoints without one
    decode          the published defaults of generation, as options of `daguerre.Decode`
    examples        names on a model hub
    source          paper or page
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Published], ModelConfig]
    pieces: Callable[[ModelConfig], list[Piece]]
    marks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    bundled: Bundled | None = None
    tokenizer: str = ""
    decode: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    source: str = ""


def token_id(values: Mapping[str, Any], key: str) -> int | None:
    """The id of a token that a file names by its number; None where it names none."""
    index = values.get(key)
    if index is not None and type(index) is not int:
        raise CheckpointError(f"{key} must be the number of a token, not {shown(index)}; copy the file again")
    return index
