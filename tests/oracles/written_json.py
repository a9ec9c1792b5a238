"""How a value is written for a schema: what automata are held to."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

from daguerre.sampling.constraints.objects import class_of, members
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.values import Arrays, Expr, Objects

MOST_WAYS = 50


def written(schema: Schema, value: Any) -> list[str]:
    """Compact JSON with the members that the schema names in its order, others behind.

    There may be several ways, because alternatives of a schema may name members in different orders.
    """
    return ways(schema, schema.root, value)


def ways(schema: Schema, expr: Expr, value: Any) -> list[str]:
    """The same for a part of a schema."""
    held = schema.values(expr)
    out: dict[str, None] = {}
    if isinstance(value, dict):
        for shape in held.objects or (Objects(),):
            for names in orders(schema, shape, value):
                inner = [ways(schema, shape.member(name), value[name]) for name in names]
                for chosen in islice(product(*inner), MOST_WAYS):
                    pairs = (f"{compact(name)}:{text}" for name, text in zip(names, chosen, strict=True))
                    out["{" + ",".join(pairs) + "}"] = None
    elif isinstance(value, list):
        for array in held.arrays or (Arrays(),):
            items = [ways(schema, array.item(i), item) for i, item in enumerate(value)]
            for chosen in islice(product(*items), MOST_WAYS):
                out["[" + ",".join(chosen) + "]"] = None
    else:
        out[compact(value)] = None
    return list(out)


def orders(schema: Schema, shape: Objects, value: dict[str, Any]) -> list[list[str]]:
    """The names of a value as a shape may write them."""
    ready = members(schema, shape)
    named = [name for name in ready.named if name in value]
    others = [name for name in value if name not in named]
    if shape.least > 1:
        others.sort(key=lambda name: class_of(name, ready.classes))
    turns = len(others) if shape.some else 1  # a member that is wanted may be any of them
    return [named + others[k:] + others[:k] for k in range(max(1, turns))]
