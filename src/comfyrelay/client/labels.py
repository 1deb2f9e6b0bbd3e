"""Build the display names of jobs from their label, batch and number, effect or output, and seed."""

from collections.abc import Iterable

from comfyrelay.client.client import MAX_PAGE, Client
from comfyrelay.client.find import SHORT_LENGTH
from comfyrelay.errors import NotFound
from comfyrelay.protocol.jobs import Job
from comfyrelay.text import printable


class JobLabels:
    """Fetches the names of batches and effects once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: dict[str, str] | None = None
        self._effects: dict[int, str] | None = None

    async def of(self, jobs: Iterable[Job]) -> dict[str, str]:
        """Return the display names of jobs by id."""
        return {job.id: printable(await self._label(job)) for job in jobs}

    async def _label(self, job: Job) -> str:
        name = await self._name(job)
        return name if job.seed is None else f"{name} · seed {job.seed}".removeprefix(" · ")

    async def _name(self, job: Job) -> str:
        if job.batch_id is not None:
            place = f"{await self._batch(job.batch_id)} #{job.item_no + 1}"
            return f"{place}: {job.label}" if job.label else place
        if job.label:
            return job.label
        if job.effect_id is not None:
            if self._effects is None:
                self._effects = {effect.id: effect.name for effect in await self._client.effects()}
            return self._effects.get(job.effect_id, "")
        return job.outputs[0].filename if job.outputs else ""

    async def _batch(self, batch_id: str) -> str:
        if self._batches is None:
            newest = await self._client.recent_batches(limit=MAX_PAGE)
            self._batches = {batch.id: _batch_name(batch.label, batch.id) for batch in newest}
        if batch_id not in self._batches:
            try:
                label = (await self._client.batch(batch_id)).label
            except NotFound:
                label = None
            self._batches[batch_id] = _batch_name(label, batch_id)
        return self._batches[batch_id]


def _batch_name(label: str | None, batch_id: str) -> str:
    return label or f"batch {batch_id[-SHORT_LENGTH:]}"
