"""The models that have a short name, read from `assets/models.toml`, which says what each field is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

FILE = "models.toml"
PUBLISHED_BITS = 16
"""Bits of a weight in a publisher's folder."""
OVERHEAD, PROGRAM = 1.1, 150_000_000
"""What packed weights take, beside their file (measured: 1.02 to 1.16 times), and bytes of the program itself."""
CONTEXT = 4096
"""Tokens of a text whose keys and values are counted as memory."""


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A model that has a short name; see `assets/models.toml`."""

    name: str
    purpose: str
    parameters: int
    also: tuple[str, ...] = ()
    repository: str | None = None
    wheel: str | None = None
    file: str | None = None
    quantization: str | None = None
    bytes: int | None = None
    bits: float = PUBLISHED_BITS
    sha256: str | None = None
    active: int | None = None
    experts: tuple[int, int] | None = None
    cache: int = 0
    rows: int = 1
    licence: str | None = None
    tried: bool = False

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, and not a publisher's folder."""
        return self.file is not None or self.quantization is not None

    @property
    def size(self) -> int:
        """Bytes of the weights; `bytes` is None where this is only about right."""
        return self.bytes or round(self.parameters * self.bits / 8)

    @property
    def memory(self) -> int:
        """About how many bytes a process takes, with a text of CONTEXT tokens."""
        return round(self.size * OVERHEAD) + self.cache * CONTEXT + PROGRAM

    @property
    def read(self) -> float:
        """About how many bytes of weights a forward reads. Of a mixture, experts that no row chooses are left out, if
        rows choose independently.
        """
        if self.experts is None or self.active is None:
            return self.size
        num, each = self.experts
        rest = (self.active - self.parameters * each / num) / (1 - each / num)  # shared by all tokens
        chosen = 1 - (1 - each / num) ** self.rows
        return (rest + (self.parameters - rest) * chosen) / self.parameters * self.size


@cache
def catalogue() -> tuple[CatalogueEntry, ...]:
    """Every entry, in the order of the file."""
    import tomllib

    content = (resources.files("daguerre") / "assets" / FILE).read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(content)["model"]
    frozen: Iterator[dict[str, Any]] = (
        {key: tuple(value) if isinstance(value, list) else value for key, value in each.items()} for each in entries
    )
    return tuple(CatalogueEntry(**each) for each in frozen)


def entry_of(name: str) -> CatalogueEntry | None:
    """The entry of a name, in capitals or not; None where there is none."""
    low = name.lower()
    return next((each for each in catalogue() if low in (each.name, *each.also)), None)


def known_names() -> list[str]:
    """Every name that an entry has."""
    return [name for each in catalogue() for name in (each.name, *each.also)]
