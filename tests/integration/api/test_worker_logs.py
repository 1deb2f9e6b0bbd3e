"""The log of a worker: sent by the worker itself, and only while an administrator watches."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from comfyrelay.protocol.worker import MAX_LOG_BYTES, MAX_LOG_LINES
from comfyrelay.services.workers import logs as worker_logs
from tests.support.api import Api, Caller, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import PATIENCE_SECONDS

LINE = '{"event": "worker.registered", "level": "info"}'


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    return await open_operator_scenario(api)


@pytest.fixture
async def worker(desk: OperatorScenario) -> Caller:
    return await desk.api.worker()


async def until(condition: Callable[[], object]) -> None:
    # there is no signal for this, so check at every turn of the event loop
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def poll(worker: Caller, **more: Any) -> Any:
    return await worker.post("/api/worker/poll", {"worker_id": "gpu-1", **more})


async def view_log(desk: OperatorScenario) -> Any:
    return await desk.call("GET", "/workers/gpu-1/logs")


@pytest.mark.both_databases
async def test_log_is_requested_on_view_and_shown_on_arrival(desk: OperatorScenario, worker: Caller) -> None:
    assert (await poll(worker))["wants_logs"] is False
    pending = await view_log(desk)
    assert pending.status_code == 202
    assert (pending.json()["data"]["lines"], pending.json()["data"]["received_at"]) == ([], None)
    assert pending.json()["data"]["within_seconds"] > 0
    assert (await poll(worker))["wants_logs"] is True
    # the log is requested once, not with every call
    assert (await poll(worker))["wants_logs"] is False
    await worker.post("/api/worker/logs", {"lines": [LINE, "another"], "what_is_newer": 1})
    found = await view_log(desk)
    assert found.status_code == 200
    assert found.json()["data"]["lines"] == [LINE, "another"]


async def test_parked_poll_returns_when_logs_are_requested(desk: OperatorScenario, worker: Caller) -> None:
    waiting = asyncio.create_task(poll(worker, wait_seconds=30))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: desk.api.engine.queue.polls.parked)
        await view_log(desk)
        answer = await waiting
    assert (answer["job"], answer["wants_logs"]) == (None, True)


async def test_parked_heartbeat_returns_when_logs_are_requested(desk: OperatorScenario, worker: Caller) -> None:
    await desk.submit()
    job = (await poll(worker))["job"]
    beat = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
    assert (await worker.post("/api/worker/heartbeat", beat))["wants_logs"] is False
    waiting = asyncio.create_task(worker.post("/api/worker/heartbeat", {**beat, "wait_seconds": 30}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: desk.api.engine.queue.stop_requests.waiting)
        await view_log(desk)
        answer = await waiting
    assert (answer["wants_logs"], answer["stop"]) == (True, None)


async def test_log_is_not_requested_without_viewers(
    desk: OperatorScenario, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "WATCHED_SECONDS", 0.0)
    await view_log(desk)
    assert (await poll(worker))["wants_logs"] is False


@pytest.mark.both_databases
async def test_log_expires_and_is_removed_with_its_worker(desk: OperatorScenario, worker: Caller) -> None:
    await worker.post("/api/worker/logs", {"lines": [LINE]})
    await desk.advance(worker_logs.RETENTION_SECONDS + 1)
    await desk.api.engine.operations.retention.run_once()
    assert (await view_log(desk)).json()["data"]["lines"] == []
    await worker.post("/api/worker/logs", {"lines": [LINE]})
    await worker.post("/api/worker/deregister", {})
    problem_of(await view_log(desk), 404)


@pytest.mark.both_databases
async def test_new_log_replaces_the_old_one(desk: OperatorScenario, worker: Caller) -> None:
    for lines in (["one"], ["two", "three"]):
        await worker.post("/api/worker/logs", {"lines": lines})
    assert (await view_log(desk)).json()["data"]["lines"] == ["two", "three"]


async def test_invalid_log_is_refused(worker: Caller) -> None:
    invalid: list[Any] = [["x"] * (MAX_LOG_LINES + 1), ["x" * (MAX_LOG_BYTES // 2 + 1)] * 2, ["a\x00"], "x", [7]]
    for lines in invalid:
        problem_of(await worker.call("POST", "/api/worker/logs", {"lines": lines}), 422)


async def test_worker_id_can_contain_a_slash_or_space(desk: OperatorScenario) -> None:
    worker = await desk.api.worker("rack 1/a")
    assert (await desk.call("GET", "/workers/rack 1/a/logs")).status_code == 202
    assert (await worker.post("/api/worker/poll", {"worker_id": "rack 1/a"}))["wants_logs"] is True


async def test_worker_sends_only_its_own_log(desk: OperatorScenario, worker: Caller) -> None:
    other = await desk.api.worker("gpu-2")
    await other.post("/api/worker/logs", {"lines": ["of another"]})
    assert (await view_log(desk)).json()["data"]["lines"] == []
    problem_of(await desk.admin.call("POST", "/api/worker/logs", {"lines": []}), 401)
