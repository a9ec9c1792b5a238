"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from daguerre.errors import ContextError, DaguerreError, TimeUpError, UnsupportedError

LOG = logging.getLogger("daguerre.server")
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a text that is longer than the context."""
CODES = {ContextError: TOO_LONG, UnsupportedError: "unsupported", TimeUpError: "timeout"}
LONGEST_PLACE, LONGEST_SAID = 200, 2_000
"""Characters of a field's name, and of what is said of it, that an answer has."""
RETRY_AFTER = 1
"""Seconds after which a client that found the queue full may ask again."""


class ApiError(DaguerreError):
    """An error with a status, the field that it is about, and a code for programs.

    retry_after  seconds after which the client may ask again, which the answer says where the status is 429 or 503
    """

    retry_after: int | None = RETRY_AFTER

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.http_status, self.param, self.code = status, param, code


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def described(error: BaseException, text_field: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body of an error. text_field: with the text of the request, named where that is too long."""
    if isinstance(error, ApiError):
        param = error.param or (text_field if error.code == TOO_LONG else None)
        return error.http_status, error_body(str(error), error.http_status, param, error.code)
    if isinstance(error, DaguerreError):
        too_long = isinstance(error, ContextError)
        code = next((name for kind, name in CODES.items() if isinstance(error, kind)), None)
        message, param = " ".join(str(error).split()), text_field if too_long else None
        return error.http_status, error_body(message, error.http_status, param, code)
    if isinstance(error, HTTPException):
        return error.status_code, error_body(error.detail, error.status_code)
    return 500, error_body("the server failed on this request; its log says why", 500)


def answer(error: BaseException, text_field: str | None = None) -> JSONResponse:
    """The response to an error."""
    status, body = described(error, text_field)
    if status >= 500 and isinstance(error, ApiError):
        LOG.warning("a request failed: %s", error)
    elif status >= 500:
        LOG.error("a request failed", exc_info=error)
    after = getattr(error, "retry_after", RETRY_AFTER)
    headers = {"Retry-After": str(after)} if status in (429, 503) and after is not None else None
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Answer every error of an application with OpenAI's object."""

    @app.exception_handler(DaguerreError)
    async def known(request: Request, error: DaguerreError) -> Response:
        return answer(error, getattr(request.state, "text_field", None))

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or None
        place, said = place and place[:LONGEST_PLACE], str(first["msg"])[:LONGEST_SAID]
        message = f"{place}: {said}" if place else said
        return JSONResponse(error_body(message, 400, place, first["type"]), 400)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = f"there is no route {request.method} {request.url.path}" if error.status_code == 404 else error.detail
        return JSONResponse(error_body(message, error.status_code), error.status_code, error.headers)
