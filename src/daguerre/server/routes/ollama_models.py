"""Ollama's routes about models: what there is, what is loaded, embeddings, and what a server's operator decides."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.server.edits import can_converse
from daguerre.server.models import ModelPool, Served
from daguerre.server.prompts import can_think
from daguerre.server.protocol.embeddings import EmbeddingBody
from daguerre.server.protocol.ollama import OllamaEmbedBody, OllamaNameBody, OllamaPromptBody
from daguerre.server.pulls import Pulls, pulled
from daguerre.server.routes.embeddings import embed
from daguerre.server.routes.models import infills
from daguerre.server.routes.ollama import (
    LATEST,
    begun,
    error_line,
    known_name,
    line_of,
    line_stream,
    stamped,
)
from daguerre.server.streams import guarded, json_answer

router = APIRouter()
SPOKEN = "0.12.0"
"""The version of Ollama whose routes and fields these are: clients ask for one and compare it."""
NEVER = "9999-12-31T23:59:59Z"
"""When a loaded model is unloaded by itself."""
ARCHITECTURE = "daguerre"
"""The name before the facts of all models; their families' own names are not told apart here."""


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of Ollama whose interface this is; `/version` has that of Daguerre."""
    return {"version": SPOKEN}


@router.get("/api/tags", response_model=None)
async def tags(request: Request) -> dict[str, Any]:
    """All models of the server, the default one first. Listing loads nothing: one that is not loaded has no size."""
    pool: ModelPool = request.app.state.pool
    loaded = {one.name: one for one in pool.loaded}
    return {"models": [_entry(name, loaded.get(name)) for name in pool.names]}


@router.get("/api/ps", response_model=None)
async def ps(request: Request) -> dict[str, Any]:
    """The models that are loaded."""
    pool, settings = request.app.state.pool, request.app.state.settings
    more = [{"expires_at": NEVER, "size_vram": 0, "context_length": _context(one, settings)} for one in pool.loaded]
    return {"models": [_entry(one.name, one) | facts for one, facts in zip(pool.loaded, more, strict=True)]}


@router.post("/api/show", response_model=None)
async def show(request: Request, body: OllamaNameBody) -> Response:
    """What a model is and can do. It is loaded if it is not."""
    served, _ = await begun(request, body.named)
    model, template = served.model, getattr(served.model.tokenizer, "chat_template", None)
    facts = {
        "modelfile": "",
        "parameters": "",
        "template": "" if template is None else next(iter(template.sources.values()), ""),
        "details": _details(served),
        "model_info": _info(served, request.app.state.settings),
        "capabilities": [
            *("completion", "tools", "embedding"),
            *(("insert",) if infills(served) else ()),
            *(("thinking",) if can_think(model) else ()),
        ],
        "modified_at": stamped(served.created),
        "daguerre": {"model": repr(model), "chat_template": can_converse(model)},
    }
    return json_answer(facts)


def _entry(name: str, served: Served | None) -> dict[str, Any]:
    """A model in a list. Its digest is an id, of the name alone: files are not hashed for it."""
    tagged = name if ":" in name else name + LATEST
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": stamped(0 if served is None else served.created),
        "size": 0 if served is None else served.num_bytes,
        "digest": hashlib.sha256(f"daguerre:{name}".encode()).hexdigest(),
        "details": _details(served),
    }


def _details(served: Served | None) -> dict[str, Any]:
    """Facts that clients show; empty for a model that is not loaded."""
    named = {"parent_model": "", "format": "", "family": ARCHITECTURE, "families": [ARCHITECTURE]}
    if served is None:
        return {**named, "parameter_size": "", "quantization_level": ""}
    denoiser, num = served.model.denoiser, served.model.num_parameters
    size = f"{num / 1e9:.1f}B" if num >= 1e9 else f"{num / 1e6:.0f}M"
    level = denoiser.quantize or "/".join(denoiser.block_types) or served.model.numbers
    return {**named, "parameter_size": size, "quantization_level": level.upper()}


def _info(served: Served, settings: Settings) -> dict[str, Any]:
    config = served.model.config
    facts = {
        "context_length": _context(served, settings),
        "embedding_length": config.width,
        "block_count": config.num_layers,
        "attention.head_count": config.num_heads,
        "vocab_size": config.vocab_size,
    }
    head = {"general.architecture": ARCHITECTURE, "general.parameter_count": served.model.num_parameters}
    return head | {f"{ARCHITECTURE}.{name}": value for name, value in facts.items()}


def _context(served: Served, settings: Settings) -> int:
    positions = served.model.config.max_positions
    return min(positions, settings.max_context or positions)


@router.post("/api/embed", response_model=None)
async def embed_texts(request: Request, body: OllamaEmbedBody) -> Response:
    """Embeddings of texts."""
    served, answer = await begun(request, body.model)
    texts = EmbeddingBody.model_validate({"input": body.input, "dimensions": body.dimensions})
    vectors, num = list[Any](), 0
    if body.input != []:
        found, num = await asyncio.to_thread(embed, served, texts, body.truncate)
        vectors = found.tolist()
    return json_answer({"model": answer.name, "embeddings": vectors, **answer.times(), "prompt_eval_count": num})


@router.post("/api/embeddings", response_model=None)
async def embed_prompt(request: Request, body: OllamaPromptBody) -> Response:
    """The embedding of one text."""
    served, _ = await begun(request, body.model)
    if not body.prompt:
        return json_answer({"embedding": []})
    vectors, _ = await asyncio.to_thread(embed, served, EmbeddingBody.model_validate({"input": body.prompt}), True)
    return json_answer({"embedding": vectors[0].tolist()})


@router.post("/api/pull", response_model=None)
async def pull(request: Request, body: OllamaNameBody) -> Response:
    """Bring a model onto the machine, for the key that may; then it is one of the server's."""
    pulls: Pulls | None = request.app.state.pulls
    if pulls is None:
        raise _operators("brings no models", "start it with --pull KEY, or bring the model with `daguerre pull`")
    pulls.check(request.state.owner)
    pool, name = request.app.state.pool, body.named
    if known_name(pool, name) in pool.names:
        return json_answer({"status": "success"})
    if body.stream:
        return line_stream(guarded(_progress(pulls, pool, name), lambda error: [line_of(error_line(error))]))
    async with aclosing(pulled(pulls, pool, name)) as source:  # type: ignore[type-var]
        async for _ in source:
            if request.state.leaving.done():
                break
    return json_answer({"status": "success"})


async def _progress(pulls: Pulls, pool: ModelPool, name: str) -> AsyncIterator[bytes]:
    """The lines of a transfer. The digest names the transfer for clients, which draw a bar for each."""
    digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
    yield line_of({"status": "pulling manifest"})
    async with aclosing(pulled(pulls, pool, name)) as source:  # type: ignore[type-var]
        async for done, total in source:
            yield line_of({"status": f"pulling {name}", "digest": digest, "total": total, "completed": done})
    yield line_of({"status": "success"})


@router.post("/api/create", response_model=None)
@router.post("/api/copy", response_model=None)
@router.post("/api/push", response_model=None)
@router.delete("/api/delete", response_model=None)
async def refused() -> Response:
    """What the operator does: 403."""
    raise _operators("makes, names, sends and removes no models", "that is the operator's, with `daguerre`")


def _operators(what: str, instead: str) -> ApiError:
    return ApiError(f"this server {what} for clients: {instead}", 403, code="unsupported")
