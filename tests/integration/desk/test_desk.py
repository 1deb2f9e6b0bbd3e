"""The desk: everything in one process, for one person only."""

import asyncio
import itertools
import socket
import threading
from collections.abc import AsyncIterator
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
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.simulator import Fail, Simulator, Slow
from comfyrelay.system.disks import filesystem_of
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import invert, invert_file
from tests.support.server_processes import free_port


@pytest.fixture
async def new_desk(tmp_path: Path) -> AsyncIterator[OpenDesk]:
    async with open_desk(make_desk(tmp_path / "desk", is_new=True, simulator=False)) as desk:
        yield desk


async def test_first_start_brings_examples_that_run_without_models(new_desk: OpenDesk, tmp_path: Path) -> None:
    desk = new_desk
    assert desk.ready.is_new
    assert desk.ready.simulated_jobs is SimulatedJobs.EXAMPLES
    effects = {effect.slug: effect.id for effect in await desk.client.effects()}
    assert set(effects) == {"invert-image", "image-to-clip", "invert-video", "text-to-image"}
    sample = desk.desk.input_folder / "examples" / "sample.png"
    image = await desk.client.upload(sample)
    clip = await desk.client.submit(effect_id=effects["image-to-clip"], input_file_id=image)
    assert (await desk.ended(clip.id)).status == "completed"
    [saved] = await desk.client.download_outputs(clip.id, tmp_path)
    video = await desk.client.upload(saved)
    jobs = [
        await desk.client.submit(effect_id=effects["invert-image"], input_file_id=image),
        await desk.client.submit(effect_id=effects["invert-video"], input_file_id=video),
    ]
    assert [(await desk.ended(job.id)).status for job in jobs] == ["completed", "completed"]


async def test_second_start_finds_everything_again(tmp_path: Path) -> None:
    first = make_desk(tmp_path, is_new=True)
    async with first.open() as (_, ready), Client(ready.url) as client:
        made = await client.add_graph(invert(), name="mine")
    second = make_desk(tmp_path)
    async with second.open() as (_, ready), Client(ready.url) as client:
        assert not ready.is_new
        assert [workflow.slug for workflow in await client.workflows()] == [made.data.slug]
        assert len(await client.effects()) == 4


async def test_desk_that_is_closed_at_once_can_be_opened_at_once(tmp_path: Path) -> None:
    for _ in range(2):
        async with make_desk(tmp_path).open():
            pass
    async with make_desk(tmp_path).open() as (_, ready), Client(ready.url) as client:
        made = await client.add_graph(invert(), name="mine")
        job = await client.submit(workflow_slug=made.data.slug)
        async with asyncio.timeout(20):
            async for _event in client.events(job.id):
                pass


async def test_same_graph_twice_is_one_workflow(desk: OpenDesk) -> None:
    first = await desk.client.add_graph(invert(), name="mine")
    again = await desk.client.add_graph(invert(), name="mine")
    other = await desk.client.add_graph(invert(), name="other")
    assert first.data.slug == again.data.slug == other.data.slug
    assert [workflow.name for workflow in await desk.client.workflows()] == ["mine"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def untouched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenDesk]:
    """One desk for all tests that change nothing."""
    async with open_desk(make_desk(tmp_path_factory.mktemp("untouched"))) as desk:
        yield desk


