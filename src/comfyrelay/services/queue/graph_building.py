"""Build the graph of each leased dispatch from its workflow and the job's values."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import structlog

from comfyrelay.comfyui.editor.filling import fill_editor_file
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain.ids import upload_path
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.errors import DatabaseUnavailable, GraphError, NotFound, StorageUnavailable
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

MAX_DEFERRAL = timedelta(minutes=5)
# Up to this size, filling a graph takes less time than starting a thread.
SMALL_BYTES = 32 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasedDispatch:
    """A lease with everything that its worker needs except the pre-signed URLs."""

    dispatch: Dispatch
    payload: JobPayload
    graph: Graph
    output_path: str
    # The editor file with the values of the job, which ComfyUI embeds in saved images.
    editor: Mapping[str, Any] | None = None
    # Number of other dispatches that the worker could have leased in this round.
    more_waiting: int = 0
    # Whether to keep the workflow's models loaded.
    keep_loaded: bool = False
    # Memory of the largest GPU that was too small for the workflow.
    ran_out_bytes: int | None = None

    @property
    def lease_token(self) -> str:
        assert self.dispatch.lease_token is not None
        return self.dispatch.lease_token

    @property
    def dispatch_id(self) -> int:
        return self.dispatch.id


class GraphBuilder:
    def __init__(self, context: ServiceContext, decisions: Decisions, graphs: Graphs) -> None:
        self._databases = context.databases
        self._deferral = timedelta(seconds=context.settings.retry_backoff_seconds)
        self._decisions = decisions
        self._graphs = graphs

    async def build(
        self, leased: Sequence[Dispatch], *, pinned: Set[int], ran_out: Mapping[tuple[int, str], int]
    ) -> dict[int, LeasedDispatch]:
        """Build the graph of each lease. Jobs that cannot be built now are deferred; jobs that can never be built fail.

        `pinned` contains the ids of workflows whose models stay loaded. `ran_out` contains the size of the largest GPU
        that was too small, by workflow id and hash.
        """
        by_shard: dict[str, list[Dispatch]] = defaultdict(list)
        for dispatch in leased:
            by_shard[dispatch.shard].append(dispatch)
        built: dict[int, LeasedDispatch] = {}
        failed: dict[int, str] = {}
        deferred: dict[int, str] = {}
        payloads = await asyncio.gather(*(self._payloads(shard, found) for shard, found in by_shard.items()))
        for (shard, found), known in zip(by_shard.items(), payloads, strict=True):
            for dispatch in found:
                if known is None:
                    deferred[dispatch.id] = f"The shard {shard!r} is unreachable."
                elif dispatch.tenant_job_id not in known:
                    failed[dispatch.id] = "The job no longer exists."
                else:
                    try:
                        payload = JobPayload.from_json(known[dispatch.tenant_job_id])
                        built[dispatch.id] = await self._build(dispatch, payload, pinned=pinned, ran_out=ran_out)
                    except (NotFound, GraphError, KeyError, TypeError) as error:
                        failed[dispatch.id] = f"The workflow cannot be built: {error}"
                    except (OSError, StorageUnavailable) as error:
                        deferred[dispatch.id] = f"The workflow cannot be read: {error}"
        if failed or deferred:
            await self._return_leases({dispatch.id: dispatch for dispatch in leased}, failed, deferred)
        return built

    async def _payloads(self, shard: str, found: Sequence[Dispatch]) -> dict[str, Any] | None:
        try:
            with self._databases.watched(shard):
                async with self._databases.shard(shard).read() as tx:
                    return await jobs.payloads(tx, [dispatch.tenant_job_id for dispatch in found])
        except DatabaseUnavailable:
            return None
        except Exception:
            # Defer the jobs after any error: no worker knows of these leases yet, so they would only expire.
            log.exception("lease.payloads_failed", shard=shard)
            return None

    async def _build(
        self, dispatch: Dispatch, payload: JobPayload, *, pinned: Set[int], ran_out: Mapping[tuple[int, str], int]
    ) -> LeasedDispatch:
        graph, editor = await self._fill(payload, dispatch.created_at)
        assert dispatch.lease_token is not None
        return LeasedDispatch(
            dispatch=dispatch,
            payload=payload,
            graph=graph,
            editor=editor,
            output_path=upload_path(
                tenant_id=dispatch.tenant_id,
                job_id=dispatch.tenant_job_id,
                lease_token=dispatch.lease_token,
                extension=payload.output_extension,
            ),
            keep_loaded=dispatch.workflow_id in pinned,
            ran_out_bytes=ran_out.get((dispatch.workflow_id, dispatch.workflow_hash)),
        )

    async def _fill(self, payload: JobPayload, submitted_at: datetime) -> tuple[Graph, dict[str, Any] | None]:
        stored = await self._graphs.get_stored(payload.graph_path)
        editor = await self._graphs.get_editor(payload.graph_path)

        def fill() -> tuple[Graph, dict[str, Any] | None]:
            graph = fill_file_names(replace_placeholders(stored.graph, payload.values), submitted_at)
            if editor is None:
                return graph, None
            return graph, fill_editor_file(json.loads(editor), {**payload.values, **_input_names(payload)})

        texts = sum(len(value) for value in payload.values.values() if isinstance(value, str))
        size = stored.size + len(editor or b"") + texts
        return fill() if size <= SMALL_BYTES else await asyncio.to_thread(fill)

    async def _return_leases(
        self, leased: Mapping[int, Dispatch], failed: Mapping[int, str], deferred: Mapping[int, str]
    ) -> None:
        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            if not lifecycle.holds_lease(dispatch, leased[dispatch.id].lease_token or ""):
                return None
            if dispatch.id in failed:
                return lifecycle.fail_permanently(dispatch, error=failed[dispatch.id], now=now)
            return lifecycle.defer(
                dispatch, reason=deferred[dispatch.id], now=now, base=self._deferral, longest=MAX_DEFERRAL
            )

        log.warning("lease.build_failed", failed=dict(failed), deferred=dict(deferred))
        await self._decisions.decide(TransactionStep.DEFER, [*failed, *deferred], judge, by="build")


def _input_names(payload: JobPayload) -> dict[str, str]:
    """Return the names that the user gave to input files, by placeholder."""
    return {asset.placeholder: asset.name or PurePosixPath(asset.path).name for asset in payload.assets}
