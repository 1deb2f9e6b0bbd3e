"""The live stream of a user: replayed after a reconnect, the same for every open page, and without gaps."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from comfyrelay.server.http import streams
from comfyrelay.server.user import live as route
from comfyrelay.services import subscriptions as following
from comfyrelay.services.jobs.views import live
from comfyrelay.store.tenant import changes
from tests.support.api import Api, Caller
from tests.support.api_calls import Stream, StreamEvent, complete, fail, follow_all, lease, lease_of, run, submit
from tests.support.world import PATIENCE_SECONDS


@pytest.fixture
async def user(api: Api) -> Caller:
    return await api.user(tokens=1000)


@pytest.fixture
async def effect(api: Api) -> int:
    return await api.effect()


@pytest.fixture
async def worker(api: Api, effect: int) -> Caller:
    return await api.worker()


async def wait_for_status(stream: Stream, job_id: str, status: str) -> StreamEvent:
    """Wait for the event that shows the job in this status."""
    while True:
        event = (await stream.until("changed"))[-1]
        if any(job["id"] == job_id and job["status"] == status for job in event.data["jobs"]):
            return event


async def test_job_changes_are_streamed(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    async with follow_all(user) as stream:
        assert stream.status == 200
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        [first] = await stream.until("queue")
        assert (first.data["counts"]["queued"], first.data["waiting"]) == (0, [])
        assert first.id
        job = await submit(user, effect, input_payload={"prompt": "a cat"})
        event = await wait_for_status(stream, job["id"], "queued")
        shown = await user.get(f"/api/ai-jobs/{job['id']}")
        assert event.data["jobs"] == [{**shown, "waiting": None}]
        leased = await lease(worker)
        await wait_for_status(stream, job["id"], "processing")
        await complete(api, worker, leased)
        [done] = (await wait_for_status(stream, job["id"], "completed")).data["jobs"]
        assert done["outputs"][0]["url"]
        await user.call("DELETE", f"/api/ai-jobs/{job['id']}")
        assert (await stream.until("changed"))[-1].data == {"jobs": [], "batches": [], "removed": [job["id"]]}


async def test_credits_are_streamed(api: Api, user: Caller, effect: int) -> None:
    assert user.user is not None
    async with follow_all(user) as stream:
        [first] = await stream.until("queue")
        await api.engine.accounts.ledger.credit(user.user.tenant_id, 5, reference="paid")
        event = (await stream.until("wallet"))[-1]
        assert (event.id is not None, event.data) == (True, {})
        # a repeated payment changes nothing
        await api.engine.accounts.ledger.credit(user.user.tenant_id, 5, reference="paid")
        job = await submit(user, effect)
        assert "wallet" not in [event.type for event in await stream.until("changed")]
    async with follow_all(user, last_event_id=first.id) as stream:
        missed = await stream.until("queue")
        assert [event.type for event in missed] == ["changed", "wallet", "queue"]
        assert [item["id"] for item in missed[0].data["jobs"]] == [job["id"]]
        # the first part has no id, because a client that received only this part lacks the rest
        assert [event.id is None for event in missed] == [True, False, False]


async def test_queue_and_progress_are_streamed(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    async with follow_all(user) as stream:
        await stream.until("queue")
        job = await submit(user, effect)
        queue = (await stream.until("queue"))[-1].data
        assert (queue["counts"]["queued"], queue["waiting"]) == (1, [{"id": job["id"], "is_batch": False}])
        leased = await lease(worker)
        while not (queue := (await stream.until("queue"))[-1].data)["running"]:
            pass
        assert (queue["running"], queue["waiting"]) == ([{"id": job["id"], "is_batch": False}], [])
        await worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": {"done": 0.5}})
        event = (await stream.until("progress"))[-1]
        assert event.id is None
        assert event.data == {"jobs": [{"id": job["id"], "progress": {"done": 0.5}, "expected_seconds": None}]}


async def test_move_streams_the_new_order(user: Caller, effect: int) -> None:
    first, second = [await submit(user, effect) for _ in range(2)]
    async with follow_all(user) as stream:
        queue = (await stream.until("queue"))[-1].data
        assert [entry["id"] for entry in queue["waiting"]] == [first["id"], second["id"]]
        await user.post(f"/api/ai-jobs/{second['id']}/move", {"to": "top"})
        queue = (await stream.until("queue"))[-1].data
        assert [entry["id"] for entry in queue["waiting"]] == [second["id"], first["id"]]


async def test_batch_is_streamed_with_its_items(user: Caller, effect: int) -> None:
    async with follow_all(user) as stream:
        await stream.until("queue")
        batch = await user.post("/api/batches", {"effect_id": effect, "items": [{}, {}], "label": "Cats"})
        [event] = [event for event in await stream.until("changed") if event.type == "changed"]
        assert event.data["batches"] == [await user.get(f"/api/batches/{batch['id']}")]
        assert [job["item_no"] for job in event.data["jobs"]] == [0, 1]
        await user.post(f"/api/batches/{batch['id']}/cancel")
        while (event := (await stream.until("changed"))[-1]).data["batches"][0]["counts"]["canceled"] < 2:
            pass
        job_ids = [job["id"] for job in (await user.get(f"/api/ai-jobs?batch_id={batch['id']}"))["items"]]
        await user.post("/api/ai-jobs/bulk", {"action": "delete", "ids": job_ids})
        removed: set[str] = set()
        while removed != {*job_ids, batch["id"]}:
            removed |= set((await stream.until("changed"))[-1].data["removed"])


async def test_marks_and_collections_reach_every_browser(api: Api, user: Caller, effect: int, worker: Caller) -> None:
    output = (await run(api, user, worker, effect))["outputs"][0]["file_id"]
    async with follow_all(user) as stream:
        [first] = await stream.until("queue")
        marks: list[dict[str, Any]] = [{"starred": True}, {"rejected": True}, {"note": "the best"}]
        for mark in marks:
            await user.post("/api/gallery/marks", {"ids": [output], **mark})
            event = (await stream.until("gallery"))[-1]
            assert (event.data, bool(event.id)) == ({"outputs": [output], "is_all": False}, True)
        collection = (await user.post("/api/collections", {"name": "Cats"}))["id"]
        assert (await stream.until("gallery"))[-1].data == {"outputs": [], "is_all": False}
        await user.post("/api/gallery/marks", {"ids": [output], "add_to": collection})
        assert (await stream.until("gallery"))[-1].data == {"outputs": [output], "is_all": False}
        await user.call("PATCH", f"/api/collections/{collection}", {"name": "Dogs"})
        assert (await stream.until("gallery"))[-1].data == {"outputs": [], "is_all": False}
        await user.call("DELETE", f"/api/collections/{collection}")
        assert (await stream.until("gallery"))[-1].data == {"outputs": [], "is_all": True}
    async with follow_all(user, last_event_id=first.id) as stream:
        missed = await stream.until("queue")
    assert [(event.type, event.data) for event in missed if event.type == "gallery"] == [
        ("gallery", {"outputs": [output], "is_all": True})
    ]


async def test_missed_changes_are_replayed_after_a_reconnect(
    api: Api, user: Caller, effect: int, worker: Caller
) -> None:
    async with follow_all(user) as stream:
        [first] = await stream.until("queue")
    missed = await run(api, user, worker, effect)
    failed = await submit(user, effect)
    await fail(api, worker, await lease(worker))
    async with follow_all(user, last_event_id=first.id) as stream:
        [event, _queue] = await stream.until("queue")
        assert {job["id"]: job["status"] for job in event.data["jobs"]} == {
            missed["id"]: "completed",
            failed["id"]: (await user.get(f"/api/ai-jobs/{failed['id']}"))["status"],
        }
    # a client that has received the changes gets none
    async with follow_all(user, last_event_id=event.id) as stream:
        [again, _queue] = await stream.until("queue")
        assert again.data == {"jobs": [], "batches": [], "removed": []}


async def test_unusable_cursor_becomes_a_reset(
    api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with follow_all(user) as stream:
        [first] = await stream.until("queue")
    assert first.id is not None
    txid, at = map(int, first.id.split("-"))
    monkeypatch.setattr(live, "MAX_JOBS", 2)
    for _ in range(3):
        await submit(user, effect)
    nonsense = ["x", "-", "1-", f"{txid}-{'9' * 30}", "9" * 150]
    from_the_future, too_old, too_many = f"{txid + 10**6}-{at}", f"{txid}-{at - 4000}", first.id
    for cursor in (*nonsense, from_the_future, too_old, too_many):
        async with follow_all(user, last_event_id=cursor) as stream:
            [event, queue] = await stream.until("queue")
            assert (event.type, event.data) == ("reset", {}), cursor
            assert queue.data["counts"]["queued"] == 3


async def test_idle_stream_sends_keep_alives_with_a_new_cursor(user: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "KEEP_ALIVE_SECONDS", 0.05)
    async with follow_all(user) as stream:
        [first] = await stream.until("queue")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (text := await stream._comments.get()).startswith(": still here\nid: "):
                pass
        assert int(text.rpartition(" ")[2].split("-")[0]) >= int((first.id or "").split("-")[0])


async def test_stream_contains_only_the_tenants_changes(api: Api, user: Caller, effect: int) -> None:
    other = await api.user("eve@example.com", tokens=10)
    async with follow_all(other) as stream:
        await stream.until("queue")
        await submit(user, effect)
        mine = await submit(other, effect)
        event = await wait_for_status(stream, mine["id"], "queued")
        assert [job["id"] for job in event.data["jobs"]] == [mine["id"]]


async def test_two_hundred_open_pages_cost_one_load(
    api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    encoded: list[Any] = []
    load, encode = live.LiveUpdates.load, route._encode

    async def counted(self: live.LiveUpdates, tenant_id: str, found: Any) -> Any:
        loads.append(tenant_id)
        return await load(self, tenant_id, found)

    def counted_encoding(message: following.StreamMessage[live.LiveMessage]) -> str:
        encoded.append(message.content)
        return encode(message)

    monkeypatch.setattr(route, "_encode", counted_encoding)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(follow_all(user)) for _ in range(200)]
        for stream in streams:
            await stream.until("queue")
        assert api.engine.jobs.live.subscribers == 200
        monkeypatch.setattr(live.LiveUpdates, "load", counted)
        job = await submit(user, effect)
        for stream in streams:
            await wait_for_status(stream, job["id"], "queued")
    assert len(loads) == 1
    assert sum(isinstance(item, live.Changed) for item in encoded) == 1
    assert api.engine.jobs.live.subscribers == 0


async def test_slow_reader_gets_a_reset(api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_UNREAD", 3)
    hub = api.engine.jobs.live
    tenant_id = (await user.get("/api/me"))["tenant_id"]
    slow = hub.subscribe(tenant_id, cursor=None, quiet_seconds=PATIENCE_SECONDS)
    await anext(slow)
    [tenant] = hub._readers[await api.engine.databases.shard_name_of(tenant_id)].tenants.values()
    [subscriber] = tenant.subscribers
    for number in range(10):
        tenant.send(following.StreamMessage(content=following.Reset() if number == 9 else [], cursor=str(number)))
        assert len(subscriber._unread) <= 3
    heard = [subscriber.pop() for _ in range(len(subscriber._unread))]
    assert isinstance(heard[0].content, following.Reset)  # type: ignore[union-attr]
    await slow.aclose()


async def test_changes_of_another_process_are_streamed(
    api: Api, user: Caller, effect: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(user, effect)
    async with follow_all(user) as stream:
        await stream.until("queue")
        # no wakeup: this process has not seen the change
        monkeypatch.setattr(api.engine.outbox.applier, "_on_applied", lambda *_: None)
        await user.post(f"/api/ai-jobs/{job['id']}/cancel")
        await wait_for_status(stream, job["id"], "canceled")


@pytest.mark.parametrize("which", [0, 1])
async def test_started_read_finishes_after_a_disconnect(
    api: Api, user: Caller, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """A cancelled read loses its connection: first the read of the start position, then the read of missed changes."""
    hub, horizon, calls, broken = api.engine.jobs.live, changes.horizon, iter(range(9)), []
    is_reading, may_continue, is_read = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(tx: Any) -> changes.Horizon:
        if next(calls) != which:
            return await horizon(tx)
        is_reading.set()
        try:
            await may_continue.wait()
        except asyncio.CancelledError:
            broken.append(which)
            raise
        finally:
            is_read.set()
        return await horizon(tx)

    monkeypatch.setattr(changes, "horizon", slow)
    # otherwise, the hub loop would read the horizon, too
    monkeypatch.setattr(live, "TICK_SECONDS", PATIENCE_SECONDS)
    tenant_id = (await user.get("/api/me"))["tenant_id"]
    following = hub.subscribe(tenant_id, cursor="1-1", quiet_seconds=PATIENCE_SECONDS)
    first = asyncio.ensure_future(anext(following))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await is_reading.wait()
        first.cancel()
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], asyncio.CancelledError)
        assert hub.subscribers == 0
        may_continue.set()
        await is_read.wait()
    assert broken == []


async def test_stalled_reader_is_dropped(api: Api, user: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.05)
    hub, sent = api.engine.jobs.live, []
    tenant_id = (await user.get("/api/me"))["tenant_id"]

    async def stream_messages() -> AsyncGenerator[str, None]:
        async with aclosing(hub.subscribe(tenant_id, cursor=None, quiet_seconds=PATIENCE_SECONDS)) as messages:
            async for message in messages:
                assert hub.subscribers == 1
                yield str(message)

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await streams.EventStreamResponse(stream_messages()).stream_response(send)
    assert (sent, hub.subscribers) == (["http.response.start", "http.response.body"], 0)


async def test_shutdown_ends_streams(api: Api, user: Caller) -> None:
    async with follow_all(user) as stream:
        await stream.until("queue")
        await api.context.stop_waiting()
        assert await stream.rest() == []
    async with follow_all(user) as stream:
        assert await stream.rest() == []


async def test_stream_ends_periodically_to_reauthenticate(user: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAM_SECONDS", -1.0)
    async with follow_all(user) as stream:
        assert [event.type for event in await stream.rest()] == ["queue"]


class TestLateCommits:
    async def test_late_commit_is_streamed(self, api: Api, user: Caller, effect: int) -> None:
        """On PostgreSQL, its number is lower than numbers already sent. On SQLite, later changes wait for it."""
        jobs = [await submit(user, effect) for _ in range(3)]
        tenant_id = (await user.get("/api/me"))["tenant_id"]
        shard = await api.engine.databases.shard_of(tenant_id)
        is_sqlite = shard.dialect == "sqlite"
        written, may_commit = asyncio.Event(), asyncio.Event()

        async def late(tx: Any) -> None:
            await changes.write(tx, {tenant_id: [jobs[0]["id"]]})
            await tx.flush()
            written.set()
            await may_commit.wait()

        async with follow_all(user) as stream:
            [first] = await stream.until("queue")
            committing = asyncio.create_task(shard.run("test", late))
            await written.wait()
            other = asyncio.create_task(shard.run("test", lambda tx: changes.write(tx, {tenant_id: [jobs[1]["id"]]})))
            before = first if is_sqlite else await wait_for_status(stream, jobs[1]["id"], "queued")
            assert is_sqlite or [job["id"] for job in before.data["jobs"]] == [jobs[1]["id"]]
            may_commit.set()
            await asyncio.gather(committing, other)
            # both the connected client and the reconnected one receive it
            await wait_for_status(stream, jobs[0]["id"], "queued")
        async with follow_all(user, last_event_id=before.id) as stream:
            [missed, _queue] = await stream.until("queue")
            assert jobs[0]["id"] in {job["id"] for job in missed.data["jobs"]}
