"""The files that programs work on, and how what they wrote is judged: it runs in the sandbox."""

from __future__ import annotations

import sys

from daguerre.train.reinforce.sandbox import Sandbox

PRICES = '''"""Prices."""


def calc(prices, tax):
    """The sum of the prices, with the tax on it."""
    return round(sum(prices) * (1 + tax), 2)


def receipt(prices, tax):
    """A line for each price, and the total."""
    lines = [f"{price:.2f}" for price in prices]
    return "\\n".join([*lines, f"total {calc(prices, tax):.2f}"])


def cheaper(one, other, tax):
    """Whether the first list of prices costs less."""
    return calc(one, tax) < calc(other, tax)
'''
RENAMED = """
assert "calc" not in globals()
assert total_price([1, 2], 0.5) == 4.5
assert receipt([1, 2], 0.5) == "1.00\\n2.00\\ntotal 4.50"
assert cheaper([1], [2], 0)
"""
RENAME = "Rename the function calc to total_price everywhere in prices.py. Change nothing else."
QUESTION = "Which function of prices.py compares two lists of prices? Answer with its name."
ANSWER = "cheaper"

BEFORE = '''"""Statistics."""


def mean(values):
    """The mean of the values."""
    return sum(values) / len(values)


def largest(values):
    """The largest of the values."""
    '''
AFTER = '''


def spread(values):
    """The largest of the values less the smallest."""
    return largest(values) - min(values)
'''
COMPLETED = "assert largest([1, 3, 2]) == 3 and spread([1, 3, 2]) == 2 and mean([1, 3]) == 2"

_JUDGE = """
import json, sys
asked, scope = json.load(sys.stdin), {"__name__": "written"}
exec(asked["answer"], scope)
exec(asked["prompt"], scope)
"""


def holds(text: str, asserts: str) -> bool:
    """Whether the assertions hold of a module's text, which is run in the sandbox."""
    return Sandbox().reward([sys.executable, "-I", "-c", _JUDGE], asserts, text) == 1
