"""Requests with durations from a file."""

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
    """A job that ran."""

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
    header = [each.strip() for each in next(rows, (1, []))[1]]
    missing = [each for each in COLUMNS if each not in header]
    if missing and len(header) == 1 and ";" in header[0]:
        raise InvalidInput(f"{name}, line 1: columns are separated by commas, not by semicolons: {','.join(COLUMNS)}.")
    if missing:
        raise InvalidInput(
            f"{name}, line 1: {', '.join(missing)} is missing. The first line names the columns: {','.join(COLUMNS)}."
        )
    places = [header.index(each) for each in COLUMNS]
    found = []
    for number, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{name}, line {number}"
        if len(row) <= max(places):
            raise InvalidInput(f"{where}: {len(row)} values where {len(header)} columns are named.")
        arrival, duration, workflow, model = (row[place].strip() for place in places)
        found.append(
            TraceRequest(
                _seconds(arrival, f"{where}: arrival_seconds"),
                _seconds(duration, f"{where}: duration_seconds"),
                workflow,
                model,
            )
        )
    if not found:
        raise InvalidInput(f"{name} holds no request.")
    return _from_the_first(sorted(found), name)


def _from_the_first(found: Sequence[TraceRequest], name: str) -> Sequence[TraceRequest]:
    """Arrivals may be Unix times: they are made relative to the first."""
    begin, end = found[0].arrival_seconds, found[-1].arrival_seconds
    days = (end - begin) / DAY_SECONDS
    if days > MAX_DAYS:
        raise InvalidInput(
            f"{name} spans {days:,.0f} days, and a year can be simulated at most: give arrival_seconds in seconds, "
            "all from the same begin, or a part of the trace."
        )
    return [each._replace(arrival_seconds=each.arrival_seconds - begin) for each in found]


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
    found = sorted(done, key=lambda each: each.created_at)
    if not found:
        return []
    begin = found[0].created_at
    return [
        TraceRequest(
            (each.created_at - begin).total_seconds(), each.duration_seconds, each.workflow, each.workflow_hash
        )
        for each in found
    ]


def _seconds(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_SECONDS:
        raise InvalidInput(f"{what} is {text!r}. Give a number of seconds from 0 to {MAX_SECONDS:g}, such as 12.5.")
    return value
