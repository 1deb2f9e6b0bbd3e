"""The client over a real socket: files, jobs, events over an unreliable network, and errors that say what to do."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from comfyrelay.client import DEFAULT_URL, Client, Job, JobEvent
from comfyrelay.client.events import parsed
from comfyrelay.client.files import media_type, safe_name
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import (
    ComfyRelayError,
    ConfigurationError,
    Conflict,
    ControlPlaneUnreachable,
    InvalidInput,
    NotFound,
    TransferFailed,
    Unauthorized,
)
from comfyrelay.http_client import listen
from comfyrelay.store.tenant import jobs as store_jobs
from tests.support.api_calls import complete, fail, lease, lease_of, png, run
from tests.support.client_site import Site
from tests.support.network_proxy import Proxy
from tests.support.webhook_receiver import open_receiver
from tests.support.world import GRAPH, PATIENCE_SECONDS, PROMPT, execute

INPUT = {"key": "image", "type": "image", "placeholder": "{{INPUT}}", "is_primary_input": True, "required": True}


async def own_workflow(site: Site) -> str:
    created = await site.client.create_workflow(
        GRAPH, name="clip of mine", properties=[PROMPT, INPUT], output_node_id="3", output_extension="png"
    )
    return str(created.slug)


# Files


async def test_uploaded_file_runs_through_a_private_workflow(site: Site, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(png("red"))
    slug = await own_workflow(site)
    assert [workflow.slug for workflow in await site.client.workflows()] == [slug]
    file_id = await site.client.upload(picture)
    job = await site.client.submit(workflow_slug=slug, input_file_id=file_id, input_payload={"prompt": "a boat"})
    assert (job.status, job.input_file_id) == ("queued", file_id)


async def test_large_file_is_uploaded_whole(site: Site, tmp_path: Path) -> None:
    clip = tmp_path / "long.mp4"
    clip.write_bytes(bytes(range(256)) * 4000)
    file_id = await site.client.upload(clip)
    stored = await site.api.engine.objects.get(f"tenants/{site.tenant_id}/uploads/{file_id}.mp4")
    assert hashlib.sha256(stored).digest() == hashlib.sha256(clip.read_bytes()).digest()


async def test_files_are_uploaded_once_and_the_first_failure_is_named(site: Site, tmp_path: Path) -> None:
    pictures = [tmp_path / f"{n}.png" for n in range(6)]
    for picture in pictures:
        picture.write_bytes(png())
    sent: list[Path] = []
    ids = await site.client.upload_all([*pictures, pictures[0]], on_sent=sent.append)
    assert list(ids) == pictures
    assert len(set(ids.values())) == 6
    assert sorted(sent) == pictures
    with pytest.raises(InvalidInput, match=r"There is no file .*gone\.png\."):
        await site.client.upload_all([*pictures, tmp_path / "gone.png"])


async def test_unusable_file_is_refused_before_the_upload(site: Site, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.png").touch()
    with pytest.raises(InvalidInput, match=r"notes\.txt does not look like an image, video or audio file"):
        await site.client.upload(tmp_path / "notes.txt")
    with pytest.raises(InvalidInput, match="is empty"):
        await site.client.upload(tmp_path / "empty.png")
    assert media_type(Path("a.WEBP")) == "image/webp"
    assert media_type(Path("a.mkv")) == "video/x-matroska"


async def test_outputs_are_downloaded_under_server_or_chosen_names(site: Site, tmp_path: Path) -> None:
    job = await run(site.api, site.user, site.worker, site.effect_id)
    [path] = await site.client.download_outputs(job["id"], tmp_path / "out")
    assert path == tmp_path / "out" / f"clip-{job['id'][-8:]}.png"
    assert path.read_bytes() == png("blue")
    [named] = await site.client.download_outputs(job["id"], tmp_path, name=lambda _output: "mine.png")
    assert named == tmp_path / "mine.png"
    assert sorted(item.name for item in tmp_path.iterdir() if item.is_file()) == ["mine.png"]


async def test_expired_link_is_renewed(site: Site, tmp_path: Path) -> None:
    job = await run(site.api, site.user, site.worker, site.effect_id)
    old = (await site.client.job(job["id"])).outputs[0]
    await site.api.clock.set(site.api.clock.now + timedelta(days=1))
    path = await site.client._download(job["id"], old, tmp_path / "late.png")
    assert path.read_bytes() == png("blue")


async def test_corrupt_download_leaves_no_file(site: Site, tmp_path: Path) -> None:
    job = await run(site.api, site.user, site.worker, site.effect_id)
    output = (await site.client.job(job["id"])).outputs[0]
    for change in ({"size": 1}, {"content_hash": "0" * 64}):
        wrong = output.model_copy(update=change)
        with pytest.raises(TransferFailed, match="the received data differs"):
            await site.client._files.fetch(wrong, tmp_path / "bad.png")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\cat.png", "cat.png"),
        ("..", "output"),
        ("", "output"),
        ("a b.png", "a b.png"),
    ],
)
def test_hostile_file_name_stays_inside_the_folder(name: str, safe: str) -> None:
    assert safe_name(name) == safe


# Jobs, batches, actions


async def test_same_key_returns_the_same_job(site: Site) -> None:
    first = await site.client.submit(effect_id=site.effect_id, idempotency_key="k")
    again = await site.client.submit(effect_id=site.effect_id, idempotency_key="k")
    other = await site.client.submit(effect_id=site.effect_id)
    assert first.id == again.id != other.id


async def test_batch_is_submitted_listed_and_acted_on(site: Site) -> None:
    items = [{"input_payload": {"prompt": f"boat {n}"}} for n in range(3)]
    batch = await site.client.submit_batch(items, effect_id=site.effect_id, label="boats")
    assert (batch.total, batch.label) == (3, "boats")
    listed = [job async for job in site.client.jobs(batch_id=batch.id, page=2)]
    assert sorted(job.item_no for job in listed) == [0, 1, 2]
    assert (await site.client.pause("batch", batch.id)).message == "3 jobs paused."
    await site.client.resume("batch", batch.id)
    assert (await site.client.batch(batch.id)).counts[JobStatus.QUEUED] == 3
    await site.client.cancel("batch", batch.id)
    assert (await site.client.batch(batch.id)).counts[JobStatus.CANCELED] == 3
    assert [item.id async for item in site.client.batches()] == [batch.id]


async def test_paused_queue_holds_new_jobs_until_it_is_resumed(site: Site) -> None:
    assert (await site.client.pause_queue()).message == (
        "The queue is paused. It holds no jobs yet. Resume it to run new ones."
    )
    job = await site.submit()
    assert (await site.worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is None
    queue = await site.client.queue_counts()
    assert (queue.paused_at is not None, queue.held) == (True, 1)
    waiting = (await site.client.job(job["id"])).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.text) == (
        "queue_paused",
        "The queue is paused. It holds 1 job. Resume it to continue.",
    )
    resumed = await site.client.resume_queue()
    assert (resumed.message, resumed.data.paused_at) == ("The queue is resumed.", None)
    assert (await site.client.resume_queue()).message == "The queue is not paused."
    assert (await lease(site.worker))["job_id"] == job["id"]


async def test_failed_job_is_retried_as_a_new_job(site: Site) -> None:
    job = await site.submit()
    await fail(site.api, site.worker, await lease(site.worker))
    retried = (await site.client.retry("job", job["id"])).data
    assert isinstance(retried, Job)
    assert retried.retry_of == job["id"]


async def test_batch_is_rerun_with_new_seeds(site: Site) -> None:
    seed = {"key": "seed", "type": "number", "placeholder": "{{SEED}}", "default_value": 7}
    graph = {**GRAPH, "2": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}", "seed": "{{SEED}}"}}}
    created = await site.client.create_workflow(
        {key: node for key, node in graph.items() if key != "3"}, properties=[PROMPT, seed], output_extension="png"
    )
    batch = await site.client.submit_batch([{}, {"label": "the second"}], workflow_slug=created.slug, label="boats")
    again = (await site.client.rerun_batch(batch.id, new_seeds=True)).data
    assert (again.total, again.label) == (2, "boats")
    assert again.id != batch.id
    jobs = [job async for job in site.client.jobs(batch_id=again.id)]
    async with (await site.api.engine.databases.shard_of(site.tenant_id)).read() as tx:
        payloads = await store_jobs.payloads(tx, [job.id for job in jobs])
    seeds = {payload["values"]["{{SEED}}"] for payload in payloads.values()}
    assert len(seeds) == 2
    assert 7 not in seeds


# Events and logs


async def test_events_resume_after_a_broken_connection(site: Site) -> None:
    job = await site.submit()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Proxy(site.url) as proxy,
        Client(proxy.url, token=site.token) as client,
        aclosing(client.events(job["id"])) as events,
    ):
        heard = [await anext(events)]
        leased = await lease(site.worker)
        heard.append(await anext(events))
        await proxy.cut()
        await complete(site.api, site.worker, leased)
        await proxy.restore()
        heard += [event async for event in events]
    assert [(item.type, item.id) for item in heard] == [
        ("job:queued", 1),
        ("job:started", 2),
        ("job:completed", 3),
    ]


async def test_progress_events_arrive_during_the_run(site: Site) -> None:
    job = await site.submit()
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(site.client.events(job["id"])) as events:
        assert (await anext(events)).type == "job:queued"
        leased = await lease(site.worker)
        assert (await anext(events)).type == "job:started"
        await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "progress": {"value": 0.5}})
        event = await anext(events)
    assert (event.type, event.id, event.data) == ("progress", None, {"value": 0.5})


async def test_finished_job_ends_its_event_stream(site: Site) -> None:
    job = await run(site.api, site.user, site.worker, site.effect_id)
    assert [event.type async for event in site.client.events(job["id"])][-1] == "job:completed"
    assert [event async for event in site.client.events(job["id"], after=3)] == []
    with pytest.raises(NotFound):
        await anext(site.client.events("0195-nobody"))


async def test_unreachable_server_ends_the_event_stream_with_an_error(site: Site) -> None:
    job = await site.submit()
    async with Proxy(site.url) as proxy, Client(proxy.url, token=site.token) as client:
        events = client.events(job["id"], patience_seconds=0.5)
        assert (await anext(events)).type == "job:queued"
        await proxy.cut()
        with pytest.raises(ControlPlaneUnreachable, match="There is no response"):
            await anext(events)


async def test_server_sent_events_follow_the_standard() -> None:
    async def lines() -> AsyncIterator[str]:
        for line in [
            ": hello",
            "",
            "id: 7",
            "event: job:started",
            'data: {"a":',
            "data:  1}",
            "",
            "data: [1]",
            "",
            "data: x",
            "",
        ]:
            yield line

    assert [event async for event in parsed(lines())] == [JobEvent(type="job:started", data={"a": 1}, id=7)]


async def test_followed_log_has_every_line_once(site: Site) -> None:
    # only administrators can read the log of an effect
    await execute(site.api.engine.databases.central, "UPDATE users SET is_admin = true")
    job = await site.submit()
    leased = await lease(site.worker)

    async def send_lines(first: int, last: int) -> None:
        lines = [f"line {n}" for n in range(first, last)]
        await site.worker.post("/api/worker/heartbeat", {**lease_of(leased), "logs": lines})

    await send_lines(0, 3)
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(site.client.logs(job["id"], is_followed=True)) as lines:
        heard = [(await anext(lines)).line for _ in range(3)]
        # more lines than fit on a page
        await send_lines(3, 150)
        await send_lines(150, 260)
        heard += [(await anext(lines)).line for _ in range(257)]
        await send_lines(260, 261)
        await complete(site.api, site.worker, leased)
        heard += [line.line async for line in lines]
    assert heard == [f"line {n}" for n in range(261)]
    assert [log.line async for log in site.client.logs(job["id"])] == heard


# Errors


async def test_unreachable_server_error_names_the_start_command() -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ControlPlaneUnreachable) as raised:
            await client.presets()
    assert str(raised.value) == f"There is no response at http://127.0.0.1:{port}. Start it with: comfyrelay up"


async def test_unreachable_server_is_distinguished_from_a_desk_by_the_token() -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}", token="crt_x") as client:
        with pytest.raises(ControlPlaneUnreachable, match="Start it with: comfyrelay server"):
            await client.presets()


async def test_foreign_server_at_the_address_is_detected() -> None:
    async with open_receiver() as other, Client(other.url.removesuffix("/hook")) as client:
        with pytest.raises(ControlPlaneUnreachable, match="is not ComfyRelay \\(status 404\\)"):
            await client.presets()


async def test_missing_or_wrong_token_is_reported(site: Site) -> None:
    cases = [(None, "Set COMFYRELAY_TOKEN to one of"), ("wrong", "refused the token in COMFYRELAY_TOKEN")]
    for token, words in cases:
        async with Client(site.url, token=token) as client:
            with pytest.raises(Unauthorized, match=words):
                await client.presets()


async def test_refusal_names_the_invalid_fields(site: Site) -> None:
    with pytest.raises(InvalidInput, match="nonsense") as raised:
        await site.client.submit_batch([{"input_payload": {"nonsense": 1}}], effect_id=site.effect_id)
    assert list(raised.value.errors) == ["items.0.nonsense"]
    job = await run(site.api, site.user, site.worker, site.effect_id)
    with pytest.raises(Conflict):
        await site.client.cancel("job", job["id"])


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u:secret@host", "http://host:99999", "http://host/?a=b"])
def test_invalid_address_is_refused_and_not_echoed(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Use the form http://127\.0\.0\.1:8420") as raised:
        Client(url)
    assert "secret" not in str(raised.value)


async def test_id_cannot_reach_another_route(site: Site) -> None:
    for id_ in ("../presets", "x/cancel", "?status=failed"):
        with pytest.raises(ComfyRelayError):
            await site.client.job(id_)


async def test_client_address_defaults_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFYRELAY_URL", raising=False)
    async with Client() as client:
        assert client.url == DEFAULT_URL
    monkeypatch.setenv("COMFYRELAY_URL", "http://relay.test:8430")
    async with Client() as client:
        assert client.url == "http://relay.test:8430"
    async with Client("http://other.test") as client:
        assert client.url == "http://other.test"
