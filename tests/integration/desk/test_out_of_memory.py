"""A job that runs out of memory without a GPU fails soon: a further attempt would not get more memory."""

from pathlib import Path

from comfyrelay.simulator import OutOfMemory, Simulator
from tests.support.desk import make_desk, open_desk
from tests.support.graphs import invert


async def test_job_that_runs_out_of_memory_without_a_gpu_is_tried_twice(tmp_path: Path) -> None:
    async with Simulator(arguments=("--cpu",)) as simulator:
        simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
        async with open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
            slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
            ended = await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
        assert ended.status == "failed"
        assert ended.error is not None
        assert "without a GPU" in ended.error
        assert simulator.log.count("POST", "/prompt") == 2
