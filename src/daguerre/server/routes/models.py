"""The models of the server: all, those of an endpoint, one, and the concepts of one.

A model that is not loaded is listed by its name alone: listing loads nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from daguerre.decoding.modes import MODES, allows
from daguerre.errors import shown
from daguerre.http.settings import Settings
from daguerre.server.edits import can_converse
from daguerre.server.models import ModelPool, NoSuchModel, Served
from daguerre.server.prompts import can_think
from daguerre.server.protocol.common import catalog_of

router = APIRouter()
ENDPOINTS = ("chat.completions", "completions", "responses", "messages", "embeddings", "decisions")
INFILLING = "fim.completions"
EDITING = {"next_edit": "edit.completions", "apply": "apply.completions"}
"""Endpoints of tasks that a model was trained on, or can be told to do."""
PARAMETERS = (
    *("temperature", "top_p", "top_k", "stop", "seed", "max_tokens", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "structured_outputs"),
)
FEATURES = ("tools", "json_mode", "structured_outputs", "logprobs")
FREE = {"prompt": "0", "completion": "0", "input_cache_reads": "0", "input_cache_writes": "0"}


@router.get("/v1/models", response_model=None)
@router.get("/v1/chat/completions/models", response_model=None)
async def models(request: Request) -> dict[str, Any]:
    """All models of the server, the default one first: all of them converse, base models by a transcript."""
    return {"object": "list", "data": _all(request)}


@router.get("/v1/fim/completions/models", response_model=None)
async def fim_models(request: Request) -> dict[str, Any]:
    """The models that fill gaps, as far as they are loaded."""
    found = [one for one in _all(request) if INFILLING in one.get("supported_endpoints", (INFILLING,))]
    return {"object": "list", "data": found}


@router.get("/v1/edit/completions/models", response_model=None)
async def edit_models(request: Request) -> dict[str, Any]:
    """The models that edit, as far as they are loaded."""
    found = [one for one in _all(request) if EDITING["next_edit"] in one.get("supported_endpoints", ())]
    return {"object": "list", "data": found}


@router.get("/v1/models/{name:path}", response_model=None)
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    pool: ModelPool = request.app.state.pool
    for one in _all(request):
        if one["id"] == name or (name == "default" and one["id"] == pool.names[0]):
            return one
    raise NoSuchModel(f"there is no model {shown(name)}: ask for one of {', '.join(pool.names)}")


def _all(request: Request) -> list[dict[str, Any]]:
    pool: ModelPool = request.app.state.pool
    loaded = {one.name: one for one in pool.loaded}
    return [_facts(name, loaded.get(name), request.app.state.settings) for name in pool.names]


def _facts(name: str, served: Served | None, settings: Settings) -> dict[str, Any]:
    """A model as OpenAI's, Mercury's and OpenRouter's clients know it."""
    facts = {"id": name, "object": "model", "created": 0, "owned_by": "daguerre", "name": name}
    if served is None:
        return facts
    catalog = served.model.concepts
    length = min(served.model.config.max_positions, settings.max_context or served.model.config.max_positions)
    return facts | {
        "created": served.created,
        "description": repr(served.model),
        "context_length": length,
        "max_output_length": min(length, settings.max_tokens or length),
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "supported_sampling_parameters": PARAMETERS,
        "supported_features": (*FEATURES, *(("reasoning",) if can_think(served.model) else ())),
        "supported_endpoints": (
            *ENDPOINTS,
            *((INFILLING,) if infills(served) else ()),
            *(name for task, name in EDITING.items() if task in served.model.tasks or can_converse(served.model)),
        ),
        "pricing": FREE,
        "daguerre": {
            "modes": [mode.name for mode in MODES.values() if allows(mode, served.model.config)],
            "gaps": "none" if not infills(served) else "several" if served.model.config.mask_id is not None else "one",
            "chat_template": can_converse(served.model),
            "chat_sampling": served.model.chat_sampling,
        },
        "concepts": None if catalog is None else {"known": catalog.num_known, "discovered": catalog.num_discovered},
    }


def infills(served: Served) -> bool:
    """Whether the model fills gaps: by masks, by tokens of fill-in-the-middle, or by likelihood alone."""
    config = served.model.config
    masks = config.mask_id is not None or config.process != "absorbing"
    return config.context != "block" and (masks or config.can_draft)


@router.get("/v1/daguerre/concepts", response_model=None)
async def concepts(request: Request, model: str | None = None) -> dict[str, Any]:
    """The named concepts of a model, which is loaded if it is not; exact: a constraint can forbid it. Those from number
    `num_known` on are discovered ones and have no names.
    """
    served = await asyncio.to_thread(request.app.state.pool.get, model)
    catalog = catalog_of(served, "model")
    return {
        "object": "daguerre.concepts",
        "model": served.name,
        "num_known": catalog.num_known,
        "num_discovered": catalog.num_discovered,
        "taxonomy": catalog.taxonomy,
        "data": [
            {
                "number": one.number,
                "name": one.name,
                "group": one.group,
                "description": one.description,
                "exact": bool(one.texts),
            }
            for one in catalog.concepts
        ],
    }
