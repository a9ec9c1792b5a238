"""Exact checks of answers: 1 for a right one, 0 for any other."""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import Any

OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def sudoku(prompt: str, answer: str) -> float:
    """Whether every row, column and box of a filled grid has every digit once. The given digits stand in the template,
    so no answer changes them.
    """
    num = math.isqrt(len(answer))
    size = math.isqrt(num)
    if size**4 != len(answer) or not size:
        return 0.0
    cells = range(num)
    rows = [answer[r * num : (r + 1) * num] for r in cells]
    columns = ["".join(row[c] for row in rows) for c in cells]
    boxes = ["".join(rows[b // size * size + i // size][b % size * size + i % size] for i in cells) for b in cells]
    digits = [str(digit + 1) for digit in cells]
    return float(all(sorted(unit) == digits for unit in rows + columns + boxes))


def countdown(prompt: str, answer: str) -> float:
    """Whether an answer to "3 5 7=22:" uses each number once and has the target as its value."""
    numbers, target = re.fullmatch(r"([\d ]+)=(\d+):", prompt).groups()  # type: ignore[union-attr]
    if len(answer) > 40 or not re.fullmatch(r"[\d+*()-]+", answer):
        return 0.0
    if sorted(re.findall(r"\d+", answer)) != sorted(numbers.split()):
        return 0.0
    try:
        return float(_value(ast.parse(answer, mode="eval").body) == int(target))
    except (SyntaxError, ValueError):
        return 0.0


def _value(node: ast.expr) -> int:
    """The value of an expression of whole numbers. ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        value: int = OPERATORS[type(node.op)](left, right)
        return value
    raise ValueError("no such expression")
