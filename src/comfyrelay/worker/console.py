"""Worker output: one line per event and a live job table on a terminal, otherwise JSON lines. A desk has only one user,
so its lines are always human-readable."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from structlog.typing import EventDict, WrappedLogger

from comfyrelay.error_text import SECRET
from comfyrelay.logs import PROCESSORS, log_as_json, logger_class
from comfyrelay.protocol.progress import Phase
from comfyrelay.text import printable
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.log_tail import LogTail

WIDE = 80
MAX_SHOWN = 4
SHORT = 8
HIDDEN = "…"
LONGEST_FIELD = 300

_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
_ENDINGS = {"completed": "green", "failed": "red", "requeued": "yellow", "lost": "yellow"}
# These fields are shown last, in this order, without their names.
_PLAIN = ("server", "state", "fault", "reason", "why", "error")
_SHOWN_ELSEWHERE = frozenset({"event", "level", "timestamp", "exception", "job_id", "workflow", "seconds", *_PLAIN})

# A graph contains user text; the others are credentials.
_PRIVATE = re.compile(
    r"(?:^|_)(?:token|secret|password|authorization|api_?key|headers?|urls|graph|prompt|extra_data|input_payload)$",
    re.I,
)
_URL = re.compile(r"""[a-z][a-z0-9+.-]*://[^\s"'<>]+""", re.I)


class WorkerConsole:
    """Handles all log output while it is open."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        level: str = "info",
        is_for_machines: bool = True,
        shows_jobs: bool = True,
    ) -> None:
        """`is_for_machines`: write JSON if there is no terminal. `shows_jobs`: show the job table on a terminal."""
        self._level = level
        self._is_for_machines = is_for_machines
        self._shows_jobs = shows_jobs
        # FORCE_COLOR is ignored, because a live table is useless in a log file.
        self._console = console or Console(stderr=True, force_terminal=sys.stderr.isatty())
        self.recent = LogTail()
        self._before: dict[str, Any] = {}
        self._live: Live | None = None
        self._held: tuple[Lease, ...] | None = None
        # The phase of each lease, and when the phase began.
        self._since: dict[Lease, tuple[Phase, float]] = {}

    def __enter__(self) -> Self:
        self._before = structlog.get_config()
        if not self._console.is_terminal and self._is_for_machines:
            log_as_json(self._level, file=sys.stderr, more=(without_secrets, self.recent))
            return self
        structlog.configure(
            processors=[*PROCESSORS, without_secrets, self.recent, self._print],
            wrapper_class=logger_class(self._level),
            cache_logger_on_first_use=False,
        )
        if self._shows_jobs and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        structlog.configure(**self._before)

    def status(self, held: Sequence[Lease]) -> None:
        """Show these jobs until the next call."""
        now = time.monotonic()
        known = self._since
        self._since = {
            lease: known[lease] if lease in known and known[lease][0] is lease.phase else (lease.phase, now)
            for lease in held
        }
        self._held = tuple(held)

    def _print(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        line = _line(event, is_wide=self._console.width >= WIDE)
        self._console.print(line, soft_wrap=True, highlight=False)
        if "exception" in event and event["level"] in ("error", "critical"):
            trace = "\n".join(map(printable, event["exception"].split("\n")))
            self._console.print(Text(trace, style="dim"), soft_wrap=True, highlight=False)
        raise structlog.DropEvent

    def _render(self) -> ConsoleRenderable:
        """Render the job table. Rich calls this from its refresh thread a few times a second."""
        if self._held is None:
            return Text("starting", style="dim")
        if not self._held:
            return Text("waiting for a job", style="dim")
        is_wide = self._console.width >= WIDE
        grid = Table.grid(padding=(0, 1), expand=True)
        for name in ("job", *(["workflow", "phase"] if is_wide else []), "bar", "percent"):
            grid.add_column(name, no_wrap=True)
        grid.add_column("node", no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column("seconds", no_wrap=True, justify="right")
        for lease in self._held[:MAX_SHOWN]:
            grid.add_row(*self._cells(lease, is_wide=is_wide))
        more = len(self._held) - MAX_SHOWN
        return Group(grid, Text(f"and {more} more", style="dim")) if more > 0 else grid

    def _cells(self, lease: Lease, *, is_wide: bool) -> list[ConsoleRenderable]:
        _, since = self._since.get(lease, (lease.phase, time.monotonic()))
        about = [Text(lease.workflow_hash[:SHORT], style="dim"), Text(lease.phase.value)] if is_wide else []
        return [
            Text(lease.job_id[-SHORT:], style="bold"),
            *about,
            ProgressBar(total=1.0, completed=lease.progress, width=20 if is_wide else 8),
            Text(f"{lease.progress:.0%}"),
            Text(_one_line(lease.node_title) if lease.phase is Phase.RUNNING else ""),
            Text(f"{time.monotonic() - since:.0f} s"),
        ]


def without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Drop credentials and user text from a log line."""
    return {name: HIDDEN if _PRIVATE.search(name) else _clean(value) for name, value in event.items()}


def _clean(value: Any) -> Any:
    match value:
        case str() if not isinstance(value, Enum):
            return SECRET.sub(HIDDEN, _URL.sub(lambda found: _public(found[0]), value))
        case bool() | int() | float() | None:
            return value
        case Mapping():
            return {str(name): HIDDEN if _PRIVATE.search(str(name)) else _clean(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean(item) for item in value]
        case Path() | Enum() | datetime() | BaseException():
            return _clean(str(value))
        case _:
            # The repr of an object may contain anything. For example, a lease has a token, a graph and URLs.
            return type(value).__name__


def _public(url: str) -> str:
    """Remove the credentials from a URL: its signature, or a user name and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}{f'?{HIDDEN}' if parts.query or parts.fragment else ''}"


def _line(event: EventDict, *, is_wide: bool) -> Text:
    name = str(event["event"]).removeprefix("worker.").replace("_", " ")
    style = _STYLES.get(event["level"]) or _ENDINGS.get(name.rpartition(" ")[2], "")
    # Job ids start with a timestamp, so ids from the same minute share a prefix.
    job, workflow = str(event.get("job_id", ""))[-SHORT:], str(event.get("workflow", ""))[:SHORT]
    line = Text(f"{datetime.now():%H:%M:%S} ", style="dim")
    line.append(f"{name:<16}" if is_wide else name, style=f"not dim {style}".strip())
    shown = [
        (job, "not dim bold"),
        *([(workflow, "")] if is_wide else []),
        *((text, "not dim") for text in _other_fields(event)),
    ]
    for text, style in shown:
        line.append(f" {text}" if text else "", style=style)
    return line


def _other_fields(event: EventDict) -> list[str]:
    """Return the other fields of a log line, short values first and sentences last."""
    shown = [f"{event['seconds']:.1f} s"] if isinstance(event.get("seconds"), int | float) else []
    for name, value in event.items():
        is_redundant = (name == "attempt" and value == 1) or (name == "dispatch_id" and "job_id" in event)
        if name not in _SHOWN_ELSEWHERE and value is not None and not is_redundant:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            shown.append(f"{name}={text}")
    shown += [str(event[name]) for name in _PLAIN if event.get(name)]
    if "exception" in event and not event.get("error"):
        shown.append(str(event["exception"]).strip().rpartition("\n")[2])
    return [_one_line(text)[:LONGEST_FIELD] for text in shown]


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
