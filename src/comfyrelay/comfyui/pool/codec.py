"""Tickets and outcomes as JSON, for queues that outlive the process."""

from base64 import b64decode, b64encode
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool.queue import JobOutcome, PoolJobStatus
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, Fault, InvalidInput

# What orjson would write by itself comes back as something else.
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
# What is kept in columns, or in another form.
_APART = frozenset({"id", "sequence", "bucket", "graph", "attempts", "metadata", "attachments"})


def dump_ticket(ticket: Ticket) -> bytes:
    """Everything but the graph, the bytes of attachments and the count of attempts."""
    kept = {each.name: getattr(ticket, each.name) for each in fields(ticket) if each.name not in _APART}
    metadata = orjson.Fragment(_dump_metadata(ticket))
    attachments = [_attachment(each) for each in ticket.attachments]
    return orjson.dumps(
        {**kept, **ticket.bucket._asdict(), "metadata": metadata, "attachments": attachments}, default=sorted
    )


def load_ticket(
    text: bytes, *, job_id: str, sequence: int, attempts: int, graph: bytes, contents: dict[int, bytes]
) -> Ticket:
    """`contents` are the bytes of attachments, by their position."""
    value = orjson.loads(text)
    attachments = [
        Attachment(**{**each, "source": contents[position] if each["source"] is None else Path(each["source"])})
        for position, each in enumerate(value["attachments"])
        # the bytes of a finished job are gone
        if each["source"] is not None or position in contents
    ]
    bucket = Bucket(
        value.pop("workflow_hash"),
        frozenset(value.pop("preferred_clients")),
        frozenset(value.pop("exclude_clients")),
        value.pop("memory_bytes", None),
        value.pop("alone", False),
        value.pop("keep_loaded", False),
        value.pop("same_as", None),
    )
    given = {
        # a queue of an earlier version may lack what has a default
        **value,
        "bucket": bucket,
        "created_at": datetime.fromisoformat(value["created_at"]),
        "include_outputs": tuple(value["include_outputs"]),
        "attachments": tuple(attachments),
        "timeouts": RunTimeouts(**value["timeouts"]) if value["timeouts"] else None,
    }
    return Ticket(id=job_id, sequence=sequence, graph=graph, attempts=attempts, **given)


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
            f"A durable queue keeps metadata as JSON, and this is not: {error}.", errors={"metadata": str(error)}
        ) from None


def _attachment(attachment: Attachment) -> dict[str, Any]:
    source = attachment.source
    # absolute: the process that runs it may have been started in another folder
    kept = str(source.absolute()) if isinstance(source, Path) else None
    return {each.name: getattr(attachment, each.name) for each in fields(attachment)} | {"source": kept}


def _dump_result(result: RunResult) -> dict[str, Any]:
    files = [asdict(file) | {"content": file.content and b64encode(file.content).decode()} for file in result.files]
    return asdict(replace(result, files=())) | {"files": files, "cached_nodes": sorted(result.cached_nodes)}


def _load_result(value: dict[str, Any]) -> RunResult:
    return RunResult(
        prompt_id=value["prompt_id"],
        files=tuple(
            OutputFile(**each | {"content": each.get("content") and b64decode(each["content"])})
            for each in value["files"]
        ),
        texts={node_id: tuple(texts) for node_id, texts in value["texts"].items()},
        cached_nodes=frozenset(value["cached_nodes"]),
        seconds=value["seconds"],
        about=value.get("about", {}),
    )


def _dump_error(error: ComfyError) -> dict[str, Any]:
    return {
        "code": error.code,
        "detail": error.detail,
        "fault": error.fault.value,
        "node_id": error.node_id,
        "problems": error.problems,
        "raw": error.raw,
        "retry_after_seconds": error.retry_after_seconds,
    }


def _load_error(value: dict[str, Any]) -> ComfyError:
    kind = _error_class(value.pop("code"))
    return kind(value.pop("detail"), fault=Fault(value.pop("fault")), **value)


def _error_class(code: str) -> type[ComfyError]:
    """The class with this code; a subclass that has its parent's is read as its parent."""
    level: list[type[ComfyError]] = [ComfyError]
    while level:
        for each in level:
            if each.code == code:
                return each
        level = [child for parent in level for child in parent.__subclasses__()]
    return ComfyError
