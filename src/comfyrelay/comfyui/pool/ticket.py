"""A queued job: a copy of its graph and everything needed to run it later."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict
from uuid import uuid4

import orjson

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.graph import Graph, check_graph, dump_json
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.nodes import find_node
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import InvalidInput

_NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class Bucket(NamedTuple):
    """Jobs of one bucket can run on the same servers."""

    workflow_hash: str
    preferred_clients: frozenset[str] = frozenset()
    exclude_clients: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    # Whether a job ran out of memory next to others, and now gets the GPU to itself.
    alone: bool = False
    # Whether the server that runs a job keeps its models loaded.
    keep_loaded: bool = False
    # The cache key of an earlier identical job. A server that has the result cached need not run it again.
    same_as: str | None = None


class JobOptions(TypedDict, total=False):
    """Options of a job.

    - `priority`: jobs with a higher one go first; default 0.
    - `metadata`: available on the job and each of its events.
    - `include_outputs`: nodes (ids or titles) whose outputs come first in the result.
    - `attachments`: files that are uploaded to the server before the run.
    - `preferred_clients`: servers to use if one of them is free; otherwise others are used.
    - `exclude_clients`: servers never to use.
    - `memory_bytes`: minimum memory that the job needs on a shared GPU; a larger measured need wins.
    - `keep_loaded`: the server that runs the job gets no other workflows while other servers can take them. It unloads
      the models only if another job needs the memory and fits nowhere else.
    - `cache_key`: jobs with the same key request the same work. They run on one server in sequence, so that later ones
      use its cache.
    - `max_attempts`: default 3.
    - `retry_delay`: seconds between a failed attempt and the next; default 1.
    - `one_attempt_per_server`: a server that causes a failure does not get the job again. The job moves to another
      online server, which costs no attempt; without one, it fails.
    - `give_up_after_seconds`: how long the job waits while no suitable server is online; no limit by default. It then
      fails with its first error, or else `RunInterrupted`.
    - `timeouts`: timeouts of the runs.
    - `extra_data`: JSON that is sent to ComfyUI with the graph, such as keys of partner nodes.
    """

    priority: int
    metadata: Mapping[str, Any]
    include_outputs: Sequence[str]
    attachments: Iterable[Attachment]
    preferred_clients: Iterable[str]
    exclude_clients: Iterable[str]
    memory_bytes: int | None
    keep_loaded: bool
    cache_key: str | None
    max_attempts: int
    retry_delay: float
    one_attempt_per_server: bool
    give_up_after_seconds: float | None
    timeouts: RunTimeouts | None
    extra_data: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A queued job. `sequence` is its place among jobs of the same priority, which it keeps on retries."""

    id: str
    sequence: int
    bucket: Bucket
    graph: bytes
    created_at: datetime
    priority: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    include_outputs: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    max_attempts: int = 3
    retry_delay: float = 1.0
    one_attempt_per_server: bool = False
    give_up_after_seconds: float | None = None
    timeouts: RunTimeouts | None = None
    extra_data: Mapping[str, Any] | None = None
    attempts: int = 0
    cache_key: str | None = None
    # Memory of the GPU that was too small, once the job moved to a larger one.
    ran_out_bytes: int | None = None


def make_ticket(graph: Graph, options: JobOptions, *, sequence: int, created_at: datetime) -> Ticket:
    """Check the options that need no server, and copy the graph so that the caller cannot change it."""
    ticket = Ticket(
        id=str(uuid4()),
        sequence=sequence,
        bucket=_bucket(check_graph(graph), options),
        graph=dump_json(graph),
        created_at=created_at,
        priority=options.get("priority", 0),
        metadata=MappingProxyType(dict(metadata)) if (metadata := options.get("metadata")) else _NO_METADATA,
        include_outputs=tuple(options.get("include_outputs", ())),
        attachments=tuple(options.get("attachments", ())),
        max_attempts=options.get("max_attempts", 3),
        retry_delay=options.get("retry_delay", 1.0),
        one_attempt_per_server=options.get("one_attempt_per_server", False),
        give_up_after_seconds=options.get("give_up_after_seconds"),
        timeouts=options.get("timeouts"),
        cache_key=options.get("cache_key"),
        extra_data=_json_copy(extra_data) if (extra_data := options.get("extra_data")) is not None else None,
    )
    _check(ticket)
    for attachment in ticket.attachments:
        attachment.check()
    for node in (*ticket.include_outputs, *(attachment.node for attachment in ticket.attachments if attachment.node)):
        find_node(graph, node)
    return ticket


def _bucket(graph: Graph, options: JobOptions) -> Bucket:
    return Bucket(
        workflow_hash(graph),
        frozenset(options.get("preferred_clients", ())),
        frozenset(options.get("exclude_clients", ())),
        options.get("memory_bytes"),
        keep_loaded=options.get("keep_loaded", False),
    )


def _json_copy(extra_data: Mapping[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = orjson.loads(orjson.dumps(dict(extra_data)))
    except TypeError as error:
        raise InvalidInput(errors={"extra_data": f"must be JSON: {error}"}) from None
    return copy


def _check(ticket: Ticket) -> None:
    errors = {}
    if ticket.max_attempts < 1:
        errors["max_attempts"] = "must be at least 1"
    if ticket.retry_delay < 0:
        errors["retry_delay"] = "must not be negative"
    if (ticket.bucket.memory_bytes or 0) < 0:
        errors["memory_bytes"] = "must not be negative"
    if (ticket.give_up_after_seconds or 0) < 0:
        errors["give_up_after_seconds"] = "must not be negative"
    if errors:
        raise InvalidInput(errors=errors)
