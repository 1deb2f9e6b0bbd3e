"""The desk runs everything in one process, for one person."""

import asyncio
import itertools
import signal
import socket
import threading
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from PIL import Image

from comfyrelay.client import Client
from comfyrelay.client.labels import JobLabels
from comfyrelay.client.top import take_snapshot
from comfyrelay.desk import data_folder
from comfyrelay.desk.data_folder import open_data_folder
from comfyrelay.desk.desk import Desk
from comfyrelay.desk.startup import workers
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.simulator import Fail, Simulator, Slow
from comfyrelay.system.disks import filesystem_of
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert, invert_file
from tests.support.server_processes import free_port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenDesk]:
    """Share one desk among the tests that do not depend on its jobs and workflows."""
    async with open_desk(make_desk(tmp_path_factory.mktemp("shared"))) as desk:
        yield desk


def sample_image(desk: Desk) -> Path:
    return desk.input_folder / "examples" / "sample.png"


async def test_examples_of_the_first_start_run_without_models(tmp_path: Path) -> None:
    async with open_desk(make_desk(tmp_path / "desk", is_new=True, simulator=False)) as desk:
        assert desk.ready.is_new
        assert desk.ready.simulated_jobs is SimulatedJobs.EXAMPLES
        effects = {effect.slug: effect.id for effect in await desk.client.effects()}
        assert set(effects) == {"invert-image", "image-to-clip", "invert-video", "text-to-image"}
        image = await desk.client.upload(sample_image(desk.desk))
        clip = await desk.client.submit(effect_id=effects["image-to-clip"], input_file_id=image)
        assert (await desk.ended(clip.id)).status == "completed"
        [saved] = await desk.client.download_outputs(clip.id, tmp_path)
        video = await desk.client.upload(saved)
        jobs = [
            await desk.client.submit(effect_id=effects["invert-image"], input_file_id=image),
            await desk.client.submit(effect_id=effects["invert-video"], input_file_id=video),
        ]
        assert [(await desk.ended(job.id)).status for job in jobs] == ["completed", "completed"]


async def test_reopened_desk_keeps_its_data_and_runs_jobs(tmp_path: Path) -> None:
    async with open_desk(make_desk(tmp_path, is_new=True)) as desk:
        slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
        # adding the same graph under another name creates no second workflow
        assert (await desk.client.add_graph(invert(), name="other")).data.slug == slug
    async with make_desk(tmp_path).open():
        # the desk closes before its worker has registered
        pass
    async with open_desk(make_desk(tmp_path)) as desk:
        assert not desk.ready.is_new
        assert [(workflow.slug, workflow.name) for workflow in await desk.client.workflows()] == [(slug, "mine")]
        assert len(await desk.client.effects()) == 4
        assert (await desk.ended((await desk.client.submit(workflow_slug=slug)).id)).status == "completed"


@pytest.mark.asyncio(loop_scope="module")
async def test_second_process_cannot_use_the_data_folder(shared_desk: OpenDesk) -> None:
    other = make_desk(shared_desk.ready.data_dir)
    with pytest.raises(ConfigurationError, match=r"Your desk already runs at http://.* \(--data-dir\)"):
        async with other.open():
            pass


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8420"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "127.0.0.1:1"},
    ],
    ids=["host", "host and port", "origin", "no origin", "origin on another port", "host on another port"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_foreign_hosts_and_origins_are_refused_everywhere(shared_desk: OpenDesk, headers: dict[str, str]) -> None:
    paths = ["/", "/icon.svg", "/api/desk", "/api/desk/now", "/api/ai-jobs", "/api/workflows"]
    paths += ["/docs", "/files/a", "/api/worker/poll", "/metrics", "/nothing"]
    async with owner_http(shared_desk.ready.url) as http:
        for path, method in itertools.product(paths, ("GET", "POST", "OPTIONS")):
            answer = await http.request(method, path, headers=headers)
            assert answer.status_code == 403, f"{method} {path} {answer.text}"


@pytest.mark.asyncio(loop_scope="module")
async def test_loopback_names_and_origins_are_accepted(shared_desk: OpenDesk) -> None:
    port = httpx.URL(shared_desk.ready.url).port
    async with owner_http(shared_desk.ready.url) as http:
        for name in ("127.0.0.1", "localhost", "[::1]"):
            headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
            assert (await http.get("/api/desk", headers=headers)).is_success, name


async def test_owner_graph_may_name_any_input_file(tmp_path: Path) -> None:
    async with (
        Simulator(folder=tmp_path / "comfyui") as simulator,
        open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url])) as desk,
    ):
        Image.new("RGB", (8, 8), "#abcdef").save(simulator.folder / "input" / "mine.png")
        async with owner_http(desk.ready.url) as http:
            body = {"graph": invert_file("mine.png"), "properties": [], "output_extension": "png"}
            created = await http.post("/api/workflows", json=body)
        assert created.status_code == 201, created.text
        job = await desk.client.submit(workflow_slug=created.json()["data"]["slug"])
        assert (await desk.ended(job.id)).status == "completed"


