"""Errors as the API shows them: `{"error": {"code", "message", "request_id", …facts}}`."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from app.control.database_errors import BROKEN, translate
from app.core.errors import DependencyError, Rejected, RejectReason, SteelyardError

_log = logging.getLogger(__name__)
_RETRY_DEPENDENCY_S = 1


class ErrorFacts(BaseModel):
    """What went wrong, with the numbers and ids that explain it."""

    model_config = ConfigDict(extra="allow")
    code: str = Field(description="Stable, for programs.", examples=["not_found"])
    message: str = Field(description="For people.", examples=["There is no tenant 'ten_…'."])
    request_id: str = Field(description="Names this call in our logs.")
    retryable: bool = Field(description="Whether the same call may succeed later unchanged.")


class ErrorBody(BaseModel):
    error: ErrorFacts


def _documented(description: str) -> dict[str, Any]:
    return {"model": ErrorBody, "description": description}


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: _documented("`parameter_invalid`: a part of the request can't be; `fields` names which."),
    401: _documented("`key_missing`, `key_unknown`: no valid credential."),
    403: _documented("`scope_missing`, `tenant_suspended`, `project_archived`: not allowed."),
    404: _documented("`not_found`: it doesn't exist, or is beyond the caller's reach."),
    409: _documented("`conflict`, `price_missing`: the state of things forbids it."),
    413: _documented("`body_too_large`"),
    503: _documented("`dependency_unavailable`: the database can't be reached; see Retry-After."),
    "default": _documented("Any other error has this shape too."),
}


def install(app: FastAPI) -> None:
    """Let every error of the app answer in the one shape."""
    app.exception_handler(SteelyardError)(_ours)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(DBAPIError)(_database)
    app.exception_handler(PoolTimeout)(_unreachable)
    app.exception_handler(OSError)(_unreachable)
    app.exception_handler(Exception)(_unexpected)


def _answer(request: Request, error: SteelyardError) -> JSONResponse:
    facts: dict[str, Any] = {
        "code": error.code,
        "message": error.public_message,
        "request_id": request.state.request_id,
        "retryable": error.retryable,
    }
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if isinstance(error, Rejected):
        named = {"limit": error.limit, "observed": error.observed, "retry_after_s": error.retry_after_s}
        facts |= {name: value for name, value in named.items() if value is not None}
    wait_s = facts.get("retry_after_s") or (_RETRY_DEPENDENCY_S if error.status == 503 else None)
    if wait_s is not None:
        headers["Retry-After"] = str(max(1, round(wait_s)))
    plain = json.loads(json.dumps(error.facts, default=str))
    return JSONResponse({"error": plain | facts}, error.status, headers=headers)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SteelyardError)
    if error.status >= 500:
        _log.error("call_failed", extra={"request_id": request.state.request_id}, exc_info=error)
    return _answer(request, error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"path": ".".join(map(str, each["loc"])), "problem": each["msg"]} for each in error.errors()[:50]
    ]
    message = f"{fields[0]['path']}: {fields[0]['problem']}" if fields else "The request can't be read."
    rejected = Rejected(RejectReason.PARAMETER_INVALID, message, status=400, fields=fields)
    return _answer(request, rejected)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reason, message = {
        404: (RejectReason.ROUTE_UNKNOWN, "There is no such route. Models are served at the gateway's port."),
        405: (RejectReason.METHOD_NOT_ALLOWED, "The route doesn't know this method."),
    }.get(error.status_code, (RejectReason.BODY_INVALID, str(error.detail)))
    answer = _answer(request, Rejected(reason, message, status=error.status_code))
    answer.headers.update(error.headers or {})
    return answer


async def _database(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DBAPIError)
    return await _ours(request, translate(error))


async def _unreachable(request: Request, error: Exception) -> JSONResponse:
    unreachable = DependencyError("The database can't be reached; try again.")
    unreachable.__cause__ = error
    return await _ours(request, unreachable)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("call_crashed", extra={"request_id": request.state.request_id}, exc_info=error)
    return _answer(request, SteelyardError(BROKEN))
