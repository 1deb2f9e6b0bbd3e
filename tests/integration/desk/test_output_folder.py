"""Outputs in the output folder of a desk."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.desk.batches import output_copies
from comfyrelay.desk.batches.copy_journal import CopyJournal, JournalEntry
from comfyrelay.desk.batches.output_copies import OutputCopies
from comfyrelay.services import engine
from comfyrelay.simulator import Simulator
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.desk_owner import owner_http
from tests.support.graphs import five_images, invert
from tests.support.world import PATIENCE_SECONDS


@pytest.fixture
async def comfyui(tmp_path: Path) -> AsyncIterator[Simulator]:
    async with Simulator(folder=tmp_path / "comfyui") as simulator:
        yield simulator


async def run_job(desk: OpenDesk, graph: Graph | None = None) -> str:
    slug = (await desk.client.add_graph(graph or invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug, label="mine")
    assert (await desk.ended(job.id)).status == "completed"
    return job.id


def images_by_inode(*folders: Path) -> dict[int, list[Path]]:
    """Return the names of image files by inode: one file may have several names."""
    found: dict[int, list[Path]] = {}
    for folder in folders:
        for path in folder.rglob("*.png"):
            found.setdefault(path.stat().st_ino, []).append(path)
    # every desk has a sample image
    return {inode: paths for inode, paths in found.items() if "sample.png" not in {path.name for path in paths}}


async def history_of(simulator: Simulator) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=simulator.url) as http:
        found: dict[str, object] = (await http.get("/history")).json()
    return found


async def test_output_is_stored_once_and_removed_from_comfyui(tmp_path: Path, comfyui: Simulator) -> None:
    closed_desk = make_desk(tmp_path / "desk", comfyui_url=[comfyui.url], comfyui_folders=[comfyui.folder])
    async with open_desk(closed_desk) as desk:
        job_id = await run_job(desk)
        async with asyncio.timeout(PATIENCE_SECONDS):
            # ComfyUI's files are removed once the job is reported as completed
            while len(images_by_inode(tmp_path)) > 1 or await history_of(comfyui):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        [names] = images_by_inode(tmp_path).values()
        folders = {name.relative_to(tmp_path / "desk").parts[0] for name in names}
        assert folders == {"objects", "outputs"}
        # the output remains available if the user deletes it from the output folder
        next(name for name in names if "outputs" in name.parts).unlink()
        [saved] = await desk.client.download_outputs(job_id, tmp_path / "saved")
        assert saved.stat().st_size


async def test_name_in_the_output_folder_is_saved_before_the_copy(
    tmp_path: Path, comfyui: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A desk killed between copying and completing therefore reuses the name after its restart."""
    saved_first = []

    def put_file(source: Path, place: Path, umask: int | None) -> None:
        held = [file.read_text("utf-8") for file in tmp_path.rglob("held/*.json")]
        saved_first.append(any(place.name in text for text in held))
        put(source, place, umask)

    put = output_copies.put_file
    monkeypatch.setattr(output_copies, "put_file", put_file)
    async with open_desk(make_desk(tmp_path / "desk", comfyui_url=[comfyui.url])) as desk:
        await run_job(desk)
    assert saved_first == [True]


async def test_comfyui_outputs_are_kept_when_tidying_is_off(tmp_path: Path, comfyui: Simulator) -> None:
    closed_desk = make_desk(
        tmp_path / "desk", comfyui_url=[comfyui.url], comfyui_folders=[comfyui.folder], tidy_comfyui=False
    )
    async with open_desk(closed_desk) as desk:
        await run_job(desk)
        assert len(await history_of(comfyui)) == 1
        assert images_by_inode(comfyui.folder / "output")


async def test_output_folder_on_another_disk_gets_copies(tmp_path: Path) -> None:
    other_disk = Path("/dev/shm")
    if not other_disk.is_dir() or other_disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system: mount one at /dev/shm")
    folder = other_disk / f"comfyrelay-{os.getpid()}"
    try:
        async with open_desk(make_desk(tmp_path / "desk", output_folder=folder)) as desk:
            job_id = await run_job(desk)
            assert [path.stat().st_nlink for path in folder.iterdir()] == [1]
            message = (await desk.client.delete_job(job_id)).message
            assert str(folder) in message
            assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


