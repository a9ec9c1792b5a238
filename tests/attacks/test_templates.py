"""Chat templates that strangers wrote: each ends with an error that names the limit that it meets, in bounded memory.

A child process renders them (`rendering.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from attacks.child import Child

GROWTH = 400 << 10
"""KiB by which one template may make the process grow."""

PAIRS = "{% set n = namespace(a=['x']) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
KEYS = "{% set n = namespace(a=('x', 'y')) %}{% for i in range(40) %}{% set n.a = (n.a, n.a) %}{% endfor %}"
DICTS = "{% set n = namespace(a={'x': 1}) %}{% for i in range(40) %}{% set n.a = {'a': n.a, 'b': n.a} %}{% endfor %}"
SPACES = "{% set n = namespace(a=1) %}{% for i in range(40) %}{% set n.a = namespace(b=n.a, c=n.a) %}{% endfor %}"
OWN = "{% set n = namespace(a=['x']) %}{% for i in range(40) %}{% set b = [] %}{% set _ = b.append(n.a) %}"
OWN += "{% set _ = b.append(n.a) %}{% set n.a = b %}{% endfor %}"
VIEWS = "{% set n = namespace(a={'x': 1}) %}{% for i in range(40) %}"
VIEWS += "{% set n.a = {1: n.a.items(), 2: n.a.items()} %}{% endfor %}"
BIG = "{% set b = 'x' * 9000000 %}"
LIST = "{% set l = [0] * 900000 %}"


USES = {
    "compared": "{{ n.a == [n.a, 1] }}",
    "ordered": "{{ n.a < n.a }}",
    "looked for": "{{ 1 in n.a }}",
    "as JSON": "{{ n.a | tojson }}",
    "joined": "{{ n.a ~ '' }}",
    "upper": "{{ n.a | upper }}",
    "written": "{{ n.a }}",
    "string": "{{ n.a | string | length }}",
    "pprint": "{{ n.a | pprint }}",
    "sorted": "{{ [n.a, n.a] | sort }}",
    "unique": "{{ [n.a, n.a] | unique | list }}",
    "format": "{{ '%s' | format(n.a) }}",
    "percent": "{{ '%s' % n.a }}",
    "percent of many": "{{ '%s' % (n.a,) }}",
    "str.format": "{{ '{}'.format(n.a) }}",
    "equalto": "{{ n.a is eq n.a }}",
    "selected": "{{ [n.a] | select('equalto', [n.a]) | list }}",
    "counted": "{{ [n.a].count([n.a]) }}",
    "found": "{{ [n.a].index([n.a]) }}",
    "min": "{{ [n.a, n.a] | min }}",
    "grouped": "{{ [n, n] | groupby('a') }}",
    "raised": "{{ raise_exception(n.a) }}",
    "a dictionary's default": "{{ {}.get(1, n.a) | string }}",
    "title": "{{ n.a | title }}",
    "escaped": "{{ n.a | e }}",
    "length of a text": "{{ (n.a | trim) | length }}",
    "lower test": "{{ n.a is lower }}",
    "a block": "{% set x %}{{ n.a }}{% endset %}",
    "xmlattr": "{{ {'a': n.a} | xmlattr }}",
    "a filter block": "{% filter upper %}{{ n.a }}{% endfilter %}",
    "mapped": "{{ [n.a] | map('string') | list }}",
    "changed": "{% for i in [1, 2] %}{% if loop.changed(n.a) %}{% endif %}{% endfor %}",
    "a macro": "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(n.a) }}",
    "dictsorted": "{{ {1: n.a, 2: n.a} | dictsort(by='value') }}",
    "joined by a text": "{{ n.a | join(',') }}",
    "a method's join": "{{ ','.join(n.a | map('string')) }}",
}
KEY_USES = {
    "hashed": "{{ {n.a: 1} }}",
    "looked up": "{{ {}[n.a] }}",
    "got": "{{ {}.get(n.a) }}",
    "written": "{{ n.a }}",
}
EXPANDED = {
    **{f"pairs, {what}": PAIRS + use for what, use in USES.items()},
    **{f"keys, {what}": KEYS + use for what, use in KEY_USES.items()},
    "keys by plus": KEYS.replace("(n.a, n.a)", "(n.a,) + (n.a,)") + "{{ {n.a: 1} }}",
    "keys by times": KEYS.replace("(n.a, n.a)", "(n.a,) * 2") + "{{ {n.a: 1} }}",
    "dictionaries": DICTS + "{{ n.a | tojson }}",
    "dictionaries, compared": DICTS + "{{ n.a == {'a': n.a.a, 'b': 1} }}",
    "lists that grow": OWN + "{{ n.a }}",
    "views": VIEWS + "{{ n.a }}",
    "pairs of one text": BIG + "{{ [b, b, b] | tojson }}",
    "a list of one text": BIG + "{{ [b] * 1000 }}",
    "nested in depth, indented": (
        "{% set n = namespace(a=[1]) %}{% for i in range(300) %}{% set n.a = [n.a, 1, 1, 1] %}{%"
        " endfor %}"
        "{{ n.a | tojson(indent=60) }}{{ n.a | tojson(indent=9000) }}"
    ),
}
CYCLES = {
    "a list in itself": "{% set l = [] %}{% set _ = l.append(l) %}{{ l == [l] }}",
    "through another list": "{% set l = [] %}{% set _ = l.append([[l]]) %}{{ l }}",
    "through a dictionary": "{% set l = [] %}{% set _ = l.append({'a': l}) %}{{ l | tojson }}",
}
LONG = {
    "a text doubled": ("{% set n = namespace(s='xy') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"),
    "a text joined to itself": (
        "{% set n = namespace(s='xy') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
    ),
    "a list doubled": ("{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"),
    "texts kept": (
        "{% set n = namespace(s=[]) %}{% for i in range(9999) %}{% set n.s = n.s + ['x' * 100000] %}{% endfor %}"
    ),
    "a text times": "{{ 'x' * 10 ** 9 }}",
    "a list times": "{{ [1] * 10 ** 8 }}",
    "times a list": "{{ 10 ** 8 * [1] }}",
    "lists of lists": "{{ ([[0] * 999] * 999) * 999 }}",
    "center": "{{ 'a'.center(10 ** 9) }}",
    "center filter": "{{ 'a' | center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "mapped center": "{{ ['a'] | map('center', 10 ** 9) | list }}",
    "named width": "{{ 'a' | center(width=10 ** 9) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10 ** 6) }}",
    "replace": "{{ ('a' * 10 ** 5).replace('a', 'b' * 10 ** 5) }}",
    "replace of nothing": "{{ ('a' * 10 ** 5) | replace('', 'b' * 10 ** 5) }}",
    "replace by name": "{{ ('a' * 10 ** 5) | replace(new='b' * 10 ** 5, old='a') }}",
    "translate": "{{ ('a' * 10 ** 5).translate({97: 'b' * 10 ** 5}) }}",
    "indent": "{{ ('a\n' * 10 ** 5) | indent(10 ** 5) }}",
    "indent by a text": "{{ ('a\n' * 10 ** 4) | indent('x' * 10 ** 5) }}",
    "wordwrap": "{{ ('a ' * 20000) | wordwrap(1, wrapstring='x' * 10 ** 5) }}",
    "wordwrap of much": "{{ ('a ' * 10 ** 6) | wordwrap(1) }}",
    "join": "{{ (range(99999) | list) | join('x' * 10 ** 6) }}",
    "join of a text": "{{ ('a' * 10 ** 6) | join('x' * 1000) }}",
    "join method": "{{ ('x' * 10 ** 6).join('a' * 1000) }}",
    "join of what yields": "{{ ('x' * 10 ** 6).join(range(999) | map('string')) }}",
    "format": (
        "{{ '%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d"
        "%999999d' | format(1,1,1,1,1,1,1,1,1,1,1) }}"
    ),
    "format of many": "{{ ('%99999d' * 1000) % ((1,) * 1000) }}",
    "format of one again and again": "{{ ('{0}' * 10 ** 6).format('x' * 1000) }}",
    "format by an argument": "{{ '%*d' % (10 ** 9, 1) }}",
    "format in a format": "{{ '{:>{}}'.format(1, 10 ** 9) }}",
    "format of a mapping": "{{ ('{a}' * 10 ** 6).format_map({'a': 'x' * 1000}) }}",
    "format of digits": "{{ '%.999999999f' % 1.5 }}",
    "named format": "{{ ('%(a)s' * 10 ** 6) | format(a='x' * 1000) }}",
    "tojson indent": "{{ [[1]] | tojson(indent=10 ** 8) }}",
    "tojson indent of a text": "{{ ([[1]] * 9999) | tojson(indent='x' * 10 ** 5) }}",
    "tojson separators": "{{ ([1] * 9999) | tojson(separators=(',' * 10 ** 5, ':')) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "slice of much": "{{ range(99999) | slice(10 ** 7, 0) | list }}",
    "sum of lists": "{{ ([[1] * 999] * 999) | sum(start=[]) }}",
    "round": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "urlize": "{{ ('a.com ' * 9000) | urlize(rel='x' * 10 ** 5) }}",
    "urlize of much": "{{ ('a.com ' * 10 ** 6) | urlize }}",
    "striptags": "{{ ('<!--' * 10 ** 6) | striptags }}",
    "urlencode": "{{ ('é' * 10 ** 6) | urlencode }}",
    "title": "{{ ('a ' * 10 ** 6) | title }}",
    "a list of characters": "{{ ('€' * 9000000) | list | length }}",
    "pieces": "{% for i in range(999) %}{{ ('abc ' * 10 ** 6).split() | length }}{% endfor %}",
    "slices": LIST + "{{ [" + "l[:]," * 999 + "] | length }}",
    "copies": LIST + "{% set x = [" + "l | list," * 999 + "] %}",
    "copies by a method": LIST + "{% set x = [" + "l.copy()," * 999 + "] %}",
    "dictionaries copied": (
        "{% set d = dict(range(10000) | map('string') | batch(2)) %}{% set x = [" + "dict(d)," * 999 + "] %}"
    ),
    "literals kept": (
        "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l, " + "0," * 5000 + "] %}{% endfor %}"
    ),
    "a block of one text": BIG + "{% set x %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endset %}",
    "a block of the template's text": (
        "{% set x %}{% for i in range(99999) %}" + "y" * 20000 + "{% endfor %}{% endset %}"
    ),
    "a block of small pieces": (
        "{% set x %}{% for i in range(99999) %}" + "{% if 1 %}{{ '' }}{% endif %}" * 1000 + "{% endfor %}{% endset %}"
    ),
    "blocks kept": (
        BIG + "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set x %}{{ b }}{% endset %}"
        "{% set n.l = n.l + [x] %}{% endfor %}"
    ),
    "a macro's text": (
        BIG + "{% macro m() %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endmacro %}{% set x = m() %}"
    ),
    "macros kept": BIG + "{% macro m() %}{{ b }}{% endmacro %}{% set x = [" + "m()," * 999 + "] %}",
    "the whole text": BIG + "{{ b }}{{ b }}",
    "an own list": "{% set l = [] %}{% for i in range(99999) %}{% set _ = l.append('x' * 99999) %}{% endfor %}",
    "from_json": "{{ ('[' + '[],' * 400000 + '1]') | from_json | length }}",
    "strftime": "{{ strftime_now('%c' * 10 ** 6) | length }}",
    "a list over a text": "{{ ('x' * 9000000) | map('upper') | list | length }}",
    "reversed": LIST + "{{ [" + "l | reverse | list," * 999 + "] | length }}",
}
NUMBERS = {
    "power": "{{ 2 ** (10 ** 10) }}",
    "power of powers": "{{ 9 ** (9 ** 9) }}",
    "powers in a loop": "{% for i in range(9999) %}{% set x = 7 ** 3000000 %}{% endfor %}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "written": "{{ 2 ** 13999 * 2 ** 13999 }}",
    "a long literal": "{{ " + "9" * 5000 + " }}",
    "a negative one": "{{ -" + "9" * 5000 + " }}",
    "a long hexadecimal": "{{ 0x" + "f" * 100000 + " // 3 }}",
    "compared": "{{ 0x" + "f" * 100000 + " }}",
    "int of a text": "{{ ('f' * 10 ** 6) | int(base=16) // 3 }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "bytes": "{{ ('x' * 9000000).encode('utf-16') | length }}",
}
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a block in itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a loop in itself": "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "a list that grows as it is read": "{% set l = [1] %}{% for a in l %}{% set _ = l.append(1) %}{% endfor %}",
    "comparisons": LIST + "{% set k = l + [1] %}{{ [" + "l + [1] == k," * 999 + "] }}",
    "sorts": LIST + "{{ [" + "(l | sort)[0]," * 999 + "] }}",
    "a caller": (
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call m() %}" * 15
        + "x"
        + "{% endcall %}" * 15
        + "{% for a in range(99) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "an attribute of many parts": "{{ messages | map(attribute='a.' * 9999) | list }}",
    "a source without an end": "{{ 1 }}" * 200000,
    "nested parentheses": "{{ " + "(" * 999 + "1" + ")" * 999 + " }}",
    "a sum without an end": "{{ 1" + " + 1" * 20000 + " }}",
    "included": "{% include 'x' %}{% import 'x' as x %}",
}
ATTACKS = {
    "expanded": (EXPANDED, "a value is too large|the result of|more than|holds itself"),
    "cycles": (CYCLES, "would hold itself"),
    "long": (LONG, "too large|more than|too long|longer than|are given|is given|sum adds numbers"),
    "numbers": (NUMBERS, "too large|is too long|may not|unsafe"),
    "endless": (ENDLESS, "more than|too often|too deeply|longer than|too long|no loader"),
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Child]:
    made = Child("rendering.py")
    yield made
    made.close()


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_hostile_template_ends_with_its_limit(kind: str, renderer: Child, subtests: pytest.Subtests) -> None:
    sources, limits = ATTACKS[kind]
    for name, source in sources.items():
        with subtests.test(name):
            found = renderer.ask(source=source, content="Hello")
            assert found["error"] and re.search(limits, found["error"])
            assert found["kib"] < GROWTH
    assert renderer.ask(source="{{ messages[0].content }}", content="Hello")["said"] == 5
