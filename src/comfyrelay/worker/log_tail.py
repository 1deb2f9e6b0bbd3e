"""The end of this worker's log, for administrators."""

import json
from collections import deque

from structlog.typing import EventDict, WrappedLogger

from comfyrelay.protocol.worker import MAX_LOG_BYTES, MAX_LOG_LINES
from comfyrelay.text import storable

LONGEST_LINE = 4000


class LogTail:
    """A structlog processor that keeps the last lines. It must come after the processor that hides secrets."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        self._lines.append(storable(json.dumps(event, default=str, ensure_ascii=False)[:LONGEST_LINE]))
        return event

    def last(self) -> list[str]:
        """Return the newest lines within the size limit, oldest first."""
        lines: list[str] = []
        bytes_left = MAX_LOG_BYTES
        # Iterate over a copy, because other threads may log at the same time.
        for line in reversed(list(self._lines)):
            bytes_left -= len(line.encode())
            if bytes_left < 0:
                break
            lines.append(line)
        return lines[::-1]
