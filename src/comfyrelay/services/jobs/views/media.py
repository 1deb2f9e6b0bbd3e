"""Views of files with the URLs of their posters and previews, and the recent outputs of workflows."""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from comfyrelay.domain.ids import poster_path, preview_path
from comfyrelay.domain.queue.wait_reasons import DurationEstimate, pace_of
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.media_types import guess_media_type
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.databases import Databases
from comfyrelay.store.tenant import job_list
from comfyrelay.store.tenant.library import media

# A gallery page needs two URLs per file and is loaded often.
MAX_CACHED_URLS = 20_000
# Covers and durations of workflows are taken from this many of the newest outputs.
MAX_RECENT_OUTPUTS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownMedia:
    file: FileRecord
    poster_url: str | None
    preview_url: str | None


class MediaViews:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._objects = context.objects
        self._ttl_seconds = context.settings.presigned_ttl_seconds
        # URLs by path. They are reused because browsers cache an image only while its URL stays the same.
        self._urls: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def view_files(self, tenant_id: str, file_ids: Iterable[str]) -> dict[str, ShownMedia]:
        """Return views of the tenant's files by id. Unknown ids are omitted."""
        wanted = list(file_ids)
        if not wanted:
            return {}
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.files_of(tx, tenant_id, wanted)
        return {file.id: await self.view_file(file) for file in found.values()}

    async def view_file(self, file: FileRecord) -> ShownMedia:
        poster_url, preview_url = await self.urls(file.path, poster=file.poster, preview=file.preview)
        return ShownMedia(file=file, poster_url=poster_url, preview_url=preview_url)

    async def urls(self, path: str, *, poster: str | None, preview: str | None) -> tuple[str | None, str | None]:
        """Return the URLs of the poster and the preview of a file, given their formats."""
        return (
            await self._url(poster_path(path, poster)) if poster else None,
            await self._url(preview_path(path, preview)) if preview else None,
        )

    async def _url(self, path: str) -> str:
        """Sign a URL, or reuse one for up to half of its lifetime."""
        now = time.monotonic()
        url, fresh_until = self._urls.get(path, ("", 0.0))
        if not url or now >= fresh_until:
            url = await self._objects.sign_download(
                path, ttl_seconds=self._ttl_seconds, content_type=guess_media_type(path)
            )
            self._urls[path] = (url, now + self._ttl_seconds / 2)
        self._urls.move_to_end(path)
        while len(self._urls) > MAX_CACHED_URLS:
            self._urls.popitem(last=False)
        return url


@dataclass(frozen=True, kw_only=True, slots=True)
class Covers:
    """Image URLs by effect and by workflow."""

    effects: Mapping[int, str]
    workflows: Mapping[int, str]


class RecentOutputs:
    def __init__(self, databases: Databases, media: MediaViews) -> None:
        self._databases = databases
        self._media = media

    async def covers(self, tenant_id: str) -> Covers:
        """Return the poster of a recent output for each effect and workflow."""
        newest: dict[tuple[str, int], list[str]] = {}
        for output in await self._outputs(tenant_id):
            if output.output_file_id is not None:
                key = ("workflow", output.workflow_id) if output.effect_id is None else ("effect", output.effect_id)
                newest.setdefault(key, []).append(output.output_file_id)
        # The newest outputs may have no poster yet.
        candidates = {key: ids[:3] for key, ids in newest.items()}
        facts = await self._media.view_files(tenant_id, {id_ for ids in candidates.values() for id_ in ids})
        found: dict[str, dict[int, str]] = {"effect": {}, "workflow": {}}
        for (kind, number), ids in candidates.items():
            urls = (facts[id_].poster_url for id_ in ids if id_ in facts)
            if (url := next(filter(None, urls), None)) is not None:
                found[kind][number] = url
        return Covers(effects=found["effect"], workflows=found["workflow"])

    async def pace(self, tenant_id: str, *, workflow_id: int, effect_id: int | None) -> DurationEstimate | None:
        """Return the pace of recent jobs; `None` if there are none."""
        seconds = [
            (output.completed_at - output.started_at).total_seconds()
            for output in await self._outputs(tenant_id)
            if output.started_at is not None and (output.workflow_id, output.effect_id) == (workflow_id, effect_id)
        ]
        return pace_of(seconds)

    async def _outputs(self, tenant_id: str) -> list[job_list.RecentOutput]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await job_list.recently_completed(tx, tenant_id, among=MAX_RECENT_OUTPUTS)
