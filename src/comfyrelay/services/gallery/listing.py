"""List a tenant's outputs by page, by day and by group."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from comfyrelay.domain.gallery import (
    GalleryFilter,
    GalleryOutput,
    GallerySort,
    GridItem,
    Grouping,
    MarkFilter,
    OutputKind,
    SearchTerm,
    file_name,
    main_prompt,
)
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.search import parse_search
from comfyrelay.errors import InvalidInput
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.catalogue import NamedWorkflow
from comfyrelay.store.tenant.library import gallery, media

# More outputs than users scroll through. Older outputs can be found with filters.
MAX_INDEXED = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNKNOWN = NamedWorkflow(slug="", name="")


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryQuery:
    """The filters of a request. `first_day` and `last_day` are inclusive, in the time zone `zone`."""

    search: str = ""
    workflow: str | None = None
    batch_id: str | None = None
    kind: OutputKind | None = None
    mark: MarkFilter | None = None
    collection_id: str | None = None
    first_day: date | None = None
    last_day: date | None = None
    zone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryOutputView:
    output: GalleryOutput
    url: str
    filename: str
    workflow_slug: str
    workflow_name: str
    has_graph: bool
    prompt: str | None
    seed: int | None
    poster_url: str | None
    preview_url: str | None
    collections: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPage:
    """A page of outputs. `total` is the number of matching outputs on all pages."""

    listed: ResultPage[GalleryOutputView]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputGroup:
    """A group of outputs. `key` identifies the group, `name` is its display name."""

    key: str
    name: str
    items: Sequence[GridItem]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputIndex:
    """All matching outputs in groups. `total` is their number; `groups` have at most the first `MAX_INDEXED`."""

    groups: Sequence[OutputGroup]
    total: int


class GalleryListing:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        media: MediaViews,
        *,
        ttl_seconds: float,
        users_are_owners: bool,
    ) -> None:
        """With `users_are_owners`, as on a desk, users may also see the graphs of effects."""
        self._databases = databases
        self._objects = objects
        self._media = media
        self._ttl_seconds = ttl_seconds
        self._users_are_owners = users_are_owners

    async def page(
        self,
        tenant_id: str,
        query: GalleryQuery,
        *,
        sort: GallerySort = GallerySort.NEWEST,
        cursor: str | None = None,
        limit: int,
    ) -> OutputPage:
        after = _parse_cursor(cursor) if cursor is not None else None
        wanted = await self._filter(tenant_id, query)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.page(tx, tenant_id, wanted, sort=sort, after=after, limit=limit + 1)
            total = await gallery.count(tx, tenant_id, wanted)
        page = make_page(found, limit=limit, key=_cursor)
        return OutputPage(listed=page.with_items(await self.views(tenant_id, page.items)), total=total)

    async def days(self, tenant_id: str, query: GalleryQuery) -> list[tuple[date, int]]:
        """Return the number of outputs per day, newest first, without empty days."""
        zone = _zone(query.zone)
        wanted = await self._filter(tenant_id, query)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            slots = await gallery.slots(tx, tenant_id, wanted)
        counts: Counter[date] = Counter()
        for slot, outputs in slots:
            counts[datetime.fromtimestamp(slot * gallery.SLOT_SECONDS, zone).date()] += outputs
        return sorted(counts.items(), reverse=True)

    async def index(
        self, tenant_id: str, query: GalleryQuery, *, by: Grouping, sort: GallerySort = GallerySort.NEWEST
    ) -> OutputIndex:
        """Return all matching outputs in groups. Groups are in the order of their first output."""
        zone, wanted = _zone(query.zone), await self._filter(tenant_id, query)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.grid_items(
                tx, tenant_id, wanted, sort=sort, with_payload=by is Grouping.PROMPT, limit=MAX_INDEXED
            )
            total = len(found) if len(found) < MAX_INDEXED else await gallery.count(tx, tenant_id, wanted)
            batch_ids = {item.batch_id for item in found if item.batch_id} if by is Grouping.BATCH else set()
            labels = {batch.id: batch.label for batch in await media.batches_of(tx, tenant_id, batch_ids)}
        is_named = by in (Grouping.WORKFLOW, Grouping.PROMPT)
        names = await self._names({item.workflow_id for item in found}) if is_named else {}
        # In a thread, because a large gallery would block the event loop.
        groups = await asyncio.to_thread(
            _group_items, found, partial(_group, by=by, zone=zone, names=names, labels=labels)
        )
        return OutputIndex(groups=groups, total=total)

    async def by_ids(self, tenant_id: str, ids: Sequence[str]) -> dict[str, GalleryOutput]:
        """Return the tenant's outputs with these ids, in this order. Unknown ids are omitted."""
        if not ids:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.by_ids(tx, tenant_id, set(ids))
        return {id_: found[id_] for id_ in ids if id_ in found}

    async def workflow_names(self, found: Iterable[GalleryOutput]) -> Mapping[int, NamedWorkflow]:
        """Return the names of the workflows of these outputs."""
        return await self._names({output.workflow_id for output in found})

    async def _names(self, ids: Collection[int]) -> Mapping[int, NamedWorkflow]:
        if not ids:
            return {}
        async with self._databases.central.read() as tx:
            return await catalogue.workflow_names(tx, ids)

    async def views(self, tenant_id: str, found: Sequence[GalleryOutput]) -> list[GalleryOutputView]:
        if not found:
            return []
        names = await self.workflow_names(found)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            collections = await gallery.collections_of(tx, [output.id for output in found])
        views = []
        for output in found:
            workflow, payload = names.get(output.workflow_id, _UNKNOWN), _payload(output.payload)
            filename = file_name(output, workflow.slug)
            url = await self._objects.sign_download(
                output.path,
                ttl_seconds=self._ttl_seconds,
                filename=filename,
                content_type=servable_content_type(output.mime_type),
            )
            poster_url, preview_url = await self._media.urls(output.path, poster=output.poster, preview=output.preview)
            views.append(
                GalleryOutputView(
                    output=output,
                    url=url,
                    filename=filename,
                    workflow_slug=workflow.slug,
                    workflow_name=workflow.name,
                    has_graph=workflow.kind == WorkflowKind.GRAPH
                    and (self._users_are_owners or workflow.tenant_id == tenant_id),
                    prompt=main_prompt(payload, workflow.prompt) if payload else None,
                    seed=payload.seed if payload else None,
                    poster_url=poster_url,
                    preview_url=preview_url,
                    collections=collections.get(output.id, ()),
                )
            )
        return views

    async def _filter(self, tenant_id: str, query: GalleryQuery) -> GalleryFilter:
        zone, words = _zone(query.zone), parse_search(query.search)
        workflow_ids, named = None, [frozenset[int]()] * len(words)
        if words or query.workflow is not None:
            async with self._databases.central.read() as tx:
                if query.workflow is not None:
                    workflow_ids = await catalogue.find_workflows(tx, tenant_id, slug=query.workflow)
                named = [await catalogue.find_workflows(tx, tenant_id, part=word.text) for word in words]
        return GalleryFilter(
            terms=tuple(
                SearchTerm(text=word.text, workflow_ids=ids, is_excluded=word.is_excluded)
                for word, ids in zip(words, named, strict=True)
            ),
            workflow_ids=workflow_ids,
            batch_id=query.batch_id,
            kind=query.kind,
            mark=query.mark,
            collection_id=query.collection_id,
            since=_midnight(query.first_day, zone, "from"),
            until=_midnight(query.last_day, zone, "to", days=1),
        )


