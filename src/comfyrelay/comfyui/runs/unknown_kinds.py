"""Log what a newer ComfyUI sends and this version does not know: messages, outputs and states."""

import structlog

log = structlog.get_logger(__name__)
# Custom nodes send any number of kinds.
MAX_UNKNOWN_KINDS = 100


class UnknownKinds:
    """Log each unknown kind once per server. The run goes on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: set[tuple[str, str]] = set()

    def log_once(self, event: str, kind: str) -> None:
        found = (event, kind[:100])
        if found not in self._seen and len(self._seen) < MAX_UNKNOWN_KINDS:
            self._seen.add(found)
            log.info(event, kind=found[1], url=self._url)
