"""Structured logs: one JSON object per line."""

import logging
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import Processor

# Fields of every line, including the ids of its request.
PROCESSORS: Sequence[Processor] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,
)


def log_as_json(level: str, *, file: TextIO | None = None, more: Sequence[Processor] = ()) -> None:
    """Write events to `file` or standard output. The processors in `more` run before the renderer."""
    structlog.configure(
        processors=[*PROCESSORS, *more, structlog.processors.JSONRenderer()],
        wrapper_class=logger_class(level),
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=True,
    )


def logger_class(level: str) -> type[structlog.typing.FilteringBoundLogger]:
    """Return a logger class that drops events below this level."""
    return structlog.make_filtering_bound_logger(logging.getLevelName(level.upper()))
