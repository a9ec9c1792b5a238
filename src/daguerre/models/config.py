"""The facts that make a model loadable: shape of the backbone, context, shift, special tokens."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from daguerre.errors import CheckpointError, unknown

Context = Literal["causal", "block", "full"]
CONTEXTS: tuple[Context, ...] = ("causal", "block", "full")
ProcessName = Literal["absorbing", "uniform", "hybrid"]
PROCESS_NAMES: tuple[ProcessName, ...] = ("absorbing", "uniform", "hybrid")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a backbone and the facts of its family; set by a recipe, stored in `config.json`.

    `context` says how settled tokens were computed (DESIGN, section 2). With `shift`, the row at position j
    predicts the token at j+1. `null_id` is None for a model that was not trained to end gaps with nulls. `process` is
    the noise that it was trained to undo. With `time_input` it is told the noise level: of the absorbing process the
    share of what may be masked that is, else t. `draft_head` is the inner width of its draft head, 0 without one.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    max_positions: int
    mask_id: int
    eos_id: int
    bos_id: int
    pad_id: int
    null_id: int | None = None
    num_reserved: int = 16
    context: Context = "causal"
    shift: bool = True
    block_size: int | None = None
    process: ProcessName = "absorbing"
    time_input: bool = False
    draft_head: int = 0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    family: str = "daguerre"

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise unknown("context", self.context, CONTEXTS)
        if self.context == "block" and not self.block_size:
            raise CheckpointError("a model with block context needs `block_size` in its config.json")
        if self.process not in PROCESS_NAMES:
            raise unknown("process", self.process, PROCESS_NAMES)
        if self.time_input and self.context != "full":
            raise CheckpointError("a model with `time_input` needs full context: spans have no common noise level")
        if self.process != "absorbing" and (self.shift or not self.time_input):
            raise CheckpointError(f"a model of the {self.process} process needs `time_input`, and no shift")
        if self.draft_head and (self.context != "causal" or not self.shift):
            raise CheckpointError("a model with `draft_head` needs causal context and a shift: no other drafts ahead")
        if self.width % self.num_heads or self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"width {self.width} must divide by {self.num_heads} heads, and those by {self.num_kv_heads} for keys"
            )

        if self.head_width % 2:
            raise CheckpointError(f"heads of width {self.head_width} cannot be rotated: make it even")

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def unpredictable_ids(self) -> tuple[int, ...]:
        """Reserved tokens that no row may predict: all but the end of text and the null."""
        return tuple(i for i in range(self.num_reserved) if i not in (self.eos_id, self.null_id))

    @property
    def ends(self) -> list[int]:
        """The end of text, and the null where there is one."""
        return [self.eos_id] if self.null_id is None else [self.eos_id, self.null_id]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config.json") -> ModelConfig:
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise CheckpointError(f"{source}: {unknown('key', key, known)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"{source} is incomplete: {error}") from None
