"""Rate limits per address and per account."""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network

from fastapi import Request

from comfyrelay.errors import TooManyRequests

WINDOW_SECONDS = 60.0
RETRY_SECONDS = 5.0
# An attacker with more addresses would evade a limit per address anyway.
MAX_KEYS = 10_000
# More attempts per account than per address, because its users may have several addresses.
ACCOUNT_FACTOR = 3
SLOWED_DIVISOR = 5
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


class ConcurrencyLimit:
    """Limits the calls of each key that run at the same time in this process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: Counter[str] = Counter()

    @contextmanager
    def hold(self, key: str, *, refusal: str) -> Iterator[None]:
        """Count a call inside the block. Raises `TooManyRequests` above the limit."""
        if self._running[key] >= self._limit:
            raise TooManyRequests(refusal, retry_after_seconds=RETRY_SECONDS)
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            self._running += Counter()


class SignInLimit:
    """Limits guesses of passwords in this process, by address and account together.

    An address has `per_minute` attempts. Once an account has had three times as many, each address has only a few
    attempts for this account. This slows down an attack from many addresses, but still lets the owner sign in from
    another one. Browsers that have signed in before have separate attempts.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._by_address = RateLimit(per_minute, clock=clock)
        self._by_account = RateLimit(ACCOUNT_FACTOR * per_minute, clock=clock)
        self._slowed = RateLimit(max(1, per_minute // SLOWED_DIVISOR), clock=clock)
        self._known_browsers = RateLimit(per_minute, clock=clock)

    def check_address(self, address: str) -> None:
        """Count an attempt without an account. Raises `TooManyRequests` above the limit, like the other methods."""
        self._by_address.check(address)

    def check(self, address: str, account: str) -> None:
        self._by_address.check(address)
        try:
            self._by_account.check(account)
        except TooManyRequests:
            self._slowed.check(f"{address} {account}")

    def check_known_browser(self, account: str) -> None:
        self._known_browsers.check(account)

    def reset(self, address: str, account: str) -> None:
        """Reset the counts of an account after a successful attempt. Other addresses remain limited."""
        self._slowed.reset(f"{address} {account}")
        self._known_browsers.reset(account)


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
