"""The ways in which a simulator can go wrong on request. `Simulator.misbehave` takes one; so does `POST /simulator/misbehave`."""

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
    """`class_type` limits it to nodes of that class, or to graphs that have one; `times` ends it after so many."""

    class_type: str | None = None
    times: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow(Misbehaviour):
    """A node takes this long. With `steps` it tells its progress, and can be interrupted, at each step."""

    seconds: float
    steps: int = 0
    previews: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck(Misbehaviour):
    """A node never ends, says nothing and ignores interrupts, until this misbehaviour is ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vary(Misbehaviour):
    """A node that saves pictures writes other bytes each time, as one that draws its own seed does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail(Misbehaviour):
    """A node fails with an error of this type."""

    exception_type: str = "RuntimeError"
    message: str = "The simulator was asked to fail."


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory(Misbehaviour):
    """A node fails as if the GPU had no memory left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DropSocket(Misbehaviour):
    """When a node starts, all WebSockets are cut without a close frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentSocket(Misbehaviour):
    """From the start of a node on, the WebSockets that are open then stay open and say nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart(Misbehaviour):
    """When a node starts, the server is killed, and is back after this long."""

    down_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorAfterQueueing(Misbehaviour):
    """`POST /prompt` answers with a plain 500, yet the prompt is queued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBeforeQueueing(Misbehaviour):
    """`POST /prompt` answers with a plain 500, and nothing is queued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmptyOutputs(Misbehaviour):
    """A prompt runs and succeeds, and its history has no outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LateHistory(Misbehaviour):
    """A prompt's history is written this long after its success was told."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingModel(Misbehaviour):
    """A graph that names this model is refused, though the model is listed."""

    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LostFile(Misbehaviour):
    """`GET /view` does not find this file, or any."""

    filename: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowHttp(Misbehaviour):
    """Requests whose path starts so are answered late."""

    seconds: float
    path: str = "/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse(Misbehaviour):
    """Requests whose path starts so get this status; with an `error_type`, the body names it as Comfy Cloud does."""

    status: int
    path: str = "/api/prompt"
    error_type: str | None = None
    message: str = "The simulator was asked to refuse this."
    retry_after: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndAs(Misbehaviour):
    """In the cloud, a job ends in this state instead of running: `lost`, `non_retryable_error` or another."""

    state: str
    message: str = "The simulator was asked to end the job so."
