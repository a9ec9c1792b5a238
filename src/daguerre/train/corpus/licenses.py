"""Which license a distribution declares, and whether it is permissive.

`License-Expression` (SPDX) decides where there is one. Else a copyleft classifier rules the package out; then the
`License` field decides if it says something, then the classifiers. An unknown license is not
permissive: when in doubt, the package is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from email.message import Message
from typing import NamedTuple

PERMISSIVE = frozenset(
    "0BSD AFL-3.0 Apache-2.0 Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause BSD-2-Clause BSD-2-Clause-Patent BSD-3-Clause "
    "BSD-3-Clause-Clear BSD-4-Clause BSL-1.0 CC0-1.0 CNRI-Python HPND ISC MIT MIT-0 MIT-CMU NCSA PostgreSQL PSF-2.0 "
    "Python-2.0 Python-2.0.1 Unicode-3.0 Unicode-DFS-2016 Unlicense UPL-1.0 W3C WTFPL X11 Zlib ZPL-2.0 ZPL-2.1".split()
)
_CANONICAL = {name.lower(): name for name in PERMISSIVE}

# Names as people write them, without "license", "the", "v", "version" and punctuation; see `_plain`.
_SLOPPY_NAMES = {
    "MIT": "mit; expat; mit expat",
    "MIT-0": "mit 0",
    "MIT-CMU": "mit cmu",
    "HPND": "hpnd; historical permission notice and disclaimer hpnd",
    "BSD-3-Clause": "bsd; new bsd; modified bsd; revised bsd; 3 clause bsd; bsd 3 clause; bsd 3; bsd style; bsd like; "
    "bsd 3 clause new; bsd 3 clause new or revised",
    "BSD-2-Clause": "2 clause bsd; bsd 2 clause; bsd 2; simplified bsd; bsd 2 clause simplified; freebsd",
    "Apache-2.0": "apache; apache 2; apache 2 0; apache2; apache2 0; asl 2; asl 2 0; apache software; "
    "apache software 2 0",
    "ISC": "isc; iscl; isc iscl",
    "Zlib": "zlib; zlib libpng",
    "BSL-1.0": "boost software 1 0",
    "PSF-2.0": "psf; psf 2 0; psfl; python software foundation; python",
    "Unlicense": "unlicense; un",
    "0BSD": "0bsd",
    "CC0-1.0": "cc0; cc0 1 0; cc0 1 0 universal",
    "ZPL-2.1": "zpl; zpl 2 1; zope public",
    "PostgreSQL": "postgresql",
    "NCSA": "university of illinois ncsa open source",
}
_SLOPPY = {sloppy: name for name, names in _SLOPPY_NAMES.items() for sloppy in names.split("; ")}

_COPYLEFT = re.compile(
    r"\b([al]?gpl|[al]?gplv?\d[\w.+-]*|gnu|mpl|mpl[- ]?\d[\d.]*|eupl|cecill|sspl|epl|epl-\d[\d.]*|cddl|osl|busl)\b|"
    r"general public|mozilla|copyleft|business source|proprietary|non-?commercial|cc-by-(nc|sa|nd)|commons clause|"
    r"elastic license|eclipse public",
    re.I,
)
_TEXTS = (
    ("Apache-2.0", re.compile(r"apache license,?\s+version 2\.0", re.I)),
    (
        "BSD-3-Clause",
        re.compile(r"redistribution and use in source and binary forms.*neither the names?\b", re.I | re.S),
    ),
    ("BSD-2-Clause", re.compile(r"redistribution and use in source and binary forms", re.I)),
    ("ISC", re.compile(r"permission to use, copy, modify, and(/or)? distribute this software", re.I)),
    ("MIT", re.compile(r"permission is hereby granted, free of charge", re.I)),
)

_TOKEN = re.compile(r"[()]|[^\s()]+(?:\s+WITH\s+[^\s()]+)?", re.I)
"""A parenthesis, an operator, or a name with its exception."""


class Verdict(NamedTuple):
    """`license` is the permissive license, or None with the `reason` for which the package is left out."""

    license: str | None
    reason: str


def judge(metadata: Message) -> Verdict:
    """The verdict on one distribution's metadata (METADATA or PKG-INFO)."""
    expression = (metadata.get("License-Expression") or "").strip()
    if expression:
        return _judge_expression(expression)
    lines = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    classifiers = [name for line in lines if (name := line.rsplit("::", 1)[-1].strip()) != "OSI Approved"]
    copyleft = next((name for name in classifiers if _COPYLEFT.search(name)), None)
    if copyleft:
        return Verdict(None, f"classifier: {copyleft}")
    field = (metadata.get("License") or "").strip()
    if field and field.upper() not in ("UNKNOWN", "NONE", "DUAL LICENSE"):
        verdict = _judge_field(field)
        if verdict.license or _COPYLEFT.search(field):
            return verdict
    return _judge_classifiers(classifiers, field)


