"""Tokens of fill-in-the-middle, as published files name them: by keys of a GGUF file, or by the texts of added tokens.

Most models read the text before the gap first. Which ones read the text after it first is known by the texts of their
tokens. The texts are those that llama.cpp knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from daguerre.models.core.shapes import FimTokens
from daguerre.models.families.base import Published, token_id


@dataclass(frozen=True)
class FimTexts:
    """The texts of one kind of model."""

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False


KINDS = (
    FimTexts("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma
    FimTexts("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    FimTexts("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FimTexts("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    FimTexts("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4.5
    FimTexts("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    FimTexts("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    FimTexts("[PREFIX]", "[SUFFIX]", None, suffix_first=True),  # Codestral
)
REPOSITORIES = ("<|repo_name|>", "<repo_name>", "<reponame>")
FILES = ("<|file_sep|>", "<file_sep>", "<filename>", "<|file_separator|>")
NAMES = ("prefix", "suffix", "middle", "repository", "file")


def fim_tokens(published: Published, size: int) -> FimTokens | None:
    """The tokens of a checkpoint whose vocabulary has `size` rows; None where it has none for both sides of a gap."""
    ids = {text: index for text, index in published.tokens.items() if index < size}
    kind = next((kind for kind in KINDS if {kind.prefix, kind.suffix, kind.middle or kind.prefix} <= ids.keys()), None)
    texts = {"repository": REPOSITORIES, "file": FILES}
    if kind is not None:
        texts |= {"prefix": (kind.prefix,), "suffix": (kind.suffix,), "middle": (kind.middle,) if kind.middle else ()}
    found = {name: ids[text] for name, each in texts.items() for text in each[::-1] if text in ids}
    named = {name: token_id(published.config, f"fim_{name}_token_id") for name in NAMES}
    found |= {name: index for name, index in named.items() if index is not None and 0 <= index < size}
    if not {"prefix", "suffix"} <= found.keys():
        return None
    return FimTokens(suffix_first=kind is not None and kind.suffix_first, **found)
