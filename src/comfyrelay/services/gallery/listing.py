"""A tenant's outputs, page by page and day by day."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from comfyrelay.domain.gallery import (
    MOST_WORDS,
    GalleryFilter,
    GallerySort,
    Glimpse,
    Grouping,
    MadeOutput,
    MarkFilter,
    OutputKind,
    Word,
    file_name,
    main_prompt,
)
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.errors import InvalidInput
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.services.paging import Listed, listed
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.catalogue import Named
from comfyrelay.store.tenant.library import gallery

# More than anybody scrolls through; older ones are found by filters.
MOST_INDEXED = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNKNOWN = Named(slug="", name="")


@dataclass(frozen=True, kw_only=True, slots=True)
class GalleryQuery:
    """What a user looks for. `first_day` and `last_day` are days of `zone`, and both count."""

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
class GalleryOutput:
    """An output as its owner sees it."""

    made: MadeOutput
    url: str
    filename: str
    workflow_slug: str
    workflow_name: str
    prompt: str | None
    seed: int | None
    poster_url: str | None
    preview_url: str | None
    collections: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPage:
    """`total` is how many fit, on all pages together."""

    listed: Listed[GalleryOutput]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputGroup:
    """Outputs that stand together. `key` tells groups apart, `name` is what people call it."""

    key: str
    name: str
    items: Sequence[Glimpse]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """`total` is how many fit; of more than MOST_INDEXED, only the first are in groups."""

    groups: Sequence[OutputGroup]
    total: int


class GalleryListing:
    def __init__(self, databases: Databases, objects: ObjectStore, media: MediaViews, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._objects = objects
        self._media = media
        self._ttl_seconds = ttl_seconds

    async def page(
        self,
        tenant_id: str,
        query: GalleryQuery,
        *,
        sort: GallerySort = GallerySort.NEWEST,
        cursor: str | None = None,
        limit: int,
    ) -> OutputPage:
        after = _place(cursor) if cursor is not None else None
        wanted = await self._filter(tenant_id, query)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.page(tx, tenant_id, wanted, sort=sort, after=after, limit=limit + 1)
            total = await gallery.count(tx, tenant_id, wanted)
        page = listed(found, _cursor, limit=limit)
        return OutputPage(listed=page.holding(await self.views(tenant_id, page.items)), total=total)

    async def days(self, tenant_id: str, query: GalleryQuery) -> list[tuple[date, int]]:
        """How many outputs were made on each day that has any, newest first."""
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
    ) -> Index:
        """The places of all that fits, by groups; a group stands where the first of its outputs does."""
        zone, wanted = _zone(query.zone), await self._filter(tenant_id, query)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.glimpses(
                tx, tenant_id, wanted, sort=sort, with_payload=by is Grouping.PROMPT, limit=MOST_INDEXED
            )
            total = len(found) if len(found) < MOST_INDEXED else await gallery.count(tx, tenant_id, wanted)
        is_named = by in (Grouping.WORKFLOW, Grouping.PROMPT)
        names = await self._names({each.workflow_id for each in found}) if is_named else {}
        # of a large gallery it takes a while, and others wait for the loop
        groups = await asyncio.to_thread(_grouped, found, partial(_group, by=by, zone=zone, names=names))
        return Index(groups=groups, total=total)

    async def by_ids(self, tenant_id: str, ids: Sequence[str]) -> dict[str, MadeOutput]:
        """Those of the outputs that are there and the tenant's own, in the order in which they are named."""
        if not ids:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.by_ids(tx, tenant_id, set(ids))
        return {each: found[each] for each in ids if each in found}

    async def names(self, found: Iterable[MadeOutput]) -> Mapping[int, Named]:
        """What the workflows are called that made them."""
        return await self._names({each.workflow_id for each in found})

    async def _names(self, ids: Collection[int]) -> Mapping[int, Named]:
        if not ids:
            return {}
        async with self._databases.central.read() as tx:
            return await catalogue.workflow_names(tx, ids)

    async def views(self, tenant_id: str, found: Sequence[MadeOutput]) -> list[GalleryOutput]:
        if not found:
            return []
        names = await self.names(found)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            collections = await gallery.collections_of(tx, [each.id for each in found])
        views = []
        for made in found:
            named, snapshot = names.get(made.workflow_id, _UNKNOWN), JobPayload.from_json(made.payload)
            filename = file_name(made, named.slug)
            url = await self._objects.sign_download(
                made.path,
                ttl_seconds=self._ttl_seconds,
                filename=filename,
                content_type=servable_content_type(made.mime_type),
            )
            poster_url, preview_url = await self._media.urls(made.path, poster=made.poster, preview=made.preview)
            views.append(
                GalleryOutput(
                    made=made,
                    url=url,
                    filename=filename,
                    workflow_slug=named.slug,
                    workflow_name=named.name,
                    prompt=main_prompt(snapshot, named.prompt),
                    seed=snapshot.seed,
                    poster_url=poster_url,
                    preview_url=preview_url,
                    collections=collections.get(made.id, ()),
                )
            )
        return views

    async def _filter(self, tenant_id: str, query: GalleryQuery) -> GalleryFilter:
        zone, words = _zone(query.zone), query.search.split()
        if len(words) > MOST_WORDS:
            raise InvalidInput(errors={"q": f"Search for {MOST_WORDS} words at most."})
        workflow_ids, named = None, [frozenset[int]()] * len(words)
        if words or query.workflow is not None:
            async with self._databases.central.read() as tx:
                if query.workflow is not None:
                    workflow_ids = await catalogue.workflows_called(tx, tenant_id, slug=query.workflow)
                named = [await catalogue.workflows_called(tx, tenant_id, part=each) for each in words]
        return GalleryFilter(
            words=tuple(Word(text=text, workflow_ids=ids) for text, ids in zip(words, named, strict=True)),
            workflow_ids=workflow_ids,
            batch_id=query.batch_id,
            kind=query.kind,
            mark=query.mark,
            collection_id=query.collection_id,
            since=_midnight(query.first_day, zone, "from"),
            until=_midnight(query.last_day, zone, "to", days=1),
        )