def permissive_name(name: str) -> str | None:
    """The SPDX id of a permissive license written properly or sloppily ("BSD 3-Clause", "Apache 2.0"), else None."""
    return _CANONICAL.get(name.strip().lower()) or _SLOPPY.get(_plain(name))


def evaluate(expression: str) -> str | None:
    """The license chosen from an SPDX expression, or None if it cannot be satisfied by permissive licenses alone.

    `A OR B` needs one of them (the permissive side is kept), `A AND B` both, `A WITH exception` needs A.
    ValueError when it does not parse.
    """
    names, words = list[str](), list[str]()
    for token in _TOKEN.findall(expression):
        is_name = token.upper() not in ("(", ")", "AND", "OR", "WITH")
        words.append(f"n{len(names)}" if is_name else token.lower())
        names += [token] if is_name else []
    try:
        return _chosen(ast.parse(" ".join(words), mode="eval").body, names)
    except SyntaxError as error:
        raise ValueError(str(error)) from None


def _chosen(node: ast.expr, names: list[str]) -> str | None:
    """The same of a part; `n3` is the fourth name."""
    if isinstance(node, ast.Name):
        name, *exception = names[int(node.id[1:])].split()
        found = _CANONICAL.get(name.lower().removesuffix("+"))
        return " WITH ".join([found, *exception[1:]]) if found else None
    if not isinstance(node, ast.BoolOp):
        raise ValueError("an operator is missing")
    parts = [_chosen(part, names) for part in node.values]
    known = [part for part in parts if part]
    if isinstance(node.op, ast.Or):
        return next(iter(known), None)
    return " AND ".join(known) if len(known) == len(parts) else None


def _judge_expression(expression: str) -> Verdict:
    try:
        chosen = evaluate(expression)
    except ValueError:
        chosen = permissive_name(expression)
    return Verdict(chosen, "" if chosen else f"not permissive: {expression[:80]}")


def _judge_field(field: str) -> Verdict:
    if len(field) > 200 or "\n" in field:
        return _judge_text(field)
    if name := permissive_name(field):
        return Verdict(name, "")
    try:
        chosen = evaluate(field)
    except ValueError:
        chosen = None
    if chosen is None:
        parts = [part for part in re.split(r"\s+(?:and|or)\s+|[,;/&]", field, flags=re.I) if part.strip()]
        names = [name for part in parts if (name := permissive_name(part))]
        chosen = " AND ".join(names) if names and len(names) == len(parts) else None
    return Verdict(chosen, "" if chosen else f"not known to be permissive: {' '.join(field.split())[:80]}")


def _judge_text(text: str) -> Verdict:
    if _COPYLEFT.search(text):
        return Verdict(None, "the License field is a long text that mentions a copyleft license")
    for name, pattern in _TEXTS:
        if pattern.search(text):
            return Verdict(name, "")
    return Verdict(None, "the License field is a long text of no known license")


def _judge_classifiers(classifiers: Iterable[str], field: str) -> Verdict:
    names = list(dict.fromkeys(classifiers))
    known = [permissive_name(name) for name in names]
    if known and all(known):
        return Verdict(" AND ".join(dict.fromkeys(name for name in known if name)), "")
    said = names[known.index(None)] if known else " ".join(field.split())[:80]
    return Verdict(None, f"not known to be permissive: {said}" if said else "no license declared")


def _plain(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower().replace("unlicense", "un")).split()
    words = [re.sub(r"^v(?=\d)", "", word) for word in words]
    noise = ("license", "licence", "licensed", "the", "version", "v", "under")
    return " ".join(word for word in words if word not in noise)
