"""Interface shared by the clients of ComfyUI and of the Comfy API."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.events import EventListener
from comfyrelay.comfyui.runs.timeouts import RunTimeouts


class ComfyServer(Protocol):
    """A server that runs graphs. Expected errors are `ComfyError`s; their `fault` says who caused them."""

    @property
    def url(self) -> str: ...

    @property
    def slots(self) -> int:
        """Number of simultaneous runs: one for ComfyUI, the limit of the plan for a cloud service."""

    @property
    def queue_remaining(self) -> int | None:
        """Number of runs of all clients on the server, as last reported; `None` if unknown."""

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raise `ComfyError` unless the server accepts runs."""

    async def disconnected(self) -> None:
        """Wait until the connection to the server is lost. Never returns if the client does not keep a connection."""

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Upload a file for use in graphs, once per content."""

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
        """Run a graph and return its result. Canceling the call stops only this run on the server.

        Outputs of the nodes in `wanted` (ids or titles) come first. `on_event` is called in the event loop and must
        return quickly.
        """

    async def cancel(self, prompt_id: str) -> None:
        """Remove a run from the queue, or interrupt it if it is running. Does nothing if it has finished."""

    async def wait_until_stopped(self, prompt_id: str) -> None:
        """Wait until a canceled run is neither queued nor running, or its server is unreachable."""

    def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """Yield the content of an output file in chunks."""

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file and return its size. `to` is created only after the download is complete."""

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """Return the definitions of all installed nodes, cached after the first call."""

    async def preflight(self, graph: Graph) -> list[str]:
        """Return one sentence for each problem that would stop this graph: a missing node, model or input."""
