"""Links that open the page once: who follows one in time has a session."""

import secrets
import time
from collections.abc import Callable

# Long enough to copy one into a browser.
LINK_SECONDS = 600.0
MOST_LINKS = 100
PATH = "/open"


class OneTimeLinks:
    """Those that were handed out and not yet followed, in memory: a link does not outlive the desk."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        # by code, until when
        self._open: dict[str, float] = {}

    def make(self) -> str:
        """Another one."""
        while len(self._open) >= MOST_LINKS:
            del self._open[next(iter(self._open))]
        code = secrets.token_urlsafe(32)
        self._open[code] = self._clock() + LINK_SECONDS
        return f"{self._url}{PATH}?link={code}"

    def redeem(self, code: str) -> bool:
        """Whether it opens the page; after this it never does again."""
        return self._open.pop(code, float("-inf")) > self._clock()
