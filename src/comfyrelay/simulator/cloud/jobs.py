"""Jobs of the simulated service, including jobs that never ran, and their events."""

import asyncio
import base64
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.media_types import guess_media_type
from comfyrelay.simulator.cloud.answers import format_time
from comfyrelay.simulator.cloud.assets import Asset, Assets
from comfyrelay.simulator.process import SimulatedProcess

TERMINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
KEEP_ALIVE_SECONDS = 15.0
_RETENTION_SECONDS = 7 * 86_400
_TYPES = ("image", "video", "audio", "text")


@dataclass(kw_only=True, slots=True, eq=False)
class CloudJob:
    graph: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: float = field(default_factory=time.time)
    # A state that is not in the queue: canceled before the run, or forced by a misbehaviour.
    fixed_state: str | None = None
    error_message: str | None = None
    is_canceling: bool = False
    progress: dict[str, Any] | None = None
    preview: dict[str, Any] | None = None
    outputs: list[tuple[str, Asset]] | None = None
    # The open event streams.
    streams: set[asyncio.Queue[tuple[str, dict[str, Any]]]] = field(default_factory=set)

    def send(self, name: str, data: dict[str, Any]) -> None:
        for stream in self.streams:
            stream.put_nowait((name, data))


class CloudJobs:
    def __init__(self, process: SimulatedProcess, assets: Assets) -> None:
        self._process = process
        self._assets = assets
        self.by_id: dict[str, CloudJob] = {}
        # Keys whose submission may have created a job.
        self.keys: set[str] = set()

    def add(self, job: CloudJob) -> None:
        self.by_id[job.id] = job
        self._process.sockets.observe(job.id, lambda kind, data: self._on_message(job, kind, data))

    def cancel(self, job: CloudJob) -> None:
        """Cancel a job in any state. Does nothing if it has ended."""
        if self._process.queue.delete(job.id):
            job.fixed_state = "canceled"
        elif self.state(job) == "running" and self._process.interrupt(job.id):
            job.is_canceling = True
        self._send_status(job)

    def state(self, job: CloudJob) -> str:
        if job.fixed_state is not None:
            return job.fixed_state
        queue = self._process.queue
        entry = queue.history.get(job.id)
        if entry is not None:
            return _end_of(entry)
        if queue.running is not None and queue.running[1] == job.id:
            return "canceling" if job.is_canceling else "running"
        # A restarted server has lost its queue.
        return "queued" if queue.find(job.id) else "expired"

    def body(self, job: CloudJob) -> dict[str, Any]:
        state = self.state(job)
        started_at, ended_at = self._times(job)
        link = f"/api/v2/jobs/{job.id}"
        return {
            "id": job.id,
            "status": state,
            "created_at": format_time(job.created_at),
            "started_at": format_time(started_at),
            "completed_at": format_time(ended_at) if state in TERMINAL else None,
            "expires_at": format_time(job.created_at + _RETENTION_SECONDS),
            "queue_position": self._position(job) if state == "queued" else None,
            "progress": job.progress if state in ("running", "canceling") else None,
            "outputs": [self._output(node_id, asset) for node_id, asset in self._outputs(job)],
            "error": self._error(job) if state == "failed" else None,
            "metrics": {"queue_ms": None, "execution_ms": None},
            "urls": {"self": link, "events": f"{link}/events", "cancel": f"{link}/cancel"},
        }

    async def events(self, job: CloudJob) -> AsyncIterator[tuple[str, dict[str, Any]] | None]:
        """Yield the current snapshot, then every change until the job has ended; `None` if there is no change for some
        time."""
        stream: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        job.streams.add(stream)
        try:
            yield "status", self._status(job)
            for name, data in (("progress", job.progress), ("preview", job.preview)):
                if data is not None:
                    yield name, data
            while self.state(job) not in TERMINAL or not stream.empty():
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        event = await stream.get()
                except TimeoutError:
                    yield None
                    continue
                yield event
                if event[0] == "status" and event[1]["status"] in TERMINAL:
                    return
        finally:
            job.streams.discard(stream)

    def _on_message(self, job: CloudJob, kind: str, data: dict[str, Any]) -> None:
        if kind == "execution_start" or (kind == "executing" and data["node"] is None):
            self._send_status(job)
        elif kind == "progress_state":
            job.progress = _progress(job.graph, data["nodes"])
            job.send("progress", job.progress)
        elif kind == "preview":
            encoded = base64.b64encode(data["image"]).decode()
            job.preview = {
                "node_id": data["node_id"],
                "content_type": data["image_type"],
                "data_base64": encoded,
            }
            job.send("preview", job.preview)

    def _send_status(self, job: CloudJob) -> None:
        job.send("status", self._status(job))

    def _status(self, job: CloudJob) -> dict[str, Any]:
        return {"status": self.state(job), "queue_position": self._position(job)}

    def _position(self, job: CloudJob) -> int | None:
        pending = [item[1] for item in self._process.queue.snapshot()["queue_pending"]]
        return pending.index(job.id) if job.id in pending else None

    def _times(self, job: CloudJob) -> tuple[float | None, float | None]:
        entry = self._process.queue.history.get(job.id)
        if entry is None:
            return None, job.created_at if job.fixed_state is not None else None
        times = [data["timestamp"] / 1000 for _, data in entry["status"]["messages"]]
        return times[0], times[-1]

    def _outputs(self, job: CloudJob) -> list[tuple[str, Asset]]:
        entry = self._process.queue.history.get(job.id)
        if job.outputs is None and entry is not None:
            job.outputs = [(node_id, self._assets.add(asset)) for node_id, asset in self._files(job, entry)]
        return job.outputs or []

    def _files(self, job: CloudJob, entry: dict[str, Any]) -> Iterator[tuple[str, Asset]]:
        for node_id, ui in entry["outputs"].items():
            for item in (item for items in ui.values() if isinstance(items, list) for item in items):
                if isinstance(item, dict) and "filename" in item:
                    root = self._process.folders.by_type(item["type"]) or self._process.folders.output
                    path = root / item["subfolder"] / item["filename"]
                    kind = guess_media_type(path.name) or "application/octet-stream"
                    if path.is_file():
                        yield node_id, Asset(path=path, name=path.name, content_type=kind, job_id=job.id)

    def _output(self, node_id: str, asset: Asset) -> dict[str, Any]:
        kind = asset.content_type.partition("/")[0]
        fields = self._assets.file_fields(asset)
        return {**fields, "node_id": node_id, "name": asset.name, "type": kind if kind in _TYPES else "file"}

    def _error(self, job: CloudJob) -> dict[str, Any]:
        entry = self._process.queue.history.get(job.id)
        messages = entry["status"]["messages"] if entry else []
        data: dict[str, Any] = next((data for kind, data in messages if kind == "execution_error"), {})
        return {
            "code": "node_execution_error",
            "message": job.error_message or str(data.get("exception_message", "")).strip(),
            "node_id": data.get("node_id"),
            "class_type": data.get("node_type"),
            "traceback": None,
        }


def _progress(graph: dict[str, Any], nodes: dict[str, Any]) -> dict[str, Any]:
    done = sum(node["state"] == "finished" for node in nodes.values())
    node_id, current = next(((id_, node) for id_, node in nodes.items() if node["state"] != "finished"), (None, None))
    part = current["value"] / current["max"] if current else 0.0
    has_steps = current is not None and current["max"] > 1
    return {
        "value": min(1.0, (done + part) / len(graph)),
        "nodes_done": done,
        "nodes_total": len(graph),
        "current_node": node_id,
        "current_node_class": graph[node_id]["class_type"] if node_id in graph else None,
        "step": int(current["value"]) if current and has_steps else None,
        "steps": int(current["max"]) if current and has_steps else None,
        "message": None,
    }


def _end_of(entry: dict[str, Any]) -> str:
    kinds = {kind for kind, _ in entry["status"]["messages"]}
    if "execution_interrupted" in kinds:
        return "canceled"
    return "failed" if "execution_error" in kinds else "succeeded"