@pytest.mark.asyncio(loop_scope="module")
async def test_data_folder_is_used_by_one_process(untouched: OpenDesk) -> None:
    other = make_desk(untouched.ready.data_dir)
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
    ],
    ids=["host", "host and port", "origin", "no origin", "another port"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_foreign_hosts_and_origins_are_refused_everywhere(untouched: OpenDesk, headers: dict[str, str]) -> None:
    paths = ("/", "/api/desk", "/api/ai-jobs", "/docs", "/files/a", "/api/worker/poll", "/metrics", "/nothing")
    async with owner_http(untouched.ready.url) as http:
        for path, method in itertools.product(paths, ("GET", "POST", "OPTIONS")):
            answer = await http.request(method, path, headers=headers)
            assert answer.status_code == 403, f"{method} {path} {answer.text}"


@pytest.mark.asyncio(loop_scope="module")
async def test_loopback_names_and_origins_are_accepted(untouched: OpenDesk) -> None:
    port = httpx.URL(untouched.ready.url).port
    async with owner_http(untouched.ready.url) as http:
        for name in ("127.0.0.1", "localhost", "[::1]"):
            headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
            assert (await http.get("/api/desk", headers=headers)).is_success, name


async def test_graph_may_name_any_file_on_the_machine_of_its_owner(tmp_path: Path) -> None:
    async with (
        Simulator(folder=tmp_path / "comfyui") as simulator,
        open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url])) as desk,
    ):
        Image.new("RGB", (8, 8), "#abcdef").save(simulator.folder / "input" / "mine.png")
        async with owner_http(desk.ready.url) as http:
            body = {"graph": invert_file("mine.png"), "properties": [], "output_extension": "png"}
            made = await http.post("/api/workflows", json=body)
        assert made.status_code == 201, made.text
        job = await desk.client.submit(workflow_slug=made.json()["data"]["slug"])
        async for _event in desk.client.events(job.id):
            pass
        assert (await desk.client.job(job.id)).status == "completed"


async def test_comfyui_that_is_named_is_used_and_waited_for(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        named = make_desk(tmp_path, comfyui_url=[simulator.url])
        async with named.open() as (_, ready), Client(ready.url) as client:
            assert ready.simulated_jobs is SimulatedJobs.NOTHING
            assert (await client.desk()).comfyui == [simulator.url]
            made = await client.add_graph(invert(), name="mine")
            job = await client.submit(workflow_slug=made.data.slug)
            async for _ in client.events(job.id):
                pass
            assert simulator.log.count("POST", "/prompt") == 1


async def test_comfyui_of_thousands_of_models_runs_jobs(tmp_path: Path) -> None:
    """Its worker registers with more data than an unknown caller may send."""
    names = [f"{number:0>100}.safetensors" for number in range(3000)]
    async with Simulator(models={"checkpoints": names}) as simulator:
        made = make_desk(tmp_path, comfyui_url=[simulator.url])
        assert len("".join(names)) > made.settings.max_body_bytes
        async with open_desk(made) as desk:
            workflow = (await desk.client.add_graph(invert(), name="mine")).data
            job = await desk.client.submit(workflow_slug=workflow.slug)
            assert (await desk.ended(job.id)).status == "completed"


async def test_unreachable_comfyui_is_shown_everywhere_until_it_is_back(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    named = make_desk(tmp_path, comfyui_url=[url])
    async with named.open() as (_, ready), Client(ready.url) as client:
        job = await client.submit(effect_id=1, input_file_id=await client.upload(sample(named)))
        away = f"No server listens at {url}. Is ComfyUI running there?"
        why = f"{away} The job runs as soon as ComfyUI is available."
        await until_waiting(client, job.id, why)
        assert await away_at(client) == [away]
        seen = await take_snapshot(client, JobLabels(client))
        assert (seen.comfyui_unreachable, (seen.waits_for or "").partition(": ")[2]) == ([away], why)
        async with Simulator(port=port) as simulator:
            async for _event in client.events(job.id):
                pass
            assert (await client.job(job.id)).status == "completed"
            assert await away_at(client) == []
            simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=600))
            again = await client.submit(effect_id=1, input_file_id=await client.upload(sample(named)))
            async for event in client.events(again.id):
                if event.type == "progress":
                    break
        # it was killed with a running job, which is requeued
        await until_waiting(client, again.id, why)


