"""What a request shows of how hard it is, as numbers that mean the same in every subject: lengths, the form of the
question and of its options, numbers and signs, kinds of words, and how rare its letters are.

Of a text only the ends are read, so the time is bounded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p

import numpy as np
from numpy.typing import NDArray

from daguerre.router.reading import ParsedRequest

Array = NDArray[np.float64]
Places = NDArray[np.int64]

HEAD, TAIL = 400, 600
"""Characters that are read at the beginning and at the end of a text."""
LAST = 160
"""Characters before the options, or at the end, that are looked at once more."""
ROWS = 1 << 16
"""Groups of characters are counted by a hash of so many values."""
GROUPS = (3, 4, 5)
"""Characters (bytes) of a group."""
RARE = 5
"""A group that fewer requests have is rare."""
WORDS = {
    "not": "not never no none neither without except least",
    "following": "following",
    "question mark": "?",
    "what": "what",
    "which": "which",
    "who": "who whom whose",
    "when": "when",
    "where": "where",
    "why": "why because reason",
    "how": "how",
    "statement": "statement statements",
    "true": "true false correct incorrect valid wrong",
    "best": "best most likely primary main major greatest",
    "if": "if suppose assume let",
    "calculate": "calculate compute find determine solve evaluate simplify estimate approximately",
    "mathematics": "= ^ √ ∑ ∫ ≤ ≥ π × ÷ \\ sin cos log ln mod sqrt",
    "money": "dollar dollars cent cents",
    "percent": "% percent",
    "parts": "half third quarter twice times double triple",
    "each": "each every per total altogether left remaining",
    "quotes": '" “ ”',
    "bracket": "(",
    "colon": ":",
    "semicolon": ";",
    "century": "century centuries",
    "first person": "i my me we our us myself",
    "third person": "he she his her him they their",
    "you": "you your",
    "modal": "should would could might must may ought",
    "logic": "∨ ∧ ⊃ ≡ ~ ∀ ∃ → implies therefore argument premise conclusion",
    "called": "refers refer known called defined term example describes describe means mean",
    "according": "according argues argue claims claim believes believe theory suggests suggest",
    "passage": "passage excerpt text above below table figure data",
    "case": "old patient woman man boy girl child company firm student",
    "compare": "more less greater higher lower larger smaller increase increased increases decrease decreased "
    "decreases than",
    "cause": "cause caused causes effect effects result results resulted leads lead due associated",
    "moral": "scenario morally moral",
    "objects": "function graph set group ring matrix vector polynomial integer prime equation probability variable "
    "sample random",
}
"""Kinds of words; a word may be of several."""
PATTERNS = {
    "capital not": r"(?:NOT|EXCEPT|LEAST|FALSE|INCORRECT)\b",
    "of the following": r"of the(?: following|se)\b",
    "how many": r"[Hh]ow (?:many|much|long|far|old|fast)\b",
    "gap": r"__+|\.\.\.",
    "above": r"(?:All|all|None|none|Both|both|Neither|neither) of the(?:se)?\b",
    "roman": r"I(?:II?|V)? (?:only|and)\b|I, II\b",
    "arithmetic": r"\d\s?[-+*/×÷]\s?\d",
    "fraction": r"/(?<=\d/)\d",
    "amount": r"[$€£]\s?\d",
    "unit": r"\d\s?(?:[mgsVAJNWK]|cm|km|kg|ms|Hz|mL|L|mg|°C|hours?|minutes?|days?|years?|miles?|feet|inches|pounds)\b",
    "code": r"\((?<=\w\()\w*\)|\[\w+\]|[{};]\n",
    "hyphen": r"-(?<=\w-)\w",
    "year": r"(?:1\d|20)\d\d\b",
    "name": r" (?<=[a-z,] )[A-Z][a-z]",
    "acronym": r"[A-Z]{2,}",
}
"""Signs of a form. Each begins with what a search finds fast."""
FOUND = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
WORD = re.compile(r"\w+|[^\w\s]")
DIGIT = re.compile(r"\d")
SENTENCE = re.compile(r"[.!?](?=\s|$)")
OPTION = re.compile(r"(?m)^[ \t]{0,4}\(?[A-Ja-j][.):]\)?[ \t]+(.*)$")
NUMERIC = re.compile(r"[-+$]?[\d.,/^ ×*eπ√()a-z%+-]{1,18}")
KINDS = np.array(
    [
        3 if byte > 127 else 1 if 65 <= byte <= 90 else 2 if byte > 32 and not chr(byte).isalnum() else 0
        for byte in range(256)
    ],
    np.uint8,
)
"""Of bytes: 1 capitals, 2 signs, 3 not ASCII."""
PLAIN = bytes(
    ord("0") if chr(byte).isdigit() and byte < 128 else byte + 32 if 65 <= byte <= 90 else 32 if byte < 32 else byte
    for byte in range(256)
)
"""Bytes by which characters are counted: lower case, and every digit the same."""
LENGTHS = (4.5, 5.0, 5.5, 6.0, 6.5, 7.0)
STEMS = (3.5, 4.5, 5.5, 6.5)
SHAPE = (
    *("characters", "stem", "lines", "words", "sentences", "words a sentence", "word length", "long words"),
    *("very long words", "short words", "different words", "numbers", "numbers in stem", "longest number", "digits"),
    *("capitals", "signs", "not ascii", "ends ?", "ends :", "ends .", "starts with a capital"),
    *(f"characters over {size}" for size in LENGTHS),
    *(f"stem over {size}" for size in STEMS),
)
OPTIONS = (
    *(
        "any",
        "number",
        "length",
        "spread",
        "longest",
        "one word",
        "numeric",
        "in stem",
        "alike",
        "capital",
        "sentences",
    ),
    "share",
)
OPERATIONS = ("completions", "responses", "fim", "edit", "decisions", "embeddings")
ASKED = (
    *("turns", "results", "calls", "instructions", "all", "tools", "schema", "images", "limit", "has limit"),
    *("must call", "json", "labels", "suffix", *OPERATIONS),
)
RARITY = ("mean", "spread", "unseen", "rare")
MEASURES = (
    *(f"text {name}" for name in SHAPE),
    *(f"options {name}" for name in OPTIONS),
    *(f"request {name}" for name in ASKED),
    *(f"{how} {name}" for how in ("has", "number of") for name in (*WORDS, *PATTERNS)),
    *(f"last {name}" for name in (*WORDS, *PATTERNS)),
    *(f"rarity {name}" for name in RARITY),
)
"""The names of all measures, in their order."""
PLACES = {
    word: tuple(place for place, words in enumerate(WORDS.values()) if word in words.split())
    for word in {word for words in WORDS.values() for word in words.split()}
}
SETTINGS_HASH = hashlib.sha256(
    json.dumps([MEASURES, WORDS, PATTERNS, HEAD, TAIL, LAST, ROWS, GROUPS, RARE]).encode()
).hexdigest()


def text_of(reading: ParsedRequest) -> str:
    """The user's last message, or else the last there is."""
    texts = reading.of("user") or [turn.text for turn in reading.turns]
    return texts[-1] if texts else ""


