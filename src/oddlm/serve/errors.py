"""Errors in OpenAI's format."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .engine import ClosedError, QueueFullError, TimedOutError, UnreadError
from .schema import ErrorAnswer, ErrorBody

log = logging.getLogger("oddlm.serve")
BAD_REQUEST = "invalid_request_error"


class ApiError(HTTPException):
    """An answer with a status of 400 or more."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.answer = ErrorAnswer(
            error=ErrorBody(message=message, type=type_, param=param, code=code)
        )

    def response(self) -> JSONResponse:
        return JSONResponse(self.answer.model_dump(), self.status_code, self.headers)


def as_api_error(error: Exception) -> ApiError:
    """Return the answer to any error; errors that are not the client's fault are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        message = "the queue is full; try again later"
        return ApiError(
            429, message, type_="rate_limit_error", code="queue_full", headers={"Retry-After": "1"}
        )
    if isinstance(error, TimedOutError):
        message = "the request took longer than this server allows"
        return ApiError(408, message, type_="timeout", code="timeout")
    if isinstance(error, UnreadError):
        message = "the client did not read its answer while other requests were waiting"
        return ApiError(408, message, type_="timeout", code="unread")
    if isinstance(error, ClosedError):
        message = "the server is shutting down"
        return ApiError(503, message, type_="server_error", code="shutting_down")
    if isinstance(error, ValueError | ArithmeticError | torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return ApiError(400, str(error))
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal error; see the server log", type_="server_error")


def _invalid(complaints: Sequence[Any]) -> ApiError:
    """Return an error about the first invalid field.

    For a field of several possible types, pydantic complains once per type. If the value has one of
    these types, only the complaints about the value itself are kept.
    """
    first = complaints[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ApiError(400, f"the body is not valid JSON: {reason}")
    where = first["loc"][1:]
    if not where:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    if first["type"] == "extra_forbidden":
        path = ".".join(map(str, where))
        return ApiError(400, f"unknown field {path!r:.200}", param=str(where[0])[:200])
    if first["type"] == "unsupported":
        return ApiError(400, first["msg"], param=str(where[-1]))
    same = [each for each in complaints if each["loc"][1:2] == where[:1]]
    values = [each for each in same if each["type"] == "value_error"]
    reasons = [each["msg"].removeprefix("Value error, ") for each in values or same]
    index = "".join(f"[{part}]" for part in where[1:2] if isinstance(part, int))
    message = f"{where[0]}{index}: {' or '.join(dict.fromkeys(reasons))}"
    return ApiError(400, message, param=str(where[0]))


def install(app: FastAPI) -> None:
    """Make the application answer every error in OpenAI's format."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return error.response()
        headers = None if error.headers is None else dict(error.headers)
        return ApiError(error.status_code, str(error.detail), headers=headers).response()

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()