async def test_configured_comfyui_with_thousands_of_models_runs_jobs(tmp_path: Path) -> None:
    """The worker of this desk registers with more data than an unknown caller may send."""
    names = [f"{number:0>100}.safetensors" for number in range(3000)]
    async with Simulator(models={"checkpoints": names}) as simulator:
        closed_desk = make_desk(tmp_path, comfyui_url=[simulator.url])
        assert len("".join(names)) > closed_desk.settings.max_body_bytes
        async with open_desk(closed_desk) as desk:
            assert desk.ready.simulated_jobs is SimulatedJobs.NOTHING
            assert (await desk.client.desk()).comfyui == [simulator.url]
            workflow = (await desk.client.add_graph(invert(), name="mine")).data
            job = await desk.client.submit(workflow_slug=workflow.slug)
            assert (await desk.ended(job.id)).status == "completed"
            assert simulator.log.count("POST", "/prompt") == 1


async def test_unreachable_comfyui_is_shown_everywhere_until_it_answers(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with open_desk(make_desk(tmp_path, comfyui_url=[url])) as desk:
        client = desk.client
        file_id = await client.upload(sample_image(desk.desk))
        job = await client.submit(effect_id=1, input_file_id=file_id)
        unreachable = f"No server listens at {url}. Is ComfyUI running there?"
        reason = f"{unreachable} The job runs as soon as ComfyUI is available."
        await until_waiting(client, job.id, reason)
        assert await unreachable_servers(client) == [unreachable]
        snapshot = await take_snapshot(client, JobLabels(client))
        assert snapshot.comfyui_unreachable == [unreachable]
        assert (snapshot.waits_for or "").partition(": ")[2] == reason
        async with Simulator(port=port) as simulator:
            assert (await desk.ended(job.id)).status == "completed"
            assert await unreachable_servers(client) == []
            simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
            running = await client.submit(effect_id=1, input_file_id=file_id)
            async for event in client.events(running.id):
                if event.type == "progress":
                    break
        # ComfyUI was killed while a job ran, so the job is requeued
        await until_waiting(client, running.id, reason)


async def test_comfyui_with_a_gpu_error_is_not_reported_as_unreachable(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(
            Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered")
        )
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
            file_id = await desk.client.upload(sample_image(desk.desk))
            job = await desk.client.submit(effect_id=1, input_file_id=file_id)
            reason = f"ComfyUI at {simulator.url} cannot be used: The GPU is in a bad state until ComfyUI is restarted."
            await until_waiting(desk.client, job.id, f"{reason} The job runs as soon as ComfyUI is available.")
            assert await unreachable_servers(desk.client) == [reason]


async def unreachable_servers(client: Client) -> list[str]:
    status = await client.now()
    assert status is not None
    return list(status.comfyui_unreachable)


async def until_waiting(client: Client, job_id: str, text: str) -> None:
    async with asyncio.timeout(60):
        while (waiting := (await client.job(job_id)).waiting) is None or waiting.text != text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_failed_start_closes_threads_and_port(tmp_path: Path) -> None:
    async with make_desk(tmp_path).open() as (_, ready), owner_http(ready.url) as http:
        # the slug of the script's own workflow is taken
        graph = {"1": {"class_type": "SaveImage", "inputs": {}}}
        created = await http.post("/api/admin/workflows", json={"slug": "script", "graph": graph})
        created.raise_for_status()
    threads = set(threading.enumerate())
    second = make_desk(tmp_path)
    second.script = {}
    with pytest.raises(ConfigurationError, match="One of your workflows is named 'script'"):
        async with second.open():
            pass
    # the thread of an SQLite connection ends shortly after the connection is closed
    new_threads = [thread for thread in threading.enumerate() if thread not in threads and "asyncio" not in thread.name]
    for thread in new_threads:
        thread.join(timeout=30)
    assert [thread for thread in new_threads if thread.is_alive()] == []
    with socket.create_server(("127.0.0.1", second.settings.port)):
        pass
    async with make_desk(tmp_path).open():
        pass


@pytest.mark.asyncio(loop_scope="module")
async def test_retry_with_new_seeds_replaces_every_seed(shared_desk: OpenDesk) -> None:
    desk = shared_desk
    graph = {
        **PROMPT_GRAPH,
        "8": {
            "class_type": "KSampler",
            "inputs": {**PROMPT_GRAPH["5"]["inputs"], "latent_image": ["5", 0], "seed": 5, "denoise": 0.5},
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["8", 0], "vae": ["1", 2]}},
    }
    slug = (await desk.client.add_graph(graph, name="two samplers")).data.slug
    job = await desk.client.submit(workflow_slug=slug, input_payload={"seed": 2**64 - 2})
    assert (await desk.ended(job.id)).status == "failed"
    again = (await desk.client.retry("job", job.id, new_seeds=True)).data
    first, second = [await values_of(desk, job_id) for job_id in (job.id, again.id)]
    assert (first["seed"], first["ksampler_seed"]) == (2**64 - 2, 5)
    assert second["seed"] != first["seed"]
    assert second["ksampler_seed"] not in (5, second["seed"])
    assert second["prompt"] == first["prompt"]


async def values_of(desk: OpenDesk, job_id: str) -> dict[str, object]:
    about = await desk.client.about(job_id)
    assert about is not None
    return {input_.key: input_.value for input_ in about.inputs}


async def test_running_job_is_requeued_when_the_desk_closes(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url], shutdown_seconds=0)) as desk:
            slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
            job = await desk.client.submit(workflow_slug=slug)
            async for event in desk.client.events(job.id):
                if event.type == "progress":
                    break
        simulator.behave()
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
            job = await desk.ended(job.id)
            assert (job.status, job.attempts) == ("completed", 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_unexpected_error_fails_the_job_and_not_the_worker(
    shared_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object) -> None:
        raise ValueError("unexpected")

    slug = (await shared_desk.client.add_graph(invert(), name="mine")).data.slug
    with monkeypatch.context() as patch:
        # such an error cannot be provoked from outside
        patch.setattr("comfyrelay.worker.jobs.job.collect", fail)
        submitted = await shared_desk.client.submit(workflow_slug=slug, label="broken")
        failed = await shared_desk.ended(submitted.id)
    assert (failed.status, failed.attempts) == ("failed", 3)
    assert "unexpectedly (ValueError)" in str(failed.error)
    submitted = await shared_desk.client.submit(workflow_slug=slug)
    assert (await shared_desk.ended(submitted.id)).status == "completed"


# Locations of the data folder


MOUNTS = (
    ("/", "ext4"),
    ("/mnt/c", "9p"),
    ("/home/me/net", "nfs4"),
    ("/home/me/net/local", "ext4"),
    ("/a b", "tmpfs"),
)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/data", "ext4"),
        ("/mnt/c/Users/me/data", "9p"),
        ("/mnt/cc", "ext4"),
        ("/home/me/net/data", "nfs4"),
        ("/home/me/net/local/data", "ext4"),
        ("/a b/data", "tmpfs"),
    ],
)
def test_file_system_is_taken_from_the_closest_mount(folder: str, kind: str) -> None:
    assert filesystem_of(Path(folder), mounts=MOUNTS) == kind


