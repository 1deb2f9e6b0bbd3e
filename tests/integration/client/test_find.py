"""An id may be shortened to any part that matches only one job or batch."""

import pytest

from comfyrelay.client import Found, find
from comfyrelay.errors import InvalidInput, NotFound
from tests.support.client_site import Site


async def test_job_and_a_batch_are_found_by_their_whole_id(site: Site) -> None:
    job, batch = await site.submit(), await site.batch(2)
    assert await find(site.client, job["id"]) == Found("job", job["id"])
    assert await find(site.client, batch["id"].upper()) == Found("batch", batch["id"])


async def test_job_and_a_batch_are_found_by_the_end_of_their_id(site: Site) -> None:
    job, batch = await site.submit(), await site.batch(3)
    assert await find(site.client, job["id"][-8:]) == Found("job", job["id"])
    assert await find(site.client, batch["id"][-8:]) == Found("batch", batch["id"])


async def test_job_is_found_by_the_beginning_of_its_id(site: Site) -> None:
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


@pytest.mark.parametrize("text", ["0000000000", "01234567-89ab-7cde-8f01-23456789abcd"])
async def test_unmatched_prefix_is_not_found(site: Site, text: str) -> None:
    await site.submit()
    with pytest.raises(NotFound, match="There is no job or batch"):
        await find(site.client, text)


@pytest.mark.parametrize("text", ["", "zzzzzz", "look-dev", "../presets", "%", "0" * 37])
async def test_text_that_is_no_id_prefix_is_refused(site: Site, text: str) -> None:
    with pytest.raises(InvalidInput, match="is not part of an id"):
        await find(site.client, text)


async def test_too_short_prefix_is_refused(site: Site) -> None:
    with pytest.raises(InvalidInput, match="Give at least 4 characters"):
        await find(site.client, "abc")
