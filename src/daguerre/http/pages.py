"""Pages: static files of the package, which talk to this server alone; and `/docs`, which shows its routes. What all
pages have is in the folder `shared`, and is served with the files of each.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

COUNTERS = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def static_pages(package: str, folder: str, first: str | None = "/") -> APIRouter:
    """Routes of the files in a folder of a package: `first` is that of index.html, if it has one, and the others are in
    a folder of the same name.
    """
    router = APIRouter(include_in_schema=False)
    if first is not None:

        @router.get(first)
        async def index(request: Request) -> Response:
            return page_file(request, package, folder, "index.html")

    @router.get(f"/{folder}/{{name}}")
    async def part(request: Request, name: str) -> Response:
        return page_file(request, package, folder, name)

    return router


def page_file(request: Request, package: str, folder: str, name: str) -> Response:
    """A file of a folder of a package, with a policy by which it loads nothing from elsewhere; 404 where there is
    none.
    """
    places = (resources.files("daguerre.http") / "shared", resources.files(package) / folder)
    known = {one.name: one for place in places for one in place.iterdir()}
    kind = TYPES.get(name.rpartition(".")[2])
    if name not in known or kind is None:
        raise HTTPException(404)
    return page(request, known[name].read_bytes(), kind)


def page(request: Request, content: bytes, kind: str) -> Response:
    """A file of a page, of one of the types of `content.TYPES`."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**HEADERS, "ETag": tag})
    return Response(content, media_type=kind, headers={**HEADERS, "ETag": tag})


router = static_pages("daguerre.http", "docs", "/docs")
