"""Log lines for machines: one object of JSON each."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def log_as_json(
    level: str, *, file: TextIO | None = None, more: Sequence[Processor] = (), is_lasting: bool = True
) -> None:
    """Write each event as a line to `file`, or standard output, once `more` has gone over it. Where that is not
    `is_lasting`, no logger keeps `file`: it may be closed one day."""
    structlog.configure(
        processors=[*PROCESSORS, *more, structlog.processors.JSONRenderer()],
        wrapper_class=minimum(level),
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=is_lasting,
    )


@contextmanager
def logging_to(file: TextIO, level: str) -> Iterator[None]:
    """For a while, events go to `file`; what is written afterwards goes where it went before."""
    before = structlog.get_config()
    log_as_json(level, file=file, is_lasting=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def minimum(level: str) -> type[structlog.typing.FilteringBoundLogger]:
    """A logger that lets through what is at least so grave."""
    return structlog.make_filtering_bound_logger(logging.getLevelName(level.upper()))
