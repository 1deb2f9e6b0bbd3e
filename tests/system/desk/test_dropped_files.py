"""The workflow of a file from ComfyUI runs again, or the file is used as input."""

from pathlib import Path

from comfyrelay.simulator import Simulator
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.graphs import invert
from tests.system.desk.test_commands import command


async def made_by(desk: OpenDesk, folder: Path) -> Path:
    slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
    job = await desk.client.submit(workflow_slug=slug)
    assert (await desk.ended(job.id)).status == "completed"
    [saved] = await desk.client.download_outputs(job.id, folder)
    return saved


async def test_run_reruns_a_picture_or_uses_it_as_input(tmp_path: Path) -> None:
    async with Simulator() as simulator, open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url])) as desk:
        picture = await made_by(desk, tmp_path)
        code, _, err = await command(desk.ready.url, "run", str(picture), "--out", str(tmp_path / "again"))
        assert code == 0, err
        assert f"{picture} contains the workflow that made it, which runs again" in err
        arguments = ("run", str(picture), "--as-input", "invert-image", "--out", str(tmp_path / "inverted"))
        code, out, err = await command(desk.ready.url, *arguments)
        assert (code, "contains the workflow" in err) == (0, False), err
        assert Path(out.strip()).is_file()
        code, _, err = await command(desk.ready.url, *arguments, "--input", str(picture))
        assert (code, "give only one of them" in err) == (2, True)