@pytest.mark.parametrize("kind", ["9p", "drvfs", "nfs4", "cifs", "fuse.sshfs", "remote"])
def test_data_folder_on_a_network_disk_is_refused_with_advice(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no such disk can be mounted in a test
    monkeypatch.setattr(data_folder, "filesystem_of", lambda _folder: kind)
    with pytest.raises(ConfigurationError, match="--data-dir"):
        open_data_folder(tmp_path)


def test_data_folder_that_cannot_be_created_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--data-dir"):
        open_data_folder(tmp_path / "file" / "data")


def test_disk_check_leaves_only_the_lock(tmp_path: Path) -> None:
    open_data_folder(tmp_path).release()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


async def test_stop_signal_before_the_worker_runs_stops_the_desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def import_and_signal(module: str) -> None:
        import_module(module)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(workers, "import_later", import_and_signal)
    async with make_desk(tmp_path / "desk").open(signals=True) as (worker, _ready):
        await worker


async def test_desk_without_a_worker_yet_reports_no_unreachable_comfyui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk(tmp_path / "desk", simulator=False)
    found: list[object] = []

    async def import_and_look(module: str) -> None:
        import_module(module)
        async with owner_http(desk.settings.base_url) as owner:
            found.append((await owner.get("/api/desk/unreachable-comfyui")).json()["data"])

    monkeypatch.setattr(workers, "import_later", import_and_look)
    async with open_desk(desk):
        assert found == [{"comfyui_unreachable": []}]
