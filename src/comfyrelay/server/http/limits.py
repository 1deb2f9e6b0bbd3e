"""Rate limits per address and per account."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

from fastapi import Request

from comfyrelay.errors import TooManyRequests

WINDOW_SECONDS = 60.0
# A limit per address does not stop an attacker with more addresses anyway.
MAX_KEYS = 10_000
# An IPv6 client usually has all addresses of its /64 network.
NETWORK_BITS = 64


class RateLimit:
    """Limits the calls per minute for each key, such as an address or an account, in this process."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, key: str) -> None:
        """Count a call. Raises `TooManyRequests` above the limit."""
        now = self._clock()
        calls = self._calls.setdefault(key, deque())
        self._calls.move_to_end(key)
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        if len(calls) >= self._per_minute:
            raise TooManyRequests(retry_after_seconds=calls[0] + WINDOW_SECONDS - now)
        calls.append(now)
        if len(self._calls) > MAX_KEYS:
            self._calls.popitem(last=False)

    def reset(self, key: str) -> None:
        """Reset the count after a successful attempt."""
        self._calls.pop(key, None)


def address_of(request: Request) -> str:
    """Return the address of the caller, or its network for IPv6."""
    return network_of(request.client.host if request.client else "unknown")


def network_of(host: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, NETWORK_BITS), strict=False))
