"""The status page of a router: static files, which ask this router alone. They hold no numbers, so they need no key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.server.pages import page_file

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return page_file(request, "daguerre.router", "page", "index.html")


@router.get("/page/{name}")
async def part(request: Request, name: str) -> Response:
    """One of its files."""
    return page_file(request, "daguerre.router", "page", name)
