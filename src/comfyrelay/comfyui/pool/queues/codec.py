"""Encode tickets and outcomes as JSON for durable queues."""

from base64 import b64decode, b64encode
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool.queues.queue import JobOutcome, PoolJobStatus
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, Fault, InvalidInput

# orjson would encode values of these types as another type.
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
# Fields that have their own column or another form in JSON.
_SPECIAL_FIELDS = frozenset({"id", "sequence", "bucket", "graph", "attempts", "metadata", "attachments"})


def dump_ticket(ticket: Ticket) -> bytes:
    """Encode everything except the graph, the bytes of attachments and the number of attempts."""
    plain = {field.name: getattr(ticket, field.name) for field in fields(ticket) if field.name not in _SPECIAL_FIELDS}
    metadata = orjson.Fragment(_dump_metadata(ticket))
    attachments = [_dump_attachment(attachment) for attachment in ticket.attachments]
    return orjson.dumps(
        {**plain, **ticket.bucket._asdict(), "metadata": metadata, "attachments": attachments}, default=sorted
    )


def load_ticket(
    text: bytes, *, job_id: str, sequence: int, attempts: int, graph: bytes, contents: dict[int, bytes]
) -> Ticket:
    """Decode a ticket. `contents` are the bytes of attachments by position."""
    stored = orjson.loads(text)
    attachments = [
        Attachment(**{**value, "source": contents[position] if value["source"] is None else Path(value["source"])})
        for position, value in enumerate(stored["attachments"])
        # The bytes of a finished job are deleted.
        if value["source"] is not None or position in contents
    ]
    # A queue of an earlier version may lack fields that have a default.
    bucket = Bucket(**{name: stored.pop(name) for name in Bucket._fields if name in stored})
    stored |= {
        "bucket": bucket._replace(
            preferred_clients=frozenset(bucket.preferred_clients), exclude_clients=frozenset(bucket.exclude_clients)
        ),
        "created_at": datetime.fromisoformat(stored["created_at"]),
        "include_outputs": tuple(stored["include_outputs"]),
        "attachments": tuple(attachments),
        "timeouts": RunTimeouts(**stored["timeouts"]) if stored["timeouts"] else None,
    }
    return Ticket(id=job_id, sequence=sequence, graph=graph, attempts=attempts, **stored)


def dump_outcome(outcome: JobOutcome) -> bytes:
    return orjson.dumps(
        {
            "client_id": outcome.client_id,
            "started_at": outcome.started_at and outcome.started_at.isoformat(),
            "finished_at": outcome.finished_at.isoformat(),
            "result": outcome.result and _dump_result(outcome.result),
            "error": outcome.error and _dump_error(outcome.error),
        }
    )


def load_outcome(text: bytes, *, status: PoolJobStatus, attempts: int) -> JobOutcome:
    value = orjson.loads(text)
    return JobOutcome(
        status=status,
        attempts=attempts,
        client_id=value["client_id"],
        started_at=value["started_at"] and datetime.fromisoformat(value["started_at"]),
        finished_at=datetime.fromisoformat(value["finished_at"]),
        result=value["result"] and _load_result(value["result"]),
        error=value["error"] and _load_error(value["error"]),
    )


def _dump_metadata(ticket: Ticket) -> bytes:
    try:
        return orjson.dumps(dict(ticket.metadata), option=_STRICT)
    except TypeError as error:
        raise InvalidInput(
            f"The metadata cannot be stored as JSON in a durable queue: {error}.",
            errors={"metadata": str(error)},
        ) from None


def _dump_attachment(attachment: Attachment) -> dict[str, Any]:
    source = attachment.source
    # The process that runs the job may start in another folder, so the path must be absolute.
    path = str(source.absolute()) if isinstance(source, Path) else None
    return {field.name: getattr(attachment, field.name) for field in fields(attachment)} | {"source": path}


def _dump_result(result: RunResult) -> dict[str, Any]:
    files = [asdict(file) | {"content": file.content and b64encode(file.content).decode()} for file in result.files]
    return asdict(replace(result, files=())) | {"files": files, "cached_nodes": sorted(result.cached_nodes)}


def _load_result(value: dict[str, Any]) -> RunResult:
    return RunResult(
        prompt_id=value["prompt_id"],
        files=tuple(
            OutputFile(**file | {"content": file.get("content") and b64decode(file["content"])})
            for file in value["files"]
        ),
        texts={node_id: tuple(texts) for node_id, texts in value["texts"].items()},
        cached_nodes=frozenset(value["cached_nodes"]),
        seconds=value["seconds"],
        node_seconds=value.get("node_seconds", {}),
        about=value.get("about", {}),
    )


def _dump_error(error: ComfyError) -> dict[str, Any]:
    names = ("code", "detail", "fault", "node_id", "problems", "raw", "retry_after_seconds")
    return {name: getattr(error, name) for name in names}


def _load_error(value: dict[str, Any]) -> ComfyError:
    error_class = _error_class(value.pop("code"))
    return error_class(value.pop("detail"), fault=Fault(value.pop("fault")), **value)


def _error_class(code: str) -> type[ComfyError]:
    """Return the class with this code. A subclass with its parent's code is loaded as the parent."""
    level: list[type[ComfyError]] = [ComfyError]
    while level:
        for error_class in level:
            if error_class.code == code:
                return error_class
        level = [child for parent in level for child in parent.__subclasses__()]
    return ComfyError
