"""On any server, a run always ends with its result or with an error that names the fault."""

import asyncio
import io

import pytest
from PIL import Image
from structlog.testing import capture_logs

from comfyrelay.comfyui import Attachment, ComfyClient, NodeStarted, RunTimeouts, Step
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import (
    ComfyError,
    DeviceFault,
    Fault,
    InputMissing,
    NodeFailed,
    NoOutput,
    NotInstalled,
    OutOfMemory,
    RunLost,
    RunTimedOut,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.simulator import (
    DropSocket,
    EmptyOutputs,
    ErrorBeforeQueueing,
    Fail,
    MissingModel,
    NewKinds,
    Refuse,
    Restart,
    SilentSocket,
    Simulator,
    Slow,
    SlowHttp,
    Stuck,
    Vary,
)
from comfyrelay.simulator import OutOfMemory as RunOutOfMemory
from tests.integration.comfyui.event_listener import Listener
from tests.support.graphs import invert, invert_file


@pytest.mark.parametrize("what", [DropSocket(class_type="ImageInvert"), SilentSocket(class_type="ImageInvert")])
async def test_failing_socket_does_not_fail_the_run(
    simulator: Simulator, comfy: ComfyClient, what: DropSocket | SilentSocket
) -> None:
    simulator.misbehave(what)
    simulator.misbehave(Slow(class_type="SaveImage", seconds=0.3))
    assert (await comfy.run(invert())).files


async def test_server_without_a_socket_runs_graphs(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Refuse(status=503, path="/ws"))
    assert (await comfy.run(invert())).files


async def test_restart_during_a_run_is_reported_as_a_loss(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Restart(class_type="ImageInvert", times=1, down_seconds=0.1))
    with pytest.raises(RunLost) as caught:
        await comfy.run(invert())
    assert caught.value.fault is Fault.WORKER
    # The server can be used again.
    assert (await comfy.run(invert())).files


async def test_stopped_server_fails_the_run_soon(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
    listener = Listener()
    run = asyncio.create_task(comfy.run(invert(), on_event=listener, timeouts=RunTimeouts(refused_seconds=0.3)))
    await listener.received(Step)
    await simulator.stop()
    with pytest.raises(ServerUnreachable) as caught:
        await run
    assert caught.value.fault is Fault.WORKER


async def test_run_waits_for_a_slow_server(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(SlowHttp(seconds=0.3, path="/history"))
    simulator.misbehave(SlowHttp(seconds=0.3, path="/prompt"))
    assert (await comfy.run(invert())).files


async def test_status_502_is_retried(simulator: Simulator, comfy: ComfyClient) -> None:
    refused = simulator.misbehave(Refuse(status=502, path="/history", times=2))
    assert (await comfy.run(invert())).files
    assert refused.happened == 2


async def test_status_500_that_queued_nothing_is_retried(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(ErrorBeforeQueueing(times=2))
    assert (await comfy.run(invert())).files
    assert simulator.log.prompts_queued == 1


async def test_repeated_status_500_fails_the_run(simulator: Simulator, comfy: ComfyClient) -> None:
    failing = simulator.misbehave(ErrorBeforeQueueing())
    with pytest.raises(ComfyError, match="500") as caught:
        await comfy.run(invert())
    assert caught.value.fault is Fault.WORKER
    assert failing.happened == 3


async def test_outputs_vary_from_run_to_run_on_request(simulator: Simulator, comfy: ComfyClient) -> None:
    async def saved(prefix: str) -> bytes:
        [file] = (await comfy.run(invert(prefix=prefix))).files
        return b"".join([piece async for piece in comfy.read(file)])

    simulator.misbehave(Vary(class_type="SaveImage"))
    # The image is the same, but it is in another file.
    first, second = await saved("a"), await saved("b")
    assert Image.open(io.BytesIO(first)).tobytes() == Image.open(io.BytesIO(second)).tobytes()
    assert Image.open(io.BytesIO(first)).info["drawn"] != Image.open(io.BytesIO(second)).info["drawn"]


async def test_success_without_outputs_is_tried_once_more(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(EmptyOutputs(times=1))
    assert (await comfy.run(invert())).files
    assert simulator.log.prompts_queued == 2


async def test_success_without_outputs_twice_is_an_error(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(EmptyOutputs())
    with pytest.raises(NoOutput) as caught:
        await comfy.run(invert())
    assert caught.value.fault is Fault.JOB
    assert simulator.log.prompts_queued == 2


async def test_unknown_message_state_and_output_are_logged_once_and_passed_on(
    simulator: Simulator, comfy: ComfyClient
) -> None:
    simulator.misbehave(NewKinds())
    with capture_logs() as logs:
        results = [await comfy.run(invert()) for _ in range(2)]
    assert [dict(result.texts) for result in results] == [{"3": ('{"depth": 3}',)}] * 2
    assert simulator.log.prompts_queued == 2
    unknown = sorted((log["event"], log["kind"]) for log in logs if "unknown" in log["event"])
    assert unknown == [
        ("comfyui.unknown_message", "hologram_ready"),
        ("comfyui.unknown_output", "hologram"),
        ("comfyui.unknown_status", "archived"),
    ]


async def test_out_of_memory_is_the_workers_fault(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(RunOutOfMemory(class_type="ImageInvert"))
    with pytest.raises(OutOfMemory, match=r"ImageInvert \(2\): there was not enough memory") as caught:
        await comfy.run(invert())
    assert caught.value.fault is Fault.WORKER


@pytest.mark.parametrize(
    ("what", "kind", "fault"),
    [
        (
            Fail(exception_type="RuntimeError", message="CUDA error: device-side assert triggered"),
            DeviceFault,
            "worker",
        ),
        (Fail(exception_type="ModuleNotFoundError", message="No module named 'x'"), NodeFailed, "worker"),
        (Fail(exception_type="ValueError", message="bad shape in /srv/ComfyUI/nodes.py"), NodeFailed, "job"),
    ],
)
async def test_error_of_a_node_has_a_fault(
    simulator: Simulator, comfy: ComfyClient, what: Fail, kind: type[ComfyError], fault: str
) -> None:
    simulator.misbehave(what)
    with pytest.raises(kind) as caught:
        await comfy.run(invert())
    assert caught.value.fault == fault
    assert "/" not in caught.value.detail
    assert caught.value.raw is not None
    assert "Traceback" in caught.value.raw or "traceback" in caught.value.raw


async def test_missing_model_is_the_workers_fault(comfy: ComfyClient, simulator: Simulator) -> None:
    loader: Graph = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15.safetensors"}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 2]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
    }
    simulator.misbehave(MissingModel(model="sd15.safetensors"))
    with pytest.raises(NotInstalled, match=r"sd15\.safetensors") as caught:
        await comfy.run(loader)
    assert caught.value.fault is Fault.WORKER


async def test_missing_input_file_is_not_the_jobs_fault(comfy: ComfyClient) -> None:
    with pytest.raises(InputMissing) as caught:
        await comfy.run(invert_file("gone.png"))
    assert caught.value.fault is Fault.WORKER


async def test_broken_image_is_the_jobs_fault(comfy: ComfyClient) -> None:
    with pytest.raises(NodeFailed, match="not an image") as caught:
        await comfy.run(
            invert_file(), attachments=[Attachment(node="1", input="image", source=b"no image", name="a.png")]
        )
    assert caught.value.fault is Fault.JOB


class TestTimeLimits:
    async def test_stuck_node_times_out(self, simulator: Simulator, comfy: ComfyClient) -> None:
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        with pytest.raises(RunTimedOut, match=r"showed no progress \(0\.2 s\)") as caught:
            await comfy.run(invert(), timeouts=RunTimeouts(node_seconds=0.2))
        assert caught.value.fault is Fault.WORKER
        assert simulator.log.interrupts == 1
        stuck.end()

    async def test_node_that_shows_progress_is_not_stuck(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=3.0, steps=30))
        assert (await comfy.run(invert(), timeouts=RunTimeouts(node_seconds=2.5))).files

    async def test_loading_models_extends_the_first_timeout(self, simulator: Simulator, comfy: ComfyClient) -> None:
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert", times=1))
        listener = Listener()
        loads = invert() | {"7": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15.safetensors"}}}
        with pytest.raises(RunTimedOut, match=r"\(0\.6 s\)"):
            await comfy.run(loads, on_event=listener, timeouts=RunTimeouts(node_seconds=0.3))
        stuck.end()
        # The model is now loaded.
        assert (await comfy.run(loads)).files
        simulator.misbehave(Stuck(class_type="ImageInvert"))
        changed = loads | {"1": invert(color=9)["1"]}
        with pytest.raises(RunTimedOut, match=r"\(0\.3 s\)"):
            await comfy.run(changed, timeouts=RunTimeouts(node_seconds=0.3))

    async def test_long_run_times_out(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        with pytest.raises(RunTimedOut, match=r"took too long \(0\.3 s\)"):
            await comfy.run(invert(), timeouts=RunTimeouts(run_seconds=0.3))
        simulator.behave()
        assert (await comfy.run(invert(color=9))).files

    async def test_queued_run_times_out(self, simulator: Simulator, comfy: ComfyClient) -> None:
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        listener = Listener()
        first = asyncio.create_task(comfy.run(invert(), on_event=listener))
        await listener.received(Step)
        with pytest.raises(RunTimedOut, match="waited too long behind other runs"):
            await comfy.run(invert(color=9), timeouts=RunTimeouts(queue_seconds=0.3))
        assert not first.done()
        slow.end()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_silent_socket_is_not_a_stuck_node(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.check()
        listener = Listener()
        simulator.misbehave(SilentSocket(class_type="EmptyImage", times=1))
        await comfy.run(invert(), on_event=listener)
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.8))
        assert (await comfy.run(invert(color=9), timeouts=RunTimeouts(node_seconds=0.2))).files


async def test_refusal_of_the_server_is_reported(simulator: Simulator, comfy: ComfyClient) -> None:
    simulator.misbehave(Refuse(status=403, path="/prompt"))
    with pytest.raises(ServerRefused, match="refused access"):
        await comfy.run(invert())


async def test_server_that_is_not_comfyui_is_refused(simulator: Simulator) -> None:
    async with Simulator(cloud=True) as other, ComfyClient(other.url) as comfy:
        with pytest.raises(ServerRefused):
            await comfy.check()


async def test_events_before_the_answer_are_not_lost(simulator: Simulator, comfy: ComfyClient) -> None:
    await comfy.check()
    simulator.misbehave(SlowHttp(seconds=0.3, path="/prompt"))
    listener = Listener()
    await comfy.run(invert(), on_event=listener)
    assert sum(isinstance(event, NodeStarted) for event in listener.events) == 3
