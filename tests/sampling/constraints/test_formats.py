"""Formats, judged by other code: whatever is written in a format is of it, and what is plainly of it can be written."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import schema_dfa
from daguerre.sampling.constraints.formats import FORMATS, WIDEST, format_dfa
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.text import compact
from random_texts import random_texts

LONG = "a" * 60
GOOD: dict[str, list[str]] = {
    "date": ["2024-02-29"],
    "time": ["08:30:00+01:00", "08:30:00.5Z"],
    "date-time": ["2024-01-01T23:59:59Z"],
    "duration": ["P1Y2M3D", "PT1H", "P3W", "P1DT12H30M", "PT36H"],
    "email": ["a.b@example.org", "x+y@a-b.co", f"{'a' * 64}@b.org"],
    "idn-email": ["실례@실례.테스트", "ab@example.org"],
    "hostname": ["example.org", "a", f"{LONG}.org", "a-b.c-d.e.f.g.h", "localhost"],
    "idn-hostname": ["실례.테스트", "münchen.de", "example.org"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::", "fe80::1:2"],
    "uri": ["https://u:p@example.org:80/a/b?c=d#e", "urn:isbn:1", "mailto:a@b.c", "http://[::1]/"],
    "uri-reference": ["/a/b", "a?b", "#c", "", "//x.org/a", "https://example.org", "../up"],
    "iri": ["https://münchen.de/straße", "http://example.org"],
    "iri-reference": ["/straße", "#ü", "http://example.org"],
    "uri-template": ["http://x.org/{a}/{?b,c*}", "/a/{+path:3}", "plain"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "json-pointer": ["", "/a/b~0c~1d", "/"],
    "relative-json-pointer": ["0", "1/a", "2#", "0/b~0"],
    "regex": ["^[a-z0-9_-]+$", "a|(b|c)*", "\\d{2,}", "(?:x)+?", "[^\\s]", ""],
}
BAD: dict[str, list[str]] = {
    "duration": ["P", "PT", "P1Y2W", "1Y", "P1H", "PT1D"],
    "email": [f"{'a' * 65}@b.org", "a@", "@b", "a b@c.d", ".a@b.c", "a@b..c"],
    "hostname": [".".join([LONG] * 5), "-a", "a-", "a..b", "a_b", "xn--X", f"{LONG}aaaa"],
    "idn-hostname": ["〮", "a b", "-ü"],
    "ipv6": ["1::2::3", "12345::", "1:2:3:4:5:6:7", "::1%eth0", ":1", "1.2.3.4"],
    "uri": ["/a", "a b:c", "http://[::", "//x", "\\\\x"],
    "uri-reference": ["a b", "\\x", "%zz"],
    "iri": ["/ü", "http://[ü]/"],
    "uri-template": ["{", "{a", "}a", "{a b}"],
    "json-pointer": ["a", "/~2", "/a~"],
    "relative-json-pointer": ["01", "-1", "/a", "1a"],
    "regex": ["(", "[a", "*", "a**", "a{2,1}", "[z-a]", "\\"],
}


def test_a_format_is_what_other_code_says(subtests: pytest.Subtests) -> None:
    for name in FORMATS:
        with subtests.test(name):
            dfa, judge = format_dfa(name, Budget()), jsonschema.FormatChecker()
            widest = regex_dfa(WIDEST[name], Budget())
            made = list(random_texts(dfa, 40))

            assert all(dfa.accepts(text.encode()) for text in GOOD[name])
            assert not any(dfa.accepts(text.encode()) for text in BAD.get(name, ["not of it"]))
            for text in made:
                if name in judge.checkers and name != "time":  # which it takes for draft 3's
                    judge.check(text, name)
                if name == "regex":
                    re.compile(text)
            assert all(widest.accepts(text.encode()) for text in [*made, *GOOD[name]])


def test_every_format_of_the_specification_is_known_and_its_opposite() -> None:
    assert FORMATS.keys() == GOOD.keys() == WIDEST.keys()


def test_what_is_not_of_a_format_is_not_of_it_by_any_reading() -> None:
    dfa = schema_dfa({"type": "string", "not": {"format": "email"}}, Budget())[0]

    assert dfa.accepts(b'"plain"') and not dfa.accepts(b'"a b@c"')


@pytest.mark.parametrize(("name", "bad"), [("regex", ["*", "?a", ")", "+"]), ("uri-template", ["{", "a{b", "/{"])])
def test_what_may_not_be_a_pattern_or_a_template_is_none(name: str, bad: list[str]) -> None:
    dfa, judge = schema_dfa({"type": "string", "not": {"format": name}}, Budget())[0], format_dfa(name, Budget())

    assert all(dfa.accepts(compact(text).encode()) for text in bad)
    assert not any(dfa.accepts(compact(text).encode()) for text in GOOD[name])
    for text in random_texts(dfa, 40):
        assert not judge.accepts(json.loads(text).encode())
        if name == "regex":
            with pytest.raises(re.error):
                re.compile(json.loads(text))


def test_two_formats_are_not_taken_for_exclusive_because_they_are_written_narrowly() -> None:
    schema: Any = {"oneOf": [{"format": "email"}, {"format": "idn-email"}, {"const": "x"}]}

    dfa = schema_dfa({**schema, "type": "string"}, Budget())[0]

    assert dfa.accepts(b'"x"') and not dfa.accepts(f'"{"a" * 20}@b.org"'.encode())
