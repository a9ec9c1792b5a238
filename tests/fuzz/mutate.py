"""A mutator: bytes that are nearly what a reader expects.

JSON is changed as a tree (values of other types, extreme numbers, keys of elsewhere, depth), other text by its words,
and either now and then by its bytes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

WORDS = re.compile(rb"\w+|\s+|[^\w\s]")
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), 10**9, 10**30, 0.5, -0.5, 1e-300, 1e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        " ",
        "\n",
        "a",
        "0",
        "-1",
        "true",
        "\x00",
        "\ud800",
        "\U0001f642",
        "é" * 300,
        "x" * 5_000,
        "{}",
        "%s",
        "../..",
        "#",
    ),
)
PIECES: tuple[bytes, ...] = (
    *(
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n\n",
        b'"',
        b"'",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
    ),
    *(
        b"{{",
        b"}}",
        b"{%",
        b"%}",
        b"*",
        b"+",
        b"?",
        b"|",
        b"^",
        b"$",
        b".",
        b"{1,100}",
        b"{0}",
        b"{,}",
        b"(?:",
        b"(?i)",
    ),
    *(b"[^", b"\\d", b"\\p{L}", b"\\u0000", b"\\1", b"99999999999999999999", b"-1", b"1e999", b"nan", b"true", b"null"),
    *(b"data: ", b"data: [DONE]\n\n", b"= ", b"[[", b"]]", b"#", b",", b":", b"\xf0\x9f\x99\x82", b"\xed\xa0\x80"),
)
DEPTHS = (8, 200, 5_000)
MOST = 64_000
"""Bytes of a mutant that are kept, so that a case is about one thing and not about size."""


def mutant(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """A change, or several, of `data`; parts may come from `others`, seeds of the same kind."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 4, 8))):
        data = _changed(data, others, random)
    return data[:MOST]


def _changed(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    value = parsed(data)
    if value is None or random.random() < 0.08:
        how: Callable[[bytes, Sequence[bytes], Random], bytes] = _words if random.random() < 0.7 else _bytes
        return how(data, others, random)
    tree = [value]
    try:
        _change_tree(tree, [one for one in map(parsed, random.sample(others, min(3, len(others)))) if one], random)
        return json.dumps(tree[0], ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")
    except (RecursionError, ValueError):  # too deep, or a part of itself
        return data


def parsed(data: bytes) -> Any:
    """An object or a list in JSON; None for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree and each of its keys or places, the root's first."""
    left = [value]
    while left:
        held = left.pop()
        keys = list(held) if isinstance(held, dict) else range(len(held))
        for key in keys:
            yield held, key
            if isinstance(held[key], dict | list):
                left.append(held[key])


def _change_tree(tree: list[Any], others: list[Any], random: Random) -> None:
    everywhere = list(places(tree))
    held, key = random.choice(everywhere)
    elsewhere = list(places(random.choice(others))) if others else everywhere
    other_held, other_key = random.choice(elsewhere)
    kind = random.randrange(9)
    if kind <= 1:
        held[key] = random.choice(SCALARS)
    elif kind == 2:
        held[key] = copy.deepcopy(other_held[other_key])
    elif kind == 3:
        held[key] = _near(held[key], random)
    elif kind == 4 and isinstance(held, dict):
        held[
            other_key if isinstance(other_key, str) else random.choice(("", "\ud800", "type", "$ref", "__class__"))
        ] = held.pop(key)
    elif kind == 5 and isinstance(held, dict) and isinstance(other_key, str):
        held[other_key] = copy.deepcopy(other_held[other_key])
    elif kind == 6 and held is not tree:
        del held[key]
    elif kind == 7:
        held[key] = random.choice(([], {}, [held[key]], {"a": held[key]}, [held[key]] * random.choice((2, 50, 1_000))))
    else:
        for _ in range(random.choice(DEPTHS[: 2 + (random.random() < 0.1)])):
            held[key] = [held[key]] if isinstance(held[key], list) else {str(other_key): held[key]}


def _near(value: Any, random: Random) -> Any:
    """A value like the given one, of the same type mostly."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((-value, value + 1, value - 1, value * 2, value * 10**6, float(value), str(value)))
    if isinstance(value, float):
        return random.choice((-value, value * 1e6, value / 1e6, 0.0, int(value) if abs(value) < 1e18 else 0))
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return _words(data, (b"a b",), random).decode("utf-8", "replace")
    if isinstance(value, list):
        return value[::-1] + value[: random.randrange(3)]
    return value if value is None else dict(reversed(value.items()))


def _words(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """`data` with words, spaces or signs left out, doubled, swapped, put in from elsewhere or wrapped."""
    words = WORDS.findall(data) or [b""]
    at, to = sorted((random.randrange(len(words)), min(len(words) - 1, random.randrange(len(words)))))
    to = min(to, at + random.choice((1, 2, 8, 40)))
    kind = random.randrange(7)
    if kind == 0:
        del words[at : to + 1]
    elif kind == 1:
        words[at:at] = words[at : to + 1] * random.choice((1, 1, 2, 30))
    elif kind == 2:
        words[at], words[to] = words[to], words[at]
    elif kind == 3:
        words.insert(at, random.choice(PIECES))
    elif kind == 4:
        found = WORDS.findall(random.choice(others)) if others else words
        begin = random.randrange(max(1, len(found)))
        words[at : to + random.randrange(2)] = found[begin : begin + random.choice((1, 3, 12))]
    elif kind == 5:
        words[at] = str(random.choice(SCALARS)).encode("utf-8", "surrogatepass")
    else:
        before, after = random.choice(
            ((b"(", b")"), (b"[", b"]"), (b"{", b"}"), (b"{{", b"}}"), (b'"', b'"'), (b"(", b"){1,9}"))
        )
        times = random.choice((1, 1, 2, 30))
        words[at : to + 1] = [before * times, *words[at : to + 1], after * times]
    return b"".join(words)


def _bytes(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    to = min(len(data), at + random.choice((1, 1, 2, 4, 16, 256)))
    kind = random.randrange(5)
    if kind == 0:
        return data[:at] + data[to:]
    if kind == 1:
        return data[:at] + bytes(random.randrange(256) for _ in range(random.choice((1, 2, 8)))) + data[to:]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + random.choice(PIECES) + data[at:]
    other = random.choice(others) if others else data
    return data[:at] + other[random.randrange(len(other) + 1) :][: random.choice((4, 64, 1_000))] + data[to:]
