"""Create links that open the page once and start a session."""

import secrets
import time
from collections.abc import Callable

# Long enough to copy a link into a browser.
LINK_SECONDS = 600.0
MAX_LINKS = 100
PATH = "/open"


class OneTimeLinks:
    """Unused links. They are in memory only, so they do not survive a restart."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        # Code → expiry.
        self._open: dict[str, float] = {}

    def make(self, url: str | None = None) -> str:
        """Return a new link to the desk, at `url` if given."""
        while len(self._open) >= MAX_LINKS:
            del self._open[next(iter(self._open))]
        code = secrets.token_urlsafe(32)
        self._open[code] = self._clock() + LINK_SECONDS
        return f"{url or self._url}{PATH}?link={code}"

    def redeem(self, code: str) -> bool:
        """Consume a code. Returns whether it was valid."""
        return self._open.pop(code, float("-inf")) > self._clock()
