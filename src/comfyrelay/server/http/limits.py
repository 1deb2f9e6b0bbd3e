"""How often one address may try something, or one account be tried."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

from fastapi import Request

from comfyrelay.errors import TooManyRequests

WINDOW_SECONDS = 60.0
# Keys that are remembered; an attacker with more of them is not held back by a limit per address anyway.
MOST_ADDRESSES = 10_000
# Who has one address of IPv6 has all that begin alike.
NETWORK_BITS = 64


class RateLimit:
    """At most so many in a minute by one key, an address or an account, in this process."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, key: str) -> None:
        """Count one more try; `TooManyRequests` when there were too many."""
        now = self._clock()
        calls = self._calls.setdefault(key, deque())
        self._calls.move_to_end(key)
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        if len(calls) >= self._per_minute:
            raise TooManyRequests(retry_after_seconds=calls[0] + WINDOW_SECONDS - now)
        calls.append(now)
        if len(self._calls) > MOST_ADDRESSES:
            self._calls.popitem(last=False)

    def forgive(self, key: str) -> None:
        """It was no guess: forget what was counted."""
        self._calls.pop(key, None)


def address_of(request: Request) -> str:
    """Where a request comes from, as far as that tells one caller from another."""
    host = request.client.host if request.client else "unknown"
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, NETWORK_BITS), strict=False))
