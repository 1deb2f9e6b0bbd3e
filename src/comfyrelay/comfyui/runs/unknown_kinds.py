"""Log messages, outputs and states of a newer ComfyUI that this version does not know."""

import structlog

log = structlog.get_logger(__name__)
# Limited, because custom nodes may send any number of kinds.
MAX_UNKNOWN_KINDS = 100


class UnknownKinds:
    """Log each unknown kind once per server. Unknown kinds do not affect the run."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: set[tuple[str, str]] = set()

    def log_once(self, event: str, kind: str) -> None:
        found = (event, kind[:100])
        if found not in self._seen and len(self._seen) < MAX_UNKNOWN_KINDS:
            self._seen.add(found)
            log.info(event, kind=found[1], url=self._url)
