"""The queue as a list of units (batches and single jobs): running, waiting in order, then ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from comfyrelay.domain.queue.customer_texts import waiting_for_customer
from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.jobs import JobRecord, Unit
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.jobs import QueueEntry, QueueItem
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.views.jobs import JobViews, find_workflow_ids
from comfyrelay.services.jobs.views.media import MediaViews, ShownMedia
from comfyrelay.services.jobs.views.overview import JOB_STATUS
from comfyrelay.services.jobs.views.queue_entries import (
    MAX_ITEMS,
    QueueOrder,
    UnitRows,
    batch_entry,
    job_entry,
    queue_item,
)
from comfyrelay.services.paging import ResultPage, chunks, make_page
from comfyrelay.services.queue.control import require_batch
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.queue import positions
from comfyrelay.store.tenant import jobs, overview, units
from comfyrelay.store.tenant.job_list import StatusFilter
from comfyrelay.store.tenant.units import BatchItem, BatchSummary

# A page reads at most MAX_ROUNDS chunks of candidates. With a rare filter, it may be short or empty.
CHUNK_SIZE = 200
MAX_ROUNDS = 10


class QueueSort(StrEnum):
    """`queue`: running units, waiting units in order, then ended units, newest first."""

    QUEUE = "queue"
    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitFilter:
    status: UnitStatus | None = None
    workflow: str | None = None
    search: str | None = None


class QueueUnits:
    def __init__(
        self,
        databases: Databases,
        batches: Batches,
        wait_reasons: WaitReasons,
        media_views: MediaViews,
        job_views: JobViews,
    ) -> None:
        self._databases = databases
        self._batches = batches
        self._wait_reasons = wait_reasons
        self._media = media_views
        self._is_of_customer = job_views.is_of_customer

    async def page(
        self,
        tenant_id: str,
        wanted: UnitFilter,
        *,
        sort: QueueSort = QueueSort.QUEUE,
        cursor: str | None = None,
        limit: int,
    ) -> ResultPage[QueueEntry]:
        """Return a page of units. `cursor` names the section in which the previous page ended, and its last unit."""
        among = await self._matching(tenant_id, wanted)
        order = await self._order(tenant_id)
        found: list[QueueEntry] = []
        section, after = _parse_cursor(cursor)
        if sort is QueueSort.QUEUE and section != "ended":
            line = [unit for unit in (*order.running, *order.waiting) if among is None or unit in among]
            line = await self._filter_by_status(tenant_id, line, order, wanted.status)
            begin = _start_index(line, after)
            line = line[begin:]
            found = await self._views(tenant_id, line[: limit + 1], order, wanted)
            if len(line) > limit:
                return ResultPage(items=found[:limit], next_cursor=f"line_{begin + limit}_{line[limit - 1].id}")
            after = None
        rest, last = await self._entries_by_creation(
            tenant_id, wanted, among, order, sort=sort, after=after, limit=limit - len(found)
        )
        return ResultPage(items=[*found, *rest], next_cursor=None if last is None else f"ended_{last}")

    async def items(
        self, tenant_id: str, batch_id: str, *, status: JobStatus | None, after: int | None, limit: int
    ) -> ResultPage[QueueItem]:
        """Return the items of a batch in order, each as its newest attempt."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            await require_batch(tx, tenant_id, batch_id)
            start = -1 if after is None else after
            found = await units.items(tx, tenant_id, batch_id, status=status, after=start, limit=limit + 1)
        page = make_page(found, limit=limit, key=lambda item: item.item_no)
        facts = await self._load_media(tenant_id, page.items)
        async with self._databases.central.read() as tx:
            leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
        fetched = {item.job_id for item in leased if item.is_prefetched}
        return page.with_items([queue_item(item, facts, fetched) for item in page.items])

    async def _matching(self, tenant_id: str, wanted: UnitFilter) -> set[Unit] | None:
        """Find units that match workflow and search; return `None` if there is no such filter."""
        if wanted.workflow is None and not wanted.search:
            return None
        workflow_ids = await find_workflow_ids(self._databases, tenant_id, wanted.workflow)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.matching(tx, tenant_id, workflow_ids=workflow_ids, search=wanted.search)

    async def _filter_by_status(
        self, tenant_id: str, line: list[Unit], order: QueueOrder, status: UnitStatus | None
    ) -> list[Unit]:
        """Return the active units that have a job with this status."""
        match status:
            case None:
                return line
            case UnitStatus.RUNNING:
                return [unit for unit in line if unit in order.running]
            case UnitStatus.WAITING:
                return [unit for unit in line if unit in order.queued]
            case UnitStatus.PAUSED:
                return [unit for unit in line if unit in order.paused]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            counts = await jobs.count_in_batches(tx, tenant_id, [unit.id for unit in line if unit.is_batch])
        return [unit for unit in line if counts.get(unit.id, {}).get(status)]

    async def _order(self, tenant_id: str) -> QueueOrder:
        # Read the shard last. A unit that ends in between then appears only among the ended units.
        async with self._databases.central.read() as tx:
            leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
            line = await units.waiting(tx, tenant_id)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            active = await units.active(tx, tenant_id)
        running = dict.fromkeys(item.unit for item in leased if not item.is_prefetched and item.unit in active)
        # The active units come last: some have just been accepted and are not in the queue yet.
        known = [*(item.unit for item in leased), *(place.unit for place in line), *sorted(active)]
        paused = frozenset(place.unit for place in line if place.is_paused)
        queued = {place.unit for place in line if place.is_queued}
        fetched = {item.job_id: item.unit for item in leased if item.is_prefetched}
        waiting = [unit for unit in dict.fromkeys(known) if unit in active and unit not in running]
        # Units that are not in the queue yet have no paused jobs.
        queued.update(fetched.values(), (unit for unit in waiting if unit not in paused))
        return QueueOrder(
            active=active,
            running=list(running),
            waiting=waiting,
            queued=frozenset(queued),
            paused=paused,
            seconds={item.job_id: item.seconds for item in leased},
            fetched=fetched,
        )

    async def _entries_by_creation(
        self,
        tenant_id: str,
        wanted: UnitFilter,
        among: set[Unit] | None,
        order: QueueOrder,
        *,
        sort: QueueSort,
        after: str | None,
        limit: int,
    ) -> tuple[list[QueueEntry], str | None]:
        """Return entries of units by creation time, and the last unit read if there may be more."""
        only_ended = sort is QueueSort.QUEUE
        if limit == 0:
            # Ended units start on the next page.
            return [], ""
        found: list[QueueEntry] = []
        for _ in range(MAX_ROUNDS):
            candidates = await self._candidates(
                tenant_id, among, after=after, oldest_first=sort is QueueSort.OLDEST, only_ended=only_ended
            )
            chosen = [unit for unit in candidates if not (only_ended and unit in order.active)]
            # One unit more than fits is read, to find out whether there are more.
            for chunk in chunks(chosen, limit + 1):
                for view in await self._views(tenant_id, chunk, order, wanted):
                    if not view.matched:
                        continue
                    if len(found) == limit:
                        return found, found[-1].id
                    found.append(view)
            if len(candidates) < CHUNK_SIZE:
                return found, None
            after = candidates[-1].id
        return found, after

    async def _candidates(
        self, tenant_id: str, among: set[Unit] | None, *, after: str | None, oldest_first: bool, only_ended: bool
    ) -> list[Unit]:
        after = after or None
        if among is not None:
            ordered = sorted(among, reverse=not oldest_first)
            if after is not None:
                ordered = [unit for unit in ordered if (unit.id > after if oldest_first else unit.id < after)]
            return ordered[:CHUNK_SIZE]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.page(
                tx, tenant_id, after_id=after, oldest_first=oldest_first, only_ended=only_ended, limit=CHUNK_SIZE
            )

    async def _views(
        self, tenant_id: str, chosen: Sequence[Unit], order: QueueOrder, wanted: UnitFilter
    ) -> list[QueueEntry]:
        """Return the entries of the units that still exist."""
        rows = await self._load(tenant_id, chosen, order, wanted)
        views = []
        for unit in chosen:
            if unit.id in rows.states and unit.id in rows.summaries:
                views.append(batch_entry(unit, rows, order, wanted.status))
            elif unit.id in rows.singles:
                views.append(job_entry(unit, rows, order, wanted.status))
        return views

    async def _load(self, tenant_id: str, chosen: Sequence[Unit], order: QueueOrder, wanted: UnitFilter) -> UnitRows:
        batch_ids = [unit.id for unit in chosen if unit.is_batch]
        states = {state.id: state for state in await self._batches.states(tenant_id, batch_ids) if state.total}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            singles = {job.id: job for job in await jobs.by_ids(tx, [unit.id for unit in chosen if not unit.is_batch])}
            summaries = await units.summaries(tx, tenant_id, batch_ids) if batch_ids else {}
            failed = [id_ for id_, state in states.items() if state.counts.get(JobStatus.FAILED)]
            errors = await units.newest_errors(tx, tenant_id, failed) if failed else {}
            items = await units.first_items(tx, tenant_id, batch_ids, limit=MAX_ITEMS) if batch_ids else []
            retries = await jobs.retries_of(tx, singles) if singles else {}
        of_batch: dict[str, list[BatchItem]] = {}
        for item in items:
            of_batch.setdefault(item.batch_id, []).append(item)
        workflow_ids = {single.workflow_id for single in singles.values()}
        workflow_ids |= {summary.workflow_id for summary in summaries.values()}
        async with self._databases.central.read() as tx:
            workflows = await catalogue.workflows_by_id(tx, workflow_ids)
            means = await positions.mean_durations(tx, workflow_ids)
        return UnitRows(
            states=states,
            summaries=summaries,
            singles=singles,
            errors=errors,
            items=of_batch,
            retries=retries,
            workflows=workflows,
            means=means,
            reasons=self._for_customers(
                await self._find_reasons(tenant_id, chosen, order, singles), singles, summaries
            ),
            matched=await self._count_matches(tenant_id, batch_ids, wanted, order),
            media=await self._load_media(tenant_id, [*items, *singles.values()]),
        )

    async def _load_media(self, tenant_id: str, found: Iterable[BatchItem | JobRecord]) -> dict[str, ShownMedia]:
        named = {file_id for item in found for file_id in (item.input_file_id, item.output_file_id) if file_id}
        return await self._media.view_files(tenant_id, named)

    async def _find_reasons(
        self, tenant_id: str, chosen: Sequence[Unit], order: QueueOrder, singles: Mapping[str, JobRecord]
    ) -> dict[str, Waiting]:
        """Return the wait reasons of waiting units. A batch has the wait reason of its first queued job."""
        waiting = [unit for unit in chosen if order.status_of(unit) is UnitStatus.WAITING]
        batch_ids = [unit.id for unit in waiting if unit.is_batch]
        first = {unit.id: unit.id for unit in waiting if unit.id in singles}
        if batch_ids:
            async with (await self._databases.shard_of(tenant_id)).read() as tx:
                first |= await units.first_queued(tx, tenant_id, batch_ids)
        found = await self._wait_reasons.of_jobs(tenant_id, first.values())
        reasons = {unit_id: found[job_id] for unit_id, job_id in first.items() if job_id in found}
        return {id_: waiting for id_, waiting in reasons.items() if waiting.reason is not Reason.NOT_WAITING}

    def _for_customers(
        self, reasons: Mapping[str, Waiting], singles: Mapping[str, JobRecord], summaries: Mapping[str, BatchSummary]
    ) -> dict[str, Waiting]:
        """Return the wait reasons. The reasons for jobs of effects are worded for customers."""
        of_effects = {id_ for id_, job in singles.items() if self._is_of_customer(job.effect_id)}
        of_effects |= {id_ for id_, batch in summaries.items() if self._is_of_customer(batch.effect_id)}
        return {id_: _add_position(found) if id_ in of_effects else found for id_, found in reasons.items()}

    async def _count_matches(
        self, tenant_id: str, batch_ids: Sequence[str], wanted: UnitFilter, order: QueueOrder
    ) -> dict[str, int] | None:
        """Return the number of matching jobs by batch; `None` if the counts of the batches are enough."""
        if not batch_ids or (wanted.workflow is None and not wanted.search):
            return None
        workflow_ids = await find_workflow_ids(self._databases, tenant_id, wanted.workflow)
        status = wanted.status
        filter_ = None if status is None else StatusFilter(JOB_STATUS.get(status, status), list(order.fetched))
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.count_matching(
                tx, tenant_id, batch_ids, status_filter=filter_, workflow_ids=workflow_ids, search=wanted.search
            )


def _add_position(waiting: Waiting) -> Waiting:
    shown = waiting_for_customer(waiting)
    return shown if shown.position is None else replace(shown, text=f"Position {shown.position}. {shown.text}")


def _parse_cursor(cursor: str | None) -> tuple[str, str | None]:
    if cursor is None:
        return "line", None
    section, _, after = cursor.partition("_")
    if section not in {"line", "ended"} or (section == "line" and not after.partition("_")[0].isdecimal()):
        raise InvalidInput(
            errors={"cursor": "This is not a cursor of this list. Send the `next_cursor` of the previous page."}
        )
    return section, after or None


def _start_index(line: Sequence[Unit], after: str | None) -> int:
    """Return the index after `after`, which contains a position and the id of the unit at that position.

    If the unit has left the queue, step back by one, because showing a unit twice is better than skipping one.
    """
    if after is None:
        return 0
    place, _, id_ = after.partition("_")
    places = {unit.id: number for number, unit in enumerate(line, start=1)}
    return places.get(id_, max(0, min(int(place), len(line)) - 1))
