"""Find a job or batch by part of its id.

Ids begin with the time, so the ids of a batch have the same beginning; they end randomly. Tables and output files
therefore show the end, and both ends are accepted.
"""

import re
from dataclasses import dataclass

from comfyrelay.client.client import Client, Kind
from comfyrelay.errors import InvalidInput, NotFound

SHORT = 8
_LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_SOME = 3
_LEAST = 4
_PART = re.compile(r"[0-9a-f-]{1,36}")


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    id: str


async def find(client: Client, text: str) -> Found:
    """The only job or batch with this id, or with an id that begins or ends with it."""
    part = text.strip().lower()
    if not _PART.fullmatch(part):
        raise InvalidInput(f"{text!r} is no id, and no part of one: ids are made of 0 to 9, a to f and hyphens.")
    if len(part) < _LEAST:
        raise InvalidInput(f"{text!r} is too short. Give {_LEAST} characters at least of what `comfyrelay jobs` shows.")
    if len(part) == len(_LAST):
        return await _whole(client, part)
    found = await _beginning(client, part) or await _ending(client, part)
    if not found:
        raise NotFound(f"There is no job and no batch {text!r}.")
    if len(found) > 1:
        some = ", ".join(f"{each.kind} {each.id}" for each in found[:_SOME])
        raise InvalidInput(f"{text!r} fits more than one: {some}. Give more of the one that you mean.")
    return found[0]


async def _whole(client: Client, id_: str) -> Found:
    try:
        return Found("job", (await client.job(id_)).id)
    except NotFound:
        pass
    try:
        return Found("batch", (await client.batch(id_)).id)
    except NotFound:
        raise NotFound(f"There is no job and no batch {id_!r}.") from None


async def _beginning(client: Client, part: str) -> list[Found]:
    """Lists go back in time from any id: start after the last id that could begin so."""
    last = part + _LAST[len(part) :]
    jobs, batches = await client.jobs_before(last, limit=_SOME), await client.batches_before(last, limit=_SOME)
    found = [*(Found("job", job.id) for job in jobs), *(Found("batch", batch.id) for batch in batches)]
    return [each for each in found if each.id.startswith(part)]


async def _ending(client: Client, part: str) -> list[Found]:
    jobs = [Found("job", job.id) async for job in client.jobs(search=part) if job.id.endswith(part)]
    # few enough to read all
    batches = [Found("batch", batch.id) async for batch in client.batches() if batch.id.endswith(part)]
    return [*jobs, *batches]
