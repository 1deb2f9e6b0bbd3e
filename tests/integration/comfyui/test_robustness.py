"""The client handles careless callers and an unreliable network."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from comfyrelay.comfyui import ComfyClient, RunTimeouts, Step
from comfyrelay.errors import Conflict, GraphError, InvalidInput, RunInterrupted, ServerRefused, ServerUnreachable
from comfyrelay.http_client import NotConnected, PortClosed
from comfyrelay.simulator import DropSocket, Refuse, Simulator, Slow, SlowHttp
from tests.integration.comfyui.event_listener import Listener
from tests.support.graphs import PNG, invert
from tests.support.world import PATIENCE_SECONDS


class TestClosing:
    async def test_leaving_a_stream_and_the_client_stops_the_run(self, simulator: Simulator) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        async with ComfyClient(simulator.url) as comfy:
            async for event in comfy.stream(invert()):
                if isinstance(event, Step):
                    break
        assert simulator.log.interrupts == 1

    async def test_closing_stops_running_calls_with_a_clear_error(self, simulator: Simulator) -> None:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        listener = Listener()
        comfy = ComfyClient(simulator.url)
        run = asyncio.create_task(comfy.run(invert(), on_event=listener))
        await listener.received(Step)
        await comfy.close()
        with pytest.raises(RunInterrupted, match="client was closed"):
            await run
        assert simulator.log.interrupts == 1

    async def test_closed_client_raises_a_clear_error(self, simulator: Simulator) -> None:
        comfy = ComfyClient(simulator.url)
        await comfy.close()
        with pytest.raises(Conflict, match="closed"):
            await comfy.check()


class TestListeners:
    async def test_failing_listener_does_not_affect_runs(self, simulator: Simulator, comfy: ComfyClient) -> None:
        def fails(_event: object) -> None:
            raise RuntimeError("raised by the listener")

        assert (await comfy.run(invert(), on_event=fails)).files
        listener = Listener()
        await comfy.run(invert(color=9), on_event=listener)
        assert "NodeStarted" in listener.kinds


class TestManyAtOnce:
    async def test_waiting_runs_share_queue_requests(self, simulator: Simulator, comfy: ComfyClient) -> None:
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=1.5, steps=15, times=1))
        await asyncio.gather(*(comfy.run(invert(color)) for color in range(30)))
        assert slow.happened == 1
        # Without sharing, there would be more than one request per run.
        assert simulator.log.count("GET", "/queue") < 30

    async def test_later_runs_get_events_after_a_dropped_socket(self, simulator: Simulator, comfy: ComfyClient) -> None:
        await comfy.run(invert())
        simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
        await asyncio.gather(*(comfy.run(invert(color)) for color in range(6)))
        listeners = [Listener() for _ in range(6)]
        await asyncio.gather(
            *(comfy.run(invert(color=10 + n), on_event=listener) for n, listener in enumerate(listeners))
        )
        assert all("NodeStarted" in listener.kinds for listener in listeners)


class TestSubmitting:
    async def test_graph_that_is_not_json_is_refused_before_submission(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        values: list[Any] = [float("nan"), Decimal(1), b"bytes", "\ud800"]
        for value in values:
            graph = invert()
            graph["1"]["inputs"]["color"] = value
            with pytest.raises(GraphError, match="cannot be written as JSON"):
                await comfy.run(graph)
        assert simulator.log.prompts_queued == 0

    async def test_cancelling_during_the_submission_leaves_no_run(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        await comfy.check()
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        simulator.misbehave(SlowHttp(seconds=0.3, path="/prompt"))
        run = asyncio.create_task(comfy.run(invert()))
        while simulator.log.count("POST", "/prompt") == 0:  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        simulator.behave()
        assert (await comfy.run(invert(color=9))).files

    async def test_run_that_arrives_after_its_cancellation_is_canceled(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        await comfy.check()
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=60, steps=6000))
        simulator.misbehave(SlowHttp(seconds=0.3, path="/prompt"))
        # the client asks whether the run has arrived, and the answer comes after its arrival
        simulator.misbehave(SlowHttp(seconds=0.6, path="/queue"))
        listener = Listener()
        run = asyncio.create_task(comfy.run(invert(), on_event=listener))
        while simulator.log.count("POST", "/prompt") == 0:  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert slow.happened == 1
        assert simulator.log.interrupts == 1
        assert listener.kinds[0] == "Noted"

    async def test_stalled_server_is_polled_until_it_answers(self, simulator: Simulator, comfy: ComfyClient) -> None:
        simulator.misbehave(Refuse(status=502, path="/prompt", times=1))
        simulator.misbehave(Refuse(status=502, path="/queue", times=1))
        assert (await comfy.run(invert())).files

    async def test_server_stopped_during_submission_fails_the_run_soon(
        self, simulator: Simulator, comfy: ComfyClient
    ) -> None:
        await comfy.check()
        simulator.misbehave(SlowHttp(seconds=30, path="/prompt"))
        run = asyncio.create_task(comfy.run(invert(), timeouts=RunTimeouts(refused_seconds=0.2)))
        while simulator.log.count("POST", "/prompt") == 0:  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.01)
        await simulator.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ServerUnreachable):
                await run


class TestAddresses:
    async def test_password_in_the_address_is_used_and_not_shown(self) -> None:
        async with ComfyClient("http://ada:hunter2@127.0.0.1:1") as comfy:
            assert comfy.url == "http://127.0.0.1:1"
            with pytest.raises(ServerUnreachable) as caught:
                await comfy.check()
        assert "hunter2" not in f"{caught.value} {caught.value.raw}"

    async def test_unknown_host_is_not_a_closed_port(self) -> None:
        async with ComfyClient("http://nowhere.invalid:8188") as comfy:
            with pytest.raises(NotConnected) as caught:
                await comfy.check()
        assert not isinstance(caught.value, PortClosed)

    async def test_proxy_settings_do_not_apply_to_this_machine(
        self, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        listener = Listener()
        async with ComfyClient(simulator.url) as comfy:
            await comfy.run(invert(), on_event=listener)
        assert "NodeStarted" in listener.kinds

    async def test_headers_do_not_follow_a_redirect(self, simulator: Simulator) -> None:
        seen: list[str | None] = []

        async def elsewhere(request: web.Request) -> web.Response:
            seen.append(request.headers.get("X-API-Key"))
            return web.Response()

        async with SingleAnswerServer(elsewhere) as other:

            async def redirect(request: web.Request) -> web.Response:
                raise web.HTTPFound(f"{other}{request.path}")

            async with (
                SingleAnswerServer(redirect) as proxy,
                ComfyClient(proxy, headers={"X-API-Key": "secret"}) as comfy,
            ):
                with pytest.raises(ServerRefused):
                    await comfy.check()
                await comfy._router.socket.ready(5)
        assert seen == []

    async def test_html_answer_is_reported_as_such(self) -> None:
        async def page(_request: web.Request) -> web.Response:
            return web.Response(text="<html>hello</html>", content_type="text/html")

        async with SingleAnswerServer(page) as url, ComfyClient(url) as comfy:
            with pytest.raises(ServerRefused, match="is not a ComfyUI server"):
                await comfy.check()

    async def test_malformed_queue_and_history_fail_the_run(self) -> None:
        async def odd(request: web.Request) -> web.Response:
            if request.method == "POST":
                return web.json_response({"prompt_id": "x", "number": 1, "node_errors": {}})
            return web.json_response([None])

        async with SingleAnswerServer(odd) as url, ComfyClient(url) as comfy:
            with pytest.raises(ServerRefused):
                await comfy.run(invert(), timeouts=RunTimeouts(unreachable_seconds=0.2))


class TestFiles:
    @pytest.mark.parametrize("digest", ["../../evil", "abc", "G" * 64])
    async def test_invalid_content_hash_is_refused(self, comfy: ComfyClient, digest: str) -> None:
        with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
            await comfy.upload(PNG, content_hash=digest)

    async def test_concurrent_downloads_to_one_path_do_not_collide(self, comfy: ComfyClient, tmp_path: Path) -> None:
        result = await comfy.run(invert())
        sizes = await asyncio.gather(*(comfy.download(result.file, tmp_path / "out.png") for _ in range(4)))
        assert len(set(sizes)) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


class SingleAnswerServer:
    """A server that gives the same answer to every request."""

    def __init__(self, handler: Any) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{port}"

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()
