"""An output of a desk is one file with a descriptive name; a deletion names the files that it removes."""

from pathlib import Path

import pytest

from comfyrelay.errors import Conflict, NotFound
from tests.support.desk import OpenDesk
from tests.support.graphs import invert
from tests.system.desk.test_commands import command


async def one_done(desk: OpenDesk) -> str:
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug, label="mine")
    assert (await desk.ended(job.id)).status == "completed"
    return job.id


def pictures(*folders: Path) -> dict[int, list[Path]]:
    """Return pictures by inode: one file may have several names."""
    found: dict[int, list[Path]] = {}
    for folder in folders:
        for path in folder.rglob("*.png"):
            found.setdefault(path.stat().st_ino, []).append(path)
    # every desk has this sample
    return {inode: paths for inode, paths in found.items() if "sample.png" not in {path.name for path in paths}}


async def test_delete_names_its_files_and_removes_them(desk: OpenDesk, tmp_path: Path) -> None:
    first, second = await one_done(desk), await one_done(desk)
    about = await desk.client.about(first)
    assert about is not None
    [going] = about.deleted_with_it
    assert Path(going).parent == desk.desk.output_folder
    assert (await desk.client.delete_job(first)).message == f"Deleted, with {going}."
    with pytest.raises(NotFound):
        await desk.client.job(first)
    [names] = pictures(desk.ready.data_dir / "objects", desk.ready.data_dir / "outputs").values()
    assert Path(going) not in names
    # the other job keeps its file in the output folder
    code, out, err = await command(desk.ready.url, "delete", second, "--keep-files", "--yes")
    assert (code, out, err) == (0, f"job {second}: Deleted.\n", "")
    [[remaining]] = pictures(desk.ready.data_dir / "objects", desk.ready.data_dir / "outputs").values()
    assert remaining.parent == desk.desk.output_folder


async def test_command_names_the_files_before_it_asks(desk: OpenDesk) -> None:
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    batch = await desk.client.submit_batch([{}, {}], workflow_slug=slug, label="two")
    for job_id in [job.id async for job in desk.client.jobs(batch_id=batch.id)]:
        await desk.ended(job_id)
    code, out, err = await command(desk.ready.url, "delete", batch.id)
    # the question is not confirmed
    assert (code, out.strip()) == (1, "")
    assert err.count(str(desk.desk.output_folder)) == 2
    code, out, _ = await command(desk.ready.url, "delete", batch.id, "--yes")
    assert (code, out) == (0, f"batch {batch.id}: 2 jobs deleted, with 2 files.\n")
    assert list(desk.desk.output_folder.iterdir()) == []


async def test_completed_job_can_be_rerun(desk: OpenDesk) -> None:
    first = await one_done(desk)
    with pytest.raises(Conflict):
        await desk.client.retry("job", first)
    code, out, _ = await command(desk.ready.url, "rerun", first)
    assert code == 0
    again = await desk.client.job(out.split()[1].rstrip(":"))
    assert again.id != first
    assert (await desk.ended(again.id)).status == "completed"
    assert (await desk.client.job(first)).status == "completed"
