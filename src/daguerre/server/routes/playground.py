"""The playground: static files, which talk to this server alone."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from daguerre.server.pages import page_file

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/playground/{name}")
async def part(request: Request, name: str) -> Response:
    """One of its files."""
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    if not request.app.state.settings.playground:
        raise HTTPException(404)
    return page_file(request, "daguerre.server", "playground", name)
