"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput

LAST_PORT = 65535
LOG_LEVELS = ("debug", "info", "warning", "error")
APPRISE = "apprise URL, such as ntfy://TOPIC or tgram://TOKEN/CHAT."
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FleetStage = Annotated[
    Stage, typer.Option("--stage", metavar="STAGE", help="Stage of the fleet: staging or production.")
]


def _check_level(level: str) -> str:
    if level.lower() not in LOG_LEVELS:
        raise typer.BadParameter(f"{level!r} is not a level. Write {', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}.")
    return level.lower()


LogLevel = Annotated[
    str,
    typer.Option(
        metavar="LEVEL", help="Minimum level of log lines: debug, info, warning or error.", callback=_check_level
    ),
]


def url_option(help_: str) -> Any:
    """Return the option `--url` of commands that call a desk or server."""
    return typer.Option("--url", envvar="COMFYRELAY_URL", show_envvar=True, metavar="URL", help=help_)


def parse_assignment(text: str, *, form: str = "KEY=VALUE") -> tuple[str, Any]:
    """Parse an assignment. A value of valid JSON is parsed: `steps=20` is a number, `prompt=a cat` is a text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidInput(f"Write {form}, not {text!r}.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def check_port_or_0(port: int | None) -> int | None:
    """Validate a port with the messages of the settings."""
    if port is not None and not 0 <= port <= LAST_PORT:
        raise typer.BadParameter(f"must be at most {LAST_PORT}." if port > 0 else "must be at least 0.")
    return port


def check_port(port: int | None) -> int | None:
    if port is not None and port < 1:
        raise typer.BadParameter("must be at least 1.")
    return check_port_or_0(port)
