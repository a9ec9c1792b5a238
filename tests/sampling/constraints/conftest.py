"""How a value is written for a schema."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.values import Arrays, Expr, Objects

MOST_WAYS = 50


@pytest.fixture(scope="session")
def written() -> Callable[[Schema, Any], list[str]]:
    """written(schema, value): compact JSON with the members that the schema names in its order, others behind.

    There may be several ways, because alternatives of a schema may name members in different orders.
    """
    return lambda schema, value: ways(schema, schema.root, value)


def ways(schema: Schema, expr: Expr, value: Any) -> list[str]:
    held = schema.values(expr)
    out: dict[str, None] = {}
    if isinstance(value, dict):
        for shape in held.objects or (Objects(),):
            names = [name for name in shape.names() if name in value]
            names += [name for name in value if name not in names]
            members = [ways(schema, shape.member(name), value[name]) for name in names]
            for chosen in list(product(*members))[:MOST_WAYS]:
                pairs = (f"{compact(name)}:{text}" for name, text in zip(names, chosen, strict=True))
                out["{" + ",".join(pairs) + "}"] = None
    elif isinstance(value, list):
        for array in held.arrays or (Arrays(),):
            items = [ways(schema, array.item(i), item) for i, item in enumerate(value)]
            for chosen in list(product(*items))[:MOST_WAYS]:
                out["[" + ",".join(chosen) + "]"] = None
    else:
        out[compact(value)] = None
    return list(out)
