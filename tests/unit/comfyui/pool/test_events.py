import asyncio
import gc
from typing import Any

import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool import (
    ClientState,
    ClientStateChanged,
    EventStream,
    JobCompleted,
    JobPreview,
    JobProgress,
    JobQueued,
    PoolEvent,
    PoolJobEvent,
)
from comfyrelay.comfyui.pool import events as event_module
from comfyrelay.comfyui.pool.bus import Bus
from comfyrelay.comfyui.pool.events import EVENT_CLASSES
from comfyrelay.errors import InvalidInput
from tests.support.pool import until

FACTS: dict[str, Any] = {"workflow_hash": "w", "metadata": {}, "client_id": "a", "attempt": 1}


def queued(job_id: str = "j") -> JobQueued:
    return JobQueued(job_id=job_id, priority=0, **FACTS)


def progress(value: float) -> JobProgress:
    return JobProgress(job_id="j", prompt_id="p", node_id="1", class_type="A", progress=value, **FACTS)


def preview() -> JobPreview:
    return JobPreview(job_id="j", prompt_id="p", node_id="1", image=b"", mime_type="image/jpeg", **FACTS)


def completed(job_id: str = "j") -> JobCompleted:
    return JobCompleted(job_id=job_id, result=RunResult(prompt_id="p"), **FACTS)


async def rest(stream: EventStream[Any]) -> list[PoolEvent]:
    stream.close()
    return [event async for event in stream]


def test_every_event_can_be_subscribed_to_by_its_type() -> None:
    classes = {var for var in vars(event_module).values() if isinstance(var, type) and issubclass(var, PoolEvent)}
    assert set(EVENT_CLASSES.values()) == classes - {PoolJobEvent}
    assert set(EVENT_CLASSES) == {
        *("*", "pool:ready", "client:state", "client:blocked_workflow", "client:unblocked_workflow"),
        *(
            "job:queued",
            "job:accepted",
            "job:started",
            "job:progress",
            "job:preview",
            "job:output",
            "job:printed",
            "job:noted",
        ),
        *("job:completed", "job:failed", "job:retrying", "job:canceled"),
    }


async def test_stream_keeps_the_order() -> None:
    stream: EventStream[PoolEvent] = EventStream(limit=10)
    events = [queued(), progress(0.1), preview(), completed()]
    for event in events:
        stream.put(event)
    assert await rest(stream) == events
    assert stream.dropped == 0


async def test_slow_reader_loses_progress_events_first() -> None:
    stream: EventStream[PoolEvent] = EventStream(limit=3)
    first = queued("1")
    for event in (first, progress(0.1), preview()):
        stream.put(event)
    second, end = queued("2"), completed("1")
    stream.put(second)
    stream.put(end)
    assert stream.dropped == 2
    assert await rest(stream) == [first, second, end]


async def test_final_events_are_never_dropped_from_a_full_buffer() -> None:
    stream: EventStream[PoolEvent] = EventStream(limit=2)
    stream.put(queued("0"))
    for number in range(5):
        stream.put(completed(str(number)))
    assert [event.type for event in await rest(stream)] == ["job:completed"] * 5


async def test_oldest_progress_is_dropped_after_a_read() -> None:
    stream: EventStream[PoolEvent] = EventStream(limit=2)
    stream.put(progress(0.1))
    stream.put(progress(0.2))
    assert await anext(stream) == progress(0.1)
    stream.put(progress(0.3))
    stream.put(progress(0.4))
    assert await rest(stream) == [progress(0.3), progress(0.4)]


async def test_reader_waits_for_the_next_event_and_for_the_end() -> None:
    stream: EventStream[PoolEvent] = EventStream(limit=2)
    reader = asyncio.create_task(until(stream, JobCompleted))
    await asyncio.sleep(0)
    stream.put(queued())
    stream.put(completed())
    assert await reader == completed()
    last = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    stream.close()
    assert await last is None


async def test_callbacks_get_their_events_until_they_unsubscribe() -> None:
    bus = Bus(buffer_size=10)
    by_type: list[PoolEvent] = []
    by_class: list[PoolEvent] = []
    every: list[PoolEvent] = []
    leave = bus.on("job:queued", by_type.append)
    bus.on(PoolJobEvent, by_class.append)
    bus.on("*", every.append)
    state = ClientStateChanged(client_id="a", state=ClientState.ONLINE)
    bus.emit(queued())
    bus.emit(state)
    leave()
    leave()
    bus.emit(queued())
    assert by_type == [queued()]
    assert by_class == [queued(), queued()]
    assert every == [queued(), state, queued()]


async def test_asynchronous_callbacks_are_finished_before_the_end() -> None:
    bus = Bus(buffer_size=10)
    heard: list[str] = []
    go_on = asyncio.Event()

    async def listen(event: JobQueued) -> None:
        await go_on.wait()
        heard.append(event.job_id)

    bus.on(JobQueued, listen)
    bus.emit(queued("1"))
    bus.emit(queued("2"))
    asyncio.get_running_loop().call_soon(go_on.set)
    await bus.close()
    assert heard == ["1", "2"]


async def test_failing_callback_does_not_affect_others() -> None:
    bus = Bus(buffer_size=10)
    heard: list[PoolEvent] = []

    async def fail_later(_event: PoolEvent) -> None:
        raise ValueError("later")

    def fail(_event: PoolEvent) -> None:
        raise ValueError("now")

    bus.on("*", fail)
    bus.on("*", fail_later)
    bus.on("*", heard.append)
    with capture_logs() as logs:
        bus.emit(queued())
        await bus.close()
    assert heard == [queued()]
    assert [entry["event"] for entry in logs] == ["pool.callback_failed"] * 2


async def test_unknown_event_name_is_refused() -> None:
    bus = Bus(buffer_size=10)
    with pytest.raises(InvalidInput, match="job:canceled"):
        bus.on("job:cancelled", print)
    with pytest.raises(InvalidInput, match="job:done"):
        bus.stream("job:done")


async def test_streams_are_filtered_and_end_with_the_bus() -> None:
    bus = Bus(buffer_size=10)
    ends, everything = bus.stream("job:completed"), bus.stream()
    bus.emit(queued())
    bus.emit(completed())
    await bus.close()
    assert [event async for event in ends] == [completed()]
    assert [event async for event in everything] == [queued(), completed()]
    assert [event async for event in bus.stream()] == []


async def test_abandoned_stream_is_dropped() -> None:
    bus = Bus(buffer_size=10)
    stream = bus.stream()
    bus.emit(queued())
    async for _ in stream:
        break
    del stream
    gc.collect()
    assert len(bus._streams) == 0