def _grouped(found: Sequence[Glimpse], group_of: Callable[[Glimpse], tuple[str, str]]) -> list[OutputGroup]:
    groups: dict[str, tuple[str, list[Glimpse]]] = {}
    for each in found:
        key, name = group_of(each)
        groups.setdefault(key, (name, []))[1].append(each)
    return [OutputGroup(key=key, name=name, items=items) for key, (name, items) in groups.items()]


def _group(each: Glimpse, *, by: Grouping, zone: ZoneInfo, names: Mapping[int, Named]) -> tuple[str, str]:
    """Key and name of its group; both are empty for what is in none."""
    match by:
        case Grouping.DAY:
            day = each.created_at.astimezone(zone).date().isoformat()
            return day, day
        case Grouping.BATCH:
            return each.batch_id or "", each.batch_label or ""
        case Grouping.WORKFLOW:
            named = names.get(each.workflow_id, _UNKNOWN)
            return named.slug, named.name
        case Grouping.PROMPT:
            named = names.get(each.workflow_id, _UNKNOWN)
            prompt = main_prompt(JobPayload.from_json(each.payload), named.prompt) or ""
            return prompt, prompt


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        # of a name that is a folder, one that leads elsewhere, and one that nobody knows
        raise InvalidInput(errors={"tz": f"{name!r} is no time zone; send one like Europe/Vienna, or none."}) from None


def _midnight(day: date | None, zone: ZoneInfo, field: str, *, days: int = 0) -> datetime | None:
    try:
        return None if day is None else datetime.combine(day + timedelta(days=days), time(), zone).astimezone(UTC)
    except OverflowError:
        raise InvalidInput(errors={field: "There is no such day."}) from None


def _cursor(made: MadeOutput) -> str:
    """Not the id alone: what a page ended with may be deleted before the next is asked for."""
    return f"{(made.created_at - _EPOCH) // _MICROSECOND}-{made.id}"


def _place(cursor: str) -> tuple[datetime, str]:
    moment, _, id_ = cursor.partition("-")
    try:
        if not moment.isascii() or not moment.isdigit() or not id_:
            raise ValueError(cursor)
        return _EPOCH + int(moment) * _MICROSECOND, id_
    except (OverflowError, ValueError):
        raise InvalidInput(errors={"cursor": "This is no next_cursor of a page of the gallery."}) from None
