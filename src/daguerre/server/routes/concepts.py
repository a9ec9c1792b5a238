"""The concepts of a model with concept heads: what explanations name, and what can be steered."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from daguerre.models.catalog import NamedConcept
from daguerre.server.protocol.common import catalog_of

router = APIRouter()


@router.get("/v1/daguerre/concepts", response_model=None)
async def concepts(request: Request, model: str | None = None) -> dict[str, Any]:
    """The named concepts of a model, which is loaded if it is not. Those from number `num_known` on are discovered ones
    and have no names.
    """
    served = await asyncio.to_thread(request.app.state.pool.get, model)
    catalog = catalog_of(served, "model")
    return {
        "object": "daguerre.concepts",
        "model": served.name,
        "num_known": catalog.num_known,
        "num_discovered": catalog.num_discovered,
        "taxonomy": catalog.taxonomy,
        "data": [_facts(one) for one in catalog.concepts],
    }


def _facts(one: NamedConcept) -> dict[str, Any]:
    """A concept. exact: a constraint can forbid it."""
    return {
        "number": one.number,
        "name": one.name,
        "group": one.group,
        "description": one.description,
        "exact": bool(one.texts),
    }