def _group_items(found: Sequence[GridItem], group_of: Callable[[GridItem], tuple[str, str]]) -> list[OutputGroup]:
    groups: dict[str, tuple[str, list[GridItem]]] = {}
    for item in found:
        key, name = group_of(item)
        groups.setdefault(key, (name, []))[1].append(item)
    return [OutputGroup(key=key, name=name, items=items) for key, (name, items) in groups.items()]


def _group(
    item: GridItem,
    *,
    by: Grouping,
    zone: ZoneInfo,
    names: Mapping[int, NamedWorkflow],
    labels: Mapping[str, str | None],
) -> tuple[str, str]:
    """Return the key and name of the output's group. Both are empty if the output belongs to no group."""
    workflow = names.get(item.workflow_id, _UNKNOWN)
    match by:
        case Grouping.DAY:
            day = item.created_at.astimezone(zone).date().isoformat()
            return day, day
        case Grouping.BATCH:
            batch_id = item.batch_id or ""
            return batch_id, labels.get(batch_id) or ""
        case Grouping.WORKFLOW:
            return workflow.slug, workflow.name
        case Grouping.PROMPT:
            payload = _payload(item.payload)
            prompt = (main_prompt(payload, workflow.prompt) if payload else None) or ""
            return prompt, prompt


def _payload(fields: Mapping[str, Any] | None) -> JobPayload | None:
    """Return a payload; `None` if it was too long to read."""
    return None if fields is None else JobPayload.from_json(fields)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        # The name is a folder, a path outside the database, or unknown.
        raise InvalidInput(errors={"tz": f"{name!r} is not a time zone. Send a name like Europe/Vienna."}) from None


def _midnight(day: date | None, zone: ZoneInfo, field: str, *, days: int = 0) -> datetime | None:
    try:
        return None if day is None else datetime.combine(day + timedelta(days=days), time(), zone).astimezone(UTC)
    except OverflowError:
        raise InvalidInput(errors={field: "There is no such day."}) from None


def _cursor(output: GalleryOutput) -> str:
    """Return the time and id of an output. The output may be deleted before the next page is requested."""
    return f"{(output.created_at - _EPOCH) // _MICROSECOND}-{output.id}"


def _parse_cursor(cursor: str) -> tuple[datetime, str]:
    moment, _, id_ = cursor.partition("-")
    try:
        if not moment.isascii() or not moment.isdigit() or not id_:
            raise ValueError(cursor)
        return _EPOCH + int(moment) * _MICROSECOND, id_
    except (OverflowError, ValueError):
        raise InvalidInput(errors={"cursor": "This is not a `next_cursor` of the gallery."}) from None
