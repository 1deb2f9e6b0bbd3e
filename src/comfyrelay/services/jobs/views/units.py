"""The queue as a list of units (batches and single jobs): running, waiting in order, and ended."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus, UnitStatus, finished_status
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord, Unit
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.protocol.jobs import QueueEntry, QueueItem
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches, BatchState
from comfyrelay.services.jobs.views.jobs import find_workflow_ids
from comfyrelay.services.jobs.views.media import MediaViews, ShownMedia
from comfyrelay.services.jobs.views.overview import JOB_STATUS
from comfyrelay.services.paging import Listed, listed
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import durations
from comfyrelay.store.tenant import jobs, overview, units
from comfyrelay.store.tenant.jobs import StatusFilter
from comfyrelay.store.tenant.library import media
from comfyrelay.store.tenant.units import BatchItem, BatchSummary

# Items of a batch in the list; the rest is paged.
MAX_ITEMS = 60
# A page reads at most MAX_ROUNDS chunks of candidates. With a rare filter it may be short or empty.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _QueueOrder:
    """Order and status of units that have not ended."""

    running: Sequence[Unit]
    waiting: Sequence[Unit]
    # units with at least one queued or paused job
    queued: frozenset[Unit]
    paused: frozenset[Unit]
    # by job, how long it has been running
    seconds: Mapping[str, float]
    # jobs that workers have leased to run next, with their units
    fetched: Mapping[str, Unit]

    def status_of(self, unit: Unit) -> UnitStatus:
        if unit in self.running:
            return UnitStatus.RUNNING
        return UnitStatus.PAUSED if unit in self.paused and unit not in self.queued else UnitStatus.WAITING

    def fetched_of(self, unit: Unit, counts: Mapping[str, int]) -> int:
        return min(sum(each == unit for each in self.fetched.values()), counts.get(JobStatus.PROCESSING, 0))

    def adjust_counts(self, unit: Unit, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts in which fetched jobs are queued."""
        moved = self.fetched_of(unit, counts)
        if not moved:
            return dict(counts)
        return {
            **counts,
            JobStatus.PROCESSING: counts[JobStatus.PROCESSING] - moved,
            JobStatus.QUEUED: counts.get(JobStatus.QUEUED, 0) + moved,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _UnitRows:
    """The rows for the entries of some units, by the id of the batch or job."""

    states: Mapping[str, BatchState]
    summaries: Mapping[str, BatchSummary]
    singles: Mapping[str, JobRecord]
    errors: Mapping[str, str | None]
    items: Mapping[str, Sequence[BatchItem]]
    retries: Mapping[str, str]
    workflows: Mapping[int, WorkflowRecord]
    # by workflow and effect
    means: Mapping[tuple[int, int], float]
    reasons: Mapping[str, Waiting]
    # `None` if the counts of the batches are enough
    matched: Mapping[str, int] | None
    # by file
    media: Mapping[str, ShownMedia]

    def mean(self, workflow_id: int, effect_id: int | None) -> float | None:
        means = self.means
        return means.get((workflow_id, effect_id or durations.ALL), means.get((workflow_id, durations.ALL)))


class QueueUnits:
    def __init__(self, databases: Databases, batches: Batches, waiting: WaitReasons, media_views: MediaViews) -> None:
        self._databases = databases
        self._batches = batches
        self._waiting = waiting
        self._media = media_views

    async def page(
        self,
        tenant_id: str,
        wanted: UnitFilter,
        *,
        sort: QueueSort = QueueSort.QUEUE,
        cursor: str | None = None,
        limit: int,
    ) -> Listed[QueueEntry]:
        """`cursor` names the section in which the previous page ended, and its last unit."""
        among = await self._matching(tenant_id, wanted)
        active, order = await self._order(tenant_id)
        found: list[QueueEntry] = []
        section, after = _parse_cursor(cursor)
        if sort is QueueSort.QUEUE and section != "ended":
            line = [each for each in (*order.running, *order.waiting) if among is None or each in among]
            line = await self._with_status(tenant_id, line, order, wanted.status)
            begin = _start_index(line, after)
            line = line[begin:]
            found = await self._views(tenant_id, line[: limit + 1], order, wanted)
            if len(line) > limit:
                return Listed(items=found[:limit], next_cursor=f"line_{begin + limit}_{line[limit - 1].id}")
            after = None
        rest, last = await self._by_id(
            tenant_id, wanted, among, order, active, sort=sort, after=after, limit=limit - len(found)
        )
        return Listed(items=[*found, *rest], next_cursor=None if last is None else f"ended_{last}")

    async def items(
        self, tenant_id: str, batch_id: str, *, status: JobStatus | None, after: int | None, limit: int
    ) -> Listed[QueueItem]:
        """The items of a batch in order, each as its newest attempt."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            if await media.batch(tx, tenant_id, id_=batch_id) is None:
                raise NotFound(f"There is no batch {batch_id!r}.")
            since = -1 if after is None else after
            found = await units.items(tx, tenant_id, batch_id, status=status, after=since, limit=limit + 1)
        page = listed(found, lambda each: each.item_no, limit=limit)
        facts = await self._load_media(tenant_id, page.items)
        async with self._databases.central.read() as tx:
            fetched = {
                each.job_id for each in (await overview.leased(tx, [tenant_id]))[tenant_id] if each.is_prefetched
            }
        return page.holding([_item(item, facts, fetched) for item in page.items])

    async def _matching(self, tenant_id: str, wanted: UnitFilter) -> set[Unit] | None:
        """Units that match workflow and search; `None` if all do."""
        if wanted.workflow is None and not wanted.search:
            return None
        workflow_ids = await find_workflow_ids(self._databases, tenant_id, wanted.workflow)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.matching(tx, tenant_id, workflow_ids=workflow_ids, search=wanted.search)

    async def _with_status(
        self, tenant_id: str, line: list[Unit], order: _QueueOrder, status: UnitStatus | None
    ) -> list[Unit]:
        """Active units with a job of this status."""
        match status:
            case None:
                return line
            case UnitStatus.RUNNING:
                return [each for each in line if each in order.running]
            case UnitStatus.WAITING:
                return [each for each in line if each in order.queued]
            case UnitStatus.PAUSED:
                return [each for each in line if each in order.paused]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            counts = await jobs.count_in_batches(tx, tenant_id, [each.id for each in line if each.is_batch])
        return [each for each in line if counts.get(each.id, {}).get(status)]

    async def _order(self, tenant_id: str) -> tuple[set[Unit], _QueueOrder]:
        # the shard last: a unit that ends in between then appears only among the ended ones
        async with self._databases.central.read() as tx:
            leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
            line = await units.in_line(tx, tenant_id)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            active = await units.active(tx, tenant_id)
        running = [unit for unit in _unique(job.unit for job in leased if not job.is_prefetched) if unit in active]
        # last, units that were accepted just now and are not in the queue yet
        known = [*(each.unit for each in leased), *(each.unit for each in line), *sorted(active)]
        runs, paused = set(running), frozenset(each.unit for each in line if each.is_paused)
        queued = {each.unit for each in line if each.is_queued}
        fetched = {each.job_id: each.unit for each in leased if each.is_prefetched}
        waiting = [each for each in _unique(known) if each in active and each not in runs]
        # units that are not in the queue yet have no paused jobs
        queued |= set(fetched.values()) | {each for each in waiting if each not in paused}
        return active, _QueueOrder(
            running=running,
            waiting=waiting,
            queued=frozenset(queued),
            paused=paused,
            seconds={each.job_id: each.seconds for each in leased},
            fetched=fetched,
        )

    async def _by_id(
        self,
        tenant_id: str,
        wanted: UnitFilter,
        among: set[Unit] | None,
        order: _QueueOrder,
        active: set[Unit],
        *,
        sort: QueueSort,
        after: str | None,
        limit: int,
    ) -> tuple[list[QueueEntry], str | None]:
        """Units by creation time, and the last one read if there may be more."""
        only_ended = sort is QueueSort.QUEUE
        if limit == 0:
            # the ended units start on the next page
            return [], ""
        found: list[QueueEntry] = []
        for _ in range(MAX_ROUNDS):
            seen = await self._candidates(
                tenant_id, among, after=after, oldest_first=sort is QueueSort.OLDEST, only_ended=only_ended
            )
            chosen = [unit for unit in seen if not (only_ended and unit in active)]
            # one unit more than fits shows whether there are more
            for start in range(0, len(chosen), limit + 1):
                part = chosen[start : start + limit + 1]
                for view in await self._views(tenant_id, part, order, wanted, active=active):
                    if not view.matched:
                        continue
                    if len(found) == limit:
                        return found, found[-1].id
                    found.append(view)
            if len(seen) < CHUNK_SIZE:
                return found, None
            after = seen[-1].id
        return found, after

    async def _candidates(
        self, tenant_id: str, among: set[Unit] | None, *, after: str | None, oldest_first: bool, only_ended: bool
    ) -> list[Unit]:
        after = after or None
        if among is not None:
            ordered = sorted(among, reverse=not oldest_first)
            later = [
                each for each in ordered if after is None or (each.id > after if oldest_first else each.id < after)
            ]
            return later[:CHUNK_SIZE]
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.page(
                tx, tenant_id, after_id=after, oldest_first=oldest_first, only_ended=only_ended, limit=CHUNK_SIZE
            )

    async def _views(
        self,
        tenant_id: str,
        chosen: Sequence[Unit],
        order: _QueueOrder,
        wanted: UnitFilter,
        *,
        active: set[Unit] | None = None,
    ) -> list[QueueEntry]:
        """Views of the units that still exist. Without `active`, all of them are active."""
        found = await self._load(tenant_id, chosen, order, wanted, active=active)
        views = []
        for unit in chosen:
            status = None if active is not None and unit not in active else order.status_of(unit)
            if unit.id in found.states and unit.id in found.summaries:
                views.append(_batch_entry(unit, status, found, order, wanted))
            elif unit.id in found.singles:
                views.append(_job_entry(unit, status, found, order, wanted))
        return views

    async def _load(
        self,
        tenant_id: str,
        chosen: Sequence[Unit],
        order: _QueueOrder,
        wanted: UnitFilter,
        *,
        active: set[Unit] | None,
    ) -> _UnitRows:
        batch_ids = [each.id for each in chosen if each.is_batch]
        states = {each.id: each for each in await self._batches.states(tenant_id, batch_ids) if each.total}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            singles = {job.id: job for job in await jobs.by_ids(tx, [unit.id for unit in chosen if not unit.is_batch])}
            summaries = await units.summaries(tx, tenant_id, batch_ids) if batch_ids else {}
            broken = [id_ for id_, state in states.items() if state.counts.get(JobStatus.FAILED)]
            errors = await units.newest_errors(tx, tenant_id, broken) if broken else {}
            items = await units.first_items(tx, tenant_id, batch_ids, most=MAX_ITEMS) if batch_ids else []
            retries = await jobs.retries_of(tx, singles) if singles else {}
        of_batch: dict[str, list[BatchItem]] = {}
        for item in items:
            of_batch.setdefault(item.batch_id, []).append(item)
        workflow_ids = {single.workflow_id for single in singles.values()}
        workflow_ids |= {summary.workflow_id for summary in summaries.values()}
        async with self._databases.central.read() as tx:
            workflows = await catalogue.workflows_ever(tx, workflow_ids)
            learnt = await durations.known(tx, workflow_ids)
        return _UnitRows(
            states=states,
            summaries=summaries,
            singles=singles,
            errors=errors,
            items=of_batch,
            retries=retries,
            workflows=workflows,
            means={key: each.mean_seconds for key, each in learnt.items()},
            reasons=await self._wait_reasons(tenant_id, chosen, order, active=active, singles=singles),
            matched=await self._matched(tenant_id, batch_ids, wanted, order),
            media=await self._load_media(tenant_id, [*items, *singles.values()]),
        )

    async def _load_media(self, tenant_id: str, found: Iterable[BatchItem | JobRecord]) -> dict[str, ShownMedia]:
        named = {file_id for item in found for file_id in (item.input_file_id, item.output_file_id) if file_id}
        return await self._media.view_files(tenant_id, named)

    async def _wait_reasons(
        self,
        tenant_id: str,
        chosen: Sequence[Unit],
        order: _QueueOrder,
        *,
        active: set[Unit] | None,
        singles: Mapping[str, JobRecord],
    ) -> dict[str, Waiting]:
        """Wait reasons of waiting units. A batch has that of its first queued job."""
        waiting = [each for each in chosen if active is None or each in active]
        waiting = [each for each in waiting if order.status_of(each) is UnitStatus.WAITING]
        batch_ids = [each.id for each in waiting if each.is_batch]
        first = {each.id: each.id for each in waiting if each.id in singles}
        if batch_ids:
            async with (await self._databases.shard_of(tenant_id)).read() as tx:
                first |= await units.first_queued(tx, tenant_id, batch_ids)
        found = await self._waiting.of_jobs(tenant_id, first.values())
        reasons = {unit_id: found[job_id] for unit_id, job_id in first.items() if job_id in found}
        return {id_: why for id_, why in reasons.items() if why.reason is not Reason.NOT_WAITING}

    async def _matched(
        self, tenant_id: str, batch_ids: Sequence[str], wanted: UnitFilter, order: _QueueOrder
    ) -> dict[str, int] | None:
        """By batch, the number of matching jobs; `None` if its counts are enough."""
        if not batch_ids or (wanted.workflow is None and not wanted.search):
            return None
        workflow_ids = await find_workflow_ids(self._databases, tenant_id, wanted.workflow)
        status = wanted.status
        meant = None if status is None else StatusFilter(JOB_STATUS.get(status, status), list(order.fetched))
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await units.counts_found(
                tx, tenant_id, batch_ids, status_filter=meant, workflow_ids=workflow_ids, search=wanted.search
            )


def _count_matching(counts: Mapping[str, int], status: UnitStatus | None) -> int:
    return sum(counts.values()) if status is None else counts.get(JOB_STATUS.get(status, status), 0)


def _parse_cursor(cursor: str | None) -> tuple[str, str | None]:
    if cursor is None:
        return "line", None
    section, _, after = cursor.partition("_")
    if section not in {"line", "ended"} or (section == "line" and not after.partition("_")[0].isdecimal()):
        raise InvalidInput(
            errors={"cursor": "This is not a cursor of this list: send `next_cursor` of the previous page."}
        )
    return section, after or None


def _start_index(line: Sequence[Unit], after: str | None) -> int:
    """Index after `after`, a position and the id of the unit there. If the unit has left the queue, step back by one:
    better show a unit twice than skip one."""
    if after is None:
        return 0
    place, _, id_ = after.partition("_")
    places = {each.id: number for number, each in enumerate(line, start=1)}
    return places.get(id_, max(0, min(int(place), len(line)) - 1))


def _unique(found: Iterable[Unit]) -> list[Unit]:
    return list(dict.fromkeys(found))


def _item(item: BatchItem | JobRecord, facts: Mapping[str, ShownMedia], fetched: Container[str]) -> QueueItem:
    """A job that a worker has only fetched is shown as queued."""
    output, source = facts.get(item.output_file_id or ""), facts.get(item.input_file_id or "")
    is_fetched = item.status == JobStatus.PROCESSING and item.id in fetched
    return QueueItem(
        id=item.id,
        item_no=item.item_no,
        status=JobStatus.QUEUED if is_fetched else item.status,
        poster_url=output.poster_url if output else None,
        preview_url=output.preview_url if output else None,
        input_poster_url=source.poster_url if source else None,
    )


def _kind(workflow: WorkflowRecord | None) -> str | None:
    return workflow.output_mime_type.partition("/")[0] if workflow is not None else None


def _batch_entry(
    unit: Unit, status: UnitStatus | None, found: _UnitRows, order: _QueueOrder, wanted: UnitFilter
) -> QueueEntry:
    """`status` is `None` if the batch has ended."""
    state, summary, items = found.states[unit.id], found.summaries[unit.id], found.items.get(unit.id, ())
    workflow, waiting = found.workflows.get(summary.workflow_id), found.reasons.get(unit.id)
    counts = order.adjust_counts(unit, state.counts)
    left = state.counts.get(JobStatus.QUEUED, 0) + state.counts.get(JobStatus.PROCESSING, 0)
    mean, expected = found.mean(summary.workflow_id, summary.effect_id), state.expected_seconds
    return QueueEntry(
        id=state.id,
        is_batch=True,
        label=state.label,
        first_label=next((item.label for item in items), None),
        workflow_slug=workflow.slug if workflow else None,
        workflow_name=workflow.name if workflow else None,
        kind=_kind(workflow),
        status=status or finished_status(state.counts),
        total=state.total,
        matched=found.matched.get(unit.id, 0) if found.matched is not None else _count_matching(counts, wanted.status),
        counts={each: counts.get(each, 0) for each in JobStatus},
        fetched=order.fetched_of(unit, state.counts),
        held=state.held,
        expected_seconds=mean * left if expected is None and mean is not None and left else expected,
        starts_in_seconds=waiting.expected_start_seconds if waiting else None,
        waiting_text=waiting.text if waiting else None,
        waiting_reason=waiting.reason if waiting else None,
        priority=summary.priority,
        created_at=state.created_at,
        ended_at=summary.ended_at if status is None else None,
        error=found.errors.get(unit.id),
        retried_as=None,
        items=[_item(each, found.media, order.fetched) for each in items],
        next_cursor=str(MAX_ITEMS - 1) if state.total > len(items) else None,
    )


def _job_entry(
    unit: Unit, status: UnitStatus | None, found: _UnitRows, order: _QueueOrder, wanted: UnitFilter
) -> QueueEntry:
    """`status` is `None` if the job has ended."""
    job, waiting = found.singles[unit.id], found.reasons.get(unit.id)
    workflow = found.workflows.get(job.workflow_id)
    counts = order.adjust_counts(unit, {job.status: 1})
    seconds, mean = order.seconds.get(job.id), found.mean(job.workflow_id, job.effect_id)
    has_ended = job.status in TERMINAL_JOB
    return QueueEntry(
        id=job.id,
        is_batch=False,
        label=job.label,
        first_label=None,
        workflow_slug=workflow.slug if workflow else None,
        workflow_name=workflow.name if workflow else None,
        kind=_kind(workflow),
        status=status if status is not None and not has_ended else finished_status({job.status: 1}),
        total=1,
        matched=_count_matching(counts, wanted.status),
        counts={each: counts.get(each, 0) for each in JobStatus},
        fetched=order.fetched_of(unit, {job.status: 1}),
        held=None,
        expected_seconds=None if has_ended or mean is None else max(0.0, mean - (seconds or 0.0)),
        starts_in_seconds=waiting.expected_start_seconds if waiting else None,
        waiting_text=waiting.text if waiting else None,
        waiting_reason=waiting.reason if waiting else None,
        priority=job.priority,
        created_at=job.created_at,
        ended_at=job.completed_at,
        error=job.error_message,
        retried_as=found.retries.get(job.id),
        items=[_item(job, found.media, order.fetched)],
        next_cursor=None,
    )
