"""The playground: static files, which talk to this server alone."""

from __future__ import annotations

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from daguerre.http.pages import static_pages


def check_shown(request: Request) -> None:
    """404 where the operator has no playground."""
    if not request.app.state.settings.playground:
        raise HTTPException(404)


router = static_pages("daguerre.server", "playground", dependencies=[Depends(check_shown)])
