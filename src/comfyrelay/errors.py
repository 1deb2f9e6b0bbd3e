"""Everything ComfyRelay raises on purpose.

    ComfyRelayError
    ├── InvalidInput             what was sent cannot be accepted; says which fields
    ├── NotFound                 it is not there, or not yours
    │   └── LeaseLost            the lease token is wrong, or its lease has ended
    ├── Conflict                 it is there already, or in another state
    │   └── IdempotencyConflict  the same key came with another request
    ├── Forbidden                known, but not allowed
    ├── InsufficientTokens       the wallet does not cover the cost
    ├── TooManyActiveJobs        the user's limit is reached
    ├── PoolUnavailable          a database cannot be reached
    ├── GraphError               not a graph that ComfyUI can run
    └── ConfigurationError       a setting is missing or wrong
        └── SchemaOutOfDate      the database needs `comfyrelay db upgrade`

The docstring of a class is its message when none is given.
"""

from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "ComfyRelayError",
    "ConfigurationError",
    "Conflict",
    "Forbidden",
    "GraphError",
    "IdempotencyConflict",
    "InsufficientTokens",
    "InvalidInput",
    "LeaseLost",
    "NotFound",
    "PoolUnavailable",
    "SchemaOutOfDate",
    "TooManyActiveJobs",
]


class ComfyRelayError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str | None = None) -> None:
        # `python -OO` strips docstrings, and a message must still be there
        self.detail = detail or self.__doc__ or self.code
        super().__init__(self.detail)


class InvalidInput(ComfyRelayError):
    """The input is not valid."""

    code = "invalid_input"

    def __init__(self, detail: str | None = None, *, errors: Mapping[str, str] | None = None) -> None:
        self.errors: dict[str, str] = dict(errors or {})
        super().__init__(detail)


class NotFound(ComfyRelayError):
    """Not found."""

    code = "not_found"


class LeaseLost(NotFound):
    """This lease has ended or never was."""

    code = "lease_lost"


class Conflict(ComfyRelayError):
    """This conflicts with what is already there."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """This idempotency key was used for another request."""

    code = "idempotency_conflict"


class Forbidden(ComfyRelayError):
    """This is not allowed."""

    code = "forbidden"


class InsufficientTokens(ComfyRelayError):
    """Insufficient token balance."""

    code = "insufficient_tokens"

    def __init__(self, *, required_tokens: int, balance: int) -> None:
        self.required_tokens = required_tokens
        self.balance = balance
        super().__init__("Insufficient token balance.")


class TooManyActiveJobs(ComfyRelayError):
    """Too many active jobs."""

    code = "too_many_active_jobs"

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(f"Too many active jobs: the limit is {limit}.")


class PoolUnavailable(ComfyRelayError):
    """A database cannot be reached."""

    code = "pool_unavailable"

    def __init__(self, *, pool: str) -> None:
        self.pool = pool
        which = "central database" if pool == "central" else f"tenant pool {pool!r}"
        super().__init__(f"The {which} cannot be reached.")


class GraphError(ComfyRelayError):
    """This is not a ComfyUI graph in API format."""

    code = "invalid_graph"


class ConfigurationError(ComfyRelayError):
    """The configuration is not valid."""

    code = "invalid_configuration"


class SchemaOutOfDate(ConfigurationError):
    """The database schema is out of date: run `comfyrelay db upgrade`."""

    code = "schema_out_of_date"
