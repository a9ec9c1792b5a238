"""The playground: static files, which talk to this server alone."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from daguerre.arguments import options_of
from daguerre.decoding.effort import EFFORTS
from daguerre.decoding.modes import MODES
from daguerre.decoding.options import DecodeOptions
from daguerre.sampling.policies import POLICIES
from daguerre.server.content import TYPES
from daguerre.server.pages import page, page_file

router = APIRouter(include_in_schema=False)
SHOWN = ("mode", "policy", "effort", "block_size", "steps", "threshold", "temperature", "seed")
"""The options that the form has, and the effort."""
TABLES = {"mode": list(MODES), "policy": list(POLICIES)}


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/playground/options.js")
async def options(request: Request) -> Response:
    """The options that the form may show: names or bounds, and what each does."""
    _check_open(request)
    told = f"export const OPTIONS = {json.dumps({name: _control(name) for name in SHOWN})};\n"
    return page(request, told.encode(), TYPES["js"])


@router.get("/playground/{name}")
async def part(request: Request, name: str) -> Response:
    """One of its files."""
    return _file(request, name)


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


def _check_open(request: Request) -> None:
    if not request.app.state.settings.playground:
        raise HTTPException(404)


def _file(request: Request, name: str) -> Response:
    _check_open(request)
    return page_file(request, "daguerre.server", "playground", name)
