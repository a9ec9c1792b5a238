"""Canonical JSON, held to the examples of RFC 8785."""

from __future__ import annotations

import json
import struct

import pytest

from daguerre.audit.canonical import canonical
from daguerre.errors import DataError

NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""
"""Appendix B: the bits of a number, and how it is written."""


def test_the_sample_of_the_rfc_is_written_as_it_says() -> None:
    given = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    written = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical(json.loads(given)) == written.encode()


def test_keys_are_in_the_order_of_their_utf_16_units() -> None:
    given = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical(given)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_a_number_is_written_as_in_appendix_b(subtests: pytest.Subtests) -> None:
    for line in NUMBERS.split("\n")[1:-1]:
        with subtests.test(line):
            bits, written = line.split()
            (number,) = struct.unpack(">d", bytes.fromhex(bits))
            assert canonical(number) == written.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, {1: 2}, "\ud800", object()])
def test_what_json_does_not_have_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(DataError) as error:
        canonical({"value": value})
    assert "\n" not in str(error.value)
