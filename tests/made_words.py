"""GGUF files that have a tokenizer and nothing else, made here, and slow readings of kind `llama`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEXT, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = range(1, 7)
Word = tuple[str, int, float]
"""A token, its type and its score."""
MERGED = "▁t he ▁the ab cab ▁▁ ▁▁▁ ▁▁▁▁".split()
LLAMA: tuple[Word, ...] = (
    *(("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)),
    *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)),
    *((text, TEXT, -1e9 if set(text) == {"▁"} else float(-rank)) for rank, text in enumerate(MERGED)),
    *((letter, TEXT, -100.0 - number) for number, letter in enumerate("▁thecab")),
    *(("<|user|>", CONTROL, -1000.0), ("[defined]", ADDED, -1000.0), ("<spare>", UNUSED, -1000.0)),
)
"""A small vocabulary of kind `llama`; runs of spaces have one score, as Llama 2's."""


def write_words(path: Path, words: Sequence[Word], name: str = "tiny", **keys: Any) -> Path:
    """A file with these tokens, and keys of `tokenizer.ggml`, of which `model` is the kind."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(name)
    writer.add_token_list([text for text, _, _ in words])
    writer.add_token_types([kind for _, kind, _ in words])
    writer.add_token_scores([score for _, _, score in words])
    for key, value in keys.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](f"tokenizer.{key}" if key == "chat_template" else f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merged(text: str, scores: Mapping[str, float]) -> list[str]:
    """A text in characters, of which the two neighbors that make the token of the highest score are joined, the
    leftmost of equal ones, until none make any.
    """
    parts = list(text)
    while True:
        joined = [
            (-scores[a + b], place)
            for place, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
            if a + b in scores
        ]
        if not joined:
            return parts
        _, place = min(joined)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def random_scores(rng: random.Random, letters: str, size: int) -> dict[str, float]:
    """Tokens that are made of others, each of its own score; scores say nothing of which was made first."""
    made = [*letters]
    while len(made) < size:
        text = rng.choice(made) + rng.choice(made)
        made += [text] if text not in made and len(text) <= 8 else []
    ranks = rng.sample(range(size), size)
    return {text: -float(rank) for text, rank in zip(made, ranks, strict=True) if len(text) > 1}
