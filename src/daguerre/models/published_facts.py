"""What the files of a published checkpoint say of it, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the files of a published checkpoint say; empty where a file is missing.

    config, generation, tokenizer   config.json, generation_config.json and tokenizer_config.json
    tokens      ids of added tokens, by their text
    bos_id      the token that the tokenizer puts before every text; None: there is none
    num_tokens  how many ids the tokenizer has; None: the checkpoint has no tokenizer
    shapes      shapes of the published tensors, by name; empty where the weights are not there
    name        the name on a hub, or of the folder
    adapter     adapter_config.json of the adapter that the checkpoint brings along (`Bundled`); empty without one
    family      the name of the family, where the files themselves say it (GGUF, and what is written back here); None:
                it is to be found
    file        what its config was read from
    never       tokens that are not predicted, where the files themselves say so (GGUF)
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    bos_id: int | None = None
    num_tokens: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = ""
    adapter: Mapping[str, Any] = field(default_factory=dict)
    family: str | None = None
    file: str = "config.json"
    never: tuple[int, ...] = ()
