"""A backbone of the bench as a GGUF file, for llama.cpp: `daguerre.models.gguf.writing`, in the bench's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from daguerre.errors import MissingExtra, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.gguf import writing
from daguerre.models.tokenizer import Tokenizer

Arch = Literal["qwen3", "llama"]


def write_gguf(backbone: Backbone, path: Path, dtype: str, arch: Arch = "qwen3", tokenizer: Path | None = None) -> None:
    """Write the weights with matrices in `dtype`, such as "BF16", and norms in float32; and the byte-level BPE of a
    `tokenizer.json`. Without one there is no vocabulary: ids in, ids out. "llama" leaves QK-norm out, for random
    weights whose values do not matter.

    UnsupportedError for a backbone without causal context, and one that llama.cpp has no architecture for; MissingExtra
    without the `gguf` package.
    """
    try:
        writing.package()
    except MissingExtra:
        raise MissingExtra("gguf", "bench") from None
    if backbone.config.context != "causal":
        raise UnsupportedError(f"llama.cpp writes no text with {backbone.config.context} context: leave it out")
    read = None if tokenizer is None else Tokenizer.load(tokenizer)
    writing.write_gguf(_without_qk_norm(backbone) if arch == "llama" else backbone, read, path, dtype.lower())


def _without_qk_norm(backbone: Backbone) -> Backbone:
    """The weights without the QK-norms."""
    plain = Backbone(replace(backbone.config, qk_norm=False, draft_head=0, draft_rank=0))
    known = plain.state_dict().keys()
    plain.load_state_dict({name: weight for name, weight in backbone.state_dict().items() if name in known})
    return plain
