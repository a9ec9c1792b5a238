"""How texts are split before pairs are merged, by the names that GGUF files have for it (`tokenizer.ggml.pre`).

The names and the expressions are facts of llama.cpp's `src/llama-vocab.cpp` (b11434). Where it quotes a publisher's
expression beside one of its own that comes close (case and marks of other scripts than Latin's), the publisher's is
used, by which the model was trained: `tekken`, `gpt-4o`, `kimi-k2`, `tiny_aya` and those that split alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from daguerre.models.tiktoken_files import CL100K, QWEN2
from daguerre.models.tokenizer_json import MARK


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a text is split, and what follows from it.

    patterns  one after another divide what the ones before them left, into what they match and what is between
    nfc       the text is normalized first, which the publisher does and llama.cpp does not
    whole     a part that is a token is not merged
    begins    <bos> is before a text unless the file says otherwise
    marked    tokens are in Unicode, with a mark for a space and tokens of single bytes, not in the alphabet of bytes
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    begins: bool = False
    marked: bool = False


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""That of `ByteLevel` in the library `tokenizers`, which has it by itself."""
DIGIT, DIGITS, THREE, LINES = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r"[^\n]+|\n+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN35 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
QWEN35 += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, digits: str, capitals: str = CAPITALS, small: str = SMALL, rest: str = REST) -> str:
    """Words that are cut before a capital letter."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{capitals}*{small}+{ending}|{before}{capitals}+{small}*{ending}|{digits}{rest}"


TEKKEN = _cased("", DIGIT)
GPT4O = _cased(f"{ENDINGS}?", THREE)
KIMI = r"[\p{Han}]+|" + _cased(
    f"{ENDINGS}?",
    THREE,
    CAPITALS.replace("]", r"&&[^\p{Han}]]"),
    SMALL.replace("]", r"&&[^\p{Han}]]"),
    REST.replace("[\\r\\n/]", "[\\r\\n]"),
)
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
WORDS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
LINE_ENDS, SPACES = r"[\r\n]*|\s*[\r\n]+", r"|\s+(?!\S)|\s+"


def _these(characters: str) -> str:
    """What is within a class of characters, from their numbers and ranges of numbers."""
    return re.sub(r"[0-9A-F]+", lambda number: rf"\x{{{number[0]}}}", characters).replace(" ", "")


LATIN = _these(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
"""Letters of scripts that have capitals; a line is 120 long."""
SIGNS = _these("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3001 3002")
FAR = rf"[[{_these('4E00-9FA5 800-4E00 AC00-D7FF')}]&&[^\s]]+"
KANA = f"[{_these('4E00-9FA5 3040-309F 30A0-30FF')}]+"
EASTERN = _these(
    "8C48-D7FF E000-FAFF 4E00-9FFF 3400-4DBF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF "
    "1000-109F AA60-AA7F A9E0-A9FF 1100-11FF"
)
YOUTU = "|".join(
    f"[{_these(each)}]+"
    for each in (
        *("AC00-D7A3 3131-318E", "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F"),
        *("3105-312F", "4E00-9FA5 3040-309F 30A0-30FF"),
    )
)
BLOOM = rf" ?[^(\s|.,!?{_these('2026 3002 FF0C 3001 964 6D4 60C')})]+"
JAIS2 = CL100K.replace(
    SPACES, "".join(rf"|\s{{{1 << power}}}(?!\S)" for power in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s"
)
GROUPS: tuple[tuple[Split, str], ...] = (
    (Split(patterns=(QWEN2,), nfc=True), "qwen2"),
    (Split(patterns=(QWEN2,)), "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (Split(patterns=(QWEN35,), nfc=True), "qwen35"),
    (
        Split(patterns=(CL100K,), whole=True, begins=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (Split(patterns=(CL100K,), whole=True), "glm4 glm5"),
    (Split(patterns=(CL100K,)), "smaug-bpe dbrx chatglm-bpe"),
    (Split(patterns=(BAILING,)), "llada-moe bailingmoe bailingmoe2"),
    (
        Split(patterns=(GPT2,)),
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert jina-es "
        "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
    ),
    (Split(patterns=(DIGIT, GPT2)), "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (Split(patterns=(TEKKEN,), whole=True, begins=True), "tekken"),
    (Split(patterns=(GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (Split(patterns=(GPT4O,), whole=True), "granite-embed-multi-97m"),
    (Split(patterns=(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)), "tiny_aya cohere2moe"),
    (Split(patterns=(KIMI,)), "kimi-k2"),
    (Split(patterns=(THREE, KANA, WORDS + LINE_ENDS + SPACES)), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (Split(patterns=(THREE, KANA, rf"{WORDS}|[\r\n]{SPACES}", DIGIT)), "spark2_5"),
    (
        Split(patterns=(r"[\r\n]", rf"\s?[{LATIN}]+", rf"\s?[{SIGNS}]+", r"\s+\z", FAR, DIGITS)),
        "deepseek-llm",
    ),
    (Split(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", FAR, DIGIT)), "deepseek-coder"),
    (Split(patterns=(r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9]{3}")), "falcon"),
    (Split(patterns=(r"[\p{P}$+<=>^~|]+", GPT2, DIGITS, r"[0-9]{3}")), "default"),
    (Split(patterns=(YOUTU, _cased(f"{ENDINGS}?", DIGIT)), whole=True), "youtu"),
    (Split(patterns=(BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (Split(patterns=(BLOOM, DIGIT)), "viking"),
    (
        Split(
            patterns=(
                *("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", DIGIT, r"[\p{P}!-/:-@\[-`{-~]", GPT2),
            ),
            begins=True,
        ),
        "chameleon",
    ),
    (Split(patterns=(DIGITS, r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (
        Split(patterns=(QWEN2.replace(r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*", r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+"),)),
        "seed-coder",
    ),
    (Split(patterns=(QWEN2.removeprefix(f"{ENDINGS}|"),)), "ufakzeka"),
    (
        Split(patterns=(rf"{THREE}(?=(?:\p{{N}}{{3}})*(?!\p{{N}}))", f"[{EASTERN}]+", WORDS + LINE_ENDS + SPACES)),
        "afmoe",
    ),
    (Split(patterns=(LINES, QWEN2)), "laguna"),
    (
        Split(
            patterns=(
                rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]{SPACES}",
            )
        ),
        "exaone-moe",
    ),
    (Split(patterns=(THREE, CL100K.replace(THREE, DIGITS)), whole=True), "minicpm5"),
    (Split(patterns=(JAIS2,)), "jais-2"),
    (Split(patterns=(LINES,), marked=True, begins=True), "gemma4 granite-embed-multi-311m"),
    (Split(patterns=(LINES,), marked=True), "sarvam-moe"),
)
"""Splits and their names."""
SPLITS = {name: split for split, names in GROUPS for name in names.split()}
"""Splits by the names that are read. Of several names for one split, the first is written."""
UNNAMED = "default"
"""The split of a file that names none."""


def splitting(split: Split) -> list[dict[str, Any]]:
    """The pre-tokenizers of a split, as in a tokenizer.json."""
    patterns = split.patterns[:-1] if split.patterns[-1] == GPT2 else split.patterns
    parts = [_part(pattern) for pattern in patterns]
    if split.marked:
        return parts
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return [*parts, {**level, "use_regex": split.patterns[-1] == GPT2}]


def _part(pattern: str) -> dict[str, Any]:
    if pattern == DIGIT:
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def marking(begins: bool) -> dict[str, Any]:
    """The normalizer that marks spaces, as in a tokenizer.json. `begins`: a text begins with one."""
    before: list[dict[str, Any]] = [{"type": "Prepend", "prepend": MARK}] if begins else []
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    return {"type": "Sequence", "normalizers": [*before, marks]}


def unmarking(begins: bool) -> dict[str, Any]:
    """The decoder of tokens with marks for spaces."""
    marks = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    strip: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    return {"type": "Sequence", "decoders": [marks, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
