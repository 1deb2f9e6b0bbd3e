"""A queued job: a copy of its graph and everything needed to run it later."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict
from uuid import uuid4

import orjson

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.dynamic_prompts import draw_prompts
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.graph import Graph, GraphSource, dump_json, read_graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.nodes import find_node
from comfyrelay.comfyui.graphs.seeds import draw_seeds
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import InvalidInput

MAX_ID_LENGTH = 200
_NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class Bucket(NamedTuple):
    """Jobs of one bucket can run on the same servers."""

    workflow_hash: str
    preferred_clients: frozenset[str] = frozenset()
    exclude_clients: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    # Whether a job gets the GPU to itself, because it ran out of memory next to others.
    alone: bool = False
    # Whether the server that runs a job keeps the models of the workflow loaded.
    keep_loaded: bool = False
    # The cache key of an earlier identical job. A server with the cached result need not run the job again.
    same_as: str | None = None


class Affinity(TypedDict, total=False):
    """The servers that may run a workflow.

    - `preferred_clients`: servers to use if one of them is free; otherwise others are used.
    - `exclude_clients`: servers never to use.
    """

    preferred_clients: Iterable[str]
    exclude_clients: Iterable[str]


class JobOptions(Affinity, total=False):
    """Options of a job.

    - `job_id`: an id that the caller chooses. If the pool has a job with this id, finished or not, that job is returned
      and nothing is queued. Raises `IdempotencyConflict` if that job has another graph.
    - `priority`: jobs with a higher priority go first; default 0. - `metadata`: available from the job and in each of
    its events. - `include_outputs`: nodes (ids or titles) whose outputs come first in the result. - `attachments`:
    files that are uploaded to the server before the run. - `preferred_clients`, `exclude_clients`: see `Affinity`. -
    `memory_bytes`: minimum memory that the job needs on a shared GPU; a larger measured need takes precedence. -
    `keep_loaded`: the server that runs the job gets no other workflows while other servers can take them. The models
    are unloaded only if another job needs the memory and does not fit elsewhere. - `cache_key`: jobs with the same key
    request the same work. They run on one server in sequence, so that later jobs use its cache. - `max_attempts`:
    default 3. - `retry_delay`: seconds between a failed attempt and the next; default 1. - `one_attempt_per_server`: a
    server that causes a failure does not get the job again. The job moves to another online server, which does not
    count as an attempt; without such a server, the job fails. - `give_up_after_seconds`: how long the job waits while
    no suitable server is online; no limit by default. The job then fails with its first error, or else
    `RunInterrupted`. - `timeouts`: timeouts of the runs. - `extra_data`: JSON that is sent to ComfyUI with the graph,
    such as keys of partner nodes.
    """

    job_id: str
    priority: int
    metadata: Mapping[str, Any]
    include_outputs: Sequence[str]
    attachments: Iterable[Attachment]
    memory_bytes: int | None
    keep_loaded: bool
    cache_key: str | None
    max_attempts: int
    retry_delay: float
    one_attempt_per_server: bool
    give_up_after_seconds: float | None
    timeouts: RunTimeouts | None
    extra_data: Mapping[str, Any] | None


AFFINITY_OPTIONS = frozenset(Affinity.__annotations__)
JOB_OPTIONS = frozenset(JobOptions.__annotations__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A queued job. `sequence` is its place among jobs of the same priority, which retries do not change."""

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
    # The random seeds of the graph, by node id and input.
    seeds: Mapping[str, int] = field(default_factory=dict)
    # Digest of the caller's graph, if the caller chose the job id.
    graph_digest: str | None = None
    # Memory of the GPU that was too small, after the job has moved to a larger one.
    ran_out_bytes: int | None = None


def check_options(options: JobOptions, *, where: str) -> None:
    """Check the options that do not depend on a graph. Otherwise, a misspelled option would have no effect."""
    check_names(options, allowed=JOB_OPTIONS, where=where)
    _check_values(options)


def check_names(options: Mapping[str, Any], *, allowed: frozenset[str], where: str) -> None:
    if unknown := sorted(options.keys() - allowed):
        raise InvalidInput(
            f"{where}: unknown option {', '.join(unknown)}. Options: {', '.join(sorted(allowed))}.",
            errors=dict.fromkeys(unknown, "is not an option"),
        )


def make_ticket(source: GraphSource, options: JobOptions, *, sequence: int, created_at: datetime) -> Ticket:
    """Check the options that do not depend on servers, and copy the graph so that the caller cannot change it."""
    check_options(options, where="enqueue")
    given = read_graph(source)
    drawn, seeds = draw_seeds(draw_prompts(given))
    graph = fill_file_names(drawn, created_at)
    job_id = options.get("job_id")
    ticket = Ticket(
        id=str(uuid4()) if job_id is None else job_id,
        sequence=sequence,
        bucket=_bucket(graph, options),
        graph=dump_json(graph),
        seeds=seeds,
        graph_digest=None if job_id is None else _digest(given),
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
    for attachment in ticket.attachments:
        attachment.check()
    for node in (*ticket.include_outputs, *(attachment.node for attachment in ticket.attachments if attachment.node)):
        find_node(graph, node)
    return ticket


def _digest(graph: Graph) -> str:
    return hashlib.sha256(json.dumps(graph, sort_keys=True).encode()).hexdigest()


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


def _check_values(options: JobOptions) -> None:
    errors = {}
    if not 1 <= len(options.get("job_id", "-")) <= MAX_ID_LENGTH:
        errors["job_id"] = f"must be a text of 1 to {MAX_ID_LENGTH} characters"
    if options.get("max_attempts", 1) < 1:
        errors["max_attempts"] = "must be at least 1"
    if options.get("retry_delay", 0) < 0:
        errors["retry_delay"] = "must not be negative"
    if (options.get("memory_bytes") or 0) < 0:
        errors["memory_bytes"] = "must not be negative"
    if (options.get("give_up_after_seconds") or 0) < 0:
        errors["give_up_after_seconds"] = "must not be negative"
    if errors:
        raise InvalidInput(errors=errors)
