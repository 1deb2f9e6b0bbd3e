"""An id may be shortened to any part that matches only one job or batch."""

import pytest

from comfyrelay.client import Found, find
from comfyrelay.errors import InvalidInput, NotFound
from tests.support.client_site import Site


async def test_job_and_batch_are_found_by_full_id_or_suffix(site: Site) -> None:
    job, batch = await site.submit(), await site.batch(2)
    assert await find(site.client, job["id"]) == Found("job", job["id"])
    assert await find(site.client, batch["id"].upper()) == Found("batch", batch["id"])
    assert await find(site.client, job["id"][-8:]) == Found("job", job["id"])
    assert await find(site.client, batch["id"][-8:]) == Found("batch", batch["id"])


async def test_job_is_found_by_prefix(site: Site) -> None:
    first = await site.submit()
    others = [await site.submit() for _ in range(3)]
    # the shortest unique prefix
    length = next(n for n in range(4, 37) if not any(other["id"].startswith(first["id"][:n]) for other in others))
    assert await find(site.client, first["id"][:length]) == Found("job", first["id"])


async def test_ambiguous_prefix_is_refused_with_the_matches(site: Site) -> None:
    job, batch = await site.submit(), await site.batch(2)
    # ids begin with the time
    with pytest.raises(InvalidInput, match="matches several ids") as raised:
        await find(site.client, job["id"][:4])
    assert f"job {job['id']}" in str(raised.value) or f"batch {batch['id']}" in str(raised.value)


async def test_unmatched_prefix_is_not_found(site: Site) -> None:
    await site.submit()
    for text in ("0000000000", "01234567-89ab-7cde-8f01-23456789abcd"):
        with pytest.raises(NotFound, match="There is no job or batch"):
            await find(site.client, text)


async def test_invalid_or_short_prefix_is_refused(site: Site) -> None:
    for text in ("", "zzzzzz", "look-dev", "../presets", "%", "0" * 37):
        with pytest.raises(InvalidInput, match="is not part of an id"):
            await find(site.client, text)
    with pytest.raises(InvalidInput, match="Give at least 4 characters"):
        await find(site.client, "abc")
