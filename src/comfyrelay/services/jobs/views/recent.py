"""Cover images and job durations of recently used workflows."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.queue.wait_reasons import DurationEstimate, pace_of
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.views.media import MediaViews
from comfyrelay.store.tenant import job_list

# Workflows without a job among this many newest outputs have no cover and no known duration.
MAX_OUTPUTS = 1000


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
        """Return the pace of recent jobs, or `None` if there are none."""
        seconds = [
            (output.completed_at - output.started_at).total_seconds()
            for output in await self._outputs(tenant_id)
            if output.started_at is not None and (output.workflow_id, output.effect_id) == (workflow_id, effect_id)
        ]
        return pace_of(seconds)

    async def _outputs(self, tenant_id: str) -> list[job_list.RecentOutput]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await job_list.recently_completed(tx, tenant_id, among=MAX_OUTPUTS)
