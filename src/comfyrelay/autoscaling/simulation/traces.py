"""Read requests with durations from a file or from past jobs."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from comfyrelay.errors import InvalidInput

DAY_SECONDS = 86_400.0
MAX_DAYS = 366
COLUMNS = ("arrival_seconds", "duration_seconds", "workflow", "model")
MAX_SECONDS = 1e11


class PastJob(Protocol):
    """A job that has run."""

    @property
    def created_at(self) -> datetime: ...
    @property
    def duration_seconds(self) -> float: ...
    @property
    def workflow(self) -> str: ...
    @property
    def workflow_hash(self) -> str: ...


class TraceRequest(NamedTuple):
    """`arrival_seconds` counts from the first request; `duration_seconds` excludes loading the model."""

    arrival_seconds: float
    duration_seconds: float
    workflow: str
    model: str


def read_trace(file: Path) -> Sequence[TraceRequest]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            return parse_trace(text, file.name)
    except UnicodeDecodeError:
        raise InvalidInput(f"{file.name} is not text in UTF-8: save the table as CSV.") from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None


def parse_trace(lines: Iterable[str], name: str = "the trace") -> Sequence[TraceRequest]:
    rows = _rows(lines, name)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    missing = [column for column in COLUMNS if column not in header]
    if missing and len(header) == 1 and ";" in header[0]:
        raise InvalidInput(f"{name}, line 1: columns are separated by commas, not by semicolons: {','.join(COLUMNS)}.")
    if missing:
        raise InvalidInput(
            f"{name}, line 1: {', '.join(missing)} is missing. The first line names the columns: {','.join(COLUMNS)}."
        )
    positions = [header.index(column) for column in COLUMNS]
    requests = []
    for number, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        line = f"{name}, line {number}"
        if len(row) <= max(positions):
            raise InvalidInput(f"{line}: {len(row)} values, but the first line names {len(header)} columns.")
        arrival, duration, workflow, model = (row[position].strip() for position in positions)
        arrival_seconds = _seconds(arrival, f"{line}: arrival_seconds")
        requests.append(TraceRequest(arrival_seconds, _seconds(duration, f"{line}: duration_seconds"), workflow, model))
    if not requests:
        raise InvalidInput(f"{name} contains no requests.")
    return _from_first_arrival(sorted(requests), name)


def _from_first_arrival(requests: Sequence[TraceRequest], name: str) -> Sequence[TraceRequest]:
    """Make arrivals relative to the first one, because they may be Unix times."""
    start = requests[0].arrival_seconds
    days = (requests[-1].arrival_seconds - start) / DAY_SECONDS
    if days > MAX_DAYS:
        raise InvalidInput(
            f"{name} spans {days:,.0f} days, but at most a year can be simulated. Give arrival_seconds in seconds, "
            "all from the same start, or use a part of the trace."
        )
    return [request._replace(arrival_seconds=request.arrival_seconds - start) for request in requests]


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InvalidInput(f"{name}, line {reader.line_num}: {error}.") from None


def from_history(done: Iterable[PastJob]) -> Sequence[TraceRequest]:
    """Convert past jobs to requests.

    The workflow hash represents the models; their loading time is part of the duration.
    """
    jobs = sorted(done, key=lambda job: job.created_at)
    return [
        TraceRequest(
            (job.created_at - jobs[0].created_at).total_seconds(), job.duration_seconds, job.workflow, job.workflow_hash
        )
        for job in jobs
    ]


def _seconds(text: str, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_SECONDS:
        raise InvalidInput(f"{field} is {text!r}. Give a number of seconds from 0 to {MAX_SECONDS:g}, such as 12.5.")
    return value
