"""Find a job or batch by part of its id.

An id begins with the time, so the ids of a batch have the same beginning. Its end is random, so tables and output files
show the end. Both the beginning and the end are accepted.
"""

import re
from contextlib import suppress
from dataclasses import dataclass

from comfyrelay.client.client import Client, Kind
from comfyrelay.errors import InvalidInput, NotFound

SHORT_LENGTH = 8
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_MAX_NAMED = 3
_MIN_LENGTH = 4
_PART = re.compile(r"[0-9a-f-]{1,36}")


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    id: str


async def find(client: Client, text: str) -> Found:
    """Return the only job or batch with this id, or with an id that begins or ends with it."""
    part = text.strip().lower()
    if not _PART.fullmatch(part):
        raise InvalidInput(f"{text!r} is not part of an id: ids contain only 0 to 9, a to f and hyphens.")
    if len(part) < _MIN_LENGTH:
        raise InvalidInput(
            f"{text!r} is too short. Give at least {_MIN_LENGTH} characters of an id that `comfyrelay jobs` shows."
        )
    found = await (_by_id if len(part) == len(_LAST_ID) else _by_part)(client, part)
    if not found:
        raise NotFound(f"There is no job or batch {text!r}.")
    if len(found) > 1:
        matches = ", ".join(f"{match.kind} {match.id}" for match in found[:_MAX_NAMED])
        raise InvalidInput(f"{text!r} matches several ids: {matches}. Give more characters.")
    return found[0]


async def _by_id(client: Client, id_: str) -> list[Found]:
    with suppress(NotFound):
        return [Found("job", (await client.job(id_)).id)]
    with suppress(NotFound):
        return [Found("batch", (await client.batch(id_)).id)]
    return []


async def _by_part(client: Client, part: str) -> list[Found]:
    # Lists go back in time from a given id, so start after the last id with this beginning.
    last = part + _LAST_ID[len(part) :]
    jobs = await client.jobs_before(last, limit=_MAX_NAMED)
    batches = await client.recent_batches(before=last, limit=_MAX_NAMED)
    found = [*(Found("job", job.id) for job in jobs), *(Found("batch", batch.id) for batch in batches)]
    if beginning := [match for match in found if match.id.startswith(part)]:
        return beginning
    return [
        *[Found("job", job.id) async for job in client.jobs(search=part) if job.id.endswith(part)],
        *[Found("batch", batch.id) async for batch in client.batches() if batch.id.endswith(part)],
    ]
