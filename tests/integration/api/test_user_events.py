"""The event stream of a job: replayed from the last received event, then live, up to the end."""

from typing import Any

import pytest

from comfyrelay.server.http import auth
from comfyrelay.server.user import events
from comfyrelay.store.tenant import history
from tests.support.api import Api, Caller, problem_of
from tests.support.api_calls import complete, fail, follow, lease, lease_of, run, submit


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=100)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


@pytest.fixture
async def worker(api: Api, effect: int) -> Caller:
    return await api.worker()


async def test_job_can_be_followed_to_its_end(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        assert stream.status == 200
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert stream.headers["Cache-Control"] == "no-store"
        assert [(event.type, event.id) for event in await stream.until("job:queued")] == [("job:queued", "1")]
        leased = await lease(worker)
        [started] = await stream.until("job:started")
        assert (started.id, started.data["status"]) == ("2", "processing")
        await complete(api, worker, leased)
        [done] = await stream.rest()
    assert (done.type, done.id, done.data["status"]) == ("job:completed", "3", "completed")
    assert done.data["at"]


async def test_seen_events_are_not_repeated(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await run(api, user, worker, effect)
    async with follow(user, job["id"], last_event_id=1) as stream:
        assert [event.type for event in await stream.rest()] == ["job:started", "job:completed"]
    async with follow(user, job["id"]) as stream:
        assert [event.id for event in await stream.rest()] == ["1", "2", "3"]


async def test_finished_stream_stops_reconnects(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await run(api, user, worker, effect)
    for seen in ("3", "99"):
        response = await user.call("GET", f"/api/ai-jobs/{job['id']}/events", headers={"Last-Event-ID": seen})
        assert response.status_code == 204
    response = await user.call("GET", f"/api/ai-jobs/{job['id']}/events", headers={"Last-Event-ID": "x"})
    problem_of(response, 422)


async def test_progress_is_streamed_without_an_event_id(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        leased = await lease(worker)
        await stream.until("job:started")
        for done in (0.1, 0.2):
            await worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": {"done": done}})
            [event] = await stream.until("progress")
            assert (event.id, event.data) == (None, {"done": done})
        await fail(api, worker, leased)
        assert [event.type for event in await stream.rest()] == ["job:failed"]


async def test_reconnected_client_gets_progress(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await submit(user, effect)
    leased = await lease(worker)
    await api.engine.outbox.delivery.idle()
    async with follow(user, job["id"], last_event_id=2) as stream:
        await worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": {"done": 0.5}})
        [event] = await stream.until("progress")
        assert event.data == {"done": 0.5}


async def test_events_of_another_process_are_streamed(
    api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        await stream.until("job:queued")
        # no wakeup: this process has not seen the change
        monkeypatch.setattr(api.engine.outbox.applier, "_on_applied", lambda *_: None)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        assert [event.type for event in await stream.rest()] == ["job:canceled"]


async def test_many_subscribers_cost_one_statement(
    api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = history.events_after

    async def counted(tx: Any, seen: Any) -> Any:
        positions = list(seen)
        looks.append(len(positions))
        return await real(tx, positions)

    monkeypatch.setattr(history, "events_after", counted)
    # only wakeups count here: a tick during the test would add one
    monkeypatch.setattr(api.engine.jobs.events, "_tick_seconds", 60.0)
    jobs = [await submit(user, effect) for _ in range(3)]
    async with follow(user, jobs[0]["id"]) as a, follow(user, jobs[1]["id"]) as b, follow(user, jobs[1]["id"]) as c:
        for stream in (a, b, c):
            await stream.until("job:queued")
        looks.clear()
        await user.post("/api/ai-jobs/bulk", {"ids": [job["id"] for job in jobs], "action": "cancel"})
        for stream in (a, b, c):
            assert [event.type for event in await stream.rest()] == ["job:canceled"]
    # Three clients follow two jobs; the third job has no subscriber. On PostgreSQL, the notification of the database
    # may arrive after this process has handled its own wakeup.
    assert looks in ([2], [2, 2])


async def test_idle_stream_sends_keep_alives(user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        await stream.until("job:queued")
        await stream.comment(": still here")
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        assert [event.type for event in await stream.rest()] == ["job:canceled"]


async def test_signed_out_client_gets_no_further_events(
    user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        await stream.until("job:queued")
        for token in (await user.get("/api/tokens"))["items"]:
            await user.call("DELETE", f"/api/tokens/{token['id']}")
        monkeypatch.setattr(auth, "CHECK_SECONDS", 0.0)
        assert await stream.rest() == []


async def test_disconnected_client_ends_its_subscription(api: Api, user: Caller, effect: int) -> None:
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        await stream.until("job:queued")
        assert api.engine.jobs.events.subscribers == 1
    assert api.engine.jobs.events.subscribers == 0


async def test_shutdown_ends_streams(api: Api, user: Caller, effect: int) -> None:
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        await stream.until("job:queued")
        await api.context.stop_waiting()
        assert await stream.rest() == []
    async with follow(user, job["id"]) as stream:
        assert await stream.rest() == []


async def test_failed_event_read_is_retried(user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, broken = history.events_after, True

    async def fail_once(tx: Any, seen: Any) -> Any:
        nonlocal broken
        if broken:
            broken = False
            raise OSError("gone")
        return await real(tx, seen)

    monkeypatch.setattr(history, "events_after", fail_once)
    job = await submit(user, effect)
    async with follow(user, job["id"]) as stream:
        assert await stream.until("job:queued")
    assert not broken


async def test_event_history_is_a_list(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    job = await run(api, user, worker, effect)
    found = await user.get(f"/api/ai-jobs/{job['id']}/history?limit=2")
    assert [(item["id"], item["type"]) for item in found["items"]] == [(1, "job:queued"), (2, "job:started")]
    assert found["items"][0]["data"]["at"]
    rest = await user.get(f"/api/ai-jobs/{job['id']}/history?limit=2&cursor={found['next_cursor']}")
    assert ([item["type"] for item in rest["items"]], rest["next_cursor"]) == (["job:completed"], None)
    other = await api.user("eve@example.com")
    problem_of(await other.call("GET", f"/api/ai-jobs/{job['id']}/history"), 404)
