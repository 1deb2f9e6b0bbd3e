"""What happens during a run, as it happens. Every event names its run by `prompt_id`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.outputs import OutputFile, RunResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """The server took it. `position` is how many runs are ahead of it; `None` until that is known."""

    prompt_id: str
    position: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    prompt_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStarted:
    """`progress` is that of the whole run, from 0 to 1, as far as nodes tell."""

    prompt_id: str
    node_id: str
    class_type: str
    title: str
    progress: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A node has done `value` of `maximum` steps."""

    prompt_id: str
    node_id: str
    value: float
    maximum: float
    progress: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    prompt_id: str
    node_id: str | None
    image: bytes
    mime_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputReady:
    """An output node is done."""

    prompt_id: str
    node_id: str
    files: tuple[OutputFile, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """What runs has printed a line. Graphs print none; a script does."""

    prompt_id: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """What is to be kept of this run however it ends: of a script, its command. It comes also while it stops."""

    prompt_id: str
    about: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    prompt_id: str
    result: RunResult


RunEvent = Queued | Started | NodeStarted | Step | Preview | OutputReady | Printed | Noted | Finished
EventListener = Callable[[RunEvent], None]
