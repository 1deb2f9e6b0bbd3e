"""A job has one trace across server and worker, which a real OTLP receiver receives."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from comfyrelay.simulator import Fail
from tests.support.whole_system import System, open_system

SERVER, WORKER = "comfyrelay-server", "comfyrelay-worker"
# The process and the parent of each span.
COMPLETED = {
    "job.submit": (SERVER, None),
    "job.wait": (SERVER, "job.submit"),
    "job.lease": (SERVER, "job.submit"),
    "job.run": (WORKER, "job.lease"),
    "job.inputs": (WORKER, "job.run"),
    "comfyui.run": (WORKER, "job.run"),
    "job.upload": (WORKER, "job.run"),
    "job.complete": (SERVER, "job.run"),
}
# A program that prints the modules of a process without tracing.
OFF = """
import sys
from comfyrelay import traces
import comfyrelay.cli.servers.worker, comfyrelay.server.worker.api, comfyrelay.worker.jobs.job
with traces.exporting(None, service="s"):
    traces.record("job.submit", "j", begin=0.0)
    with traces.span("job.run", "j", parent="j"):
        pass
    assert not traces.is_on()
print(*sys.modules)
"""


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[str, list[tuple[str, Span]]]]:
    """Run an OTLP receiver; yield its URL, and all spans with the service that sent them."""
    received: list[tuple[str, Span]] = []

    async def take(request: web.Request) -> web.Response:
        for found in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            named = {attribute.key: attribute.value.string_value for attribute in found.resource.attributes}
            received.extend((named["service.name"], span) for scope in found.scope_spans for span in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces", received
    await runner.cleanup()


def tree(spans: list[tuple[str, Span]], job_id: str) -> dict[str, tuple[str, str | None]]:
    """Return the spans of a job by name, with their service and the name of their parent."""
    found = [(service, span) for service, span in spans if span.trace_id == UUID(job_id).bytes]
    names = {span.span_id: span.name for _, span in found}
    assert len(names) == len(found)
    return {
        span.name: (service, names[span.parent_span_id] if span.parent_span_id else None) for service, span in found
    }


async def stop_all(system: System) -> None:
    """Stop the processes, so that they send their last spans."""
    await system.check()
    await system.restart_server()


async def test_job_has_one_trace_from_submission_to_completion(tmp_path: Path) -> None:
    async with receiver() as (url, spans), open_system(tmp_path, {}, settings={"TRACES_URL": url}) as system:
        effect_id = await system.effect()
        await system.started(traces_url=url)
        first, second = [await system.image(effect_id) for _ in range(2)]
        for job_id in (first, second):
            assert await system.completed(job_id)
        await stop_all(system)
        for job_id in (first, second):
            assert tree(spans, job_id) == COMPLETED
        by_name = {span.name: span for _, span in spans if span.trace_id == UUID(first).bytes}
        begin, end = by_name["job.submit"], by_name["job.complete"]
        assert begin.start_time_unix_nano <= by_name["job.run"].start_time_unix_nano <= end.end_time_unix_nano
        attributes = {found.key: found.value.string_value for found in by_name["job.run"].attributes}
        assert attributes == {"comfyrelay.job_id": first, "comfyrelay.worker_id": "gpu-1"}


async def test_failed_run_has_an_error_without_its_text(tmp_path: Path) -> None:
    async with receiver() as (url, spans), open_system(tmp_path, {}, settings={"TRACES_URL": url}) as system:
        effect_id = await system.plain_effect()
        await system.started(traces_url=url)
        system.simulator.misbehave(Fail(class_type="ImageInvert", message="tensor sizes must match"))
        job_id = await system.plain(effect_id)
        await system.until(job_id, "failed")
        await stop_all(system)
        found = {span.name: span for _, span in spans if span.trace_id == UUID(job_id).bytes}
        assert found.keys() == {
            "job.submit",
            "job.wait",
            "job.lease",
            "job.run",
            "job.inputs",
            "comfyui.run",
            "job.fail",
        }
        assert found["comfyui.run"].status.code == Status.STATUS_CODE_ERROR
        assert "tensor" not in str(found)


def test_without_the_setting_the_sdk_is_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True)
    assert "comfyrelay.worker.jobs.job" in done.stdout
    # FastAPI imports the plain API if it is installed.
    assert not {"comfyrelay.traces.exporter", "opentelemetry.sdk"} & {*done.stdout.split()}
