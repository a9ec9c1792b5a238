"""Other files of a repository, as a model reads them before the file with a gap.

A model with tokens for it reads the repository's name and each file behind its name (Qwen2.5-Coder, arXiv 2409.12186).
The names of the repository and of the file at hand, which no request gives, are those of llama-server's /infill, so
that both make the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from daguerre.decoding.sides import TOKEN_LENGTH
from daguerre.models.core.config import FimTokens
from daguerre.models.tokenizer import Tokenizer

Files = tuple[tuple[str, str], ...]
"""Names and texts of files."""
NAME, CURRENT = "myproject", "filename"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before a file where the model has no token for it."""
BETWEEN = "\n\n"
"""What ends each file before a text that is written on without such tokens."""


def read_files(fim: FimTokens, tokenizer: Tokenizer, files: Files) -> list[int]:
    """The token ids of the files, and of what names the file at hand."""

    def plain(text: str) -> list[int]:
        return tokenizer.encode_plain(text, begins=False)

    out = [] if fim.repository is None else [fim.repository, *plain(f"{NAME}\n")]
    for name, text in files:
        out += plain(SNIPPET) if fim.file is None else [fim.file, *plain(f"{name}\n")]
        out += plain(text)
    return out if fim.file is None else [*out, fim.file, *plain(f"{CURRENT}\n")]


def joined_files(texts: Sequence[str]) -> str:
    """The texts one after the other, with an empty line between; those that are empty are left out."""
    return "".join(text.rstrip("\n") + BETWEEN for text in texts if text)


def kept_files(tokenizer: Tokenizer, files: Files, room: int) -> Files:
    """The last files that have at most `room` tokens together; of the one before them, the first lines that fit."""
    kept: list[tuple[str, str]] = []
    for name, text in reversed(files):
        if len(text) > max(0, room) * TOKEN_LENGTH:
            text = text[: text.rfind("\n", 0, max(0, room) * TOKEN_LENGTH) + 1]
        while text and (used := len(tokenizer.encode_plain(f"{name}\n{text}"))) > room:
            shorter = text[: len(text) * room // used] if room > 0 else ""
            text = shorter[: shorter.rfind("\n") + 1]
        if text:
            room -= len(tokenizer.encode_plain(f"{name}\n{text}"))
            kept.append((name, text))
        if not text or room <= 0:
            break
    return tuple(reversed(kept))
