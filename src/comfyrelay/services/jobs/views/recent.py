"""What was made lately: a picture for each workflow, and how long its jobs take."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.queue.wait_reasons import Pace, pace_of
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.store.tenant.library import recent

# Workflows that were not used for longer have no picture, and nobody knows how fast they are by now.
AMONG = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Covers:
    """URLs of pictures, by effect and by workflow."""

    effects: Mapping[int, str]
    workflows: Mapping[int, str]


class Recent:
    def __init__(self, databases: Databases, media: MediaViews) -> None:
        self._databases = databases
        self._media = media

    async def covers(self, tenant_id: str) -> Covers:
        """The poster of the newest output that has one."""
        made = [each for each in await self._made(tenant_id) if each.output_file_id is not None]
        newest: dict[tuple[str, int], list[str]] = {}
        for each in made:
            key = ("workflow", each.workflow_id) if each.effect_id is None else ("effect", each.effect_id)
            newest.setdefault(key, []).append(each.output_file_id or "")
        # the newest may have none yet: posters come a moment after their files
        tried = {key: ids[:3] for key, ids in newest.items()}
        facts = await self._media.view_files(tenant_id, {id_ for ids in tried.values() for id_ in ids})
        found: dict[str, dict[int, str]] = {"effect": {}, "workflow": {}}
        for (kind, number), ids in tried.items():
            urls = (facts[id_].poster_url for id_ in ids if id_ in facts)
            if (url := next(filter(None, urls), None)) is not None:
                found[kind][number] = url
        return Covers(effects=found["effect"], workflows=found["workflow"])

    async def pace(self, tenant_id: str, *, workflow_id: int, effect_id: int | None) -> Pace | None:
        """How long its jobs took lately; `None` when none did."""
        seconds = [
            (each.completed_at - each.started_at).total_seconds()
            for each in await self._made(tenant_id)
            if each.started_at is not None and (each.workflow_id, each.effect_id) == (workflow_id, effect_id)
        ]
        return pace_of(seconds)

    async def _made(self, tenant_id: str) -> list[recent.RecentOutput]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await recent.made(tx, tenant_id, among=AMONG)
