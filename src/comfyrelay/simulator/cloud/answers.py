"""Errors and times in the format of the Comfy API."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web


class Refused(Exception):
    """A request is refused with this status and code."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.response = refusal(status, code, message, **details)


def refusal(status: int, code: str, message: str, **details: Any) -> web.Response:
    error = {"code": code, "message": message, "details": details or None}
    return web.json_response({"error": error}, status=status)


def format_time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
