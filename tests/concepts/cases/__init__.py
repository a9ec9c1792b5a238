"""Snippets for every concept: `«` and `»` enclose the spans that its detector has to find, and no others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """yes: with spans. no: without any. tricky: what a search for words, or a careless detector, would get wrong, with
    or without spans.
    """

    yes: tuple[str, ...]
    no: tuple[str, ...]
    tricky: tuple[str, ...]
