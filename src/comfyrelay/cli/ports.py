"""Validation of port options, with the messages of the settings."""

from __future__ import annotations

import typer

LAST_PORT = 65535


def check_port_or_0(port: int | None) -> int | None:
    if port is not None and not 0 <= port <= LAST_PORT:
        raise typer.BadParameter(f"must be at most {LAST_PORT}." if port > 0 else "must be at least 0.")
    return port


def check_port(port: int | None) -> int | None:
    if port is not None and port < 1:
        raise typer.BadParameter("must be at least 1.")
    return check_port_or_0(port)
