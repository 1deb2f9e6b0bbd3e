"""The words for what the workers of a fleet are doing."""

from enum import StrEnum

__all__ = ["WorkerState"]


class WorkerState(StrEnum):
    """The first that holds, from the gravest to the best."""

    REVOKED = "revoked"
    OFFLINE = "offline"
    DRAINING = "draining"
    BUSY = "busy"
    IDLE = "idle"
