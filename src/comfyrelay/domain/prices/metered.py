"""Prices by run time: an amount is reserved before the run, and the measured seconds are charged after it."""

import math
from dataclasses import dataclass
from datetime import datetime

MILLI = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class MeteredPrice:
    """A price per second of a run, in thousandths of a token. A run is stopped after `max_seconds`."""

    millitokens_per_second: int
    max_seconds: int

    @property
    def reserved_tokens(self) -> int:
        """The price of the longest run."""
        return _round_up(self.millitokens_per_second * self.max_seconds, MILLI)


def charged_tokens(
    *,
    reserved_tokens: int,
    millitokens_per_second: int | None,
    started_at: datetime | None,
    completed_at: datetime,
) -> int:
    """Return the tokens that a completed job costs: its price, or the price of its seconds, but at most what was
    reserved."""
    if millitokens_per_second is None:
        return reserved_tokens
    if started_at is None:
        return 0
    milliseconds = max(0, math.ceil((completed_at - started_at).total_seconds() * MILLI))
    return min(reserved_tokens, _round_up(millitokens_per_second * milliseconds, MILLI * MILLI))


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit)
