"""The display names of jobs: label, batch and number, effect or output; and the seed, which distinguishes attempts."""

from collections.abc import Iterable

from comfyrelay.client.client import Client
from comfyrelay.client.find import SHORT
from comfyrelay.errors import NotFound
from comfyrelay.protocol.jobs import Job
from comfyrelay.text import printable


class Labels:
    """Caches fetched labels."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: dict[str, str] | None = None
        self._effects: dict[int, str] | None = None

    async def of(self, jobs: Iterable[Job]) -> dict[str, str]:
        return {job.id: printable(_with_seed(await self._of(job), job.seed)) for job in jobs}

    async def _of(self, job: Job) -> str:
        if job.batch_id is not None:
            place = f"{await self._batch(job.batch_id)} #{job.item_no + 1}"
            return f"{place}: {job.label}" if job.label else place
        if job.label:
            return job.label
        if job.effect_id is not None:
            return await self._effect(job.effect_id)
        return job.outputs[0].filename if job.outputs else ""

    async def _batch(self, batch_id: str) -> str:
        if self._batches is None:
            newest = await self._client.some_batches(limit=200)
            self._batches = {each.id: _batch_name(each.label, each.id) for each in newest}
        if batch_id not in self._batches:
            try:
                label = (await self._client.batch(batch_id)).label
            except NotFound:
                label = None
            self._batches[batch_id] = _batch_name(label, batch_id)
        return self._batches[batch_id]

    async def _effect(self, effect_id: int) -> str:
        if self._effects is None:
            self._effects = {effect.id: effect.name for effect in await self._client.effects()}
        return self._effects.get(effect_id, "")


def _with_seed(name: str, seed: int | None) -> str:
    return name if seed is None else f"{name} · seed {seed}".removeprefix(" · ")


def _batch_name(label: str | None, batch_id: str) -> str:
    return label or f"batch {batch_id[-SHORT:]}"
