"""A killed process frees its memory on a simulated GPU."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.simulator.gpu import GIB
from tests.support.gpu_pool import gpu_options, open_gpu, picture

GRAPH = picture(1, model="simulator.safetensors")


async def test_memory_of_a_killed_process_is_free(tmp_path: Path) -> None:
    words = f'{{"folder": "{tmp_path / "gpu"}", "memory_bytes": {8 * GIB}, "model_bytes": {5 * GIB}}}'
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comfyrelay", "simulator", "--port", "0", "--gpu", words, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().rpartition(" ")[2].strip()
        async with ComfyClient(url) as client:
            await client.run(GRAPH)
        watcher = open_gpu(gpu_options(tmp_path))
        assert watcher.free < 3 * GIB
    finally:
        process.kill()
        await process.communicate()
    assert watcher.free == 8 * GIB
    watcher.close()
