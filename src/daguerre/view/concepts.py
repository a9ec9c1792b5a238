"""Explanations to look at: a heat map and tables for a terminal, and a page of HTML that stands alone.

A token's color says how much of its logit goes through named concepts, or, where one concept is chosen, how likely the
model thinks it at the token (for a text that was read) or its part of the logit (for one that was written).
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from daguerre.decoding.explanation import Explanation, Shares, TokenExplanation
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.files import atomic_write

PAGE, DATA, TITLE = "page.html", "__DATA__", "__TITLE__"
SHADES = ("#cbe8e1", "#9bd5c8", "#63bcab", "#2f9c8a", "#12776a")
"""From little to all; the last two carry white letters. What is next to nothing has no color."""
AGAINST = ("#fbdcc5", "#f5b98f", "#e98f55", "#cf6a2a", "#a34b14")
"""Colors of parts that lower a logit, from little to all."""
DARK, NOTHING = 3, 0.08
KEPT_CONCEPTS = 16
"""Concepts of a token that a page lists; the others are added up."""
LEAST_PROBABILITY = 0.05
CAVEAT = "Discovered concepts have no names: beside each are tokens of this text; in another they may be others."


@dataclass(frozen=True)
class Heat:
    """Colors of tokens: values in [-1, 1], float64 (T,), NaN for a token without one, and what they mean."""

    values: np.ndarray
    meaning: str


def heat_of(explanation: Explanation, concept: str | None = None, probabilities: np.ndarray | None = None) -> Heat:
    """Colors by the share of named concepts, or by one concept: by its `probabilities`, float32 (T, N), where they are
    given and it is a known one, else by its part of the logits, of which the largest is 1.
    """
    asked = np.array([token.logit is not None for token in explanation.tokens])
    if concept is None:
        shares = [explanation.shares_of([token]).known for token in explanation.tokens]
        return Heat(np.where(asked, shares, np.nan), "share of the logit that goes through named concepts")
    number, name = explanation.catalog.number(concept), explanation.catalog.name(explanation.catalog.number(concept))
    if probabilities is not None and number < probabilities.shape[1]:
        return Heat(np.where(asked, probabilities[:, number], np.nan), f"probability of {name}")
    parts = explanation.of(concept)
    return Heat(
        np.where(asked, parts / max(np.abs(parts).max(initial=0), 1e-9), np.nan),
        f"part of {name} in the logit, up to {np.abs(parts).max(initial=0):.2f}",
    )


def heat_map(explanation: Explanation, heat: Heat) -> Group:
    """The text in colors, with numbers of lines, and a legend."""
    out, number = Text(), 1
    width = len(str(1 + sum(token.text.count("\n") for token in explanation.tokens)))
    out.append(f"{number:{width}} ", style="dim")
    for token, value in zip(explanation.tokens, heat.values.tolist(), strict=True):
        pieces = token.text.split("\n")
        for index, piece in enumerate(pieces):
            if index:
                number += 1
                out.append(f"\n{number:{width}} ", style="dim")
            out.append(piece, style=_style(value))
    empty = f"\n{number:{width}} "
    if out.plain.endswith(empty):
        out.right_crop(len(empty))
    legend = Text(f"\n{heat.meaning}: ")
    scales = (AGAINST[::-1], SHADES) if np.nanmin(heat.values, initial=0) < 0 else (SHADES,)
    for shade in [shade for scale in scales for shade in scale]:
        legend.append("  ", style=f"on {shade}")
    legend.append("  -1 to 1" if len(scales) > 1 else "  0 to 1")
    return Group(out, legend)


def _style(value: float) -> str:
    if np.isnan(value):
        return "dim"
    if abs(value) < NOTHING:
        return ""
    level = min(len(SHADES) - 1, int((abs(value) - NOTHING) / (1 - NOTHING) * len(SHADES)))
    return f"{'#ffffff' if level >= DARK else '#101010'} on {(SHADES if value >= 0 else AGAINST)[level]}"


def line_table(explanation: Explanation, num: int = 3) -> Table:
    """The largest named concepts of each line."""
    table = Table(box=None, pad_edge=False)
    table.add_column("line", justify="right")
    table.add_column("text", no_wrap=True, max_width=40)
    for name in ("named", "all"):
        table.add_column(name, justify="right")
    table.add_column("largest named concepts", min_width=30)
    for line in explanation.lines(num, named=True):
        largest = ", ".join(f"{one.name} {100 * one.share:.0f}%" for one in line.top)
        shares = f"{100 * line.shares.known:.0f}%", f"{100 * line.shares.aggregated:.0f}%"
        table.add_row(str(line.number), escape(line.text), *shares, escape(largest))
    return table


def top_table(explanation: Explanation, num: int = 10) -> Table:
    """The largest concepts of the whole text: those with names, and after them the others among the largest, each with
    the tokens that it raised most.
    """
    table = Table("concept", "share", "logits", "tokens", box=None, pad_edge=False)
    found, known = explanation.top(num, named=True), explanation.catalog.num_known
    others = [one for one in explanation.top(num) if one.number >= known][: num // 3]
    for one in (*found, *others):
        tokens = ", ".join(map(repr, explanation.raised(one.number))) if one.number >= known else ""
        name = f"{one.name} (raised {tokens})" if tokens else one.name
        table.add_row(escape(name), f"{100 * one.share:.1f}%", f"{one.contribution:+.1f}", str(one.num_tokens))
    if others:
        table.caption = CAVEAT
        table.caption_justify = "left"
    return table


def summary(explanation: Explanation) -> str:
    """The shares of the whole text, and how exact they are, in a line."""
    shares, num = explanation.shares, len(explanation.explained)
    return (
        f"{num} tokens: {100 * shares.known:.0f}% of a logit goes through named concepts, "
        f"{100 * shares.aggregated:.0f}% through all; the parts add up to the logits within {explanation.error():.1e}"
    )


def given_around(result: Result, before: str = "", after: str = "") -> dict[int, str]:
    """The given texts of a result, for `page`: those around its gaps where it is the whole text, else `before` and
    `after` its only gap.
    """
    around = [before, after]
    if result.text != result.texts[0] or len(result.texts) > 1:
        edges = [0, *(edge for span in result.spans for edge in span), len(result.text)]
        around = [result.text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    out, place, texts = dict[int, str](), 0, iter(result.tokens)
    for given, written in zip(around, (*result.texts, ""), strict=True):
        out[place] = out.get(place, "") + given
        length = 0
        while length < len(written):
            length += len(next(texts).text)
            place += 1
    return out


def check_page(path: Path) -> None:
    """InputError where no page can be written: call it before any work."""
    if path.suffix != ".html" or path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"a page cannot be written to {str(path)!r}: give a .html file in a folder there is")


def write_page(path: Path, explanation: Explanation, title: str, note: str, **more: Any) -> None:
    """Write the page of an explanation, whole or not at all; see `page`."""
    check_page(path)
    content = page(explanation, title, note, **more).encode("utf-8")
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"a page cannot be written to {str(path)!r} ({error.strerror}): make room") from None


def page(
    explanation: Explanation,
    title: str,
    note: str,
    *,
    given: Mapping[int, str] | None = None,
    probabilities: np.ndarray | None = None,
) -> str:
    """A page of HTML that needs no other file and no network.

    note           a sentence under the title
    given          texts that stand before the tokens of these numbers, or with one number more at the end
    probabilities  float32 (T, N), of the known concepts at each token
    """
    tokens = [_token(token, explanation.shares_of([token])) for token in explanation.tokens]
    used = {concept[0] for token in tokens for concept in token["concepts"]}
    sparse = {} if probabilities is None else _sparse(probabilities)
    data = {
        "title": title,
        "note": note,
        "summary": summary(explanation),
        "given": {str(place): text for place, text in (given or {}).items()},
        "numKnown": explanation.catalog.num_known,
        "names": {str(number): _named(explanation, number) for number in sorted(used | sparse.keys())},
        "top": [[one.number, one.share, one.contribution] for one in explanation.top(40)],
        "tokens": tokens,
        "probabilities": {str(number): values for number, values in sparse.items()},
    }
    text = (resources.files("daguerre") / "assets" / "concepts" / PAGE).read_text(encoding="utf-8")
    inside = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        inside = inside.replace(character, f"\\u{ord(character):04x}")
    return text.replace(TITLE, html.escape(title, quote=False)).replace(DATA, inside)


def _named(explanation: Explanation, number: int) -> list[str]:
    one = explanation.catalog.by_number.get(number)
    return [explanation.catalog.name(number), "", ""] if one is None else [one.name, one.group, one.description]


def _token(token: TokenExplanation, shares: Shares) -> dict[str, Any]:
    parts = token.contributions
    rest = parts[KEPT_CONCEPTS:].sum()
    columns = [_rounded(values[:KEPT_CONCEPTS]) for values in (parts, token.weights, token.added)]
    shown = [list(one) for one in zip(token.concepts[:KEPT_CONCEPTS].tolist(), *columns, strict=True)]
    out = {"text": token.text, "position": token.position, "logit": token.logit, "concepts": shown}
    out |= {"known": round(shares.known, 4), "all": round(shares.aggregated, 4)}
    out |= {"rest": round(float(rest), 4), "residual": round(token.residual, 4)}
    return out | {"bans": round(float(token.bans.sum()), 4), "bias": round(token.bias, 4)}


def _rounded(values: np.ndarray) -> list[float]:
    rounded: list[float] = np.round(values, 4).tolist()
    return rounded


def _sparse(probabilities: np.ndarray) -> dict[int, list[list[float]]]:
    """Of each concept that is likely somewhere: pairs of a token and its probability, where that is not small."""
    out = dict[int, list[list[float]]]()
    for number in np.flatnonzero(probabilities.max(axis=0) >= 0.5).tolist():
        at = np.flatnonzero(probabilities[:, number] >= LEAST_PROBABILITY)
        out[number] = [[int(place), round(float(probabilities[place, number]), 3)] for place in at.tolist()]
    return out
