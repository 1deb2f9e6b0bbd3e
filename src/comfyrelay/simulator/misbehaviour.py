"""Faults that a simulator can inject, through `Simulator.misbehave` or `POST /simulator/misbehave`."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from comfyrelay.errors import InvalidInput


class Misbehaviour(BaseModel, frozen=True, extra="forbid"):
    """`class_type` limits the fault to nodes of a class, or to graphs with such a node; `times` limits its
    occurrences."""

    class_type: str | None = None
    times: int | None = None


class Slow(Misbehaviour):
    """A node takes this long. With `steps`, it reports progress and can be interrupted at each step."""

    seconds: float
    steps: int = 0
    previews: bool = False


class Stuck(Misbehaviour):
    """A node hangs silently and ignores interrupts until this misbehaviour ends."""


class Vary(Misbehaviour):
    """A save node writes different bytes each time, like a node with its own random seed."""


class Fail(Misbehaviour):
    """A node fails with an error of this type."""

    exception_type: str = "RuntimeError"
    message: str = "The simulator injected this failure."


class OutOfMemory(Misbehaviour):
    """A node fails with an out-of-memory error."""


class DropSocket(Misbehaviour):
    """When a node starts, all WebSockets are dropped without a close frame."""


class SilentSocket(Misbehaviour):
    """When a node starts, the open WebSockets become silent, but remain open."""


class Restart(Misbehaviour):
    """When a node starts, the server is killed and restarts after this time."""

    down_seconds: float = 0.0


class ErrorAfterQueueing(Misbehaviour):
    """`POST /prompt` returns a plain 500, although the prompt is queued."""


class ErrorBeforeQueueing(Misbehaviour):
    """`POST /prompt` returns a plain 500, and nothing is queued."""


class EmptyOutputs(Misbehaviour):
    """A prompt succeeds, but its history has no outputs."""


class NewKinds(Misbehaviour):
    """A prompt succeeds as on a future server: messages, fields, outputs and the state have unknown kinds."""


class LateHistory(Misbehaviour):
    """A prompt's history becomes available this long after its success message."""

    seconds: float


class MissingModel(Misbehaviour):
    """A graph with this model is refused although the model is listed."""

    model: str


class LostFile(Misbehaviour):
    """Downloads of this file, or of all files, return 404."""

    filename: str | None = None


class SlowHttp(Misbehaviour):
    """Responses to requests with this path prefix are delayed."""

    seconds: float
    path: str = "/"


class Refuse(Misbehaviour):
    """Requests with this path prefix and suffix get this status; `error_type` goes into the body."""

    status: int
    path: str = "/api/v2/jobs"
    suffix: str = ""
    error_type: str | None = None
    message: str = "The simulator injected this refusal."
    retry_after: int | None = None


class EndAs(Misbehaviour):
    """End a job of the cloud service in this state instead of running it: `failed`, `canceled` or `expired`."""

    state: str
    message: str = "The simulator injected this end of the job."


Kind = TypeVar("Kind", bound=Misbehaviour)


class ActiveMisbehaviour(Generic[Kind]):
    """An injected misbehaviour. `happened` counts its occurrences; `end` stops it."""

    def __init__(self, what: Kind) -> None:
        self.what = what
        self.happened = 0
        self._ended = asyncio.Event()

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set() and (self.what.times is None or self.happened < self.what.times)

    def end(self) -> None:
        """Stop it, and release nodes that are stuck in it."""
        self._ended.set()

    async def wait_until_ended(self) -> None:
        await self._ended.wait()


class ActiveMisbehaviours:
    def __init__(self) -> None:
        self._active: list[ActiveMisbehaviour[Any]] = []

    def add(self, what: Kind) -> ActiveMisbehaviour[Kind]:
        active = ActiveMisbehaviour(what)
        self._active.append(active)
        return active

    def clear(self) -> None:
        for active in self._active:
            active.end()
        self._active.clear()

    def take(
        self, kind: type[Kind], classes: Collection[str] = (), *, matching: Callable[[Kind], bool] = lambda _: True
    ) -> ActiveMisbehaviour[Kind] | None:
        """Return the first active misbehaviour of this kind that matches the node classes, and count it."""
        for active in self._active:
            what = active.what
            if not isinstance(what, kind) or not active.is_active or not matching(what):
                continue
            if what.class_type is None or what.class_type in classes:
                active.happened += 1
                return active
        return None


def read_misbehaviour(fields: dict[str, Any]) -> Misbehaviour:
    """Parse a misbehaviour from JSON: `name` is its class, and the other keys are its fields."""
    name = fields.get("name")
    kinds = Misbehaviour.__subclasses__()
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"There is no misbehaviour {name!r}. Choose one of: {known}.")
    try:
        return kind.model_validate({key: value for key, value in fields.items() if key != "name"})
    except ValidationError as error:
        raise InvalidInput(f"{name}.{first_error(error)}") from None


def slow_from_text(text: str) -> Slow:
    """Parse `CLASS=SECONDS`."""
    class_type, _, seconds = text.partition("=")
    try:
        return Slow(class_type=class_type or None, seconds=float(seconds))
    except ValueError:
        raise InvalidInput(f"Write CLASS=SECONDS, not {text!r}.") from None


def first_error(error: ValidationError) -> str:
    """Return the path and the message of the first invalid field."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}."
