"""Values of the keyword `format`, as patterns: each at most as wide as its definition, none wider.

Where definitions differ, or count what no small automaton counts, a format is narrower: host names have up to seven
labels (the first of 63 characters, others of 30), addresses of mail end in a host of 63 characters, international
labels are of a few alphabets, and a regular expression is one that ECMA-262 and Python read alike. `WIDEST` is what a
format might hold by any reading, for schemas that forbid it.
"""

from __future__ import annotations

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, intersect, subtract
from daguerre.sampling.constraints.regex import regex_dfa

_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"

_TIME_OF_DAY = "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"
_DAYS = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_DURATION = f"P({_DAYS}{_TIME_OF_DAY}?|{_TIME_OF_DAY}|[0-9]+W)"


def _label(most: int) -> str:
    return f"[A-Za-z0-9]([A-Za-z0-9-]{{0,{most - 2}}}[A-Za-z0-9])?"


_HOST = f"{_label(63)}(\\.{_label(30)}){{0,6}}"
_SHORT_HOST = "[A-Za-z0-9]+([.-][A-Za-z0-9]+)*"
_CODED = "(^|\\.)[A-Za-z0-9-]{2}--"
"""A label of this form is a coded one, which must decode."""
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LETTERS = "[a-zà-öø-ÿα-ρσ-ωа-яぁ-ゖァ-ヺ一-鿿가-힣]"
"""Lower-case letters and syllables that stay what they are in an international host name."""
_IDN_LABEL = f"({_LETTERS}{{1,12}}|{_label(30)})"
_IDN_HOST = f"{_IDN_LABEL}(\\.{_IDN_LABEL}){{0,4}}"

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(\\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"({_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"({_H16}:){{6}}{_LS32}",
        f"::({_H16}:){{5}}{_LS32}",
        f"({_H16})?::({_H16}:){{4}}{_LS32}",
        f"(({_H16}:){{0,1}}{_H16})?::({_H16}:){{3}}{_LS32}",
        f"(({_H16}:){{0,2}}{_H16})?::({_H16}:){{2}}{_LS32}",
        f"(({_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        f"(({_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(({_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(({_H16}:){{0,6}}{_H16})?::",
    ]
)

_UCS = (
    "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}"
    + "".join(f"\\u{{{plane:X}0000}}-\\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + "\\u{E1000}-\\u{EFFFD}"
)
_CODE = "%[0-9A-Fa-f]{2}"
_PORT = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


def _references(more: str) -> tuple[str, str]:
    """Patterns of RFC 3986, or of RFC 3987 with `more` characters: (a URI, a URI or a relative reference)."""
    unreserved = f"[A-Za-z0-9._~{more}-]"
    pchar = f"([A-Za-z0-9._~!$&'()*+,;=:@{more}-]|{_CODE})"
    without_colon = f"([A-Za-z0-9._~!$&'()*+,;=@{more}-]|{_CODE})"
    user = f"([A-Za-z0-9._~!$&'()*+,;=:{more}-]|{_CODE})*"
    name = f"{unreserved}+" if more else "[A-Za-z0-9_]+(-+[A-Za-z0-9_]+|\\.[A-Za-z0-9_]+)*\\.?"
    authority = f"({user}@)?({name}|\\[({_IPV6})\\])?(:{_PORT})?"
    path = f"(/{pchar}*)*"
    tail = f"(\\?({pchar}|[/?])*)?(#({pchar}|[/?])*)?"
    uri = f"[A-Za-z][A-Za-z0-9+.-]*:(//{authority}{path}|/?({pchar}+{path})?){tail}"
    relative = f"(//{authority}{path}|/({pchar}+{path})?|{without_colon}+{path}|){tail}"
    return uri, f"{uri}|{relative}"


_URI, _URI_REFERENCE = _references("")
_IRI, _IRI_REFERENCE = _references(_UCS)
_POINTER = "(/([^~/]|~[01])*)*"

_VARIABLE = "[A-Za-z0-9_]+(\\.[A-Za-z0-9_]+)*(:[1-9][0-9]{0,3}|\\*)?"
_TEMPLATE = f"([!#$&()*+,./0-9:;=?@A-Z\\[\\]_a-z~{_UCS}-]|{_CODE}|\\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\\}})*"


def _regex(depth: int = 2) -> str:
    """Regular expressions with groups `depth` deep."""
    ranges = "".join(
        f"{a}-[{a}-{z}]|" for first, z in ("09", "az", "AZ") for a in map(chr, range(ord(first), ord(z) + 1))
    )
    escape = "\\\\[dDwWsStnrfv^$\\\\.*+?()\\[\\]{}|/]"
    in_class = f"({ranges}[^\\[\\]\\\\^&~|\\u{{0}}-\\u{{1F}}-]|{escape})"
    atom = f"[^\\[\\]\\\\^$.*+?(){{}}|\\u{{0}}-\\u{{1F}}]|\\.|{escape}|\\[\\^?-?{in_class}{{1,}}-?\\]"
    times = "([*+?]|\\{([0-9]{1,2}|[0-9]{1,2},|0,[0-9]{1,2}|[1-9],[1-9][0-9])\\})\\??"
    inner = f"((({atom})({times})?)|[$^])*"
    for _ in range(depth):
        part = f"((({atom})|\\((\\?:)?{inner}(\\|{inner})*\\))({times})?|[$^])"
        inner = f"{part}*"
    return f"{inner}(\\|{inner})*"


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": f"{_ATOM}(\\.{_ATOM})*@{_SHORT_HOST}",
    "idn-email": f'[^\\u{{0}}-\\u{{20}}"(),.:;<>@\\[\\\\\\]\\u{{7F}}-\\u{{A0}}]+@{_IDN_HOST}',
    "hostname": _HOST,
    "idn-hostname": _IDN_HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _TEMPLATE,
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]*)(#|{_POINTER})",
    "regex": _regex(),
}
LIMITS = {
    "email": ("[^@]{1,64}@[^]{1,63}", None),
    "idn-email": ("[^@]{1,16}@[^]*", "@([^]*\\.)?[A-Za-z0-9-]{2}--"),
    "hostname": (None, _CODED),
    "idn-hostname": (None, _CODED),
}
"""(What the whole must match too, what must occur nowhere in it.)"""
WIDEST = {
    "email": "[^]*@[^]*",
    "idn-email": "[^]*@[^]*",
    **dict.fromkeys(("hostname", "idn-hostname", "uri-reference", "iri-reference"), "[^ ]*"),
    "uri": "[^]*:[^]*",
    "iri": "[^]*:[^]*",
    "date": "[0-9]{4}-?(W?[0-9]{2}-?[0-9]{1,2}|[0-9]{3}|W[0-9]{2})",
    "time": "[^]*[0-9]{2}:[^]*",
    "date-time": "[^]*[0-9]{2}[^]*[0-9]{2}[^]*",
    "ipv4": "[0-9.]+",
    "ipv6": "[^]*:[^]*",
    "uuid": "[^]*([0-9a-fA-F][^]*){32}",
    "duration": "P[^]*",
    "json-pointer": _POINTER,
    "relative-json-pointer": "[0-9][^]*",
    "uri-template": "[^{]*|[^]*}[^]*|[^]*\\{[^]*\\{[^]*",
    "regex": "([^*+?)][^]*)?",
}


def format_dfa(name: str, budget: Budget) -> Dfa:
    """The strings of a format."""
    found = regex_dfa(FORMATS[name], budget)
    whole, nowhere = LIMITS.get(name, (None, None))
    if whole:
        found = intersect(found, regex_dfa(whole, budget), budget)
    if nowhere:
        found = subtract(found, regex_dfa(nowhere, budget, search=True), budget)
    return found