async def test_comfyui_with_a_gpu_error_is_not_reported_as_unreachable(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(
            Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered")
        )
        named = make_desk(tmp_path, comfyui_url=[simulator.url])
        async with named.open() as (_, ready), Client(ready.url) as client:
            job = await client.submit(effect_id=1, input_file_id=await client.upload(sample(named)))
            bad = "The GPU is in a bad state until ComfyUI is restarted."
            soon = "The job runs as soon as ComfyUI is available."
            await until_waiting(client, job.id, f"ComfyUI at {simulator.url} cannot be used: {bad} {soon}")
            assert await away_at(client) == [f"ComfyUI at {simulator.url} cannot be used: {bad}"]


def sample(desk: Desk) -> Path:
    return desk.input_folder / "examples" / "sample.png"


async def away_at(client: Client) -> list[str]:
    now = await client.now()
    assert now is not None
    away: list[str] = now.comfyui_unreachable
    return away


async def until_waiting(client: Client, job_id: str, text: str) -> None:
    async with asyncio.timeout(60):
        while (waiting := (await client.job(job_id)).waiting) is None or waiting.text != text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_desk_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    first = make_desk(tmp_path)
    async with first.open() as (_, ready), Client(ready.url) as client:
        # the slug of the script's own workflow is taken
        graph = {"1": {"class_type": "SaveImage", "inputs": {}}}
        async with owner_http(ready.url) as http:
            made = await http.post("/api/admin/workflows", json={"slug": "script", "graph": graph})
            made.raise_for_status()
        assert (await client.desk()).version
    threads = set(threading.enumerate())
    second = make_desk(tmp_path)
    second.script = {}
    with pytest.raises(ConfigurationError, match="One of your workflows is named 'script'"):
        async with second.open():
            pass
    # each SQLite connection has one, which ends shortly after it was closed
    left = [each for each in threading.enumerate() if each not in threads and "asyncio" not in each.name]
    for each in left:
        each.join(timeout=30)
    assert [each for each in left if each.is_alive()] == []
    with socket.create_server(("127.0.0.1", second.settings.port)):
        pass
    async with make_desk(tmp_path).open():
        pass


async def test_retry_with_new_seeds_renews_every_seed(desk: OpenDesk) -> None:
    graph = {
        **PROMPT_GRAPH,
        "8": {
            "class_type": "KSampler",
            "inputs": {**PROMPT_GRAPH["5"]["inputs"], "latent_image": ["5", 0], "seed": 5, "denoise": 0.5},
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["8", 0], "vae": ["1", 2]}},
    }
    made = await desk.client.add_graph(graph, name="two samplers")
    job = await desk.client.submit(workflow_slug=made.data.slug, input_payload={"seed": 2**64 - 2})
    assert (await desk.ended(job.id)).status == "failed"
    again = (await desk.client.retry("job", job.id, new_seeds=True)).data
    first, second = [await values_of(desk, each) for each in (job.id, again.id)]
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
        first = make_desk(tmp_path, comfyui_url=[simulator.url], finish_seconds=0)
        async with first.open() as (_, ready), Client(ready.url) as client:
            made = await client.add_graph(invert(), name="mine")
            job = await client.submit(workflow_slug=made.data.slug)
            async for event in client.events(job.id):
                if event.type == "progress":
                    break
        simulator.behave()
        second = make_desk(tmp_path, comfyui_url=[simulator.url])
        async with second.open() as (_, ready), Client(ready.url) as client:
            async for _event in client.events(job.id):
                pass
            found = await client.job(job.id)
            assert (found.status, found.attempts) == ("completed", 1)


async def test_unexpected_error_fails_the_job_and_not_the_worker(
    desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_args: object) -> None:
        raise ValueError("nobody thought of this")

    made = await desk.client.add_graph(invert(), name="mine")
    with monkeypatch.context() as patch:
        # no test can cause such an error inside the worker from outside
        patch.setattr("comfyrelay.worker.jobs.job.collect", broken)
        first = await desk.client.submit(workflow_slug=made.data.slug, label="broken")
        found = await desk.ended(first.id)
    assert (found.status, found.attempts) == ("failed", 3)
    assert "unexpectedly (ValueError)" in str(found.error)
    second = await desk.client.submit(workflow_slug=made.data.slug)
    assert (await desk.ended(second.id)).status == "completed"


# possible locations of the data


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
def test_file_system_of_a_folder_is_found(folder: str, kind: str) -> None:
    assert filesystem_of(Path(folder), mounts=MOUNTS) == kind


@pytest.mark.parametrize("kind", ["9p", "drvfs", "nfs4", "cifs", "fuse.sshfs", "remote"])
def test_folder_where_the_queue_could_be_damaged_is_refused_with_advice(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no such disk can be mounted in a test
    monkeypatch.setattr(data_folder, "filesystem_of", lambda _folder: kind)
    with pytest.raises(ConfigurationError, match="--data-dir"):
        open_data_folder(tmp_path)


def test_folder_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--data-dir"):
        open_data_folder(tmp_path / "file" / "data")


def test_trial_of_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    open_data_folder(tmp_path).release()
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]
