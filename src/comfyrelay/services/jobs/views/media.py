"""Views of files with the URLs of their posters and previews."""

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from comfyrelay.domain.ids import poster_path, preview_path
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.media_types import guess_media_type
from comfyrelay.services.context import ServiceContext
from comfyrelay.store.tenant.library import media

# A gallery page needs two URLs per file and is loaded often.
MAX_CACHED_URLS = 20_000


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
        # URLs by path, because browsers cache an image only while its URL stays the same.
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