def measured(reading: ParsedRequest) -> Array:
    """All measures of a request but RARITY, (M - 4,)."""
    text = text_of(reading)
    cut = ends(text)
    parts = _PromptParts.of(cut)
    return np.concatenate(
        [_of_text(len(text), text.count("\n"), parts), _of_options(parts), _of_request(reading), _of_words(parts)]
    )


def ends(text: str) -> str:
    """The beginning and the end of a text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def hashes(cut: str) -> Places:
    """The hash of each group of characters in a text, one after the other for each length."""
    data = np.frombuffer(cut.encode("utf-8", "replace").translate(PLAIN), np.uint8).astype(np.uint32)
    out, sums = [], np.zeros(len(data), np.uint32)
    for place in range(max(GROUPS)):
        sums = sums[: max(len(data) - place, 0)] * np.uint32(0x01000193) ^ data[place:]
        if place + 1 in GROUPS:
            mixed = (sums ^ sums >> np.uint32(15)) * np.uint32(0x2C1B3C6D)
            out.append((mixed ^ mixed >> np.uint32(16)) % np.uint32(ROWS))
    return np.concatenate(out).astype(np.int64)


def rarity(places: Places, counts: NDArray[np.uint16], requests: int, own: int = 0) -> Array:
    """RARITY of a text with these hashes: the mean and the root mean square of log((requests + 1) / (found + 1)), and
    the shares of groups of characters that no request, and that fewer than RARE have.

    counts    in how many of `requests` requests a group of characters was found, by its hash, (ROWS,)
    own       1: the text itself is one of those, and does not count
    """
    if not len(places):
        return np.zeros(len(RARITY))
    found = counts[places].astype(np.float64) - own
    logs = np.log((requests - own + 1) / (found + 1))
    return np.array([logs.mean(), np.sqrt((logs * logs).mean()), (found < 1).mean(), (found < RARE).mean()])


def distinct(places: Places) -> Places:
    """Hashes, each once, sorted."""
    held = np.zeros(ROWS, bool)
    held[places] = True
    return np.flatnonzero(held)


def counted(texts: Sequence[Places]) -> NDArray[np.uint16]:
    """In how many texts, each by its hashes, a group of characters is found, (ROWS,); 65,535 stands for more."""
    out = np.zeros(ROWS, np.int64)
    for places in texts:
        out[distinct(places)] += 1
    return np.minimum(out, np.iinfo(np.uint16).max).astype(np.uint16)


@dataclass(frozen=True)
class _PromptParts:
    """What is read of a text, what stands in it before the first of several options, and the options; the words and
    signs of the whole, and those before the options.
    """

    whole: str
    stem: str
    options: list[str]
    tokens: list[str]
    told: list[str]

    @classmethod
    def of(cls, cut: str) -> _PromptParts:
        found, tokens = list(OPTION.finditer(cut)), WORD.findall(cut)
        if len(found) < 2:
            return cls(cut, cut.rstrip(), [], tokens, tokens)
        start = found[0].start()
        told = tokens[: len(tokens) - len(WORD.findall(cut[start:]))]
        return cls(cut, cut[:start].rstrip(), [one[1].strip() for one in found], tokens, told)


def _of_text(length: int, lines: int, parts: _PromptParts) -> Array:
    """SHAPE. length, lines: of the whole text."""
    cut, stem = parts.whole, parts.stem
    tokens, told = parts.tokens, parts.told
    words, digits = list(filter(str.isalpha, tokens)), list(map(len, filter(str.isdigit, tokens)))
    num, asked = max(len(cut), 1), sum(map(str.isalpha, told))
    lengths = np.array(list(map(len, words)) or [0])
    sentences = max(1, len(SENTENCE.findall(stem)))
    kinds = np.bincount(KINDS[np.frombuffer(cut.encode("utf-8", "replace"), np.uint8)], minlength=4)
    long, stems = log1p(length), log1p(len(stem) + length - len(cut))
    return np.array(
        [
            *(long, stems, log1p(lines), log1p(asked), log(sentences), log1p(asked / sentences)),
            *(lengths.mean(), (lengths > 8).mean(), (lengths > 11).mean(), (lengths < 4).mean()),
            len(set(map(str.lower, words))) / max(len(words), 1) ** 0.8,
            *(log1p(len(digits)), log1p(sum(map(str.isdigit, told))), log1p(max(digits, default=0))),
            *(sum(digits) / num, kinds[1] / num, kinds[2] / num, log1p(kinds[3])),
            *(stem.endswith(sign) for sign in "?:."),
            stem[:1].isupper(),
            *(max(0.0, long - size) for size in LENGTHS),
            *(max(0.0, stems - size) for size in STEMS),
        ],
        np.float64,
    )


def _of_options(parts: _PromptParts) -> Array:
    """OPTIONS."""
    options = parts.options
    if not options:
        return np.zeros(len(OPTIONS))
    num, sizes, asked = len(options), np.array([len(one) for one in options]), _words(parts.stem)
    sets = [_words(one) for one in options]
    pairs = [len(one & other) / max(len(one | other), 1) for place, one in enumerate(sets) for other in sets[:place]]
    numeric = [NUMERIC.fullmatch(one) is not None and DIGIT.search(one) is not None for one in options]
    return np.array(
        [
            *(1.0, num, log1p(sizes.mean()), sizes.std() / (sizes.mean() + 1), log1p(sizes.max())),
            *(sum(" " not in one for one in options) / num, sum(numeric) / num),
            sum(len(one & asked) / max(len(one), 1) for one in sets) / num,
            sum(pairs) / len(pairs),
            sum(one[:1].isupper() for one in options) / num,
            sum(one.endswith(".") for one in options) / num,
            sizes.sum() / max(len(parts.whole), 1),
        ],
        np.float64,
    )


def _words(text: str) -> set[str]:
    return set(filter(str.isalpha, WORD.findall(text.lower())))


def _of_words(parts: _PromptParts) -> Array:
    """How often each kind of word and each pattern is found, and which are in the last words of the question."""
    numbers, last = np.zeros(len(WORDS) + len(FOUND)), np.zeros(len(WORDS) + len(FOUND))
    end = len(parts.stem)
    words = Counter(map(str.lower, parts.tokens))
    for word in words.keys() & PLACES.keys():
        numbers[list(PLACES[word])] += words[word]
    for word in PLACES.keys() & set(WORD.findall(parts.stem[-LAST:].lower())):
        last[list(PLACES[word])] = 1
    for place, pattern in enumerate(FOUND.values(), len(WORDS)):
        starts = [one.start() for one in pattern.finditer(parts.whole)]
        numbers[place] = len(starts)
        last[place] = any(end - LAST <= start < end for start in starts)
    return np.concatenate([numbers > 0, np.log1p(numbers), last])


def _of_request(reading: ParsedRequest) -> Array:
    """ASKED."""
    turns, limit = reading.turns, reading.limit
    results = sum(turn.role == "tool" for turn in turns)
    told, whole = sum(map(len, reading.of("system"))), sum(len(turn.text) for turn in turns)
    tools = 0 if reading.choice == "none" else len(reading.tools)
    calls = sum(turn.calls for turn in turns)
    sizes = (len(turns), results, calls, told, whole, tools, reading.size[0], reading.images, limit or 0)
    flags = (
        limit is not None,
        reading.choice in ("required", "named"),
        reading.format != "text",
        reading.labels,
        bool(reading.suffix),
        *(reading.operation == name for name in OPERATIONS),
    )
    return np.array([*map(log1p, sizes), *map(float, flags)])
