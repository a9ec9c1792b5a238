"""What a `tokenizer.json` must be before the library `tokenizers` reads it.

The library is written for files that it has written. Of others some make it end the whole process, which no exception
tells of, or fail at the first text; so what is known to do that is refused here, with the name of the field. What the
library refuses with an error is left to it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_ID = (1 << 32) - 1
WORD = 4
"""Bytes of a number in a table of characters."""


def parse_fields(content: str) -> dict[str, Any]:
    """The object of a `tokenizer.json`. ValueError, which names the field, for what the library must not see."""
    values = json.loads(content, object_pairs_hook=_unique)
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise ValueError("it has no model")
    _check_vocabulary(values["model"].get("vocab"))
    _check_merges(values["model"])
    for name in COMPONENTS:
        for part in _parts(values.get(name)):
            check = CHECKS.get(str(part.get("type")))
            if check is not None:
                check(f"{name}: {part['type']}", part)
    return values


@contextmanager
def panics_raised() -> Iterator[None]:
    """What the library raises is a ValueError. By itself a panic is no Exception, and an error nothing more special."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizers library fails: {' '.join(str(error).split())}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two values of one key the library may take the other one than Python does."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return made


def _parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """A component, and all that it consists of."""
    left = [component]
    while left:
        held = left.pop()
        if isinstance(held, Mapping):
            yield held
            left += held.values()
        elif isinstance(held, list):
            left += held


def _check_vocabulary(vocabulary: Any) -> None:
    """Of tokens with ids; those with scores the library checks itself."""
    if isinstance(vocabulary, Mapping):
        for token, index in vocabulary.items():
            if type(index) is not int or not 0 <= index <= MAX_ID:
                raise ValueError(f"model.vocab: {token[:40]!r} has the id {index!r:.40}")


def _check_merges(model: Mapping[str, Any]) -> None:
    """The library cuts the prefix off the second part of a merge, which so must begin with it: else it cuts characters
    in two, and the process ends.
    """
    prefix = model.get("continuing_subword_prefix")
    if not prefix or not isinstance(model.get("merges"), list):
        return
    for number, merge in enumerate(model["merges"]):
        pair: Sequence[Any] = merge.split(" ") if isinstance(merge, str) else merge
        if not all(isinstance(part, str) for part in pair) or not pair[-1].startswith(prefix):
            raise ValueError(
                f"model.continuing_subword_prefix: model.merges[{number}] does not go on with {prefix!r:.40}"
            )


def _check_length(name: str, part: Mapping[str, Any]) -> None:
    if part.get("length") == 0:
        raise ValueError(f"{name}.length is 0")


def _check_strip(name: str, part: Mapping[str, Any]) -> None:
    """A decoder that takes more off the end than a token may have."""
    stop = part.get("stop")
    if isinstance(stop, int) and stop > 1:
        raise ValueError(f"{name}.stop is {stop}, more than a token may have")


def _check_table(name: str, part: Mapping[str, Any]) -> None:
    """A table of characters begins with its number of bytes, which the library believes."""
    try:
        table = base64.b64decode(part.get("precompiled_charsmap") or "", validate=True)
    except (TypeError, ValueError):
        table = b""
    size = int.from_bytes(table[:WORD], "little")
    if len(table) <= WORD or size % WORD or not 0 < size <= len(table) - WORD:
        raise ValueError(f"{name}.precompiled_charsmap is damaged")


def _check_template(name: str, part: Mapping[str, Any]) -> None:
    """Refuse a template of one text that has not exactly one text, or has special tokens that are not described."""
    single, tokens = part.get("single"), part.get("special_tokens")
    if not isinstance(single, list) or not isinstance(tokens, Mapping):
        raise ValueError(f"{name} has no single, or no special_tokens")
    for piece in single:
        sequence, token = (piece.get(kind) for kind in ("Sequence", "SpecialToken"))
        if sequence is not None and sequence.get("id") != "A":
            raise ValueError(f"{name}.single has the text {sequence.get('id')!r:.40}")
        if token is not None and token.get("id") not in tokens:
            raise ValueError(f"{name}.single has the token {token.get('id')!r:.40}, which special_tokens lacks")


CHECKS: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
    "FixedLength": _check_length,
    "Strip": _check_strip,
    "Precompiled": _check_table,
    "TemplateProcessing": _check_template,
}
