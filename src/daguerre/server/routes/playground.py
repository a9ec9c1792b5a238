"""The playground: static files, which talk to this server alone."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from daguerre.decoding.effort import EFFORTS
from daguerre.decoding.modes import MODES
from daguerre.decoding.options import DecodeOptions
from daguerre.http.pages import TYPES, page, page_file, static_pages
from daguerre.kinds import options_of
from daguerre.sampling.policies import POLICIES

SHOWN = ("mode", "policy", "effort", "block_size", "steps", "threshold", "temperature", "seed")
"""The options that the form has, and the effort."""
TABLES = {"mode": list(MODES), "policy": list(POLICIES)}


def check_shown(request: Request) -> None:
    """404 where the operator has no playground."""
    if not request.app.state.settings.playground:
        raise HTTPException(404)


router = APIRouter(include_in_schema=False, dependencies=[Depends(check_shown)])
front = APIRouter(include_in_schema=False)
RUNNING = 'Daguerre is running, with the API whose own server says "Ollama is running".\n'
"""What programs that look for a server find at "/"."""


@front.api_route("/", methods=["GET", "HEAD"])
async def root(request: Request) -> Response:
    """The playground for a browser, and a line of text for a program."""
    if "text/html" not in request.headers.get("accept", "") or not request.app.state.settings.playground:
        return Response(RUNNING, media_type="text/plain; charset=utf-8", headers={"Vary": "Accept"})
    return page_file(request, "daguerre.server", "playground", "index.html")


@router.get("/playground/options.js")
async def options(request: Request) -> Response:
    """The options that the form may show: names or bounds, and what each does."""
    told = f"export const OPTIONS = {json.dumps({name: _control(name) for name in SHOWN})};\n"
    return page(request, told.encode(), TYPES["js"])


router.include_router(static_pages("daguerre.server", "playground", first=None))


def _control(name: str) -> dict[str, Any]:
    """What a control of the form is made from."""
    if name == "effort":
        return {"values": list(EFFORTS), "help": "One word for mode, policy and threshold."}
    declared = options_of(DecodeOptions)[name]
    if name in TABLES:
        return {"values": TABLES[name], "help": declared.sentence}
    limits = declared.kind.limits
    bounds = {short: limits[long] for short, long in (("min", "minimum"), ("max", "maximum")) if long in limits}
    return bounds | {"step": 1 if declared.kind.json is int else "any", "help": declared.sentence}
