"""JSON numbers with a property, as automata over their text.

Numbers that must be compared or divided are plain decimals, without exponent; equal values are treated alike, so 1.50
passes where 1.5 does. Decimal digits decide, exactly; a fraction next to a bound has no more digits than a float keeps.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, intersect, table_dfa
from daguerre.sampling.constraints.indices import DEAD
from daguerre.sampling.constraints.limits import Limits
from daguerre.sampling.constraints.regex import regex_dfa

INTEGER = "0|-?[1-9][0-9]*"
PLAIN = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?"
NUMBER = PLAIN + "|-?[0-9](\\.[0-9]+)?[eE][+-]?([0-9]{1,2}|[12][0-9]{2}|30[0-7])"
"""An exponent follows one digit, and a float holds the number: 1e999 would be read as infinity."""
FLOAT_DIGITS = 15
"""Different decimals of this many digits are different floats, in the same order."""
STATE, CHARACTERS = 70, 4
"""About how many bytes a state of a table below takes, and a pattern for each two digits: for the budget's memory."""


@lru_cache(maxsize=8)
def numbers(pattern: str) -> Dfa:
    """The automaton of one of the patterns above."""
    return regex_dfa(pattern, Budget())


def above(bound: int | float, strict: bool, budget: Budget, limits: Limits) -> Dfa:
    """Plain decimals greater than a bound, or equal to it unless `strict`."""
    return _compared(_decimal(bound, limits), strict, budget)


def below(bound: int | float, strict: bool, budget: Budget, limits: Limits) -> Dfa:
    """Plain decimals less than a bound, or equal to it unless `strict`."""
    return _compared(-_decimal(bound, limits), strict, budget, negate=True)


def _decimal(value: int | float, limits: Limits) -> Decimal:
    found = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
    size = abs(found.adjusted())
    limits.check("exponent", size, f"compares with a number near 1e{found.adjusted():+}, whose exponent is {size:,}")
    return found


def _compared(bound: Decimal, strict: bool, budget: Budget, negate: bool = False) -> Dfa:
    """Numbers x (or, with `negate`, -x) from `bound` up."""
    whole, fraction = _digits(abs(bound))
    digits = max(FLOAT_DIGITS - len(whole), len(fraction), 1)
    size = CHARACTERS * len(whole + fraction) ** 2
    budget.hold(size)
    minus, plus = ("", "-") if negate else ("-", "")
    some = "(0|[1-9][0-9]*)(\\.[0-9]+)?"
    if bound > 0:
        pattern = plus + "(" + _unsigned(whole, fraction, True, strict) + ")"
    elif bound < 0:
        pattern = f"{plus}{some}|{minus}({_unsigned(whole, fraction, False, strict)})"
    else:
        positive = _unsigned("0", "", True, True)
        pattern = f"{plus}({positive})" if strict else f"{plus}({positive})|-?0(\\.0+)?"
    shape = f"-?[0-9]+(\\.[0-9]{{1,{digits}}})?"
    found = intersect(regex_dfa(pattern, budget), regex_dfa(shape, budget), budget)
    budget.hold(-size)
    return found


def _digits(value: Decimal) -> tuple[str, str]:
    """The digits before the point and after it, without zeros that mean nothing."""
    whole, _, fraction = format(value, "f").partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def _unsigned(whole: str, fraction: str, greater: bool, strict: bool) -> str:
    """A pattern of the decimals without sign that are greater (or less) than whole.fraction, or equal to it."""
    after = "(\\.[0-9]+)?"
    parts = [] if strict else [f"{whole}\\.{fraction}0*" if fraction else f"{whole}(\\.0+)?"]
    if greater:
        parts.append(f"[1-9][0-9]{{{len(whole)},}}{after}")
        parts.append(f"{whole}\\.{fraction}0*[1-9][0-9]*")
    else:
        if len(whole) > 1:
            parts.append(f"(0|[1-9][0-9]{{0,{len(whole) - 2}}}){after}")
        parts += [whole + f"\\.{fraction[:k]}" * (k > 0) for k in range(len(fraction))]
    for k, digit in enumerate(whole):
        others = _others(int(digit), greater, first=k == 0 and len(whole) > 1)
        parts += [f"{whole[:k]}{others}[0-9]{{{len(whole) - k - 1}}}{after}"] if others else []
    for k, digit in enumerate(fraction):
        others = _others(int(digit), greater, first=False)
        parts += [f"{whole}\\.{fraction[:k]}{others}[0-9]*"] if others else []
    return "|".join(parts)


def _others(digit: int, greater: bool, first: bool) -> str:
    """A class of the digits greater or less than one; the first of several is not 0. "" when there are none."""
    low, high = (digit + 1, 9) if greater else (int(first), digit - 1)
    return f"[{low}-{high}]" if low <= high else ""


def multiples(of: int | float, budget: Budget, limits: Limits) -> Dfa:
    """Plain decimals that are a multiple of a number above 0: the digits read so far, modulo it."""
    step = _decimal(of, limits)
    if step <= 0:
        raise InputError(f"multipleOf must be above 0, not {of}: change the schema")
    scale = max(0, -int(step.as_tuple().exponent))
    modulus = int(Fraction(step) * 10**scale)
    count = modulus * (scale + 1)
    limits.check("remainders", count, f"has multipleOf {step:.10g}, which needs {count:,} states")
    budget.hold(STATE * count)
    # state 0: nothing read; then remainders before the point; then those after f digits of the fraction
    column_of_byte = np.full(256, 12, dtype=np.uint8)
    column_of_byte[ord("0") : ord("9") + 1], column_of_byte[ord("-")], column_of_byte[ord(".")] = range(10), 10, 11
    delta = np.full((1 + modulus * (scale + 2), 13), DEAD, dtype=np.int32)
    accept = np.zeros(len(delta), dtype=bool)
    remainder = np.arange(modulus)
    whole, behind = 1 + remainder, 1 + modulus * np.arange(1, scale + 2)[:, None] + remainder
    delta[0, 10] = 0
    delta[whole, 11] = behind[0]
    accept[whole] = remainder * pow(10, scale, modulus) % modulus == 0
    for digit in range(10):
        after = (remainder * 10 + digit) % modulus
        delta[0, digit] = whole[digit % modulus]
        delta[whole, digit] = whole[after]
        for f in range(scale):
            delta[behind[f], digit] = behind[f + 1][after]
    delta[behind[scale], 0] = behind[scale]
    for f in range(scale + 1):
        accept[behind[f]] = remainder * pow(10, scale - f, modulus) % modulus == 0
    found = intersect(table_dfa(delta, column_of_byte, accept), numbers(PLAIN), budget)
    budget.hold(-STATE * count)
    return found


def equal_to(value: int | float, budget: Budget, limits: Limits) -> Dfa:
    """Plain decimals of one value."""
    whole, fraction = _digits(abs(_decimal(value, limits)))
    sign = "-" if value < 0 else "" if value else "-?"
    return regex_dfa(f"{sign}{whole}\\.{fraction}0*" if fraction else f"{sign}{whole}(\\.0+)?", budget)
