"""The face that ComfyUI and Comfy Cloud share."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.events import EventListener
from comfyrelay.comfyui.runs.timeouts import RunTimeouts


class ComfyServer(Protocol):
    """A place where graphs run. What it raises on purpose is a `ComfyError`, whose `fault` says whose fault it is."""

    @property
    def url(self) -> str: ...

    @property
    def slots(self) -> int:
        """How many runs it takes at once: one for a ComfyUI, what the plan allows for Comfy Cloud."""

    @property
    def queue_remaining(self) -> int | None:
        """How many runs the server last said it holds, of whoever they are; `None` when it does not say."""

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Return when the server answers and may be given work; `ComfyError` says why not."""

    async def disconnected(self) -> None:
        """Wait until the connection to the server is lost; for ever, where there is none to lose."""

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Put a file where graphs can name it, once per content."""

    async def run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        attachments: Iterable[Attachment] = (),
        timeouts: RunTimeouts | None = None,
        on_event: EventListener | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Run a graph to its end. Canceling the call stops this run on the server, and no other.

        `wanted` are nodes (ids or titles) whose outputs go first. `on_event` is called in the event loop and
        must return quickly.
        """

    async def cancel(self, prompt_id: str) -> None:
        """Take a run out of the queue, or interrupt it if it is running; nothing happens when it is over."""

    async def until_stopped(self, prompt_id: str) -> None:
        """Return when a run that was canceled neither waits nor runs any more, or when its server is gone."""

    def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """The content of an output file, in pieces."""

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file; `to` appears only when it is complete. Returns its size."""

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """The definitions of all installed nodes; kept after the first call."""

    async def preflight(self, graph: Graph) -> list[str]:
        """Everything that would stop this graph on this server, in words: missing nodes, models and inputs."""
