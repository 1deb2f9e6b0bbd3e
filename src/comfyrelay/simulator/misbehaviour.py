"""Faults that a simulator can inject, through `Simulator.misbehave` or `POST /simulator/misbehave`."""

from dataclasses import dataclass

__all__ = [
    "DropSocket",
    "EmptyOutputs",
    "EndAs",
    "ErrorAfterQueueing",
    "ErrorBeforeQueueing",
    "Fail",
    "LateHistory",
    "LostFile",
    "Misbehaviour",
    "MissingModel",
    "OutOfMemory",
    "Refuse",
    "Restart",
    "SilentSocket",
    "Slow",
    "SlowHttp",
    "Stuck",
    "Vary",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Misbehaviour:
    """`class_type` limits it to nodes of that class, or to graphs with one; `times` limits its occurrences."""

    class_type: str | None = None
    times: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow(Misbehaviour):
    """A node takes this long. With `steps` it reports progress, and can be interrupted, at each step."""

    seconds: float
    steps: int = 0
    previews: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck(Misbehaviour):
    """A node hangs silently and ignores interrupts until this misbehaviour ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vary(Misbehaviour):
    """A save node writes different bytes each time, as a node with its own random seed would."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail(Misbehaviour):
    """A node fails with an error of this type."""

    exception_type: str = "RuntimeError"
    message: str = "The simulator injected this failure."


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory(Misbehaviour):
    """A node fails with an out-of-memory error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DropSocket(Misbehaviour):
    """When a node starts, all WebSockets drop without a close frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentSocket(Misbehaviour):
    """When a node starts, the open WebSockets go silent but stay open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart(Misbehaviour):
    """When a node starts, the server is killed and restarts after this time."""

    down_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorAfterQueueing(Misbehaviour):
    """`POST /prompt` returns a plain 500, but the prompt is queued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBeforeQueueing(Misbehaviour):
    """`POST /prompt` returns a plain 500, and nothing is queued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmptyOutputs(Misbehaviour):
    """A prompt succeeds, but its history has no outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LateHistory(Misbehaviour):
    """A prompt's history appears this long after its success message."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingModel(Misbehaviour):
    """A graph with this model is refused although the model is listed."""

    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LostFile(Misbehaviour):
    """`GET /view` returns 404 for this file, or for all."""

    filename: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowHttp(Misbehaviour):
    """Requests with this path prefix are answered late."""

    seconds: float
    path: str = "/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse(Misbehaviour):
    """Requests with this path prefix get this status; `error_type` goes into the body as at Comfy Cloud."""

    status: int
    path: str = "/api/prompt"
    error_type: str | None = None
    message: str = "The simulator injected this refusal."
    retry_after: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndAs(Misbehaviour):
    """In the cloud, a job ends in this state instead of running, such as `lost` or `non_retryable_error`."""

    state: str
    message: str = "The simulator injected this end of the job."
