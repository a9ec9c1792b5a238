"""Canonical JSON (RFC 8785): the one way of writing a value, so that hash and signature can be computed again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from daguerre.errors import DataError, MissingExtra


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value. DataError for what has none: not a number, infinite, beyond 2^53."""
    try:
        import rfc8785
    except ImportError:
        raise MissingExtra("rfc8785", "audit") from None
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise DataError(f"a record cannot hold this value ({error}): give numbers and texts that JSON has") from None


def digest(content: bytes) -> str:
    """SHA-256, in 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON does not have as the text that Python shows of it."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Sequence | np.ndarray | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain(one) for one in value]
    return repr(value)


def salted(salt: str, value: Any) -> str:
    """A hash of a value that nobody can guess the value of without the salt."""
    return digest(salt.encode() + canonical(value))
