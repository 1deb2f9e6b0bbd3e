"""Log lines for machines: one object of JSON each."""

import logging
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import Processor

# What every line has, with the ids of the request that it belongs to.
PROCESSORS: Sequence[Processor] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,
)


def log_as_json(level: str, *, file: TextIO | None = None, more: Sequence[Processor] = ()) -> None:
    """Write each event as a line to `file`, or standard output, once `more` has gone over it."""
    structlog.configure(
        processors=[*PROCESSORS, *more, structlog.processors.JSONRenderer()],
        wrapper_class=minimum(level),
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=True,
    )


def minimum(level: str) -> type[structlog.typing.FilteringBoundLogger]:
    """A logger that lets through what is at least so grave."""
    return structlog.make_filtering_bound_logger(logging.getLevelName(level.upper()))
