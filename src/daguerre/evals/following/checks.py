"""IFEval's instructions (arXiv:2311.07911, table 1): whether an answer does what one says.

A check is called with the answer and the instruction's arguments. They are those of IFEval's data, whose names they
keep; where the paper leaves room they judge as its authors' programs do, but for sentences, which are told apart by
their punctuation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from daguerre.errors import MissingExtra

Check = Callable[..., bool]
ABBREVIATIONS = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|Inc|Ltd|No|p|P\.P|P\.S)\.$")
FENCE = re.compile(r"\A```(?:json|JSON|Json)?\s*(.*?)\s*(?:```)?\Z", re.DOTALL)
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def holds(number: int, relation: str, bound: int) -> bool:
    """Whether a number is "less than" or "at least" the bound."""
    return number < bound if relation == "less than" else number >= bound


def sentences(text: str) -> list[str]:
    """The sentences of a text: up to a mark that ends one, before white space or the end."""
    out, begin = list[str](), 0
    for found in re.finditer(r"[.!?…。！？]+[\"'”’)\]]*(?=\s|$)|\n\s*\n", text):
        piece = text[begin : found.end()]
        if not ABBREVIATIONS.search(piece):
            out, begin = [*out, piece.strip()], found.end()
    return [one for one in [*out, text[begin:].strip()] if re.search(r"\w", one)]


def language_of(text: str) -> str | None:
    """The language of a text, as two letters of ISO 639-1; None for one that cannot be told. MissingExtra."""
    try:
        import langdetect
    except ImportError:
        raise MissingExtra("langdetect", "eval") from None
    langdetect.DetectorFactory.seed = 0
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def _is_english(text: str) -> bool:
    """Whether a text is English, or nothing says that it is not."""
    try:
        return language_of(text) in ("en", None)
    except MissingExtra:
        return True


def _in(text: str, language: str) -> bool:
    return language_of(text) in (language, None)


def _found(word: str, text: str) -> int:
    return len(re.findall(word, text, flags=re.IGNORECASE))


def _parts(text: str, divider: str) -> list[str] | None:
    """What stands between dividers, without an empty first and last part; None where another one is empty."""
    parts = [part.strip() for part in re.split(divider, text)]
    parts = parts[not parts[0] :]
    parts = parts[: len(parts) - (bool(parts) and not parts[-1])]
    return parts if all(parts) else None


def _paragraph_begins(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = text.split("\n\n")
    written = sum(bool(part.strip()) for part in parts)
    if written != num_paragraphs or not 0 < nth_paragraph <= written or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def _has_postscript(text: str, postscript_marker: str) -> bool:
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return bool(re.search(known.get(postscript_marker, re.escape(postscript_marker.lower())), text.lower()))


def _highlights(text: str) -> int:
    single = [found for found in re.findall(r"\*[^\n*]*\*", text) if found.strip("*").strip()]
    double = [found for found in re.findall(r"\*\*([^\n*]*)\*\*", text) if found.strip()]
    return len(single) + len(double)


def _is_json(text: str) -> bool:
    found = FENCE.match(text.strip())
    try:
        json.loads(found[1] if found else text)
    except ValueError:
        return False
    return True


def _two(text: str) -> bool:
    parts = _parts(text, r"\*{6}")
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def _capitals(text: str) -> int:
    """Words in capitals alone; one with hyphens counts once."""
    return sum(word.isupper() for word in re.findall(r"\w+(?:['’-]\w+)*", text))


def _avoids(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{word}\b", text, flags=re.IGNORECASE) for word in forbidden_words)


def _is_quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


CHECKS: dict[str, Check] = {
    "change_case:capital_word_frequency": lambda text, capital_relation, capital_frequency: holds(
        _capitals(text), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda text: text.isupper() and _is_english(text),
    "change_case:english_lowercase": lambda text: text.islower() and _is_english(text),
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    ),
    "combination:two_responses": _two,
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        len(re.findall(r"\[.*?\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": _has_postscript,
    "detectable_format:constrained_response": lambda text: any(choice in text for choice in CHOICES),
    "detectable_format:json_format": _is_json,
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(rf"{section_spliter}\s?\d+", text)) >= num_sections
    ),
    "detectable_format:number_bullet_lists": lambda text, num_bullets: (
        len(re.findall(r"^\s*(?:\*[^*]|-).*$", text, flags=re.MULTILINE)) == num_bullets
    ),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: _highlights(text) >= num_highlights,
    "detectable_format:title": lambda text: any(found.strip("<>").strip() for found in re.findall(r"<<[^\n]+>>", text)),
    "keywords:existence": lambda text, keywords: all(_found(word, text) for word in keywords),
    "keywords:forbidden_words": _avoids,
    "keywords:frequency": lambda text, relation, keyword, frequency: holds(_found(keyword, text), relation, frequency),
    "keywords:letter_frequency": lambda text, let_relation, letter, let_frequency: holds(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "language:response_language": _in,
    "length_constraints:nth_paragraph_first_word": _paragraph_begins,
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: (
        len(_parts(text, r"\s?\*\*\*\s?") or []) == num_paragraphs
    ),
    "length_constraints:number_sentences": lambda text, relation, num_sentences: holds(
        len(sentences(text)), relation, num_sentences
    ),
    "length_constraints:number_words": lambda text, relation, num_words: holds(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    "punctuation:no_comma": lambda text: "," not in text,
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip('"').lower().endswith(end_phrase.strip().lower())
    ),
    "startend:quotation": _is_quoted,
}
"""The check of each instruction, by its name in IFEval's data."""


def follows(name: str, answer: str, arguments: dict[str, Any]) -> bool:
    """Whether an answer does what the instruction `name` says. Arguments that are None are not given."""
    given = {key: value for key, value in arguments.items() if value is not None}
    return bool(answer.strip()) and CHECKS[name](answer, **given)


def loosely(answer: str) -> list[str]:
    """The answers that IFEval's loose reading also accepts: without its first line, its last, both, and asterisks."""
    lines = answer.split("\n")
    cut = [answer, *("\n".join(some).strip() for some in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]
