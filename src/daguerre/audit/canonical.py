"""Canonical JSON (RFC 8785): the one way of writing a value, so that hash and signature can be computed again."""

from __future__ import annotations

import hashlib
from typing import Any

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
