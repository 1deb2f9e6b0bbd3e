"""Cloud jobs and their states, including jobs that never ran."""

import hashlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from comfyrelay.clock import utc_now
from comfyrelay.simulator.folders import safe_join
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.running.jobs import job_of_entry, with_details

_PUBLIC_STATES = {
    "submitted": "pending",
    "executing": "in_progress",
    "success": "completed",
    "error": "failed",
    "non_retryable_error": "failed",
    "lost": "failed",
    "cancelled": "cancelled",
}


@dataclass(kw_only=True, slots=True)
class CloudJob:
    id: str
    graph: dict[str, Any]
    outputs_to_execute: list[str]
    extra_data: dict[str, Any]
    created_at: float = field(default_factory=time.time)
    # A state that the queue does not know: cancelled before the run, or forced by a misbehaviour.
    fixed_state: str | None = None
    error_message: str | None = None


class CloudJobs:
    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self.by_id: dict[str, CloudJob] = {}
        # Files by content-addressed name.
        self._files: dict[str, Path] = {}

    def file(self, name: str) -> Path | None:
        path = self._files.get(name) or safe_join(self._process.folders.input, Path(name).name)
        return path if path is not None and path.is_file() else None

    def cancel(self, job: CloudJob) -> bool:
        """Cancel a job in any state. Returns false if it had ended."""
        if self._process.queue.delete(job.id):
            job.fixed_state = "cancelled"
            return True
        return self.state(job) == "executing" and self._process.interrupt(job.id)

    def state(self, job: CloudJob) -> str:
        if job.fixed_state is not None:
            return job.fixed_state
        queue = self._process.queue
        entry = queue.history.get(job.id)
        if entry is not None:
            return _raw_state(entry)
        if queue.running is not None and queue.running[1] == job.id:
            return "executing"
        return "submitted" if queue.find(job.id) else "lost"

    def status(self, job: CloudJob) -> dict[str, Any]:
        """`GET /api/job/{id}/status`."""
        created = datetime.fromtimestamp(job.created_at, UTC).isoformat()
        now = utc_now().isoformat()
        return {
            "id": job.id,
            "status": self.state(job),
            "created_at": created,
            "updated_at": now,
            "last_state_update": now,
            "assigned_inference": None,
            "error_message": job.error_message or self._error_text(job),
        }

    def full(self, job: CloudJob) -> dict[str, Any]:
        """`GET /api/jobs/{id}`."""
        state = self.state(job)
        entry = self.history_entry(job)
        item = [0, job.id, job.graph, job.extra_data, job.outputs_to_execute]
        head: dict[str, Any] = {"id": job.id, "priority": 0, "outputs_count": 0}
        if entry is not None:
            head = job_of_entry(entry, names_canceled=True)
        if job.error_message is not None:
            head["execution_error"] = {"exception_type": "ServiceError", "exception_message": job.error_message}
        known = {**head, "status": _PUBLIC_STATES.get(state, state), "create_time": int(job.created_at)}
        return with_details(known, item, entry)

    def history_entry(self, job: CloudJob) -> dict[str, Any] | None:
        """Return the job's history with the cloud's file names."""
        entry = self._process.queue.history.get(job.id)
        if entry is None:
            return None
        outputs = {
            node_id: {kind: [self._store(item) for item in items] for kind, items in ui.items()}
            for node_id, ui in entry["outputs"].items()
        }
        return {**entry, "outputs": outputs}

    def _store(self, item: Any) -> Any:
        """Name a file by its content, as the cloud's store does."""
        if not isinstance(item, dict) or "filename" not in item:
            return item
        root = self._process.folders.by_type(item["type"]) or self._process.folders.output
        path = root / item["subfolder"] / item["filename"]
        name = item["filename"]
        if path.is_file():
            name = content_name(path.read_bytes(), path.suffix)
            self._files[name] = path
        return {**item, "filename": name, "subfolder": "", "display_name": item["filename"]}

    def _error_text(self, job: CloudJob) -> str | None:
        entry = self._process.queue.history.get(job.id)
        messages = entry["status"]["messages"] if entry else []
        return next((str(data["exception_message"]) for kind, data in messages if kind == "execution_error"), None)


def save_upload(folder: Path, filename: str, source: Any) -> tuple[str, bool]:
    """Save an upload under its content hash. Returns the name, and whether the file is new."""
    content = source.read()
    name = content_name(content, Path(filename).suffix)
    path = folder / name
    if path.is_file():
        return name, False
    path.write_bytes(content)
    return name, True


def content_name(content: bytes, suffix: str) -> str:
    return hashlib.sha256(content).hexdigest() + suffix.lower()


def _raw_state(entry: dict[str, Any]) -> str:
    kinds = {kind for kind, _ in entry["status"]["messages"]}
    if "execution_interrupted" in kinds:
        return "cancelled"
    return "error" if "execution_error" in kinds else "success"
