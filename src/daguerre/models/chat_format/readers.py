"""What reads answers of a format."""

from __future__ import annotations

from typing import Any

from daguerre.models.chat_format.description import Format
from daguerre.models.chat_format.harmony import HarmonyReader
from daguerre.models.chat_format.reader import FormatReader


def reader_of(form: Format, *given: Any, **options: Any) -> FormatReader:
    """A reader; arguments as of `FormatReader`."""
    kind = HarmonyReader if form.source.startswith("named (harmony") else FormatReader
    return kind(form, *given, **options)
