"""Links that open the page once and start a session."""

import secrets
import time
from collections.abc import Callable

# Long enough to copy one into a browser.
LINK_SECONDS = 600.0
MAX_LINKS = 100
PATH = "/open"


class OneTimeLinks:
    """Unused links, in memory: they do not survive a restart."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        # code → expiry
        self._open: dict[str, float] = {}

    def make(self) -> str:
        """Create a link."""
        while len(self._open) >= MAX_LINKS:
            del self._open[next(iter(self._open))]
        code = secrets.token_urlsafe(32)
        self._open[code] = self._clock() + LINK_SECONDS
        return f"{self._url}{PATH}?link={code}"

    def redeem(self, code: str) -> bool:
        """Whether the code is valid; it is used up."""
        return self._open.pop(code, float("-inf")) > self._clock()
