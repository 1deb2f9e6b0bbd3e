"""The overview: cheap samples of the service state, and a stream that names outdated sections."""

import asyncio
import json
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from comfyrelay.server.admin import overview
from comfyrelay.services.operations import live, samples
from comfyrelay.services.operations.samples import KEPT_MINUTES, Range, Samples
from comfyrelay.services.subscriptions import StreamMessage
from comfyrelay.store.central import samples as stored
from tests.support.api import Api, problem_of
from tests.support.api_calls import Stream, open_stream
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.world import PATIENCE_SECONDS

EVENTS = "/api/admin/events"


@pytest.fixture
async def desk(api: Api, monkeypatch: pytest.MonkeyPatch) -> OperatorScenario:
    monkeypatch.setattr(samples, "CACHE_SECONDS", 0.0)
    await api.stop_loops()
    return await open_operator_scenario(api)


async def sample(desk: OperatorScenario) -> None:
    await desk.api.engine.outbox.delivery.idle()
    await desk.api.engine.operations.samples.run_once()


def at(found: dict[str, Any], name: str, index: int = -1) -> Any:
    return found["series"][name][index]


class TestSamples:
    @pytest.mark.both_databases
    async def test_overview_shows_queue_and_workers(self, desk: OperatorScenario) -> None:
        await desk.worker(max_concurrency=2)
        assert (await desk.get("/overview"))["now"]["wait_hour_seconds"] is None
        await desk.submit()
        await desk.submit()
        await desk.advance(40)
        await desk.lease()
        now = (await desk.get("/overview"))["now"]
        assert (now["waiting"], now["running"], now["busy"], now["slots"], now["workers_online"]) == (1, 1, 1, 2, 1)
        assert now["oldest_wait_seconds"] == 40
        assert (now["done_hour"], now["failed_hour"], now["tokens_hour"]) == (0, 0, 0)
        assert now["wait_hour_seconds"] == 40

    @pytest.mark.both_databases
    async def test_events_are_counted_in_their_minute(self, desk: OperatorScenario) -> None:
        await desk.worker(max_concurrency=5)
        await desk.submit()
        await desk.advance(30)
        await desk.complete(await desk.lease())
        await desk.failed()
        await sample(desk)
        await desk.advance(60)
        await desk.completed()
        await sample(desk)
        found = await desk.get("/overview", range="hour")
        assert (at(found, "done", -2), at(found, "failed", -2), at(found, "tokens", -2)) == (1, 1, 7)
        assert (at(found, "done"), at(found, "failed"), at(found, "tokens")) == (1, 0, 7)
        # one job waited for 30 s, the other not at all
        assert at(found, "wait_seconds", -2) == 15
        assert (at(found, "slots"), at(found, "busy")) == (5, 0)
        now = found["now"]
        assert (now["done_hour"], now["failed_hour"], now["tokens_hour"]) == (2, 1, 14)
        # the average of the last hour, for every range
        assert now["wait_hour_seconds"] == (await desk.get("/overview", range="week"))["now"]["wait_hour_seconds"] == 10

    async def test_oldest_wait_is_shown_if_nothing_started(self, desk: OperatorScenario) -> None:
        await desk.submit()
        await desk.advance(120)
        await desk.worker()
        await sample(desk)
        assert at(await desk.get("/overview"), "wait_seconds") == 120

    @pytest.mark.both_databases
    @pytest.mark.parametrize("why", ["no worker", "missing node", "no comfyui"])
    async def test_jobs_that_no_worker_can_run_are_unrunnable(self, desk: OperatorScenario, why: str) -> None:
        job = await desk.submit()
        if why == "missing node":
            await desk.worker(capabilities={"node_types": ["SaveImage"], "models": []})
        elif why == "no comfyui":
            await desk.worker(devices=[{"server": "comfyui-1", "unavailable_reason": "It exited."}])
        await desk.advance(60)
        await sample(desk)
        found = await desk.get("/overview")
        assert (found["now"]["waiting"], found["now"]["unrunnable"]) == (0, 1)
        assert (at(found, "waiting"), at(found, "wait_seconds")) == (0, 0)

        await desk.worker("gpu-9")
        found = await desk.get("/overview")
        assert (found["now"]["waiting"], found["now"]["unrunnable"], found["now"]["oldest_wait_seconds"]) == (1, 0, 60)
        assert job.status == "queued"

    @pytest.mark.both_databases
    async def test_jobs_of_offline_workers_are_waiting(self, desk: OperatorScenario) -> None:
        await desk.worker()
        await desk.submit()
        await desk.advance(600)
        await desk.worker("gpu-9", capabilities={"node_types": ["SaveImage"], "models": []})
        await sample(desk)
        found = await desk.get("/overview")
        now = found["now"]
        assert (now["waiting"], now["waiting_offline"], now["unrunnable"]) == (1, 1, 0)
        assert (now["oldest_wait_seconds"], now["workers_online"]) == (600, 1)
        assert (at(found, "waiting"), at(found, "wait_seconds")) == (1, 600)
        # They still need attention.
        problems = await desk.api.engine.operations.fleet_problems.find()
        assert ("unrunnable", "queue") in {(each.kind, each.name) for each in problems}

    @pytest.mark.both_databases
    async def test_processes_share_samples(self, desk: OperatorScenario) -> None:
        await desk.worker()
        other = Samples(desk.api.engine.databases, worker_offline_seconds=300)
        await desk.completed()
        await sample(desk)
        job = await desk.submit()
        other.count_begun([(await desk.dispatch(job))._replace(leased_at=job.available_at)])
        await other.run_once()
        found = await other.series(Range.HOUR)
        newest = found.times[-1]
        assert newest is not None
        # the first sample saw an empty queue
        assert (newest.begun, newest.done, newest.waiting) == (2, 1, 0)

    @pytest.mark.both_databases
    async def test_series_has_few_points_and_marks_gaps(self, desk: OperatorScenario) -> None:
        await sample(desk)
        cases: list[tuple[str, int, int]] = [("hour", 60, 60), ("day", 144, 600), ("week", 168, 3600)]
        for range_, points, seconds in cases:
            found = await desk.get("/overview", range=range_)
            assert {len(values) for values in found["series"].values()} == {points}
            assert found["bucket_seconds"] == seconds
            assert (at(found, "waiting"), at(found, "waiting", 0), at(found, "done", 0)) == (0, None, None)
        problem_of(await desk.call("GET", "/overview", params={"range": "year"}), 422)

    @pytest.mark.both_databases
    async def test_minutes_are_aggregated_over_a_week(self, desk: OperatorScenario) -> None:
        await desk.worker()
        # at the beginning of an hour
        for _ in range(3):
            await desk.completed()
            await sample(desk)
            await desk.advance(60)
        found = await desk.get("/overview", range="week")
        assert (at(found, "done"), at(found, "tokens")) == (3, 21)

    async def test_unsaved_samples_are_counted_and_retried(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await desk.worker()
        await desk.completed()
        await desk.api.engine.outbox.delivery.idle()
        assert (await desk.get("/overview"))["now"]["done_hour"] == 1
        with monkeypatch.context() as patched:
            patched.setattr(stored, "add", None)
            with pytest.raises(TypeError):
                await sample(desk)
        await sample(desk)
        assert at(await desk.get("/overview"), "done") == 1

    @pytest.mark.both_databases
    async def test_samples_are_kept_for_eight_days(self, desk: OperatorScenario) -> None:
        await sample(desk)
        keeper = desk.api.engine.operations.samples
        await desk.api.clock.set(desk.api.clock.now + timedelta(minutes=KEPT_MINUTES))
        await keeper.delete_old()
        assert await count(desk) == 1
        await desk.advance(60)
        await desk.api.engine.operations.retention.run_once()
        assert await count(desk) == 0


async def count(desk: OperatorScenario) -> int:
    async with desk.api.engine.databases.central.read() as tx:
        return len(await stored.aggregates_since(tx, 0, minutes=1))


async def wait_for_change(stream: Stream, kind: str, name: str | None = None) -> dict[str, Any]:
    """Wait for a message that names this change."""
    while True:
        [*_, event] = await stream.until("changed")
        found: dict[str, Any] = event.data
        if found[kind] is True or (name is not None and name in found[kind]):
            return found


class TestEvents:
    @pytest.fixture
    async def stream(self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(live, "TICK_SECONDS", 0.05)
        monkeypatch.setattr(live, "BATCH_SECONDS", 0.02)
        async with open_stream(desk.admin, EVENTS) as stream:
            [first] = await stream.until("reset")
            assert first.data == {}
            # the first read reports nothing: the page fetches all earlier data anyway
            desk.api.engine.operations.live.publish("effects", "none")
            await wait_for_change(stream, "effects", "none")
            yield stream

    @pytest.mark.both_databases
    async def test_new_worker_is_announced_with_its_fleet(self, desk: OperatorScenario, stream: Stream) -> None:
        await desk.worker("rack 1/a")
        found = await wait_for_change(stream, "workers", "rack 1/a")
        # A slow tick announces the fleet in a second message.
        fleets = found["fleets"] or (await wait_for_change(stream, "fleets", "production/home-clip"))["fleets"]
        assert fleets == ["production/home-clip"]
        assert not found["samples"]

    @pytest.mark.both_databases
    async def test_offline_worker_is_announced(self, desk: OperatorScenario, stream: Stream) -> None:
        await desk.worker()
        await wait_for_change(stream, "workers", "gpu-1")
        await desk.advance(301)
        assert (await wait_for_change(stream, "workers", "gpu-1"))["dispatches"] is False

    @pytest.mark.both_databases
    async def test_job_state_changes_are_announced(self, desk: OperatorScenario, stream: Stream) -> None:
        await desk.submit()
        assert (await wait_for_change(stream, "dispatches"))["workers"] == []
        await desk.worker()
        await wait_for_change(stream, "workers", "gpu-1")
        await desk.lease()
        assert (await wait_for_change(stream, "workers", "gpu-1"))["dispatches"] is True

    async def test_actions_on_queued_jobs_are_announced(self, desk: OperatorScenario, stream: Stream) -> None:
        job = await desk.submit()
        await wait_for_change(stream, "dispatches")
        control = desk.api.engine.queue.control
        for action in (
            control.set_priority(job.tenant_id, job.id, 3),
            control.pause(job.tenant_id, job.id),
            control.cancel(job.tenant_id, job.id),
        ):
            await action
            assert (await wait_for_change(stream, "dispatches"))["workers"] == []

    async def test_webhook_results_are_announced(
        self, desk: OperatorScenario, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("comfyrelay.services.webhooks.sender._resolve", Mock(side_effect=OSError))
        await desk.worker()
        await desk.submit(webhook_url="https://receiver.test/")
        await desk.complete(await desk.lease())
        await desk.api.engine.webhooks.deliveries.run_once()
        await wait_for_change(stream, "webhooks")

    async def test_frequent_changes_are_throttled(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words: list[str] = []
        desk.api.engine.notify_channel.on_message(words.append)
        monkeypatch.setattr(live, "BATCH_SECONDS", 0.0)
        for _ in range(100):
            desk.api.engine.operations.live.publish_soon("webhooks")
        await asyncio.sleep(0)
        desk.api.engine.operations.live.publish_soon("dispatches")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(words) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert words == ["changed:webhooks:%2A", "changed:dispatches:%2A"]

    async def test_administrators_changes_are_announced_by_kind(self, desk: OperatorScenario, stream: Stream) -> None:
        await desk.send("PATCH", "/fleets/production/home-clip", {"name": "Home"})
        await wait_for_change(stream, "fleets", "production/home-clip")
        await desk.send("PATCH", "/effects/clip", {"name": "Clip"})
        assert (await wait_for_change(stream, "effects", "clip"))["workflows"] == []
        await desk.send("PATCH", "/workflows/clip", {"name": "Clip"})
        await wait_for_change(stream, "workflows", "clip")
        await desk.send("POST", "/users", {"email": "new@example.com"})
        await wait_for_change(stream, "tenants", "*")
        await desk.send("POST", "/reconcile")
        await wait_for_change(stream, "reconcile")

    async def test_sign_ups_and_samples_are_announced(self, desk: OperatorScenario, stream: Stream) -> None:
        user = await desk.api.engine.accounts.tenancy.create_user(email="eve@example.com")
        await wait_for_change(stream, "tenants", user.tenant_id)
        await sample(desk)
        await wait_for_change(stream, "samples")

    async def test_reads_and_refused_requests_announce_nothing(self, desk: OperatorScenario, stream: Stream) -> None:
        problem_of(await desk.call("PATCH", "/effects/none", {"name": "x"}), 404)
        # otherwise, a page that receives the event would fetch again forever
        await desk.send("POST", "/workflows/clip/validate")
        await desk.send("PATCH", "/effects/clip", {"name": "x"})
        event = await wait_for_change(stream, "effects", "clip")
        assert (event["effects"], event["workflows"]) == (["clip"], [])

    async def test_too_many_changes_are_announced_by_a_wildcard(
        self, desk: OperatorScenario, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "MAX_NAMED", 0)
        monkeypatch.setattr(live, "OVERLAP", 1)
        await desk.worker("gpu-1")
        assert (await wait_for_change(stream, "workers", "*"))["workers"] == ["*"]

    async def test_changes_are_batched_into_one_message(self, desk: OperatorScenario, stream: Stream) -> None:
        for number in range(300):
            desk.api.engine.operations.live.publish("workers", f"gpu-{number}")
        # too many changes to name each of them
        assert (await wait_for_change(stream, "workers", "*"))["workers"] == ["*"]

    async def test_streams_receive_the_same_message(self, desk: OperatorScenario, stream: Stream) -> None:
        async with open_stream(desk.admin, EVENTS) as second:
            await second.until("reset")
            await desk.worker()
            assert await wait_for_change(stream, "workers", "gpu-1") == await wait_for_change(
                second, "workers", "gpu-1"
            )

    async def test_revoked_administrator_gets_no_further_events(
        self, desk: OperatorScenario, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("comfyrelay.server.http.auth.CHECK_SECONDS", 0.0)
        other = await desk.api.user("second@example.com", is_admin=True)
        assert desk.admin.user is not None
        path = f"/api/admin/users/{desk.admin.user.id}"
        assert (await other.call("PATCH", path, {"is_admin": False})).is_success
        desk.api.engine.operations.live.publish("effects", "clip")
        assert not any(event.data["effects"] for event in await stream.rest() if event.type == "changed")


async def test_only_administrators_get_events(desk: OperatorScenario) -> None:
    user = await desk.api.user("eve@example.com")
    problem_of(await user.call("GET", EVENTS), 403)
    problem_of(await desk.api.anonymous.call("GET", EVENTS), 401)


async def test_shutdown_ends_streams(desk: OperatorScenario) -> None:
    async with open_stream(desk.admin, EVENTS) as stream:
        await stream.until("reset")
        await desk.api.context.stop_waiting()
        assert await stream.rest() == []


def test_event_is_json_with_every_kind() -> None:
    changes = live.PendingChanges(named={"workers": {"b", "a"}}, flags={"samples"}).by_kind
    text = overview._encode(StreamMessage(content=changes))
    assert text.startswith("event: changed\ndata: {")
    data = json.loads(text.partition("data: ")[2])
    assert data.keys() == live.NAMED | live.FLAGS
    assert (data["workers"], data["samples"], data["webhooks"], data["fleets"]) == (["a", "b"], True, False, [])
