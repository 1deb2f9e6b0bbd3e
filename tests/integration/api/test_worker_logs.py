"""The log of a worker: sent by the worker itself, and only while an administrator watches."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from comfyrelay.protocol.worker import MAX_LOG_BYTES, MAX_LOG_LINES
from comfyrelay.services.queue import worker_logs
from tests.support.api import Api, Caller, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.both_databases

LINE = '{"event": "worker.registered", "level": "info"}'


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


@pytest.fixture
async def worker(desk: OperatorScenario) -> Caller:
    return await desk.api.worker()


async def until(condition: Callable[[], object]) -> None:
    # there is no signal for this, so poll at every turn of the loop
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def poll(worker: Caller, **more: Any) -> Any:
    return await worker.post("/api/worker/poll", {"worker_id": "gpu-1", **more})


async def look(desk: OperatorScenario) -> Any:
    return await desk.call("GET", "/workers/gpu-1/logs")


async def test_log_is_requested_on_view_and_shown_on_arrival(desk: OperatorScenario, worker: Caller) -> None:
    assert (await poll(worker))["wants_logs"] is False
    asked = await look(desk)
    assert asked.status_code == 202
    assert (asked.json()["data"]["lines"], asked.json()["data"]["received_at"]) == ([], None)
    assert asked.json()["data"]["within_seconds"] > 0
    assert (await poll(worker))["wants_logs"] is True
    # not again for every call at the same moment
    assert (await poll(worker))["wants_logs"] is False
    await worker.post("/api/worker/logs", {"lines": [LINE, "another"], "what_is_newer": 1})
    found = await look(desk)
    assert found.status_code == 200
    assert found.json()["data"]["lines"] == [LINE, "another"]


async def test_worker_that_waits_for_a_job_is_let_go_to_hear_of_it(desk: OperatorScenario, worker: Caller) -> None:
    waiting = asyncio.create_task(poll(worker, wait_seconds=30))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: desk.api.engine.queue.polls.parked)
        await look(desk)
        answer = await waiting
    assert (answer["job"], answer["wants_logs"]) == (None, True)


async def test_worker_that_runs_a_job_hears_of_it_with_its_heartbeat(desk: OperatorScenario, worker: Caller) -> None:
    await desk.submit()
    job = (await poll(worker))["job"]
    beat = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
    assert (await worker.post("/api/worker/heartbeat", beat))["wants_logs"] is False
    waiting = asyncio.create_task(worker.post("/api/worker/heartbeat", {**beat, "wait_seconds": 30}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: desk.api.engine.queue.stop_requests.waiting)
        await look(desk)
        answer = await waiting
    assert (answer["wants_logs"], answer["stop"]) == (True, None)


async def test_log_is_not_requested_without_viewers(
    desk: OperatorScenario, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "WATCHED_SECONDS", 0.0)
    await look(desk)
    assert (await poll(worker))["wants_logs"] is False


async def test_log_expires_and_is_removed_with_its_worker(desk: OperatorScenario, worker: Caller) -> None:
    await worker.post("/api/worker/logs", {"lines": [LINE]})
    await desk.advance(worker_logs.RETENTION_SECONDS + 1)
    await desk.api.engine.operations.retention.run_once()
    assert (await look(desk)).json()["data"]["lines"] == []
    await worker.post("/api/worker/logs", {"lines": [LINE]})
    await worker.post("/api/worker/deregister", {})
    problem_of(await look(desk), 404)


async def test_newer_lines_take_the_place_of_older_ones(desk: OperatorScenario, worker: Caller) -> None:
    for lines in (["one"], ["two", "three"]):
        await worker.post("/api/worker/logs", {"lines": lines})
    assert (await look(desk)).json()["data"]["lines"] == ["two", "three"]


@pytest.mark.parametrize(
    "lines", [["x"] * (MAX_LOG_LINES + 1), ["x" * (MAX_LOG_BYTES // 2 + 1)] * 2, ["a\x00"], "x", [7]]
)
async def test_too_much_is_refused(worker: Caller, lines: Any) -> None:
    problem_of(await worker.call("POST", "/api/worker/logs", {"lines": lines}), 422)


async def test_name_with_a_slash_or_a_blank_is_reached_all_the_same(desk: OperatorScenario) -> None:
    worker = await desk.api.worker("rack 1/a")
    assert (await desk.call("GET", "/workers/rack 1/a/logs")).status_code == 202
    assert (await worker.post("/api/worker/poll", {"worker_id": "rack 1/a"}))["wants_logs"] is True


async def test_only_a_worker_sends_its_own(desk: OperatorScenario, worker: Caller) -> None:
    other = await desk.api.worker("gpu-2")
    await other.post("/api/worker/logs", {"lines": ["of another"]})
    assert (await look(desk)).json()["data"]["lines"] == []
    problem_of(await desk.admin.call("POST", "/api/worker/logs", {"lines": []}), 401)
