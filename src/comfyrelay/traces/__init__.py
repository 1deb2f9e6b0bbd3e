"""OpenTelemetry traces of jobs across processes. Off by default, in which case the SDK is neither imported nor called.

No trace context is sent with a job, because every process can derive it: the trace id is the id of the job, and the id
of a span to which other processes refer is a hash of its key, such as the token of a lease. A trace therefore continues
across workers of other versions, restarts and retries of requests.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.traces.exporter import Exporter

_NOTHING: Mapping[str, str] = MappingProxyType({})


class _State:
    recorder: "Exporter | None" = None


@contextmanager
def exporting(url: str | None, *, service: str) -> Iterator[None]:
    """Send the spans of this process to an OTLP receiver while the block runs, if a URL is given. At its end, the block
    waits a few seconds for the last spans."""
    if url is None:
        yield
        return
    require("traces")
    from comfyrelay.traces.exporter import Exporter

    _State.recorder = recorder = Exporter(url, service=service)
    try:
        yield
    finally:
        _State.recorder = None
        recorder.close()


def is_on() -> bool:
    return _State.recorder is not None


def record(
    name: str,
    job_id: str,
    *,
    begin: float | datetime,
    end: float | datetime | None = None,
    key: str | None = None,
    parent: str | None = None,
    failure: str | None = None,
    about: Mapping[str, str] = _NOTHING,
) -> None:
    """Record a span that has ended. `key` identifies the span to other processes, and `parent` is the key of another
    span. A span without a parent is the first span of the job, whose key is the id of the job."""
    recorder = _State.recorder
    if recorder is None:
        return
    recorder.record(
        name,
        trace_id=_trace_id(job_id),
        span_id=None if key is None else _span_id(key),
        parent_id=None if parent is None else _span_id(parent),
        begin=_seconds(begin),
        end=time.time() if end is None else _seconds(end),
        failure=failure,
        attributes={f"comfyrelay.{name}": value for name, value in {"job_id": job_id, **about}.items()},
    )


@contextmanager
def span(
    name: str, job_id: str, *, parent: str, key: str | None = None, about: Mapping[str, str] = _NOTHING
) -> Iterator[None]:
    """Record the block as a span."""
    if _State.recorder is None:
        yield
        return
    begin, failure = time.time(), None
    try:
        yield
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        record(name, job_id, begin=begin, key=key, parent=parent, failure=failure, about=about)


def run_key(lease_token: str) -> str:
    """Return the key of a worker's run of a lease. The key of the lease itself is its token."""
    return f"run {lease_token}"


def _trace_id(job_id: str) -> int:
    try:
        return UUID(job_id).int
    except ValueError:
        # A job of another kind of server, whose id is not a UUID.
        return int.from_bytes(sha256(job_id.encode()).digest()[:16], "big")


def _span_id(key: str) -> int:
    return int.from_bytes(sha256(f"span of {key}".encode()).digest()[:8], "big")


def _seconds(at: float | datetime) -> float:
    return at.timestamp() if isinstance(at, datetime) else at
