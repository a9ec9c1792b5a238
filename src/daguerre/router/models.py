"""The names that a request may give as `model`: `auto`, and names of backends, if requests may choose a backend."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from daguerre.errors import shown
from daguerre.http.errors import ApiError
from daguerre.router.config import Config

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def all_models(request: Request) -> dict[str, Any]:
    """All names."""
    return {"object": "list", "data": [_model(name) for name in _names(request)]}


@router.get("/v1/models/{name:path}", response_model=None)
async def one_model(request: Request, name: str) -> dict[str, Any]:
    """One name. ApiError for one that is not listed."""
    known = _names(request)
    if name not in known:
        said = f"there is no model {shown(name)}: ask for one of {', '.join(known)}"
        raise ApiError(said, 404, "model", "model_not_found")
    return _model(name)


def _names(request: Request) -> list[str]:
    config: Config = request.app.state.router.config
    return ["auto", *(one.name for one in config.backends if "backend" in config.overrides)]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "daguerre"}