async def test_leftovers_of_a_killed_desk_are_removed(tmp_path: Path) -> None:
    closed_desk = make_desk(tmp_path / "desk")
    root, data_dir = closed_desk.output_folder, closed_desk.settings.data_dir
    names = ["picks/mine.png", "picks/.mine.png.part", ".copying-export-1/output", "batch/gone.png", "user.png"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (data_dir / "objects" / "source.png").write_bytes(b"another image")
    journal = CopyJournal(data_dir / "copies")
    journal.add("export-1", JournalEntry(names=["picks/mine.png"]))
    journal.add("deleted-job", JournalEntry(job_id="deleted-job", names=["batch/gone.png"]))
    # the desk used another output folder at that time
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "user.png").write_bytes(b"x")
    journal.add("earlier-job", JournalEntry(job_id="earlier-job", names=["user.png"], root=str(tmp_path / "earlier")))
    # the user has since saved a file under that name
    journal.add("refused-job", JournalEntry(job_id="refused-job", names=["user.png"], sources=["source.png"]))
    async with open_desk(closed_desk):
        assert {path.name for path in root.rglob("*")} == {"picks", "mine.png", "user.png"}
        assert list((tmp_path / "earlier").iterdir()) == []
        assert list((data_dir / "copies").iterdir()) == []


async def test_copies_of_a_deleted_output_are_removed_after_a_kill(tmp_path: Path) -> None:
    """The desk is killed after the database recorded the deletion and before the copy is deleted."""
    closed_desk = make_desk(tmp_path / "desk")
    async with open_desk(closed_desk) as desk:
        job_id = await run_job(desk, five_images())
        copies = sorted(path.name for path in closed_desk.output_folder.iterdir())
        second = (await desk.client.job(job_id)).outputs[1].file_id
        async with owner_http(desk.ready.url) as http:
            await http.post("/api/gallery/delete", json={"ids": [second], "keep_files": True})
    journal = CopyJournal(closed_desk.settings.data_dir / "copies")
    journal.add(job_id, JournalEntry(job_id=job_id, names=copies))
    async with open_desk(closed_desk):
        # the other copies still belong to the job
        assert sorted(path.name for path in closed_desk.output_folder.iterdir()) == [copies[0], *copies[2:]]


async def test_killed_desk_copies_no_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal images of one job have equal content, so only saved names tell the copies apart."""

    async def copy_twice(self: OutputCopies, lease: Any, collected: Any, save: Any) -> str | None:
        await copy_run(self, lease, collected, save)
        # the next process knows only what was saved with the lease
        return await copy_run(self, lease, collected, save)

    copy_run = OutputCopies.copy_run
    monkeypatch.setattr(OutputCopies, "copy_run", copy_twice)
    async with open_desk(make_desk(tmp_path / "desk")) as desk:
        job_id = await run_job(desk, five_images())
        name = f"mine-{job_id[-8:]}"
        assert sorted(path.name for path in desk.desk.output_folder.iterdir()) == sorted(
            f"0001_{name}{more}.png" for more in ("", "_2", "_3", "_4", "_5")
        )


async def test_deleted_job_is_not_recorded_if_its_files_are_kept(tmp_path: Path) -> None:
    async with open_desk(make_desk(tmp_path / "desk")) as desk:
        job_id = await run_job(desk)
        journal = CopyJournal(desk.ready.data_dir / "copies")
        # a deletion that was refused after it had been recorded
        journal.add(job_id, JournalEntry(job_id=job_id, names=["any.png"]))
        await desk.client.delete_job(job_id, keep_files=True)
        assert list(journal.entries()) == []


async def deleted(root: Path, job_id: str) -> None:
    """Wait until the copy of a job is deleted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(job_id[-8:] in path.name for path in root.iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_live", [False, True], ids=["at its start", "on the page"])
async def test_old_outputs_are_deleted_with_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    monkeypatch.setattr(engine, "RETENTION_SECONDS", 0.05)
    root = make_desk(tmp_path / "desk").output_folder
    async with open_desk(make_desk(tmp_path / "desk")) as desk, owner_http(desk.ready.url) as http:
        starred, old = await run_job(desk), await run_job(desk)
        [output] = (await desk.client.job(starred)).outputs
        await http.post("/api/gallery/marks", json={"ids": [output.file_id], "starred": True})
        assert len(list(root.iterdir())) == 2
        if is_live:
            # about a tenth of a second
            await http.put("/api/desk/settings", json={"values": {"desk.keep_outputs_days": 1e-6}})
            await deleted(root, old)
    if not is_live:
        async with open_desk(make_desk(tmp_path / "desk", keep_outputs_days=1e-6)):
            await deleted(root, old)
    assert [starred[-8:] in path.name for path in root.iterdir()] == [True]
