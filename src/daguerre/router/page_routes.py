"""The status page of a router: static files, which ask this router alone. They hold no numbers, so they need no key."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from daguerre.server.content import HEADERS, TYPES

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/page/{name}")
async def part(request: Request, name: str) -> Response:
    """One of its files."""
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    known = {one.name: one for one in (resources.files("daguerre.router") / "page").iterdir()}
    kind = TYPES.get(name.rpartition(".")[2])
    if name not in known or kind is None:
        raise HTTPException(404)
    content = known[name].read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**HEADERS, "ETag": tag})
    return Response(content, media_type=kind, headers={**HEADERS, "ETag": tag})
