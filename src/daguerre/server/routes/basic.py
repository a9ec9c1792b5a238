"""Health, metrics and the version."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import daguerre
from daguerre.http.pages import COUNTERS

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the process can answer; one whose engine has stopped must be started again."""
    broken, loading = _broken(request), request.app.state.loading
    if broken:
        return JSONResponse({"status": "failed", "models": broken}, 503)
    return JSONResponse({"status": "ok"} if loading is None else _loading(request))


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are taken."""
    if request.app.state.draining:
        return JSONResponse({"status": "draining"}, 503)
    if request.app.state.loading is not None:
        return JSONResponse(_loading(request), 503)
    broken = _broken(request)
    body = {"status": "failed", "models": broken} if broken else {"status": "ready"}
    return JSONResponse(body, 503 if broken else 200)


def _loading(request: Request) -> dict[str, object]:
    """Which model is loaded, and the share of its weights that was read."""
    name = request.app.state.loading
    read = request.app.state.pool.read.get(name)
    return {"status": "loading", "model": name} | ({} if read is None else {"read": round(read, 3)})


def _broken(request: Request) -> list[str]:
    """The models whose engines have stopped by themselves."""
    state = request.app.state
    return [] if state.draining else [one.name for one in state.pool.loaded if one.engine.error is not None]


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(request.app.state.metrics.text(), media_type=COUNTERS)


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Daguerre."""
    return {"version": daguerre.__version__}
