"""Sweeps and wildcards of the desk are counted first, become jobs, and show their outputs in a grid."""

from typing import Any

import pytest

from comfyrelay.client import Job
from tests.support.desk import OpenDesk
from tests.support.desk_owner import owner_http

PAINTER = "text-to-image"


async def call(desk: OpenDesk, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
    async with owner_http(desk.ready.url) as http:
        answer = await http.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if status >= 400 else answer.json()["data"]


async def ended_jobs(desk: OpenDesk, batch_id: str) -> list[Job]:
    for job in [job async for job in desk.client.jobs(batch_id=batch_id)]:
        await desk.ended(job.id)
    return sorted([job async for job in desk.client.jobs(batch_id=batch_id)], key=lambda job: job.item_no)


async def values_of(desk: OpenDesk, job: Job) -> dict[str, Any]:
    about = await desk.client.about(job.id)
    assert about is not None
    return {field.key: field.value for field in about.inputs}


async def test_sweep_is_counted_and_makes_a_grid_of_its_outputs(desk: OpenDesk) -> None:
    request = {"effect_slug": PAINTER, "label": "grid", "sweep": {"steps": "2..4", "width": [64, 128]}}
    counted = await call(desk, "POST", "/api/desk/batches/estimate", request)
    assert counted["jobs"] == 6
    assert counted["labels"][:2] == ["Steps 2 · Width 64", "Steps 2 · Width 128"]
    assert [job async for job in desk.client.jobs()] == []
    batch = await desk.client.add_batch(request)
    jobs = await ended_jobs(desk, batch.id)
    assert [job.label for job in jobs] == counted["labels"]
    last = await values_of(desk, jobs[-1])
    assert (last["steps"], last["width"]) == (4, 128)
    grid = await call(desk, "GET", f"/api/batches/{batch.id}/grid")
    assert [(axis["key"], axis["name"], axis["values"]) for axis in grid["axes"]] == [
        ("steps", "Steps", ["2", "3", "4"]),
        ("width", "Width", ["64", "128"]),
    ]
    shown = {item["id"]: item for item in (await call(desk, "GET", f"/api/gallery?batch={batch.id}"))["items"]}
    assert [shown[cell]["width"] for cell in grid["cells"]] == [64, 128] * 3
    # a copy of the batch also has a grid
    again = await call(desk, "POST", f"/api/batches/{batch.id}/again", {}, status=201)
    await ended_jobs(desk, again["id"])
    copy = await call(desk, "GET", f"/api/batches/{again['id']}/grid")
    assert copy["axes"] == grid["axes"]
    assert None not in copy["cells"]
    assert copy["cells"] != grid["cells"]


async def test_batch_without_lists_has_no_grid(desk: OpenDesk) -> None:
    batch = await desk.client.submit_batch([{}], effect_id=(await desk.client.effects())[-1].id)
    assert await call(desk, "GET", f"/api/batches/{batch.id}/grid") == {"axes": [], "cells": []}
    await call(desk, "GET", "/api/batches/unknown/grid", status=404)


async def test_axes_of_submitted_items_must_match_their_number(desk: OpenDesk) -> None:
    effect_id = next(effect.id for effect in await desk.client.effects() if effect.slug == PAINTER)
    axes = [{"key": "steps", "name": "Steps", "values": ["2", "3"]}]
    body = {"effect_id": effect_id, "items": [{}], "axes": axes}
    refused = await call(desk, "POST", "/api/batches", body, status=422)
    assert refused["errors"] == {"axes": "The axes have 2 combinations, but there are 1 items."}
    batch = await call(desk, "POST", "/api/batches", {**body, "items": [{}, {}]}, status=201)
    assert (await call(desk, "GET", f"/api/batches/{batch['id']}/grid"))["axes"] == axes


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sweep": {"steps": "1..20000"}}, "steps"),
        ({"sweep": {"steps": "fast"}}, "steps"),
        ({"sweep": {"nothing": "1"}}, "nothing"),
        ({"sweep": {"steps": "1..101", "width": "16..116"}}, "items"),
        ({"prompts": ["{a|" * 11], "wildcards": "random"}, "prompt"),
        ({"prompts": ["__none__"], "wildcards": "all"}, "prompt"),
    ],
)
async def test_invalid_sweep_names_its_field_and_adds_nothing(
    desk: OpenDesk, fields: dict[str, Any], name: str
) -> None:
    for path in ("/api/desk/batches/estimate", "/api/desk/batches"):
        refused = await call(desk, "POST", path, {"effect_slug": PAINTER, **fields}, status=422)
        assert list(refused["errors"]) == [name]
    assert [job async for job in desk.client.jobs()] == []


async def test_chosen_wildcards_are_values_of_the_job(desk: OpenDesk) -> None:
    folder = desk.ready.data_dir / "wildcards"
    folder.mkdir()
    (folder / "animals.txt").write_text("fox\nheron\n", encoding="utf-8")
    request = {"effect_slug": PAINTER, "prompts": ["a {red|red} __animals__"], "tries": 3, "wildcards": "random"}
    jobs = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    for job in jobs:
        prompt = (await values_of(desk, job))["prompt"]
        assert prompt in {"a red fox", "a red heron"}
        assert job.prompt == prompt
    everything = {**request, "tries": 1, "prompts": ["a __animals__"], "wildcards": "all"}
    assert (await call(desk, "POST", "/api/desk/batches/estimate", everything))["labels"] == ["a fox", "a heron"]


async def test_braces_are_kept_in_prompts_unless_wildcards_are_on(desk: OpenDesk) -> None:
    request = {"effect_slug": PAINTER, "prompts": ["a {red|blue} fox"]}
    [job] = await ended_jobs(desk, (await desk.client.add_batch(request)).id)
    assert (await values_of(desk, job))["prompt"] == "a {red|blue} fox"
